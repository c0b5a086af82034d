"""Listens to what tests have PyTorch's library multiply."""

from __future__ import annotations

from typing import Any

import pytest

from opgen.runtime import library_product


def listening(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls from now on that Python has the library compute; others are looked up without it,
    or by kernels."""
    heard: list[str] = []
    multiply = library_product.multiply

    def heard_of(*given: Any) -> Any:
        heard.append("multiply")
        return multiply(*given)

    monkeypatch.setattr(library_product, "multiply", heard_of)
    return heard


def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any size are the library's."""
    monkeypatch.setattr(library_product, "_is_worth", lambda *_: True)
