"""`opgen bench`: the rows of the benchmark, or an op of one's own, beside what else there is."""

from __future__ import annotations

import argparse
from typing import Final

import torch

from opgen.bench import report
from opgen.bench.faults import BenchError
from opgen.bench.measure import Result
from opgen.bench.row import Direction
from opgen.bench.rows import every_row
from opgen.bench.run import Omitted, Plan, Refused, chosen
from opgen.bench.run import run as measure_all
from opgen.cli.console import errors, output

DESCRIPTION = """\
Times ops of opgen beside the formulations of PyTorch's users, the best eager ones known, and the
limit of the machine, call by call in turn in one process. All must agree before they are timed.
"""
MINUTES: Final = 24.0
QUICK_MINUTES: Final = 1.8


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench", help="times ops beside what else there is", description=DESCRIPTION
    )
    parser.add_argument("--rows", default="", metavar="PATTERN", help="rows whose name has this")
    parser.add_argument("--quick", action="store_true", help="some rows, within two minutes")
    parser.add_argument("--forward", action="store_true", help="forward only")
    parser.add_argument("--minutes", type=float, help="how long in all")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="the GPU where there is one")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0 if all contenders agreed, 1 if not, 2 for a wrong call."""
    rows = chosen(tuple(row for row in every_row() if row.quick or not options.quick), options.rows)
    if not rows:
        errors().print(f"opgen: no row has {options.rows!r} in its name; see opgen bench --list")
        return 2
    console = output()
    if options.list:
        for row in rows:
            console.print(row.name)
        return 0
    plan = Plan(
        rows,
        (Direction.FORWARD,) if options.forward else tuple(Direction),
        torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu")),
        options.minutes or (QUICK_MINUTES if options.quick else MINUTES),
        quick=options.quick,
    )
    console.print(report.heading())
    status = 0
    try:
        for outcome in measure_all(plan):
            match outcome:
                case Result():
                    console.print(report.line(outcome))
                case Refused(row, direction, reason):
                    status = 1
                    errors().print(f"opgen: {row.name}, {direction.value}: not reported: {reason}")
                case Omitted(row, direction):
                    errors().print(f"opgen: {row.name}, {direction.value}: no time was left")
    except BenchError as error:
        errors().print(f"opgen: {error}")
        return 2
    return status
