"""What the first call of an op costs: in a fresh process with an empty cache, then with a warm one.

    python benchmarks/first_call.py [PATTERN]

For the rows of `opgen bench --quick`, or those whose name matches the pattern: milliseconds of the
first call less those of a later one, forward and with its gradients. Cold, kernels for the call are
derived and compiled; warm, they are found on disk. The exit status is 1 if an op takes longer than
1.5 s cold, or 20 ms warm; a row may run several, and the gradient of each input is one more.
"""

from __future__ import annotations

import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch

from opgen.bench.row import Row
from opgen.bench.rows import every_row

COLD, WARM = 1500.0, 20.0
"""The most milliseconds of an op."""


def measure(row: Row) -> dict[str, float]:
    """Milliseconds that the first calls cost more than later ones, in this process."""
    torch.ones(2, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    workload = row.make(row.shape_for(torch.device("cpu"), quick=True), torch.device("cpu"))
    leaves = [
        x.requires_grad_() if at in workload.differentiable else x
        for at, x in enumerate(workload.inputs)
    ]
    wanted = [leaves[at] for at in workload.differentiable]

    def forward() -> object:
        with torch.no_grad():
            return workload.opgen(*leaves)

    def backward() -> object:
        return torch.autograd.grad(workload.opgen(*leaves).sum(), wanted)

    return {"forward": _extra(forward), "backward": _extra(backward), "gradients": len(wanted)}


def _extra(call: Callable[[], object]) -> float:
    first, *later = (_milliseconds(call) for _ in range(4))
    return max(first - statistics.median(later), 0.0)


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def _in_a_process(row: Row, cache: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", row.name],
        env={**os.environ, "OPGEN_CACHE": cache},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print a line for every row; 1 if an op took longer than a limit."""
    rows = {row.name: row for row in every_row()}
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(rows[sys.argv[2]])))
        return 0
    chosen = [
        row
        for row in rows.values()
        if (fnmatch.fnmatch(row.name, sys.argv[1]) if sys.argv[1:] else row.quick)
    ]
    print(f"{'':58}{'cold, ms':>16}{'warm, ms':>16}")
    print(f"{'row':58}{'forward':>8}{'grad':>8}{'forward':>8}{'grad':>8}")
    slow = False
    for row in chosen:
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (_in_a_process(row, cache) for _ in range(2))
        figures = (cold["forward"], cold["backward"], warm["forward"], warm["backward"])
        print(f"{row.name:58}" + "".join(f"{value:8.0f}" for value in figures), flush=True)
        for found, limit in ((cold, COLD), (warm, WARM)):
            slow |= found["forward"] > limit or found["backward"] > limit * found["gradients"]
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
