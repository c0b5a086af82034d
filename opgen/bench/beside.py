"""Ops beside PyTorch's own forms alone, forward and backward, in both formats: tables of ratios.

On a GPU there are two: of calls as Python makes them, and of what the GPU alone takes for them.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Final, Protocol

import torch

from opgen.bench import agreement, machine, precision, replays, statistics, tables, timing
from opgen.bench.calls import OPGEN, calls_of, surroundings
from opgen.bench.row import Contender, Direction, Workload

CPU: Final = torch.device("cpu")
THEIRS: Final = "PyTorch"
FORMATS: Final = (torch.contiguous_format, torch.channels_last)


class Subject(Protocol):
    """What a line of a table is about."""

    @property
    def label(self) -> str:
        """How it is named there."""

    @property
    def is_image(self) -> bool:
        """Whether it is measured in channels-last format as well."""

    def workload(self, format_: torch.memory_format) -> Workload:
        """It with numbers, images in a format, and with `THEIRS` as the only contender."""


@dataclass(frozen=True)
class Ratio:
    """PyTorch's time over that of opgen, as called, and of a GPU alone where that was measured."""

    called: float
    alone: float | None = None

    def __str__(self) -> str:
        alone = "" if self.alone is None else f" ({self.alone:.2f})"
        return f"{self.called:.2f}{alone}"


def measure(
    subject: Subject, format_: torch.memory_format, budget: float, device: torch.device = CPU
) -> dict[Direction, Ratio]:
    """The ratios forward and backward, within as many seconds each.

    DisagreementError if the two compute something else.
    """
    torch.manual_seed(0)
    with device:
        workload = subject.workload(format_)
    contenders = [Contender(OPGEN, workload.opgen), *workload.contenders]
    found = {}
    for direction in Direction:
        calls = calls_of(workload, contenders, direction)
        wanted, got = calls[THEIRS](), calls[OPGEN]()
        agreement.check(THEIRS, wanted, got, workload.points, workload.depth, None)
        with surroundings(workload, direction):
            rounds = timing.in_turn(calls, timing.clock_of(device), budget, {OPGEN})
            alone = {}
            if device.type == "cuda":
                taken = {name: median(rounds.seconds(name)) for name in calls}
                alone = replays.device_times(calls, taken, budget, set())
        above, below = rounds.pairs(THEIRS, OPGEN)
        called = statistics.paired_ratio(above, below).median
        on_gpu = alone[THEIRS] / alone[OPGEN] if len(alone) == len(calls) else None
        found[direction] = Ratio(called, on_gpu)
    return found


def cells(
    subject: Subject, budget: float, device: torch.device = CPU
) -> tuple[tuple[str, ...], list[Ratio]]:
    """A line of the table, and the ratios in it."""
    formats = FORMATS if subject.is_image else FORMATS[:1]
    ratios = [measure(subject, format_, budget, device) for format_ in formats]
    found = [each[direction] for direction in Direction for each in ratios]
    texts = [str(ratio) for ratio in found]
    if not subject.is_image:
        texts = list(itertools.chain.from_iterable((text, "") for text in texts))
    return (subject.label, *texts), found


def main(subjects: Iterable[Subject], table: str, readme: Path, about: str) -> int:
    """Print a line for every subject, and put the table into the README if that is asked for.

    The tables of a GPU are in GPU.md beside that one.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="", help="lines whose name has or matches it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help="as many threads; PyTorch's number without it")
    parser.add_argument("--seconds", type=float, default=0.7, help="for each figure")
    parser.add_argument("--write-readme", action="store_true", help="put the table there")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here")
    if given.write_readme:
        readme = readme if device == CPU else readme.with_name("GPU.md")
        tables.split(readme, table)  # complains before minutes are spent
    if given.threads:
        torch.set_num_threads(given.threads)
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    found: list[tuple[str, ...]] = []
    ratios: list[Ratio] = []
    with replays.stream(device), precision.tf32(allowed=False):
        for subject in subjects:
            if given.pattern in subject.label or fnmatchcase(subject.label, given.pattern):
                line, more = cells(subject, given.seconds, device)
                found.append(line)
                ratios += more
                print(" | ".join(line), flush=True)
    if given.write_readme:
        command = shlex.join(["python", tables.COMMANDS[table], *sys.argv[1:]])
        figures = {
            **{"machine": machine.describe(device), "started": started, "command": command},
            "ratios": [each.called for each in ratios],
            "alone": [each.alone for each in ratios if each.alone is not None],
            table: found,
        }
        tables.rewritten(readme, table, figures)
    return 0
