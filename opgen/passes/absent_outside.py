"""Conditions that keep a sum of products inside of tensors are boundary modes of its accesses.

Before:

    y[b,o,h,v] = sum(c,i,j if 0 <= h + i - 1 < H and 0 <= v + j - 1 < W)
        x[b,c, h + i - 1, v + j - 1] * w[o,c,i,j]

After:

    y[b,o,h,v] = sum(c,i,j) x[b,c, h + i - 1 ?0, v + j - 1 ?0] * w[o,c,i,j]

A term is absent where a factor is, so the two mean the same. The second form is the one that is
seen to be a convolution, and it is for those alone: other kernels are as fast with conditions. A
target that conditions keep inside is written with `?drop`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import Kind, Poly
from opgen.algebra.prove import implies
from opgen.ir.context import facts_of, with_iterators
from opgen.ir.factors import factors_of, product_of
from opgen.ir.notation import Access, Boundary, Read, Reducer, Statement, Table, reads
from opgen.ir.walk import polynomials
from opgen.passes.cells import is_dense, names_of, taps_of
from opgen.passes.new_temporaries import NewTemporaries


def with_absent_terms(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement without its conditions, if they are no others than those of its accesses."""
    if statement.reducer is not Reducer.ADD or not statement.guards:
        return (statement,)
    negative, factors = factors_of(statement.body)
    places = [each.value.access for each in factors if isinstance(each.value, Read)]
    read = [access for each in factors for access in reads(each.value)]
    if len(places) < len(read) or any(each.divides for each in factors):
        return (statement,)
    if not _is_convolution(statement, places):
        return (statement,)
    if not all(made.is_whole(access.tensor) for access in places):
        return (statement,)  # what conditions do not reach may have no numbers
    accesses = (statement.target, *places)
    if any(not _is_always_a_number(each) for each in polynomials(statement)):
        return (statement,)
    facts = with_iterators(facts_of(made.op), statement.iterators)
    needed = {access: tuple(_needed(access, made, facts)) for access in accesses}
    if any(needed[access] and isinstance(made.tensor(access.tensor), Table) for access in places):
        return (statement,)
    inside = facts.with_conditions(*(each for at in needed.values() for _, each in at))
    if not all(implies(inside, guard) for guard in statement.guards):
        return (statement,)

    def changed(access: Access, mode: Boundary) -> Access:
        outside = {axis for axis, _ in needed[access]}
        return replace(
            access,
            indices=tuple(
                replace(index, boundary=mode) if axis in outside else index
                for axis, index in enumerate(access.indices)
            ),
        )

    factors = [
        replace(each, value=Read(changed(each.value.access, Boundary.ZERO)))
        if isinstance(each.value, Read)
        else each
        for each in factors
    ]
    return (
        replace(
            statement,
            target=changed(statement.target, Boundary.DROP),
            guards=(),
            body=product_of(factors, negative=negative),
        ),
    )


def _is_convolution(statement: Statement, factors: Sequence[Access]) -> bool:
    """Whether a filter is one of two factors, with channels that meet in its sums."""
    if len(factors) != 2:
        return False
    names, target = names_of(statement), statement.target
    for weight, other in (factors, factors[::-1]):
        for image, result in ((other, target), (target, other)):
            taps = taps_of(image, weight, result, statement)
            if taps and is_dense(image, weight, result, names - taps):
                return True
    return False


def _is_always_a_number(value: Poly) -> bool:
    """Whether nothing is read for it, and conditions keep no divisor from being 0."""
    divisors = (each.args[1] for each in value.all_atoms() if each.kind is Kind.FLOOR_DIV)
    return not value.is_data_dependent and all(each.is_constant for each in divisors)


def _needed(access: Access, made: NewTemporaries, facts: Facts) -> Iterator[tuple[int, Condition]]:
    """What keeps an access inside that does not hold anyway, by dim."""
    for axis, (index, extent) in enumerate(
        zip(access.indices, made.extents(access.tensor), strict=True)
    ):
        if index.boundary is Boundary.NONE:
            for each in (Condition(index.value), Condition(extent - 1 - index.value)):
                if not implies(facts, each):
                    yield axis, each
