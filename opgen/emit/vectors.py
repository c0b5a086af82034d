"""Sums whose terms are loaded a vector at a time, with the vector extensions of GNU C.

A sum in any order has a vector of partial sums beside its total. Where all tensors that the loop
walks through are consecutive in memory, whole vectors of terms are added to it; the rest of the
loop adds to the total as always. Left to the compiler, every run of the innermost loop would end
with the sum of a vector, which costs as much as a hundred terms.

A tensor of which every second element is read, as by the gradient of the filter of a convolution
with a stride of 2, is loaded in two vectors, and these elements are picked out of them. Where
another sum takes the elements between them, as for windows that do not overlap, nothing is picked
out: both sums share a vector, with the terms of one in its even lanes and those of the other in its
odd ones, and what both multiply stands in it twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opgen.algebra.poly import ZERO
from opgen.ir.loop_parts import loads_of, moving
from opgen.ir.loops import (
    Accumulate,
    Always,
    Argument,
    Call,
    Define,
    For,
    If,
    Integer,
    Lanes,
    Load,
    Node,
    Number,
    Program,
    Scalar,
    Start,
    walk,
)
from opgen.ir.map_loops import map_loads
from opgen.ir.notation import Reducer
from opgen.ir.primitives import VECTOR_OPERATORS

EVERY_SECOND: Final = 2
"""The step between elements that are picked out of two vectors."""

SQUARE: Final = 2
"""The exponent of a power that is a product."""


_VECTOR: Final = 16
"""How many terms of a known number are worth to be vectors."""


@dataclass(frozen=True, slots=True)
class VectorSum:
    """The terms of a loop, and the tensors that it walks through by one element or by two.

    Where there are none its terms are computed one by one, which compilers make vectors of, and
    vectors of them are added.
    """

    terms: tuple[Accumulate, ...]
    walked: tuple[str, ...]

    def pairs(self, name: str) -> tuple[tuple[Accumulate, Accumulate], ...] | None:
        """The terms in pairs that share a vector, `name` being the loop's; None if some has none.

        The second one of a pair takes the elements behind those of the first one.
        """
        found: list[tuple[Accumulate, Accumulate]] = []
        rest = list(self.terms)
        while rest:
            even = rest.pop(0)
            odd = _behind(even, name)
            partners = [term for term in rest if term.value == odd]
            if odd is None or not partners or partners[0].accumulator == even.accumulator:
                return None
            rest.remove(partners[0])
            found.append((even, partners[0]))
        return tuple(found)


def vector_sum(node: For, program: Program) -> VectorSum | None:
    """How the loop adds vectors; None where that is not possible."""
    terms = tuple(each for each in node.body if isinstance(each, Accumulate))
    defines = [each for each in node.body if isinstance(each, Define)]
    if (
        not node.any_order
        or not terms
        or len(terms) + len(defines) < len(node.body)
        or any(node.name in each.value.symbols for each in defines)
    ):
        return None
    if any(term.reducer is not Reducer.ADD or term.present != Always() for term in terms):
        return None
    walked: dict[str, None] = {}
    for term in terms:
        own = _walked(term, node.name, program)
        if own is None:
            return VectorSum(terms, ()) if _are_computed_in_row(terms, node) else None
        walked |= own
    return VectorSum(terms, tuple(walked))


def _are_computed_in_row(terms: Sequence[Accumulate], node: For) -> bool:
    """Whether terms are of neighbours, as many as a vector or any number of them, and none is read
    from rows apart."""
    if any(bound.is_constant and bound.constant + 1 < _VECTOR for bound in node.upper):
        return False
    moving = [
        load.indices
        for load in loads_of(terms)
        if any(node.name in index.symbols for index in load.indices)
    ]
    return bool(moving) and all(
        not any(node.name in index.symbols for index in outer) and last.step_in(node.name) == 1
        for *outer, last in moving
    )


def row_extreme(node: For) -> Reducer | None:
    """MAX or MIN where the loop joins nothing but such numbers, of neighbours, in every turn."""
    terms = [each for each in node.body if isinstance(each, Accumulate)]
    reducers = {term.reducer for term in terms}
    if len(terms) < len(node.body) or len(reducers) != 1:
        return None
    if any(term.present != Always() for term in terms):
        return None
    loads = loads_of(terms)
    if not any(load.indices and load.indices[-1].step_in(node.name) == 1 for load in loads):
        return None
    (reducer,) = reducers
    return reducer if reducer in (Reducer.MAX, Reducer.MIN) else None


def vector_extreme(node: For, program: Program) -> tuple[str, ...] | None:
    """The tensors that must be consecutive for a loop to join vectors of terms to one extreme; None
    where it does something else."""
    match node.body:
        case (Accumulate(reducer=Reducer.MAX | Reducer.MIN) as term,):
            walked = _walked(term, node.name, program)
            if walked is None or any(program.operand(tensor).optional for tensor in walked):
                return None
            steps = {
                load.indices[-1].step_in(node.name)
                for load in loads_of(node.body)
                if any(node.name in index.symbols for index in load.indices)
            }
            return tuple(walked) if steps == {1} else None
        case _:
            return None


def row_position(node: For) -> Accumulate | None:
    """The term of a loop that does nothing but look for the position of an extreme of neighbours.

    Terms are elements as they are: computed once more, others might be rounded in another way. Of
    equal ones the first counts, so their turn is the loop's.
    """
    match node.body:
        case (Accumulate(value=Load() as load) as term,) if term.reducer.is_argument:
            *outer, last = load.indices or (ZERO,)
            is_first = not any(node.name in index.symbols for index in outer)
            are_neighbours = is_first and last.step_in(node.name) == 1
            is_plain = term.present == Always() and not term.order and not node.any_order
            return term if are_neighbours and is_plain else None
        case _:
            return None


def _walked(term: Accumulate, name: str, program: Program) -> dict[str, None] | None:
    """The tensors whose consecutive elements are needed; None where some are not consecutive."""
    if term.present != Always():
        return None
    walked: dict[str, None] = {}
    for load in _loads(term.value):
        operand = None if load is None else program.stored(load.tensor)
        if load is None or operand is None:
            return None
        if not any(name in index.symbols for index in load.indices):
            continue
        if not operand.dtype.is_generic:
            return None
        if any(name in index.symbols for index in load.indices[:-1]):
            return None
        step = load.indices[-1].step_in(name)
        if step != 1 and (step != EVERY_SECOND or operand.optional or operand.widened):
            return None
        walked[load.tensor] = None
    return walked if walked and _is_arithmetic(term.value, name) else None


def _behind(term: Accumulate, name: str) -> Scalar | None:
    """The value one element further on where every second one is read; None if that is nowhere."""
    moved: list[Load] = []

    def change(load: Load) -> Load:
        if not load.indices or load.indices[-1].step_in(name) != EVERY_SECOND:
            return load
        moved.append(load)
        return replace(load, indices=(*load.indices[:-1], load.indices[-1] + 1))

    (changed,) = map_loads((term,), change)
    assert isinstance(changed, Accumulate)
    return changed.value if moved else None


def _is_arithmetic(value: Scalar, name: str) -> bool:
    """Whether vectors are computed with as numbers are; numbers among them may be anything."""
    match value:
        case Number() | Argument() | Load():
            return True
        case Integer(value=number):
            return name not in number.symbols
        case Call(primitive="pow", arguments=(base, Number(value=exponent))) if exponent == SQUARE:
            return _is_arithmetic(base, name)
        case Call(primitive=primitive, arguments=arguments):
            is_same = primitive in VECTOR_OPERATORS or not any(moving(value, name))
            return is_same and all(_is_arithmetic(each, name) for each in arguments)
        case _:
            return False


def _loads(value: Scalar) -> Iterator[Load | None]:
    """Every load; None for what may hold one that is not always made."""
    match value:
        case Load():
            yield value
        case Call(arguments=arguments):
            for argument in arguments:
                yield from _loads(argument)
        case Number() | Argument() | Integer():
            return
        case _:
            yield None


def vector_pairs(body: tuple[Node, ...], program: Program) -> dict[str, tuple[str, str]]:
    """The accumulators that share vectors, each with both of its pair, the even one first.

    They do so in all loops, as does all that these add, and wherever one begins, the other one
    begins beside it.
    """
    found: dict[str, tuple[str, str]] = {}
    alone: set[str] = set()
    together: list[set[str]] = []  # what a loop adds goes by pairs as a whole
    for node in walk(body):
        if not isinstance(node, For):
            continue
        vectors = vector_sum(node, program)
        if vectors is None:
            continue
        operands = [program.operand(tensor) for tensor in vectors.walked]
        # What is multiplied by both of a pair stands in lanes twice, which no temporary's does.
        are_plain = bool(operands) and not any(each.optional or each.widened for each in operands)
        pairs = vectors.pairs(node.name) if are_plain else None
        if pairs is None:
            alone.update(term.accumulator for term in vectors.terms)
            continue
        together.append({term.accumulator for term in vectors.terms})
        for even, odd in pairs:
            pair = even.accumulator, odd.accumulator
            if any(found.setdefault(name, pair) != pair for name in pair):
                alone.update(pair)
    while split := [names for names in together if not alone.isdisjoint(names) and names - alone]:
        alone.update(*split)
    inner = [node.body for node in walk(body) if isinstance(node, For | If | Lanes)]
    starts = [
        {node.accumulator for node in nodes if isinstance(node, Start)} for nodes in (body, *inner)
    ]
    return {
        name: pair
        for name, pair in found.items()
        if alone.isdisjoint(pair)
        and all((pair[0] in names) == (pair[1] in names) for names in starts)
    }
