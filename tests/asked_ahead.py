"""Kernels that note which places they ask for ahead, and do not ask."""

from __future__ import annotations

import ctypes
from typing import Final

import pytest

from opgen.runtime import build, prelude

FETCH: Final = "#define FETCH(place) __builtin_prefetch(place, 0, 2)"
FETCH_SOON: Final = r"""#define FETCH_SOON(place) \
    (first_cache < 48 << 10 ? __builtin_prefetch(place, 0, 2) : __builtin_prefetch(place, 0, 3))"""
MOST: Final = 1 << 18
"""How many places a library notes."""


def noting(
    monkeypatch: pytest.MonkeyPatch, macro: str, changes: dict[str, str] | None = None
) -> list[ctypes.CDLL]:
    """The kernels made from now on, which note what they ask for by a macro.

    `changes` are other texts of the prelude, and what is put in their place.
    """
    text = prelude.C
    head = " ".join(macro.split()[:2])
    noted = f"const void *noted[{MOST}];\nint64_t notes;\n{head} "
    noted += f"(noted[notes++ & {MOST - 1}] = (place))"
    for old, new in {**(changes or {}), macro: noted}.items():
        assert old in text
        text = text.replace(old, new)
    monkeypatch.setattr(prelude, "C", text)
    library, found = build.library, list[ctypes.CDLL]()

    def built(source: str) -> ctypes.CDLL:
        compiled = library(source)
        if noted in source:
            found.append(compiled)
        return compiled

    monkeypatch.setattr(build, "library", built)
    return found


def asked_for(made: list[ctypes.CDLL]) -> list[int]:
    """What the kernels asked for, in this order."""
    places: list[int] = []
    for each in made:
        count = ctypes.c_int64.in_dll(each, "notes").value
        assert count <= MOST
        places += list((ctypes.c_void_p * MOST).in_dll(each, "noted"))[:count]
    return places
