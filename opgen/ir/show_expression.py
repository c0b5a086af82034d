"""Spec text of indices, conditions and values: the inner half of `ir.show`.

Parentheses come from one table: an operator binds as `primitives.Precedence` says and takes its
right operand one level tighter, so that text reads back as the same tree and no float is
reassociated. A sign binds as a sum does, because the grammar allows one only in front of a term.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import (
    ZERO,
    Atom,
    Kind,
    Monomial,
    Poly,
    exact_quotient,
    of_atom,
    poly,
    symbol,
    symbol_atom,
)
from opgen.ir.indices import product
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Apply,
    AttributeType,
    Boundary,
    Constant,
    Dim,
    Expr,
    Index,
    Op,
    Parameter,
    Read,
    Table,
    Tensor,
    Value,
)
from opgen.ir.primitives import PRIMITIVES, Precedence, Primitive
from opgen.ir.walk import loads


# ---------------------------------------------------------------------------- polynomials
def polynomial_text(value: Poly, order: Sequence[str] = ()) -> str:
    """Text of a polynomial; canonical, unless symbols have to come first in a given order."""
    remainder = _remainder(value)
    if remainder is not None:
        return " % ".join(_operand(part) for part in remainder)
    ordered = len(value.symbols.intersection(order)) > 1
    text = _ordered_text(value, order) if ordered else str(value)
    return text.replace(BATCH_ITERATOR, BATCH)


def _ordered_text(value: Poly, order: Sequence[str]) -> str:
    out = ""
    for monomial, coefficient in sorted(value.terms.items(), key=lambda t: _rank(t[0], order)):
        text = str(Poly({monomial: abs(coefficient)}))
        if len(monomial) > 1:
            factors = sorted(monomial, key=lambda atom: _rank((atom,), order))
            scale = [] if abs(coefficient) == 1 else [str(abs(coefficient))]
            text = "*".join((*scale, *(_factor(atom) for atom in factors)))
        sign = "-" if coefficient < 0 else "+" if out else ""
        out += f" {sign} {text}" if out else sign + text
    return out


def _rank(monomial: Monomial, order: Sequence[str]) -> tuple[int, int, list[str]]:
    places = [order.index(name) for atom in monomial for name in atom.symbols if name in order]
    return min(places, default=len(order)), -len(monomial), [atom.key for atom in monomial]


def _factor(atom: Atom) -> str:
    return f"({atom.key})" if atom.kind is Kind.FLOOR_DIV else atom.key


def _remainder(value: Poly) -> tuple[Poly, Poly] | None:
    """`(a, b)` if the value is `a % b`, which is stored as `a - b * (a // b)`."""
    for atom in value.atoms():
        split = value.linear_in(atom) if atom.kind is Kind.FLOOR_DIV else None
        if split is not None:
            numerator, divisor = atom.args
            if -split[0] == divisor and numerator % divisor == value:
                return numerator, divisor
    return None


def _operand(value: Poly) -> str:
    text = polynomial_text(value)
    return text if _precedence_of(value) > Precedence.MULTIPLICATIVE else f"({text})"


def _precedence_of(value: Poly) -> Precedence:
    if _remainder(value) is not None:
        return Precedence.MULTIPLICATIVE
    if len(value.terms) != 1:
        return Precedence.ADDITIVE if value.terms else Precedence.PRIMARY
    ((monomial, coefficient),) = value.terms.items()
    if coefficient < 0:
        return Precedence.ADDITIVE
    if not monomial or (len(monomial) == 1 and coefficient == 1):
        plain = not monomial or monomial[0].kind is not Kind.FLOOR_DIV
        return Precedence.PRIMARY if plain else Precedence.MULTIPLICATIVE
    return Precedence.MULTIPLICATIVE


# ---------------------------------------------------------------------------- accesses
@dataclass(frozen=True, slots=True)
class Bare:
    """An index that is one iterator and no boundary mode."""

    name: str


@dataclass(frozen=True, slots=True)
class Composite:
    """An index `(c i 1)`: iterators and literals, partners of the factors of its dim."""

    parts: tuple[str, ...]


def form_of(index: Index, dim: Dim, iterators: Collection[str]) -> Bare | Composite | None:
    """How an index is written if it is no plain polynomial."""
    if index.boundary is not Boundary.NONE:
        return None
    name = index.value.symbol
    if name is not None and name in iterators:
        return Bare(name)
    if len(dim.parts) < 2 or index.value.symbols.isdisjoint(iterators):
        return None
    weights = [product(dim.parts[place + 1 :]) for place in range(len(dim.parts))]
    parts, rest = _digits(index.value, weights, iterators)
    for place, weight in enumerate(weights):
        if not parts[place]:
            literal = exact_quotient(rest, weight)
            if literal is not None and literal.is_constant and literal.constant > 0:
                parts[place], rest = str(literal.constant), ZERO
    return Composite(tuple(part or "0" for part in parts)) if not rest.terms else None


def _digits(
    value: Poly, weights: Sequence[Poly], iterators: Collection[str]
) -> tuple[list[str], Poly]:
    """The iterator that has each weight, or "", and what is left of the value."""
    parts = [""] * len(weights)
    for name in sorted(value.symbols.intersection(iterators)):
        split = value.linear_in(symbol_atom(name))
        if split is None:
            continue
        for place, weight in enumerate(weights):
            if not parts[place] and split[0] == weight:
                parts[place], value = name, split[1]
                break
    return parts, value


def dims_of(tensor: Tensor | Table) -> tuple[Dim, ...]:
    """The dims of a tensor or table."""
    match tensor:
        case Tensor(dims=dims):
            return dims
        case Table(shape=shape):
            return tuple(Dim(poly(extent)) for extent in shape)
        case unexpected:
            assert_never(unexpected)


def index_text(
    index: Index, dim: Dim, iterators: Collection[str], order: Sequence[str] = ()
) -> str:
    """`...`, `i`, `(c i j)` or a polynomial with its boundary suffix."""
    if index.value == symbol(BATCH_ITERATOR):
        return BATCH
    form = form_of(index, dim, iterators)
    if isinstance(form, Composite) and (not order or _follows(form.parts, order)):
        return f"({' '.join(form.parts)})"
    text = polynomial_text(index.value, order)
    match index.boundary:
        case Boundary.NONE:
            return text
        case Boundary.FILL:
            assert index.fill is not None
            return f"{text} ?({number_text(index.fill)})"
        case mode:
            return f"{text} {mode.value}"


def _follows(names: Sequence[str], order: Sequence[str]) -> bool:
    places = [order.index(name) for name in names if name in order]
    return places == sorted(places)


def access_text(
    access: Access, dims: tuple[Dim, ...], iterators: Collection[str], order: Sequence[str] = ()
) -> str:
    """`x[b,c, i + k ?0]`."""
    texts = [
        index_text(index, dim, iterators, order)
        for index, dim in zip(access.indices, dims, strict=True)
    ]
    return f"{access.tensor}[{join_indices(texts)}]"


def access_label(access: Access) -> str:
    """An access as messages of a running op show it: every index as a formula, with its mode."""
    texts = []
    for index in access.indices:
        match index.boundary:
            case Boundary.NONE:
                texts.append(f"{index.value}")
            case Boundary.FILL:
                texts.append(f"{index.value} ?({index.fill:g})")
            case mode:
                texts.append(f"{index.value} {mode.value}")
    return f"{access.tensor}[{', '.join(texts)}]".replace(BATCH_ITERATOR, BATCH)


def join_indices(texts: Sequence[str]) -> str:
    """Indices or dims behind each other; a space sets off the longer ones."""
    out = ""
    for text in texts:
        gap = " " if " " in text and not re.fullmatch(r"\([^()]*\)", text) else ""
        out += f",{gap}{text}" if out else text
    return out


def names_shown(
    access: Access, dims: tuple[Dim, ...], iterators: Collection[str], order: Sequence[str] = ()
) -> list[str]:
    """The iterators of an access in the order in which its text shows them first."""
    text = access_text(access, dims, iterators, order).removeprefix(access.tensor)
    words = re.findall(r"\.\.\.|[A-Za-z_]\w*", text)
    names = (BATCH_ITERATOR if word == BATCH else word for word in words)
    return list(dict.fromkeys(name for name in names if name in iterators))


# ---------------------------------------------------------------------------- conditions
def condition_text(condition: Condition, op: Op) -> str:
    """A condition with its terms on the side where they are positive."""
    value, relation = condition.value, condition.relation
    chosen = _choice(value, op)
    if chosen is not None and relation is not Relation.GE:
        return f"{chosen[0]} {relation.value} {chosen[1]}"
    name = value.symbol if relation is Relation.EQ else None
    flag = (value + 1).symbol if relation is Relation.EQ else None
    if name is not None and _is_flag(name, op):
        return f"not {name}"
    if flag is not None and _is_flag(flag, op):
        return flag
    constant = value.constant
    above = Poly({m: c for m, c in value.terms.items() if c > 0 and m != ()})
    below = Poly({m: -c for m, c in value.terms.items() if c < 0 and m != ()})
    greater, less = relation.value, "<="
    if relation is Relation.GE and constant == -1 and above.terms and below.terms:
        greater, less, constant = ">", "<", 0
    above, below = above + max(constant, 0), below + max(-constant, 0)
    known = _known_before(op)
    moving_above, moving_below = bool(above.symbols - known), bool(below.symbols - known)
    # What moves stands on the left; among sizes, `padding < W` but `W >= 1`. The sides of an
    # equation stay, or it would read back with another sign.
    flipped = moving_below > moving_above or (moving_above == moving_below and greater == ">")
    if flipped and relation is Relation.GE:
        return f"{polynomial_text(below)} {less} {polynomial_text(above)}"
    return f"{polynomial_text(above)} {greater} {polynomial_text(below)}"


def _known_before(op: Op) -> set[str]:
    """Sizes, lets and attributes: what is no iterator."""
    names = {*op.sizes, *(let.name for let in op.lets)}
    return names.union(*(attribute.symbols for attribute in op.attributes))


def _is_flag(name: str, op: Op) -> bool:
    return any(a.name == name and a.type is AttributeType.BOOL for a in op.attributes)


def _choice(value: Poly, op: Op) -> tuple[str, str] | None:
    """`(mode, "DCR")` if the value is zero exactly where the attribute is that choice."""
    name, place = (value - value.constant).symbol, -value.constant
    for attribute in op.attributes:
        if attribute.name == name and 0 <= place < len(attribute.choices):
            return name, f'"{attribute.choices[place]}"'
    return None


# ---------------------------------------------------------------------------- values
def number_text(value: int | float) -> str:
    """A number where only its value matters: whole ones need no point."""
    whole = math.isfinite(value) and value == int(value) and abs(value) <= _MAX_INTEGER
    return str(int(value)) if whole and repr(value) != "-0.0" else literal_text(value)


_MAX_INTEGER: Final = 2**31 - 1


def literal_text(value: int | float) -> str:
    """A literal of the same type."""
    assert not math.isnan(value), "NaN has no literal"
    return re.sub(r"e([-+])0+", r"e\1", repr(value))


@dataclass(frozen=True)
class ExpressionPrinter:
    """Prints the values of one statement."""

    op: Op
    iterators: Mapping[str, Poly]

    def text(self, expr: Expr, least: Precedence = Precedence.OR) -> str:
        """The expression, in parentheses if it binds less tightly than `least`."""
        text, precedence = self._print(expr)
        return text if precedence >= least else f"({text})"

    def _print(self, expr: Expr) -> tuple[str, Precedence]:
        match expr:
            case Constant(value=value):
                text = literal_text(value)
                signed = text.startswith("-")
                return text, Precedence.ADDITIVE if signed else Precedence.PRIMARY
            case Parameter(name=name):
                return name, Precedence.PRIMARY
            case Value(value=value):
                return self._value(value)
            case Read(access=access):
                dims = dims_of(self.op.tensor(access.tensor))
                return access_text(access, dims, self.iterators.keys()), Precedence.PRIMARY
            case Apply(primitive=name, arguments=arguments):
                return self._apply(PRIMITIVES[name], arguments)
            case unexpected:
                assert_never(unexpected)

    def _value(self, value: Poly) -> tuple[str, Precedence]:
        precedence = _precedence_of(value)
        text = polynomial_text(value)
        if any(loads(value)) and not _is_one_division(value):
            # Outside of `//` and `%` an integer read from a tensor is a value, not an index.
            return f"({text})//1", Precedence.MULTIPLICATIVE
        return text, precedence

    def _apply(self, row: Primitive, arguments: tuple[Expr, ...]) -> tuple[str, Precedence]:
        match row.name, arguments:
            case "eq" | "ne", (Value(value=value), Constant(value=0)):
                chosen = _choice(value, self.op)
                if chosen is not None:
                    return f"{chosen[0]} {row.symbol} {chosen[1]}", Precedence.COMPARISON
            case "neg", (argument,):
                return "-" + self.text(argument, Precedence.MULTIPLICATIVE), Precedence.ADDITIVE
            case "not", (argument,):
                return "not " + self.text(argument, Precedence.NOT), Precedence.NOT
            case _:
                pass
        precedence = row.precedence
        if precedence is Precedence.PRIMARY:
            inside = ", ".join(self.text(argument) for argument in arguments)
            return f"{row.symbol}({inside})", precedence
        levels = _OPERANDS[precedence]
        left, right = (self.text(a, p) for a, p in zip(arguments, levels, strict=True))
        gap = "" if precedence is Precedence.POWER else " "
        return f"{left}{gap}{row.symbol}{gap}{right}", precedence


_OPERANDS = {
    Precedence.OR: (Precedence.OR, Precedence.AND),
    Precedence.AND: (Precedence.AND, Precedence.NOT),
    Precedence.COMPARISON: (Precedence.ADDITIVE, Precedence.ADDITIVE),
    Precedence.ADDITIVE: (Precedence.ADDITIVE, Precedence.MULTIPLICATIVE),
    Precedence.MULTIPLICATIVE: (Precedence.MULTIPLICATIVE, Precedence.UNARY),
    Precedence.POWER: (Precedence.PRIMARY, Precedence.PRIMARY),
}
"""The least precedence of the left and the right operand of an operator."""


def _is_one_division(value: Poly) -> bool:
    atoms = value.atoms()
    one_floor = len(atoms) == 1 and atoms[0].kind is Kind.FLOOR_DIV and value == of_atom(atoms[0])
    return one_floor or _remainder(value) is not None
