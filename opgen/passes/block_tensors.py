"""What blocks of cells walk through: tensors of which neighbours along an axis load neighbours.

A block computes its cells as vectors, so all of them must have the same terms, made of sums and
products, and every element that differs between them must lie in one vector.
"""

from __future__ import annotations

from collections.abc import Sequence

from opgen.algebra.poly import Poly, symbol
from opgen.ir.chosen import where_equal
from opgen.ir.loop_parts import goes_along, is_arithmetic, loads_of, moving
from opgen.ir.loops import (
    Accumulate,
    Always,
    For,
    If,
    Kernel,
    Load,
    Program,
    Start,
    Store,
    walk,
)
from opgen.ir.map_loops import test_symbols
from opgen.ir.notation import Reducer
from opgen.passes.merge import constant_range


def walked(
    kernel: Kernel, name: str, program: Program, is_spread: bool = False
) -> tuple[str, ...] | None:
    """The tensors that blocks of the axis walk through; None where the cells differ in more.

    With `is_spread` elements of these may stand apart, and blocks gather them.
    """
    found: dict[str, None] = {}
    chosen: set[Load] = set()
    is_long = any(isinstance(n, For) and constant_range(n) is None for n in kernel.body)
    for node in walk(kernel.body):
        match node:
            case For(lower=lower, upper=upper):
                is_same = name not in frozenset[str]().union(*(b.symbols for b in (*lower, *upper)))
                possible = is_same and not node.any_order
            case If(conditions=conditions, test=test):
                symbols = frozenset[str]().union(*(each.value.symbols for each in conditions))
                possible = name not in symbols | test_symbols(test)
            case Start(value=None, reducer=Reducer.ADD | Reducer.ASSIGN):
                possible = True
            case Accumulate(reducer=Reducer.ADD, value=value, present=Always()):
                where = where_equal(value, name, program)
                possible = where is not None or is_arithmetic(value, name)
                possible = possible and any(moving(value, name))
                if where is not None:
                    chosen.add(where.element)
            case Store(tensor=tensor, indices=indices, value=value):
                possible = is_arithmetic(value, name) and any(moving(value, name))
                if _goes_along(tensor, indices, name, program):
                    found[tensor] = None
                else:
                    # One by one, which is nothing beside a long sum.
                    is_worth = is_long or is_spread
                    possible = possible and is_worth and _is_of_vectors(tensor, program)
            case _:
                return None
        if not possible:
            return None
    for load in loads_of(walk(kernel.body)):
        if load in chosen:
            found[load.tensor] = None
        elif any(name in index.symbols for index in load.indices):
            # The rows of a tensor that blocks go across are loaded whole, and transposed.
            is_across = is_spread and _goes_across(load, name, program)
            if not is_across and not _goes_along(load.tensor, load.indices, name, program):
                return None
            found[load.tensor] = None
        elif program.stored(load.tensor) is None:
            return None
    return tuple(found)


def _goes_along(tensor: str, indices: Sequence[Poly], name: str, program: Program) -> bool:
    """Whether neighbours along the axis are neighbours in a tensor of the call's element type."""
    return _is_of_vectors(tensor, program) and goes_along(indices, name)


def _goes_across(load: Load, name: str, program: Program) -> bool:
    """Whether one index of a load is that of the axis, and no other one depends on it."""
    own = [index for index in load.indices if name in index.symbols]
    return _is_of_vectors(load.tensor, program) and own == [symbol(name)]


def _is_of_vectors(tensor: str, program: Program) -> bool:
    """Whether it is a tensor of the call's element type."""
    operand = program.stored(tensor)
    return operand is not None and operand.is_generic
