"""Cells that a lane of a row may choose, and that are the same one for all of them."""

from __future__ import annotations

from collections.abc import Iterator

from opgen.algebra.poly import Poly
from opgen.ir.loop_parts import held
from opgen.ir.loops import Call, Choose, Kernel, Lanes, Load, Nonzero, Program, Scalar, walk


def chosen_cells(node: Lanes, kernel: Kernel, program: Program) -> Iterator[Load]:
    """Loads of one cell for all lanes that are parts of a choice, and inside whatever it is.

    That is so where each index is an axis of the kernel, which runs over the dim.
    """
    found: list[Load] = []
    for value in (value for each in walk(node.body) for value in held(each)):
        match value:
            case Choose(then=then, otherwise=otherwise):
                found.extend((*_loads(then), *_loads(otherwise)))
            case Nonzero(value=number):
                found.extend(_loads(number))
            case _:
                pass
    extents = {axis.name: axis.extent for axis in kernel.axes}
    for load in found:
        operand = program.stored(load.tensor)
        if operand is None or load.tensor in kernel.all_written:
            continue
        places = zip(load.indices, operand.extents, strict=True)
        if all(_is_inside(index, extent, extents) for index, extent in places):
            yield load


def _loads(value: Scalar) -> Iterator[Load]:
    match value:
        case Load():
            yield value
        case Call(arguments=arguments):
            for argument in arguments:
                yield from _loads(argument)
        case _:
            return


def _is_inside(index: Poly, extent: Poly, extents: dict[str, Poly]) -> bool:
    name = index.symbol
    if name is not None:
        return extents.get(name) == extent
    return index.is_constant and extent.is_constant and 0 <= index.constant < extent.constant
