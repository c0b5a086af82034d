"""`opgen support SPEC`: what ops were tried with on this machine just now, and what passed."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from opgen.cli.console import errors, output, progress
from opgen.cli.files import obstacle

if TYPE_CHECKING:
    from opgen.testing.subject import Subject
    from opgen.testing.support.table import Feature, Outcome

DESCRIPTION = """\
Tries every op of a spec with what PyTorch does with its ops: derivatives, transforms, compilers,
exported programs, modes, threads, processes. A row says `passed` only for what ran here just now
and was compared, and with what.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "support",
        help="try the ops of a spec with every feature of PyTorch",
        description=DESCRIPTION,
    )
    parser.add_argument("spec", type=Path, metavar="SPEC")
    parser.add_argument("--op", help="only this op")
    parser.add_argument(
        "--feature",
        action="append",
        metavar="NAME",
        help="only rows with this in their name; may be given several times",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the table as JSON, too")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0 if nothing failed, 1 if something did, 2 for a wrong call."""
    from opgen.testing.cases import NoCaseError
    from opgen.testing.references import LoopsError
    from opgen.testing.subject import subjects
    from opgen.testing.support.table import FEATURES, Status

    wanted = options.feature or [""]
    features = tuple(each for each in FEATURES if any(text in each.name for text in wanted))
    if not features:
        rows = ", ".join(f"'{each.name}'" for each in FEATURES)  # some names have commas
        asked = " or ".join(f"'{text}'" for text in wanted)
        errors().print(f"opgen: there is no row {asked}, only {rows}")
        return 2
    reason = "" if options.json is None else obstacle(options.json)
    if reason:
        errors().print(f"opgen: {reason}")
        return 2
    found: list[Outcome] = []
    calls: dict[str, str] = {}
    try:
        ops = subjects(options.spec)
    except LoopsError as error:
        errors().print(f"opgen: {error}")
        return 2
    names = [subject.op.name for subject in ops]
    if options.op is not None and options.op not in names:
        text = f"{options.spec} defines no op '{options.op}', only {', '.join(names)}"
        errors().print(f"opgen: {text}")
        return 2
    try:
        for subject in ops:
            if options.op in (None, subject.op.name):
                found += _tried(subject, options.spec, features, calls)
    except (LoopsError, NoCaseError) as error:
        errors().print(f"opgen: {error}")
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps(_report(found, calls), indent=2) + "\n", "utf-8")
    counts = Counter(outcome.status for outcome in found)
    output().print(", ".join(f"{counts[status]} {status.value}" for status in Status))
    return 1 if counts[Status.FAILED] else 0


def _tried(
    subject: Subject, path: Path, features: Sequence[Feature], calls: dict[str, str]
) -> list[Outcome]:
    """Try one op, and print each row as soon as it is known."""
    from opgen.testing.support.probe import probe
    from opgen.testing.support.table import Status, tried

    styles = {Status.PASSED: "green", Status.FAILED: "red", Status.NOT_TRIED: "dim"}
    console, outcomes, name = output(), [], subject.op.name
    calls[name] = probe(subject, path).text
    console.print(f"{name} ({calls[name]})", style="bold")
    width = max(len(feature.name) for feature in features)
    with progress() as bar:
        task = bar.add_task("", total=len(features))
        bar.update(task, description=f"{name}: {features[0].name}")
        for at, outcome in enumerate(tried(subject, path, tuple(features)), 1):
            outcomes.append(outcome)
            text = f"  {outcome.feature.name:<{width}}  {outcome.status.value:<9}  "
            passed = outcome.status is Status.PASSED
            note = f"against {_against(subject, outcome)}" if passed else outcome.reason
            console.print(text + note, style=styles[outcome.status])
            coming = features[at].name if at < len(features) else ""
            bar.update(task, description=f"{name}: {coming}", completed=at)
    return outcomes


def _against(subject: Subject, outcome: Outcome) -> str:
    """What the results of a row were compared with."""
    from opgen.testing.support.table import LOOPS

    against = outcome.feature.against
    return "interpreter" if against == LOOPS and subject.loops is None else against


def _report(outcomes: Sequence[Outcome], calls: dict[str, str]) -> dict[str, Any]:
    """The table, and the machine that it was made on."""
    return {
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": f"{platform.machine()} {sys.platform}",
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "calls": calls,
        "rows": [
            {
                "op": outcome.op,
                "feature": outcome.feature.name,
                "status": outcome.status.value,
                "against": outcome.feature.against,
                "reason": outcome.reason,
            }
            for outcome in outcomes
        ],
    }
