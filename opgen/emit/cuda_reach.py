"""What the index arithmetic of a kernel comes to at most, as a formula of the integers of a call.

A launch may compute indices in 32 bits if no intermediate result leaves them. The formula is a
polynomial with positive coefficients in the magnitudes of sizes and attributes, each at least 1: it
is at least as large as every polynomial that the kernel computes, every part of it, and every
partial sum and product. What is read from memory counts 1, since that and whatever is computed
from it has 64 bits anyway.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import assert_never

from opgen.algebra.poly import Atom, Kind, Monomial, Poly, poly, symbol
from opgen.ir.loop_parts import visit
from opgen.ir.loops import Define, For, If, Kernel, Lanes, Node

Magnitudes = Mapping[str, Poly]


def reach(kernel: Kernel) -> Poly:
    """A bound of everything that a thread of the kernel computes as an index."""
    found = _Collected()
    known: dict[str, Poly] = {}
    axes = [*kernel.axes, *(row.axis for row in kernel.stretched)]
    for axis in axes:
        known[axis.name] = found.add(axis.extent, known)
    for row in kernel.stretched:
        known[row.first] = known[row.last] = known[row.axis.name]
    # The axes are the digits of one number.
    found.keep(functools.reduce(operator.mul, (known[axis.name] for axis in axes), poly(1)))
    for define in kernel.prologue:
        known[define.name] = found.add(define.value, known)
    _nodes(kernel.body, known, found)
    return Poly(found.terms)


class _Collected:
    """The least polynomial that is as large as all that were kept, coefficient by coefficient."""

    def __init__(self) -> None:
        self.terms: dict[Monomial, int] = {}

    def keep(self, value: Poly) -> Poly:
        for monomial, coefficient in value.terms.items():
            self.terms[monomial] = max(coefficient, self.terms.get(monomial, 0))
        return value

    def add(self, value: Poly, known: Magnitudes) -> Poly:
        """Keep the magnitude of a polynomial and of all its parts."""
        total = poly(0)
        for monomial, coefficient in value.terms.items():
            factors = (self.atom(atom, known) for atom in monomial)
            total += functools.reduce(operator.mul, factors, poly(abs(coefficient)))
        return self.keep(total)

    def keep_parts(self, value: Poly, known: Magnitudes) -> None:
        self.add(value, known)

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
