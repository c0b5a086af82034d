"""Tensors seen with other dims: those that a library takes."""

from __future__ import annotations

from dataclasses import dataclass

from opgen.algebra.poly import Poly


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a tensor becomes one with other dims: its own are taken apart, and the parts are joined.

    `parts` are the extents of the parts of each dim. All parts are numbered in that order; `order`
    says which of them each other dim is made of, slowest first.
    """

    parts: tuple[tuple[Poly, ...], ...]
    order: tuple[tuple[int, ...], ...]
