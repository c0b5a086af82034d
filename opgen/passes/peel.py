"""The ends of a row apart, so that nothing is clamped in its middle.

`x[clamp(w + a)]` is `x[w + a]` except for the first and the last few cells of a row. The middle is
then consecutive in memory; the ends, short as they are, stay as they were.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from opgen.algebra.facts import Facts
from opgen.algebra.poly import Atom, Kind, Poly, maximum, minimum, rebuild
from opgen.algebra.prove import is_nonnegative
from opgen.ir.loops import Define, For, If, Node, walk
from opgen.ir.map_loops import map_nodes, polynomials
from opgen.passes.lane_bounds import LaneBounds, solve


@dataclass(frozen=True, slots=True)
class Peeled:
    """Where the middle lies, its bodies, and what is left before and after it: one part or none."""

    bounds: LaneBounds
    bodies: tuple[tuple[Node, ...], ...]
    before: tuple[LaneBounds, ...]
    after: tuple[LaneBounds, ...]


@dataclass(frozen=True, slots=True)
class Peeling:
    """Finds the clamps along one lane index; `facts` hold wherever it is inside its row."""

    lane: str
    facts: Facts

    def peeled(self, bodies: Sequence[tuple[Node, ...]]) -> Peeled:
        """The bodies without the clamps whose bounds are the same for all terms."""
        inlined = tuple(tuple(self.inlined(body, {})) for body in bodies)
        local = {
            node.name for body in inlined for node in walk(body) if isinstance(node, For | Define)
        }
        bounds = LaneBounds()
        plain: dict[Atom, Poly] = {}
        for value in itertools.chain.from_iterable(polynomials(*body) for body in inlined):
            for atom in value.all_atoms():
                found = self.clamp(atom)
                if found is None or not local.isdisjoint(atom.symbols):
                    continue
                own = solve(found.condition, self.lane, self.facts)
                if own is not None:
                    bounds = bounds.joined(own)
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
                    if any(self.clamp(atom) is not None for atom in value.all_atoms()):
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
        """A min or max, or a choice by whether something is 0 that is never negative."""
        if self.lane not in atom.symbols:
            return None
        match atom.kind:
            case Kind.MIN | Kind.MAX if len(atom.args) == 2:
                moving = [arg for arg in atom.args if self.lane in arg.symbols]
                fixed = [arg for arg in atom.args if self.lane not in arg.symbols]
                if len(moving) != 1:
                    return None
                gap = moving[0] - fixed[0]
                return _Clamp(gap if atom.kind is Kind.MAX else -gap, moving[0])
            case Kind.SELECT_ZERO if is_nonnegative(atom.args[0], self.facts):
                return _Clamp(atom.args[0] - 1, atom.args[2])
            case _:
                return None


@dataclass(frozen=True, slots=True)
class _Clamp:
    """Where `condition >= 0`, the clamp is `inside`."""

    condition: Poly
    inside: Poly
