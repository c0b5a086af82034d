"""The points of a statement, and how a value at each of them joins the cell it is written to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from opgen.runtime import checks
from opgen.runtime.eager.operands import AnyIndex, Operand
from opgen.runtime.eager.terms import Fault, Term, every, number, term

LARGEST_CHUNK = 2**18
"""How many points are computed at once, which bounds the memory that a call needs."""


class Points:
    """Points in the lexicographic order of their iterators.

    `iterators` holds the value of every iterator at each of them; the shapes of those tensors, and
    of whatever is computed from them, broadcast to `shape`.
    """

    def __init__(self, op: str, iterators: Sequence[Term], shape: Sequence[int], like: Term):
        self.op = op
        self.iterators = tuple(iterators)
        self.shape = tuple(shape)
        self._like = like

    # ------------------------------------------------------------ conditions
    def keep(self, *conditions: Term | bool) -> tuple[Term, ...]:
        """Keep the points at which all conditions hold; returns the iterators.

        A condition that is a fault counts only where no other one fails.
        """
        terms = [term(condition, self._like) for condition in conditions]
        masks = [each.value != 0 for each in terms]
        for position, each in enumerate(terms):
            for fault in each.faults:
                masks[position] = masks[position] | fault.where
        holds = every(masks)
        assert holds is not None
        self._refuse((fault for each in terms for fault in each.faults), holds)
        at = holds.expand(self.shape)
        self.iterators = tuple(
            Term(iterator.value.expand(self.shape)[at], iterator.real)
            for iterator in self.iterators
        )
        self.shape = (int(at.count_nonzero()),)
        return self.iterators

    def _refuse(self, faults: Iterable[Fault], where: torch.Tensor | None = None) -> None:
        """Raise the first of the faults that has a point where the mask holds."""
        for fault in faults:
            mask = fault.where if where is None else fault.where & where
            if bool(mask.any()):
                raise self._error(fault, int(fault.index.expand(mask.shape)[mask][0]))

    def _error(self, fault: Fault, index: int) -> Exception:
        if fault.access:
            return checks.outside(
                self.op, fault.tensor, fault.axis, fault.access, index, fault.extent
            )
        return AssertionError(
            f"{self.op}: index {index} is outside of dimension {fault.axis} of '{fault.tensor}', "
            f"which has extent {fault.extent}, although it was proved to be inside"
        )

    # ------------------------------------------------------------ writing
    def assign(self, target: Operand, cell: Sequence[AnyIndex], value: Term | float) -> None:
        """Write a value; an absent one is 0."""
        cells, values, _ = self._written(target, cell, value, skip_absent=False)
        _flat(target)[cells] = values

    def add(self, target: Operand, cell: Sequence[AnyIndex], value: Term | float) -> None:
        """Add a value."""
        cells, values, _ = self._written(target, cell, value)
        _flat(target).index_add_(0, cells, values)

    def multiply(self, target: Operand, cell: Sequence[AnyIndex], value: Term | float) -> None:
        """Multiply by a value; an absent one is 0."""
        cells, values, _ = self._written(target, cell, value, skip_absent=False)
        _flat(target).scatter_reduce_(0, cells, values, "prod")

    def max(self, target: Operand, cell: Sequence[AnyIndex], value: Term | float) -> None:
        """Keep the greatest value; NaN wins."""
        cells, values, _ = self._written(target, cell, value)
        _flat(target).scatter_reduce_(0, cells, values, "amax")

    def min(self, target: Operand, cell: Sequence[AnyIndex], value: Term | float) -> None:
        """Keep the least value; NaN wins."""
        cells, values, _ = self._written(target, cell, value)
        _flat(target).scatter_reduce_(0, cells, values, "amin")

    def argmax(
        self,
        target: Operand,
        cell: Sequence[AnyIndex],
        value: Term | float,
        position: Term | int,
    ) -> None:
        """Keep the position of the greatest value, the first of equals; NaN wins."""
        self._extreme(target, cell, value, position, "amax")

    def argmin(
        self,
        target: Operand,
        cell: Sequence[AnyIndex],
        value: Term | float,
        position: Term | int,
    ) -> None:
        """Keep the position of the least value, the first of equals; NaN wins."""
        self._extreme(target, cell, value, position, "amin")

    def _extreme(
        self,
        target: Operand,
        cell: Sequence[AnyIndex],
        value: Term | float,
        position: Term | int,
        reduction: str,
    ) -> None:
        cells, values, kept = self._written(target, cell, value, convert=False)
        stated = term(position, self._like)
        self._refuse(stated.faults, kept)
        positions = self._chosen(stated.value, kept)
        size, state = _flat(target).numel(), target.best
        # The best of these points for every cell that has one, and the first that attains it.
        best = values.new_zeros(size).scatter_reduce_(
            0, cells, values, reduction, include_self=False
        )
        attains = _same(values, best[cells]).nonzero().reshape(-1)
        first = attains.new_full((size,), len(values))
        first.scatter_reduce_(0, cells[attains], attains, "amin")
        found = first < len(values)
        if state:
            before, old = state["found"], state["best"]
            if best.is_floating_point() or old.is_floating_point():
                best, old = best.to(self._like.real), old.to(self._like.real)
            better = best > old if reduction == "amax" else best < old
            better = better | ((best != best) & (old == old))
            taken = found & (~before | better)
            state.update(found=before | found, best=torch.where(taken, best, old))
        else:
            taken = found
            state.update(found=found, best=best)
        _flat(target)[taken] = positions[first[taken]]

    def _written(
        self,
        target: Operand,
        cell: Sequence[AnyIndex],
        value: Term | float,
        *,
        skip_absent: bool = True,
        convert: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The cells that are written, as positions in memory, the values, and the points.

        The latter as a mask, or None for all points.
        """
        body = term(value, self._like)
        cells = target.cells(cell)
        made = None if cells.dropped is None else ~cells.dropped
        self._refuse(cells.faults)
        self._refuse(body.faults, made)
        place = number(0, self._like.real, target.data.device).value
        for index, extent in zip(cells.indices, target.data.shape, strict=True):
            place = place * extent + index
        if convert:
            assert target.data.is_floating_point() or not body.value.is_floating_point()
        values = body.value.to(target.data.dtype) if convert else body.value
        masks = [mask for mask in (made, body.present if skip_absent else None) if mask is not None]
        kept = every(masks)
        return self._chosen(place, kept), self._chosen(values, kept), kept

    def _chosen(self, values: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
        """The values at the points of a mask, in the order of the points."""
        everywhere = values.expand(self.shape)
        return everywhere.reshape(-1) if kept is None else everywhere[kept.expand(self.shape)]


def _flat(target: Operand) -> torch.Tensor:
    """The cells of a tensor that is written; they are contiguous."""
    return target.data.view(-1)


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | ((a != a) & (b != b))


def boxes(extents: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """A box as ranges of each of its axes, in lexicographic order, of limited size."""
    split, size = len(extents), 1
    while split and size * extents[split - 1] <= LARGEST_CHUNK:
        split -= 1
        size *= extents[split]
    if 0 in extents:
        return
    inner = tuple((0, extent) for extent in extents[split:])
    if not split:
        yield inner
        return
    step = max(1, LARGEST_CHUNK // size)
    yield from _split(extents[: split - 1], extents[split - 1], step, inner)


def _split(
    outer: Sequence[int], extent: int, step: int, inner: tuple[tuple[int, int], ...]
) -> Iterator[tuple[tuple[int, int], ...]]:
    if not outer:
        for start in range(0, extent, step):
            yield (start, min(start + step, extent)), *inner
        return
    for value in range(outer[0]):
        for rest in _split(outer[1:], extent, step, inner):
            yield (value, value + 1), *rest
