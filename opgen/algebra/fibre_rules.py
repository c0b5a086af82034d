"""The rules that solve the equations of a fibre; each replaces them by equivalent ones.

    consistency  an equation without unknowns is a condition on the cell
    unit         v + X = 0                     v = -X
    split        g*H + low + X = 0, 0 <= low - l < g
                                               H = (-X - l) // g,  low = the remainder
    divide       a*v + X = 0                   a divides X, v = -X / a
    eliminate    v + a*w + .. + X = 0          v = -(a*w + .. + X), its range bounds the others
    residue      a*x + b*y + X = 0             gcd(a, b) divides X,
                                               y = y0 + a/g*m,  x = x0 - b/g*m
    digits       a = x // d                    x = d*q + r,  a = q,  0 <= r < d
    enumerate    anything else                 try every value of one unknown

`split` is mixed-radix decoding (Knuth, The Art of Computer Programming 2, 4.1), `residue` the
general solution of a linear Diophantine equation (ibid., 4.5.2).
"""

from __future__ import annotations

from opgen.algebra import poly as algebra
from opgen.algebra import prove
from opgen.algebra.fibre_bounds import open_loop
from opgen.algebra.fibre_system import Linear, System, Unknown, equals_zero
from opgen.algebra.inequality import cleared
from opgen.algebra.poly import (
    ZERO,
    Atom,
    Kind,
    Poly,
    ceil_div,
    common_factor,
    exact_quotient,
    gcd,
    modular_inverse,
    of_atom,
    symbol,
)


def solve_equations(system: System) -> None:
    """Apply rules until no equation is left."""
    while True:
        _check_consistency(system)
        if not system.equations:
            return
        if _digits(system, system.equations, bare_only=False):
            continue
        forms = sorted(
            ((value, system.linear(value)) for value in system.equations),
            key=lambda item: len(item[1].factors),
        )
        plain = [item for item in forms if not item[1].opaque]
        if not (
            _unit(system, plain)
            or _split(system, plain)
            or _divide(system, plain)
            or _eliminate(system, plain)
            or _residue(system, plain)
            or _eliminate(system, forms)
        ):
            _enumerate(system, forms)


Forms = list[tuple[Poly, Linear]]


def _check_consistency(system: System) -> None:
    left: list[Poly] = []
    for value in system.equations:
        if system.unknowns_of(value):
            left.append(value)
        elif value.terms and not (system.nonnegative(value) and system.nonnegative(-value)):
            system.note("consistency", f"{value} == 0")
            system.assume(equals_zero(value))
    system.equations = left


def _assign(system: System, rule: str, name: str, value: Poly) -> None:
    system.note(rule, f"{name} = {value}")
    system.substitute(name, value)


# ---------------------------------------------------------------------------- one unknown
def _unit(system: System, forms: Forms) -> bool:
    for value, form in forms:
        if len(form.factors) == 1:
            ((name, factor),) = form.factors.items()
            if factor in (1, -1):
                system.equations.remove(value)
                _assign(system, "unit", name, -form.rest if factor == 1 else form.rest)
                return True
    return False


def _divide(system: System, forms: Forms) -> bool:
    for value, form in forms:
        if len(form.factors) != 1:
            continue
        ((name, factor),) = form.factors.items()
        direction = system.sign(factor)
        if direction is None:
            continue
        system.equations.remove(value)
        quotient = _exact_division(system, -direction * form.rest, direction * factor)
        _assign(system, "divide", name, quotient)
        return True
    return False


def _exact_division(system: System, a: Poly, b: Poly) -> Poly:
    """a / b, on the condition that b divides a."""
    quotient = system.quotient(a, b)
    rest = a - b * quotient
    if rest.terms:
        system.assume(equals_zero(rest))
    return quotient


# ---------------------------------------------------------------------------- several unknowns
def _split(system: System, forms: Forms) -> bool:
    for value, form in forms:
        if len(form.factors) < 2:
            continue
        for base in _bases(system, form):
            high = ZERO
            low = ZERO
            for name, factor in form.factors.items():
                ratio = exact_quotient(factor, base)
                if ratio is None:
                    low = low + factor * symbol(name)
                else:
                    high = high + ratio * symbol(name)
            least, greatest = system.range(low)
            if least is None or greatest is None:
                continue
            if not system.nonnegative(base - 1 - (greatest - least)):
                continue
            system.note("split", f"{value} == 0 in base {base}")
            system.equations.remove(value)
            if not low.terms:
                quotient = _exact_division(system, -form.rest, base)
                system.equations.append(high - quotient)
                return True
            quotient = system.quotient(-form.rest - least, base)
            system.equations += [high - quotient, low + form.rest + base * quotient]
            return True
    return False


def _bases(system: System, form: Linear) -> list[Poly]:
    """Positive candidates for the base: the factors and what they share, no unit."""
    factors = list(form.factors.values())
    found = dict.fromkeys(factors)
    for k, first in enumerate(factors):
        for second in factors[k + 1 :]:
            found[common_factor((first, second))] = None
    bases: dict[Poly, None] = {}
    for factor in found:
        if factor in (1, -1):
            continue
        direction = system.sign(factor)
        if direction is not None:
            bases[direction * factor] = None
    return list(bases)


def _eliminate(system: System, forms: Forms) -> bool:
    for value, form in forms:
        candidates = [name for name, factor in form.factors.items() if factor in (1, -1)]
        if not candidates:
            continue
        # Keep loops over original iterators and over short ranges; of equals, keep the later one.
        name = max(
            candidates,
            key=lambda n: (
                not system.unknowns[n].original,
                system.rank(n, value),
                _negated(system.unknowns[n].order),
            ),
        )
        factor = form.factors[name]
        rest = value - factor * symbol(name)
        system.equations.remove(value)
        _assign(system, "eliminate", name, -rest if factor == 1 else rest)
        return True
    return False


def _residue(system: System, forms: Forms) -> bool:
    for value, form in forms:
        if len(form.factors) != 2:
            continue
        # Step through the shorter range; of equals, through the later iterator.
        x, y = sorted(
            form.factors, key=lambda n: (_negated(system.rank(n, value)), system.unknowns[n].order)
        )
        a, b = form.factors[x], form.factors[y]
        a_sign, b_sign = system.sign(a), system.sign(b)
        if a_sign is None or b_sign is None:
            continue
        a, b = a * a_sign, b * b_sign
        shared, a_step, b_step, inverse = _lattice(system, a, b, y, x)
        target = -form.rest if shared == 1 else _exact_division(system, -form.rest, shared)
        first = b_sign * target * inverse
        first = first - a_step * system.quotient(first, a_step)
        y_first = system.define(f"{y}_first", first, ZERO, a_step - 1)
        numerator = -(form.rest + b_sign * b * y_first) * a_sign
        x_first = system.define(f"{x}_first", system.quotient(numerator, a))
        rest = numerator - a * x_first
        if rest.terms:
            system.learn(equals_zero(rest))
        step = _step_unknown(system, y, a_step)
        system.equations.remove(value)
        system.note("residue", f"{value} == 0 with {y} = {y_first} modulo {a_step}")
        system.substitute(y, y_first + a_step * step.value)
        system.substitute(x, x_first - a_sign * b_sign * b_step * step.value)
        return True
    return False


def _negated(places: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-place for place in places)


def _step_unknown(system: System, y: str, step: Poly) -> Unknown:
    """Counts the members of the residue class of y."""
    old = system.unknowns[y]
    unknown = Unknown(
        system.fresh(f"{y}_step"),
        ZERO if old.lower == 0 else None,
        None if old.upper is None else system.quotient(old.upper, step),
        old.order,
        original=False,
    )
    system.add_unknown(unknown, required=False)
    return unknown


def _lattice(system: System, a: Poly, b: Poly, y: str, x: str) -> tuple[Poly, Poly, Poly, Poly]:
    """gcd(a, b), a/gcd, b/gcd and the inverse of b/gcd modulo a/gcd; named unless constant."""
    shared = system.define(f"{x}_{y}_gcd", gcd(a, b), algebra.ONE)
    a_step, b_step = a, b
    if shared != 1:
        a_step = _cofactor(system, a, shared, f"{y}_stride")
        b_step = _cofactor(system, b, shared, f"{x}_stride")
    inverse = modular_inverse(b_step, a_step)
    return shared, a_step, b_step, system.define(f"{y}_inverse", inverse, ZERO, a_step - 1)


def _cofactor(system: System, value: Poly, shared: Poly, base: str) -> Poly:
    exact = exact_quotient(value, shared)
    if exact is not None:
        return exact
    known = len(system.definitions)
    cofactor = system.define(base, value // shared, algebra.ONE)
    if len(system.definitions) > known:
        system.learn(equals_zero(value - shared * cofactor))
    return cofactor


def _enumerate(system: System, forms: Forms) -> None:
    value, form = forms[0]
    candidates = form.opaque or frozenset(form.factors)
    name = min(candidates, key=lambda n: (system.rank(n, value), system.unknowns[n].order))
    system.note("enumerate", name)
    open_loop(system, name, enumerated=True)


# ---------------------------------------------------------------------------- digits
def range_of_watched(system: System, which: int) -> tuple[Poly | None, Poly | None]:
    """The range of a value, with digits in it where that helps."""
    least, greatest = system.range(system.watched[which])
    while least is None or greatest is None:
        if not _digits(system, [system.watched[which]], bare_only=True):
            break
        least, greatest = system.range(system.watched[which])
    return least, greatest


def digits_of_iterators(system: System) -> bool:
    """Split an unknown into digits where a requirement speaks of its quotient."""
    return _digits(system, system.required, bare_only=True)


def _digits(system: System, values: list[Poly], *, bare_only: bool) -> bool:
    """Give one floor division of unknowns a name of its own."""
    for value in values:
        for atom in _floors(system, value):
            numerator, divisor = atom.args
            bare = numerator.symbol
            if bare is not None and system.unknowns[bare].lower != 0:
                bare = None
            if bare is None and bare_only:
                continue
            simpler = prove.floor_div(numerator, divisor, system.box_facts)
            if simpler != of_atom(atom):
                system.replace_atom(atom, simpler)
            elif bare is not None:
                _digits_of_unknown(system, atom, bare, divisor)
            else:
                _digits_of_value(system, atom, numerator, divisor)
            return True
    return False


def _floors(system: System, value: Poly) -> list[Atom]:
    """Floor divisions of linear forms in the unknowns, innermost first."""
    found = [
        atom
        for atom in value.all_atoms()
        if atom.kind is Kind.FLOOR_DIV
        and system.unknowns_of(atom.args[0])
        and not system.unknowns_of(atom.args[1])
        and not system.linear(atom.args[0]).opaque
    ]
    return list(reversed(found))


def _digits_of_unknown(system: System, atom: Atom, name: str, divisor: Poly) -> None:
    old = system.unknowns[name]
    assert old.upper is not None
    extent = old.upper + 1
    even = exact_quotient(extent, divisor)
    last = (ceil_div(extent, divisor) if even is None else even) - 1
    high = Unknown(system.fresh(f"{name}_quotient"), ZERO, last, (*old.order, 0), original=False)
    low = Unknown(
        system.fresh(f"{name}_remainder"), ZERO, divisor - 1, (*old.order, 1), original=False
    )
    system.add_unknown(high, required=even is not None)
    system.add_unknown(low, required=True)
    if even is None:
        system.required.append(high.value)
    elif not system.fragile:
        # The digits' own ranges say exactly that the iterator is in its range. (A fragile value
        # may need the range of the iterator before its digits are known, so there it stays.)
        own = (old.value, *cleared(old.upper - old.value))
        system.required = [value for value in system.required if value not in own]
    system.note("digits", f"{name} = {divisor}*{high.name} + {low.name}")
    system.replace_atom(atom, high.value)
    system.substitute(name, divisor * high.value + low.value)


def _digits_of_value(system: System, atom: Atom, numerator: Poly, divisor: Poly) -> None:
    least, greatest = system.range(numerator)
    order = max(system.unknowns[name].order for name in system.unknowns_of(numerator))
    high = Unknown(
        system.fresh("quotient"),
        None if least is None else system.quotient(least, divisor),
        None if greatest is None else system.quotient(greatest, divisor),
        (*order, 0),
        original=False,
    )
    low = Unknown(system.fresh("remainder"), ZERO, divisor - 1, (*order, 1), original=False)
    system.add_unknown(high, required=False)
    system.add_unknown(low, required=True)
    system.note("digits", f"{numerator} = {divisor}*{high.name} + {low.name}")
    system.replace_atom(atom, high.value)
    system.equations.append(numerator - divisor * high.value - low.value)
