"""The plan of the shape solver as straight-line C++, with the messages of `emit.shapes`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from opgen.algebra.poly import Atom, Kind, Poly
from opgen.emit.names import CNames
from opgen.emit.polynomial import Spell, Text, condition_text, sum_text
from opgen.emit.reach import index_reach
from opgen.emit.shapes import dim_name, dim_text, shape_plan
from opgen.ir.loops import Program
from opgen.ir.notation import BATCH, AttributeType, Dim, Op, Tensor
from opgen.ir.shapes import CheckConstraint, CheckDim, CheckExtent, DefineSize, SolveSize, Step


def c_string(text: str) -> str:
    """A string literal of C with these bytes; nothing in it can end it."""
    plain = frozenset(b" !#$%&'()*+,-./:;<=>@[]^_`{|}~")

    def spelled(byte: int) -> str:
        is_plain = byte in plain or (byte < 128 and chr(byte).isalnum())
        return chr(byte) if is_plain else f"\\{byte:03o}"

    return '"' + "".join(map(spelled, text.encode())) + '"'


def shape_lines(op: Op, program: Program) -> tuple[str, ...]:
    """The body of the function that fills a `Call` of `library.cpp.j2`, or refuses it."""
    return _Lines(op, program).all()


@dataclass
class _Lines:
    op: Op
    program: Program
    lines: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def all(self) -> tuple[str, ...]:
        scope = CNames({"call", "type_names"})
        position = 0
        for attribute in self.op.attributes:
            if attribute.type is AttributeType.FLOAT:
                position += 1
                continue
            for symbol in attribute.symbols:
                self._define(scope, symbol, f"call.attributes[{position}]")
                position += 1
                if attribute.type is AttributeType.SIZE:
                    self._fail_if_negative(symbol)
        for step in shape_plan(self.op, self.program).steps:
            self._step(step, scope)
        self._result()
        return tuple(self.lines)

    def _define(self, scope: CNames, symbol: str, value: str) -> None:
        self.names[symbol] = scope.fresh(symbol)
        self.lines.append(f"[[maybe_unused]] const Integer {self.names[symbol]} = {value};")

    # ------------------------------------------------------------ steps
    def _step(self, step: Step, scope: CNames) -> None:
        match step:
            case SolveSize():
                self._solve(step, scope)
            case DefineSize(let=let, is_extent=is_extent):
                formula = let.text or str(let.value)
                self._define(scope, let.name, self._poly(let.value))
                self.origins[let.name] = f"{let.name} = {formula}"
                if is_extent:
                    name = self.names[let.name]
                    self._fail(
                        f"{name} < 0",
                        "negative",
                        (c_string(let.name), name, c_string(formula)),
                        let.value,
                    )
            case CheckDim(tensor=name, axis=axis, extent=extent):
                where, found = self._place(name, axis)
                expected = self._poly(extent)
                at = self._index(name)
                present = f"call.given[{at}] && " if self._tensor(name).default is not None else ""
                formula = c_string(dim_text(self._tensor(name).dims[axis]))
                self._fail(
                    f"{present}Integer({found}) != {expected}",
                    "mismatch",
                    (c_string(where), found, expected, formula),
                    extent,
                )
            case CheckExtent(tensor=name, axis=axis, extent=extent):
                value = self._poly(extent)
                tensor = self._tensor(name)
                where, formula = dim_name(tensor, axis), dim_text(tensor.dims[axis])
                arguments = (c_string(where), value, c_string(formula))
                self._fail(f"{value} < 0", "negative", arguments, extent)
            case CheckConstraint(constraint=constraint):
                text = constraint.text or str(constraint.condition)
                condition = condition_text(constraint.condition, self._speller()).text
                self._fail(
                    f"!({condition})",
                    "unproved" if constraint.derived else "violated",
                    (c_string(text),),
                    constraint.condition.value,
                )
            case unexpected:
                assert_never(unexpected)

    def _solve(self, step: SolveSize, scope: CNames) -> None:
        where, found = self._place(step.tensor, step.axis)
        if step.factor == 1 and step.rest == 0:
            self._define(scope, step.size, found)
        else:
            arguments = (
                c_string(self.op.name),
                c_string(where),
                found,
                self._poly(step.factor),
                self._poly(step.rest),
                c_string(step.size),
                c_string(dim_text(self._tensor(step.tensor).dims[step.axis])),
                self._known(step.factor, step.rest),
            )
            self._define(scope, step.size, f"solved({', '.join(arguments)})")
        self.origins[step.size] = where

    def _fail_if_negative(self, symbol: str) -> None:
        """Refuse a size of the caller that is none: proofs rest on it."""
        name = self.names[symbol]
        given = f"{c_string(self.op.name)}, {c_string(symbol)}, {name}"
        self.lines += [f"if ({name} < 0)", f"    negative_size({given});"]

    def _fail(self, test: str, function: str, arguments: tuple[str, ...], value: Poly) -> None:
        given = ", ".join((c_string(self.op.name), *arguments, self._known(value)))
        self.lines += [f"if ({test})", f"    {function}({given});"]

    def _result(self) -> None:
        op = self.op
        self._assign("integers", [self._symbol(name) for name in self.program.integers])
        shapes = {
            "optional": [
                self._shape(tensor.dims) if tensor.default is not None else "{}"
                for tensor in op.inputs
            ],
            "outputs": [self._shape(tensor.dims) for tensor in op.outputs],
            "temporaries": [
                f"Extents{{{', '.join(map(self._poly, operand.extents))}}}"
                for operand in self.program.operands
                if operand.widened
            ],
        }
        for name, values in shapes.items():
            self._assign(name, values)
        reach = sum_text(index_reach((self.program,)), self._spell_magnitude)
        self.lines.append(f"call.reach = {reach.text};")

    def _assign(self, name: str, values: list[str]) -> None:
        self.lines += [f"call.{name}.push_back({value});" for value in values]

    # ------------------------------------------------------------ pieces
    def _tensor(self, name: str) -> Tensor:
        tensor = self.op.tensor(name)
        assert isinstance(tensor, Tensor)
        return tensor

    def _index(self, name: str) -> int:
        return [tensor.name for tensor in self.op.inputs].index(name)

    def _shape(self, dims: tuple[Dim, ...]) -> str:
        return f"Extents{{{', '.join(self._poly(dim.extent) for dim in dims)}}}"

    def _place(self, name: str, axis: int) -> tuple[str, str]:
        """A dim as messages call it, and where the shape function finds it."""
        found = f"call.inputs[{self._index(name)}][{axis}]"
        return dim_name(self._tensor(name), axis), found

    def _known(self, *values: Poly) -> str:
        """What messages say about the symbols of a formula, in the order of declaration."""
        symbols = frozenset[str]().union(*(value.symbols for value in values))
        order = [symbol for a in self.op.attributes for symbol in a.symbols]
        order += [BATCH, *self.op.sizes, *(let.name for let in self.op.lets)]
        items = [
            f"{{{c_string(name)}, {self._shown(name)}, {c_string(self.origins.get(name, ''))}}}"
            for name in dict.fromkeys(order)
            if name in symbols
        ]
        return f"{{{', '.join(items)}}}"

    def _shown(self, name: str) -> str:
        """The value of a symbol as a caller of Python writes it."""
        value = self._symbol(name)
        for attribute in self.op.attributes:
            if attribute.name == name and attribute.type is AttributeType.BOOL:
                return f"shown_flag({value})"
            if attribute.name == name and attribute.type is AttributeType.CHOICE:
                words = ", ".join(c_string(repr(word)) for word in attribute.choices)
                return f"shown_choice({value}, {{{words}}})"
        return f"shown({value})"

    def _symbol(self, name: str) -> str:
        return self.names[name]

    def _poly(self, value: Poly) -> str:
        return sum_text(value, self._speller()).text

    def _speller(self) -> Spell:
        return self._spell

    def _spell_magnitude(self, atom: Atom) -> Text:
        assert atom.kind is Kind.SYMBOL
        return Text(f"magnitude({self._symbol(atom.name)})")

    def _spell(self, atom: Atom) -> Text:
        args = [sum_text(arg, self._spell) for arg in atom.args]
        inner = ", ".join(arg.text for arg in args)
        match atom.kind:
            case Kind.SYMBOL:
                return Text(self._symbol(atom.name))
            case Kind.FLOOR_DIV:
                return Text(f"floor_div({inner})")
            case Kind.MIN | Kind.MAX:
                function = "least" if atom.kind is Kind.MIN else "greatest"
                first, *rest = (arg.text for arg in args)
                for each in rest:
                    first = f"{function}({first}, {each})"
                return Text(first)
            case Kind.GCD:
                return Text(f"gcd({inner})")
            case Kind.MODULAR_INVERSE:
                return Text(f"modular_inverse({inner})")
            case Kind.SELECT_ZERO:
                test, then, otherwise = args
                zero = f"Integer({test.text}) == 0"
                return Text(f"({zero} ? Integer({then.text}) : Integer({otherwise.text}))")
            case Kind.LOAD:
                raise AssertionError(f"{atom.key} in a shape")
            case unexpected:
                assert_never(unexpected)
