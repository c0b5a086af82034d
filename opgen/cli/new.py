"""`opgen new NAME`: a commented spec and its plain loops, ready to build and to test."""

from __future__ import annotations

import argparse
import builtins
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opgen import compiler
from opgen.cli.console import errors, output
from opgen.emit.names import is_reserved_in_python
from opgen.emit.templates import render
from opgen.errors import OpgenError, Source
from opgen.testing.references import references_path

DESCRIPTION = """\
Writes DIR/NAME.op, a small op with comments on what each line means, and
DIR/references/NAME.py, the same op by plain loops. Existing files are never touched.
"""

_WANTED: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MODULES: Final = sys.stdlib_module_names | {"torch", "numpy", "opgen", "cupy"}
_USED: Final = frozenset({"np", "x", "y", "weight", "stride", "padding"})


@dataclass(frozen=True, slots=True)
class New:
    """What the templates print."""

    name: str
    spec: str
    references: str


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "new", help="write a commented spec and its plain loops", description=DESCRIPTION
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, default=Path("specs"), metavar="DIR")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0 if both files were written, 2 for a name that cannot be used or files that exist."""
    reason = refusal(options.name)
    if reason:
        errors().print(f"opgen: {options.name!r} cannot be the name of an op: {reason}")
        return 2
    spec: Path = options.output / f"{options.name}.op"
    references = references_path(spec)
    for path in (spec, references):
        if path.exists() or path.is_symlink():
            errors().print(f"opgen: {path} exists and is left as it is; choose another name")
            return 2
    texts = contents(options.name, spec)
    references.parent.mkdir(parents=True, exist_ok=True)
    for path, text in zip((spec, references), texts, strict=True):
        with path.open("x", encoding="utf-8") as file:  # never over another file
            file.write(text)
        output().print(str(path))
    output().print(f"next: opgen test {spec}, opgen build {spec}")
    return 0


def contents(name: str, spec: Path) -> tuple[str, str]:
    """The texts of a new spec and of its references."""
    k = New(name, spec.as_posix(), references_path(spec).as_posix())
    return render("new_spec.op.j2", k), render("new_references.py.j2", k)


def refusal(name: str) -> str:
    """Why an op cannot have this name; empty if it can."""
    if not _WANTED.fullmatch(name):
        return "write lower-case words joined by single underscores, such as 'shift_sum'"
    if is_reserved_in_python(name) or hasattr(builtins, name):
        return "it is a word of Python"
    if name in _MODULES:
        return f"its module would hide Python's module '{name}'"
    if name in _USED:
        return "the new files use it for something else"
    try:
        compiler.check_source(Source(render("new_spec.op.j2", New(name, "", ""))))
    except OpgenError:
        return "it is a word of the language"
    return ""
