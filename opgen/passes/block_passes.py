"""Long sums of blocks: many blocks go through an image together, before any goes on to the next.

A sum over the pixels of an image in channels-last format meets another page of memory in every
term, of which a block needs one line. A block that went through all images alone would visit all
pages, and the next block would visit them again, when they are long forgotten. So the loop over
images goes outside, with as much of what is in it as leaves enough terms for a pass: every block of
a stretch adds its terms to accumulators that it finds, and leaves, in memory.

Where pixels lie a multiple of a page apart, they share the same few places of the first cache, and
none is there when the next row of the image asks for it again. Two rows in one pass load what they
share once.

Where pixels share nothing, each of them is a pass, see `passes.apart`. The more of its cells side
by side the better, so a thread runs the stretches next to each other that it has as one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, Define, For, Kernel, Lanes, Load, Node, Start, walk
from opgen.passes.apart import terms_are_apart
from opgen.passes.merge import Body, at, constant_range, terms_of

WIDTH: Final = 32
"""How many cells of a row a parallel point has: few, so that there are points for all threads."""

JOINED: Final = 4
"""How many stretches of a thread run as one: more cells take more of each page at a time. 192
channels of 4 images of 56 by 56 pixels took 1.0 ms as a single point, and take 0.4 as six."""

LEAST_TERMS: Final = 4
"""The fewest terms of a pass, for each accumulator that it finds and leaves."""

MOST_SUMS: Final = 16
"""The most accumulators of passes for single pixels: they stay in registers for that long."""

JOINED_PIXELS: Final = 32
"""How many may run as one where pixels are passes, however many sums there are."""

HELD: Final = 256
"""How many sums of whole stretches are held at once, where a cell has few: 2048 cells with four
sums of float32 are 32 kB. Whole pixels of 8 kB lie one behind the other: with 64 images of 2048
channels both gradients of a filter take 0.92 of the time of passes through half pixels, and these
0.88 of that of passes through quarters."""

MOST_TERMS: Final = 500
"""The most terms of a kernel with pairs of rows: compiling one takes about a millisecond."""


def with_passes(kernel: Kernel) -> Kernel:
    """A kernel of blocks with passes over the blocks inside of a long loop, where that helps.

    The terms of a cell that are in one pass may change their order.
    """
    match kernel.body:
        case (Lanes(lower=(), upper=(), body=body),) if kernel.row is not None:
            nodes = tuple(walk(body))
        case _:
            return kernel
    lane = kernel.row.axis.name
    if any(isinstance(node, Define) for node in nodes) or not _all_move(nodes, lane):
        return kernel
    if not any(isinstance(node, For) and constant_range(node) is None for node in body):
        return kernel
    sums = sum(isinstance(node, Start) for node in nodes)
    is_single = pixel_by_pixel(body) is not None
    passes = _passes(body, sums if is_single else LEAST_TERMS * sums)
    if not any(isinstance(node, For) for node in passes):
        return kernel
    joined = max(JOINED_PIXELS, HELD // sums) if is_single else JOINED
    row = replace(kernel.row, width=WIDTH, least=WIDTH, joined=joined)
    if kernel.axes:  # which there are points of, and stretches are not neighbours
        row = replace(kernel.row, width=JOINED * WIDTH, least=JOINED * WIDTH)
    return replace(kernel, body=passes, row=row)


def pixel_by_pixel(body: Body | None) -> Body | None:
    """A body whose loops are not written out, if every value of these had better be a pass."""
    if body is None:
        return None
    nodes = tuple(walk(body))
    sums = sum(isinstance(node, Start) for node in nodes)
    is_long = any(isinstance(node, For) and constant_range(node) is None for node in body)
    return body if is_long and LEAST_TERMS <= sums <= MOST_SUMS and terms_are_apart(body) else None


def _all_move(nodes: Iterable[Node], lane: str) -> bool:
    """Whether all that terms load differs from lane to lane."""
    terms = [node for node in nodes if isinstance(node, Accumulate)]
    return all(
        any(lane in index.symbols for index in load.indices) for load in loads_of(terms)
    ) and bool(terms)


def _passes(body: Body, least: int) -> Body:
    """The nodes as passes, inside of the loops that have at least so many terms at every value."""
    out: list[Node] = []
    for is_outside, group in itertools.groupby(body, lambda node: _goes_outside(node, least)):
        nodes = tuple(group)
        if not is_outside:
            out.append(Lanes((), (), nodes))
            continue
        for loop in _in_pairs([node for node in nodes if isinstance(node, For)]):
            out.append(replace(loop, body=_passes(loop.body, least)))
    return tuple(out)


def _goes_outside(node: Node, least: int) -> bool:
    if not isinstance(node, For):
        return False
    terms = terms_of(node.body)
    return terms is None or terms >= least


# ---------------------------------------------------------------------------- pairs of rows
def _in_pairs(loops: Sequence[For]) -> Sequence[For]:
    """Loops over neighbouring stretches of an index, two values at a time where all is written out.

    A value that is left over stays alone.
    """
    known = [(loop, constant_range(loop)) for loop in loops]
    rows = [(value, loop.body) for loop, values in known if values for value in values]
    values = [value for value, _ in rows]
    if (
        len({loop.name for loop in loops}) != 1
        or any(found is None for _, found in known)
        or values != list(range(values[0], values[0] + len(values)))
        or not all(isinstance(node, Accumulate) for loop in loops for node in loop.body)
    ):
        return loops
    name = loops[0].name
    found: list[For] = []
    pairs = [rows[begin : begin + 2] for begin in range(0, len(rows), 2)]
    for bodies, group in itertools.groupby(pairs, lambda pair: [body for _, body in pair]):
        same = list(group)
        if len(bodies) == 2 and not _share_loads(same[0], name):
            return loops
        first, step, count = same[0][0][0], len(bodies), len(same)
        here = symbol(name) * step + first if count > 1 else poly(first)
        whole = _side_by_side([_at(body, name, here + one) for one, body in enumerate(bodies)])
        found.append(replace(loops[0], lower=(poly(0),), upper=(poly(count - 1),), body=whole))
    return found if sum(len(loop.body) for loop in found) <= MOST_TERMS else loops


def _at(body: Body, name: str, value: Poly) -> Body:
    return at(body, {name: value})


def _share_loads(rows: Sequence[tuple[int, Body]], name: str) -> bool:
    """Whether two rows have loads in common."""
    one, other = (set(loads_of(_at(body, name, poly(value)))) for value, body in rows)
    return not one.isdisjoint(other)


def _side_by_side(bodies: Sequence[Body]) -> Body:
    """Terms of several rows, those of each column together: they load what neighbours load."""
    columns = [
        [tuple(group) for _, group in itertools.groupby(body, _last_load)] for body in bodies
    ]
    together = itertools.zip_longest(*columns, fillvalue=())
    return tuple(node for column in together for terms in column for node in terms)


def _last_load(node: Node) -> Load | None:
    loads = loads_of((node,))
    return loads[-1] if loads else None
