"""Short rows whose windows reach over their ends, in a small copy with zeros around it.

In `y[n,c,i,j] = sum(k,l) x[n,c, i + k - 2 ?0, j + l - 2 ?0] * w[c,k,l]` most cells of an image of 9
by 9 lack some terms. Each parallel point copies its image into a local array with zeros around it,
and all cells have all terms there: no condition is left. The zeros are stored once for all images
of a thread. (To store them for each one takes a fifth of the time of images of 20 by 20 and windows
of 7 by 7: loads wait for stores of which they need only a part.)

A term that is absent is then a product with 0 instead, which is the same only where the other
factor is finite. So these kernels come beside the ordinary ones, and a call looks at the factor
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.facts import Facts
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.context import facts_of
from opgen.ir.loop_parts import integer_names, loads_of
from opgen.ir.loops import (
    Axis,
    Define,
    Finite,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Program,
    Store,
    walk,
)
from opgen.ir.map_loops import map_loads
from opgen.ir.names import fresh_name
from opgen.ir.notation import Op
from opgen.passes.gather import gather
from opgen.passes.load_order import MOST_OTHERS, by_column
from opgen.passes.merge import Body, terms_of
from opgen.passes.padding import Padding, padding
from opgen.passes.rows import along_row, direct
from opgen.passes.schedule import schedule
from opgen.passes.tile import Tile, tiles_along

MOST_TERMS: Final = 64
"""The most terms of a cell that are written out."""

ROWS: Final = (10, 9, 8, 7, 6, 5, 13, 11, 17, 19, 4, 3, 2)
"""How many rows of cells share what they load: the first of these that leaves none over.

The longer ones are for images that have no other divisor: with one row at a time, as of 13, windows
of 5 by 5 take 2 to 2.5 times as long.
"""

FEW_ROWS: Final = 4
"""The most rows where the taps of a window stay in registers, as those of 3 by 3 do: each of them
serves as many cells as there are rows, whatever else does."""

MOST_TOGETHER: Final = 500
"""The most terms of more rows than these. A load that is at no boundary takes as long as two
products, so every load of the copy should serve many rows; but more terms take the compiler too
long."""

LONGEST: Final = 64
"""The longest row of cells that kernels are made for. With a copy rows of 56 cells take a tenth of
the time for windows of 3 by 3, and an eighth for those of 7 by 7."""


def with_padding(op: Op, program: Program) -> Program:
    """The program of an op along rows, with kernels that pad their image where that helps."""
    found = padding(op)
    if found is None or program.faults:
        return program
    facts = facts_of(found.op)
    padded = schedule(found.op, gather(found.op))
    operands = tuple(each for each in padded.operands if each.name != found.name)
    if len(padded.kernels) != 1 or operands != program.operands or padded.workspaces:
        return program
    along = _along_row(padded.kernels[0], found, facts)
    if along is None:
        return program
    step = _step(along, found)
    kernel = _staged(along, found, step, facts)
    if kernel is None:
        return program
    names = {each.name for each in program.kernels}
    kernel = replace(kernel, name=fresh_name(f"{kernel.name}_padded", names))
    others = (replace(each, only=Finite(found.factor, False)) for each in program.kernels)
    local = padded.operand(found.name)
    *outer, last = local.extents[found.leading :]
    inner = (last,) if step == 1 else (poly(step), (last + step - 1) // step)
    local = replace(local, extents=(*outer, *inner))
    known = {each.name: each for each in (*program.unstored, *padded.unstored, local)}
    return replace(
        program,
        kernels=(replace(kernel, only=Finite(found.factor, True)), *others),
        unstored=tuple(known.values()),
    )


def _along_row(kernel: Kernel, copy: Padding, facts: Facts) -> Kernel | None:
    """The kernel along the axis that the last index of the copy follows, some rows at a time."""
    kernel = replace(kernel, body=direct(kernel.body))
    indices = [load.indices for load in loads_of(walk(kernel.body)) if load.tensor == copy.name]
    axes = {axis.name: axis for axis in kernel.axes if axis.extent.is_constant}
    found = {name for *_, last in indices for name in axes if name in last.symbols}
    if len(found) != 1:
        return None
    (name,) = found
    across = [index[-2].symbols for index in indices if copy.leading < len(index) - 1]
    rows_at = [each for each in axes.values() if any(each.name in symbols for symbols in across)]
    terms = terms_of(kernel.body) or 0
    is_large = MOST_OTHERS < terms <= MOST_TERMS
    if tiles_along(kernel, (kernel.body,), name, all_shared=True):
        is_large = False  # rows of several images share the copy as well
    most = MOST_TOGETHER // terms if is_large else FEW_ROWS
    tiles = [
        Tile(each, size)
        for each in rows_at
        for size in ROWS
        if each.name != name and each.extent.constant % size == 0 and size <= most
    ][:1]
    others = [load for load in loads_of(walk(kernel.body)) if load.tensor != copy.name]
    if copy.spare and not any(name in i.symbols for load in others for i in load.indices):
        wide = Axis(name, axes[name].extent + copy.spare)
        kernel = replace(kernel, axes=tuple(wide if a.name == name else a for a in kernel.axes))
        rowed = along_row(kernel, name, facts, MOST_TERMS, tiles)
        body = by_column(rowed.body, copy.name) if is_large else rowed.body
        return replace(rowed, body=_stored_apart(body, axes[name].extent - 1))
    rowed = along_row(kernel, name, facts, MOST_TERMS, tiles)
    return replace(rowed, body=by_column(rowed.body, copy.name)) if is_large else rowed


def _stored_apart(body: tuple[Node, ...], last: Poly) -> tuple[Node, ...]:
    """Passes that compute all lanes, and then passes that store those up to the last one."""
    out: list[Node] = []
    for node in body:
        match node:
            case Lanes(upper=upper, body=inner):
                stores = tuple(each for each in inner if isinstance(each, Store))
                rest = tuple(each for each in inner if not isinstance(each, Store))
                kept = tuple(each for each in rest if isinstance(each, Define))
                out += (replace(node, body=rest),) if len(kept) < len(rest) else ()
                if stores:
                    out.append(replace(node, upper=(*upper, last), body=(*kept, *stores)))
            case For(body=inner) | If(body=inner):
                out.append(replace(node, body=_stored_apart(inner, last)))
            case _:
                out.append(node)
    return tuple(out)


def _step(kernel: Kernel, copy: Padding) -> int:
    """How far apart in the copy neighbours in a row load, if all do; else 1.

    Columns of the copy with one remainder stand together then, so that lanes load neighbours.
    """
    row = kernel.row
    loads = [load for load in loads_of(walk(kernel.body)) if load.tensor == copy.name]
    if row is None:
        return 1
    lane = symbol(row.axis.name)
    steps = {load.indices[-1].step_in(row.axis.name) for load in loads}
    if len(steps) != 1:
        return 1
    step = steps.pop()
    if step is None or step < 2:
        return 1
    is_known = all((load.indices[-1] - step * lane).is_constant for load in loads)
    return step if is_known else 1


def _staged(kernel: Kernel, copy: Padding, step: int, facts: Facts) -> Kernel | None:
    """The kernel with the copy at every point, and the cells of an image inside of one point."""
    row = kernel.row
    if row is None or kernel.group is not None or kernel.prologue:
        return None
    extent = row.axis.extent
    if not extent.is_constant or extent.constant > min(row.width, LONGEST):
        return None
    values: dict[str, Poly] = {}
    for node in walk(kernel.body):
        if isinstance(node, Define):
            values.setdefault(node.name, node.value.substitute(values))
    loads = [
        tuple(index.substitute(values) for index in load.indices)
        for load in loads_of(walk(kernel.body))
        if load.tensor == copy.name
    ]
    places = {indices[: copy.leading] for indices in loads}
    moving = frozenset[str]().union(
        *(index.symbols for indices in loads for index in indices[copy.leading :])
    )
    if len(places) != 1:
        return None
    (place,) = places
    fixed = frozenset[str]().union(*(index.symbols for index in place))
    loops = {node.name for node in walk(kernel.body) if isinstance(node, For)}
    inner = [axis for axis in kernel.axes if axis.name in moving]
    outer = tuple(axis for axis in kernel.axes if axis.name not in moving)
    local = {row.axis.name, row.first, row.last, *loops, *(axis.name for axis in inner)}
    if not fixed.isdisjoint(local) or not outer:
        return None

    def without_place(load: Load) -> Load:
        if load.tensor != copy.name:
            return load
        *outer, last = load.indices[copy.leading :]
        if step == 1:
            return Load(copy.name, (*outer, last))
        lane = symbol(row.axis.name)
        quotient, remainder = divmod((last - step * lane).constant, step)
        return Load(copy.name, (*outer, poly(remainder), lane + quotient))

    body = map_loads(kernel.body, without_place)
    for axis in reversed(inner):
        body = (_over(axis, body),)
    taken = integer_names(kernel, known=facts.symbols)
    return replace(
        kernel,
        axes=outer,
        body=(*_copied(copy, place, taken, step), *body),
        local=(*kernel.local, copy.name),
        zeroed=(*kernel.zeroed, copy.name),
    )


def _over(axis: Axis, body: tuple[Node, ...]) -> For:
    return For(axis.name, (poly(0),), (axis.extent - 1,), body)


def _copied(copy: Padding, place: Sequence[Poly], taken: set[str], step: int) -> Body:
    """What is inside of the source: the same cells of the copy at every point."""
    names = [fresh_name(f"at_{number}", taken) for number in range(len(copy.first))]
    *outer, at = map(symbol, names)
    first, last = copy.inside[-1]
    nodes: list[Node] = []
    for remainder in range(step):
        column = step * at + remainder
        source = (index + begin for index, begin in zip((*outer, column), copy.first, strict=True))
        cell = (*outer, at) if step == 1 else (*outer, poly(remainder), at)
        store = Store(copy.name, cell, Load(copy.source, (*place, *source)))
        begin, end = -((remainder - first) // step), (last - remainder) // step
        nodes.append(For(names[-1], (poly(begin),), (poly(end),), (store,)))
    for name, (begin, end) in reversed(list(zip(names[:-1], copy.inside, strict=False))):
        nodes = [For(name, (poly(begin),), (poly(end),), tuple(nodes))]
    return tuple(nodes)
