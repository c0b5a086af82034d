"""Ops on machines without a C compiler: what their statements say, in plain PyTorch operations.

A generated module holds a small function for every op, printed by `opgen.emit.torch_eager` from the
same notation as the kernels. It says point by point what is read and written, for many points at
once; this package is its vocabulary. Correct and slow: every index becomes a tensor.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opgen.runtime.eager.call import (
        PRIMITIVES,
        Call,
        Operand,
        apply,
        clamp,
        drop,
        fill,
        floor_div,
        limited,
        maximum,
        minimum,
        reflect,
        run,
        symmetric,
        warn_once,
        wrap,
        zero,
    )

__all__ = [
    "PRIMITIVES",
    "Call",
    "Operand",
    "apply",
    "clamp",
    "drop",
    "fill",
    "floor_div",
    "limited",
    "maximum",
    "minimum",
    "reflect",
    "run",
    "symmetric",
    "warn_once",
    "wrap",
    "zero",
]


def __getattr__(name: str) -> object:
    # Lazy: a module names this package, and on a machine with a compiler never uses it.
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.call"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
