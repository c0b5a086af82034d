"""Asking for the piece of memory that the next points read, where these read it in many rows.

The points of `y[n,h,w,c] = sum(i in 2, j in 2) x[n, 2*h + i, 2*w + j, c]` each read four rows of
channels, and go on to four that begin elsewhere: no stream is as long as processors need to foresee
it. Those with the same `h` together read two lines of pixels, one piece of memory, each element
once. So every point asks for its share of the next such piece, which is then read from end to end.
The same holds for sums over windows of columns, `x[n, 9*c + 3*k + l, 50*h + w + ...]`, where the
points of a plane read nine rows at a time of what nine channels have in one piece.

On one thread, with results in memory that was written before, fold of [512,10,50,50] takes 0.75 of
the time, and the gradient of an upsampling of [32,512,16,16] in channels-last format under autocast
0.6. To ask for the rows of the next point gains half as much in a loop written by hand, and nothing
for fold: as many streams are begun as before. What the caches hold needs no asking: a loop over it
took a sixth longer. Pieces of 256 KB are gone, or not there yet, when they are read: with 2048
channels it is 0.9 to 1 of the time, and a fifth more with pieces of half a megabyte. So each call
decides by the sizes of the tensor and of a piece (`asked_ahead` in `opgen.runtime.streams`). A
kernel that reads other tensors beside it took a twentieth to a sixth longer, and does not ask.

Points that go through blocks of lanes one by one, as those that round what they compute, ask for
the lines of their share in turn with the blocks, not for all of them at once: a core waits for few
lines at a time. With two threads on a processor with a megabyte of second cache that takes 0.7 to
0.8 of the time for pieces of 64 to 512 KB, where all at once takes 0.85 to 1; pieces of a megabyte
gain nothing. Loops over float32 alone lose by any asking there, and ask as before.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opgen.algebra.poly import ZERO, Poly, poly
from opgen.emit.emitter import ScopeEmitter
from opgen.emit.expression import type_name
from opgen.emit.lane_pairs import in_pairs
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Blocks, Define, Kernel, Lanes, Planes, Program, Short, walk


@dataclass(frozen=True, slots=True)
class Piece:
    """What the points with the same values of all axes but the last ones read of a tensor.

    It is `step` values of a dim with all that lies behind them, and is read by `points` points, one
    after the other. `following` is where that of the next value of its axis begins.
    """

    tensor: str
    dim: int
    step: int
    points: Poly
    inner: int
    following: tuple[Poly, ...]
    in_turn: bool
    """Whether a point asks for its share a little with every block of lanes."""

    def whole(self, program: Program) -> Poly:
        """How many elements the tensor has."""
        return _product(program.operand(self.tensor).extents)

    def size(self, program: Program) -> Poly:
        """How many elements a piece has."""
        return self.step * _product(program.operand(self.tensor).extents[self.dim + 1 :])

    def steps(self, program: Program) -> Iterator[tuple[int, Poly]]:
        """Dims, and how far apart their elements are where a piece is one."""
        extents = program.operand(self.tensor).extents
        for dim in range(self.dim, len(extents)):
            yield dim, _product(extents[dim + 1 :])


def piece(kernel: Kernel, program: Program) -> Piece | None:
    """The piece of the tensor that a kernel reads; None where there is none, or it reads another.

    Its rows are those of several values of a dim, and several points take turns with them.
    """
    row = kernel.row
    is_other = isinstance(kernel.only, Planes) or (
        isinstance(kernel.only, Short) and kernel.only.holds
    )
    if row is None or row.within or kernel.group is not None or kernel.guest is not None:
        return None
    if is_other or kernel.plane is not None or kernel.sums is not None:
        return None
    read = _accesses(kernel)
    inputs = {each.name for each in program.operands}
    if len(read) != 1 or not inputs.issuperset(read):
        return None
    ((tensor, accesses),) = read.items()
    return max(_pieces(kernel, program, tensor, accesses), key=lambda e: e.step, default=None)


def _accesses(kernel: Kernel) -> dict[str, list[tuple[Poly, ...]]]:
    """Where a point reads each tensor, in terms of the axes; every place once."""
    values: dict[str, Poly] = {}
    for node in (*kernel.prologue, *walk(kernel.body)):
        if isinstance(node, Define):
            values.setdefault(node.name, node.value.substitute(values))
    found: dict[str, dict[tuple[Poly, ...], None]] = {}
    for load in loads_of(walk(kernel.body)):
        place = tuple(index.substitute(values) for index in load.indices)
        found.setdefault(load.tensor, {})[place] = None
    return {tensor: list(places) for tensor, places in found.items()}


def _pieces(
    kernel: Kernel, program: Program, tensor: str, accesses: Sequence[tuple[Poly, ...]]
) -> Iterator[Piece]:
    """The pieces of a tensor, for every axis that may choose one."""
    assert kernel.row is not None
    extents = program.operand(tensor).extents
    for at, axis in enumerate(kernel.axes[:-1]):
        inner = kernel.axes[at + 1 :]
        points = _product(each.extent for each in inner)
        changing = {each.name for each in inner} | {kernel.row.axis.name}
        for dim in range(len(extents) - 1):
            step = accesses[0][dim].step_in(axis.name) or 0
            if step < 2 or not _are_together(accesses, dim, axis.name, step, changing):
                continue
            once = len(accesses) * points * kernel.row.axis.extent
            if once == step * _product(extents[dim + 1 :]):
                outer = tuple(accesses[0][:dim])
                begin = accesses[0][dim].substitute({axis.name: ZERO})
                begin = accesses[0][dim] - begin + step
                following = (*outer, begin, *(ZERO,) * (len(extents) - dim - 1))
                shares = points * kernel.row.stretches
                in_turn = _goes_by_blocks(kernel)
                yield Piece(tensor, dim, step, shares, len(inner), following, in_turn)


def _goes_by_blocks(kernel: Kernel) -> bool:
    """Whether a point is one pass over blocks of lanes."""
    if not (isinstance(kernel.only, Blocks) and kernel.only.holds):
        return False
    match kernel.body:
        case (Lanes() as lanes,):
            passes = in_pairs(lanes, kernel, "behind", "number")
            return sum(each.count for each in passes) <= 1
        case _:
            return False


def _are_together(
    accesses: Sequence[tuple[Poly, ...]], dim: int, axis: str, step: int, changing: set[str]
) -> bool:
    """Whether places are all values of a dim from a multiple of the step on to the next one."""
    outer = {place[:dim] for place in accesses}
    rests = {place[dim].substitute({axis: ZERO}) for place in accesses}
    fixed = frozenset[str]().union(*(index.symbols for index in accesses[0][:dim]))
    return (
        len(outer) == 1
        and fixed.isdisjoint(changing)
        and all(place[dim].step_in(axis) == step for place in accesses)
        and rests == {poly(value) for value in range(step)}
    )


def _product(values: Iterable[Poly]) -> Poly:
    return functools.reduce(operator.mul, values, poly(1))


# ---------------------------------------------------------------------------- the text
@dataclass(frozen=True, slots=True)
class Share:
    """What a point asks for in turn: the names of where it begins, and of how many bytes it has."""

    later: str
    parameter: str

    def begin(self, emitter: ScopeEmitter, first: str, last: str, step: str) -> str:
        """Count the bytes for each lane; what asks for those of a block of so many lanes."""
        each, asked = (emitter.scope.fresh(name) for name in ("each", "asked"))
        lanes = f"({last} - {first} + 1)"
        emitter.write(
            f"const int64_t {each} = {self.parameter} > 0 "
            f"? ({self.parameter} + {last} - {first}) / {lanes} : 0;"
        )
        emitter.write(f"const char *{asked} = {self.later};")
        until = f"{self.later} + ({emitter.lane} - {first} + {step}) * {each}"
        return f"for (; {asked} < {until}; {asked} += 64) FETCH({asked});"


def fetch_piece(
    emitter: ScopeEmitter, found: Piece, parameter: str, counters: Mapping[str, str]
) -> None:
    """Ask for the share of a point, where `parameter` is how many bytes that is.

    `counters` are the last counters of the point and their extents, those of the piece. A share
    that is asked for in turn is left to the loop over blocks, see `Share`.
    """
    number = ""
    for name, extent in counters.items():
        number = f"({number}) * {extent} + {name}" if number else name
    later = emitter.scope.fresh("later")
    cell = emitter.printer.cell(found.tensor, found.following)
    emitter.write(f"const char *const {later} = (const char *)&{cell} + ({number}) * {parameter};")
    if found.in_turn:
        emitter.share = Share(later, parameter)
        return
    at = emitter.scope.fresh("at")
    emitter.write(f"for (int64_t {at} = 0; {at} < {parameter}; {at} += 64)")
    emitter.write(f"    FETCH({later} + {at});")


def sizes(found: Piece, program: Program) -> Iterator[Poly]:
    """What the decision speaks of."""
    yield from (found.whole(program), found.size(program), found.points)
    yield from (step for _, step in found.steps(program))


def decision(
    found: Piece, program: Program, text: Callable[[Poly], str], stride: Callable[[int], str]
) -> str:
    """How many bytes each point asks for in a call: none where a piece is not one in memory.

    `text` prints a factor, and `stride` that of a dim of the tensor.
    """
    kind = type_name(program.operand(found.tensor))
    tests = (f"{stride(dim)} == {text(step)}" for dim, step in found.steps(program))
    whole, size = (text(each(program)) for each in (found.whole, found.size))
    most = "MOST_IN_TURN" if found.in_turn else "MOST_AT_ONCE"
    given = f"{whole} * sizeof({kind}), {size} * sizeof({kind}), {most}, {text(found.points)}"
    return f"{' && '.join(tests)} ? asked_ahead({given}) : 0"
