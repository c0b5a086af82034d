"""Factors that all terms of a sum share are multiplied once, in gradients.

The gradients of a norm of groups add, in statements of their own,

    grad_bias[(g c)]   = sum(n,h,w) grad_y[n,(g c),h,w]
    grad_mu[n,g]       = sum(c,h,w) -weight[(g c)] * grad_y[n,(g c),h,w] / s[n,g]
    grad_weight[(g c)] = sum(n,h,w) (x[n,(g c),h,w] - mu[n,g]) / s[n,g] * grad_y[n,(g c),h,w]

where the weight is the same for an image, and the divisor for a group. By the distributive law

    sums[n,(g c)]      = sum(h,w) grad_y[n,(g c),h,w]
    grad_bias[(g c)]   = sum(n) sums[n,(g c)]
    grad_mu[n,g]       = sum(c) -weight[(g c)] / s[n,g] * sums[n,(g c)]

and a sum of the same products is one, whichever statements it is part of. Divisions take ten times
as long as products, and each sum is a pass over memory: the five passes of that gradient are two.

What is left at each cell has the factors of fewer iterators together in a temporary, if one of them
is a divisor:

    scale[n,(g c)]        = weight[(g c)] / s[n,g]
    grad_x[n,(g c),h,w]  += scale[n,(g c)] * grad_y[n,(g c),h,w]

These are other roundings than those of the terms as they stand, no more of them; but what is
multiplied first may be too small or too large for a float where the terms are not: factors of
1e-25, or a divisor of 1e-39. So it is for what opgen derived: an op of a spec computes what is
written there. And it is for what nothing is decided by: a derived op computes temporaries of its
op again, and `x[n,c] / peak[n] >= 1` must hold where it held before, which it does not of
`x[n,c] * (1 / peak[n])`. It is for the CPU; a GPU waits for memory meanwhile, and another kernel
costs a launch.

Before: an op. After: an op with the same values but for rounding.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator as Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final

from opgen.algebra.poly import Poly, symbol
from opgen.ir.build import ZERO, apply, neg, select
from opgen.ir.indices import covers_plainly, digits, extents_of, product
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Index,
    Iterator,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Value,
    reads,
    substitute_expression,
)
from opgen.ir.walk import expression_polynomials, literals, loads, polynomials, symbols_of
from opgen.passes.new_temporaries import NewTemporaries

_FEW: Final = 16
"""Up to so many terms a sum is not worth a temporary."""


def with_factored_sums(op: Op) -> Op:
    """The op with temporaries for sums without the factors that their terms share."""
    factored = _Factored(op, NewTemporaries.of(op))
    return factored.temporaries.op_with(factored.statements())


@dataclass(frozen=True, slots=True)
class _Factor:
    """One of the factors of a product, or what divides it, and the iterators that it moves with."""

    value: Expr
    divides: bool
    names: frozenset[str]

    @property
    def is_number(self) -> bool:
        """Whether it is the same at every point of every statement."""
        return isinstance(self.value, Constant | Parameter | Value) and not self.names


@dataclass(frozen=True, slots=True)
class _Parts:
    """A statement that adds products: the factors of all terms, and what is summed.

    `inner` are the iterators that the sum is over, and no factor outside of it moves with.
    """

    statement: Statement
    negative: bool
    outer: tuple[_Factor, ...]
    core: tuple[_Factor, ...]
    inner: tuple[Iterator, ...]

    @property
    def extents(self) -> dict[str, Poly]:
        """The extents of the statement's iterators."""
        return extents_of(self.statement.iterators)

    @property
    def names(self) -> tuple[str, ...]:
        """The iterators that the core moves with, in the order in which they stand there."""
        values = (value for each in self.core for value in expression_polynomials(each.value))
        return tuple(name for name in symbols_of(values) if name in self.extents)


@dataclass(frozen=True, slots=True)
class _Sum:
    """What a temporary holds: the core, and the extents of what it is summed over and what not.

    Iterators are numbered by where they first stand, so that their names do not matter.
    """

    core: tuple[tuple[Expr, tuple[str, ...]], ...]
    kept: tuple[tuple[str, Poly], ...]
    inner: tuple[tuple[str, Poly], ...]


@dataclass
class _Factored:
    """The temporaries that were made so far: of sums, and of factors of fewer iterators by value,
    its literals, and what their cells are numbered by."""

    op: Op
    temporaries: NewTemporaries
    made: dict[_Sum, Access] = field(default_factory=dict)
    held: dict[tuple[Expr, tuple[str, ...], tuple[Iterator, ...]], Access] = field(
        default_factory=dict
    )

    def statements(self) -> Iterable[Statement]:
        """All statements, each behind those that it reads."""
        exact = deciding(self.op)
        parts = [
            None if each.target.tensor in exact else self.parts(each) for each in self.op.statements
        ]
        worth = [each for each in parts if each is not None and _is_worth_it(each)]
        wanted = dict.fromkeys(self.sum_of(each, each.inner) for each in worth)
        for statement, found in zip(self.op.statements, parts, strict=True):
            if found is None:
                yield statement
            elif _is_worth_it(found):
                yield from self.split(found, found.inner)
            elif (finer := self.finer(found, wanted)) is not None:
                yield from self.split(found, finer)
            else:
                yield from self.scaled(found)

    # ------------------------------------------------------------ what a statement is made of
    def parts(self, statement: Statement) -> _Parts | None:
        """The parts of a statement; None where its terms are not plain products."""
        extents = extents_of(statement.iterators)
        target = statement.target
        if statement.reducer not in (Reducer.ADD, Reducer.ASSIGN) or statement.guards:
            return None
        if not covers_plainly(target, self.op.extents(target.tensor), extents):
            return None
        used = (target, *reads(statement.body))
        if not all(map(self.temporaries.is_generic, used)):
            return None
        if any(any(loads(value)) for value in polynomials(statement)):
            return None
        if any(index.boundary is not Boundary.NONE for each in used for index in each.indices):
            return None
        negative, factors = _factors(statement.body, frozenset(extents))
        summed = frozenset(extents) - _fixed(target)
        core = tuple(each for each in factors if summed <= each.names) if summed else ()
        core = tuple(sorted(core, key=lambda each: (each.divides, repr(each.value))))
        outer = tuple(each for each in factors if each not in core)
        moving = frozenset[str]().union(*(each.names for each in outer))
        inner = tuple(each for each in statement.iterators if each.name in summed - moving)
        return _Parts(statement, negative, outer, core, inner)

    def sum_of(self, parts: _Parts, inner: Collection[Iterator]) -> _Sum:
        """What a temporary for a sum over some iterators would hold."""
        extents = parts.extents
        numbers = {name: f"#{at}" for at, name in enumerate(parts.names)}
        values = {name: symbol(number) for name, number in numbers.items()}
        summed = {each.name for each in inner}
        return _Sum(
            tuple(
                (
                    substitute_expression(each.value, values),
                    (*literals(each.value), str(each.divides)),
                )
                for each in parts.core
            ),
            tuple((number, extents[n]) for n, number in numbers.items() if n not in summed),
            tuple((number, extents[n]) for n, number in numbers.items() if n in summed),
        )

    def finer(self, parts: _Parts, wanted: Collection[_Sum]) -> tuple[Iterator, ...] | None:
        """What to sum over first, where another statement has that sum; None if none has.

        It may be all that is summed.
        """
        if not parts.core or parts.statement.reducer is not Reducer.ADD:
            return None
        whole = self.sum_of(parts, parts.inner)
        for other in wanted:
            if other.core != whole.core or not set(other.inner) <= set(whole.inner):
                continue
            if {*other.kept, *other.inner} != {*whole.kept, *whole.inner}:
                continue
            names = {parts.names[int(number.removeprefix("#"))] for number, _ in other.inner}
            return tuple(each for each in parts.inner if each.name in names)
        return None

    # ------------------------------------------------------------ what it becomes
    def split(self, parts: _Parts, inner: tuple[Iterator, ...]) -> Iterable[Statement]:
        """The statement as one that multiplies sums of the core over `inner`."""
        statement = parts.statement
        key = self.sum_of(parts, inner)
        names = {each.name for each in inner}
        extents = parts.extents
        core = _product(parts.core)
        kept = [name for name in parts.names if name not in names]
        at = _indices(self.op, core, kept, {name: extents[name] for name in parts.names})
        kept = [name for _, value in at for name in digits(value, extents) or ()]
        if key not in self.made:
            total = self.temporaries.cells(statement.target.tensor, "sums", at)
            iterators = (*(Iterator(name, extents[name]) for name in kept), *inner)
            yield Statement(total, Reducer.ADD, iterators, (), core, is_exclusive=True)
            self.made[key] = total
        total = replace(self.made[key], indices=tuple(Index(value) for _, value in at))
        left = tuple(each for each in statement.iterators if each.name not in names)
        read = _Factor(Read(total), False, frozenset(kept))
        body = _product((*parts.outer, read))
        terms = product(each.extent for each in inner)
        if parts.outer and not terms.is_constant:
            # A sum of nothing is 0, whatever it would be multiplied with.
            body = select(apply("eq", Value(terms), ZERO), ZERO, body)
        fixed = _fixed(statement.target)
        writers = [s for s in self.op.statements if s.target.tensor == statement.target.tensor]
        is_whole = len(writers) == 1 and all(each.name in fixed for each in left)
        yield replace(
            statement,
            reducer=Reducer.ASSIGN if is_whole else statement.reducer,
            iterators=left,
            body=neg(body) if parts.negative else body,
        )

    def scaled(self, parts: _Parts) -> Iterable[Statement]:
        """The statement with the factors of fewer iterators as one, if one of them divides."""
        statement = parts.statement
        extents = parts.extents
        factors = (*parts.core, *parts.outer)
        long = {each.name for each in statement.iterators if _is_long(self.op, each)}
        fewer = [each for each in factors if long - each.names and not each.is_number]
        divisors = [each for each in fewer if each.divides and each.names]
        if not divisors or len(fewer) == len(factors):
            yield statement
            return
        names = frozenset[str]().union(*(each.names for each in fewer))
        if not long - names:
            names = divisors[0].names
            fewer = [each for each in fewer if each.names <= names]
        one = _product(fewer)
        if not self.temporaries.is_always_there(one, statement) or names == extents.keys():
            yield statement
            return
        at = _indices(self.op, one, [name for name in extents if name in names], extents)
        moving = [name for _, value in at for name in digits(value, extents) or ()]
        iterators = tuple(Iterator(name, extents[name]) for name in moving)
        key = one, literals(one), iterators
        if key not in self.held:
            held = self.temporaries.cells(statement.target.tensor, "scale", at)
            self.held[key] = held
            yield Statement(held, Reducer.ASSIGN, iterators, (), one, is_exclusive=True)
        rest = [each for each in factors if each not in fewer]
        body = _product((*rest, _Factor(Read(self.held[key]), False, names)))
        yield replace(statement, body=neg(body) if parts.negative else body)


_LINEAR: Final = frozenset({"add", "sub", "mul", "div", "neg"})


def deciding(op: Op) -> frozenset[str]:
    """The tensors that conditions, functions and extremes are of, and all that these are made of.

    Integers in indices and guards come from such, and their writers are among these.
    """
    found: set[str] = set()
    for statement in op.statements:
        if statement.reducer in (Reducer.ADD, Reducer.ASSIGN):
            found.update(_decided_by(statement.body))
        else:
            found.update(access.tensor for access in reads(statement.body))
    waiting = list(found)
    while waiting:
        name = waiting.pop()
        for statement in op.statements:
            if statement.target.tensor == name:
                more = {access.tensor for access in reads(statement.body)} - found
                found |= more
                waiting += more
    return frozenset(found)


def _decided_by(expr: Expr) -> Iterable[str]:
    """The tensors that parts of an expression read which are no sums of products."""
    match expr:
        case Apply(primitive="select", arguments=(test, *branches)):
            yield from (access.tensor for access in reads(test))
            for each in branches:
                yield from _decided_by(each)
        case Apply(primitive=primitive, arguments=arguments) if primitive in _LINEAR:
            for each in arguments:
                yield from _decided_by(each)
        case Apply():
            yield from (access.tensor for access in reads(expr))
        case _:
            pass


def _is_worth_it(parts: _Parts) -> bool:
    """Whether a sum has factors of all its terms, and many terms."""
    if not parts.core or not parts.inner:
        return False
    terms = product(each.extent for each in parts.inner)
    if parts.statement.reducer is not Reducer.ADD or (terms.is_constant and terms.constant < _FEW):
        return False
    return any(not each.is_number for each in parts.outer)


def _fixed(target: Access) -> frozenset[str]:
    """The iterators that choose the cell, beside sizes and attributes."""
    return frozenset[str]().union(*(index.value.symbols for index in target.indices))


def _is_long(op: Op, iterator: Iterator) -> bool:
    return iterator.extent.symbol in op.sizes


def _factors(expr: Expr, box: frozenset[str]) -> tuple[bool, tuple[_Factor, ...]]:
    """Whether a product is negative, and its factors."""
    match expr:
        case Apply(primitive="neg", arguments=(inner,)):
            negative, factors = _factors(inner, box)
            return not negative, factors
        case Apply(primitive="mul", arguments=(left, right)):
            one, first = _factors(left, box)
            other, second = _factors(right, box)
            return one is not other, (*first, *second)
        case Apply(primitive="div", arguments=(dividend, divisor)):
            one, first = _factors(dividend, box)
            other, second = _factors(divisor, box)
            turned = tuple(replace(each, divides=not each.divides) for each in second)
            return one is not other, (*first, *turned)
        case _:
            symbols = frozenset[str]().union(*(v.symbols for v in expression_polynomials(expr)))
            return False, (_Factor(expr, False, symbols & box),)


def _product(factors: Collection[_Factor]) -> Expr:
    """The factors as one value, divided by one after the other: a product of two small divisors
    may be none that a float holds."""
    ordered = sorted(factors, key=lambda each: each.divides)
    above = [each.value for each in ordered if not each.divides]
    top = reduce(lambda a, b: apply("mul", a, b), above) if above else Constant(1)
    below = (each.value for each in ordered if each.divides)
    return reduce(lambda a, b: apply("div", a, b), below, top)


def _indices(
    op: Op, expr: Expr, names: Collection[str], extents: dict[str, Poly]
) -> list[tuple[Poly, Poly]]:
    """Extents and indices of a tensor with a cell for each value of some iterators.

    Iterators that number a dim of a tensor together, as groups and their channels, do so here.
    """
    left = list(dict.fromkeys(names))
    found: list[tuple[Poly, Poly]] = []
    for access in reads(expr):
        for index, extent in zip(access.indices, op.extents(access.tensor), strict=True):
            numbered = digits(index.value, extents)
            if (
                numbered
                and set(numbered) <= set(left)
                and product(extents[name] for name in numbered) == extent
            ):
                found.append((extent, index.value))
                left = [name for name in left if name not in numbered]
    found += [(extents[name], symbol(name)) for name in left]
    order = list(extents)
    return sorted(found, key=lambda each: min(map(order.index, each[1].symbols & extents.keys())))
