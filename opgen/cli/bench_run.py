"""What `opgen bench` does: it is loaded when the command runs, not with every other command."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from rich.console import Console
from rich.text import Text

from opgen.bench import machine, own, plot, replays, report, tables
from opgen.bench.document import Document, document
from opgen.bench.faults import BenchError
from opgen.bench.growth import Growth
from opgen.bench.measure import Measure, Result, measure
from opgen.bench.precision import tf32
from opgen.bench.processes import measure_alone
from opgen.bench.row import Direction, Row
from opgen.bench.rows import QUICKLY_COMPILED, every_row
from opgen.bench.run import (
    Outcome,
    Plan,
    Refused,
    by_turns,
    chosen,
    run_again,
    run_closely,
    run_growth,
    run_recycled,
)
from opgen.bench.run import run as run_plan
from opgen.cli import arguments
from opgen.cli.console import errors, output
from opgen.cli.files import obstacle

MINUTES: Final = 45.0
QUICK_MINUTES: Final = 1.7


def run(options: argparse.Namespace) -> int:
    """0 if all contenders agreed, 1 if not, 2 for a call that cannot be measured."""
    console = output()
    options.spec = arguments.spec_of(options)
    try:
        rows = _rows(options)
        if options.list:
            for row in rows:
                console.print(row.name)
            return 0
        plan = _plan(options, rows)
        _look_at_files(options)
        started, measured_on = time.strftime("%Y-%m-%d %H:%M:%S"), machine.describe(plan.device)
        measured = measure_alone if options.apart else measure
        about = {"started": started, "command": _command(sys.argv[1:])}

        def write(outcomes: Sequence[Outcome], growths: Sequence[Growth] = ()) -> None:
            _write(options, document(outcomes, measured_on, about, growths))

        with tf32(allowed=options.tf32), replays.stream(plan.device):
            if options.growth:
                growths, outcomes = _grown(plan, measured, console)
                write(outcomes, growths)
            else:
                outcomes = _measured(plan, measured, console, write)
    except BenchError as error:
        errors().print(f"opgen: {error}")
        return 2
    for line in () if options.growth else report.summary(outcomes, plan.compiled):
        console.print(line)
    return 1 if any(isinstance(outcome, Refused) for outcome in outcomes) else 0


def _look_at_files(options: argparse.Namespace) -> None:
    """BenchError where a file that was asked for cannot be written, before time is spent."""
    for path in (options.json, options.plot, options.write_readme):
        reason = "" if path is None else obstacle(path)
        if reason:
            raise BenchError(reason)
    if options.write_readme is not None:
        tables.split(options.write_readme, _part(options))


def _write(options: argparse.Namespace, found: Document) -> None:
    """The files that were asked for."""
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.plot is not None:
        options.plot.write_text(plot.svg(found), encoding="utf-8")
    if options.write_readme is not None:
        tables.rewritten(options.write_readme, _part(options), found)


def _part(options: argparse.Namespace) -> str:
    """The part of the file of tables that this run writes."""
    return tables.GROWTH if options.growth else tables.ROWS


# ---------------------------------------------------------------------------- what is asked for
def _rows(options: argparse.Namespace) -> tuple[Row, ...]:
    if options.spec is not None:
        if options.apart:
            raise BenchError("--apart is for the rows of the benchmark: your op is the only row")
        if options.rows:
            raise BenchError("--rows is for the rows of the benchmark: your op is the only row")
        if options.plot is not None and not options.against:
            raise BenchError("--plot shows how opgen compares with others: add --against")
        return (own.row(_own(options), growing=options.growth),)
    if options.against or options.shape or options.set or options.op:
        raise BenchError("--shape, --set, --op and --against are for your own op: name its SPEC")
    known = tuple(row for row in every_row() if row.quick or not options.quick)
    rows = chosen(known, options.rows)
    if not rows:
        raise BenchError(f"no row has {options.rows!r} in its name; opgen bench --list shows them")
    return by_turns(rows)


def _own(options: argparse.Namespace) -> own.Own:
    try:
        shapes, attributes = arguments.shapes_of(options), arguments.attributes_of(options)
    except arguments.ArgumentsError as error:
        raise BenchError(str(error)) from error
    return own.Own(
        options.spec,
        shapes,
        tuple(options.against),
        options.op,
        attributes,
        getattr(torch, options.dtype),
        options.channels_last,
    )


def _directions(options: argparse.Namespace) -> tuple[Direction, ...]:
    if options.forward:
        return (Direction.FORWARD,)
    return (Direction.BACKWARD,) if options.backward else tuple(Direction)


def _plan(options: argparse.Namespace, rows: Sequence[Row]) -> Plan:
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchError("PyTorch finds no CUDA device here; `opgen doctor` says more")
    if options.tf32 and (device != "cuda" or options.apart):
        raise BenchError("--tf32 is for a GPU, and for rows that share one process")
    if options.threads is not None:
        if options.threads < 1:
            raise BenchError("--threads must be at least 1")
        torch.set_num_threads(options.threads)
    if options.compile is not None:
        compiled = frozenset(row.name for each in options.compile for row in chosen(rows, each))
    elif options.tiny:
        compiled = frozenset()
    elif options.quick:
        compiled = frozenset(QUICKLY_COMPILED)
    else:
        compiled = frozenset(row.name for row in rows if row.quick or row.kind == "own")
    return Plan(
        tuple(rows),
        _directions(options),
        torch.device(device),
        options.minutes or (QUICK_MINUTES if options.quick else MINUTES),
        compiled,
        options.quick,
        options.tiny,
    )


# ---------------------------------------------------------------------------- the run
def _measured(
    plan: Plan,
    measured: Measure,
    console: Console,
    write: Callable[[Sequence[Outcome]], None],
) -> list[Outcome]:
    """Every outcome, printed as it comes.

    Figures are written when all rows were measured, and whenever some were measured again: who ends
    a run that takes too long loses no more than that.
    """
    console.print(report.heading(), style="bold")
    outcomes: list[Outcome] = []
    for outcome in run_plan(plan, measured):
        outcomes.append(outcome)
        if isinstance(outcome, Result):
            console.print(report.line(outcome))
        else:
            errors().print(f"opgen: {report.problem(outcome)}")
    write(outcomes)
    again = run_again(plan, outcomes, measured)
    outcomes = _replaced(outcomes, again, console, "disturbed rows again", report.line)
    write(outcomes)
    closely = run_closely(plan, outcomes, measured)
    outcomes = _replaced(outcomes, closely, console, "close rows again", report.line)
    write(outcomes)
    kept = run_recycled(plan, outcomes)
    try:
        outcomes = _replaced(outcomes, kept, console, "with outputs recycled", report.recycled)
    except BenchError as error:
        errors().print(f"opgen: with outputs recycled: not measured: {error}")
    write(outcomes)
    return outcomes


def _replaced(
    outcomes: Sequence[Outcome],
    results: Iterable[Result],
    console: Console,
    title: str,
    line: Callable[[Result], Text | str],
) -> list[Outcome]:
    """The outcomes with some of them measured once more, which are printed as they come."""
    found: dict[tuple[str, Direction], Result] = {}
    for result in results:
        if not found:
            console.print(title, style="bold")
        console.print(line(result))
        found[result.row.name, result.direction] = result
    return [found.get((o.row.name, o.direction), o) for o in outcomes]


def _grown(plan: Plan, measured: Measure, console: Console) -> tuple[list[Growth], list[Outcome]]:
    """Every row at three sizes, printed as it comes, and those that are not reported."""
    console.print(report.growth_heading(), style="bold")
    growths: list[Growth] = []
    others: list[Outcome] = []
    for found in run_growth(plan, measured):
        if isinstance(found, Growth):
            growths.append(found)
            console.print(report.growth_line(found))
        else:
            others.append(found)
            errors().print(f"opgen: {report.problem(found)}")
    return growths, others


_FILES = ("--json", "--plot")
"""Options that say where figures are kept: they are no part of how to get them again."""


def _command(arguments: Sequence[str]) -> str:
    """The command that gives these figures."""
    kept: list[str] = []
    before = ""
    for argument in arguments:
        if before not in _FILES and argument.split("=")[0] not in _FILES:
            kept.append(argument)
        before = argument
    return shlex.join(["opgen", *kept])
