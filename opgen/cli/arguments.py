"""The options that describe a call of an op: its shapes, its attributes, its element type.

`opgen cost` and `opgen bench` take them alike.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opgen.bench.own import Value

_DTYPES: Final = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
"""The name of each element type in PyTorch, and in the language."""

_TRUTHS: Final = {"true": True, "True": True, "false": False, "False": False}


class ArgumentsError(ValueError):
    """An option that says nothing, or two things at once."""


def add_to(parser: argparse._ActionsContainer) -> None:
    """Register the options, each for several values at once, or given again."""
    repeated: dict[str, Any] = {"action": "extend", "nargs": "+", "default": []}
    parser.add_argument(
        "--shape",
        **repeated,
        metavar="NAME=SIZES",
        help="the shapes of the inputs: x=8,64,32,32 weight=64,64,3,3",
    )
    parser.add_argument(
        "--set",
        **repeated,
        metavar="NAME=VALUE",
        help="attributes: stride=2 padding=1,1 mode=CRD",
    )
    parser.add_argument(
        "--dtype",
        type=_dtype,
        choices=tuple(_DTYPES),
        default="float32",
        metavar="TYPE",
        help=f"of the tensors: {', '.join(_DTYPES)} (float32)",
    )
    # Names that these options had in one of the commands.
    parser.add_argument("--shapes", **repeated, dest="shape", help=argparse.SUPPRESS)
    parser.add_argument("--attribute", **repeated, dest="set", help=argparse.SUPPRESS)


def _dtype(name: str) -> str:
    """The name of a type in PyTorch, also for that of the language."""
    return {short: long for long, short in _DTYPES.items()}.get(name, name)


def short_dtype(name: str) -> str:
    """The name of a type in the language."""
    return _DTYPES[name]


def spec_of(options: argparse.Namespace) -> Path | None:
    """The SPEC, also where it stands behind the values of an option, which would take it for one.

    Values have an equals sign, and at most one word may be without.
    """
    given: Path | None = options.spec
    for values in (options.shape, options.set):
        for word in [word for word in values if "=" not in word]:
            if given is None:
                given = Path(word)
                values.remove(word)
    return given


def shapes_of(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """The shape of each input that has one; ArgumentsError for what is none."""
    found = {}
    for name, text in _pairs("shape", options.shape, "x=8,64,32,32"):
        listed = text.removeprefix("[").removesuffix("]").removesuffix(",")
        sizes = listed.split(",") if listed else []
        if not all(size.strip().isdecimal() for size in sizes):
            raise ArgumentsError(f"--shape '{name}={text}' must be as x=8,64,32,32")
        found[name] = tuple(map(int, sizes))
    return found


def attributes_of(options: argparse.Namespace) -> Mapping[str, Value]:
    """The value of each attribute that has one; ArgumentsError for what is none."""
    return {name: _value(name, text) for name, text in _pairs("set", options.set, "stride=2")}


def _pairs(option: str, texts: Sequence[str], example: str) -> Iterator[tuple[str, str]]:
    seen = set()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ArgumentsError(f"--{option} '{text}' must be as {example}")
        if name in seen:
            raise ArgumentsError(f"--{option} gives {name} twice; leave one of them out")
        seen.add(name)
        yield name, value


def _value(name: str, text: str) -> Value:
    """A flag, a number, integers between commas, else the text itself, as one of the choices."""
    if text in _TRUTHS:
        return _TRUTHS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if "," not in text:
        return _unquoted(text)
    listed = text[1:-1] if text[0] + text[-1] in ("()", "[]") else text
    try:
        return tuple(int(part) for part in listed.removesuffix(",").split(","))
    except ValueError:
        raise ArgumentsError(f"--set '{name}={text}': a tuple is written as 1,1") from None


def _unquoted(text: str) -> str:
    """The text, without the quotes that it has in Python."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return found if isinstance(found, str) else text
