"""Loop nests: *how* it is computed. The second of the two intermediate representations.

    Program = kernels in order, what they share
    Kernel  = axes in parallel, one execution of the body for each of their points
    Node    = Define | For | Lanes | If | Start | Accumulate | Store | AtomicAdd
    Scalar  = Number | Argument | Integer | Load | Call | Choose | Result
    Test    = Always | Inside | Nonzero | All | Any | Either

Notation's *absent* values do not exist here: `passes.schedule` turned them into tests, so that an
element is loaded only where its index is inside, and a term that is absent is not added.

Indices, bounds and sizes are `Poly`; elements are `Scalar`. A kernel is executed by
`testing.run_loops` and printed by `emit.c` and `emit.cuda`; all three read the meaning from here:

* `For` runs over max(lower) <= name <= min(upper); `If` needs every condition to hold.
* Where a kernel has a `row`, a parallel point is a stretch of consecutive values of one more axis.
  What differs between them stands in `Lanes`, which runs over those within all bounds; each has
  accumulators of its own, and none sees another's.
* `Start` sets an accumulator to the identity of its reducer, or to the stated value.
* `Accumulate` does nothing where `present` fails, except under ASSIGN and MULTIPLY, for which an
  absent term is 0. MAX, MIN, ARGMAX and ARGMIN prefer NaN, then the better value. Among equals
  ARGMAX and ARGMIN keep the term whose `order` is lexicographically least, or, where `order` is
  empty, the one that came first.
* An `Inside` with a `fault` that fails records the fault; the call then raises an IndexError.
* `Load` atoms inside a `Poly` are integer reads; outside of their tensor they are 0, because a
  bound may be evaluated before the condition that makes it meaningful.
* Likewise `a // b` is 0 where b is not positive: a prologue is evaluated in every call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, maximum, poly
from opgen.ir.loop_nodes import (
    Accumulate,
    All,
    Always,
    Any,
    Argument,
    AtomicAdd,
    Call,
    Choose,
    Define,
    Either,
    For,
    If,
    Inside,
    Integer,
    Lanes,
    Load,
    Node,
    Nonzero,
    Number,
    Result,
    Scalar,
    Start,
    Store,
    Test,
    walk,
)
from opgen.ir.notation import DType, Table

if TYPE_CHECKING:
    from opgen.ir.contraction import Contraction
    from opgen.ir.plane import Plane, PlaneSums


__all__ = [
    "Accumulate",
    "All",
    "Always",
    "Any",
    "Argument",
    "AtomicAdd",
    "Axis",
    "Blocks",
    "Call",
    "Choose",
    "Define",
    "Either",
    "Elements",
    "Fault",
    "Finite",
    "Fitting",
    "For",
    "Framed",
    "Guest",
    "If",
    "Inside",
    "Integer",
    "Kernel",
    "Lanes",
    "Load",
    "Move",
    "Node",
    "Nonzero",
    "Number",
    "Operand",
    "Planes",
    "Program",
    "Result",
    "Row",
    "Scalar",
    "Short",
    "Start",
    "Store",
    "Test",
    "Workspace",
    "walk",
]


@dataclass(frozen=True, slots=True)
class Finite:
    """Whether all elements of a tensor are finite; where `holds` is false, whether some is not."""

    tensor: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Blocks:
    """Whether a row of `extent` cells has room for a vector of them, and tensors are consecutive.

    That is so where neighbours in the row are neighbours in all of `tensors`; for an optional one
    also where it is absent. Where `holds` is false, whether that is not so. A kernel that does the
    work of two has `together`: how many points they have; there must be enough for all threads. One
    whose results go through the caches, where another one's may go past them, `is_cached`; one for
    numbers of 16 bits that go two vectors at a time `is_paired`.
    """

    extent: Poly
    tensors: tuple[str, ...]
    holds: bool
    together: tuple[Poly, Poly] | None = None
    is_cached: bool = False
    is_paired: bool = False


@dataclass(frozen=True, slots=True)
class Short:
    """Whether a row of `extent` cells has `most` at most, and vectors have lanes that do nothing.

    Tensors are consecutive: neighbours in the row are neighbours in all of `tensors`. Where `holds`
    is false, whether that is not so.
    """

    extent: Poly
    most: int
    tensors: tuple[str, ...]
    holds: bool


class Elements(Enum):
    """Which elements of two vectors can be picked in any order."""

    COMPUTED = "numbers as they are computed"
    NARROW = "numbers as they are computed, stored in 16 bits"
    STORED = "elements as they are stored, in 16 or 32 bits"


@dataclass(frozen=True, slots=True)
class Planes:
    """Whether the last dims of tensors, as many as stand beside them, lie one behind the other.

    And whether there are instructions that pick `elements`.
    """

    tensors: tuple[tuple[str, int], ...]
    elements: Elements
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Fitting:
    """Whether a row is one of `stretches`, and another one of `extent` cells has `most` at most.

    That is what a kernel needs which does the work of two, and has rows of one of them in memory of
    its own. `together` is how many points these have; there must be enough for all threads. And
    neighbours in a row are neighbours in all of `tensors`, as in `Blocks`.
    """

    stretches: Poly
    extent: Poly
    most: int
    together: tuple[Poly, Poly]
    tensors: tuple[str, ...]
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """A parallel index over `[0, extent)`."""

    name: str
    extent: Poly


WARP = 32
"""Threads of a GPU that run at once: so many neighbouring stretches of a row, the first of them a
multiple of it."""


@dataclass(frozen=True, slots=True)
class Row:
    """An axis that parallel points share out in stretches of at most `width` consecutive values.

    `first` and `last` are the names of the ends of a stretch, both included. No stretch has less
    than `least` values, unless the axis has: the last one has more than `width` instead. The
    points of a stretch along the `within` innermost axes come before those of the next stretch.
    Of a kernel without axes, up to `joined` neighbouring stretches may run as if they were one.
    `around` are the names of the ends of all stretches of a warp, of which this is one.
    """

    axis: Axis
    first: str
    last: str
    width: int
    least: int = 1
    within: int = 0
    joined: int = 1
    around: tuple[str, str] | None = None

    @property
    def stretches(self) -> Poly:
        """How many stretches there are."""
        count = (self.axis.extent + self.width - self.least) // self.width
        return count if self.least == 1 else maximum(count, poly(1))


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a program. A `widened` one is stored in the type it is computed in.

    An `optional` input may be absent: one number then stands for all of its elements. An
    `unrounded` one is stored as float32 where the call computes with numbers of 16 bits: a load
    rounds to these, and so does a store. A `stored` one is in memory though it is read once. A
    `narrow` one is a widened one of integers that 16 bits hold, and has memory for more. A
    `carried` one holds products whose factors totals may be multiplied with instead.
    """

    name: str
    dtype: DType
    extents: tuple[Poly, ...]
    widened: bool = False
    optional: bool = False
    unrounded: bool = False
    stored: bool = False
    narrow: bool = False
    carried: bool = False

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.extents)

    @property
    def is_generic(self) -> bool:
        """Whether its elements are stored in the type of the call."""
        return self.dtype.is_generic and not self.widened


@dataclass(frozen=True, slots=True)
class Move:
    """A copy: `store` for every point of the axes. Its value is a load of the same element type.

    All indices are linear in the axes, so that what a step along one of them adds to an address is
    the same everywhere. It is one only in calls where all `conditions` hold.
    """

    axes: tuple[Axis, ...]
    store: Store
    conditions: tuple[Condition, ...] = ()

    @property
    def load(self) -> Load:
        """What is copied."""
        assert isinstance(self.store.value, Load)
        return self.store.value


@dataclass(frozen=True, slots=True)
class Framed:
    """A copy into frames of zeros: `store` at every point of the axes, or zero where a test fails.

    Its value is a load of the same element type. All indices and what is tested are linear in the
    axes.
    """

    axes: tuple[Axis, ...]
    store: Store
    tests: tuple[Inside, ...]

    @property
    def load(self) -> Load:
        """What is copied."""
        assert isinstance(self.store.value, Load)
        return self.store.value


@dataclass(frozen=True, slots=True)
class Guest:
    """When the points of another kernel may run: within a loop of this one.

    The loop is one of the nodes of the body. At each of its values, `count` points of `kernel` from
    `first` on run before its own body does; `first` is a formula of the index, and of the axes and
    the ends of stretches of this kernel. All points run once where the row is a single stretch.

    A guest with a plane for each cell of a group of the host may be a part of it instead of being
    called: at each cell within the loop, `point` says what the axes of the guest are there.
    """

    kernel: str
    loop: str
    first: Poly
    count: Poly
    point: tuple[tuple[str, Poly], ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One pass over the points of its axes, and of its row if it has one.

    A `group` are several rows of one parallel point: a second axis that is shared out likewise. The
    body has loops over its values, and accumulators are those of one cell of one row. The last
    `beside` axes lie between it and the row: neighbours along these are nearer in memory.

    `local` names unstored operands of constant extents of which every point has its own. Those that
    are `zeroed` hold zeros before a thread's first point, and then what its points have stored: for
    kernels whose points all store into the same cells.

    A kernel with `only` is passed over in calls where that is not so, one with `unless` where that
    is so. With `Blocks` its passes over the row may take several lanes at a time, with `Short` they
    take all of a stretch at once.

    `written` is the tensor it writes, `also` are others; `prologue` holds what is the same for
    every point; `spec` are the spec lines it computes. A `contraction`, `moves`, `framed`, a
    `plane` and `sums` are other ways to do the same. A `guest` is the kernel right before this one,
    which may run within it instead. Where points add to cells, they may share these, unless it is
    known that they do not.
    """

    name: str
    written: str
    axes: tuple[Axis, ...]
    prologue: tuple[Define, ...]
    body: tuple[Node, ...]
    spec: tuple[str, ...] = field(default=(), compare=False)
    row: Row | None = None
    group: Row | None = None
    beside: int = 0
    local: tuple[str, ...] = ()
    zeroed: tuple[str, ...] = ()
    only: Finite | Blocks | Short | Planes | Fitting | None = None
    unless: Planes | Blocks | Fitting | None = None
    contraction: Contraction | None = None
    moves: tuple[Move, ...] = ()
    framed: Framed | None = None
    plane: Plane | None = None
    sums: PlaneSums | None = None
    also: tuple[str, ...] = ()
    guest: Guest | None = None
    shares_cells: bool = True

    @property
    def all_written(self) -> tuple[str, ...]:
        """Every tensor that it writes."""
        return (self.written, *self.also)

    @property
    def stretched(self) -> tuple[Row, ...]:
        """The axes of which a parallel point has several values, slowest first."""
        return tuple(each for each in (self.group, self.row) if each is not None)

    @property
    def is_deterministic(self) -> bool:
        """Whether parallel execution always gives the same bits."""
        return not any(isinstance(node, AtomicAdd) for node in walk(self.body))


@dataclass(frozen=True, slots=True)
class Fault:
    """A data-dependent index that may leave its dimension: what the IndexError speaks of."""

    tensor: str
    axis: int
    access: str


@dataclass(frozen=True, slots=True)
class Workspace:
    """A widened copy of an output that several kernels accumulate into."""

    name: str
    output: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Kernels that come one after the other, from the one at `first` on, as one: its phases.

    Each block has one of the `cells`, which are the first axes of all phases. It is done with a
    phase before it begins the next one, and that reads nothing which another block writes. The
    phases are sums over a box, or store a cell of a tensor for each of its points.
    """

    name: str
    first: int
    count: int
    cells: tuple[Axis, ...]
    phases: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """An op as kernels, executed in order.

    `operands` are inputs, outputs, temporaries, workspaces; `integers` are the symbols of sizes,
    lets and attributes, `numbers` the float attributes, in the order in which a call passes them.
    `unstored` are temporaries whose cells live in accumulators alone, or in a kernel's own memory.
    `chains` are other ways to do what several kernels do, for a GPU.
    """

    name: str
    operands: tuple[Operand, ...]
    tables: tuple[Table, ...]
    integers: tuple[str, ...]
    numbers: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    faults: tuple[Fault, ...]
    workspaces: tuple[Workspace, ...]
    unstored: tuple[Operand, ...] = ()
    chains: tuple[Chain, ...] = ()

    @property
    def is_one_pass(self) -> bool:
        """Whether a kernel may run within another one, which reads the same."""
        return any(kernel.guest is not None for kernel in self.kernels)

    def operand(self, name: str) -> Operand:
        """The operand of that name; KeyError for a table or an unknown name."""
        for operand in (*self.operands, *self.unstored):
            if operand.name == name:
                return operand
        raise KeyError(name)

    def stored(self, name: str) -> Operand | None:
        """The operand in memory of that name; None for a table, or an unstored temporary."""
        return next((each for each in self.operands if each.name == name), None)

    def is_plain(self, name: str) -> bool:
        """Whether it is a stored tensor, there in every call, with elements of the call's type."""
        operand = self.stored(name)
        return operand is not None and operand.is_generic and not operand.optional

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name; KeyError if there is none."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(name)
