"""An op as a Python function of plain PyTorch operations, for machines without a C compiler.

It is printed from the notation itself, a block for every statement, in the vocabulary of
`opgen.runtime.eager`:

    for at in call.points(B, H, V, C):
        b, h, v, c = at.iterators
        at.add(y, (b, 0, h, v), x[b, c, h, eager.zero(v - c * step)])
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Final, assert_never

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Atom, Kind, Poly
from opgen.emit.names import python_names
from opgen.emit.polynomial import Spell, Text, condition_text, sum_text
from opgen.emit.python_text import (
    WIDTH,
    Chain,
    Group,
    Node,
    call,
    flat,
    layout,
    number_text,
    quoted,
    tuple_of,
)
from opgen.emit.python_text import Kind as Brackets
from opgen.emit.templates import comment
from opgen.ir.notation import (
    BATCH,
    Access,
    Apply,
    AttributeType,
    Boundary,
    Constant,
    DType,
    Expr,
    Index,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Table,
    Tensor,
    Value,
)
from opgen.ir.primitives import Level
from opgen.ir.show import StatementPrinter
from opgen.ir.show_expression import access_label
from opgen.ir.walk import all_reads, nodes, polynomials

_INDENT: Final = "    "
_BODY: Final = _INDENT * 2
_UNPACKED: Final = 6  # integers on one line

_METHODS: Final = {
    Reducer.ASSIGN: "assign",
    Reducer.ADD: "add",
    Reducer.MULTIPLY: "multiply",
    Reducer.MAX: "max",
    Reducer.MIN: "min",
    Reducer.ARGMAX: "argmax",
    Reducer.ARGMIN: "argmin",
}

_OPERATORS: Final = {
    "add": ("+", Level.ADDITIVE),
    "sub": ("-", Level.ADDITIVE),
    "mul": ("*", Level.MULTIPLICATIVE),
    "div": ("/", Level.MULTIPLICATIVE),
}


def eager_function(op: Op, name: str) -> str:
    """The text of the function of an op."""
    return _Function(op).text(name)


# ---------------------------------------------------------------------------- names
def _symbols(op: Op) -> tuple[str, ...]:
    """Sizes, lets and integer attributes, as a call passes them."""
    names = [BATCH] if any(tensor.batched for tensor in (*op.inputs, *op.outputs)) else []
    names += [*op.sizes, *(let.name for let in op.lets)]
    for attribute in op.attributes:
        if attribute.type is not AttributeType.FLOAT:
            names.extend(attribute.symbols)
    return tuple(dict.fromkeys(names))


@dataclass
class _Function:
    op: Op
    names: dict[str, str] = field(default_factory=dict)  # symbols, iterators, float attributes
    tensors: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        op = self.op
        iterators = [each.name for statement in op.statements for each in statement.iterators]
        floats = [a.name for a in op.attributes if a.type is AttributeType.FLOAT]
        reserved = ("eager", "call", "at")
        self.names = python_names(dict.fromkeys((*_symbols(op), *floats, *iterators)), reserved)
        everything: tuple[Tensor | Table, ...]
        everything = (*op.inputs, *op.outputs, *op.temporaries, *op.tables)
        self.tensors = python_names(
            (tensor.name for tensor in everything), (*reserved, *self.names.values())
        )
        lines = [
            f"def {name}(call: eager.Call) -> None:",
            f'    """The statements of `{op.name}` in plain PyTorch operations."""',
        ]
        lines += self._symbols()
        lines += self._operands()
        for statement in op.statements:
            lines += _Statement(self, statement).lines()
        return "\n".join(lines) + "\n"

    def _symbols(self) -> list[str]:
        """The integers and numbers that the statements use."""
        op = self.op
        used: set[str] = set()
        parameters: set[str] = set()
        for statement in op.statements:
            used.update(*(value.symbols for value in polynomials(statement)))
            used.update(*(iterator.extent.symbols for iterator in statement.iterators))
            parameters.update(n.name for n in nodes(statement.body) if isinstance(n, Parameter))
        for tensor in op.temporaries:
            used.update(*(dim.extent.symbols for dim in tensor.dims))
        lines = []
        needed = [symbol for symbol in _symbols(op) if symbol in used]
        for start in range(0, len(needed), _UNPACKED):
            names = needed[start : start + _UNPACKED]
            unpacked = tuple_of([self.names[each] for each in names]).content
            target = f"({unpacked})" if len(names) == 1 else unpacked
            values = call("call.integers", [quoted(each) for each in names])
            lines.append(layout(values, _INDENT, f"{target} = "))
        lines += [
            f"{_INDENT}{self.names[each]} = call.attribute({quoted(each)})"
            for each in (a.name for a in op.attributes)
            if each in parameters
        ]
        return lines

    def _operands(self) -> list[str]:
        op = self.op
        used = {a.tensor for statement in op.statements for a in all_reads(statement)}
        reducers = {s.target.tensor: s.reducer.value for s in reversed(op.statements)}
        values: dict[str, Group] = {}
        for tensor in op.inputs:
            if tensor.name in used:
                values[tensor.name] = call("call.input", (quoted(tensor.name),))
        for table in op.tables:
            if table.name in used:
                shape = tuple_of([str(size) for size in table.shape])
                cells = tuple_of([number_text(value) for value in table.values])
                values[table.name] = call("call.table", (quoted(table.name), shape, cells))
        for tensor in op.outputs:
            values[tensor.name] = call(
                "call.output", (quoted(tensor.name), quoted(reducers[tensor.name]))
            )
        for tensor in op.temporaries:
            shape = tuple_of([self.poly(dim.extent).text for dim in tensor.dims])
            values[tensor.name] = call(
                "call.temporary",
                (quoted(tensor.name), quoted(reducers[tensor.name]), shape),
                like=self._like(tensor),
            )
        return [
            layout(value, _INDENT, f"{self.tensors[name]} = ") for name, value in values.items()
        ]

    def _like(self, tensor: Tensor) -> str | None:
        """What a temporary is as wide as: None for a real one."""
        if tensor.dtype.is_integer:
            return quoted("int")
        if tensor.dtype is not DType.SAME:
            return None
        declared = (*self.op.inputs, *self.op.outputs)
        generic = [t.name for t in declared if t.dtype.is_generic]
        return quoted(generic[0]) if generic else None

    def poly(self, value: Poly) -> Text:
        """A polynomial of sizes and attributes."""
        return sum_text(value, self.spell(frozenset()), suffix="")

    # ------------------------------------------------------------ polynomials
    def spell(self, iterators: frozenset[str]) -> Spell:
        """How atoms are spelled; what depends on iterators or tensors is a term, not an int."""

        def spell(atom: Atom) -> Text:
            texts = [sum_text(arg, spell, suffix="") for arg in atom.args]
            inner = ", ".join(text.text for text in texts)
            is_term = any(varies(arg, iterators) for arg in atom.args)
            match atom.kind:
                case Kind.SYMBOL:
                    return Text(self.names[atom.name])
                case Kind.FLOOR_DIV:
                    a, b = texts
                    if not is_term and not atom.args[1].is_constant:
                        return Text(f"eager.floor_div({inner})")
                    text = f"{a.at(Level.MULTIPLICATIVE)} // {b.at(Level.UNARY)}"
                    return Text(text, Level.MULTIPLICATIVE)
                case Kind.MIN:
                    return Text(f"eager.minimum({inner})" if is_term else f"min({inner})")
                case Kind.MAX:
                    return Text(f"eager.maximum({inner})" if is_term else f"max({inner})")
                case Kind.LOAD:
                    access = Access(atom.name, tuple(map(Index, atom.args)))
                    return Text(f"{self.operand(access)}[{inner or '()'}]")
                case Kind.GCD | Kind.MODULAR_INVERSE | Kind.SELECT_ZERO:
                    raise AssertionError(f"{atom.key} is made by scheduling only")
                case unexpected:
                    assert_never(unexpected)

        return spell

    def operand(self, access: Access) -> str:
        """The tensor of an access; one whose index is read from a tensor knows what to say."""
        name = self.tensors[access.tensor]
        if not any(varies(index.value, frozenset()) for index in access.indices):
            return name
        return f"{name}.checked({quoted(access_label(access))})"


def varies(value: Poly, iterators: frozenset[str]) -> bool:
    """Whether a polynomial depends on an iterator or on what a tensor holds."""
    return not value.symbols.isdisjoint(iterators) or any(
        atom.kind is Kind.LOAD for atom in value.all_atoms()
    )


# ---------------------------------------------------------------------------- statements
@dataclass(frozen=True, slots=True)
class _Body:
    """An expression as text; a number alone is no term."""

    node: Node
    level: Level = Level.PRIMARY
    is_term: bool = True

    def at(self, level: Level) -> str | Group:
        """The text where an operator binds with `level`."""
        text = flat(self.node)
        if self.level < level:
            return f"({text})"
        return self.node if isinstance(self.node, Group) else text


class _Statement:
    def __init__(self, function: _Function, statement: Statement) -> None:
        self.function = function
        self.statement = statement
        self.iterators = frozenset(iterator.name for iterator in statement.iterators)
        self.spell = function.spell(self.iterators)

    def lines(self) -> list[str]:
        """The loop over the points of the statement."""
        statement = self.statement
        lines = self._comment()
        extents = [self.function.poly(iterator.extent).text for iterator in statement.iterators]
        points = call("call.points", extents)
        lines.append(layout(points, _INDENT, "for at in ", ":"))
        used = [self.function.names[iterator.name] for iterator in statement.iterators]
        unpacked = tuple_of(used).content
        head = f"({unpacked})" if len(used) == 1 else unpacked
        if used:
            lines.append(f"{_BODY}{head} = at.iterators")
        if statement.guards:
            keep = call("at.keep", [self._condition(guard) for guard in statement.guards])
            lines.append(layout(keep, _BODY, f"{head} = " if used else ""))
        arguments: list[Node] = [
            self.function.operand(statement.target),
            tuple_of([self._index(index) for index in statement.target.indices]),
            self._expression(statement.body).node,
        ]
        if statement.position is not None:
            arguments.append(self._poly(statement.position).text)
        lines.append(layout(call(f"at.{_METHODS[statement.reducer]}", arguments), _BODY))
        return lines

    def _comment(self) -> list[str]:
        """The statement as spec text."""
        try:
            text = StatementPrinter(self.function.op, self.statement).text()
        except AssertionError:  # not every statement of the notation can be written in a spec
            return []
        width = WIDTH - len(f"{_INDENT}#     ")
        lines = [part for line in comment(text) for part in textwrap.wrap(line, width)]
        return [f"{_INDENT}# {'    ' if at else ''}{line}" for at, line in enumerate(lines)]

    def _poly(self, value: Poly) -> Text:
        return sum_text(value, self.spell, suffix="")

    def _condition(self, condition: Condition) -> str:
        left = Poly({m: c for m, c in condition.value.terms.items() if c > 0})
        right = Poly({m: -c for m, c in condition.value.terms.items() if c < 0})
        is_term = varies(condition.value, self.iterators)
        match condition.relation:
            case Relation.EQ | Relation.NE if is_term:
                name = condition.relation.name.lower()
                if not varies(left, self.iterators):
                    left, right = right, left
                texts = ", ".join(self._poly(side).text for side in (left, right))
                return f"eager.apply({quoted(name)}, {texts})"
            case Relation.GE | Relation.EQ | Relation.NE:
                return condition_text(condition, self.spell, "eager.limited", suffix="").text
            case unexpected:
                assert_never(unexpected)

    def _index(self, index: Index) -> str:
        text = self._poly(index.value).text
        match index.boundary:
            case Boundary.NONE:
                return text
            case Boundary.FILL:
                assert index.fill is not None
                return f"eager.fill({text}, {number_text(index.fill)})"
            case (
                Boundary.ZERO
                | Boundary.DROP
                | Boundary.CLAMP
                | Boundary.REFLECT
                | Boundary.SYMMETRIC
                | Boundary.WRAP
            ):
                return f"eager.{index.boundary.name.lower()}({text})"
            case unexpected:
                assert_never(unexpected)

    # ------------------------------------------------------------ expressions
    def _expression(self, expr: Expr) -> _Body:
        match expr:
            case Constant(value=value):
                negative = value < 0 or repr(value).startswith("-")
                level = Level.UNARY if negative else Level.PRIMARY
                return _Body(number_text(value), level, is_term=False)
            case Parameter(name=name):
                return _Body(self.function.names[name])
            case Value(value=value):
                text = self._poly(value)
                return _Body(text.text, text.level, varies(value, self.iterators))
            case Read(access=access):
                return self._read(access)
            case Apply(primitive=name, arguments=arguments):
                return self._apply(name, [self._expression(argument) for argument in arguments])
            case unexpected:
                assert_never(unexpected)

    def _read(self, access: Access) -> _Body:
        operand = self.function.operand(access)
        indices = tuple(map(self._index, access.indices)) or ("()",)
        return _Body(Group(Brackets.CALL, f"{operand}[", indices, "]"))

    def _apply(self, name: str, arguments: list[_Body]) -> _Body:
        if not any(argument.is_term for argument in arguments):
            first = arguments[0]
            arguments[0] = _Body(f"call.number({flat(first.node)})")
        if name == "neg":
            return _Body(f"-{flat(arguments[0].at(Level.PRIMARY))}", Level.UNARY)
        if name in _OPERATORS:
            sign, level = _OPERATORS[name]
            left, right = arguments
            tail = (sign, right.at(Level(level + 1)))
            if isinstance(left.node, Chain) and left.level is level:
                return _Body(Chain(left.node.first, (*left.node.rest, tail)), level)
            return _Body(Chain(left.at(level), (tail,)), level)
        return _Body(call("eager.apply", [quoted(name), *(a.node for a in arguments)]))
