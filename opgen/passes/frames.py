"""Kernels that copy what lies inside of a tensor, and write zero where an index leaves it.

Windows of an image with zeros around it, `y[n,(c k l),(i j)] = x[n,c, i + k - 1 ?0, j + l - 1 ?0]`,
are planes of `x`, each shifted by a few rows and columns. A loop along a row of 50 pixels asks of
every vector which of its lanes have a source, begins anew for each row, and writes rows that are no
whole lines of memory. But the rows of a plane follow each other in `y`, and mostly in `x` too: the
plane is one run, with zeros put where a row of it has no source. Which axes do so depends on the
strides of a call, so they go to the call as they are, see `opgen.emit.frames`.
"""

from __future__ import annotations

from opgen.algebra.poly import Poly, symbol_atom
from opgen.ir.loops import (
    All,
    Axis,
    Choose,
    Define,
    Framed,
    Inside,
    Kernel,
    Load,
    Number,
    Program,
    Store,
    Test,
)
from opgen.ir.map_loops import map_nodes
from opgen.passes.moves import is_known, is_linear


def frames_of(kernel: Kernel, program: Program) -> Framed | None:
    """The copy that a kernel with one point for each cell is; None for one that is no such copy."""
    if kernel.prologue or not kernel.body:
        return None
    *defines, store = kernel.body
    if not isinstance(store, Store) or not isinstance(store.value, Choose):
        return None
    values: dict[str, Poly] = {}
    for define in defines:
        if not isinstance(define, Define):
            return None
        values[define.name] = define.value.substitute(values)
    (store,) = map_nodes((store,), lambda value: value.substitute(values))
    assert isinstance(store, Store) and isinstance(store.value, Choose)
    load, tests = store.value.then, _tests(store.value.test)
    if not isinstance(load, Load) or not tests or not _is_zero(store.value.otherwise):
        return None
    if not all(map(program.is_plain, (store.tensor, load.tensor))):
        return None
    names = [axis.name for axis in kernel.axes]
    known = frozenset(program.integers)
    indices = (*store.indices, *load.indices, *(test.index for test in tests))
    if not all(is_linear(index, names, known) for index in indices):
        return None
    sizes = (*(axis.extent for axis in kernel.axes), *(test.extent for test in tests))
    if not all(is_known(each, known) for each in sizes):
        return None
    if not any(_walks(axis, store, load) for axis in kernel.axes):
        return None
    return Framed(kernel.axes, Store(store.tensor, store.indices, load), tests)


def _is_zero(value: object) -> bool:
    """Whether all bits of a number are 0, which those of -0.0 are not."""
    return isinstance(value, Number) and str(value.value) in ("0", "0.0")


def _tests(test: Test) -> tuple[Inside, ...]:
    """The parts of a test that all have to hold; none where some are of another kind."""
    parts = test.tests if isinstance(test, All) else (test,)
    found = tuple(part for part in parts if isinstance(part, Inside) and part.fault is None)
    return found if len(found) == len(parts) else ()


def _walks(axis: Axis, store: Store, load: Load) -> bool:
    """Whether steps along an axis may go from neighbour to neighbour in both last dims."""
    if not store.indices or not load.indices:
        return False
    for index in (store.indices[-1], load.indices[-1]):
        linear = index.linear_in(symbol_atom(axis.name))
        if linear is None or (linear[0].is_constant and linear[0] != 1):
            return False
    return True
