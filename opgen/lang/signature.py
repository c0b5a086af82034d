"""The signature and the clauses of an op: names, dims, attributes, lets, constraints, tables."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from opgen.algebra.poly import Poly, poly, symbol
from opgen.errors import Diagnostic, Source, Span
from opgen.ir.notation import (
    BATCH,
    Attribute,
    Constraint,
    Dim,
    DType,
    Let,
    Table,
    Tensor,
)
from opgen.lang import syntax
from opgen.lang.attributes import read_attribute
from opgen.lang.conditions import conditions
from opgen.lang.environment import Divisor, Environment, Fault, closest
from opgen.lang.indices import refuse_loads, size_polynomial
from opgen.lang.limits import bounded, expandable
from opgen.lang.ranges import free_names
from opgen.lang.scope import Scope

_DTYPES: Final = {dtype.value: dtype for dtype in DType if dtype is not DType.SAME}
_TEMPORARY_DTYPES: Final = (DType.SAME, DType.FLOAT, DType.INT, DType.I64)


@dataclass
class Signature:
    """Everything of an op but its statements, filled in reading order.

    `faults` collects what was wrong; reading goes on after a fault so that one run shows them all.
    """

    source: Source
    environment: Environment = field(default_factory=Environment)
    inputs: list[Tensor] = field(default_factory=list)
    attributes: list[Attribute] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    lets: list[Let] = field(default_factory=list)
    constraints: list[Constraint] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    temporaries: list[Tensor] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)

    def read(self, definition: syntax.Definition) -> None:
        """Read a definition: names first, since dims, lets and conditions refer to each other."""
        self.environment.source, self.environment.definition = self.source, definition
        clauses = definition.clauses
        bindings = [b for c in clauses if isinstance(c, syntax.Let) for b in c.bindings]
        self.environment.later.update((b.name.text, b.name.span) for b in bindings)
        for attribute in definition.attributes:
            with self._collecting(attribute.name.text):
                self._attribute(attribute)
        for declaration in definition.inputs:
            with self._collecting():
                self._sizes(declaration, {b.name.text for b in bindings})
        for binding in bindings:
            with self._collecting():
                self._let(binding)
        for declaration in definition.inputs:
            with self._collecting(declaration.name.text):
                self.inputs.append(self._tensor(declaration, "input"))
        for declaration in definition.outputs:
            with self._collecting(declaration.name.text):
                self.outputs.append(self._tensor(declaration, "output"))
        for clause in clauses:
            match clause:
                case syntax.Const():
                    with self._collecting(clause.name.text):
                        self._const(clause)
                case syntax.Where(conditions=wanted):
                    for condition in wanted:
                        with self._collecting():
                            self._where(condition)
                case syntax.Temporaries(tensors=tensors):
                    for declaration in tensors:
                        with self._collecting(declaration.name.text):
                            self.temporaries.append(self._tensor(declaration, "temporary"))
                case _:
                    pass

    @contextmanager
    def _collecting(self, *names: str) -> Generator[None, None, None]:
        """Collects a fault of the clause that defines these names."""
        try:
            yield
        except Fault as fault:
            self.environment.failed.update(names)
            if not fault.consequence:
                self.faults.append(fault.diagnostic)

    def _attribute(self, declaration: syntax.AttributeDeclaration) -> None:
        name = declaration.name
        self.environment.declare(name.text, name.span, "attribute")
        attribute = read_attribute(declaration, self.source)
        self.environment.attributes[name.text] = attribute
        self.attributes.append(attribute)

    # ------------------------------------------------------------ tensors
    def _sizes(self, declaration: syntax.TensorDeclaration, lets: set[str]) -> None:
        environment = self.environment
        for dim in declaration.dims:
            match dim:
                case syntax.Composite(parts=parts):
                    names = [(p.text, p.span) for p in parts if isinstance(p, syntax.Name)]
                case syntax.BatchDims(span=span):
                    names = [(BATCH, span)]
                case _:
                    names = list(free_names(dim, environment))
            for name, span in names:
                if environment.is_known(name) or name in lets:
                    continue
                if name != BATCH:
                    environment.declare(name, span, "size")
                environment.sizes[name] = span

    def _tensor(self, declaration: syntax.TensorDeclaration, role: str) -> Tensor:
        environment, name = self.environment, declaration.name
        dims = tuple(
            self._dim(dim, axis, declaration, role) for axis, dim in enumerate(declaration.dims)
        )
        dtype = DType.SAME
        if declaration.dtype is not None:
            spelled = declaration.dtype.text
            if spelled not in _DTYPES:
                raise _unknown_dtype(declaration.dtype, name)
            dtype = _DTYPES[spelled]
            if role == "temporary" and dtype not in _TEMPORARY_DTYPES:
                kind = "int" if dtype.is_integer else "float"
                raise Fault(
                    "unexpected-dtype",
                    f"'{name.text}' is a temporary, and temporaries have the type of the "
                    "computation",
                    declaration.dtype.span,
                    advice=f"declare it {kind}, or leave the type out",
                    replacement=(declaration.dtype.span, kind),
                )
        if declaration.default is not None:
            self._refuse_default(declaration, declaration.default, dtype, role)
        if role != "input" and declaration.nograd:
            raise Fault(
                "unexpected-nograd",
                f"`nograd` marks inputs, and '{name.text}' is none",
                Span(declaration.span.start, declaration.span.start + len("nograd")),
                notes=("a gradient is taken with respect to inputs",),
                advice="remove `nograd`, or write it before an input",
                replacement=(Span(declaration.span.start, name.span.start), ""),
            )
        tensor = Tensor(name.text, dims, dtype, declaration.default, declaration.nograd)
        if name.text in environment.sizes:
            # `w[...]` is always the tensor, but one name for a size and a tensor misleads.
            raise Fault(
                "duplicate-name",
                f"'{name.text}' names a size and a tensor",
                (name.span, f"{role} '{name.text}'"),
                (environment.sizes[name.text], "size here"),
                advice="give one of them another name",
            )
        environment.declare(name.text, name.span, role)
        environment.tensors[name.text] = tensor
        return tensor

    def _refuse_default(
        self, declaration: syntax.TensorDeclaration, default: float, dtype: DType, role: str
    ) -> None:
        name, span = declaration.name.text, declaration.default_span or declaration.span
        if role != "input":
            before = self.source.text.rindex("=", 0, span.start)
            start = len(self.source.text[:before].rstrip())
            raise Fault(
                "unexpected-default",
                f"'{name}' is no input, and only inputs have a default",
                span,
                notes=("a default stands in for an input that a call leaves out",),
                advice="remove it; cells of an output that no statement writes are 0",
                replacement=(Span(start, span.end), ""),
            )
        if dtype.is_integer and default % 1:
            raise Fault(
                "default-type",
                f"'{name}' holds integers, but its default {self._text(span)} is none",
                span,
                advice="write an integer, or declare a float type",
                replacement=(span, str(int(default))),
            )

    def _dim(
        self, dim: syntax.DimItem, axis: int, declaration: syntax.TensorDeclaration, role: str
    ) -> Dim:
        scope = Scope(self.environment)
        self.environment.dim_spans[declaration.name.text, axis] = dim.span
        match dim:
            case syntax.BatchDims(span=span):
                if axis != 0:
                    raise Fault(
                        "misplaced-batch",
                        "'...' stands for leading dims and comes first",
                        span,
                        advice=f"declare it first, such as {declaration.name.text}[...,N]",
                    )
                if BATCH not in self.environment.sizes:
                    raise Fault(
                        "misplaced-batch",
                        "no input has leading dims '...'",
                        span,
                        notes=("'...' stands for the batch dims of the inputs",),
                        advice="declare an input with '...', such as x[...,N], or name the dims",
                    )
                return Dim(symbol(BATCH))
            case syntax.Composite():
                return self._composite(dim, role, scope)
            case _:
                extent = size_polynomial(dim, scope)
                if extent.is_constant and extent.constant < 0:
                    raise Fault(
                        "dim-not-positive",
                        f"an extent is at least 0, not {extent}",
                        dim.span,
                        advice="write how many cells the dim has",
                    )
                return Dim(extent)

    def _composite(self, dim: syntax.Composite, role: str, scope: Scope) -> Dim:
        # Only a size is solved from a dim, and only from an input's.
        divides = role == "input" and any(
            isinstance(part, syntax.Name) and part.text in self.environment.sizes
            for part in dim.parts
        )
        factors = []
        for part in dim.parts:
            if isinstance(part, syntax.Number):
                if part.value < 1:
                    raise Fault(
                        "dim-not-positive",
                        f"a factor of a composite dim is at least 1, not {part.value}",
                        part.span,
                        advice="write a positive factor",
                    )
                factors.append(poly(int(part.value)))
            else:
                self._refuse_tuple(part)
                factor = size_polynomial(syntax.NameUse(part.text, part.span), scope)
                if part.text in self.environment.attributes and divides:
                    self._at_least_one(factor, part.span)
                factors.append(factor)
        product = poly(1)
        for factor in factors:
            product = bounded(product * factor, dim.span)
        expandable(product, self.environment.formulas, dim.span)
        return Dim(product, tuple(factors))

    def _refuse_tuple(self, part: syntax.Name) -> None:
        attribute = self.environment.attributes.get(part.text)
        if attribute is not None and attribute.length is not None:
            raise Fault(
                "tuple-attribute",
                f"'{part.text}' is a tuple of {attribute.length}, and a factor is one number",
                part.span,
                (self.environment.declared_at[part.text], "declared here"),
                advice=f"name one element with `let R = {part.text}[0]`, and write R here",
            )

    def _at_least_one(self, factor: Poly, span: Span) -> None:
        """A factor of a composite dim divides at the call, so it is checked there."""
        self.environment.divisors.append(Divisor(factor, span))

    # ------------------------------------------------------------ clauses
    def _let(self, binding: syntax.Binding) -> None:
        name = binding.name
        environment = self.environment
        environment.failed.add(name.text)  # until it is known to be good
        try:
            value = size_polynomial(binding.value, Scope(environment))
        finally:
            environment.later.pop(name.text, None)
        environment.declare(name.text, name.span, "let")
        environment.failed.discard(name.text)
        environment.lets[name.text] = value
        environment.formulas[name.text] = environment.expand_lets(value)
        self.lets.append(Let(name.text, value, self._text(binding.value.span)))

    def _where(self, expression: syntax.Expression) -> None:
        text = self._text(expression.span)
        for condition in conditions(expression, Scope(self.environment)):
            if condition.value.is_constant and not condition.holds({}):
                raise Fault(
                    "never-true",
                    "no call can meet this condition: it is false whatever the sizes are",
                    expression.span,
                    advice="compare a size or an attribute",
                )
            refuse_loads(condition.value, expression.span)
            self.constraints.append(Constraint(condition, text))

    def _const(self, clause: syntax.Const) -> None:
        name = clause.name
        shape: list[int] = []
        level: object = clause.values
        while isinstance(level, tuple):
            shape.append(len(level))
            level = level[0]
        flat = _flatten(clause.values, tuple(shape))
        if flat is None:
            lengths = sorted({len(r) if isinstance(r, tuple) else 1 for r in clause.values})
            detail = f": {' and '.join(map(str, lengths))} entries" if len(lengths) > 1 else ""
            raise Fault(
                "ragged-table",
                f"the rows of '{name.text}' differ in length{detail}",
                clause.span,
                advice="fill the short rows up with zeros",
            )
        self.environment.declare(name.text, name.span, "table")
        table = Table(name.text, tuple(shape), flat)
        self.environment.tensors[name.text] = table
        self.tables.append(table)

    def _text(self, span: Span) -> str:
        """What the user wrote, on one line."""
        return " ".join(self.source.text[span.start : span.end].split())


def _flatten(values: object, shape: tuple[int, ...]) -> tuple[int | float, ...] | None:
    """Row-major entries, or None where a row does not have the shape of the first."""
    if not shape:
        return (values,) if isinstance(values, int | float) else None
    if not isinstance(values, tuple) or len(values) != shape[0]:
        return None
    out: list[int | float] = []
    for row in values:
        entries = _flatten(row, shape[1:])
        if entries is None:
            return None
        out.extend(entries)
    return tuple(out)


_OTHER_DTYPES: Final = {
    "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "fp32": "f32",
    "float64": "f64", "double": "f64", "uint8": "u8", "byte": "u8", "int8": "i8", "int16": "i16",
    "short": "i16", "int32": "i32", "int64": "i64", "long": "i64", "integer": "int",
    "boolean": "bool", "real": "float",
}  # fmt: skip


def _unknown_dtype(dtype: syntax.Name, tensor: syntax.Name) -> Fault:
    meant = _OTHER_DTYPES.get(dtype.text.lower()) or closest(dtype.text, _DTYPES)
    return Fault(
        "unknown-dtype",
        f"'{dtype.text}' is no element type",
        dtype.span,
        notes=("the element types are " + ", ".join(_DTYPES),),
        advice=(f"did you mean `{meant}`? Or " if meant else "")
        + "leave it out to take the type of the other tensors",
        alternatives=[
            *([(dtype.span, meant)] if meant else []),
            (Span(tensor.span.end, dtype.span.end), ""),
        ],
    )
