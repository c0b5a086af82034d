"""Points at which everything known holds: the cheapest way to see that a claim is no theorem.

A point that makes a claim false settles it without a search, as in the `statically_known_true` of
TorchInductor. Values are kept as columns, one per atom, because one claim is tested at all points
at once. Nothing here is drawn from a random generator: the values depend on names and positions
only, so a proof that succeeds or fails does so in every process.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, assert_never

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Atom, Kind, Monomial, Poly, symbol_atom

Column = tuple[int, ...]
"""One value per point."""

POINTS: Final = 24
"""How many points are used."""
ENOUGH: Final = 10
"""With fewer left, more are drawn."""

_FEW: Final = (64, 256), POINTS  # candidates drawn, until so many are left, which are kept
_MANY: Final = (1024,), 256

# What a parameter takes. Small values, with the edges 0 and 1 well represented.
_SIZES: Final = (1, 2, 1, 3, 4, 5, 2, 6, 8, 3, 1, 9, 7, 2, 12, 5)
_ATTRIBUTES: Final = (0, 1, 0, 2, 1, 0, 3, 1, 2, 0, 5, 1)
_FREE: Final = (0, 1, -1, 2, 3, -2, 1, 0, 5, -3, 2, 7)


class Samples:
    """Columns of values at a fixed list of points, some of which may have been ruled out.

    `alive` is a bit mask of the points that satisfy everything known. Children share nothing
    mutable with their parents: `extended` and `filtered` return new objects.
    """

    __slots__ = ("_base", "_monomials", "_values", "alive", "count")

    def __init__(
        self,
        count: int,
        alive: int,
        values: dict[Atom, tuple[Column, int]],
        base: Samples | None = None,
    ) -> None:
        self.count = count
        self.alive = alive
        self._values = values  # atom -> column and mask of the points where it is defined
        self._base = base  # gives the values of atoms that are no symbols, if not this
        self._monomials: dict[Monomial, tuple[Column, int] | None] = {}

    # ------------------------------------------------------------------ values
    def value(self, value: Poly) -> tuple[Column, int] | None:
        """The values of a polynomial, with the mask of the points where it is defined.

        None if it depends on a symbol without values.
        """
        constant = value.constant
        total: Column | None = None
        defined = self.alive
        for monomial, coefficient in value.terms.items():
            if not monomial:
                continue
            column = self._monomial(monomial)
            if column is None:
                return None
            defined &= column[1]
            if total is not None:
                total = tuple([t + coefficient * x for t, x in zip(total, column[0], strict=True)])
            elif constant or coefficient != 1:
                total = tuple([constant + coefficient * x for x in column[0]])
            else:
                total = column[0]
        return (constant,) * self.count if total is None else total, defined

    def refutes(self, value: Poly) -> bool:
        """Whether `value >= 0` fails at a point."""
        found = self.value(value)
        if found is None:
            return False
        column, defined = found
        return any(x < 0 and defined >> k & 1 for k, x in enumerate(column))

    def _monomial(self, monomial: Monomial) -> tuple[Column, int] | None:
        if monomial in self._monomials:
            return self._monomials[monomial]
        first = self._atom(monomial[0])
        result = first
        if first is not None and len(monomial) > 1:
            rest = self._monomial(monomial[1:])
            result = rest and (
                tuple(x * y for x, y in zip(first[0], rest[0], strict=True)),
                first[1] & rest[1],
            )
        self._monomials[monomial] = result
        return result

    def _atom(self, atom: Atom) -> tuple[Column, int] | None:
        known = self._values.get(atom)
        if known is not None:
            return known
        if atom.kind in (Kind.SYMBOL, Kind.LOAD):
            return None
        if self._base is not None:
            return self._base._atom(atom)
        columns: list[Column] = []
        defined = -1
        for arg in atom.args:
            found = self.value(arg)
            if found is None:
                return None
            columns.append(found[0])
            defined &= found[1]
        out: list[int] = []
        for k, args in enumerate(zip(*columns, strict=True)):
            number = _evaluate(atom, args) if defined >> k & 1 else None
            if number is None:
                defined &= ~(1 << k)
            out.append(number or 0)
        result = tuple(out), defined
        self._values[atom] = result
        return result

    # ------------------------------------------------------------------ children
    def extended(self, name: str, lower: Iterable[Poly], upper: Iterable[Poly]) -> Samples:
        """With values for a new symbol: its bounds and what lies between, all ends inclusive."""
        alive = self.alive
        lowest: Column | None = None
        highest: Column | None = None
        for bound in lower:
            found = self.value(bound)
            if found is not None:
                alive &= found[1]
                lowest = found[0] if lowest is None else tuple(map(max, lowest, found[0]))
        for bound in upper:
            found = self.value(bound)
            if found is not None:
                alive &= found[1]
                highest = found[0] if highest is None else tuple(map(min, highest, found[0]))
        column: list[int] = []
        for k, number in enumerate(_mixed(name, self.count)):
            low = None if lowest is None else lowest[k]
            high = None if highest is None else highest[k]
            if low is not None and high is not None and low > high:
                alive &= ~(1 << k)
            column.append(_pick(low, high, k, number))
        return self._child(alive, name, tuple(column))

    def defined(self, name: str, value: Poly) -> Samples:
        """With values for a symbol that has a formula."""
        found = self.value(value)
        if found is None:
            return self
        return self._child(self.alive & found[1], name, found[0])

    def filtered(self, conditions: Iterable[Condition]) -> Samples:
        """Without the points that violate a condition."""
        alive = self.alive
        for condition in conditions:
            found = self.value(condition.value)
            if found is None:
                continue
            alive &= found[1] & _mask(condition.relation, found[0])
            if not alive:
                break
        return Samples(self.count, alive, dict(self._values))

    def _child(self, alive: int, name: str, column: Column) -> Samples:
        values = dict(self._values)
        values[symbol_atom(name)] = (column, -1)
        return Samples(self.count, alive, values)

    def compressed(self, most: int = POINTS) -> Samples:
        """Only the points that are left, and no more than `most` of them."""
        keep = [k for k in range(self.count) if self.alive >> k & 1][:most]
        values = {
            atom: (tuple(column[k] for k in keep), -1)
            for atom, (column, _) in self._values.items()
            if atom.kind is Kind.SYMBOL
        }
        return Samples(len(keep), (1 << len(keep)) - 1, values)

    def shifted(self, floors: Mapping[str, int]) -> Samples:
        """The same points with each symbol counted from its floor; atoms keep their values."""
        values = {a: column for a, column in self._values.items() if a.kind is Kind.SYMBOL}
        for name, floor in floors.items():
            atom = symbol_atom(name)
            if floor and atom in values:
                column, defined = values[atom]
                values[atom] = (tuple(x - floor for x in column), defined)
        return Samples(self.count, self.alive, values, self)


def draw(
    parameters: Sequence[tuple[str, int | None]],
    floors: Mapping[str, int],
    definitions: Sequence[tuple[str, Poly]],
    conditions: Sequence[Condition],
    *,
    many: bool = False,
) -> Samples:
    """Points of the parameters that satisfy the definitions and the conditions.

    `parameters` carry the lower bound they were declared with, which tells a size (0) from an
    attribute; `floors` are the tightest constant lower bounds known.
    """
    numbers, kept = _MANY if many else _FEW
    for candidates in numbers:
        found = _candidates(parameters, floors, definitions, conditions, candidates)
        if found.alive.bit_count() >= kept:
            break
    return found.compressed(kept)


def _candidates(
    parameters: Sequence[tuple[str, int | None]],
    floors: Mapping[str, int],
    definitions: Sequence[tuple[str, Poly]],
    conditions: Sequence[Condition],
    candidates: int,
) -> Samples:
    """So many points, of which some may be ruled out; the first are the same for any number."""
    columns: dict[Atom, tuple[Column, int]] = {}
    formulated = {name for name, _ in definitions}
    direct = [c for c in conditions if c.value.symbols.isdisjoint(formulated)]
    solved = _solved_symbols([name for name, _ in parameters], direct)
    ceilings = _ceilings(direct)
    for name, declared in parameters:
        if name not in solved:
            ceiling = ceilings.get(name)
            column = _parameter_column(name, declared, floors.get(name), ceiling, candidates)
            columns[symbol_atom(name)] = (column, -1)
    samples = Samples(candidates, (1 << candidates) - 1, columns)
    formulas = [*definitions, *solved.items()]
    while formulas:
        ready = next(
            (f for f in formulas if samples.value(f[1]) is not None),
            None,
        )
        if ready is None:
            break
        formulas.remove(ready)
        samples = samples.defined(*ready)
    bounds = [Condition(Poly({(symbol_atom(name),): 1}) - floor) for name, floor in floors.items()]
    return samples.filtered([*bounds, *conditions])


def _solved_symbols(names: list[str], conditions: list[Condition]) -> dict[str, Poly]:
    """Parameters that an equation determines; drawing them freely would never meet it."""
    solved: dict[str, Poly] = {}
    for condition in conditions:
        if condition.relation is not Relation.EQ:
            continue
        for name in names:
            split = condition.value.linear_in(symbol_atom(name))
            if split is None or name in solved or name in split[1].symbols:
                continue
            factor, rest = split
            if factor in (1, -1) and rest.symbols.isdisjoint(solved):
                solved[name] = -rest if factor == 1 else rest
                break
    return solved


def _mask(relation: Relation, column: Column) -> int:
    """The bit mask of the points at which a value has a relation to zero."""
    match relation:
        case Relation.GE:
            passed = ["1" if number >= 0 else "0" for number in column]
        case Relation.EQ:
            passed = ["1" if number == 0 else "0" for number in column]
        case Relation.NE:
            passed = ["0" if number == 0 else "1" for number in column]
        case _:
            assert_never(relation)
    return int("".join(reversed(passed)) or "0", 2)


def _ceilings(conditions: Iterable[Condition]) -> dict[str, int]:
    """The constant upper bounds of single symbols."""
    ceilings: dict[str, int] = {}
    for condition in conditions:
        value = condition.value
        name = (value.constant - value).symbol
        if name is not None and condition.relation is Relation.GE:
            ceilings[name] = min(value.constant, ceilings.get(name, value.constant))
    return ceilings


@lru_cache(maxsize=1024)
def _parameter_column(
    name: str, declared: int | None, floor: int | None, ceiling: int | None, candidates: int
) -> Column:
    seed = zlib.crc32(name.encode())
    if floor is not None and ceiling is not None and ceiling < floor + len(_SIZES):
        return tuple(floor + _mix(seed, k) % max(ceiling - floor + 1, 1) for k in range(candidates))
    size = declared == 0
    out: list[int] = []
    for k in range(candidates):
        if k == 0 and floor is not None:
            out.append(floor)  # the corner where everything is least
            continue
        draw_number = _mix(seed, k)
        if floor is None:
            out.append(_FREE[draw_number % len(_FREE)])
        elif size:
            # Mostly positive: a point with an empty tensor says little about the others.
            zero = k % 16 == 7 and draw_number >> 8 & 1
            out.append(max(floor, 0 if zero else _SIZES[draw_number % len(_SIZES)]))
        else:
            out.append(floor + _ATTRIBUTES[draw_number % len(_ATTRIBUTES)])
    return tuple(out)


def _mix(seed: int, position: int) -> int:
    """A well-stirred number from a name and a position (the finaliser of splitmix32)."""
    x = (seed + (position + 1) * 0x9E3779B9) & 0xFFFFFFFF
    x = ((x ^ x >> 16) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ x >> 15) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ x >> 15


@lru_cache(maxsize=1024)
def _mixed(name: str, count: int) -> Column:
    """A well-stirred number for each of the first positions."""
    seed = zlib.crc32(name.encode())
    return tuple(_mix(seed, position) for position in range(count))


def _pick(low: int | None, high: int | None, position: int, number: int) -> int:
    if low is None and high is None:
        return _FREE[number % len(_FREE)]
    if high is None:
        assert low is not None
        return low + _ATTRIBUTES[number % len(_ATTRIBUTES)]
    if low is None:
        return high - _ATTRIBUTES[number % len(_ATTRIBUTES)]
    if low >= high or position % 6 == 0:
        return low
    if position % 6 == 1:  # corners of the box, where linear claims fail first
        return high
    match number % 4:
        case 0:
            return low
        case 1:
            return high
        case _:
            return low + (number >> 4) % (high - low + 1)


def _evaluate(atom: Atom, args: tuple[int, ...]) -> int | None:
    """The value of an atom, None where it has none."""
    match atom.kind:
        case Kind.FLOOR_DIV:
            return args[0] // args[1] if args[1] > 0 else None
        case Kind.MIN:
            return min(args)
        case Kind.MAX:
            return max(args)
        case Kind.GCD:
            return math.gcd(*args)
        case Kind.MODULAR_INVERSE:
            if args[1] == 1:
                return 0
            possible = args[1] > 1 and math.gcd(*args) == 1
            return pow(args[0], -1, args[1]) if possible else None
        case Kind.SELECT_ZERO:
            return args[1] if args[0] == 0 else args[2]
        case Kind.LOAD:
            # A tensor may hold anything; this one holds small integers.
            seed = zlib.crc32(atom.name.encode())
            for arg in args:
                seed = _mix(seed, arg)
            return _FREE[seed % len(_FREE)]
        case Kind.SYMBOL:
            raise AssertionError("a symbol has a column or no value")
