"""What the first call of an op costs: in a fresh process with an empty cache, then with a warm one.
And what it costs to import a module that was built.

    python benchmarks/first_call.py [PATTERN] [--device cuda] [--write-readme]

For the rows of `opgen bench --quick`, or those whose name matches the pattern: milliseconds of the
first call less those of a later one, forward and with its gradients. Cold, kernels for the call are
derived and compiled; warm, they are found on disk. A process has one first call, so there are three
cold ones and five warm: a figure is the median, with the largest in brackets. The exit status is 1
if the median of an op is longer than 1.5 s cold, or 20 ms warm; a row may run several, and the
gradient of each input is one more. Importing the module of `specs/shift_sum.op`, which holds all
its gradients, beside PyTorch is to take 50 ms of the processor at most. The figures can be put into
`benchmarks/README.md`, or those of a GPU, where CuPy and its compiler are loaded as well, into
`benchmarks/GPU.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import opgen
from opgen.bench import machine, tables
from opgen.bench.row import Row, autocast
from opgen.bench.rows import every_row
from opgen.bench.run import chosen

COLD, WARM = 1500.0, 20.0
"""The most milliseconds of an op."""
IMPORT = 50.0
"""The most milliseconds of the processor for importing a module, where PyTorch is loaded."""
COLD_CALLS, WARM_CALLS, IMPORTS = 3, 5, 9
"""How many processes make a figure."""
_KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**60)}
"""Tells the C library to keep memory that is freed. New pages are no part of a first call: any call
may meet them, and on a virtual machine those of one result took from 1 to 100 ms."""
_ENOUGH = 2**29
"""Bytes that are written and freed before, more than a row needs."""
_IMPORTING = """
import time
begin = time.process_time()
import torch
middle = time.process_time()
import shift_sum
print(1e3 * (middle - begin), 1e3 * (time.process_time() - middle))
"""
READMES = {
    device: Path(__file__).parent / name
    for device, name in (("cpu", "README.md"), ("cuda", "GPU.md"))
}
SPEC = Path(__file__).parent.parent / "specs" / "shift_sum.op"


def measure(row: Row, device: torch.device) -> dict[str, float]:
    """Milliseconds that the first calls cost more than later ones, in this process."""
    torch.ones(_ENOUGH, dtype=torch.uint8)
    torch.ones(2, device=device, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    workload = row.make(row.shape_for(device, quick=True), device)
    leaves = [
        x.requires_grad_() if at in workload.differentiable else x
        for at, x in enumerate(workload.inputs)
    ]
    wanted = [leaves[at] for at in workload.differentiable]

    def called() -> torch.Tensor:
        with autocast(device, workload.autocast):
            return workload.opgen(*leaves)

    def forward() -> object:
        with torch.no_grad():
            return called()

    def backward() -> object:
        return torch.autograd.grad(called().sum(), wanted)

    return {
        "forward": _extra(forward, device),
        "backward": _extra(backward, device),
        "gradients": len(wanted),
    }


def _extra(call: Callable[[], object], device: torch.device) -> float:
    first, *later = (_milliseconds(call, device) for _ in range(4))
    return max(first - statistics.median(later), 0.0)


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - start)


def _in_a_process(row: Row, device: str, cache: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", row.name, device],
        env={**os.environ, **_KEPT, "OPGEN_CACHE": cache},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Figure:
    """Milliseconds of the first call in some processes."""

    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """What counts: another program may have the processor in one of them."""
        return statistics.median(self.milliseconds)

    def __str__(self) -> str:
        return f"{self.median:.0f} ({max(self.milliseconds):.0f})"


@dataclass(frozen=True)
class FirstCalls:
    """The first calls of a row: what every process found, cold and warm."""

    row: Row
    cold: tuple[dict[str, float], ...]
    warm: tuple[dict[str, float], ...]

    @property
    def figures(self) -> tuple[str, ...]:
        """Cold forward and with gradients, then warm."""
        return tuple(
            str(_figure(found, way))
            for found in (self.cold, self.warm)
            for way in ("forward", "backward")
        )

    @property
    def is_slow(self) -> bool:
        """Whether an op takes longer than a limit."""
        return any(
            _figure(found, "forward").median > limit
            or _figure(found, "backward").median > limit * found[0]["gradients"]
            for found, limit in ((self.cold, COLD), (self.warm, WARM))
        )


def _figure(found: tuple[dict[str, float], ...], way: str) -> Figure:
    return Figure(tuple(each[way] for each in found))


def first_calls(row: Row, device: str = "cpu") -> FirstCalls:
    """Those of a row: cold ones each with a cache of its own, warm ones with the last of these."""
    cold = []
    for at in range(COLD_CALLS):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(_in_a_process(row, device, cache))
            if at == COLD_CALLS - 1:
                warm = tuple(_in_a_process(row, device, cache) for _ in range(WARM_CALLS))
    return FirstCalls(row, tuple(cold), warm)


def imports() -> tuple[Figure, Figure]:
    """What importing PyTorch takes, and then a module, where Python has its bytecode."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as folder:
        opgen.build(SPEC, Path(folder), vendor=True)
        found = [_imported(folder, kept) for _ in range(IMPORTS + 1)]
    torch_itself, module = zip(*found[1:], strict=True)  # the first one writes it
    return Figure(torch_itself), Figure(module)


def _imported(folder: str, environment: dict[str, str]) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTING],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    torch_itself, module = map(float, done.stdout.split())
    return torch_itself, module


def main() -> int:
    """Print a line for every row; 1 if an op or an import took longer than a limit."""
    rows = {row.name: row for row in every_row()}
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(rows[sys.argv[2]], torch.device(sys.argv[3]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "pattern",
        nargs="?",
        help="rows whose name has this, or matches it; those of quick mode without it",
    )
    parser.add_argument("--device", choices=sorted(READMES), default="cpu")
    parser.add_argument("--write-readme", action="store_true", help="put the table there")
    given = parser.parse_args()
    if given.write_readme:  # complains before minutes are spent
        tables.split(READMES[given.device], tables.FIRST_CALLS)
    wanted = [row for row in rows.values() if row.quick or given.pattern is not None]
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    torch_itself, module = imports()
    importing = f"import, ms of the processor: PyTorch {torch_itself}, then the module {module}"
    print(importing)
    print(f"{'':58}{'cold, ms':>26}{'warm, ms':>26}")
    print(f"{'row':58}" + 2 * f"{'forward':>13}{'grad':>13}")
    found = []
    for row in chosen(wanted, given.pattern or ""):
        found.append(first_calls(row, given.device))
        print(f"{row.name:58}" + "".join(f"{v:>13}" for v in found[-1].figures), flush=True)
    if given.write_readme:
        command = shlex.join(["python", "benchmarks/first_call.py", *sys.argv[1:]])
        table = [(each.row.name, *each.figures) for each in found]
        about = {
            "machine": machine.describe(torch.device(given.device)),
            "started": started,
            "command": command,
        }
        figures = {"importing": importing, tables.FIRST_CALLS: table}
        tables.rewritten(READMES[given.device], tables.FIRST_CALLS, {**about, **figures})
    return int(module.median > IMPORT or any(each.is_slow for each in found))


if __name__ == "__main__":
    sys.exit(main())
