"""`opgen test SPEC`: property tests of the user's own ops."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from opgen.cli.console import errors, output, progress

if TYPE_CHECKING:
    from opgen.testing.session import Outcome
    from opgen.testing.subject import Subject

DESCRIPTION = """\
Tries every op of a spec on drawn calls: sizes of 0, 1, odd and prime, layouts in memory, element
types and attributes. Results are compared with the plain loops in references/NAME.py beside the
spec, or with the interpreter of the language where there are none.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "test", help="property tests of every op of a spec", description=DESCRIPTION
    )
    parser.add_argument("spec", type=Path, metavar="SPEC")
    parser.add_argument("--op", help="only this op")
    parser.add_argument(
        "--examples", type=positive, default=100, metavar="N", help="calls for each property (100)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="draws other calls; the same ones for the same seed (0)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--replays",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where a failure's replay script goes (the current directory)",
    )
    parser.set_defaults(run=run)


def positive(text: str) -> int:
    """A number of examples."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run(options: argparse.Namespace) -> int:
    """0 if every property held, 1 if one did not, 2 for a wrong call."""
    if importlib.util.find_spec("hypothesis") is None:
        errors().print("opgen: `opgen test` needs hypothesis: pip install 'opgen[test]'")
        return 2
    if options.device == "cuda" and not torch.cuda.is_available():
        errors().print("opgen: PyTorch finds no CUDA device here; `opgen doctor` says more")
        return 2
    from opgen.testing.cases import NoCaseError
    from opgen.testing.references import LoopsError
    from opgen.testing.subject import subjects

    try:
        found = subjects(options.spec)
        names = [subject.op.name for subject in found]
        if options.op is not None and options.op not in names:
            errors().print(
                f"opgen: {options.spec} defines no op '{options.op}', only {', '.join(names)}"
            )
            return 2
        chosen = [subject for subject in found if options.op in (None, subject.op.name)]
        outcomes = [outcome for subject in chosen for outcome in tested(subject, options)]
    except (LoopsError, NoCaseError) as error:
        errors().print(f"opgen: {error}")
        return 1
    return _summary(outcomes, options.seed)


def tested(subject: Subject, options: argparse.Namespace) -> list[Outcome]:
    """Test one op, print what came out, and write a script for each failure."""
    from opgen.testing import replay, session

    console = output()
    against = "plain loops" if subject.loops is not None else "interpreter only"
    console.print(f"{subject.op.name} ({against})", style="bold")
    outcomes = []
    with progress() as bar:
        task = bar.add_task("")

        def advance(op: str, name: str, done: int, planned: int) -> None:
            bar.update(task, description=f"{op}: {name}", completed=done, total=planned)

        for outcome in session.check(
            subject,
            examples=options.examples,
            seed=options.seed,
            device=options.device,
            progress=advance,
        ):
            outcomes.append(outcome)
            console.print(f"  {outcome.property:<11} {described(outcome)}", style=_style(outcome))
            if outcome.failure is not None:
                path = replay.write(options.spec, outcome, outcome.failure, options.replays)
                console.print(_shown(outcome.failure.text))
                console.print(f"    {outcome.failure.call}")
                console.print(f"    replay: python {path}")
    return outcomes


def described(outcome: Outcome) -> str:
    """The outcome in a few words."""
    if outcome.failure is not None:
        return f"FAILED after {outcome.passed} calls"
    if outcome.skipped:
        return f"not tried: {outcome.skipped}"
    said = f", {outcome.inconclusive} said nothing" if outcome.inconclusive else ""
    return f"{outcome.passed} passed{said}"


def _style(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return "red"
    return "dim" if outcome.skipped else "green"


def _shown(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _summary(outcomes: Sequence[Outcome], seed: int) -> int:
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    calls = sum(outcome.passed for outcome in outcomes)
    if not failed:
        output().print(f"{calls} calls passed (seed {seed})")
        return 0
    names = ", ".join(f"{outcome.op} {outcome.property}" for outcome in failed)
    errors().print(f"opgen: {len(failed)} failed: {names}")
    return 1
