"""Polynomials, scalars and tests as C expressions, parenthesised where C needs it.

C and CUDA differ only in the spelling of some primitives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.poly import ZERO, Atom, Poly, poly, symbol
from opgen.algebra.poly import Kind as AtomKind
from opgen.emit.eager_choices import is_eager
from opgen.emit.polynomial import Text, bound_text, condition_text, sum_text
from opgen.emit.types import Type, Types
from opgen.emit.vectors import EVERY_SECOND, SQUARE
from opgen.ir import loops
from opgen.ir.chosen import WhereEqual, where_equal
from opgen.ir.indices import places
from opgen.ir.loop_parts import moving
from opgen.ir.loops import Operand, Program
from opgen.ir.notation import DType, Table
from opgen.ir.primitives import PRIMITIVES, Level, Spelling

DIRECT: Final = frozenset({DType.F32, DType.F64, DType.I64})
"""Types whose elements are computed with as they are stored."""


def type_name(operand: Operand) -> str:
    """The C name of the stored element type."""
    if operand.narrow:
        return "int16_t"
    if operand.widened:
        if operand.dtype.is_generic:
            return "wide"
        return "int64_t" if operand.dtype.is_integer else "real"
    if operand.dtype.is_generic:
        return "unrounded" if operand.unrounded else "T"
    if operand.dtype is DType.INT:
        return f"T_{operand.name}"
    return "b8" if operand.dtype is DType.BOOL else operand.dtype.value


@dataclass(frozen=True)
class Names:
    """The identifiers of one C function."""

    tensors: dict[str, str] = field(default_factory=dict)
    strides: dict[tuple[str, int], str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    accumulators: dict[str, str] = field(default_factory=dict)
    long_sums: dict[str, str] = field(default_factory=dict)  # of another type, and what is read


@dataclass(frozen=True)
class Printer:
    """Prints the expressions of one function.

    `bounded` holds (symbol, extent) pairs for which `0 <= symbol < extent` is known.
    """

    program: Program
    types: Types
    names: Names
    cuda: bool = False
    helpers: dict[tuple[str, Type], None] = field(default_factory=dict)
    bounded: set[tuple[Poly, Poly]] = field(default_factory=set)
    axes: frozenset[tuple[Poly, Poly]] = frozenset()  # the same of the kernel's points
    walking: str = ""  # the index along which whole vectors are loaded,
    within: str = ""  # the first and last lane of them that do something, if not all,
    twice: bool = False  # and whether every value of the index has two lanes;
    behind: str = ""  # what is added to the index in the second vector of a pair
    alone: str = ""  # the ending of functions that round where little else is done, there
    columns: dict[tuple[str, tuple[Poly, ...]], str] = field(default_factory=dict)  # loaded ones
    rows: Mapping[tuple[str, tuple[Poly, ...]], str] = field(default_factory=dict)  # where the
    # index walks from, by what is left of places without it; of tensors that may be absent:
    ones: Mapping[str, str] = field(default_factory=dict)  # vectors of the number for all elements
    tables: Mapping[Atom | loops.Scalar, tuple[str, Poly]] = field(default_factory=dict)  # arrays
    # of what differs along a row, a loop or an axis alone, and places in these
    held: Mapping[Atom | loops.Test, str] = field(default_factory=dict)  # the same in a pass

    # ------------------------------------------------------------ polynomials
    def poly(self, value: Poly) -> Text:
        """An integer expression."""
        return sum_text(value, self._atom)

    def bound(self, value: Poly) -> Text:
        """An integer that bounds a loop."""
        return bound_text(value, self._atom, "limited")

    def _atom(self, atom: Atom) -> Text:
        if atom in self.held:
            return Text(self.held[atom])
        if atom in self.tables:
            return self._tabled(atom)
        match atom.kind:
            case AtomKind.SYMBOL:
                return Text(self.names.symbols[atom.name])
            case AtomKind.FLOOR_DIV:
                return self._call("floor_div", atom.args)
            case AtomKind.MIN:
                return self._call("least", atom.args)
            case AtomKind.MAX:
                return self._call("greatest", atom.args)
            case AtomKind.GCD:
                return self._call("gcd", atom.args)
            case AtomKind.MODULAR_INVERSE:
                return self._call("modular_inverse", atom.args)
            case AtomKind.SELECT_ZERO:
                test, then, otherwise = (self.poly(arg) for arg in atom.args)
                condition = Text(f"{test.at(Level.RELATIONAL)} == 0", Level.EQUALITY)
                return _conditional(condition, then, otherwise)
            case AtomKind.LOAD:
                return self._integer_load(atom)
            case unexpected:
                assert_never(unexpected)

    def _tabled(self, value: Atom | loops.Scalar) -> Text:
        name, place = self.tables[value]
        return Text(f"{name}[{self.poly(place).text}]")

    def _call(self, function: str, args: Sequence[Poly]) -> Text:
        """A call of a binary function, nested to the left for more arguments."""
        out = self.poly(args[0]).text
        for arg in args[1:]:
            out = f"{function}({out}, {self.poly(arg).text})"
        return Text(out)

    def _integer_load(self, atom: Atom) -> Text:
        element = self.loaded(atom.name, atom.args)
        tests = [
            self.inside(index, extent)
            for index, extent in zip(atom.args, self._extents(atom.name), strict=True)
            if (index, extent) not in self.bounded
        ]
        if not tests:
            return element
        condition = Text(" && ".join(test.at(Level.EQUALITY) for test in tests), Level.AND)
        return _conditional(condition, element, Text("0"))

    # ------------------------------------------------------------ cells
    def _tensor(self, name: str) -> Operand | Table:
        for table in self.program.tables:
            if table.name == name:
                return table
        return self.program.operand(name)

    def _extents(self, name: str) -> tuple[Poly, ...]:
        match self._tensor(name):
            case Table(shape=shape):
                return tuple(poly(n) for n in shape)
            case Operand(extents=extents):
                return extents
            case unexpected:
                assert_never(unexpected)

    def cell(self, name: str, indices: Sequence[Poly]) -> str:
        """The stored element at an index, as an lvalue."""
        match self._tensor(name):
            case Table(shape=shape):
                steps = [str(math.prod(shape[axis + 1 :])) for axis in range(len(shape))]
            case Operand(rank=rank):
                steps = [self.names.strides[name, axis] for axis in range(rank)]
            case unexpected:
                assert_never(unexpected)
        row = self.rows.get((name, self.begin_of_row(indices)))
        if row is not None:
            return f"{row}[{self.names.symbols[self.walking]} * {steps[-1]}]"
        terms = self._offset(indices, steps)
        return f"{self.names.tensors[name]}[{' + '.join(terms) or '0'}]"

    def _offset(self, indices: Sequence[Poly], steps: Sequence[str]) -> list[str]:
        """The terms of how far a cell is behind the first one."""
        terms = []
        for index, step in zip(indices, steps, strict=True):
            if index == 0 or step == "0":
                continue
            if step == "1":
                terms.append(self.poly(index).at(Level.ADDITIVE))
            elif index == 1:
                terms.append(step)
            else:
                terms.append(f"{self.poly(index).at(Level.MULTIPLICATIVE)} * {step}")
        return terms

    def cell_at_place(self, name: str, indices: Sequence[Poly]) -> str:
        """The same where digits of a number may be indices: in dims that are one in memory that
        needs no division. Compilers make two loops of one with such a choice."""
        operand = self._tensor(name)
        assert isinstance(operand, Operand)
        steps = [self.names.strides[name, axis] for axis in range(operand.rank)]
        terms: list[str] = []
        at = 0
        for begin, end, number in places(indices, operand.extents):
            terms += self._offset(indices[at:begin], steps[at:begin])
            pairs = zip(steps[begin : end - 1], steps[begin + 1 : end], strict=True)
            extents = map(self.poly, operand.extents[begin + 1 : end])
            are_one = " && ".join(
                f"{slow} == {extent.at(Level.MULTIPLICATIVE)} * {fast}"
                for (slow, fast), extent in zip(pairs, extents, strict=True)
            )
            whole = " + ".join(self._offset((number,), steps[end - 1 : end]))
            parts = " + ".join(self._offset(indices[begin:end], steps[begin:end]))
            terms.append(f"({are_one} ? {whole} : {parts})")
            at = end
        terms += self._offset(indices[at:], steps[at:])
        return f"{self.names.tensors[name]}[{' + '.join(terms) or '0'}]"

    def begin_of_row(self, indices: Sequence[Poly]) -> tuple[Poly, ...]:
        """The indices without the one that is walked along, once."""
        if not self.walking or not indices:
            return tuple(indices)
        return (*indices[:-1], indices[-1] - symbol(self.walking))

    def loaded(self, name: str, indices: Sequence[Poly]) -> Text:
        """The element at an index in the type it is computed in."""
        if (name, tuple(indices)) in self.columns:
            return Text(self.columns[name, tuple(indices)])
        is_walked = bool(self.walking) and any(self.walking in index.symbols for index in indices)
        if is_walked and self.behind:
            return self._of_pair(name, indices)
        cell = self.cell(name, indices)
        if is_walked:
            tensor = self._tensor(name)
            if isinstance(tensor, Operand) and tensor.widened:
                only = f"_within(&{cell}, {self.within})" if self.within else f"(&{cell})"
                return Text(f"lanes_from_wide{only}")
            kind = "_unrounded" if isinstance(tensor, Operand) and tensor.unrounded else ""
            if isinstance(tensor, Operand) and tensor.optional:
                step = self.names.strides[name, tensor.rank - 1]
                return Text(f"lanes_or_one{kind}(&{cell}, {step})")
            if not any(self.walking in index.symbols for index in indices[-1:]):
                (axis,) = (at for at, i in enumerate(indices) if self.walking in i.symbols)
                return Text(f"lanes_apart{kind}(&{cell}, {self.names.strides[name, axis]})")
            function = "lanes"
            if (indices[-1].step_in(self.walking) == EVERY_SECOND) != self.twice:
                function = "each_twice" if self.twice else "every_second"
            if self.within:
                return Text(f"{function}_within{kind}(&{cell}, {self.within})")
            if function == "lanes":
                function = f"lanes_from{kind}{self.alone}" if kind else "lanes_from_T"
                return Text(f"{function}(&{cell})")
            return Text(f"{function}{kind}(&{cell})")
        match self._tensor(name):
            case Table():
                return Text(cell)
            case Operand(widened=widened, dtype=dtype) as operand:
                if dtype is DType.F32 and not widened:
                    return Text(f"(real){cell}", Level.UNARY)  # a call may compute in float64
                if operand.narrow:
                    return Text(f"(int64_t){cell}", Level.UNARY)
                if widened or dtype in DIRECT:
                    return Text(cell)
                if dtype.is_integer:
                    return Text(f"(int64_t){cell}", Level.UNARY)
                return Text(f"from_{type_name(operand)}({cell})")
            case unexpected:
                assert_never(unexpected)

    def _of_pair(self, name: str, indices: Sequence[Poly]) -> Text:
        """One of two vectors that are loaded from the same place."""
        first = self.first_of_pair(indices)
        cell, operand = self.cell(name, first), self.program.operand(name)
        function = "first_of_pair" if first == tuple(indices) else "second_of_pair"
        kind = "_unrounded" if operand.unrounded else ""
        if operand.optional:
            step = self.names.strides[name, operand.rank - 1]
            if name in self.ones:
                text = f"{step} == 1 ? {function}{kind}(&{cell}) : {self.ones[name]}"
                return Text(text, Level.CONDITIONAL)
            return Text(f"{function}_or_one{kind}(&{cell}, {step})")
        return Text(f"{function}{kind}{self.alone if kind else ''}(&{cell})")

    def first_of_pair(self, indices: Sequence[Poly]) -> tuple[Poly, ...]:
        """The indices of the first vector of a pair."""
        return tuple(index.substitute({self.behind: ZERO}) for index in indices)

    def copy(self, operand: Operand, cell: str, load: loops.Load) -> str:
        """An assignment of an element of the type that a call chooses; empty if it is none.

        It needs no conversion then, which takes longer than the copy where numbers have 16 bits,
        or one where either is stored unrounded.
        """
        tensor = self._tensor(load.tensor)
        if not isinstance(tensor, Operand):
            return ""
        source = self.cell(load.tensor, load.indices)
        match type_name(tensor), type_name(operand):
            case "T", "T":
                return f"stored_T({cell}) = stored_T({source});"
            case "unrounded", "T":
                return f"{cell} = to_T({source});"
            case "T", "unrounded":
                return f"{cell} = from_T({source});"
            case _:
                return ""

    def stored(self, operand: Operand, value: Text) -> str:
        """The right-hand side of an assignment to an element."""
        if operand.narrow:
            return f"(int16_t){value.at(Level.UNARY)}"
        if operand.widened or operand.dtype in DIRECT:
            return value.text
        if operand.dtype is DType.BOOL:
            return f"{value.at(Level.RELATIONAL)} != 0"
        if operand.dtype.is_integer:
            return f"({type_name(operand)}){value.at(Level.UNARY)}"
        return f"to_{type_name(operand)}({value.text})"

    # ------------------------------------------------------------ conditions and tests
    def condition(self, condition: Condition) -> Text:
        """A comparison."""
        return condition_text(condition, self._atom)

    def inside(self, index: Poly, extent: Poly) -> Text:
        """Whether an index is inside of its dim."""
        return Text(f"inside({self.poly(index).text}, {self.poly(extent).text})")

    def test(self, test: loops.Test) -> Text:
        """A truth value."""
        if test in self.held:
            return Text(self.held[test])
        match test:
            case loops.Always():
                return Text("1")
            case loops.Inside(index=index, extent=extent, fault=None):
                return self.inside(index, extent)
            case loops.Inside(index=index, extent=extent, fault=number):
                arguments = f"{self.poly(index).text}, {self.poly(extent).text}"
                return Text(f"inside_or_fault({arguments}, {number}, fault)")
            case loops.Nonzero(value=value):
                text = self.scalar(value)
                if isinstance(value, loops.Call) and text.level in _TRUTH_LEVELS:
                    return text
                return Text(f"{text.at(Level.RELATIONAL)} != 0", Level.EQUALITY)
            case loops.All(tests=tests):
                return Text(" && ".join(self.test(t).at(Level.EQUALITY) for t in tests), Level.AND)
            case loops.Any(tests=tests):
                # Parenthesised although && binds tighter: compilers warn, and readers stumble.
                return Text(" || ".join(self.test(t).at(Level.EQUALITY) for t in tests), Level.OR)
            case loops.Either(condition=condition, then=then, otherwise=otherwise):
                return _conditional(*map(self.test, (condition, then, otherwise)))
            case unexpected:
                assert_never(unexpected)

    # ------------------------------------------------------------ scalars
    def scalar(self, value: loops.Scalar) -> Text:
        """A number."""
        if value in self.tables:
            return self._tabled(value)
        match value:
            case loops.Number(value=number):
                return _number(number)
            case loops.Argument(name=name):
                return Text(f"(real){self.names.numbers[name]}", Level.UNARY)
            case loops.Integer(value=number):
                return self.poly(number)
            case loops.Load(tensor=name, indices=indices):
                return self.loaded(name, indices)
            case loops.Call(primitive=name, arguments=arguments):
                return self._primitive(name, arguments)
            case loops.Choose(test=test, then=then, otherwise=otherwise):
                if found := self._where_equal(value):
                    return self._lanes_where(found)
                texts = self.test(test), self.scalar(then), self.scalar(otherwise)
                kind = self.types.of(value)
                if self.cuda or kind is Type.INTEGER or not is_eager(value, self.is_inside):
                    return _conditional(*texts)
                self.helpers["select", kind] = None
                sides = ", ".join(each.at(Level.ARGUMENT) for each in texts)
                return Text(f"opgen_select_{kind.tag}({sides})")
            case loops.Result(accumulator=name):
                total = Text(self.names.accumulators[name])
                own = self.names.long_sums.get(name)
                return total if own is None else Text(f"({own}){total.text}", Level.UNARY)
            case unexpected:
                assert_never(unexpected)

    def is_inside(self, load: loops.Load) -> bool:
        """Whether an element is there wherever the loops around go, whatever else is asked."""
        extents = self._extents(load.tensor)
        return all(
            pair in self.bounded or pair in self.axes
            for pair in zip(load.indices, extents, strict=True)
        )

    def _where_equal(self, value: loops.Scalar) -> WhereEqual | None:
        return where_equal(value, self.walking, self.program) if self.walking else None

    def _lanes_where(self, found: WhereEqual) -> Text:
        """A vector with zeros where an integer is not a number."""
        cell = self.cell(found.element.tensor, found.element.indices)
        arguments = f"&{cell}, {self.poly(found.number).text}, {self.scalar(found.value).text}"
        function = "lanes_where"
        if self.program.operand(found.element.tensor).narrow:
            function = "lanes_where_narrow"
        if self.within:
            return Text(f"{function}_within({arguments}, {self.within})")
        return Text(f"{function}({arguments})")

    def _primitive(self, name: str, arguments: tuple[loops.Scalar, ...]) -> Text:
        row = PRIMITIVES[name]
        kinds = [self.types.of(argument) for argument in arguments]
        kind = Type.REAL if row.needs_float else Types.joined(*kinds)
        if row.helper is not None:
            self.helpers[name, kind] = None
        spelling: Spelling = row.cuda if self.cuda else row.c
        is_vector = bool(self.walking) and any(
            True for argument in arguments for _ in moving(argument, self.walking)
        )
        if is_vector and name == "pow":
            base, exponent = arguments
            assert isinstance(exponent, loops.Number) and exponent.value == SQUARE
            factor = self.scalar(base).at(Level.UNARY)
            return Text(f"{factor} * {factor}", Level.MULTIPLICATIVE)
        if self.cuda and name == "pow" and (count := _whole_exponent(arguments[1])):
            of = self.scalar(arguments[0])
            if kinds[0] is not Type.REAL:
                of = Text(f"(real){of.at(Level.UNARY)}", Level.UNARY)
            return Text(f"whole_power<{count}>({of.at(Level.ARGUMENT)})")
        texts = []
        for argument, own, level in zip(arguments, kinds, spelling.arguments, strict=True):
            text = self.scalar(argument)
            if is_vector and not any(moving(argument, self.walking)):
                # A vector is joined with a number of its own type.
                text, own = Text(f"(wide){text.at(Level.UNARY)}", Level.UNARY), Type.REAL
            if row.needs_float and own is not Type.REAL:
                text = Text(f"(real){text.at(Level.UNARY)}", Level.UNARY)
            texts.append(text.at(level))
        return Text(spelling.render(kind.tag, *texts), spelling.level)


_MOST_FACTORS: Final = 4
"""The most factors of a power that is a product, as on a CPU (`runtime.functions_source`)."""


def _whole_exponent(exponent: loops.Scalar) -> int:
    """A literal exponent of few factors, 0 for any other one."""
    match exponent:
        case loops.Number(value=value) if abs(value) <= _MOST_FACTORS and value == int(value):
            return int(value)
        case _:
            return 0


_TRUTH_LEVELS: Final = frozenset({Level.OR, Level.AND, Level.EQUALITY, Level.RELATIONAL})


def _conditional(test: Text, then: Text, otherwise: Text) -> Text:
    text = f"{test.at(Level.OR)} ? {then.at(Level.OR)} : {otherwise.at(Level.CONDITIONAL)}"
    return Text(text, Level.CONDITIONAL)


def _integer(value: int) -> str:
    """A nonnegative literal; beyond 32 bits with a suffix that is right in C and in CUDA."""
    return str(value) if value < 2**31 else f"{value}LL"


def _number(value: int | float) -> Text:
    if isinstance(value, int):
        if value >= 0:
            return Text(_integer(value))
        return Text(f"-{_integer(-value)}", Level.UNARY)
    if math.isnan(value):
        return Text("(real)NAN", Level.UNARY)
    if math.isinf(value):
        sign = "-" if value < 0 else ""
        return Text(f"{sign}(real)INFINITY", Level.UNARY)
    return Text(f"(real){value!r}", Level.UNARY)
