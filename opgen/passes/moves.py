"""Kernels that only copy, with addresses that are linear in all axes.

How such a copy is best made depends on the strides of a call as much as on the spec: which axes may
be taken as one, what is consecutive on both sides, what is consecutive on neither. So the axes go
to the call as they are, see `opgen.emit.moves`.

A kernel for all values of an attribute may be another copy for each of them: `x[n,(c i j),h,w]` for
one mode of a shuffle, `x[n,(i j c),h,w]` for the other. Where it counts the cells by one index, of
which each copy has its own digits, digits are axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import (
    Atom,
    Kind,
    Poly,
    exact_quotient,
    of_atom,
    poly,
    symbol,
    symbol_atom,
)
from opgen.ir.loops import (
    Accumulate,
    Always,
    Axis,
    Define,
    If,
    Kernel,
    Load,
    Move,
    Node,
    Program,
    Result,
    Start,
    Store,
)
from opgen.ir.map_loops import map_nodes
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer

_SINGLE = frozenset({Reducer.ASSIGN, Reducer.ADD})
"""Reducers for which a single term is the result."""


def moves_of(kernel: Kernel, program: Program) -> tuple[Move, ...]:
    """The copies that a kernel with one point for each cell is; none for one that computes.

    Several have conditions, of which one at most holds in a call.
    """
    if kernel.prologue or not kernel.body:
        return ()
    *defines, store = kernel.body
    if isinstance(store, Store) and isinstance(store.value, Load):
        move = _move((), defines, store, kernel, program)
        return () if move is None else (move,)
    return _conditional(kernel, program)


def _conditional(kernel: Kernel, program: Program) -> tuple[Move, ...]:
    """A copy for each of several conditions; none where that is not all there is."""
    if len(kernel.body) < 2:
        return ()
    start, *parts, store = kernel.body
    if (
        not isinstance(start, Start)
        or start.value is not None
        or start.reducer not in _SINGLE
        or not isinstance(store, Store)
        or not isinstance(store.value, Result)
        or store.value.accumulator != start.accumulator
    ):
        return ()
    found: list[Move] = []
    for part in parts:
        if not isinstance(part, If) or part.test != Always() or not part.body:
            return ()
        *defines, term = part.body
        if not isinstance(term, Accumulate) or term.present != Always():
            return ()
        if term.accumulator != start.accumulator or not isinstance(term.value, Load):
            return ()
        copy = Store(store.tensor, store.indices, term.value)
        move = _move(part.conditions, defines, copy, kernel, program)
        if move is None:
            return ()
        found.append(move)
    pairs = itertools.combinations(found, 2)
    return tuple(found) if all(_excludes(one, other) for one, other in pairs) else ()


def _excludes(one: Move, other: Move) -> bool:
    """Whether the conditions of two moves are that something has different values."""
    return any(
        a.relation is b.relation is Relation.EQ
        and (a.value - b.value).is_constant
        and (a.value - b.value).constant != 0
        for a in one.conditions
        for b in other.conditions
    )


def _move(
    conditions: tuple[Condition, ...],
    defines: Sequence[Node],
    store: Store,
    kernel: Kernel,
    program: Program,
) -> Move | None:
    """The copy that a store is at all points, after some definitions."""
    assert isinstance(store.value, Load)
    known = frozenset(program.integers)
    values: dict[str, Poly] = {}
    for define in defines:
        if not isinstance(define, Define):
            return None
        values[define.name] = define.value.substitute(values)
    store = _mapped(store, lambda value: value.substitute(values))
    axes = kernel.axes
    for axis in kernel.axes:
        digits = _digits(axis, store, {each.name for each in axes} | known)
        if digits is not None:
            at = axes.index(axis)
            axes = (*axes[:at], *digits.axes, *axes[at + 1 :])
            store = digits.applied(store)
    assert isinstance(store.value, Load)
    if not all(map(program.is_plain, (store.tensor, store.value.tensor))):
        return None
    names = [axis.name for axis in axes]
    if not all(is_linear(index, names, known) for index in _indices(store)):
        return None
    sizes = [*(axis.extent for axis in axes), *(each.value for each in conditions)]
    return Move(axes, store, conditions) if all(is_known(each, known) for each in sizes) else None


def _mapped(store: Store, change: Callable[[Poly], Poly]) -> Store:
    (found,) = map_nodes((store,), change)
    assert isinstance(found, Store)
    return found


def _indices(store: Store) -> tuple[Poly, ...]:
    assert isinstance(store.value, Load)
    return (*store.indices, *store.value.indices)


def is_linear(index: Poly, names: Sequence[str], known: frozenset[str]) -> bool:
    """Whether the index is a sum of constants of a call, each times one of the names, and one."""
    for name in names:
        linear = index.linear_in(symbol_atom(name))
        if linear is None or not is_known(linear[0], known):
            return False
        index = linear[1]
    return is_known(index, known)


def is_known(value: Poly, known: frozenset[str]) -> bool:
    """Whether a value is a formula of constants of a call."""
    return value.symbols <= known and not value.is_data_dependent


# ---------------------------------------------------------------------------- digits of an index
@dataclass(frozen=True, slots=True)
class _Digits:
    """An axis as several, the slowest first, and its quotients by what each of them counts in."""

    axis: Axis
    axes: tuple[Axis, ...]
    quotients: Mapping[Poly, Poly]

    def applied(self, store: Store) -> Store:
        """The store at the digits."""
        name, whole = self.axis.name, self.quotients[poly(1)]

        def quotient(atom: Atom) -> Poly:
            if atom.kind is Kind.FLOOR_DIV and atom.args[0].symbol == name:
                return self.quotients[atom.args[1]]
            return of_atom(atom)

        return _mapped(store, lambda value: value.map_atoms(quotient).substitute({name: whole}))


def _digits(axis: Axis, store: Store, taken: set[str]) -> _Digits | None:
    """The digits of an axis that indices ask for; None where they ask for none, or for others.

    In `x[n, u//(r*r), u//r - u//(r*r)*r, u - u//r*r]` with `u < C*r*r` they are `C`, `r` and `r`.
    """
    found = {
        atom.args[1]
        for index in _indices(store)
        for atom in index.all_atoms()
        if atom.kind is Kind.FLOOR_DIV and atom.args[0].symbol == axis.name
    }
    if not found:
        return None
    # Each divides all that are larger: it has more divisors among them.
    units = sorted(found, key=lambda unit: (-len(_divided(unit, found)), str(unit)))
    sizes = [exact_quotient(*pair) for pair in itertools.pairwise((axis.extent, *units, poly(1)))]
    axes: list[Axis] = []
    for size in sizes:
        if size is None:
            return None
        axes.append(Axis(fresh_name(f"{axis.name}_{len(axes)}", taken), size))
    quotients: dict[Poly, Poly] = {}
    total = poly(0)
    for digit, unit in zip(axes, (*units, poly(1)), strict=True):
        total = total * digit.extent + symbol(digit.name)
        quotients[unit] = total
    return _Digits(axis, tuple(axes), quotients)


def _divided(unit: Poly, units: set[Poly]) -> list[Poly]:
    """Those that divide a unit."""
    return [each for each in units if exact_quotient(unit, each) is not None]
