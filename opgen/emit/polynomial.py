"""Polynomials and conditions in the syntax that C and Python share.

A `Text` carries how tightly its outermost operator binds; the operand on the right of a left
associative operator is printed one level higher. Atoms are spelled by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Atom, Kind, Monomial, Poly, of_atom
from opgen.ir.primitives import Level


@dataclass(frozen=True, slots=True)
class Text:
    """Text and the level of its outermost operator."""

    text: str
    level: Level = Level.PRIMARY

    def at(self, level: Level) -> str:
        """The text where an operator binds with `level`."""
        return self.text if self.level >= level else f"({self.text})"


Spell = Callable[[Atom], Text]


def sum_text(value: Poly, spell: Spell, suffix: str = "LL") -> Text:
    """A polynomial, in the order of `atom.to_text`: positive terms first.

    `suffix` is what C and CUDA, but not Python, put behind literals beyond 32 bits.
    """
    if not value.terms:
        return Text("0")
    ordered = sorted(
        value.terms.items(),
        key=lambda item: (item[1] < 0, -len(item[0]), [atom.key for atom in item[0]]),
    )
    (monomial, coefficient), *rest = ordered
    first = _term(monomial, abs(coefficient), spell, suffix)
    if coefficient < 0:
        first = Text(f"-{first.at(Level.UNARY)}", Level.UNARY)
    if not rest:
        return first
    out = first.at(Level.ADDITIVE)
    for monomial, coefficient in rest:
        sign = "-" if coefficient < 0 else "+"
        out += (
            f" {sign} {_term(monomial, abs(coefficient), spell, suffix).at(Level.MULTIPLICATIVE)}"
        )
    return Text(out, Level.ADDITIVE)


def _term(monomial: Monomial, coefficient: int, spell: Spell, suffix: str) -> Text:
    ordered = sorted(monomial, key=lambda atom: atom.kind is not Kind.SYMBOL)
    factors = [spell(atom) for atom in ordered]
    if coefficient != 1 or not factors:
        factors.insert(0, Text(f"{coefficient}{suffix if coefficient >= 2**31 else ''}"))
    first, *rest = factors
    if not rest:
        return first
    out = first.at(Level.MULTIPLICATIVE)
    for factor in rest:
        out += f" * {factor.at(Level.UNARY)}"
    return Text(out, Level.MULTIPLICATIVE)


def condition_text(
    condition: Condition, spell: Spell, limited: str = "limited", suffix: str = "LL"
) -> Text:
    """A comparison with all negative terms on the right: `a > b` rather than `a - b - 1 >= 0`."""
    left = Poly({m: c for m, c in condition.value.terms.items() if c > 0})
    right = Poly({m: -c for m, c in condition.value.terms.items() if c < 0})
    match condition.relation:
        case Relation.GE if right.constant == 1 and len(right.terms) > 1:
            relation, level, right = ">", Level.RELATIONAL, right - 1
        case Relation.GE:
            relation, level = ">=", Level.RELATIONAL
        case Relation.EQ:
            relation, level = "==", Level.EQUALITY
        case Relation.NE:
            relation, level = "!=", Level.EQUALITY
        case unexpected:
            assert_never(unexpected)
    above = Level(level + 1)
    if condition.relation is Relation.GE:
        left, right = _with_reads_alone(left, right)
        right, left = _with_reads_alone(right, left)
        first, second = (bound_text(side, spell, limited, suffix) for side in (left, right))
    else:
        first, second = sum_text(left, spell, suffix), sum_text(right, spell, suffix)
    text = f"{first.at(level)} {relation} {second.at(above)}"
    return Text(text, level)


def _with_reads_alone(side: Poly, other: Poly) -> tuple[Poly, Poly]:
    """Two sides of a comparison, without what is added to the only integer that one of them reads
    from a tensor: that may be any, and `i[n] + 1` another one than is meant."""
    read = Poly({m: c for m, c in side.terms.items() if any(a.kind is Kind.LOAD for a in m)})
    added = side - read
    if list(read.terms.values()) != [1] or other.is_data_dependent or added.is_data_dependent:
        return side, other
    return read, other - added


def bound_text(value: Poly, spell: Spell, limited: str, suffix: str = "LL") -> Text:
    """A bound, of which integers that are read from tensors are no further from 0 than 2**61.

    Whoever means no bound at all writes the largest integer that there is, and one more than that
    is the smallest. What is bounded lies within sizes, so it makes no difference. `limited` is the
    name of the function that does it; it need not where nothing is computed of what is read, and
    must not where a quotient of it is part of the bound: `at[r] % 5` is `at[r] - 5*(at[r]//5)`.
    """
    parts = (atom for atom in value.atoms() if atom.kind is not Kind.LOAD)
    if list(value.terms.values()) == [1] or any(of_atom(atom).is_data_dependent for atom in parts):
        return sum_text(value, spell, suffix)

    def within(atom: Atom) -> Text:
        text = spell(atom)
        return Text(f"{limited}({text.text})") if atom.kind is Kind.LOAD else text

    return sum_text(value, within, suffix)


# ---------------------------------------------------------------------------- Python
def python_text(value: Poly, symbol: Callable[[str], str]) -> Text:
    """A polynomial of sizes and attributes as a Python expression."""
    return sum_text(value, _python_speller(symbol), suffix="")


def python_condition(condition: Condition, symbol: Callable[[str], str]) -> Text:
    """A condition on sizes and attributes as a Python expression."""
    return condition_text(condition, _python_speller(symbol), suffix="")


def _python_speller(symbol: Callable[[str], str]) -> Spell:
    def spell(atom: Atom) -> Text:
        args = [sum_text(arg, spell, suffix="") for arg in atom.args]
        inner = ", ".join(arg.text for arg in args)
        match atom.kind:
            case Kind.SYMBOL:
                return Text(symbol(atom.name))
            case Kind.FLOOR_DIV:
                # `a // b * c` and `c * (a // b)` differ, so a division is no plain factor.
                a, b = args
                text = f"{a.at(Level.MULTIPLICATIVE)} // {b.at(Level.UNARY)}"
                return Text(text, Level.MULTIPLICATIVE)
            case Kind.MIN:
                return Text(f"min({inner})")
            case Kind.MAX:
                return Text(f"max({inner})")
            case Kind.GCD:
                return Text(f"math.gcd({inner})")
            case Kind.MODULAR_INVERSE:
                return Text(f"checks.modular_inverse({inner})")
            case Kind.SELECT_ZERO:
                test, then, otherwise = args
                text = f"{then.text} if {test.at(Level.RELATIONAL)} == 0 else {otherwise.text}"
                return Text(f"({text})")
            case Kind.LOAD:
                raise AssertionError(f"{atom.key} in a shape")
            case unexpected:
                assert_never(unexpected)

    return spell
