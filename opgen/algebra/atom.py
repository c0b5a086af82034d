"""The factors of polynomials: symbols and what is made of polynomials but is none.

Equal atoms are one object, and every order is taken from `Atom.key` (the canonical text), never
from object identity, so results do not depend on the history of the process.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opgen.algebra.poly import Poly


class Kind(Enum):
    """What an atom is."""

    SYMBOL = "symbol"
    FLOOR_DIV = "floordiv"
    MIN = "min"
    MAX = "max"
    GCD = "gcd"
    MODULAR_INVERSE = "modinv"
    SELECT_ZERO = "selectzero"
    LOAD = "load"


class Atom:
    """An indivisible factor of a monomial. Interned: compare with `is` or `==`, they agree."""

    __slots__ = ("args", "key", "kind", "name", "symbols")
    _table: Final[dict[tuple[Kind, str, tuple[Poly, ...]], Atom]] = {}

    kind: Kind
    name: str  # the symbol's name, or the loaded tensor's
    args: tuple[Poly, ...]
    key: str
    symbols: frozenset[str]  # every symbol it depends on, however deep

    @staticmethod
    def make(kind: Kind, name: str = "", args: tuple[Poly, ...] = ()) -> Atom:
        """The one atom with these parts."""
        identity = (kind, name, args)
        atom = Atom._table.get(identity)
        if atom is None:
            atom = Atom()
            atom.kind, atom.name, atom.args = kind, name, args
            atom.symbols = (
                frozenset((name,))
                if kind is Kind.SYMBOL
                else frozenset[str]().union(*(arg.symbols for arg in args))
            )
            atom.key = _atom_text(atom)
            atom = Atom._table.setdefault(identity, atom)
        return atom

    def __repr__(self) -> str:
        return self.key

    def __reduce__(self) -> tuple[Callable[..., Atom], tuple[Kind, str, tuple[Poly, ...]]]:
        return Atom.make, (self.kind, self.name, self.args)


Monomial = tuple[Atom, ...]
_KEY: Final = operator.attrgetter("key")


def product_of(atoms: Iterable[Atom]) -> Monomial:
    """The product of factors, in canonical order."""
    return tuple(sorted(atoms, key=_KEY))


# ---------------------------------------------------------------------------- value
def evaluate(
    atom: Atom,
    values: Mapping[str, int],
    load_value: Callable[[str, tuple[int, ...]], int] | None,
) -> int:
    """The integer value of an atom, see `Poly.evaluate`."""
    if atom.kind is Kind.SYMBOL:
        return values[atom.name]
    if atom.kind is Kind.SELECT_ZERO:
        test, if_zero, otherwise = atom.args
        chosen = if_zero if test.evaluate(values, load_value) == 0 else otherwise
        return chosen.evaluate(values, load_value)
    args = tuple(arg.evaluate(values, load_value) for arg in atom.args)
    match atom.kind:
        case Kind.FLOOR_DIV:
            return args[0] // args[1]
        case Kind.MIN:
            return min(args)
        case Kind.MAX:
            return max(args)
        case Kind.GCD:
            return math.gcd(*args)
        case Kind.MODULAR_INVERSE:
            return 0 if args[1] == 1 else pow(args[0], -1, args[1])
        case Kind.LOAD:
            if load_value is None:
                raise KeyError(atom.key)
            return load_value(atom.name, args)


# ---------------------------------------------------------------------------- text
def _atom_text(atom: Atom) -> str:
    match atom.kind:
        case Kind.SYMBOL:
            return atom.name
        case Kind.FLOOR_DIV:
            numerator, divisor = atom.args
            return f"{_factor_text(numerator)}//{_factor_text(divisor)}"
        case Kind.MIN | Kind.MAX | Kind.GCD | Kind.MODULAR_INVERSE | Kind.SELECT_ZERO:
            return f"{atom.kind.value}({', '.join(map(str, atom.args))})"
        case Kind.LOAD:
            return f"{atom.name}[{', '.join(map(str, atom.args))}]"


def _factor_text(value: Poly) -> str:
    text = str(value)
    single = len(value.terms) <= 1 and ("-" not in text and "*" not in text and "//" not in text)
    return text if single else f"({text})"


def to_text(terms: Mapping[Monomial, int]) -> str:
    """Canonical text of a sum of monomials times integers, with the spelling of the language."""
    if not terms:
        return "0"
    ordered = sorted(
        terms.items(),
        key=lambda item: (item[1] < 0, -len(item[0]), [atom.key for atom in item[0]]),
    )
    out = ""
    for monomial, coefficient in ordered:
        factors = [
            f"({atom.key})"
            if atom.kind is Kind.FLOOR_DIV
            and (_needs_parentheses(monomial, coefficient) or (coefficient < 0 and not out))
            else atom.key
            for atom in monomial
        ]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else ("+" if out else "")
        out += f" {sign} " if out else sign
        out += "*".join(factors)
    return out


def _needs_parentheses(monomial: Monomial, coefficient: int) -> bool:
    # a * b//c would parse as (a*b)//c, and a//b * c is ugly to read. (The caller adds those that
    # a leading minus needs: Python reads -a//b as (-a)//b.)
    return len(monomial) > 1 or abs(coefficient) != 1
