"""The order of parallel points: those that read neighbouring rows run after one another.

The points of `y[n,c,i,h,w] = x[n,c, 2*h + i, w]` stand in the order of what they write. With `i`
outside of `h` every second row of x is read, then all others: each part of memory is loaded twice,
and never in one piece. With `i` inside of `h` the image is read from end to end, twice as fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from opgen.algebra.poly import Poly, symbol_atom
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Axis, Define, Kernel, Store, walk


def in_walk_order(kernel: Kernel) -> Kernel:
    """The kernel with axes that fill the gaps between rows that are read behind those of the gaps.

    What is written in a certain order still is.
    """
    if kernel.row is None or kernel.group is not None:
        return kernel
    axes = list(kernel.axes)
    names = [axis.name for axis in axes]
    values: dict[str, Poly] = {}
    for node in walk(kernel.body):
        if isinstance(node, Define):
            values.setdefault(node.name, node.value.substitute(values))
    read = [load.indices for load in loads_of(walk(kernel.body))]
    written = [node.indices for node in walk(kernel.body) if isinstance(node, Store)]
    kept = set(_gaps(written, names, {}))
    for coarse, fine in _gaps(read, names, values):
        if (fine, coarse) not in kept and _place(axes, fine) < _place(axes, coarse):
            axes.insert(_place(axes, coarse), axes.pop(_place(axes, fine)))
    return replace(kernel, axes=tuple(axes))


def _place(axes: Sequence[Axis], name: str) -> int:
    return next(at for at, axis in enumerate(axes) if axis.name == name)


def _gaps(
    accesses: Sequence[Sequence[Poly]], names: Sequence[str], values: Mapping[str, Poly]
) -> Iterator[tuple[str, str]]:
    """Pairs of axes in one index, of which the first goes in larger steps than the second."""
    for indices in accesses:
        for index in indices:
            steps = {name: _step(index.substitute(values), name) for name in names}
            for coarse, fine in ((a, b) for a in names for b in names):
                if steps[coarse] > steps[fine] > 0:
                    yield coarse, fine


def _step(value: Poly, name: str) -> int:
    """The constant by which a value grows with an index; 0 where it is none."""
    linear = value.linear_in(symbol_atom(name))
    if linear is None or not linear[0].is_constant or name in linear[1].symbols:
        return 0
    return linear[0].constant
