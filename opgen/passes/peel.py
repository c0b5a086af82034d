"""The ends of a row apart, so that nothing is clamped in its middle.

`x[clamp(w + a)]` is `x[w + a]` except for the first and the last few cells of a row. So are rows
that are mirrored at their ends, and rows that go around: there the quotient is the same for most
cells. The middle is then consecutive in memory; the ends, short as they are, stay as they were.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Atom, Kind, Poly, maximum, minimum, poly, rebuild
from opgen.algebra.prove import is_nonnegative
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Define, For, If, Node, Store, walk
from opgen.ir.map_loops import map_nodes, polynomials
from opgen.passes.lane_bounds import LaneBounds, solve

_LONGEST: Final = 2
"""How often a row may go around what it reads."""


@dataclass(frozen=True, slots=True)
class Peeled:
    """Where the middle lies, its bodies, and what is left before and after it: one part or none."""

    bounds: LaneBounds
    bodies: tuple[tuple[Node, ...], ...]
    before: tuple[LaneBounds, ...]
    after: tuple[LaneBounds, ...]


@dataclass(frozen=True, slots=True)
class Peeling:
    """Finds the clamps along one lane index, of a row of so many cells; `facts` hold inside it."""

    lane: str
    extent: Poly
    facts: Facts

    def peeled(self, bodies: Sequence[tuple[Node, ...]]) -> Peeled:
        """The bodies without the clamps whose bounds are the same for all terms."""
        inlined = tuple(tuple(self.inlined(body, {})) for body in bodies)
        local = {
            node.name for body in inlined for node in walk(body) if isinstance(node, For | Define)
        }
        loads = loads_of(itertools.chain.from_iterable(map(walk, inlined)))
        stores = (node for body in inlined for node in walk(body) if isinstance(node, Store))
        places = [index for each in loads for index in each.indices]
        places += (index for each in stores for index in each.indices)
        around = {atom for index in places for atom in _taken_off(index)}
        bounds = LaneBounds()
        plain: dict[Atom, Poly] = {}
        for value in itertools.chain.from_iterable(polynomials(*body) for body in inlined):
            for atom in value.all_atoms():
                if atom.kind is Kind.FLOOR_DIV and atom not in around:
                    continue
                found = self.clamp(atom)
                if found is None or not local.isdisjoint(atom.symbols):
                    continue
                own = [solve(each, self.lane, self.facts) for each in found.conditions]
                if None not in own:
                    bounds = functools.reduce(LaneBounds.joined, filter(None, own), bounds)
                    plain[atom] = found.inside
        if not plain:
            return Peeled(bounds, tuple(bodies), (), ())

        def without(value: Poly) -> Poly:
            return value.map_atoms(
                lambda atom: (
                    without(plain[atom])
                    if atom in plain
                    else rebuild(atom, tuple(map(without, atom.args)))
                )
            )

        begin = maximum(*bounds.lower) if bounds.lower else None
        end = minimum(*bounds.upper) if bounds.upper else None
        before = () if begin is None else (LaneBounds(upper=(begin - 1,)),)
        behind = () if begin is None else (begin,)
        after = () if end is None else (LaneBounds(lower=(end + 1, *behind)),)
        middle = tuple(map_nodes(body, without) for body in inlined)
        return Peeled(bounds, middle, before, after)

    def inlined(self, body: tuple[Node, ...], values: dict[str, Poly]) -> Iterator[Node]:
        """The body without definitions that hold a clamp: what they define may have none."""
        values = dict(values)

        def known(value: Poly) -> Poly:
            return value.substitute(values)

        for node in body:
            match node:
                case Define(name=name, value=value):
                    value = known(value)
                    atoms = [atom for atom in value.all_atoms() if atom.kind is not Kind.FLOOR_DIV]
                    if any(self.clamp(atom) is not None for atom in (*atoms, *_taken_off(value))):
                        values[name] = value
                    else:
                        values.pop(name, None)
                        yield Define(name, value)
                case For(body=inner) | If(body=inner):
                    (head,) = map_nodes((replace(node, body=()),), known)
                    assert isinstance(head, For | If)
                    yield replace(head, body=tuple(self.inlined(inner, values)))
                case _:
                    yield from map_nodes((node,), known)

    def clamp(self, atom: Atom) -> _Clamp | None:
        """A min or max, a choice by whether something is 0 that is never negative, or a quotient
        by all of a row."""
        if self.lane not in atom.symbols:
            return None
        match atom.kind:
            case Kind.MIN | Kind.MAX if len(atom.args) == 2:
                inside = self.in_the_middle(*atom.args)
                if inside is None:
                    return None
                (other,) = (arg for arg in atom.args if arg != inside)
                gap = inside - other
                return _Clamp((gap if atom.kind is Kind.MAX else -gap,), inside)
            case Kind.SELECT_ZERO if is_nonnegative(atom.args[0], self.facts):
                return _Clamp((atom.args[0] - 1,), atom.args[2])
            case Kind.FLOOR_DIV:
                return self.quotient(*atom.args)
            case _:
                return None

    def in_the_middle(self, *values: Poly) -> Poly | None:
        """Which one of two is the value in the middle of a row; None if that is not clear.

        It is what moves with the row. Where rows are mirrored at an end both do, one backwards.
        """
        moving = [value for value in values if self.lane in value.symbols]
        if len(moving) > 1:
            moving = [value for value in moving if self.grows(value)]
        return moving[0] if len(moving) == 1 else None

    def grows(self, value: Poly) -> bool:
        """Whether a value grows along the row wherever it changes, as far as can be seen."""
        return all(
            count > 0
            for monomial, count in value.terms.items()
            if any(self.lane in atom.symbols for atom in monomial)
        )

    def quotient(self, dividend: Poly, divisor: Poly) -> _Clamp | None:
        """The quotient by a size, which is the same for most of a row that goes around it."""
        if dividend.step_in(self.lane) != 1 or self.lane in divisor.symbols:
            return None
        quotient = self.usual_quotient(dividend, divisor)
        if quotient is None:
            return None
        rest = dividend - divisor * quotient
        return _Clamp((rest, divisor - 1 - rest), poly(quotient))

    def usual_quotient(self, dividend: Poly, divisor: Poly) -> int | None:
        """The one that most cells have; None if there are many."""
        if divisor.symbol is not None:
            return 0
        first, last = (dividend.substitute({self.lane: end}) for end in (ZERO, self.extent - 1))
        if not (first.is_constant and last.is_constant and divisor.is_constant):
            return None
        begin, end, size = first.constant, last.constant, divisor.constant
        if size <= 0 or not 0 <= end - begin <= _LONGEST * size:
            return None

        def cells(quotient: int) -> int:
            return min(end, quotient * size + size - 1) - max(begin, quotient * size)

        return max(range(begin // size, end // size + 1), key=cells)


def _taken_off(index: Poly) -> Iterator[Atom]:
    """The quotients of which an index is the remainder, `n - (n//d)*d`."""
    for atom in index.atoms():
        if atom.kind is Kind.FLOOR_DIV:
            linear = index.linear_in(atom)
            if linear is not None and linear[0] == -atom.args[1]:
                yield atom


@dataclass(frozen=True, slots=True)
class _Clamp:
    """Where all `conditions` are 0 and more, the clamp is `inside`."""

    conditions: tuple[Poly, ...]
    inside: Poly
