"""Ops beside PyTorch's own forms alone, forward and backward, in both formats: tables of ratios."""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
import time
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Protocol

import torch

from opgen.bench import agreement, machine, statistics, tables, timing
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


def measure(
    subject: Subject, format_: torch.memory_format, budget: float
) -> dict[Direction, float]:
    """PyTorch's time over that of opgen, forward and backward, within as many seconds each.

    DisagreementError if the two compute something else.
    """
    torch.manual_seed(0)
    workload = subject.workload(format_)
    contenders = [Contender(OPGEN, workload.opgen), *workload.contenders]
    found = {}
    for direction in Direction:
        calls = calls_of(workload, contenders, direction)
        wanted, got = calls[THEIRS](), calls[OPGEN]()
        agreement.check(THEIRS, wanted, got, workload.points, workload.depth, None)
        with surroundings(workload, direction):
            rounds = timing.in_turn(calls, timing.clock_of(CPU), budget, {OPGEN})
        above, below = rounds.pairs(THEIRS, OPGEN)
        found[direction] = statistics.paired_ratio(above, below).median
    return found


def cells(subject: Subject, budget: float) -> tuple[tuple[str, ...], list[float]]:
    """A line of the table, and the ratios in it."""
    formats = FORMATS if subject.is_image else FORMATS[:1]
    ratios = [measure(subject, format_, budget) for format_ in formats]
    found = [each[direction] for direction in Direction for each in ratios]
    texts = [f"{ratio:.2f}" for ratio in found]
    if not subject.is_image:
        texts = list(itertools.chain.from_iterable((text, "") for text in texts))
    return (subject.label, *texts), found


def main(subjects: Iterable[Subject], table: str, readme: Path, about: str) -> int:
    """Print a line for every subject, and put the table into the README if that is asked for."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="", help="lines whose name has or matches it")
    parser.add_argument("--threads", type=int, help="as many threads; PyTorch's number without it")
    parser.add_argument("--seconds", type=float, default=0.7, help="for each figure")
    parser.add_argument("--write-readme", action="store_true", help="put the table there")
    given = parser.parse_args()
    if given.write_readme:
        tables.split(readme, table)  # complains before minutes are spent
    if given.threads:
        torch.set_num_threads(given.threads)
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    found: list[tuple[str, ...]] = []
    ratios: list[float] = []
    for subject in subjects:
        if given.pattern in subject.label or fnmatchcase(subject.label, given.pattern):
            line, more = cells(subject, given.seconds)
            found.append(line)
            ratios += more
            print(" | ".join(line), flush=True)
    if given.write_readme:
        command = shlex.join(["python", tables.COMMANDS[table], *sys.argv[1:]])
        document = {"machine": machine.describe(CPU), "started": started, "command": command}
        tables.rewritten(readme, table, {**document, "ratios": ratios, table: found})
    return 0
