"""Short axes beside the row that stay axes of threads, where copies for them would fill no gap.

    y[n, h, w, 16*c + 4*i + j] = x[n, 4*h + i, 4*w + j, c]

Copies of a body for all values of `i` and `j` would be too many, and those for `j` alone leave
cells of `y` that are stored one by one, far apart for neighbours along any other axis. Where few
`c` lie side by side, these neighbours decide how much of a sector an access uses. After: threads
are neighbours along `j`, then `i`: they store 16 cells of `y` side by side, and load 4 pixels of
`x`. An axis that both tensors have further out is one for copies: `i` in `y[n, h, w, 4*C*i + ...]`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from opgen.algebra.poly import Poly
from opgen.ir.loops import Axis, Kernel, Load, Store
from opgen.passes.jam import LARGEST, MOST

Access = tuple[Poly, ...]


def with_beside(kernel: Kernel, name: str) -> Kernel:
    """The kernel with the axes beside the row of that name as its last ones, if there are any.

    The fastest is last. A kernel that does more than to move elements has none.
    """
    match kernel.body:
        case (Store(indices=stored, value=Load(indices=loaded)),):
            accesses = (stored, loaded)
        case _:
            return kernel
    short = [axis for axis in kernel.axes if axis.name != name and _is_short(axis)]
    are_few = math.prod(axis.extent.constant for axis in short) <= MOST
    if are_few or not all(_is_walked(access, name) for access in accesses):
        return kernel
    near = [axis for axis in short if all(_is_near(access, axis) for access in accesses)]
    if not near:
        return kernel
    others = (axis for axis in short if axis not in near)
    between = [axis for axis in others if any(_is_between(e, axis, name) for e in accesses)]
    last = (*between, *near)
    first = (axis for axis in kernel.axes if axis not in last)
    return replace(kernel, axes=(*first, *last), beside=len(last))


def _is_short(axis: Axis) -> bool:
    return axis.extent.is_constant and 1 < axis.extent.constant <= LARGEST


def _is_walked(access: Access, name: str) -> bool:
    """Whether a row of a tensor is walked along, in equal steps."""
    return (
        len(access) > 1
        and bool(access[-1].step_in(name))
        and not any(name in index.symbols for index in access[:-1])
    )


def _is_near(access: Access, axis: Axis) -> bool:
    """Whether neighbours along an axis are elements of one row, or those of adjacent rows."""
    *rows, last = access
    moving = [at for at, index in enumerate(rows) if axis.name in index.symbols]
    if axis.name in last.symbols:
        return not moving
    return moving == [len(rows) - 1] and rows[-1].step_in(axis.name) == 1


def _is_between(access: Access, axis: Axis, name: str) -> bool:
    """Whether the cells of an axis lie between two neighbours along the row."""
    step, whole = access[-1].step_in(axis.name), access[-1].step_in(name)
    return step is not None and whole is not None and 0 < abs(step) < abs(whole)
