"""The plan of the shape solver as straight-line Python, messages included.

The function takes the shapes of the inputs (None for an absent one) and the attributes as numbers,
and returns every integer that the kernels need and the shape of everything they write. It works on
symbolic integers as well. Formulas in messages are those of the spec.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Kind, Poly, of_atom
from opgen.emit.names import python_names
from opgen.emit.polynomial import python_condition, python_text
from opgen.emit.python_text import Group, Node, call, dict_of, layout, quoted, strings, tuple_of
from opgen.ir.arrangement import Arrangement
from opgen.ir.convolution import Convolution
from opgen.ir.loops import Operand, Program
from opgen.ir.matrix_product import MatrixProduct
from opgen.ir.notation import BATCH, Attribute, AttributeType, Dim, Op, Tensor
from opgen.ir.shapes import (
    CheckConstraint,
    CheckDim,
    CheckExtent,
    DefineSize,
    ShapePlan,
    SolveSize,
    Step,
    solve_order,
)


def shape_plan(op: Op, program: Program, more: Collection[Operand] = ()) -> ShapePlan:
    """The plan of an op, with the batch as one more size.

    A temporary that the program does without has no extent to check, but for those of `more`.
    """
    kept = {operand.name for operand in (*program.operands, *more)}
    temporaries = [tensor for tensor in op.temporaries if tensor.name in kept]
    batched = any(tensor.batched for tensor in op.inputs)
    sizes = (BATCH, *op.sizes) if batched and BATCH not in op.sizes else op.sizes
    return solve_order(
        op.inputs, op.attributes, sizes, op.lets, op.constraints, op.outputs, temporaries
    )


def shape_function(
    op: Op,
    program: Program,
    name: str,
    convolution: Convolution | None = None,
    product: MatrixProduct | None = None,
    more: Sequence[Operand] = (),
) -> str:
    """The text of the shape function of an op; temporaries of a GPU alone are `more`."""
    return _Shapes(op, program, convolution, product, more).text(name)


@dataclass
class _Shapes:
    op: Op
    program: Program
    convolution: Convolution | None = None
    product: MatrixProduct | None = None
    more: Sequence[Operand] = ()
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
        parameters = [
            f"{self.tensors[tensor.name]}: Shape" + ("" if tensor.default is None else " | None")
            for tensor in op.inputs
        ]
        parameters += [f"{self.names[each.name]}: {_annotation(each)}" for each in op.attributes]
        for step in shape_plan(op, self.program, self.more).steps:
            self._step(step)
        signature = layout(call(name, parameters), before="def ", after=" -> Shapes:")
        doc = f'    """Sizes and shapes of a call of `{op.name}`."""'
        body = "\n".join((*self.lines, layout(self._result(), "    ", "return ")))
        return f"{signature}\n{doc}\n{body}\n"

    # ------------------------------------------------------------ steps
    def _step(self, step: Step) -> None:
        match step:
            case SolveSize():
                self._solve(step)
            case DefineSize(let=let, is_extent=is_extent):
                formula = let.text or str(let.value)
                self.lines.append(
                    layout(self._formula_of(let.value), "    ", f"{self.names[let.name]} = ")
                )
                self.origins[let.name] = f"{let.name} = {formula}"
                if is_extent:
                    self._line(f"if checks.fails({self.names[let.name]} >= 0):")
                    arguments = (quoted(let.name), self.names[let.name], quoted(formula))
                    self._fail("negative", arguments, let.value)
            case CheckDim(tensor=tensor, axis=axis, extent=extent):
                self._check_dim(tensor, axis, extent)
            case CheckExtent(tensor=tensor, axis=axis, extent=extent):
                value = self._poly(extent)
                self._line(f"if checks.fails({value} >= 0):")
                where = dim_name(self._tensor(tensor), axis)
                formula = self._formula(tensor, axis)
                self._fail("negative", (quoted(where), value, quoted(formula)), extent)
            case CheckConstraint(constraint=constraint):
                self._line(f"if checks.fails({self._condition(constraint.condition)}):")
                text = constraint.text or str(constraint.condition)
                # The text of a launch check is a sentence, that of a `where` a condition.
                function = "unproved" if constraint.derived else "violated"
                self._fail(function, (quoted(text),), constraint.condition.value)
            case unexpected:
                assert_never(unexpected)

    def _solve(self, step: SolveSize) -> None:
        where, found = self._place(step.tensor, step.axis)
        target = self.names[step.size]
        if step.factor == 1 and step.rest == 0:
            self._line(f"{target} = {found}")
        else:
            solution = call(
                "checks.solved",
                (
                    quoted(self.op.name),
                    quoted(where),
                    found,
                    self._poly(step.factor),
                    self._poly(step.rest),
                    quoted(step.size),
                    quoted(self._formula(step.tensor, step.axis)),
                    self._known(step.factor, step.rest),
                ),
            )
            self.lines.append(layout(solution, "    ", f"{target} = "))
        self.origins[step.size] = where

    def _check_dim(self, name: str, axis: int, extent: Poly) -> None:
        where, found = self._place(name, axis)
        tensor = self._tensor(name)
        expected = self._poly(extent)
        optional = f"{self.tensors[name]} is not None and " if tensor.default is not None else ""
        self._line(f"if {optional}checks.fails({found} == {expected}):")
        arguments = (quoted(where), found, expected, quoted(self._formula(name, axis)))
        self._fail("mismatch", arguments, extent)

    def _fail(self, function: str, arguments: tuple[str, ...], value: Poly) -> None:
        error = call(f"checks.{function}", (quoted(self.op.name), *arguments, self._known(value)))
        self.lines.append(layout(error, " " * 8, "raise "))

    def _line(self, line: str) -> None:
        self.lines.append(f"    {line}")

    def _result(self) -> Group:
        op = self.op
        integers = {each: self._symbol(each) for each in self.program.integers}
        optional = {
            tensor.name: self._shape(tensor.dims)
            for tensor in op.inputs
            if tensor.default is not None
        }
        temporaries = [
            tuple_of([self._poly(extent) for extent in operand.extents])
            for operand in (*self.program.operands, *self.more)
            if operand.widened
        ]
        return call(
            "Shapes",
            (),
            integers=dict_of(integers),
            optional=dict_of(optional),
            outputs=tuple_of([self._shape(tensor.dims) for tensor in op.outputs]),
            temporaries=tuple_of(temporaries),
            geometry=self._geometry(),
            parts=self._parts(),
            matrices=self._matrices(),
        )

    def _geometry(self) -> Group | None:
        found = self.convolution
        if found is None:
            return None
        values = ((found.groups,), found.stride, found.padding, found.dilation)
        return tuple_of([tuple_of([self._poly(value) for value in each]) for each in values])

    def _parts(self) -> Group | None:
        """The parts of the dims of tensors that a convolution takes in another order."""
        if self.convolution is None or not self.convolution.arrangements:
            return None
        arrangements = self.convolution.arrangements
        return dict_of({name: self._extents(each) for name, each in arrangements.items()})

    def _matrices(self) -> Group | None:
        """The parts of the dims of the tensors of a product of matrices."""
        if self.product is None:
            return None
        return tuple_of([self._extents(each.arrangement) for each in self.product.operands])

    def _extents(self, arrangement: Arrangement) -> Group:
        dims = [[self._poly(part) for part in dim] for dim in arrangement.parts]
        return tuple_of([tuple_of(dim) for dim in dims])

    # ------------------------------------------------------------ pieces
    def _tensor(self, name: str) -> Tensor:
        tensor = self.op.tensor(name)
        assert isinstance(tensor, Tensor)
        return tensor

    def _shape(self, dims: tuple[Dim, ...]) -> Group:
        return tuple_of([self._poly(dim.extent) for dim in dims])

    def _place(self, name: str, axis: int) -> tuple[str, str]:
        """A dim as messages call it, and as the generated function reads it."""
        return dim_name(self._tensor(name), axis), f"{self.tensors[name]}[{axis}]"

    def _formula(self, name: str, axis: int) -> str:
        return dim_text(self._tensor(name).dims[axis])

    def _known(self, *values: Poly) -> Group:
        """What messages say about the symbols of a formula, in the order of declaration."""
        symbols = frozenset[str]().union(*(value.symbols for value in values))
        order = [symbol for a in self.op.attributes for symbol in a.symbols]
        order += [BATCH, *self.op.sizes, *(let.name for let in self.op.lets)]
        return dict_of(
            {
                name: tuple_of((self._shown(name), quoted(self.origins.get(name, ""))))
                for name in dict.fromkeys(order)
                if name in symbols
            }
        )

    def _shown(self, name: str) -> str:
        """The value of a symbol as the caller wrote it: flags and choices are no numbers there."""
        value = self._symbol(name)
        for attribute in self.op.attributes:
            if attribute.name == name and attribute.type is AttributeType.BOOL:
                return f"bool({value})"
            if attribute.name == name and attribute.type is AttributeType.CHOICE:
                return f"{strings(attribute.choices).flat}[{value}]"
        return value

    def _symbol(self, name: str) -> str:
        """A symbol; an element of a tuple attribute is an element of the Python tuple."""
        if name in self.names:
            return self.names[name]
        base, bracket, rest = name.partition("[")
        assert bracket, name
        return f"{self.names[base]}[{rest}"

    def _formula_of(self, value: Poly) -> Node:
        """The formula of a let; a minimum or maximum can be broken over lines."""
        atoms = value.atoms()
        if len(atoms) == 1 and atoms[0].kind in (Kind.MIN, Kind.MAX) and value == of_atom(atoms[0]):
            return call(atoms[0].kind.value, [self._poly(arg) for arg in atoms[0].args])
        return self._poly(value)

    def _poly(self, value: Poly) -> str:
        return python_text(value, self._symbol).text

    def _condition(self, condition: Condition) -> str:
        return python_condition(condition, self._symbol).text


def _annotation(attribute: Attribute) -> str:
    single = "float" if attribute.type is AttributeType.FLOAT else "int"
    return single if attribute.length is None else f"tuple[{single}, ...]"


def dim_name(tensor: Tensor, axis: int) -> str:
    """A dim as messages call it; those of a tensor with leading dims are counted from its end."""
    if not tensor.batched:
        return f"{tensor.name}.shape[{axis}]"
    if axis == 0:
        return f"the batch of {tensor.name}"
    return f"{tensor.name}.shape[{axis - len(tensor.dims)}]"


def dim_text(dim: Dim) -> str:
    """A dim as messages and docstrings show it: `C*r*r` for `(C r r)`."""
    if not dim.parts:
        return str(dim.extent)
    return "*".join(str(part) if len(part.terms) == 1 else f"({part})" for part in dim.parts)
