"""Ops on two processes: DTensor, DDP, FSDP2; and DataParallel in one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distributed_cases
from binding_cases import real, spec
from opgen.runtime import sharding

SCRIPT = Path(distributed_cases.__file__)


@cache
def outputs() -> tuple[str, ...]:
    """What the two processes print; started once for all checks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    return tuple(process.communicate(timeout=400)[0] for process in processes)


@pytest.mark.slow
@pytest.mark.parametrize("name", [function.__name__ for function in distributed_cases.CHECKS])
def test_two_processes(name: str) -> None:
    first, second = outputs()
    assert f"FAILED {name} " not in first, first
    assert f"FAILED {name} " not in second, second
    assert f"passed {name}\n" in first, first


def test_data_parallel_on_one_device() -> None:
    module = spec("depth_to_space").DepthToSpace(r=2)
    x = real(2, 4, 3, 3)
    torch.testing.assert_close(nn.DataParallel(module)(x), F.pixel_shuffle(x, 2))


def test_a_process_without_dtensors_loads_nothing_of_them() -> None:
    program = (
        "import sys, torch, opgen\n"
        "ops = opgen.compile('op same(x[N]) -> y[N]\\n  y[n] = x[n]\\n')\n"
        "ops.same(torch.ones(2))\n"
        "print('torch.distributed.tensor' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"
    assert "torch.distributed.tensor" in sys.modules  # the tests of this file do
    spec("softmax").softmax(torch.ones(3))
    assert spec("softmax")._softmax.registered_name in sharding._REGISTERED
