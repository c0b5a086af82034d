"""Ops in processes of their own, compared with eager results of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from opgen import compiler
from opgen.library import build_library
from opgen.testing.support import alone, graphs
from opgen.testing.support.probe import Probe, agree

PATIENCE: Final = 240.0
"""Seconds after which a process is taken to hang."""


def vendored(probe: Probe) -> None:
    """A module with its own copy of the runtime, where opgen cannot be imported."""
    _alone(probe, {})


def without_compiler(probe: Probe) -> None:
    """The op as plain PyTorch operations, forward and backward."""
    _alone(probe, {"OPGEN_CC": "/nowhere/no-compiler"})


def _alone(probe: Probe, environment: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        module = compiler.build(probe.path, directory, vendor=True)
        call = {
            "function": probe.subject.function.__name__,
            "arguments": probe.arguments,
            "attributes": probe.attributes,
            "variables": [
                place
                for place, tensor in enumerate(probe.subject.op.inputs)
                if probe.has_derivative and tensor.name in probe.names
            ],
        }
        torch.save(call, directory / "call.pt")
        finish([start([str(Path(alone.__file__)), str(module), str(directory)], environment)])
        found: Any = torch.load(directory / "result.pt")
    agree("the result", found["outputs"], probe.values)
    if probe.has_derivative:
        agree("the gradient", found["gradients"], probe.gradients)


def without_opgen(probe: Probe) -> None:
    """A package compiled ahead of time and the library of its ops, where opgen is not."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        built = build_library(probe.path, directory, ("f64",))
        package = graphs.packaged(probe, directory)
        given = tuple(probe.inputs.values())
        torch.save(given, directory / "inputs.pt")
        finish([start(["-c", _LOADER, str(built), package, str(directory)], {})])
        found: Any = torch.load(directory / "outputs.pt")
    agree("the package", tuple(found), graphs.between(probe)(*given))


_LOADER: Final = """
import sys
sys.modules["opgen"] = None
import torch
library, package, directory = sys.argv[1:]
torch.ops.load_library(library)
net = torch._inductor.aoti_load_package(package)
outputs = net(*torch.load(f"{directory}/inputs.pt"))
torch.save(list(outputs), f"{directory}/outputs.pt")
"""


def start(arguments: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """A process of this Python; what is beside a script is not importable there."""
    return subprocess.Popen(
        [sys.executable, "-P", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """What processes printed. RuntimeError with the last line of one that failed, or hung."""
    try:
        results = [process.communicate(timeout=PATIENCE) for process in processes]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a process did not end within {PATIENCE:.0f} seconds") from None
    finally:
        for process in processes:
            process.kill()  # nothing to one that has ended
    for process, (_, errors) in zip(processes, results, strict=True):
        if process.returncode:
            lines = [line for line in errors.splitlines() if line.strip()]
            raise RuntimeError(lines[-1] if lines else f"exit status {process.returncode}")
    return [printed for printed, _ in results]
