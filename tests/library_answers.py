"""What PyTorch's library was asked for, and whether it gave it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from opgen.runtime import library_call, lookup_convolution
from opgen.runtime.library_plan import Plan, Tensors


def keep_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is entered where it would be looked up without Python."""
    monkeypatch.setattr(lookup_convolution, "forward", lambda *_: None)
    monkeypatch.setattr(lookup_convolution, "gradients", lambda *_: None)


def heard(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every convolution called from now on: whether the library computed it."""
    keep_in_python(monkeypatch)
    found: list[bool] = []
    convolve = library_call.computed

    def listening(plan: Plan, tensors: Tensors) -> Tensor | None:
        out = convolve(plan, tensors)
        found.append(out is not None)
        return out

    both = library_call._both

    def listening_to_both(*arguments: Any) -> library_call.Pair | None:
        out = both(*arguments)
        if out is not None:
            found.extend((True, True))
        return out

    monkeypatch.setattr(library_call, "computed", listening)
    monkeypatch.setattr(library_call, "_both", listening_to_both)
    return found
