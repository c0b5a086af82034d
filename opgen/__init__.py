"""opgen: strided tensor ops for PyTorch from index notation, with gradients of every order.

ops = opgen.load("specs/shift_sum.op")
y = ops.shift_sum(x, step=2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opgen.compiler import build
    from opgen.errors import OpgenError
    from opgen.loading import compile, load  # noqa: A004  # as in `re.compile`

__all__ = ["OpgenError", "build", "compile", "load"]

_HOMES = {
    "OpgenError": "opgen.errors",
    "build": "opgen.compiler",
    "compile": "opgen.loading",
    "load": "opgen.loading",
}


def __getattr__(name: str) -> object:
    # Lazy: a generated module imports opgen.runtime, which must not load the compiler, and a spec
    # that is known on disk needs none.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'opgen' has no attribute '{name}'")
