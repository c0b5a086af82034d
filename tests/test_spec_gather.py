"""Gather form of every spec and its derivatives: exact, complete, and without atomics.

For each cell of each target, the points that the fibre solver enumerates are compared with a brute
force over the whole box: the same points, each once, and none that does not contribute.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogue import CATALOGUE, Entry, each_but_long, entry
from opgen.algebra.fibre import points
from opgen.ir.notation import BATCH, Boundary, Op
from opgen.passes.derive import differentiable
from opgen.passes.gather import GatheredStatement, Kind, gather
from spec_calls import checked, gradient, sizes_of

SCATTERS = {"embedding"}
"""The only spec whose gradient writes to cells that are read from a tensor."""


def family(op: Op, order: int = 2) -> Iterator[Op]:
    """The op, its gradients, and theirs."""
    yield op
    if order:
        for tensor in differentiable(op):
            yield from family(gradient(op, tensor.name).op, order - 1)


@each_but_long(CATALOGUE)
def test_no_gradient_needs_atomics_or_enumeration(subject: Entry) -> None:
    for op in family(checked(subject)):
        for gathered in gather(op):
            assert all(piece.fallback is None for piece in gathered.pieces), op.name
            if subject.op not in SCATTERS:
                assert gathered.kind not in (Kind.SCATTER, Kind.ENUMERATED), op.name


def test_the_gradient_of_embedding_scatters() -> None:
    """Negative control: the classification does tell data-dependent writes apart."""
    derived = gradient(checked(entry("embedding")), "weight").op
    assert [gathered.kind for gathered in gather(derived)] == [Kind.SCATTER]


# ---------------------------------------------------------------------------- brute force
def contributing(
    gathered: GatheredStatement, op: Op, symbols: dict[str, int]
) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(cell, point) of every point that writes a cell with a present body, by trying them all."""
    statement = gathered.statement
    extents = [e.evaluate(symbols) for e in op.extents(statement.target.tensor)]
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    ranges = [range(iterator.extent.evaluate(symbols)) for iterator in statement.iterators]
    for point in itertools.product(*ranges):
        values = symbols | {
            i.name: value for i, value in zip(statement.iterators, point, strict=True)
        }
        if not all(guard.holds(values) for guard in statement.guards):
            continue
        inside = all(
            0
            <= each.access.indices[each.axis].value.evaluate(values)
            < op.extents(each.access.tensor)[each.axis].evaluate(symbols)
            for each in gathered.assumed
        )
        cell = [
            moved(index.boundary, index.value.evaluate(values), extent)
            for index, extent in zip(statement.target.indices, extents, strict=True)
        ]
        if inside and None not in cell:
            found[tuple(c for c in cell if c is not None), point] += 1
    return found


def moved(boundary: Boundary, value: int, extent: int) -> int | None:
    """Where a write lands; None if it is dropped."""
    match boundary:
        case Boundary.CLAMP:
            return min(max(value, 0), extent - 1)
        case Boundary.WRAP:
            return value % extent
        case Boundary.REFLECT:
            value = abs(value)
            return min(value, 2 * (extent - 1) - value)
        case Boundary.SYMMETRIC:
            value = value if value >= 0 else -1 - value
            return min(value, 2 * extent - 1 - value)
        case _:
            return value if 0 <= value < extent else None


def enumerated(
    gathered: GatheredStatement, op: Op, symbols: dict[str, int]
) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(cell, point) of every body that the solved loop nests execute."""
    extents = [e.evaluate(symbols) for e in op.extents(gathered.statement.target.tensor)]
    inside = dict(gathered.names)  # what an iterator is called in the pieces
    names = [inside.get(i.name, i.name) for i in gathered.statement.iterators]
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for cell in itertools.product(*map(range, extents)):
        for piece in gathered.pieces:
            for point in points(piece, symbols, cell):
                found[cell, tuple(point[name] for name in names)] += 1
    return found


WORK = 4000
"""Largest product of box and cells that is tried by brute force in one example."""


def small_enough(gathered: GatheredStatement, op: Op, symbols: dict[str, int]) -> bool:
    work = 1
    for iterator in gathered.statement.iterators:
        work *= iterator.extent.evaluate(symbols)
    return work <= WORK


@pytest.mark.sampled(4, 1)
@each_but_long(e for e in CATALOGUE if not e.integers)
@settings(max_examples=3)
@given(data=st.data())
def test_executed_bodies_are_the_contributing_terms(subject: Entry, data: st.DataObject) -> None:
    op = checked(subject)
    case = data.draw(subject.cases)
    symbols = sizes_of(op, case)
    for derived in family(op, order=1):
        known = symbols | {BATCH: symbols.get(BATCH, 1)}
        for gathered in gather(derived):
            if small_enough(gathered, derived, known):
                assert enumerated(gathered, derived, known) == contributing(
                    gathered, derived, known
                ), derived.name
