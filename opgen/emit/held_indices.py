"""Indices that are read from tensors, and quotients, that are the same for all lanes of a pass.

Before:

    for (int64_t d = 0; d < D; d++)
        y[n * y_s0 + d] = inside_or_fault(t[n], V, 1, fault) ? w[t[n] * w_s0 + d] : 0;

After:

    const int64_t t_at = t[n];
    const int is_inside = 0 < D && inside_or_fault(t_at, V, 1, fault);
    for (int64_t d = 0; d < D; d++)
        y[n * y_s0 + d] = is_inside ? w[t_at * w_s0 + d] : 0;

A compiler that reads `t[n]` for every lane does not see that the cells of `w` are neighbours, and
gathers them: a row of an embedding takes up to four times as long. Nor does it make vectors of a
loop with a quotient in it, which asks whether it divides by zero, as the row `(n - 1)//N` of a
tensor that is rolled, `x[n - 1 ?wrap,d]`: three times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from opgen.algebra.poly import Atom, Kind, Poly, of_atom
from opgen.ir.loop_parts import node_scalars, node_tests
from opgen.ir.loops import (
    All,
    Call,
    Choose,
    Define,
    For,
    If,
    Inside,
    Kernel,
    Lanes,
    Scalar,
    Test,
    walk,
)
from opgen.ir.map_loops import polynomials


def held_atoms(node: Lanes, kernel: Kernel) -> tuple[Atom, ...]:
    """What is read from tensors that the kernel does not write, and quotients by what is not known,
    the same for all lanes; the largest such parts of indices, each once."""
    moving = _moving(node, kernel)
    found = (atom for value in polynomials(*node.body) for atom in _held_in(value, moving, kernel))
    return tuple(dict.fromkeys(found))


def held_tests(node: Lanes, kernel: Kernel) -> tuple[Test, ...]:
    """Whether such indices are inside, where that is asked of every lane, whatever else holds."""
    moving = _moving(node, kernel)
    found: list[Test] = []
    for each in node.body:
        if isinstance(each, For | Lanes) or (isinstance(each, If) and each.conditions):
            continue
        found += node_tests(each)
        found += (test for value in node_scalars(each) for test in _tests(value))
    return tuple(dict.fromkeys(test for test in found if _is_held(test, moving, kernel)))


def _moving(node: Lanes, kernel: Kernel) -> AbstractSet[str]:
    """The lane, and what the pass defines."""
    assert kernel.row is not None
    names = {each.name for each in walk(node.body) if isinstance(each, Define | For)}
    return names | {kernel.row.axis.name}


def _held_in(value: Poly, moving: AbstractSet[str], kernel: Kernel) -> Iterator[Atom]:
    for atom in value.atoms():
        loads = of_atom(atom).loads
        if not loads and not any(map(_is_quotient, of_atom(atom).all_atoms())):
            continue
        if moving.isdisjoint(atom.symbols) and _are_read_only(loads, kernel):
            yield atom
        else:
            for argument in atom.args:
                yield from _held_in(argument, moving, kernel)


def _is_quotient(atom: Atom) -> bool:
    return atom.kind is Kind.FLOOR_DIV and not atom.args[1].is_constant


def _are_read_only(loads: Iterable[Atom], kernel: Kernel) -> bool:
    return not any(load.name in kernel.all_written for load in loads)


def _tests(value: Scalar) -> Iterator[Test]:
    """The tests that computing a value begins with, whatever they find."""
    match value:
        case Choose(test=test):
            yield test
        case Call(arguments=arguments):
            for argument in arguments:
                yield from _tests(argument)
        case _:
            return


def _is_held(test: Test, moving: AbstractSet[str], kernel: Kernel) -> bool:
    match test:
        case All(tests=tests):
            return all(_is_held(each, moving, kernel) for each in tests)
        case Inside(index=index, extent=extent):
            is_same = moving.isdisjoint(index.symbols | extent.symbols)
            return index.is_data_dependent and is_same and _are_read_only(index.loads, kernel)
        case _:
            return False
