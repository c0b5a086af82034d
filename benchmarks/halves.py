"""Ops of several statements in bfloat16, beside what PyTorch's users write.

    python benchmarks/halves.py [--device cuda] [--seconds S]

The products of `everyday.py` with bfloat16 numbers, forward and the gradients of all inputs, in one
process and by turns. What is printed are milliseconds as called, of opgen and of PyTorch, and how
far the two differ, as a part of the largest number: both round, PyTorch behind every op.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from statistics import median

import everyday
import torch

from opgen.bench import timing
from opgen.bench.beside import FORMATS, THEIRS
from opgen.bench.calls import OPGEN, calls_of, surroundings
from opgen.bench.row import Contender, Direction


def measure(
    subject: everyday.Written, format_: torch.memory_format, device: torch.device, budget: float
) -> None:
    """Print a line for each direction."""
    torch.manual_seed(0)
    with device:
        workload = subject.workload(format_)
    halves = tuple(each.bfloat16() for each in workload.inputs)
    workload = dataclasses.replace(workload, inputs=halves)
    contenders = [Contender(OPGEN, workload.opgen), *workload.contenders]
    for direction in Direction:
        calls = calls_of(workload, contenders, direction)
        pairs = zip(calls[OPGEN](), calls[THEIRS](), strict=True)
        off = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        with surroundings(workload, direction):
            rounds = timing.in_turn(calls, timing.clock_of(device), budget, {OPGEN})
        own, theirs = (1e3 * median(rounds.seconds(name)) for name in (OPGEN, THEIRS))
        last = "channels_last" if format_ == torch.channels_last else ""
        figures = f"{own:8.3f} {theirs:8.3f}  {theirs / own:5.2f}  {off:.0e}"
        print(f"{subject.label:42} {last:13} {direction.name.lower():8} {figures}", flush=True)


def main() -> int:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here")
    for subject in everyday.PRODUCTS:
        for format_ in FORMATS if subject.is_image else FORMATS[:1]:
            measure(subject, format_, device, given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
