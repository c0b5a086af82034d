"""Index notation: *what* is computed. One of the two intermediate representations.

    Op        = name, signature, lets, constraints, statements
    Statement = for every point of the iterators' box where all guards hold:
                    target[indices]  reducer=  body
    Access    = tensor[Index, ...]            Index = polynomial and a boundary mode
    Expr      = Constant | Parameter | Value | Read | Apply

A statement is a *relation* between the points of a box and the cells of tensors. Forward, tangent
and adjoint of any order are the same relation seen from another access, which is why a boundary
mode may stand on a write as well as on a read: reading with a zero outside and dropping writes
outside are transposes of each other, and so are a clamped read and a clamped accumulating write.

What the language adds on top (composite dims, nested reductions, aliases, mean, argmax with a
stated index) is lowered into this form by `lang.check`; `ir.show` prints it back as spec text.

Meaning, defined by `ir.reference` and nowhere else:

* A tensor starts as the identity of its reducer (0 for `=` and `+=`, 1 for prod, -inf for max, inf
  for min, -1 for argmax and argmin) and its statements are executed in order.
* A read whose index leaves the tensor is *absent* under ZERO: a product with an absent factor is
  absent, a sum ignores absent terms, max, min and argmax skip an absent body; everywhere else
  absent is the value 0. Under FILL it is the fill value; CLAMP, REFLECT, SYMMETRIC and WRAP move
  the index.
* A write outside under DROP does nothing. Under NONE every access was proved inside or is covered
  by a launch check in `Op.constraints`; data-dependent indices without a mode are checked at run
  time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator as Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly
from opgen.errors import Span


# ---------------------------------------------------------------------------- types
class DType(Enum):
    """Element type of a declared tensor; the first three are classes that a call makes concrete."""

    SAME = "same"  # undeclared: one numeric type shared by all such tensors of the op
    FLOAT = "float"  # like SAME, but the op needs a floating type
    INT = "int"  # i32 or i64, each tensor for itself
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    U8 = "u8"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    BOOL = "bool"

    @property
    def is_integer(self) -> bool:
        """Whether tensors of this type can index and cannot be differentiated."""
        return self in _INTEGERS

    @property
    def is_generic(self) -> bool:
        """Whether a call makes it concrete, in the same way for all tensors of such types."""
        return self in _GENERIC


_GENERIC = frozenset({DType.SAME, DType.FLOAT})
_INTEGERS = frozenset({DType.INT, DType.U8, DType.I8, DType.I16, DType.I32, DType.I64, DType.BOOL})


class AttributeType(Enum):
    """Type of an attribute. SIZE is an extent: at least 0 and never specialised on."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"  # 0 or 1 in polynomials
    CHOICE = "choice"  # a string from `choices`; its position in polynomials
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A named value given at the call, not a tensor.

    An attribute with `length` n is a tuple; its elements are the symbols `name[0]` .. `name[n-1]`
    in polynomials and parameters, and one number given at the call stands for all of them.
    """

    name: str
    type: AttributeType
    default: int | float | bool | str | tuple[int, ...] | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols it stands for in polynomials."""
        if self.length is None:
            return (self.name,)
        return tuple(f"{self.name}[{i}]" for i in range(self.length))


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension: its extent, and its factors where it was declared composite, `(C r r)`."""

    extent: Poly
    parts: tuple[Poly, ...] = ()


BATCH = "..."
"""Name of the size that stands for all leading batch dims of an op, flattened into one."""

BATCH_ITERATOR = "...i"
"""Name of the iterator over the batch; both are spelled `...` in a spec."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A declared tensor. `default` makes an input optional: absent means filled with that value.

    A tensor declared with a leading `...` has the symbol `BATCH` as the extent of its first dim.
    `nograd` inputs get no gradient. A temporary that is `stored` is a tensor of its own, where
    others may be no more than a number for each cell. Of one that is `carried`, sums up to a cell
    may be multiplied with its factors as they grow, see `passes.carried_totals`.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: DType = DType.SAME
    default: float | None = None
    nograd: bool = False
    stored: bool = False
    carried: bool = False

    @property
    def batched(self) -> bool:
        """Whether it was declared with leading batch dims."""
        return bool(self.dims) and self.dims[0].extent.symbol == BATCH


@dataclass(frozen=True, slots=True)
class Table:
    """A constant table of the spec, `const k = [1, 2, 1]`; `values` in row-major order."""

    name: str
    shape: tuple[int, ...]
    values: tuple[int | float, ...]

    @property
    def integer(self) -> bool:
        """Whether it can be part of an index."""
        return all(isinstance(value, int) for value in self.values)


# ---------------------------------------------------------------------------- accesses
class Boundary(Enum):
    """What an index outside its dimension means."""

    NONE = ""
    ZERO = "?0"  # reads: structural zero
    FILL = "?("  # reads: a stated value
    DROP = "?drop"  # writes: nothing happens
    CLAMP = "?clamp"  # nearest cell
    REFLECT = "?reflect"  # mirrored, edge cell not repeated; index in [-(N-1), 2(N-1)]
    SYMMETRIC = "?symmetric"  # mirrored, edge cell repeated; index in [-N, 2N-1]
    WRAP = "?wrap"  # modulo


@dataclass(frozen=True, slots=True)
class Index:
    """One index of an access."""

    value: Poly
    boundary: Boundary = Boundary.NONE
    fill: float | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Access:
    """A cell of a tensor as a function of the iterators."""

    tensor: str
    indices: tuple[Index, ...]
    span: Span | None = field(default=None, compare=False)


# ---------------------------------------------------------------------------- expressions
@dataclass(frozen=True, slots=True)
class Constant:
    """A literal number; int stays int."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Parameter:
    """A float attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class Value:
    """An integer polynomial over sizes, attributes and iterators used as a number."""

    value: Poly


@dataclass(frozen=True, slots=True)
class Read:
    """The element at an access."""

    access: Access


@dataclass(frozen=True, slots=True)
class Apply:
    """A row of the primitive table applied to arguments; see `ir.primitives`."""

    primitive: str
    arguments: tuple[Expr, ...]


Expr = Constant | Parameter | Value | Read | Apply


# ---------------------------------------------------------------------------- statements
class Reducer(Enum):
    """How a body joins the cell it is written to. ASSIGN: each cell is written at most once."""

    ASSIGN = "="
    ADD = "sum"
    MULTIPLY = "prod"
    MAX = "max"
    MIN = "min"
    ARGMAX = "argmax"
    ARGMIN = "argmin"

    @property
    def is_argument(self) -> bool:
        """Whether the result is a stated index instead of the body's value."""
        return self in (Reducer.ARGMAX, Reducer.ARGMIN)


@dataclass(frozen=True, slots=True)
class Iterator:
    """An integer that runs over `[0, extent)`; extents depend on sizes and attributes only."""

    name: str
    extent: Poly


@dataclass(frozen=True, slots=True)
class Buckets:
    """Two temporaries of integers: the points of all cells, cell by cell, and where those of each
    end among them. See `passes.buckets`."""

    order: str
    ends: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One relation; see the module docstring.

    `iterators` are in declared order, those of the left-hand side first: "first in iteration
    order" (ties of max, argmax) means the lexicographic order of this tuple. `position` is the
    stated index of argmax and argmin. `is_exclusive` tells `=`, also that of a reduction, from
    `+=`: what the checker proved of it, no part of what the statement computes. `is_scattered` asks
    for loops over its points, each of which adds to its cell, where cells could enumerate theirs.
    `buckets` are temporaries that hold the points of each cell, which then goes through these.
    """

    target: Access
    reducer: Reducer
    iterators: tuple[Iterator, ...]
    guards: tuple[Condition, ...]
    body: Expr
    position: Poly | None = None
    span: Span | None = field(default=None, compare=False)
    is_exclusive: bool = field(default=False, compare=False)
    is_scattered: bool = field(default=False, metadata={"how": True})
    buckets: Buckets | None = field(default=None, metadata={"how": True})


# ---------------------------------------------------------------------------- ops
@dataclass(frozen=True, slots=True)
class Let:
    """A size defined by a formula; `text` is the formula as the user wrote it."""

    name: str
    value: Poly
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on sizes and attributes that every call must meet.

    `text` is what the user wrote, or, for a launch check that a proof left open, what it protects.
    `derived` tells the two apart; a derived one is not printed as spec text.
    """

    condition: Condition
    text: str = field(default="", compare=False)
    derived: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Gradient:
    """A hand-written gradient: `op` of the same file computes the gradient of `input`."""

    input: str
    op: str


@dataclass(frozen=True, slots=True)
class Op:
    """A checked op. `sizes` are the symbols solved from input shapes, in order of appearance."""

    name: str
    inputs: tuple[Tensor, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Tensor, ...]
    sizes: tuple[str, ...]
    lets: tuple[Let, ...]
    constraints: tuple[Constraint, ...]
    tables: tuple[Table, ...]
    temporaries: tuple[Tensor, ...]
    statements: tuple[Statement, ...]
    gradients: tuple[Gradient, ...] = ()
    doc: str = ""

    def tensor(self, name: str) -> Tensor | Table:
        """The input, output, temporary or table of that name; KeyError if there is none."""
        everything: tuple[Tensor | Table, ...] = (
            *self.inputs,
            *self.outputs,
            *self.temporaries,
            *self.tables,
        )
        for tensor in everything:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def attribute(self, name: str) -> Attribute:
        """The attribute of that name; KeyError if there is none."""
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute
        raise KeyError(name)

    def extents(self, name: str) -> tuple[Poly, ...]:
        """The extents of a tensor or table."""
        match self.tensor(name):
            case Tensor(dims=dims):
                return tuple(dim.extent for dim in dims)
            case Table(shape=shape):
                return tuple(poly(n) for n in shape)
            case unexpected:
                assert_never(unexpected)


# ---------------------------------------------------------------------------- traversal
def map_expression(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild top down: where `change` returns a node, take it and do not descend."""
    changed = change(expr)
    if changed is not None:
        return changed
    if isinstance(expr, Apply):
        return Apply(expr.primitive, tuple(map_expression(arg, change) for arg in expr.arguments))
    return expr


def reads(expr: Expr) -> Iterable[Access]:
    """Every access read by an expression, left to right; repeats included."""
    waiting: list[Expr] = [expr]
    while waiting:
        match waiting.pop():
            case Read(access=access):
                yield access
            case Apply(arguments=arguments):
                waiting.extend(reversed(arguments))
            case Constant() | Parameter() | Value():
                pass
            case unexpected:
                assert_never(unexpected)


def substitute_access(access: Access, values: dict[str, Poly]) -> Access:
    """The access with symbols replaced."""
    return replace(
        access,
        indices=tuple(replace(i, value=i.value.substitute(values)) for i in access.indices),
    )


def substitute_expression(expr: Expr, values: dict[str, Poly]) -> Expr:
    """The expression with symbols replaced in every index and value."""

    def change(node: Expr) -> Expr | None:
        match node:
            case Read(access=access):
                return Read(substitute_access(access, values))
            case Value(value=value):
                return Value(value.substitute(values))
            case _:
                return None

    return map_expression(expr, change)
