"""`opgen test SPEC`: property tests of the user's own ops."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from opgen.cli.console import errors, output, progress
from opgen.ir.certificate import Trial, Trials

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to test, on which calls, and where replay scripts go."""

    spec: Path
    op: str | None = None
    examples: int = 100
    seed: int = 0
    device: str = "cpu"
    replays: Path = Path()


def run(options: argparse.Namespace) -> int:
    """0 if every property held, 1 if one did not, 2 for a wrong call or unusable references."""
    values = {field.name: getattr(options, field.name) for field in fields(Plan)}
    status, _ = carried_out(Plan(**values))
    return status


def carried_out(plan: Plan) -> tuple[int, list[Trial]]:
    """Run a plan and print what comes out: the exit status, and what passed."""
    if importlib.util.find_spec("hypothesis") is None:
        errors().print("opgen: `opgen test` needs hypothesis: pip install 'opgen[test]'")
        return 2, []
    if plan.device == "cuda" and not torch.cuda.is_available():
        errors().print("opgen: PyTorch finds no CUDA device here; `opgen doctor` says more")
        return 2, []
    from opgen.testing.cases import NoCaseError
    from opgen.testing.references import LoopsError
    from opgen.testing.subject import subjects

    try:
        found = subjects(plan.spec)
    except LoopsError as error:
        errors().print(f"opgen: {error}")
        return 2, []
    names = [subject.op.name for subject in found]
    if plan.op is not None and plan.op not in names:
        errors().print(f"opgen: {plan.spec} defines no op '{plan.op}', only {', '.join(names)}")
        return 2, []
    chosen = [subject for subject in found if plan.op in (None, subject.op.name)]
    try:
        results = [(subject, outcome) for subject in chosen for outcome in _tested(subject, plan)]
    except (LoopsError, NoCaseError) as error:
        errors().print(f"opgen: {error}")
        return 1, []
    trials = [
        Trial(outcome.op, _against(subject), outcome.property, outcome.passed)
        for subject, outcome in results
        if outcome.passed and outcome.failure is None
    ]
    return _summary([outcome for _, outcome in results], plan.seed), trials


def certified(spec: Path, examples: int) -> Trials | None:
    """The trials that a module's certificate states; None where a property did not hold."""
    plan = Plan(spec, examples=examples)
    status, trials = carried_out(plan)
    return None if status else Trials(plan.seed, plan.device, tuple(trials))


def _against(subject: Subject) -> str:
    return "plain loops" if subject.loops is not None else "interpreter only"


def _tested(subject: Subject, plan: Plan) -> list[Outcome]:
    """Test one op, print what came out, and write a script for each failure."""
    from opgen.testing import replay, session

    console = output()
    console.print(f"{subject.op.name} ({_against(subject)})", style="bold")
    outcomes = []
    with progress() as bar:
        task = bar.add_task("")

        def advance(op: str, name: str, done: int, planned: int) -> None:
            bar.update(task, description=f"{op}: {name}", completed=done, total=planned)

        for outcome in session.check(
            subject,
            examples=plan.examples,
            seed=plan.seed,
            device=plan.device,
            progress=advance,
        ):
            outcomes.append(outcome)
            console.print(f"  {outcome.property:<11} {described(outcome)}", style=_style(outcome))
            if outcome.failure is not None:
                path = replay.write(plan.spec, outcome, outcome.failure, plan.replays)
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
