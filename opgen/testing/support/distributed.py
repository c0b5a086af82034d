"""Ops on two processes: started here, tried in `two_processes`."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import cast

import torch
from torch import nn

from opgen.testing.support import processes, two_processes
from opgen.testing.support.eager import needs_derivative
from opgen.testing.support.probe import NotTried, Probe, agree


def data_parallel(probe: Probe) -> None:
    """`nn.DataParallel` on the CPU, where it calls the module as it is."""
    needs_derivative(probe)
    if torch.cuda.is_available():
        raise NotTried("it is tried without a GPU only; it splits batches over those there are")
    net = two_processes.Net(probe)
    scales = torch.tensor([1.0, 0.5], dtype=torch.float64)
    found = two_processes.gradients(nn.DataParallel(net), scales)
    agree("the gradient", found, two_processes.gradients(two_processes.Net(probe), scales))


def feature(name: str) -> Callable[[Probe], None]:
    """One of the attempts of `two_processes` as a feature."""

    def attempt(probe: Probe) -> None:
        if name != "dtensor":
            needs_derivative(probe)
        if not torch.distributed.is_available():
            raise NotTried("this build of PyTorch has no torch.distributed")
        error = _results(probe.path, probe.subject.op.name)[name]
        if error:
            raise RuntimeError(error)

    return attempt


@lru_cache(maxsize=1)
def _results(path: Path, op: str) -> dict[str, str]:
    """What went wrong with each attempt, in either process; both are started once for all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started: list[subprocess.Popen[str]] = [
        processes.start(["-m", two_processes.__name__, str(path), op, rank, port], {})
        for rank in ("0", "1")
    ]
    found: dict[str, str] = {}
    for printed in processes.finish(started):
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        for name, error in cast(dict[str, str], json.loads(lines[-1])).items():
            found[name] = found.get(name) or error
    return found
