"""Small valid calls of any op: sizes and attributes that meet its constraints.

Candidates are drawn from a generator with a fixed seed and kept where every constraint holds, no
extent is negative, and the interpreter is done soon. A property test draws from the finished list,
simplest first, so it never has to reject, and a failure shrinks towards the front.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, assert_never

from opgen.ir.binding import AttributeValue
from opgen.ir.notation import BATCH, Attribute, AttributeType, Op, Tensor

_SIZES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 19, 31, 37)
_SMALL_SIZES: Final = (1, 1, 2, 2, 3, 3, 4, 5)
_INTEGERS: Final = (0, 0, 1, 1, 1, 2, 2, 3, -1, 4, -2, 5)
_FLOATS: Final = (1.0, 0.5, 2.0)
_BATCHES: Final = ((), (2,), (1,), (3,), (2, 3), (0,), (5,), (1, 2))

LONG: Final = 19
"""A size of more than two vectors of float64 and one of float32, with some elements left over."""

_CANDIDATES: Final = 30_000
_LONG_ENOUGH: Final = 2_000  # candidates, where every size was long in one of them
_LONG_BUDGET: Final = 10_000  # points and cells
_FULL: Final = 300  # cases that have something to compute
_EMPTY: Final = 30  # cases in which a tensor has no elements


class NoCaseError(ValueError):
    """No call was found that meets the constraints of an op."""


@dataclass(frozen=True)
class Case:
    """The sizes and attributes of one call.

    `batch` are the dims in place of a leading `...`; `absent` the optional inputs left out.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    batch: tuple[int, ...] = ()
    absent: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((tuple(self.sizes.items()), self.batch, self.absent))

    def symbols(self, op: Op) -> dict[str, int]:
        """Every size, let and integer attribute by name."""
        symbols = {BATCH: math.prod(self.batch), **self.sizes}
        for attribute in op.attributes:
            if attribute.type is AttributeType.FLOAT:
                continue
            value = self.attributes[attribute.name]
            if isinstance(value, str):
                value = attribute.choices.index(value)
            elements = value if isinstance(value, tuple) else (value,) * len(attribute.symbols)
            symbols.update((n, int(v)) for n, v in zip(attribute.symbols, elements, strict=True))
        for let in op.lets:
            symbols[let.name] = let.value.evaluate(symbols)
        return symbols

    def shape(self, op: Op, tensor: Tensor) -> tuple[int, ...]:
        """The shape of an input or output, with the dims of the batch."""
        symbols = self.symbols(op)
        extents = tuple(dim.extent.evaluate(symbols) for dim in tensor.dims)
        return (*self.batch, *extents[1:]) if tensor.batched else extents


@lru_cache(maxsize=64)
def cases(op: Op, budget: int = 600) -> tuple[Case, ...]:
    """Valid cases, simplest first, those with an empty tensor last.

    `budget` bounds the points of the op's statements and the cells of its tensors. Raises
    NoCaseError.
    """
    full: dict[Case, int] = {}
    empty: dict[Case, int] = {}
    for case in _candidates(op):
        effort = work(op, case)
        if effort is None or effort[0] > budget:
            continue
        points, has_cells = effort
        found, enough = (full, _FULL) if has_cells else (empty, _EMPTY)
        if len(found) < enough:
            found.setdefault(case, points)
        if len(full) >= _FULL and len(empty) >= _EMPTY:
            break
    if not full and not empty:
        conditions = [c.text for c in op.constraints if c.text and not c.derived]
        raise NoCaseError(
            f"{op.name}: no sizes up to {max(_SIZES)} and attributes from {min(_INTEGERS)} to "
            f"{max(_INTEGERS)} were found that meet `where {', '.join(conditions)}`"
        )
    return (*sorted(full, key=full.__getitem__), *sorted(empty, key=empty.__getitem__))


@lru_cache(maxsize=64)
def long_cases(op: Op, least: int = LONG) -> tuple[Case, ...]:
    """For every size of the op the simplest case found in which it is that long.

    Vectors of elements appear in long rows and sums only. A size that may not be so long, or not
    without another one, has none.
    """
    found: dict[str, tuple[int, Case]] = {}
    for seen, case in enumerate(_candidates(op, large_too=True)):
        if seen > _LONG_ENOUGH and len(found) == len(set(op.sizes) - {BATCH}):
            break
        names = [name for name, size in case.sizes.items() if size >= least]
        effort = work(op, case) if names else None
        if effort is None or not effort[1] or effort[0] > _LONG_BUDGET:
            continue
        for name in names:
            if name not in found or effort[0] < found[name][0]:
                found[name] = effort[0], case
    return tuple(dict.fromkeys(found[name][1] for name in op.sizes if name in found))


def _candidates(op: Op, *, large_too: bool = False) -> Iterator[Case]:
    """Calls that may be valid; with one size that is large, or with two."""
    numbers = random.Random(op.name)  # of a text: the same in every process
    batched = any(tensor.batched for tensor in (*op.inputs, *op.outputs))
    optional = [tensor.name for tensor in op.inputs if tensor.default is not None]
    for _ in range(_CANDIDATES):
        # One large size at most, now and then: all of them large would be too slow.
        large = [numbers.choice((*op.sizes, "")) for _ in range(1 + large_too)]
        yield Case(
            {
                name: numbers.choice(_SIZES if name in large else _SMALL_SIZES)
                for name in op.sizes
                if name != BATCH
            },
            {attribute.name: _value(attribute, numbers) for attribute in op.attributes},
            numbers.choice(_BATCHES) if batched else (),
            tuple(name for name in optional if numbers.random() < 0.5),
        )


def _value(attribute: Attribute, numbers: random.Random) -> AttributeValue:
    if attribute.default is not None and numbers.random() < 0.3:
        return attribute.default
    if attribute.length is not None:
        return tuple(int(_number(attribute, numbers)) for _ in range(attribute.length))
    return _number(attribute, numbers)


def _number(attribute: Attribute, numbers: random.Random) -> int | float | str:
    match attribute.type:
        case AttributeType.INT:
            return numbers.choice(_INTEGERS)
        case AttributeType.SIZE:
            return numbers.choice(_SMALL_SIZES)
        case AttributeType.FLOAT:
            default = attribute.default
            known = (default, default * 2) if isinstance(default, float) and default else _FLOATS
            return numbers.choice(known)
        case AttributeType.BOOL:
            return numbers.random() < 0.5
        case AttributeType.CHOICE:
            return numbers.choice(attribute.choices)
        case unexpected:
            assert_never(unexpected)


def work(op: Op, case: Case) -> tuple[int, bool] | None:
    """How many points the op visits and cells it has, and whether no tensor is empty.

    None if the case does not meet the constraints.
    """
    try:
        symbols = case.symbols(op)
        if not all(constraint.condition.holds(symbols) for constraint in op.constraints):
            return None
        if any(symbols[name] < 0 for name in _extent_lets(op)):
            return None
        cells = []
        for tensor in (*op.inputs, *op.outputs, *op.temporaries):
            extents = [dim.extent.evaluate(symbols) for dim in tensor.dims]
            if min(extents, default=0) < 0:
                return None
            cells.append(math.prod(extents))
        points = sum(
            math.prod(max(0, iterator.extent.evaluate(symbols)) for iterator in each.iterators)
            for each in op.statements
        )
    except ZeroDivisionError:
        return None
    return points + sum(cells), min(cells, default=1) > 0


def _extent_lets(op: Op) -> list[str]:
    """The lets that a call refuses to be negative: those in the dims of inputs and outputs."""
    used = {n for t in (*op.inputs, *op.outputs) for dim in t.dims for n in dim.extent.symbols}
    return [let.name for let in op.lets if let.name in used]
