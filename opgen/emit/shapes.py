"""The plan of the shape solver as straight-line Python, messages included.

The function takes the shapes of the inputs (None for an absent one) and the attributes as numbers,
and returns every integer that the kernels need and the shape of everything they write. It works on
symbolic integers as well. Formulas in messages are those of the spec.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly
from opgen.emit.names import python_names
from opgen.emit.polynomial import python_condition, python_text
from opgen.ir.loops import Program
from opgen.ir.notation import BATCH, AttributeType, Dim, Op, Tensor
from opgen.ir.shapes import (
    CheckConstraint,
    CheckDim,
    DefineSize,
    ShapePlan,
    SolveSize,
    Step,
    solve_order,
)


def shape_plan(op: Op) -> ShapePlan:
    """The plan of an op, with the batch as one more size."""
    batched = any(tensor.batched for tensor in op.inputs)
    sizes = (BATCH, *op.sizes) if batched and BATCH not in op.sizes else op.sizes
    return solve_order(op.inputs, op.attributes, sizes, op.lets, op.constraints, op.outputs)


def shape_function(op: Op, program: Program, cells: tuple[Poly, ...], name: str) -> str:
    """The text of the shape function of an op; `cells` counts the points of each kernel."""
    return _Shapes(op, program, cells).text(name)


@dataclass
class _Shapes:
    op: Op
    program: Program
    cells: tuple[Poly, ...]
    lines: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        op = self.op
        attributes = [attribute.name for attribute in op.attributes]
        sizes = [BATCH, *op.sizes, *(let.name for let in op.lets)]
        # Tensors come last: a size keeps its name where a tensor has the same.
        self.names = python_names(dict.fromkeys((*attributes, *sizes)))
        self.tensors = python_names((tensor.name for tensor in op.inputs), self.names.values())
        parameters = [*self.tensors.values(), *(self.names[each] for each in attributes)]
        for step in shape_plan(op).steps:
            self._step(step)
        body = "\n".join(f"    {line}" for line in (*self.lines, *self._result()))
        doc = f'    """Sizes and shapes of a call of `{op.name}`."""'
        return f"def {name}({', '.join(parameters)}):\n{doc}\n{body}\n"

    # ------------------------------------------------------------ steps
    def _step(self, step: Step) -> None:
        match step:
            case SolveSize():
                self._solve(step)
            case DefineSize(let=let, is_extent=is_extent):
                formula = let.text or str(let.value)
                self._line(f"{self.names[let.name]} = {self._poly(let.value)}")
                self.origins[let.name] = f"{let.name} = {formula}"
                if is_extent:
                    self._line(f"if {self.names[let.name]} < 0:")
                    arguments = f"{let.name!r}, {self.names[let.name]}, {formula!r}"
                    self._fail("negative", arguments, let.value)
            case CheckDim(tensor=tensor, axis=axis, extent=extent):
                self._check_dim(tensor, axis, extent)
            case CheckConstraint(constraint=constraint):
                self._line(f"if not ({self._condition(constraint.condition)}):")
                text = constraint.text or str(constraint.condition)
                # The text of a launch check is a sentence, that of a `where` a condition.
                function = "unproved" if constraint.derived else "violated"
                self._fail(function, f"{text!r}", constraint.condition.value)
            case unexpected:
                assert_never(unexpected)

    def _solve(self, step: SolveSize) -> None:
        where, found = self._place(step.tensor, step.axis)
        target = self.names[step.size]
        if step.factor == 1 and step.rest == 0:
            self._line(f"{target} = {found}")
        else:
            formula = self._formula(step.tensor, step.axis)
            known = self._known(step.factor, step.rest)
            arguments = ", ".join(
                (
                    f"{self.op.name!r}",
                    f"{where!r}",
                    found,
                    self._poly(step.factor),
                    self._poly(step.rest),
                    f"{step.size!r}",
                    f"{formula!r}",
                    known,
                )
            )
            self._line(f"{target} = checks.solved({arguments})")
        self.origins[step.size] = where

    def _check_dim(self, name: str, axis: int, extent: Poly) -> None:
        where, found = self._place(name, axis)
        tensor = self._tensor(name)
        expected = self._poly(extent)
        optional = f"{self.tensors[name]} is not None and " if tensor.default is not None else ""
        self._line(f"if {optional}{found} != {expected}:")
        arguments = f"{where!r}, {found}, {expected}, {self._formula(name, axis)!r}"
        self._fail("mismatch", arguments, extent)

    def _fail(self, function: str, arguments: str, value: Poly) -> None:
        known = self._known(value)
        self._line(f"    raise checks.{function}({self.op.name!r}, {arguments}, {known})")

    def _line(self, line: str) -> None:
        self.lines.append(line)

    def _result(self) -> list[str]:
        op = self.op
        integers = ", ".join(f"{each!r}: {self._symbol(each)}" for each in self.program.integers)
        optional = ", ".join(
            f"{tensor.name!r}: {self._shape(tensor.dims)}"
            for tensor in op.inputs
            if tensor.default is not None
        )
        temporaries = [
            _tuple([self._poly(extent) for extent in operand.extents])
            for operand in self.program.operands
            if operand.widened
        ]
        return [
            "return Shapes(",
            f"    integers={{{integers}}},",
            f"    optional={{{optional}}},",
            f"    outputs={_tuple([self._shape(tensor.dims) for tensor in op.outputs])},",
            f"    temporaries={_tuple(temporaries)},",
            f"    cells={_tuple([self._poly(each) for each in self.cells])},",
            ")",
        ]

    # ------------------------------------------------------------ pieces
    def _tensor(self, name: str) -> Tensor:
        tensor = self.op.tensor(name)
        assert isinstance(tensor, Tensor)
        return tensor

    def _shape(self, dims: tuple[Dim, ...]) -> str:
        return _tuple([self._poly(dim.extent) for dim in dims])

    def _place(self, name: str, axis: int) -> tuple[str, str]:
        """A dim as messages call it, and as the generated function reads it."""
        tensor = self._tensor(name)
        found = f"{self.tensors[name]}[{axis}]"
        if not tensor.batched:
            return f"{name}.shape[{axis}]", found
        if axis == 0:
            return f"the batch of {name}", found
        return f"{name}.shape[{axis - len(tensor.dims)}]", found

    def _formula(self, name: str, axis: int) -> str:
        return dim_text(self._tensor(name).dims[axis])

    def _known(self, *values: Poly) -> str:
        """What messages say about the symbols of a formula, in the order of declaration."""
        symbols = frozenset[str]().union(*(value.symbols for value in values))
        order = [symbol for a in self.op.attributes for symbol in a.symbols]
        order += [BATCH, *self.op.sizes, *(let.name for let in self.op.lets)]
        entries = [
            f"{name!r}: ({self._shown(name)}, {self.origins.get(name, '')!r})"
            for name in dict.fromkeys(order)
            if name in symbols
        ]
        return f"{{{', '.join(entries)}}}"

    def _shown(self, name: str) -> str:
        """The value of a symbol as the caller wrote it: flags and choices are no numbers there."""
        value = self._symbol(name)
        for attribute in self.op.attributes:
            if attribute.name == name and attribute.type is AttributeType.BOOL:
                return f"bool({value})"
            if attribute.name == name and attribute.type is AttributeType.CHOICE:
                return f"{attribute.choices!r}[{value}]"
        return value

    def _symbol(self, name: str) -> str:
        """A symbol; an element of a tuple attribute is an element of the Python tuple."""
        if name in self.names:
            return self.names[name]
        base, bracket, rest = name.partition("[")
        assert bracket, name
        return f"{self.names[base]}[{rest}"

    def _poly(self, value: Poly) -> str:
        return python_text(value, self._symbol).text

    def _condition(self, condition: Condition) -> str:
        return python_condition(condition, self._symbol).text


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)},)" if len(items) == 1 else f"({', '.join(items)})"


def dim_text(dim: Dim) -> str:
    """A dim as messages and docstrings show it: `C*r*r` for `(C r r)`."""
    if not dim.parts:
        return str(dim.extent)
    return "*".join(str(part) if len(part.terms) == 1 else f"({part})" for part in dim.parts)
