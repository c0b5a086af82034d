"""Copies into frames of zeros: a plane at a time, planned in each call.

`framed_made` in C looks for two axes of a call that make planes: cells along one follow each other
in both tensors, and rows along the other follow each other in the target. What a plane has of the
source is then some of its rows, and of each the same columns. Where rows follow each other in the
source too, that is one run, copied by whole lines whatever the length of a row is, and the columns
without a source are put to zero after it. Else each row is copied by itself.

Results that go past the caches are put together in a part of the innermost cache, some kilobytes of
rows that are written as whole lines. A loop along one row could not: a row of 200 bytes is three
lines, and parts of others.

All else is left to loops: other steps from column to column, rows longer than such a part, tests of
both a row and a column. So are small copies, which take no longer than a look at their axes, and
small planes: each has to be begun, which takes as long as a kilobyte or two. Windows of 3 by 3 in
float32 took 2.5 times as long as loops for planes of 8 by 8, and 0.8 of it for 50 by 50; windows of
5 by 5 with planes of 28 by 28 1.2 times, and 0.66 past the caches. Loops convert elements of 16
bits one by one: planes take 0.2 of their time, and no longer than they do for 8 by 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import Poly, poly
from opgen.emit.moves import offset, step
from opgen.emit.polynomial import Text
from opgen.emit.templates import render
from opgen.ir.loops import Framed, Kernel

MOST_AXES: Final = 12
"""The most axes of such a copy,"""

MOST_TESTS: Final = 4
"""and the most tests of a cell; kernels with more are loops alone."""


def has_frames(kernel: Kernel) -> bool:
    """Whether a call of the kernel may be a copy into frames."""
    framed = kernel.framed
    if framed is None or kernel.only is not None:
        return False
    return len(framed.axes) <= MOST_AXES and len(framed.tests) <= MOST_TESTS


def sizes(kernel: Kernel) -> Iterator[Poly]:
    """The formulas that `declaration` prints."""
    framed = kernel.framed
    assert framed is not None
    tested = [test.index for test in framed.tests]
    for index in (*framed.store.indices, *framed.load.indices, *tested):
        yield _first(index, framed)
        yield from (step(index, axis) for axis in framed.axes)
    yield from (axis.extent for axis in framed.axes)
    yield from (test.extent for test in framed.tests)


def _first(index: Poly, framed: Framed) -> Poly:
    """An index at the first cell."""
    return index.substitute(dict.fromkeys((axis.name for axis in framed.axes), poly(0)))


def declaration(
    name: str,
    framed: Framed,
    text: Callable[[Poly], Text],
    address: Callable[[str], str],
    stride: Callable[[str, int], str],
) -> str:
    """A `struct framed` of that name; `address` and `stride` print those of tensors."""
    store, load = framed.store, framed.load
    to, source = (
        offset(tensor, [_first(index, framed) for index in indices], text, stride)
        for tensor, indices in ((store.tensor, store.indices), (load.tensor, load.indices))
    )
    target = f"(T *){address(store.tensor)}" + ("" if to == "0" else f" + {to}")
    axes = []
    for axis in framed.axes:
        steps = [
            offset(tensor, [step(index, axis) for index in indices], text, stride)
            for tensor, indices in ((store.tensor, store.indices), (load.tensor, load.indices))
        ]
        tested = ", ".join(text(step(test.index, axis)).text for test in framed.tests)
        axes.append(f"{{{text(axis.extent).text}, {', '.join(steps)}, {{{tested}}}}}")
    tests = (
        f"{{{text(_first(test.index, framed)).text}, {text(test.extent).text}}}"
        for test in framed.tests
    )
    parts = (
        target,
        f"(const T *){address(load.tensor)}",
        source,
        str(len(framed.axes)),
        str(len(framed.tests)),
        f"{{{', '.join(axes)}}}",
        f"{{{', '.join(tests)}}}",
    )
    return f"struct framed {name} = {{{', '.join(parts)}}};"


@dataclass(frozen=True, slots=True)
class _Limits:
    """What `frames.c.j2` is given."""

    most_axes: int
    most_tests: int


def helpers() -> str:
    """The C functions that copies into frames call, behind the element types of a call."""
    return render("frames.c.j2", _Limits(MOST_AXES, MOST_TESTS))
