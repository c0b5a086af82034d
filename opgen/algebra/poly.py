"""Integer polynomials over interned atoms: the only representation of an index, size or bound.

    Poly = sum of  integer * atom * atom * ...
    Atom = Symbol name                     size, attribute, iterator or target coordinate
         | FloorDiv(a, b)                  floor of a / b, b positive
         | Min(a, ...) | Max(a, ...)
         | Gcd(a, b) | ModularInverse(a, n)  launch-time constants of the residue rule
         | SelectZero(t, x, y)             x where t == 0, else y
         | Load(tensor, indices)           an integer read from a tensor

`a % b` is no atom: it is `a - b * (a // b)`, so `b * (a // b) + a % b` cancels to `a` by
construction. Atoms themselves are in `atom`; their names stand here, too.

The floor-division rules are those of Granlund and Montgomery's `floor` algebra as used by Halide
and TVM; each is an identity over the integers, and is tested as such.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, assert_never

from opgen.algebra.atom import Atom, Kind, Monomial, evaluate, product_of, to_text

__all__ = [
    "ONE",
    "ZERO",
    "Atom",
    "Kind",
    "Monomial",
    "Poly",
    "ceil_div",
    "common_factor",
    "exact_quotient",
    "floor_div",
    "gcd",
    "load",
    "maximum",
    "minimum",
    "modular_inverse",
    "of_atom",
    "poly",
    "rebuild",
    "select_zero",
    "split_quotient",
    "symbol",
    "symbol_atom",
]

_SYMBOL: Final = Kind.SYMBOL  # to look it up takes longer than to compare it


class Poly:
    """An immutable integer polynomial; `==` is equality of canonical forms.

    Arithmetic accepts plain integers. `//` and `%` are floor operations and `//` simplifies without
    any knowledge of ranges; `algebra.prove.floor_div` also uses what is known.
    """

    __slots__ = ("_atoms", "_hash", "_loads", "_symbols", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._hash: int | None = None
        self._symbols: frozenset[str] | None = None
        self._atoms: tuple[Atom, ...] | None = None
        self._loads: tuple[Atom, ...] | None = None

    # ------------------------------------------------------------------ identity
    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.is_constant and self.constant == other
        return isinstance(other, Poly) and self.terms == other.terms

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return to_text(self.terms)

    # ------------------------------------------------------------------ queries
    @property
    def is_constant(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and () in self.terms)

    @property
    def is_data_dependent(self) -> bool:
        """Whether anything in it is read from a tensor."""
        return bool(self.loads)

    @property
    def constant(self) -> int:
        """The constant term."""
        return self.terms.get((), 0)

    @property
    def symbols(self) -> frozenset[str]:
        """Every symbol it depends on, also inside atoms."""
        if self._symbols is None:
            self._symbols = frozenset[str]().union(
                *(atom.symbols for monomial in self.terms for atom in monomial)
            )
        return self._symbols

    @property
    def symbol(self) -> str | None:
        """The symbol's name if this is one bare symbol, else None."""
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            if coefficient == 1 and len(monomial) == 1 and monomial[0].kind is Kind.SYMBOL:
                return monomial[0].name
        return None

    def atoms(self) -> tuple[Atom, ...]:
        """The atoms that occur as factors, each once, in canonical order."""
        if self._atoms is None:
            found = {atom: None for monomial in self.terms for atom in monomial}
            self._atoms = tuple(sorted(found, key=lambda atom: atom.key))
        return self._atoms

    def all_atoms(self) -> Iterator[Atom]:
        """Every atom, also inside atoms, outermost first; may repeat."""
        for atom in self.atoms():
            yield atom
            for arg in atom.args:
                yield from arg.all_atoms()

    @property
    def loads(self) -> tuple[Atom, ...]:
        """The atoms among these that are read from tensors."""
        if self._loads is None:
            self._loads = tuple(atom for atom in self.all_atoms() if atom.kind is Kind.LOAD)
        return self._loads

    def linear_in(self, atom: Atom) -> tuple[Poly, Poly] | None:
        """`(c, rest)` with `self == c * atom + rest`, or None if a higher power occurs."""
        factor: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms.items():
            match monomial.count(atom):
                case 0:
                    rest[monomial] = coefficient
                case 1:
                    where = monomial.index(atom)
                    factor[monomial[:where] + monomial[where + 1 :]] = coefficient
                case _:
                    return None
        return Poly(factor), Poly(rest)

    def step_in(self, name: str) -> int | None:
        """By how much it grows with the symbol of that name; None where that is no constant."""
        linear = self.linear_in(symbol_atom(name))
        if linear is None or not linear[0].is_constant or name in linear[1].symbols:
            return None
        return linear[0].constant

    # ------------------------------------------------------------------ arithmetic
    def __add__(self, other: Poly | int) -> Poly:
        other = poly(other)
        if not other.terms:
            return self
        if not self.terms:
            return other
        terms = dict(self.terms)
        _add_terms(terms, other)
        return Poly(terms)

    __radd__ = __add__

    def __neg__(self) -> Poly:
        return Poly({monomial: -coefficient for monomial, coefficient in self.terms.items()})

    def __sub__(self, other: Poly | int) -> Poly:
        other = poly(other)
        if not other.terms:
            return self
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total = terms.get(monomial, 0) - coefficient
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Poly(terms)

    def __rsub__(self, other: Poly | int) -> Poly:
        return poly(other) + (-self)

    def __mul__(self, other: Poly | int) -> Poly:
        other = poly(other)
        if other.is_constant:
            return self._scaled(other.constant)
        if self.is_constant:
            return other._scaled(self.constant)
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = product_of(left + right)
                total = terms.get(monomial, 0) + a * b
                if total:
                    terms[monomial] = total
                else:
                    terms.pop(monomial, None)
        return Poly(terms)

    __rmul__ = __mul__

    def _scaled(self, scale: int) -> Poly:
        if scale == 0:
            return ZERO
        if scale == 1:
            return self
        return Poly({monomial: c * scale for monomial, c in self.terms.items()})

    def __floordiv__(self, other: Poly | int) -> Poly:
        return floor_div(self, poly(other))

    def __rfloordiv__(self, other: int) -> Poly:
        return floor_div(poly(other), self)

    def __mod__(self, other: Poly | int) -> Poly:
        return self - poly(other) * floor_div(self, poly(other))

    # ------------------------------------------------------------------ substitution and value
    def substitute(self, values: Mapping[str, Poly]) -> Poly:
        """Replace symbols by polynomials, also inside atoms."""
        if self.symbols.isdisjoint(values):
            return self
        return self.map_atoms(lambda atom: _substitute_atom(atom, values))

    def map_atoms(self, replace: Callable[[Atom], Poly]) -> Poly:
        """Replace every factor by `replace(atom)`; the callee descends into arguments itself."""
        changed: dict[Atom, Poly] = {}
        for atom in self.atoms():
            found = replace(atom)
            if found.terms != {(atom,): 1}:
                changed[atom] = found
        if not changed:
            return self
        total: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms.items():
            term = Poly({tuple(atom for atom in monomial if atom not in changed): coefficient})
            for atom in monomial:
                if atom in changed:
                    term = term * changed[atom]
            _add_terms(total, term)
        return Poly(total)

    def evaluate(
        self,
        values: Mapping[str, int],
        load: Callable[[str, tuple[int, ...]], int] | None = None,
    ) -> int:
        """The integer value; `load(tensor, indices)` supplies integer reads.

        Raises KeyError for a symbol without a value and ZeroDivisionError for a zero divisor.
        """
        total = 0
        for monomial, coefficient in self.terms.items():
            term = coefficient
            for atom in monomial:
                is_symbol = atom.kind is _SYMBOL
                term *= values[atom.name] if is_symbol else evaluate(atom, values, load)
            total += term
        return total


def _add_terms(terms: dict[Monomial, int], other: Poly) -> None:
    """Add a polynomial to terms that belong to nobody else so far."""
    for monomial, coefficient in other.terms.items():
        total = terms.get(monomial, 0) + coefficient
        if total:
            terms[monomial] = total
        else:
            terms.pop(monomial, None)


def poly(value: Poly | int) -> Poly:
    """A polynomial from a polynomial or an integer."""
    if isinstance(value, Poly):
        return value
    return Poly({(): int(value)}) if value else ZERO


ZERO: Final = Poly({})
ONE: Final = Poly({(): 1})


def of_atom(atom: Atom) -> Poly:
    """The polynomial that is one atom."""
    return Poly({(atom,): 1})


def symbol(name: str) -> Poly:
    """The polynomial that is one symbol."""
    return of_atom(Atom.make(Kind.SYMBOL, name))


def symbol_atom(name: str) -> Atom:
    """The atom of a symbol."""
    return Atom.make(Kind.SYMBOL, name)


# ---------------------------------------------------------------------------- constructors of atoms
def minimum(*values: Poly | int) -> Poly:
    """The least of the values; folds constants and repeats."""
    return _extreme(Kind.MIN, values, min)


def maximum(*values: Poly | int) -> Poly:
    """The greatest of the values; folds constants and repeats."""
    return _extreme(Kind.MAX, values, max)


def _extreme(kind: Kind, values: tuple[Poly | int, ...], fold: Callable[[list[int]], int]) -> Poly:
    distinct = list(dict.fromkeys(poly(value) for value in values))
    constants = [value.constant for value in distinct if value.is_constant]
    rest = [value for value in distinct if not value.is_constant]
    if constants:
        rest.append(poly(fold(constants)))
    if len(rest) == 1:
        return rest[0]
    rest.sort(key=str)
    return of_atom(Atom.make(kind, args=tuple(rest)))


def gcd(a: Poly, b: Poly) -> Poly:
    """Greatest common divisor of two positive values."""
    if a.is_constant and b.is_constant:
        return poly(math.gcd(a.constant, b.constant))
    if a == 1 or b == 1:
        return ONE
    if exact_quotient(a, b) is not None:
        return b
    if exact_quotient(b, a) is not None:
        return a
    first, second = sorted((a, b), key=str)
    return of_atom(Atom.make(Kind.GCD, args=(first, second)))


def modular_inverse(a: Poly, modulus: Poly) -> Poly:
    """The `x` in `[0, modulus)` with `a * x % modulus == 1 % modulus`; a and modulus coprime."""
    if modulus == 1:
        return ZERO
    if a.is_constant and modulus.is_constant:
        return poly(pow(a.constant, -1, modulus.constant))
    return of_atom(Atom.make(Kind.MODULAR_INVERSE, args=(a, modulus)))


def select_zero(test: Poly, if_zero: Poly, otherwise: Poly) -> Poly:
    """`if_zero` where `test == 0`, else `otherwise`."""
    if if_zero == otherwise:
        return if_zero
    if test.is_constant:
        return if_zero if test.constant == 0 else otherwise
    return of_atom(Atom.make(Kind.SELECT_ZERO, args=(test, if_zero, otherwise)))


def load(tensor: str, indices: Iterable[Poly]) -> Poly:
    """An integer read from a tensor, as part of an index."""
    return of_atom(Atom.make(Kind.LOAD, tensor, tuple(indices)))


def ceil_div(a: Poly, b: Poly) -> Poly:
    """Ceiling of a / b, b positive."""
    return -floor_div(-a, b)


# ---------------------------------------------------------------------------- division
def split_quotient(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """`(q, r)` with `a == b * q + r`, moving into q every term that divides.

    Multivariate division with remainder (Cox, Little, O'Shea, chapter 2.3) for one divisor.
    """
    if not b.terms:
        return ZERO, a
    if b.is_constant:
        quotient: dict[Monomial, int] = {}
        remainder: dict[Monomial, int] = {}
        for monomial, coefficient in a.terms.items():
            q, r = divmod(coefficient, b.constant)
            # Only the constant term may split: 3x // 2 is not x + x // 2 in canonical form.
            if monomial == () or r == 0:
                if q:
                    quotient[monomial] = q
                if r:
                    remainder[monomial] = r
            else:
                remainder[monomial] = coefficient
        return Poly(quotient), Poly(remainder)
    lead = max(b.terms, key=lambda monomial: (len(monomial), [atom.key for atom in monomial]))
    lead_coefficient = b.terms[lead]
    quotient_poly, rest, remainder = ZERO, a, {}
    for _ in range(_DIVISION_STEPS):
        if not rest.terms:
            return quotient_poly, Poly(remainder)
        monomial = max(rest.terms, key=lambda m: (len(m), [atom.key for atom in m]))
        coefficient = rest.terms[monomial]
        ratio = _monomial_quotient(monomial, lead)
        if ratio is not None and coefficient % lead_coefficient == 0:
            step = Poly({ratio: coefficient // lead_coefficient})
            quotient_poly, rest = quotient_poly + step, rest - step * b
        else:
            remainder[monomial] = coefficient
            rest = Poly({m: c for m, c in rest.terms.items() if m != monomial})
    return ZERO, a


_DIVISION_STEPS: Final = 200


def exact_quotient(a: Poly, b: Poly) -> Poly | None:
    """a / b if b divides a as a polynomial, else None."""
    quotient, remainder = split_quotient(a, b)
    return quotient if not remainder.terms else None


def common_factor(values: Iterable[Poly]) -> Poly:
    """The largest integer times monomial that divides every value; 0 if all are zero."""
    factor, shared = 0, None
    for value in values:
        for monomial, coefficient in value.terms.items():
            factor = math.gcd(factor, coefficient)
            count = Counter(monomial)
            shared = count if shared is None else shared & count
    if shared is None:
        return ZERO
    return Poly({product_of(shared.elements()): factor})


def floor_div(a: Poly, b: Poly) -> Poly:
    """Floor of a / b for positive b, simplified by identities that need no ranges.

    Division by the constant 0 has no value: it is left as it is.
    """
    if b == 1:
        return a
    if not b.terms:
        return of_atom(Atom.make(Kind.FLOOR_DIV, args=(a, b)))
    if a.is_constant and b.is_constant:
        return poly(a.constant // b.constant)
    quotient, remainder = split_quotient(a, b)
    if not remainder.terms or (remainder.is_constant and b.is_constant):
        return quotient  # a constant remainder is less than a constant divisor
    shared = _positive_factor(common_factor((remainder, b)), b)
    if shared != 1:
        smaller_a, smaller_b = exact_quotient(remainder, shared), exact_quotient(b, shared)
        assert smaller_a is not None and smaller_b is not None
        return quotient + floor_div(smaller_a, smaller_b)
    constant = remainder.constant
    if constant and len(remainder.terms) > 1:
        # (k*z + c) // (k*d) == (z + c//k) // d
        rest = remainder - constant
        shared = common_factor((rest, b))
        if shared.is_constant and shared.constant > 1:
            k = shared.constant
            reduced, divisor = exact_quotient(rest, shared), exact_quotient(b, shared)
            assert reduced is not None and divisor is not None
            return quotient + floor_div(reduced + constant // k, divisor)
    if len(remainder.terms) == 1:
        ((monomial, coefficient),) = remainder.terms.items()
        if coefficient == 1 and len(monomial) == 1 and monomial[0].kind is Kind.FLOOR_DIV:
            numerator, divisor = monomial[0].args  # (x // d) // b == x // (d*b)
            return quotient + floor_div(numerator, divisor * b)
    return quotient + of_atom(Atom.make(Kind.FLOOR_DIV, args=(remainder, b)))


def _positive_factor(shared: Poly, b: Poly) -> Poly:
    """The part of a common factor to cancel: what it leaves of a positive `b` is positive.

    A factor may be negative, and then so is what is left, unless that is a positive constant. A
    square is not negative.
    """
    rest = exact_quotient(b, shared)
    if rest is not None and rest.is_constant and rest.constant > 0:
        return shared
    ((monomial, coefficient),) = shared.terms.items()
    pairs = {atom: count - count % 2 for atom, count in Counter(monomial).items()}
    return Poly({product_of(Counter(pairs).elements()): coefficient})


def _monomial_quotient(a: Monomial, b: Monomial) -> Monomial | None:
    rest = list(a)
    for atom in b:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


# ---------------------------------------------------------------------------- helpers of the class
def rebuild(atom: Atom, args: tuple[Poly, ...]) -> Poly:
    """The atom with other arguments, simplified again."""
    match atom.kind:
        case Kind.SYMBOL:
            return of_atom(atom)
        case Kind.FLOOR_DIV:
            return floor_div(*args)
        case Kind.MIN:
            return minimum(*args)
        case Kind.MAX:
            return maximum(*args)
        case Kind.GCD:
            return gcd(*args)
        case Kind.MODULAR_INVERSE:
            return modular_inverse(*args)
        case Kind.SELECT_ZERO:
            return select_zero(*args)
        case Kind.LOAD:
            return load(atom.name, args)
        case unexpected:
            assert_never(unexpected)


def _substitute_atom(atom: Atom, values: Mapping[str, Poly]) -> Poly:
    if atom.kind is Kind.SYMBOL:
        return values.get(atom.name, of_atom(atom))
    if atom.symbols.isdisjoint(values):
        return of_atom(atom)
    return rebuild(atom, tuple(arg.substitute(values) for arg in atom.args))
