"""Kernels whose sums are never subnormal where some of their inputs have no tiny numbers.

There is an instruction that rounds two vectors to bfloat16 and puts them side by side, but it takes
subnormal numbers for zeros. To look for these among the results takes longer than to round in other
ways. But no sum of products is subnormal where the inputs are coarse: a number of bfloat16 is, if
it is zero or not below 2**-50. Then it is a multiple of 2**-57, a product of two such numbers is
one of 2**-114, and so is any sum of those in float32, wherever that is rounded on the way. Infinity
and what is no number stay what they are.

Tensors that points share, as filters, are looked at once, before a call; of others each point looks
at what it loads. That pays where it stores at least twice as many vectors: for 2048 channels of 8
by 8 under autocast, transposed convolutions of 2 by 2 take 0.6 of the time on planes, and 0.75 in
channels-last format, where the addresses of the rows of a block are also found once for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import (
    Accumulate,
    Blocks,
    Call,
    Kernel,
    Load,
    Planes,
    Program,
    Result,
    Scalar,
    Start,
    Store,
    walk,
)
from opgen.ir.notation import Reducer
from opgen.ir.plane import LANES, Each, Joined, Picked, Plane, Same, Vector, sources


@dataclass(frozen=True, slots=True)
class Coarse:
    """The tensors that are to be coarse: those looked at `before` a call, and at each point."""

    before: tuple[str, ...]
    moving: frozenset[str]
    begins: tuple[tuple[Picked, int], ...] = ()  # where planes have the vectors to look at


def coarse(kernel: Kernel, program: Program) -> Coarse | None:
    """What a kernel is to look at before it rounds at once; None where that is not worth it."""
    found: Coarse | None = None
    match kernel.only:
        case _ if not _are_products(kernel, program):
            pass
        case Planes() if kernel.plane is not None and not kernel.plane.copies:
            found = _of_planes(kernel, kernel.plane)
        case Blocks(holds=True, is_paired=True) if kernel.row is not None:
            found = _of_blocks(kernel, kernel.row.axis.name)
        case _:
            pass
    if found is None or any(program.operand(name).unrounded for name in found.before):
        return None  # filters that are not rounded yet are large
    return found


def are_coarse(before: str, vectors: Sequence[str]) -> str:
    """Whether all vectors are coarse, and what was looked at `before` is."""
    if not vectors:
        return before
    least = f"magnitudes({vectors[0]})"
    for each in vectors[1:]:
        least = f"least_words({least}, magnitudes({each}))"
    return f"{before} && ARE_COARSE({least})"


def _are_products(kernel: Kernel, program: Program) -> bool:
    """Whether each cell is a sum from zero on of products of at most two elements."""
    for node in walk(kernel.body):
        match node:
            case Start(value=None) | Store(value=Result()):
                pass
            case Start() | Store():
                return False
            case Accumulate(reducer=Reducer.ADD, value=value):
                if not 0 < _factors(value, program) <= 2:
                    return False
            case Accumulate():
                return False
            case _:
                pass
    operand = program.operand(kernel.written)
    return operand.is_generic and not operand.unrounded


def _factors(value: Scalar, program: Program) -> int:
    """How many elements are multiplied at most; 0 for what is not made of products alone."""
    match value:
        case Load(tensor=tensor):
            operand = program.stored(tensor)
            return int(operand is not None and operand.is_generic)
        case Call(primitive=primitive, arguments=arguments):
            factors = [_factors(each, program) for each in arguments]
            if primitive == "mul":
                return sum(factors) if all(factors) else 0
            return max(factors) if primitive in ("add", "sub", "neg") and all(factors) else 0
        case _:
            return 0


def _loaded(kernel: Kernel) -> tuple[Load, ...]:
    terms = [node for node in walk(kernel.body) if isinstance(node, Accumulate)]
    return tuple(dict.fromkeys(loads_of(terms)))


def _moving(kernel: Kernel) -> frozenset[str]:
    """The tensors of which points along every axis have elements of their own."""
    axes = {axis.name for axis in kernel.axes}
    found: dict[str, set[str]] = {}
    for load in _loaded(kernel):
        symbols = frozenset[str]().union(*(index.symbols for index in load.indices))
        found.setdefault(load.tensor, set()).update(symbols & axes)
    return frozenset(tensor for tensor, own in found.items() if own == axes)


def _before(kernel: Kernel, moving: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(each.tensor for each in _loaded(kernel) if each.tensor not in moving)
    )


def _of_blocks(kernel: Kernel, lane: str) -> Coarse | None:
    moving = _moving(kernel)
    loads = tuple(load for load in _loaded(kernel) if load.tensor in moving)
    stored = sum(isinstance(node, Store) for node in walk(kernel.body))
    if 2 * len(loads) > stored or any(lane not in load.indices[-1].symbols for load in loads):
        return None
    return Coarse(_before(kernel, moving), moving)


def _of_planes(kernel: Kernel, plane: Plane) -> Coarse | None:
    moving = _moving(kernel)
    begins: dict[tuple[Load, int], Picked] = {}
    if any(run.count > 1 for run in plane.runs):
        return None
    for vector in _vectors(plane):
        match vector:
            case Picked(first=first) if first.tensor in moving:
                if vector.size < LANES:
                    return None
                begins |= {(first, begin): vector for begin in sources(vector)}
            case Same(value=Load(tensor=tensor)) if tensor not in moving:
                pass
            case Same() | Each():
                return None
            case _:
                pass
    if 2 * len(begins) > sum(1 for _ in plane.cells):
        return None
    where = tuple((picked, begin) for (_, begin), picked in begins.items())
    return Coarse(_before(kernel, moving), moving, where)


def _vectors(plane: Plane) -> Iterator[Vector]:
    """Everything that cells are joined of."""
    rest = [term.value for cells in plane.cells for term in cells.terms]
    while rest:
        vector = rest.pop()
        if isinstance(vector, Joined):
            rest += vector.arguments
        yield vector
