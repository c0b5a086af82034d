"""The plain loops beside a spec: `references/NAME.py` holds a function for each op of `NAME.op`."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType

from opgen.ir.notation import Op

Loops = Callable[..., object]
"""Takes arrays and attributes by name, gives an array or a tuple of them."""


class LoopsError(ValueError):
    """A references file cannot be used."""


def references_path(spec: Path) -> Path:
    """Where the loops of a spec file are, if there are any."""
    return spec.parent / "references" / f"{spec.stem}.py"


def load_references(spec: Path) -> ModuleType | None:
    """The loops of a spec file; None without a file. Raises LoopsError where it fails."""
    path = references_path(spec)
    if not path.is_file():
        return None
    found = importlib.util.spec_from_file_location(f"references_{spec.stem}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:  # whatever somebody's file raises
        raise LoopsError(f"{path}: {type(error).__name__}: {error}") from error
    return module


def check_names(module: ModuleType, path: Path, ops: Collection[str]) -> None:
    """LoopsError where a public function of a references file is for none of the ops.

    With another name than its op it would never be called, and the op would count as one without
    loops.
    """
    strays = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and name not in ops
    ]
    if strays:
        listed = ", ".join(f"'{name}'" for name in strays)
        raise LoopsError(
            f"{path}: no op of the spec is called {listed}, only {', '.join(ops)}; a reference has "
            "the name of its op, and what helps it begins with an underscore"
        )


def loops_of(module: ModuleType | None, op: Op, name: str) -> Loops | None:
    """The loops of one op, under its name in Python; None if there are none.

    Raises LoopsError where their parameters are not those of the op.
    """
    function: Loops | None = getattr(module, name, None)
    if function is None:
        return None
    wanted = [tensor.name for tensor in op.inputs] + [each.name for each in op.attributes]
    found = list(inspect.signature(function).parameters)
    if sorted(found) != sorted(wanted):
        raise LoopsError(
            f"{op.name}: its reference takes ({', '.join(found)}), "
            f"but the op takes ({', '.join(wanted)})"
        )
    return function
