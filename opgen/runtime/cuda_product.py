"""When a kernel runs as a product of matrices, and by which tiles.

A plan is chosen for the sizes, types and strides of a call:

* Tensor cores multiply elements of 16 bits, and those of 32 bits where
  `torch.backends.cuda.matmul.fp32_precision` is "tf32" (`allow_tf32`, or
  `torch.set_float32_matmul_precision("high")`), on devices of compute capability 8.0 and newer;
  threads multiply all others.
* A product of at least 16 terms and 4 rows and columns runs by tiles where these take fewer
  instructions, counted for one multiplication: by tiles those of the multiplication, also in empty
  parts of tiles, and 10 for every element that is copied to a tile, shared by the cells that it is
  for; by a thread for each few cells 2.25, two loads of 4 bytes and their addresses for 4 cells.
  Fewer blocks than a large GPU has multiprocessors take longer in proportion.
* Tiles have 128 rows and columns where these make enough blocks, else 64. Where even those are too
  few, several blocks share the terms of a tile, each at least 256: their partial sums, which a
  second kernel adds up, are then less than a quarter of what was copied to tiles. This depends on
  sizes alone, so results are the same on every device.
* The fastest term is the one along which most factors are consecutive in memory: the channel in
  channels-last format.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from opgen.runtime.cuda_grid import MOST_BLOCKS, Size, magic
from opgen.runtime.description import Matrix, Product
from opgen.runtime.record import record


class Kind(IntEnum):
    """What multiplies; the value is that of a plan in `cuda_tiles`."""

    THREADS = 0
    TENSOR_CORES = 1
    TENSOR_CORES_TF32 = 2


LEAST_TERMS = 16
"""The fewest terms of a product that is computed by tiles."""

LEAST_SIDE = 4
"""The fewest rows, and columns."""

BY_CELLS = 2.25
"""Instructions for one multiplication, where threads compute neighbouring cells."""

_MULTIPLY = {0: 1.05, 1: 1 / 64, 2: 1 / 32}  # by kind; of threads with loads from shared memory
_COPY = 10  # instructions for an element that is copied to a tile

ENOUGH_BLOCKS = 128
"""About the multiprocessors of a large GPU: as many blocks keep it busy."""

LEAST_SHARE = 256
"""The fewest terms of a block, where several share those of a tile."""

SUM_THREADS = 256
"""Threads of a block that adds up partial sums: THREADS of the prelude."""

_ACCESS = 16  # bytes of the widest load
_TILES = (128, 64)
_WITH_TENSOR_CORES = (8, 0)


@record
class Shape:
    """How many matrices there are, and the numbers of their rows, columns and terms.

    Of the terms one of every `step` is present; cell by cell the others take no time.
    """

    matrices: int
    rows: int
    columns: int
    terms: int
    step: int = 1

    @classmethod
    def of(
        cls,
        batch: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
        terms: Sequence[int],
        steps: Sequence[int],
    ) -> Shape:
        """The shape for the extents of axes, and the steps of terms."""
        matrices, row_count, column_count = map(math.prod, (batch, rows, columns))
        return cls(matrices, row_count, column_count, math.prod(terms), math.prod(steps))

    def tiles(self, side: int) -> int:
        """How many tiles cover one result."""
        return -(-self.rows // side) * -(-self.columns // side)

    def splits(self, side: int) -> int:
        """How many blocks share the terms of a tile."""
        blocks = self.matrices * self.tiles(side)
        return max(1, min(-(-ENOUGH_BLOCKS // blocks), self.terms // LEAST_SHARE))

    def instructions(self, kind: Kind, side: int) -> float:
        """About how many a multiplication takes by these tiles."""
        tiles = self.tiles(side)
        filled = self.rows * self.columns / (tiles * side * side)
        copied = 1 / min(side, self.rows) + 1 / min(side, self.columns)
        busy = min(1, self.splits(side) * self.matrices * tiles / ENOUGH_BLOCKS)
        return (_MULTIPLY[kind] / filled + _COPY * copied) / busy


@record
class Plan:
    """A product as it is launched: what its macro is, and the grid."""

    kind: Kind
    tile: int
    last: int
    whole: bool
    along: tuple[bool, bool]
    at_once: tuple[bool, bool]
    out_along: bool
    splits: int
    cells: int
    blocks: Size
    magic: tuple[int, ...]

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return 256 if self.kind is Kind.THREADS else 2 * self.tile

    @property
    def macro(self) -> str:
        """The arguments of `product_plan`."""
        flags = (self.whole, *self.along, *self.at_once, self.out_along, self.splits > 1)
        numbers = (self.kind.value, self.tile, self.last, *map(int, flags))
        return ", ".join(map(str, numbers))


def kind_of(dtypes: Sequence[torch.dtype], real: str, capability: tuple[int, int]) -> Kind | None:
    """What multiplies elements of these types; None for integers, which no tile is for."""
    if not all(dtype.is_floating_point for dtype in dtypes):
        return None
    has_cores = capability >= _WITH_TENSOR_CORES and real == "f32" and len(set(dtypes)) == 1
    match dtypes[0]:
        case torch.float16 | torch.bfloat16 if has_cores:
            return Kind.TENSOR_CORES
        case torch.float32 if has_cores and torch.backends.cuda.matmul.fp32_precision == "tf32":
            return Kind.TENSOR_CORES_TF32
        case _:
            return Kind.THREADS


def tile_of(kind: Kind, shape: Shape, real: str) -> int | None:
    """Rows and columns of tiles; None where a product is better computed cell by cell."""
    if shape.terms < LEAST_TERMS or min(shape.rows, shape.columns) < LEAST_SIDE:
        return None
    large, small = _TILES
    is_large = min(shape.rows, shape.columns) > small and real == "f32"
    blocks = shape.matrices * shape.tiles(large) * shape.splits(large)
    side = large if is_large and blocks >= ENOUGH_BLOCKS else small
    return side if shape.instructions(kind, side) * shape.step < BY_CELLS else None


class Layout(NamedTuple):
    """What a plan depends on of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begins_aligned: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """The layout of a tensor."""
        return cls(tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr() % _ACCESS == 0)

    def is_consecutive(self, dim: int | None) -> bool:
        """Whether elements follow each other along a dim."""
        return dim is not None and self.strides[dim] == 1

    def is_aligned(self, dim: int | None) -> bool:
        """Whether neighbours along a dim begin at multiples of 16 bytes, wherever others are."""
        size = self.dtype.itemsize
        others = (
            stride
            for at, (count, stride) in enumerate(zip(self.shape, self.strides, strict=True))
            if at != dim and count > 1
        )
        return self.begins_aligned and all(stride * size % _ACCESS == 0 for stride in others)


def plan(
    product: Product,
    operands: Mapping[str, torch.Tensor],
    axes: tuple[int, ...],
    real: str,
    capability: tuple[int, int],
) -> Plan | None:
    """How a product is launched; None where its kernel is to run cell by cell instead.

    `axes` are the extents of the batch, the rows, the columns and the terms, then the steps of
    terms; `real` is the type in which the call computes.
    """
    names = (product.left.tensor, product.right.tensor, product.written)
    left, right, result = (Layout.of(operands[name]) for name in names)
    kind = kind_of((left.dtype, right.dtype), real, capability)
    limits = (LEAST_TERMS, LEAST_SIDE, BY_CELLS, ENOUGH_BLOCKS, LEAST_SHARE)
    return None if kind is None else _plan(product, left, right, result, axes, real, kind, limits)


@functools.lru_cache(maxsize=1024)
def _plan(
    product: Product,
    left: Layout,
    right: Layout,
    result: Layout,
    axes: tuple[int, ...],
    real: str,
    kind: Kind,
    limits: tuple[float, ...],
) -> Plan | None:
    """The same; `limits` tell plans by other limits apart, which tests choose by."""
    del limits
    if min(axes) <= 0:  # an extent is a formula, which may be below 0 for no terms
        return None
    groups, rest = [], list(axes)
    for count in product.groups:
        groups.append(rest[:count])
        rest = rest[count:]
    batch, rows, columns, terms = groups
    shape = Shape.of(batch, rows, columns, terms, rest)
    tile = tile_of(kind, shape, real)
    if tile is None:
        return None
    pairs = ((product.left, left), (product.right, right))
    last = _fastest(pairs, terms)
    unit = max(_ACCESS // layout.dtype.itemsize for _, layout in pairs)
    whole = terms[last] % unit == 0
    along = [layout.is_consecutive(factor.terms[last]) for factor, layout in pairs]
    at_once = [
        whole and follows and not factor.decisive[last] and layout.is_aligned(factor.terms[last])
        for (factor, layout), follows in zip(pairs, along, strict=True)
    ]
    row, column = product.result
    out_along = result.is_consecutive(column) or not result.is_consecutive(row)
    splits = min(shape.splits(tile), MOST_BLOCKS[1])
    blocks = (shape.tiles(tile), splits, min(shape.matrices, MOST_BLOCKS[2]))
    if blocks[0] > MOST_BLOCKS[0]:
        return None
    cells = shape.matrices * shape.rows * shape.columns
    divisors = (*rows[1:], *columns[1:], *terms)
    return Plan(
        kind,
        tile,
        last,
        whole,
        (along[0], along[1]),
        (at_once[0], at_once[1]),
        out_along,
        splits,
        cells,
        blocks,
        tuple(map(magic, (*batch[1:], *divisors))),
    )


def _fastest(pairs: Sequence[tuple[Matrix, Layout]], terms: Sequence[int]) -> int:
    """The term along which most factors are consecutive; among equals the last long one."""

    def score(at: int) -> tuple[int, bool, int]:
        found = sum(layout.is_consecutive(factor.terms[at]) for factor, layout in pairs)
        return (found if terms[at] > 1 else 0), terms[at] > 1, at

    return max(range(len(terms)), key=score)


def partial_sums(plan: Plan, real: str, device: torch.device) -> torch.Tensor | None:
    """Where blocks that share the terms of a tile leave their sums; None where none do."""
    if plan.splits == 1:
        return None
    dtype = torch.float64 if real == "f64" else torch.float32
    return torch.empty((plan.splits, plan.cells), dtype=dtype, device=device)
