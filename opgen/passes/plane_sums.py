"""Sums over planes of tensors, with elements of several rows in one vector.

In `dw[c,k,l] = sum(n,i,j) x[n,c, i + k - 1 ?0, j + l - 1 ?0] * dy[n,c,i,j]` a row of eight elements
is half a vector, and every tap has its own first and last rows and columns. But the plane of `dy`
is four vectors whatever its rows are, and the elements of `x` that a tap joins with one of them are
picked out of two or three vectors of its plane, in an order that is known. Lanes where a tap has no
term keep their partial sums. So both planes are loaded once for all taps, and a round of the loop
over `n` is a product for each tap and each vector.

With 2048 channels of 8 by 8 and windows of 3 by 3, eight images take 0.65 of the time that loops
along rows take, and 32, which do not fit into the last cache, 0.22. With planes of 16 by 16 it is
0.67. (To ask for the planes of the next round gains nothing.)

Few taps are left to loops where windows overlap: in one pass with another gradient these take many
channels at a time (`passes.group_sums`), and the bits of a gradient are the same alone and in such
a pass.

Windows that do not overlap take every element once. Many taps have nothing to share then, and are
left to loops as well (see `emit.vectors`). Few taps share what they pick with the gradient of the
image, if that is the guest of the kernel and takes the same vectors: both add their terms in the
same rounds of a short loop. With 2048 channels of 8 by 8 and windows of 2 by 2, both gradients of
eight images in bfloat16 take 0.8 of the time so. Those in float32 take as long as in loops, of more
images 0.96 of it, and of 16 by 16 0.9. The filter's gradient alone takes up to 1.1 for eight images
of 8 by 8, and 0.85 to 0.97 of the time for others.

As kernels of planes they stand beside those along rows, need a processor that picks elements out of
two vectors in one instruction, and planes that lie one behind the other: see `passes.planes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.poly import Poly, poly
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import (
    Accumulate,
    Call,
    Define,
    Elements,
    For,
    If,
    Integer,
    Kernel,
    Load,
    Node,
    Number,
    Planes,
    Program,
    Scalar,
    Start,
    Store,
    walk,
)
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer
from opgen.ir.plane import (
    LANES,
    Cells,
    Joined,
    Picked,
    PlaneSums,
    Same,
    Term,
    Total,
    Vector,
    picked_in,
    sources,
)
from opgen.ir.primitives import VECTOR_OPERATORS
from opgen.passes.group_sums import MOST_SUMS, cell_body
from opgen.passes.plane_cells import known_dims, place_of, plane_sizes, sum_terms
from opgen.passes.plane_runs import rolled
from opgen.passes.planes import filled, loads_in

MOST_STEPS: Final = 400
"""The most instructions of a round, about: those of 16 by 16 have 322 for windows of 3 by 3. Those
of 20 by 20 have 533: they take as long as loops do, and the compiler half a second longer."""

MOST_SOURCES: Final = 4
"""The most vectors out of which lanes of a term are picked."""


def with_plane_sums(program: Program) -> Program:
    """The program, with a kernel for sums over planes beside each that gains by it."""
    if program.faults or program.workspaces:
        return program
    guests = {each.guest.kernel for each in program.kernels if each.guest is not None}
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        found = _with_sums(kernel, program) if kernel.name not in guests else None
        if found is None:
            kernels.append(kernel)
            continue
        assert isinstance(found.only, Planes)
        names = {each.name for each in (*program.kernels, *kernels)}
        kernels.append(replace(found, name=fresh_name(f"{kernel.name}_planes", names)))
        kernels.append(replace(kernel, unless=found.only))
    return replace(program, kernels=tuple(kernels))


def _with_sums(kernel: Kernel, program: Program) -> Kernel | None:
    """The kernel with sums over planes; None where it has none, or gains nothing."""
    if kernel.row is not None or kernel.prologue or kernel.local:
        return None
    if kernel.only is not None or kernel.unless is not None or not kernel.is_deterministic:
        return None
    loop = _long_loop(cell_body(kernel))
    if loop is None:
        return None
    terms = _terms(loop, program)
    if terms is None:
        return None
    if sum(_steps(term) for _, term in terms) > MOST_STEPS:
        return None
    picked = [each for _, term in terms for each in picked_in(term.value)]
    most = max((each.size for each in picked), default=0)
    count = sum(sum(term.present) for _, term in terms)
    sums: PlaneSums | None = None
    if len({name for name, _ in terms}) > MOST_SUMS:
        is_alone = kernel.guest is None
        sums = PlaneSums(loop.name, terms) if is_alone and count > most else None
    elif count == most:
        sums = _in_rounds(loop.name, terms)
    if sums is None:
        return None
    tensors = dict.fromkeys(each.first.tensor for each in picked)
    dense = tuple((name, known_dims(program, name)) for name in tensors)
    return replace(kernel, sums=sums, only=Planes(dense, Elements.COMPUTED))


def _in_rounds(loop: str, terms: Sequence[tuple[str, Term]]) -> PlaneSums | None:
    """Several sums of windows side by side, which take the same steps for each vector."""
    names = tuple(dict.fromkeys(name for name, _ in terms))
    groups = [terms[at : at + len(names)] for at in range(0, len(terms), len(names))]
    if len(names) < 2 or any(tuple(name for name, _ in group) != names for group in groups):
        return None
    if not all(all(term.present) for _, term in terms):
        return None
    cells = (
        Cells(at * LANES, tuple(term for _, term in group), Total())
        for at, group in enumerate(groups)
    )
    run, *others = rolled(tuple(cells))
    if others or len(run.cells) > 1 or run.count < 2:
        return None
    return PlaneSums(loop, tuple(groups[0]), run.count, run.steps)


def _long_loop(body: Sequence[Node]) -> For | None:
    """The loop in which a kernel adds up all it does, as it does for one round after the other.

    Kernels that do anything else with what they add up have none.
    """
    loops = [node for node in body if isinstance(node, For)]
    if len(loops) != 1 or not all(isinstance(node, For | Start | Store) for node in body):
        return None
    (loop,) = loops
    if all(bound.is_constant for bound in (*loop.lower, *loop.upper)):
        return None
    inner = tuple(walk(loop.body))
    if not all(isinstance(node, Define | For | If | Accumulate) for node in inner):
        return None
    joined = {node.accumulator for node in inner if isinstance(node, Accumulate)}
    started = [node for node in body if isinstance(node, Start)]
    if joined != {node.accumulator for node in started if node.reducer is Reducer.ADD}:
        return None
    if joined != {name for node in inner for name in _in_any_order(node)}:
        return None
    if any(node.reducer is not Reducer.ADD for node in inner if isinstance(node, Accumulate)):
        return None
    return loop


def _in_any_order(node: Node) -> Iterator[str]:
    """The accumulators whose terms a loop may add in any order."""
    if isinstance(node, For) and node.any_order:
        yield from (each.accumulator for each in node.body if isinstance(each, Accumulate))


def _terms(loop: For, program: Program) -> tuple[tuple[str, Term], ...] | None:
    """What a round adds up, in the way that takes the fewest steps; None if there is none."""
    nodes = tuple(walk(loop.body))
    names = dict.fromkeys(node.accumulator for node in nodes if isinstance(node, Accumulate))
    # Each round has a term, a lane of a step at best: planes of many are not looked at to the end.
    most = MOST_STEPS * LANES // len(names)
    scalars: dict[str, tuple[Scalar, ...]] = {}
    for name in names:
        found = sum_terms(loop.body, name, most)
        if found is None:
            return None
        scalars[name] = found
    best: tuple[tuple[str, Term], ...] | None = None
    for tensor in dict.fromkeys(load.tensor for load in loads_of(nodes)):
        terms = _along(tensor, scalars, program)
        if terms is None:
            continue
        if best is None or sum(_steps(t) for _, t in terms) < sum(_steps(t) for _, t in best):
            best = terms
    return best


def _along(
    tensor: str, scalars: dict[str, tuple[Scalar, ...]], program: Program
) -> tuple[tuple[str, Term], ...] | None:
    """The terms with lanes that are elements of a tensor, one vector of it after the other."""
    if program.stored(tensor) is None:
        return None
    sizes = plane_sizes(program, tensor)
    size = poly(1)
    for each in sizes:
        size = size * each
    if not sizes or size.constant < LANES:
        return None
    begins = [*range(0, size.constant - LANES, LANES), size.constant - LANES]
    placed: dict[str, dict[int, Scalar]] = {}
    for name, values in scalars.items():
        places = placed[name] = {}
        for value in values:
            found = [load for load in loads_in(value) if load.tensor == tensor]
            place = place_of(found[0], program) if len(found) == 1 else None
            if place is None or place[1] in places:
                return None
            places[place[1]] = value
    terms: list[tuple[str, Term]] = []
    for number, begin in enumerate(begins):
        first = number * LANES  # the last vector begins before this
        for name, places in placed.items():
            lanes = [places.get(at) if at >= first else None for at in range(begin, begin + LANES)]
            present = tuple(value is not None for value in lanes)
            if not any(present):
                continue
            vector = _vector(lanes, tensor, begin, program)
            if vector is None:
                return None
            terms.append((name, Term(vector, present)))
    return tuple(terms)


def _vector(
    lanes: Sequence[Scalar | None], along: str, begin: int, program: Program
) -> Vector | None:
    """Numbers side by side, None where a lane has any; None where lanes do different things."""
    values = [value for value in lanes if value is not None]
    first = values[0]
    match first:
        case Load():
            return _elements(lanes, along, begin, program)
        case Number() | Integer():
            return Same(first) if all(value == first for value in values) else None
        case Call(primitive=primitive) if primitive in VECTOR_OPERATORS:
            arguments = []
            for at in range(len(first.arguments)):
                column: list[Scalar | None] = []
                for value in lanes:
                    if value is not None:
                        if not isinstance(value, Call) or value.primitive != primitive:
                            return None
                        column.append(value.arguments[at])
                    else:
                        column.append(None)
                argument = _vector(column, along, begin, program)
                if argument is None:
                    return None
                arguments.append(argument)
            return Joined(primitive, tuple(arguments))
        case _:
            return None


def _elements(
    lanes: Sequence[Scalar | None], along: str, begin: int, program: Program
) -> Picked | None:
    """Elements of one plane side by side, and where a lane has no term any that are at hand."""
    loads = [value for value in lanes if isinstance(value, Load)]
    tensor = loads[0].tensor
    if any(load.tensor != tensor for load in loads) or len(loads) < sum(
        value is not None for value in lanes
    ):
        return None
    if not program.is_plain(tensor):
        return None
    outer: set[tuple[Poly, ...]] = set()
    places: list[int | None] = []
    for value in lanes:
        found = place_of(value, program) if isinstance(value, Load) else None
        if isinstance(value, Load) and found is None:
            return None
        if found is not None:
            outer.add(found[0])
        places.append(None if found is None else found[1])
    if len(outer) != 1:
        return None
    sizes = plane_sizes(program, tensor)
    picked = Picked(
        Load(tensor, (*outer.pop(), *[poly(0)] * len(sizes))),
        sizes,
        tuple(range(begin, begin + LANES)) if tensor == along else tuple(filled(places)),
    )
    return picked if picked.size >= LANES and len(sources(picked)) <= MOST_SOURCES else None


def _steps(term: Term) -> int:
    """About how many instructions a term takes."""
    total = 1 + (not all(term.present))
    for picked in picked_in(term.value):
        in_order = list(picked.places) == list(range(picked.places[0], picked.places[0] + LANES))
        count = len(sources(picked))
        total += 0 if in_order and count == 1 else max(count - 1, 1)
    return total
