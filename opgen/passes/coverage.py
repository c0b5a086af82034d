"""Which guards a derived statement needs to stay inside its tensors.

A read without boundary mode may be in range, or a temporary written, only where the rest of the
body is not absent: `mask[e]` in `x[e ?0] * mask[e]`. The derivative with respect to x has no factor
x any more, so the statement must say `0 <= e < N` itself. That changes nothing: the write to the
gradient of x is dropped there anyway. For the same reason a condition on indices in `select`
becomes a guard of the gradient of what it selects.

Guards are added only where some access may rest on them: one that is not plainly in range and
shares an iterator with the condition, directly or through other conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Poly
from opgen.ir.indices import covers_plainly, extents_of, is_plainly_inside
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Expr,
    Op,
    Reducer,
    Statement,
    reads,
)
from opgen.ir.walk import access_polynomials, expression_polynomials, loads, polynomials
from opgen.passes.chain_rule import Choice, Cover, Term, own_covers
from opgen.passes.simplify import integer_polynomial


@dataclass(frozen=True, slots=True)
class Tensors:
    """What an access needs to know: extents, and which tensors have cells nobody assigns."""

    extents: Mapping[str, tuple[Poly, ...]]
    partly_written: frozenset[str]


def tensors_of(op: Op) -> Tensors:
    """The tensors of an op."""
    tensors = (*op.inputs, *op.outputs, *op.temporaries)
    names = [*(tensor.name for tensor in tensors), *(table.name for table in op.tables)]
    extents = {name: op.extents(name) for name in names}
    reduced = {s.target.tensor for s in op.statements if s.reducer is not Reducer.ASSIGN}
    complete = {s.target.tensor for s in op.statements if _writes_all(s, extents)}
    written = {s.target.tensor for s in op.statements}
    return Tensors(extents, frozenset(written - reduced - complete))


def _writes_all(statement: Statement, extents: Mapping[str, tuple[Poly, ...]]) -> bool:
    target, box = statement.target, extents_of(statement.iterators)
    return not statement.guards and covers_plainly(target, extents[target.tensor], box)


# ---------------------------------------------------------------------------- guards to add
def guards_for(
    statement: Statement, term: Term, gone: Access | None, tensors: Tensors
) -> tuple[Condition, ...]:
    """The guards to add to `statement`, whose body is `term` times something.

    `gone` is the read that the term belongs to, if the derivative writes where it read. Its covers
    are then missing from the whole body and the target. The other covers of the term are still
    factors of the product, but no longer around its choices and the target.
    """
    box = extents_of(statement.iterators)
    own: tuple[Cover, ...] = ()
    outside: frozenset[str] = frozenset()
    if gone is not None:
        own = own_covers(gone, tensors.extents.__getitem__)
        exposed_values = _exposed((gone,), access_polynomials(gone), box, tensors)
        outside = _iterators(exposed_values, box)
    for choice in term.choices:
        outside |= _exposed_by(choice.condition, box, tensors)
    everywhere = outside | _exposed_by(statement.body, box, tensors)
    covers = tuple(dict.fromkeys((*own, *term.covers)))
    links = [guard.value.symbols & box.keys() for guard in statement.guards]
    links += [cover.value.symbols & box.keys() for cover in covers]
    found: dict[Condition, None] = {}
    for cover in covers:
        exposed = everywhere if cover in own else outside
        if not _linked(cover.value.symbols & box.keys(), links).isdisjoint(exposed):
            found.update(dict.fromkeys(_worth_saying(cover, box)))
    return tuple(condition for condition in found if condition not in statement.guards)


def _worth_saying(cover: Cover, box: Mapping[str, Poly]) -> tuple[Condition, ...]:
    low, high = cover.conditions
    return (high,) if cover.value.symbol in box else (low, high)


def _linked(start: frozenset[str], links: list[frozenset[str]]) -> frozenset[str]:
    """Every iterator connected with `start` through conditions."""
    reached = start
    while True:
        wider = reached.union(*(link for link in links if not link.isdisjoint(reached)))
        if wider == reached:
            return reached
        reached = wider


# ---------------------------------------------------------------------------- choices as guards
def conditions_of(choice: Choice) -> tuple[tuple[Condition, ...], tuple[Choice, ...]]:
    """A choice as conditions on indices, and what of it is not one."""
    match choice.condition, choice.outcome:
        case (Apply("and", (left, right)), True) | (Apply("or", (left, right)), False):
            first, rest = conditions_of(Choice(left, choice.outcome))
            second, others = conditions_of(Choice(right, choice.outcome))
            return (*first, *second), (*rest, *others)
        case Apply("not", (inner,)), outcome:
            return conditions_of(Choice(inner, not outcome))
        case Apply(name, (left, right)), outcome if name in _OPPOSITE:
            a, b = integer_polynomial(left), integer_polynomial(right)
            if a is not None and b is not None:
                return (_compared(name if outcome else _OPPOSITE[name], a - b),), ()
    return (), (choice,)


_OPPOSITE: Final = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


def _compared(name: str, difference: Poly) -> Condition:
    match name:
        case "lt":
            return Condition(-difference - 1)
        case "le":
            return Condition(-difference)
        case "gt":
            return Condition(difference - 1)
        case "ge":
            return Condition(difference)
        case "eq":
            return Condition(difference, Relation.EQ)
        case "ne":
            return Condition(difference, Relation.NE)
    raise AssertionError(name)


# ---------------------------------------------------------------------------- exposed accesses
_RESTS_ON_A_PROOF: Final = (Boundary.NONE, Boundary.REFLECT, Boundary.SYMMETRIC)


def _exposed(
    accesses: Iterable[Access],
    values: Iterable[Poly],
    box: Mapping[str, Poly],
    tensors: Tensors,
) -> Iterator[tuple[Poly, Poly]]:
    """Index and extent wherever it takes a proof that an access is good, also in loads."""
    for access in accesses:
        for index, extent in zip(access.indices, tensors.extents[access.tensor], strict=True):
            plain = is_plainly_inside(index.value, extent, box)
            if access.tensor in tensors.partly_written or (
                index.boundary in _RESTS_ON_A_PROOF and not plain
            ):
                yield index.value, extent
    for access in (access for value in values for access in loads(value)):
        for index, extent in zip(access.indices, tensors.extents[access.tensor], strict=True):
            if not is_plainly_inside(index.value, extent, box):
                yield index.value, extent


def _exposed_by(expr: Expr, box: Mapping[str, Poly], tensors: Tensors) -> frozenset[str]:
    return _iterators(_exposed(reads(expr), expression_polynomials(expr), box, tensors), box)


def _iterators(values: Iterable[tuple[Poly, Poly]], box: Mapping[str, Poly]) -> frozenset[str]:
    return frozenset[str]().union(*(value.symbols for value, _ in values)) & box.keys()


def supporting_symbols(statement: Statement, tensors: Tensors) -> frozenset[str]:
    """Sizes and attributes on which a proof that the statement stays in range may rest."""
    box = extents_of(statement.iterators)
    accesses = (statement.target, *reads(statement.body))
    found: frozenset[str] = frozenset()
    for value, extent in _exposed(accesses, polynomials(statement), box, tensors):
        found |= value.symbols | extent.symbols
    used = found & box.keys()
    for iterator in statement.iterators:
        if iterator.name in used:
            found |= iterator.extent.symbols
    for guard in statement.guards:
        if not guard.value.symbols.isdisjoint(used):
            found |= guard.value.symbols
    return found - box.keys()
