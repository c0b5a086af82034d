"""Strided products of matrices, with a matrix for each remainder of a cell modulo the stride.

Before: a cell u of a transposed convolution of stride s has a term for every tap k with
u + c - d*k divisible by s, and only where it is: of s terms one is present. After: the cells
u = s*u' + r of one remainder r are the rows, or columns, of a matrix of their own, whose terms are
the taps that they have, k = s*k' + k0(r) with k0(r) = (r + c) / d modulo s. Nothing that is absent
is multiplied but what is left over at the ends, where s divides no extent.

The inverse of d modulo s is known where both are, and have no common factor; other products stay
as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Kind, Poly, of_atom, poly, symbol, symbol_atom
from opgen.ir.contraction import Contraction, Factor
from opgen.ir.loop_parts import integers_in
from opgen.ir.loops import Axis
from opgen.ir.map_loops import map_nodes
from opgen.ir.names import fresh_name


def by_phase(found: Contraction, known: Iterable[str] = ()) -> Contraction:
    """The product without conditions that a term divides a stride, as far as that is possible."""
    taken = _names(found).union(known)
    while True:
        step = _first_step(found)
        if step is None:
            return found
        found = _split(found, step, fresh_name(f"{step.cell.name}_phase", taken))


@dataclass(frozen=True, slots=True)
class _Step:
    """A condition under which `cell + rest - dilation*term` is divisible by a stride."""

    condition: Condition
    cell: Axis
    term: Axis
    rest: Poly
    dilation: int
    stride: int


def _first_step(found: Contraction) -> _Step | None:
    for condition in (*found.left.conditions, *found.right.conditions):
        step = _step(found, condition)
        if step is not None:
            return step
    return None


def _step(found: Contraction, condition: Condition) -> _Step | None:
    """A condition `distance - stride * (distance // stride) == 0`; None for any other."""
    quotients = [a for a in condition.value.atoms() if a.kind is Kind.FLOOR_DIV]
    if condition.relation is not Relation.EQ or len(quotients) != 1:
        return None
    distance, stride = quotients[0].args
    if condition.value + stride * of_atom(quotients[0]) != distance or not stride.is_constant:
        return None
    if poly(stride.constant) not in found.steps or stride.constant < 2:
        return None
    cells = [a for a in (*found.rows, *found.columns) if a.name in distance.symbols]
    terms = [axis for axis in found.terms if axis.name in distance.symbols]
    if len(cells) != 1 or len(terms) != 1:
        return None
    of_cell = distance.linear_in(symbol_atom(cells[0].name))
    of_term = None if of_cell is None else of_cell[1].linear_in(symbol_atom(terms[0].name))
    if of_cell is None or of_term is None or of_cell[0] != 1 or not of_term[0].is_constant:
        return None
    moving = {axis.name for axis in (*found.batch, *found.rows, *found.columns, *found.terms)}
    dilation, rest = -of_term[0].constant, of_term[1]
    if not rest.symbols.isdisjoint(moving) or math.gcd(dilation, stride.constant) != 1:
        return None
    return _Step(condition, cells[0], terms[0], rest, dilation, stride.constant)


def _split(found: Contraction, step: _Step, name: str) -> Contraction:
    """The product with the remainder of a cell as an index of its own, of that name."""
    cell, term, stride = step.cell, step.term, step.stride
    phase = Axis(name, poly(stride))
    inverse = pow(step.dilation, -1, stride)
    first = inverse * (symbol(phase.name) + step.rest) % stride
    tap = stride * symbol(term.name) + first
    values = {cell.name: stride * symbol(cell.name) + symbol(phase.name), term.name: tap}

    def moved(factor: Factor) -> Factor:
        conditions = [c.substitute(values) for c in factor.conditions if c != step.condition]
        is_of_cell = any(cell.name in index.symbols for index in factor.load.indices)
        if not is_of_cell and not _is_multiple(term.extent, stride):
            conditions.append(Condition(term.extent - 1 - tap))
        indices = tuple(index.substitute(values) for index in factor.load.indices)
        return Factor(replace(factor.load, indices=indices), tuple(dict.fromkeys(conditions)))

    def fewer(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        parts = {
            axis: Axis(axis.name, (axis.extent + stride - 1) // stride) for axis in (cell, term)
        }
        return tuple(parts.get(axis, axis) for axis in axes)

    cells = [condition.substitute(values) for condition in found.cells]
    if not _is_multiple(cell.extent, stride):
        cells.append(Condition(cell.extent - 1 - values[cell.name]))
    steps = list(found.steps)
    steps.remove(poly(stride))
    return replace(
        found,
        batch=(*found.batch, phase),
        rows=fewer(found.rows),
        columns=fewer(found.columns),
        terms=fewer(found.terms),
        left=moved(found.left),
        right=moved(found.right),
        nest=map_nodes(found.nest, lambda value: value.substitute(values)),
        tail=map_nodes(found.tail, lambda value: value.substitute(values)),
        steps=tuple(steps),
        cells=tuple(cells),
    )


def _is_multiple(extent: Poly, stride: int) -> bool:
    return extent.is_constant and extent.constant % stride == 0


def _names(found: Contraction) -> set[str]:
    """All names of integers that a product uses."""
    names = integers_in(*found.nest, *found.tail)
    for axis in (*found.batch, *found.rows, *found.columns, *found.terms):
        names |= {axis.name} | axis.extent.symbols
    for value in (*found.left.polys, *found.right.polys):
        names |= value.symbols
    return names
