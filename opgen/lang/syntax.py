"""The tree the grammar produces: what the user wrote, a span on every node.

    File       = Definition*
    Definition = name, inputs, attributes, outputs, clauses and statements in order
    Expression = Number | Infinity | Truth | Text | NameUse | Subscript | Call | Reduction
               | Unary | Binary | Comparison | Logical

Nothing is resolved here: a name may still turn out to be a size, an attribute or an iterator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opgen.errors import Span

REDUCERS: Final = ("sum", "max", "min", "prod", "mean", "argmax", "argmin")


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier where it stands."""

    text: str
    span: Span


# ---------------------------------------------------------------------------- expressions
@dataclass(frozen=True, slots=True)
class Number:
    """A literal; `value` is an int or a float as it was spelled."""

    value: int | float
    span: Span


@dataclass(frozen=True, slots=True)
class Infinity:
    """`inf`."""

    span: Span


@dataclass(frozen=True, slots=True)
class Truth:
    """`true` or `false`."""

    value: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Text:
    """A string, without its quotes; compared with a choice attribute."""

    value: str
    span: Span


@dataclass(frozen=True, slots=True)
class NameUse:
    """A bare name: size, attribute, alias or iterator."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Composite:
    """`(c i j)` as an index, `(C r r)` as a dim."""

    parts: tuple[Name | Number, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class BatchDims:
    """`...`: the leading batch dims."""

    span: Span


@dataclass(frozen=True, slots=True)
class Subscript:
    """`name[index, ...]`: an access to a tensor or table, or an element of a tuple attribute."""

    name: Name
    indices: tuple[IndexItem, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PlainIndex:
    """An index expression and its boundary suffix, spelled as in the text (`?0`, `?(`, ...)."""

    value: Expression
    boundary: str
    fill: Expression | None
    span: Span


IndexItem = PlainIndex | Composite | BatchDims


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the primitive table, or `select`."""

    function: Name
    arguments: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Domain:
    """An iterator, and its extent if it was written."""

    name: Name
    extent: Expression | None
    span: Span


@dataclass(frozen=True, slots=True)
class Reduction:
    """`sum(c in C, k if k <= c) term`; `position` is the stated index of argmax and argmin."""

    reducer: Name
    domains: tuple[Domain, ...]
    condition: Expression | None
    position: Expression | None
    body: Expression
    head: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Unary:
    """`-x`."""

    operand: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """`+ - * / // % **`."""

    operator: str
    left: Expression
    right: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Comparison:
    """`a <= b < c`: one more operand than operators."""

    operands: tuple[Expression, ...]
    operators: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Logical:
    """`and`, `or` over two or more operands, `not` over one."""

    operator: str
    operands: tuple[Expression, ...]
    span: Span


Expression = (
    Number
    | Infinity
    | Truth
    | Text
    | NameUse
    | Subscript
    | Call
    | Reduction
    | Unary
    | Binary
    | Comparison
    | Logical
)


# ---------------------------------------------------------------------------- signature
DimItem = Expression | Composite | BatchDims


@dataclass(frozen=True, slots=True)
class TensorDeclaration:
    """`[nograd] name: dtype[dims] = default`."""

    name: Name
    dtype: Name | None
    dims: tuple[DimItem, ...]
    default: float | None
    nograd: bool
    span: Span
    default_span: Span | None = None


@dataclass(frozen=True, slots=True)
class AttributeDeclaration:
    """`name: type = default`; several strings are the choices, the first the default."""

    name: Name
    type: Name | None
    length: int | None
    default: int | float | bool | tuple[int | float, ...] | None
    choices: tuple[str, ...]
    span: Span
    default_span: Span | None = None


# ---------------------------------------------------------------------------- clauses
@dataclass(frozen=True, slots=True)
class Where:
    """Conditions every call must meet."""

    conditions: tuple[Expression, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Binding:
    """`name = expression`."""

    name: Name
    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Let:
    """Sizes defined by formulas."""

    bindings: tuple[Binding, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class With:
    """Aliases for the statement that follows."""

    bindings: tuple[Binding, ...]
    span: Span


Table = tuple["int | float | Table", ...]


@dataclass(frozen=True, slots=True)
class Const:
    """A constant table, nested as it was written."""

    name: Name
    values: Table
    span: Span


@dataclass(frozen=True, slots=True)
class Temporaries:
    """`tmp g[H, V]`."""

    tensors: tuple[TensorDeclaration, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class GradientBy:
    """`gradient x by other_op`."""

    input: Name
    op: Name
    span: Span


@dataclass(frozen=True, slots=True)
class Statement:
    """`target = value for ... if ...`; `operator` is `=`, `+=`, `max=` or `min=`."""

    target: Subscript
    operator: str
    value: Expression
    domains: tuple[Domain, ...]
    condition: Expression | None
    span: Span


Clause = Where | Let | With | Const | Temporaries | GradientBy | Statement


@dataclass(frozen=True, slots=True)
class Definition:
    """One op as written. Names in `lost` are defined by clauses that could not be parsed."""

    name: Name
    doc: str
    inputs: tuple[TensorDeclaration, ...]
    attributes: tuple[AttributeDeclaration, ...]
    outputs: tuple[TensorDeclaration, ...]
    clauses: tuple[Clause, ...]
    span: Span
    damaged: bool = False
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class File:
    """All ops of a file."""

    definitions: tuple[Definition, ...]
