"""Notation to spec text: `parse(show(op)) == op`.

The text is canonical: it depends on the op alone. Derived ops and lowered temporaries print as
what they are, ops of the language. Ranges are written where the rule of the language
(`grammar/LANGUAGE.md`) would not infer the same ones; a whole right-hand side that reduces into
plain cells is printed as `= sum(...)`, everything else that reduces as `+=`, `max=`, `min=`.

What the language cannot say is an AssertionError: iterators that do not begin with those of the
left-hand side, and a product or a position that is not reduced into every cell of its tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, symbol
from opgen.ir.indices import covers_plainly, extents_of, fixed_iterators
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Attribute,
    AttributeType,
    Boundary,
    Constraint,
    Dim,
    DType,
    Let,
    Op,
    Reducer,
    Statement,
    Table,
    Tensor,
)
from opgen.ir.primitives import Precedence
from opgen.ir.realness import is_real, is_whole
from opgen.ir.show_expression import (
    Bare,
    Composite,
    ExpressionPrinter,
    access_text,
    condition_text,
    dims_of,
    form_of,
    join_indices,
    names_shown,
    number_text,
    polynomial_text,
)
from opgen.ir.walk import all_reads


def show(op: Op) -> str:
    """The spec text of an op, ending with a newline."""
    lines = [f"## {line}".rstrip() for line in op.doc.split("\n")] if op.doc else []
    lines += wrapped(_signature(op), "", "    ")
    for clause in _clauses(op):
        lines += wrapped(clause, "  ", "      ")
    return "\n".join(lines) + "\n"


def show_file(ops: Iterable[Op]) -> str:
    """The spec text of several ops."""
    return "\n".join(show(op) for op in ops)


# ---------------------------------------------------------------------------- signature
def _signature(op: Op) -> str:
    inferred = _infers_float(op)
    inputs = ", ".join(_tensor(tensor, inferred) for tensor in op.inputs)
    attributes = ", ".join(map(_attribute, op.attributes))
    outputs = ", ".join(_tensor(tensor, inferred) for tensor in op.outputs)
    inside = f"{inputs}; {attributes}" if attributes else inputs
    return f"op {op.name}({inside}) -> {outputs}"


def _infers_float(op: Op) -> bool:
    """Whether the undeclared tensors of the text become floating without being told."""

    def declared(name: str) -> Tensor | Table:
        tensor = op.tensor(name)
        undeclared = isinstance(tensor, Tensor) and tensor.dtype is DType.FLOAT
        return Tensor(name, ()) if undeclared else tensor

    broken_default = any(t.default is not None and t.default % 1 for t in op.inputs)
    return broken_default or any(is_real(s.body, declared) for s in op.statements)


def _tensor(tensor: Tensor, infers_float: bool) -> str:
    silent = tensor.dtype is DType.SAME or (tensor.dtype is DType.FLOAT and infers_float)
    prefix = "nograd " if tensor.nograd else ""
    dtype = "" if silent else f": {tensor.dtype.value}"
    dims = join_indices([_dim(dim) for dim in tensor.dims])
    default = "" if tensor.default is None else f" = {number_text(tensor.default)}"
    return f"{prefix}{tensor.name}{dtype}[{dims}]{default}"


def _temporary(tensor: Tensor, op: Op) -> str:
    """A temporary; one to which only integers are written has to say that it holds floats."""
    bodies = [s.body for s in op.statements if s.target.tensor == tensor.name]
    whole = all(is_whole(body, op.tensor) for body in bodies)
    return _tensor(tensor, not whole and _infers_float(op))


def _dim(dim: Dim) -> str:
    if dim.extent == symbol(BATCH):
        return BATCH
    if dim.parts:
        return f"({' '.join(map(str, dim.parts))})"
    return str(dim.extent)


def _attribute(attribute: Attribute) -> str:
    name, kind, default = attribute.name, attribute.type, attribute.default
    if kind is AttributeType.CHOICE:
        return f"{name} = " + " | ".join(f'"{choice}"' for choice in attribute.choices)
    length = "" if attribute.length is None else f"[{attribute.length}]"
    match default:
        case None:
            return f"{name}: {kind.value}{length}"
        case bool():
            text, implied = str(default).lower(), kind is AttributeType.BOOL
        case tuple():
            same = len(set(default)) == 1
            text = str(default[0]) if same else f"({', '.join(map(str, default))})"
            implied = not same and kind is AttributeType.INT
        case _:
            text = repr(default)
            implied = kind is (
                AttributeType.FLOAT if isinstance(default, float) else AttributeType.INT
            )
    return f"{name} = {text}" if implied else f"{name}: {kind.value}{length} = {text}"


# ---------------------------------------------------------------------------- clauses
def _clauses(op: Op) -> Iterator[str]:
    conditions = [_condition(constraint, op) for constraint in op.constraints]
    stated = [text for text in conditions if text]
    if stated:
        yield "where " + ", ".join(stated)
    for let in op.lets:
        yield f"let {let.name} = {_formula(let)}"
    for table in op.tables:
        yield f"const {table.name} = {_entries(table.values, table.shape)}"
    if op.temporaries:
        yield "tmp " + ", ".join(_temporary(tensor, op) for tensor in op.temporaries)
    for gradient in op.gradients:
        yield f"gradient {gradient.input} by {gradient.op}"
    for statement in op.statements:
        yield StatementPrinter(op, statement).text()


def _condition(constraint: Constraint, op: Op) -> str:
    return "" if constraint.derived else condition_text(constraint.condition, op)


def _formula(let: Let) -> str:
    return let.text or polynomial_text(let.value)


def _entries(values: Sequence[int | float], shape: tuple[int, ...]) -> str:
    if not shape:
        return repr(values[0])
    stride = len(values) // shape[0]
    rows = (values[i * stride : (i + 1) * stride] for i in range(shape[0]))
    return "[" + ", ".join(_entries(row, shape[1:]) for row in rows) + "]"


# ---------------------------------------------------------------------------- statements
_OPERATORS: Final = {
    Reducer.ASSIGN: "=",
    Reducer.ADD: "+=",
    Reducer.MAX: "max=",
    Reducer.MIN: "min=",
}


@dataclass(frozen=True)
class StatementPrinter:
    """Prints one statement of an op."""

    op: Op
    statement: Statement

    def text(self) -> str:
        """The statement on one line."""
        statement = self.statement
        target, own = self._target()
        rest = [i.name for i in statement.iterators if i.name not in own]
        values = ExpressionPrinter(self.op, extents_of(statement.iterators))
        if self._reduces_whole(rest):
            outer, inner = self._split_guards(rest)
            domains = self._domains(rest)
            plain = domains == rest
            head = f"{statement.reducer.value}({(',' if plain else ', ').join(domains)}"
            head += self._if(inner) + self._position(rest) + ")"
            body = values.text(statement.body, Precedence.MULTIPLICATIVE)
            line = f"{target} = {head} {body}"
            listed = [name for name in own if self._range(name) is not None]
            return line + self._for(listed) + self._if(outer)
        operator = _OPERATORS.get(statement.reducer)
        assert operator is not None, f"no spec text writes '{statement.target.tensor}' this way"
        line = f"{target} {operator} {values.text(statement.body)}"
        listed = [name for name in own if self._range(name) is not None]
        assert BATCH_ITERATOR not in rest[:-1], "batch dims are reduced last"
        listed += [name for name in rest if name != BATCH_ITERATOR]
        return line + self._for(listed) + self._if(statement.guards)

    def _target(self) -> tuple[str, list[str]]:
        """The left-hand side, written so that it shows its iterators in their order."""
        target, iterators = self.statement.target, extents_of(self.statement.iterators)
        dims = dims_of(self.op.tensor(target.tensor))
        shown = names_shown(target, dims, iterators)
        order = [name for name in iterators if name in shown]
        if shown == order:
            return access_text(target, dims, iterators), shown
        assert names_shown(target, dims, iterators, order) == order == list(iterators)[: len(order)]
        return access_text(target, dims, iterators, order), order

    # ------------------------------------------------------------ reductions
    def _reduces_whole(self, rest: list[str]) -> bool:
        """Whether to print `= sum(...)` and its like: the only statement, into plain cells."""
        statement = self.statement
        if statement.reducer is Reducer.ASSIGN or not rest or BATCH_ITERATOR in rest:
            return False
        box = extents_of(statement.iterators)
        covers = covers_plainly(statement.target, self.op.extents(statement.target.tensor), box)
        if statement.reducer is Reducer.ADD:
            # What a sum does not reach is 0 either way, so each cell written once is enough.
            indices = statement.target.indices
            fixed = fixed_iterators(statement.target, box)
            plain = all(index.boundary is Boundary.NONE for index in indices)
            covers = plain and set(fixed) == box.keys() - set(rest)
        alone = [s.target.tensor for s in self.op.statements].count(statement.target.tensor) == 1
        return alone and covers

    def _split_guards(self, rest: list[str]) -> tuple[tuple[Condition, ...], tuple[Condition, ...]]:
        """Guards outside and inside of a reduction, in order; only a sum may have some outside."""
        guards = self.statement.guards
        count = 0
        if self.statement.reducer is Reducer.ADD:
            while count < len(guards) and guards[count].value.symbols.isdisjoint(rest):
                count += 1
        return guards[:count], guards[count:]

    def _position(self, rest: list[str]) -> str:
        position = self.statement.position
        if position is None or (len(rest) == 1 and position == symbol(rest[0])):
            return ""
        return f"; {polynomial_text(position)}"

    # ------------------------------------------------------------ ranges
    def _domains(self, names: Iterable[str]) -> list[str]:
        ranges = ((name, self._range(name)) for name in names)
        return [name if text is None else f"{name} in {text}" for name, text in ranges]

    def _for(self, names: Sequence[str]) -> str:
        return f" for {', '.join(self._domains(names))}" if names else ""

    def _if(self, guards: Iterable[Condition]) -> str:
        conditions = " and ".join(condition_text(guard, self.op) for guard in guards)
        return f" if {conditions}" if conditions else ""

    def _range(self, name: str) -> str | None:
        """The extent to write, None where the rule of the language infers it."""
        if name == BATCH_ITERATOR:
            return None
        extent = extents_of(self.statement.iterators)[name]
        left = list(self._sites(name, (self.statement.target,)))
        right = list(self._sites(name, all_reads(self.statement)))
        if right and any(len(site.terms) > 1 for site in left):
            left = []
        sites = set(left + right)
        return None if sites == {extent} else polynomial_text(extent)

    def _sites(self, name: str, accesses: Iterable[Access]) -> Iterator[Poly]:
        """The extents of dims and factors of dims where the iterator stands bare."""
        iterators = extents_of(self.statement.iterators)
        for access in accesses:
            dims = dims_of(self.op.tensor(access.tensor))
            for index, dim in zip(access.indices, dims, strict=True):
                match form_of(index, dim, iterators):
                    case Bare(name=bare) if bare == name:
                        yield dim.extent
                    case Composite(parts=parts) if name in parts:
                        yield from (e for e, p in zip(dim.parts, parts, strict=True) if p == name)
                    case _:
                        pass


# ---------------------------------------------------------------------------- layout
_WIDTH: Final = 100
_KEYWORDS: Final = frozenset({"for", "if", "and", "or", "->"})
_OPERATORS_OF_VALUES: Final = frozenset({"+", "-", "*", "/"})
_TIGHTEST: Final = 8


def wrapped(text: str, indent: str, continued: str) -> Iterator[str]:
    """Lines of at most 100 columns where the text allows, cut where it binds least."""
    line = indent
    for piece in _pieces(_words(text), _WIDTH - len(continued), 0):
        if line.strip() and len(line) + 1 + len(piece) > _WIDTH:
            yield line
            line = continued
        line += f" {piece}" if line.strip() else piece
    yield line


def _words(text: str) -> list[tuple[str, int]]:
    """The words of a text, each with how tightly it is bound to the word before it."""
    words: list[tuple[str, int]] = []
    depth = 0
    for word in re.findall(r'(?:"[^"]*"|[^\s"])+', text):
        if word in _KEYWORDS or (words and words[-1][0].endswith(",")):
            tightness = 2 * depth
        else:
            tightness = 2 * depth + 1 if word in _OPERATORS_OF_VALUES else _TIGHTEST + 1
        words.append((word, tightness))
        depth += sum(word.count(mark) for mark in "([") - sum(word.count(mark) for mark in ")]")
    return words


def _pieces(words: Sequence[tuple[str, int]], width: int, limit: int) -> Iterator[str]:
    """The text cut before words bound at most that tightly, and further where that is too long."""
    start = 0
    for end in range(1, len(words) + 1):
        if end < len(words) and words[end][1] > limit:
            continue
        piece = words[start:end]
        text = " ".join(word for word, _ in piece)
        if len(text) <= width or limit == _TIGHTEST:
            yield text
        else:
            yield from _pieces(piece, width, limit + 1)
        start = end
