"""The types in which a kernel computes.

A call computes with one kind of real number, `real`: double if any of its tensors is, else float;
and with 64-bit integers. Tensors of the type that a call chooses, `T`, are computed in `wide`,
which is `real` or a 64-bit integer. All three stay names in the generated source, so one source
serves every element type.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from opgen.ir.loops import (
    Accumulate,
    Argument,
    AtomicAdd,
    Call,
    Choose,
    Integer,
    Kernel,
    Load,
    Node,
    Number,
    Program,
    Result,
    Scalar,
    Store,
    walk,
)
from opgen.ir.notation import DType, Table
from opgen.ir.primitives import INTEGER_TAG, PRIMITIVES, Kind


class Type(Enum):
    """What a scalar is computed in; the value is its name in generated source."""

    INTEGER = "int64_t"
    WIDE = "wide"
    REAL = "real"

    @property
    def tag(self) -> str:
        """What the names of helper functions end in."""
        return INTEGER_TAG if self is Type.INTEGER else self.value

    @property
    def of_long_sums(self) -> str:
        """The C name of what has room for sums of any number of such scalars."""
        match self:
            case Type.INTEGER:
                return "int64_t"
            case Type.WIDE:
                return "wide_sum"
            case Type.REAL:
                return "f64"
            case unexpected:
                assert_never(unexpected)


class Types:
    """The type of every scalar of a program."""

    def __init__(self, program: Program) -> None:
        self._tensors: dict[str, DType] = {
            operand.name: operand.dtype for operand in (*program.operands, *program.unstored)
        }
        self._tables: dict[str, Table] = {table.name: table for table in program.tables}
        self._body: tuple[Node, ...] | None = None
        self._terms: dict[str, list[Accumulate]] = {}
        """What joins each accumulator of the body that was looked at last."""
        self.is_floating = False  # while it is found out, T may be anything
        self.is_floating = DType.FLOAT in self._tensors.values() or any(
            self._writes_real(kernel) for kernel in program.kernels
        )

    def _writes_real(self, kernel: Kernel) -> bool:
        """Whether a real value goes into a tensor of type T, which then cannot be an integer."""
        terms = [
            node
            for node in walk(kernel.body)
            if isinstance(node, Accumulate | Store | AtomicAdd)
            and not (isinstance(node, Accumulate) and node.reducer.is_argument)
        ]
        return any(self._tensors[name].is_generic for name in kernel.all_written) and any(
            self.of(node.value) is Type.REAL for node in terms
        )

    def of(self, value: Scalar) -> Type:
        """The type of a scalar; `Result` is left to whoever declares the accumulator."""
        match value:
            case Number(value=number):
                return Type.INTEGER if isinstance(number, int) else Type.REAL
            case Argument():
                return Type.REAL
            case Integer():
                return Type.INTEGER
            case Result(tensor=name):
                return Type.INTEGER if name is None else self.of_tensor(name)
            case Load(tensor=name):
                return self.of_tensor(name)
            case Call(primitive=name, arguments=arguments):
                row = PRIMITIVES[name]
                if row.kind is Kind.BOOLEAN:
                    return Type.INTEGER
                return Type.REAL if row.needs_float else self.joined(*map(self.of, arguments))
            case Choose(then=then, otherwise=otherwise):
                return self.joined(self.of(then), self.of(otherwise))
            case unexpected:
                assert_never(unexpected)

    def of_tensor(self, name: str) -> Type:
        """The type in which the elements of a tensor or table are computed."""
        if name in self._tables:
            return Type.INTEGER if self._tables[name].integer else Type.REAL
        dtype = self._tensors[name]
        if dtype.is_generic:
            return Type.REAL if self.is_floating else Type.WIDE
        return Type.INTEGER if dtype.is_integer else Type.REAL

    @staticmethod
    def joined(*types: Type) -> Type:
        """The type of an operation on operands of these types."""
        if Type.REAL in types:
            return Type.REAL
        return Type.WIDE if Type.WIDE in types else Type.INTEGER

    def of_accumulator(self, tensor: str, accumulator: str, body: tuple[Node, ...]) -> Type:
        """The type of an accumulator for a tensor: that of its terms for argmax and argmin."""
        if self._body is not body:  # a kernel of hundreds of accumulators is asked for each
            self._body, self._terms = body, {}
            for node in walk(body):
                if isinstance(node, Accumulate):
                    self._terms.setdefault(node.accumulator, []).append(node)
        terms = self._terms.get(accumulator, [])
        types = [self.of(term.value) for term in terms]
        if any(term.reducer.is_argument for term in terms):
            return self.joined(*types)
        return self.joined(self.of_tensor(tensor), *types)
