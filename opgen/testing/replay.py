"""A failure as a script of a few lines, and what that script runs."""

from __future__ import annotations

import sys
from pathlib import Path

from opgen.testing.calls import Call
from opgen.testing.properties import PROPERTIES
from opgen.testing.session import Failure, Outcome
from opgen.testing.subject import subjects


def script(spec: Path, outcome: Outcome, failure: Failure) -> str:
    """The text of a script that repeats a failure, with the call in plain sight."""
    call = failure.call
    fields = [f"    case=Case({_fields(call.case, ('sizes', 'attributes', 'batch', 'absent'))}),"]
    fields += [
        f"    {name}={getattr(call, name)!r},"
        for name in ("dtype", "layouts", "seed", "positive", "device")
    ]
    return "\n".join(
        (
            f'"""`{outcome.property}` of `{outcome.op}` fails in this call; see `opgen test`."""',
            "",
            "from opgen.testing.calls import Call",
            "from opgen.testing.cases import Case",
            "from opgen.testing.replay import replay",
            "",
            "call = Call(",
            *fields,
            ")",
            f"replay({str(spec.resolve())!r}, {outcome.op!r}, {outcome.property!r}, call)",
            "",
        )
    )


def _fields(value: object, names: tuple[str, ...]) -> str:
    return ", ".join(f"{name}={getattr(value, name)!r}" for name in names)


def write(spec: Path, outcome: Outcome, failure: Failure, directory: Path) -> Path:
    """Write the script of a failure; one file for each op and property."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"replay_{outcome.op}_{outcome.property}.py"
    path.write_text(script(spec, outcome, failure), encoding="utf-8")
    return path


def replay(spec: str, op: str, name: str, call: Call) -> None:
    """Print the inputs of a call, try the property, and end the process with status 1 if it fails.

    Where it fails with anything else than a wrong number the traceback is shown.
    """
    (subject,) = (each for each in subjects(Path(spec)) if each.op.name == op)
    for tensor, value in call.inputs(subject.op).items():
        print(f"{tensor}: {value.dtype}, shape {tuple(value.shape)}, strides {value.stride()}")
        if value.numel() <= 64:
            print(value)
    try:
        PROPERTIES[name](subject, call)
    except AssertionError as error:
        sys.exit(f"{op}: {name}: {error}")
    print(f"{op}: {name} holds in this call")
