"""Another way to run a kernel of short rows: whole planes in vectors.

A plane are the last dims of a tensor where their sizes are known. Its cells lie one behind the
other, so many of them are a vector, whatever the length of a row. What a cell is made of is known
as well, so each vector is written out: the terms of its lanes side by side.

    lane    0              1              2              3
    first   w[0] * x[0]    w[0] * x[0]    w[0] * x[1]    w[0] * x[1]
    second  w[1] * x[1]    -              w[1] * x[2]    -
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import poly
from opgen.ir.loops import Load, Scalar

LANES: Final = 16
"""How many cells a vector has: those of float32 in registers of 64 bytes."""


@dataclass(frozen=True, slots=True)
class Same:
    """One number for all lanes."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Each:
    """A number for every lane; it depends on no tensor."""

    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Picked:
    """An element for every lane, out of the plane of `sizes` that begins at `first`.

    `places` are those of the elements in it. Where a lane has no term, it has any element.
    """

    first: Load
    sizes: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many elements the plane has."""
        return math.prod(self.sizes)

    @property
    def loads(self) -> tuple[Load, ...]:
        """The element of each lane."""
        (*outer,) = self.first.indices[: len(self.first.indices) - len(self.sizes)]
        found = []
        for place in self.places:
            indices = []
            for size in reversed(self.sizes):
                indices.append(poly(place % size))
                place //= size
            found.append(Load(self.first.tensor, (*outer, *reversed(indices))))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Joined:
    """An operator applied to vectors, lane by lane."""

    primitive: str
    arguments: tuple[Vector, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of the terms."""


Vector = Same | Each | Picked | Joined | Total


@dataclass(frozen=True, slots=True)
class Term:
    """What lanes add to their sums; those that are not `present` add nothing."""

    value: Vector
    present: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Cells:
    """As many cells as there are lanes, from that one of the plane on: their terms, and values."""

    first: int
    terms: tuple[Term, ...]
    value: Vector

    @property
    def picked(self) -> Iterator[Picked]:
        """The elements that it is made of."""
        for term in self.terms:
            yield from picked_in(term.value)
        yield from picked_in(self.value)


@dataclass(frozen=True, slots=True)
class Run:
    """Vectors that are computed in `count` rounds.

    In every round their cells are `step` further on, and elements of a plane that fills vectors as
    many as stand beside its tensor in `steps`.
    """

    cells: tuple[Cells, ...]
    count: int = 1
    step: int = 0
    steps: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plane:
    """The cells of a point. `target` is the first; vectors at the end may repeat some."""

    target: Load
    runs: tuple[Run, ...]

    @property
    def cells(self) -> Iterator[Cells]:
        """The vectors of the first rounds."""
        for run in self.runs:
            yield from run.cells

    @property
    def copies(self) -> bool:
        """Whether all cells are elements as they are stored."""
        return all(not each.terms and isinstance(each.value, Picked) for each in self.cells)


@dataclass(frozen=True, slots=True)
class PlaneSums:
    """What a round of a `loop` adds up of planes: terms, each for the accumulator beside it.

    Lanes are elements of planes here, and accumulators vectors of partial sums. The terms are added
    `count` times, each time of elements that are as much further on as stands beside their tensor
    in `steps`.
    """

    loop: str
    terms: tuple[tuple[str, Term], ...]
    count: int = 1
    steps: tuple[tuple[str, int], ...] = ()


def picked_in(vector: Vector) -> Iterator[Picked]:
    """Every part of a vector that is picked out of a plane."""
    match vector:
        case Picked():
            yield vector
        case Joined(arguments=arguments):
            for argument in arguments:
                yield from picked_in(argument)
        case Same() | Each() | Total():
            return


def sources(picked: Picked) -> tuple[int, ...]:
    """Where the vectors begin out of which elements are picked; the last ends with the plane."""
    last = picked.size - LANES
    return tuple(sorted({min(place - place % LANES, last) for place in picked.places}))
