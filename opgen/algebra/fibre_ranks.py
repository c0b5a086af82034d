"""Which of several unknowns to solve an equation for, and which to keep as a loop.

An index such as `h + p - d` has a long iterator, which runs along the dim, and a short one, which
moves a window over it. A cell gathers its points by a loop over the window: its length is the same
for all cells, and neighbours read neighbours. What is short cannot be told from the degree, since a
height H and a window `2*d + 1` are both linear. It is told from what an extent is made of, once
every `let` is replaced by its formula:

    constants only              a window of known length
    attributes                  a window
    sizes of tensors            those of another tensor, as the taps of a filter are
    sizes of the indexed dim    what runs along the dim

Names of iterators play no part, so a spec costs the same however it is spelled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum

from opgen.algebra.poly import Poly

Rank = tuple[int, int]
"""Ranks compare as lengths do: the shorter range has the smaller one."""

Formulas = Sequence[tuple[str, Poly]]
"""Names that stand for formulas, as those of `let` do; each may use the names before it."""


class _Made(IntEnum):
    """What an extent is made of; see the module docstring."""

    OF_CONSTANTS = 0
    OF_ATTRIBUTES = 1
    OF_SIZES = 2
    OF_THE_DIM = 3
    UNKNOWN = 4


def rank_of(
    extent: Poly | None, dims: Collection[Poly], sizes: Iterable[str], formulas: Formulas
) -> Rank:
    """How long a range of that extent is, beside others of an equation.

    `dims` are the extents of the dims whose indices the equation speaks of, `sizes` the names of
    the sizes of tensors. An extent of None is not known.
    """
    if extent is None:
        return _Made.UNKNOWN, 0
    if extent.is_constant:
        return _Made.OF_CONSTANTS, extent.constant
    degree = max(len(monomial) for monomial in extent.terms)
    return _made_of(extent, dims, sizes, formulas), degree


def _made_of(
    extent: Poly, dims: Collection[Poly], sizes: Iterable[str], formulas: Formulas
) -> _Made:
    names = _symbols(extent, formulas)
    lengths = {*sizes, *_bare(dims, formulas)}
    if names.isdisjoint(lengths):
        return _Made.OF_ATTRIBUTES
    along = frozenset[str]().union(*(_symbols(dim, formulas) for dim in dims))
    return _Made.OF_SIZES if names.isdisjoint(lengths & along) else _Made.OF_THE_DIM


def _symbols(value: Poly, formulas: Formulas) -> frozenset[str]:
    """The symbols of a value and of the formulas behind them."""
    names = value.symbols
    for name, formula in reversed(formulas):
        if name in names:
            names = names - {name} | formula.symbols
    return names


def _bare(dims: Iterable[Poly], formulas: Formulas) -> set[str]:
    """The symbols that are the whole extent of a dim: sizes, also where they are attributes."""
    behind = dict(formulas)
    found: set[str] = set()
    for dim in dims:
        name = dim.symbol
        while name in behind:
            name = behind[name].symbol
        if name is not None:
            found.add(name)
    return found
