"""What the integer arithmetic of kernels comes to at most, as a formula of the integers of a call.

The formula is a polynomial with positive coefficients in the magnitudes of sizes and attributes,
each at least 1: it is at least as large as every polynomial that a kernel computes, every part of
it, and every partial sum and product. What is read from memory counts 1.

`reach` is for a launch, which may compute in 32 bits if no intermediate result leaves them; what is
computed from memory has 64 bits anyway. `index_reach` is for a call, which is refused if an index,
a bound or a condition might leave 64 bits: a wrapped one is another element, or foreign memory.
Integers that are used as numbers may wrap, and count only where they are read with an index.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, assert_never

from opgen.algebra.poly import Atom, Kind, Monomial, Poly, poly, symbol
from opgen.ir.loop_parts import visit
from opgen.ir.loops import WARP, Define, For, If, Kernel, Lanes, Node, Program

Magnitudes = Mapping[str, Poly]

_FEW: Final = 64

_WITHOUT_BOUND: Final = 2**62
"""The extent of ranges without an end, see `passes.interior`."""


def reach(kernel: Kernel) -> Poly:
    """A bound of everything that a thread of the kernel computes in integers."""
    found = _Collected()
    _kernel(kernel, found)
    return Poly(found.terms)


def index_reach(programs: Iterable[Program]) -> Poly:
    """A bound of all indices, bounds and conditions in kernels of programs."""
    found = _Collected(numbers_may_wrap=True)
    for program in programs:
        for kernel in program.kernels:
            _kernel(kernel, found)
    return _maximal(Poly(found.terms))


def _maximal(value: Poly) -> Poly:
    """The polynomial without monomials that divide others; what these come to is theirs then.

    Those that stand for much by themselves are kept, for they would count too often.
    """
    kept: dict[Monomial, int] = {}
    for monomial in sorted(value.terms, key=len, reverse=True):
        count, multiple = value.terms[monomial], monomial
        if count <= _FEW:
            multiples = (each for each in kept if not Counter(monomial) - Counter(each))
            multiple = next(multiples, monomial)
        kept[multiple] = kept.get(multiple, 0) + count
    return Poly(kept)


def _kernel(kernel: Kernel, found: _Collected) -> None:
    known: dict[str, Poly] = {}
    axes = [*kernel.axes, *(row.axis for row in kernel.stretched)]
    for axis in axes:
        known[axis.name] = found.add(axis.extent, known)
    for row in kernel.stretched:
        known[row.first] = known[row.last] = known[row.axis.name]
        for end in row.around or ():
            known[end] = known[row.axis.name] + WARP * row.width
    # The axes are the digits of one number.
    found.keep(functools.reduce(operator.mul, (known[axis.name] for axis in axes), poly(1)))
    for define in kernel.prologue:
        known[define.name] = found.add(define.value, known)
    _nodes(kernel.body, known, found)


class _Collected:
    """The least polynomial that is as large as all that were kept, coefficient by coefficient.

    Where `numbers_may_wrap` those count 0 that are no indices.
    """

    def __init__(self, numbers_may_wrap: bool = False) -> None:
        self.terms: dict[Monomial, int] = {}
        self.numbers_may_wrap = numbers_may_wrap

    def keep(self, value: Poly) -> Poly:
        if self.numbers_may_wrap and value.is_constant and value.constant <= _WITHOUT_BOUND:
            return value  # which would make little of what the integers of a call add
        for monomial, coefficient in value.terms.items():
            self.terms[monomial] = max(coefficient, self.terms.get(monomial, 0))
        return value

    def add(self, value: Poly, known: Magnitudes) -> Poly:
        """Keep the magnitude of a polynomial and of all its parts."""
        total = poly(0)
        for monomial, coefficient in value.terms.items():
            total += poly(abs(coefficient)) * self.product(monomial, known)
        return self.keep(total)

    def product(self, monomial: Monomial, known: Magnitudes) -> Poly:
        """The magnitude of a product: `b * (a // b)`, as in `a % b`, is `a + b` at most."""
        for position, atom in enumerate(monomial):
            if atom.kind is not Kind.FLOOR_DIV:
                continue
            dividend, divisor = atom.args
            rest = Counter(monomial[:position] + monomial[position + 1 :])
            multiple, factor = next(iter(divisor.terms.items()), ((), 0))
            if len(divisor.terms) == 1 and abs(factor) == 1 and not Counter(multiple) - rest:
                left = (rest - Counter(multiple)).elements()
                bound = self.add(dividend, known) + self.add(divisor, known)
                return bound * self.product(tuple(left), known)
        return functools.reduce(
            operator.mul, (self.atom(atom, known) for atom in monomial), poly(1)
        )

    def keep_parts(self, value: Poly, known: Magnitudes) -> None:
        self.add(value, known)

    def number(self, value: Poly, known: Magnitudes) -> None:
        """Keep the magnitude of an integer that is used as a number; of what it is read with, at
        least."""
        if not self.numbers_may_wrap:
            self.add(value, known)
            return
        for atom in value.all_atoms():
            if atom.kind is Kind.LOAD:
                self.sum(atom.args, known)

    def atom(self, atom: Atom, known: Magnitudes) -> Poly:
        match atom.kind:
            case Kind.SYMBOL:
                return known.get(atom.name, symbol(atom.name))
            case Kind.FLOOR_DIV | Kind.MODULAR_INVERSE:
                first, second = (self.add(arg, known) for arg in atom.args)
                return first if atom.kind is Kind.FLOOR_DIV else second
            case Kind.MIN | Kind.MAX | Kind.GCD | Kind.SELECT_ZERO:
                return self.sum(atom.args, known)
            case Kind.LOAD:
                self.sum(atom.args, known)
                return poly(1)
            case unexpected:
                assert_never(unexpected)

    def sum(self, values: Iterable[Poly], known: Magnitudes) -> Poly:
        return functools.reduce(operator.add, (self.add(value, known) for value in values), poly(0))


def _nodes(nodes: Iterable[Node], known: dict[str, Poly], found: _Collected) -> None:
    known = dict(known)
    for node in nodes:
        visit(
            node,
            lambda scalar: None,
            lambda test: None,
            lambda value: found.keep_parts(value, known),
            lambda value: found.number(value, known),
        )
        match node:
            case Define(name=name, value=value):
                known[name] = found.add(value, known)
            case For(name=name, lower=lower, upper=upper, body=body):
                # Between any lower and any upper bound; one past the last value is computed too.
                bounds = (_simplest(lower), _simplest(upper) + 1)
                known[name] = found.keep(found.sum(bounds, known))
                _nodes(body, known, found)
            case Lanes(body=body) | If(body=body):
                _nodes(body, known, found)
            case _:
                pass


def _simplest(bounds: tuple[Poly, ...]) -> Poly:
    """The bound that is most likely small."""

    def key(value: Poly) -> tuple[bool, int, str]:
        return value.is_data_dependent, sum(1 for _ in value.all_atoms()), str(value)

    return min(bounds, key=key)
