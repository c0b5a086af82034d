"""What a generated module tells the runtime about an op.

Besides the classes here there are two facts that the generator proved. Each mapping of `parallel`
names, for the tensors that have it, the axis of a dim along which the op works slice by slice.
Each tuple of `linear` is a set of inputs in which the op is linear together while the others are
held fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opgen.runtime.record import record

Shape = tuple[int, ...]

GENERIC = ("same", "float")
"""Declared element types that stand for the type of the call, one for all such tensors."""


@record
class Input:
    """A declared input. `dims` are as written; `default` makes it optional."""

    name: str
    dims: tuple[str, ...]
    dtype: str = "same"
    default: float | None = None
    nograd: bool = False

    @property
    def batched(self) -> bool:
        """Whether it was declared with leading batch dims."""
        return bool(self.dims) and self.dims[0] == "..."


@record
class Output:
    """A declared output. A `batched` one gets the leading dims of the inputs back."""

    name: str
    dtype: str = "same"
    batched: bool = False


@record
class Sources:
    """The generated C kernels with their entry function."""

    c: str
    entry: str


@record
class Convolution:
    """That an op is a convolution: `target`, one of the names in their roles, is what it computes.

    result[n,(g o),i] = sum(c,k) image[n,(g c), i*s - p + k*d] * weight[(g o),c,k]

    `orders` is for tensors with other dims: they are taken apart as `Shapes.parts` says, and every
    dim of the convolution's tensor is made of the parts with these numbers.
    """

    target: str
    result: str
    image: str
    weight: str
    bias: str | None = None
    orders: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


@record
class MatrixProduct:
    """That an op is a product of matrices; its output is the target.

    target[batch, rows, columns] = bias + sum(terms)
        left[batch, rows, terms] * right[batch, terms, columns]

    `orders` are those of target, left, right and bias: the tensors are taken apart as
    `Shapes.matrices` says, and every dim is made of the parts with these numbers. Without a batch
    there are two dims. A factor that is the same for the whole batch has one of it.
    """

    left: str
    right: str
    orders: tuple[tuple[tuple[int, ...], ...], ...]
    bias: str | None = None


@record
class Temporary:
    """A tensor between statements; the workspace of an output if it names one.

    Kernels of the CPU may have some that those of a GPU have no use for, and the other way round.
    """

    name: str
    dtype: str = "same"
    workspace_of: str | None = None
    cpu_only: bool = False
    gpu_only: bool = False


@record
class Attribute:
    """A declared attribute; `type` is int, float, bool, choice or size."""

    name: str
    type: str
    default: int | float | bool | str | tuple[int, ...] | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None


@record
class Matrix:
    """One factor of a product of matrices, and how its elements lie in memory.

    The dims in which elements follow each other along the last of its rows or columns, and along
    each term; and for each term whether it decides about which elements are present.
    """

    tensor: str
    along: int | None
    terms: tuple[int | None, ...]
    decisive: tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A kernel as a product of matrices, see `opgen.runtime.cuda_tiles`.

    `groups` are the numbers of axes of the batch, the rows, the columns and the terms, `result` the
    dims of the tensor that is `written` along the last row and the last column.
    """

    kernel: str
    macro: str
    source: str
    tensors: tuple[str, ...]
    integers: tuple[str, ...]
    numbers: tuple[str, ...]
    groups: tuple[int, int, int, int]
    left: Matrix
    right: Matrix
    written: str
    result: tuple[int | None, int | None]


@record
class Launch:
    """One CUDA kernel and its arguments.

    These are tensors with their strides, then integers, floats, what it divides by, and where a
    fault is recorded.
    """

    kernel: str
    tensors: tuple[str, ...]
    integers: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    faults: bool = False
    # A workspace and its output: nothing is to be done where they are one tensor.
    converts: tuple[str, str] | None = None
    # The macro for the number of neighbouring cells that are one thread's, and the tensors along
    # whose last dim these walk, with the elements from one cell to the next.
    lanes: str | None = None
    # The macro for its rows of cells, and how many values it keeps for a cell, about.
    rows: tuple[str, int] | None = None
    # Of a kernel that may take whole planes: how its macros end, the tensors that it reads planes
    # of, and the one that it writes.
    slab: tuple[str, ...] | None = None
    # Whether neighbours along its rows, and along the axis before these, read elements in common.
    window: bool = False
    # How many axes lie between those of its rows and of its cells.
    beside: int = 0
    teams: bool = False  # whether a team of threads adds up a cell
    walked: Mapping[str, int] = field(default_factory=dict)
    # Of sums that blocks may share: box, if they share the points of a box, across, if threads of a
    # warp are then cells and not points, or serial, if they share turns of a loop; how many of its
    # axes are those of cells (the others are those of the box, or turns of the loop and terms of a
    # turn); how many sums a cell has, and their type: wide, real or i64.
    # Behind what it divides by the kernel takes the points or turns of a block, the number of
    # parts, and where these are. With 0 points or turns it adds up parts.
    sums: tuple[str, int, int, str] | None = None
    # Of a kernel that is read along the last axis and written along others, by tiles: the tensor it
    # writes, how many axes before the last one are the digits of that one's last index, and the
    # macros for the sides of a tile: along these, and along the last axis.
    tile: tuple[str, int, str, str] | None = None
    product: Product | None = None
    # Tensors that sums over a box have beside them: other sums, and a cell for every point.
    also: tuple[str, ...] = ()


@record
class Phase:
    """A part of a chain: the macros for the cells and the rows of a thread, as of a `Launch`."""

    lanes: str | None = None
    rows: str | None = None
    walked: Mapping[str, int] = field(default_factory=dict)


@record
class Chain:
    """A kernel that may be launched in place of `count` others, from the one at `first` on.

    Each block has a cell; the first axes of all phases, so many, are those of `cells`. Behind the
    arguments that a `Launch` has it takes what it divides by: of cells, then of each phase.
    """

    kernel: str
    source: str
    first: int
    count: int
    cells: int
    tensors: tuple[str, ...]
    integers: tuple[str, ...]
    numbers: tuple[str, ...]
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CudaKernels:
    """CUDA source, and how its kernels are launched, in order.

    `extents` gives the axes of each kernel's grid for the integers of a call, in the order of
    `Shapes.integers`, behind them the lengths of the two loops that a team shares. `reach` bounds
    what the index arithmetic of each comes to, for the magnitudes of these integers. Behind those
    of all kernels stand those of their products, in the same order: axes, and the steps of terms;
    then those of the phases of all chains.
    `orders` are the dims, slowest first, of tensors that kernels take with their dims in another
    order: that of their memory.
    """

    source: str
    launches: tuple[Launch, ...]
    extents: Callable[..., tuple[tuple[int, ...], ...]]
    reach: Callable[..., tuple[int, ...]]
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    chains: tuple[Chain, ...] = ()


@record
class Special:
    """What kernels may be made for: values of some integers of a call, in this order.

    `names` are attributes, of which `counts` are left open unless they are 1. The others are sizes:
    `windows` that slide along another size, `factors` of composite dims, `lengths` of rows and
    planes; a last value says which tensors are images in channels-last format. `sources` pairs
    values, None for one that is left open, with C sources, and `cuda` with CUDA kernels.
    """

    names: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    lengths: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    sources: tuple[tuple[tuple[int | None, ...], str], ...] = ()
    cuda: tuple[tuple[tuple[int | None, ...], CudaKernels], ...] = ()

    @property
    def integers(self) -> tuple[str, ...]:
        """All of them, in the order of values."""
        return (*self.names, *self.windows, *self.factors, *self.lengths)


LARGEST_WINDOW = 16
"""The largest window that kernels are made for, however small a call is."""

WIDEST_WINDOW = 32
"""The largest one that kernels for large calls are made for."""

LONGEST_ROW = 64
"""The longest row that kernels are made for; a longer one gains nothing by it, but for gradients of
filters, which take half the time for 112 cells (results take several times as long then)."""


@record
class Fault:
    """What an index that is checked at run time belongs to."""

    tensor: str
    axis: int
    access: str


@record
class Shapes:
    """What a generated shape function returns.

    `integers` are the arguments of the kernels, `optional` the shapes of optional inputs.
    `geometry` is that of a convolution: groups, strides, paddings, dilations; `parts` are the
    extents of the parts of each dim of tensors that have other dims than those of a convolution,
    and `matrices` those of target, left, right and bias of a product of matrices.
    """

    integers: dict[str, int]
    optional: dict[str, Shape]
    outputs: tuple[Shape, ...]
    temporaries: tuple[Shape, ...]
    geometry: tuple[tuple[int, ...], ...] | None = None
    parts: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)
    matrices: tuple[tuple[Shape, ...], ...] = ()


STAGE = "#"
"""What a step of a path begins with that is one of several ops which compute the op before it."""

KEEPING = "+"
"""The same of an op that has temporaries of these names as outputs as well."""

KEPT = "!"
"""The same of a gradient that reads temporaries of the forward pass; their names stand behind."""

JOINT = ","
"""Between the names of inputs whose gradients one op computes, an output for each."""


@record
class Gradient:
    """How the gradient of an input is computed: by the op `op` of the same family.

    `tensors` says what each of its inputs is: `x`, an input of the op that is differentiated, or
    `grad y`, the gradient of one of its outputs. Its attributes are found by name among the
    attributes and sizes of that op.
    """

    op: str
    tensors: tuple[str, ...]
