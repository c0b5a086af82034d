"""The prover: what it must prove, what it must never prove, and z3 as an independent judge."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from opgen.algebra import prove, search
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.inequality import cleared
from opgen.algebra.poly import (
    ONE,
    ZERO,
    Atom,
    Kind,
    Poly,
    load,
    maximum,
    minimum,
    poly,
    select_zero,
    symbol,
)
from opgen.algebra.prove import counterexample, implies, is_nonnegative


def symbols(names: str) -> list[Poly]:
    return [symbol(name) for name in names.split()]


B, C, H, W, V, K, L, OH = symbols("B C H W V K L OH")
b, c, h, i, j, k, u, v, w = symbols("b c h i j k u v w")
d, p, r, s, S, step = symbols("d p r s S step")


def facts(
    sizes: str = "",
    attributes: str = "",
    definitions: tuple[tuple[str, Poly], ...] = (),
    where: tuple[Condition, ...] = (),
    box: tuple[tuple[str, Poly], ...] = (),
) -> Facts:
    """Sizes >= 0, attributes of any sign, and iterators over boxes that are not empty."""
    parameters: list[tuple[str, int | None]] = [(name, 0) for name in sizes.split()]
    parameters += [(name, None) for name in attributes.split()]
    known = Facts.of(parameters, definitions, where)
    known = known.with_conditions(*(Condition(extent - 1) for _, extent in box))
    for name, extent in box:
        known = known.with_bounds(name, ZERO, extent - 1)
    return known


def at_least(value: Poly, bound: int) -> Condition:
    return Condition(value - bound)


def inside(value: Poly, extent: Poly) -> list[Poly]:
    return [value, extent - 1 - value]


# ---------------------------------------------------------------------------- shapes of real ops
CONV = facts(
    "H K",
    "s p d",
    (("OH", (H + 2 * p - d * (K - 1) - 1) // s + 1),),
    (at_least(s, 1), at_least(d, 1), at_least(p, 0)),
    (("i", OH), ("k", K)),
)
CEIL_POOL = facts(
    "H",
    "K s p",
    (("OH", minimum((H + 2 * p - K + s - 1) // s + 1, (H + p - 1) // s + 1)),),
    (at_least(s, 1), at_least(p, 0), at_least(K, 1)),
    (("i", OH),),
)
RESIZE = facts("H OH", box=(("h", OH), ("u", H)))
SHUFFLE = facts(
    "H C",
    "r",
    where=(at_least(r, 1),),
    box=(("c", C), ("i", r), ("j", r), ("h", H * r)),
)
SHIFT = facts(
    "W C",
    "step",
    (("V", W + (C - 1) * step),),
    (at_least(step, 0),),
    (("w", W), ("c", C)),
)
PAD = facts("W", "p", (("V", W + 2 * p),), (at_least(p, 0), at_least(W - p, 1)), (("v", V),))
SYMMETRIC = facts("W", "p", (("V", W + 2 * p),), (at_least(p, 0), Condition(W - p)), (("v", V),))
GROUPS = facts("G Ci Co", box=(("g", symbol("G")), ("c", symbol("Ci")), ("o", symbol("Co"))))
CUBIC = facts("H", "r", where=(at_least(r, 1),), box=(("h", H * r), ("k", poly(4))))


def mirrored(value: Poly, last: Poly) -> Poly:
    """Reflection at cells 0 and `last`, for a value at most one extent outside."""
    distance = maximum(value, -value)
    return minimum(distance, 2 * last - distance)


def symmetric(value: Poly, extent: Poly) -> Poly:
    """Reflection at the edges of cells 0 and extent - 1."""
    folded = maximum(value, -1 - value)
    return minimum(folded, 2 * extent - 1 - folded)


MUST_PROVE: list[tuple[str, Poly, Facts]] = [
    ("convolution reads below the padded end", H - 1 + p - (i * s - p + k * d), CONV),
    ("convolution reads above the padded start", (i * s - p + k * d) + p, CONV),
    ("the last window starts inside", H - 1 + p - i * s + p, CONV),
    ("a ceil-mode window starts inside", H - 1 - (i * s - p), CEIL_POOL),
    ("a ceil-mode window fits the padded input", H + 2 * p + s - 1 - K - i * s, CEIL_POOL),
    ("nearest resize reads inside", H - 1 - (h * H) // OH, RESIZE),
    ("nearest resize reads from 0", (h * H) // OH, RESIZE),
    (
        "half-pixel resize reads inside",
        minimum(maximum(((2 * h + 1) * H - OH) // (2 * OH), ZERO), H - 1),
        RESIZE,
    ),
    (
        "half-pixel resize stays below the end before clamping",
        H - 1 - ((2 * h + 1) * H - OH) // (2 * OH),
        RESIZE,
    ),
    ("channels of depth to space", C * r * r - 1 - (c * r * r + i * r + j), SHUFFLE),
    ("the same with channels last", C * r * r - 1 - ((i * r + j) * C + c), SHUFFLE),
    (
        "the same by quotient and remainder",
        C * r * r - 1 - (c * r * r + (h % r) * r + h % r),
        SHUFFLE,
    ),
    ("rows of depth to space", H - 1 - h // r, SHUFFLE),
    ("rows come back", H * r - 1 - ((h // r) * r + h % r), SHUFFLE),
    ("a remainder is below its divisor", r - 1 - h % r, SHUFFLE),
    ("a remainder is not negative", h % r, SHUFFLE),
    ("a shifted write is inside", V - 1 - (w + c * step), SHIFT),
    ("a shifted write is not negative", w + c * step, SHIFT),
    ("reflect padding reads from 0", mirrored(v - p, W - 1), PAD),
    ("reflect padding reads inside", W - 1 - mirrored(v - p, W - 1), PAD),
    ("symmetric padding reads from 0", symmetric(v - p, W), SYMMETRIC),
    ("symmetric padding reads inside", W - 1 - symmetric(v - p, W), SYMMETRIC),
    (
        "grouped channels",
        symbol("G") * symbol("Ci") - 1 - (symbol("g") * symbol("Ci") + c),
        GROUPS,
    ),
    ("cubic taps reach one before", (2 * h + 1 - r) // (2 * r) + k - 1 + 2, CUBIC),
    ("cubic taps reach two behind", H + 1 - ((2 * h + 1 - r) // (2 * r) + k - 1), CUBIC),
    ("a product of distances", (OH - 1 - i) * (K - 1 - k), CONV),
    ("a product of sizes", H * K - K - H + 1, facts(box=(("x", H), ("y", K)))),
    ("a square", (h - 3) * (h - 3) + 6 * h - 9, RESIZE),
    ("a clamp", H - 1 - minimum(maximum(w, ZERO), H - 1), facts("H W", box=(("u", H),))),
    (
        "a select by cases",
        u - select_zero(u, poly(-1), u),
        facts("H", box=(("u", H),)),
    ),
    (
        "a residue class below its modulus",
        s - 1 - (S * u - s * ((S * u) // s)),
        facts("H", "s S", where=(at_least(s, 1),), box=(("u", H),)),
    ),
    (
        "one tap of a strided convolution",
        (u + p) // s - (u + p - K + s) // s,
        facts("H", "K s p", where=(at_least(s, 1), Condition(K - s)), box=(("u", H),)),
    ),
    *(
        (f"a remainder of a {name} is {what}", value, facts("H", "p", box=(("i", H),)))
        for name, extreme in (("minimum", minimum(i, p)), ("maximum", maximum(i, p)))
        for what, value in zip(("no less than 0", "small"), inside(extreme % H, H), strict=True)
    ),
]


@pytest.mark.parametrize(
    ("value", "known"), [pytest.param(v, f, id=name) for name, v, f in MUST_PROVE]
)
def test_must_prove(value: Poly, known: Facts) -> None:
    assert is_nonnegative(value, known)


@pytest.mark.parametrize(
    ("value", "known"), [pytest.param(v, f, id=name) for name, v, f in MUST_PROVE]
)
def test_one_less_is_refuted_or_open(value: Poly, known: Facts) -> None:
    """Near misses: minus a number so large that it is false, with a witness."""
    assert not is_nonnegative(value - 1000, known)
    witness = counterexample(
        Condition(value - 1000),
        known,
        ["b", "c", "h", "i", "j", "k", "u", "v", "w", "x", "y", "g", "o"],
    )
    assert witness is not None
    assert (value - 1000).evaluate(witness) < 0


FALSE: list[tuple[str, Poly, Facts]] = [
    ("convolution without its padding", i * s - p + k * d, CONV),
    ("convolution beyond its input", H - 1 - (i * s - p + k * d), CONV),
    ("a tighter end than there is", H - 2 + p - (i * s - p + k * d), CONV),
    ("a ceil-mode window fits the input", H - 1 - (i * s - p + K - 1), CEIL_POOL),
    ("channels read as rows", C - 1 - i, SHUFFLE),
    ("a shifted write fits the unshifted row", W - 1 - (w + c * step), SHIFT),
    ("half-pixel resize needs its clamp", ((2 * h + 1) * H - OH) // (2 * OH), RESIZE),
    ("reflection without its precondition", v - p, PAD),
    (
        "halves of a maximum of even numbers that are large",
        maximum(2 * H, 2 * K) - 2 * (maximum(2 * H, 2 * K) // 2) - 1,
        facts("", "H K", where=(at_least(H, 2), at_least(K, 2))),
    ),
    ("an unbounded attribute", S + 100, facts("", "S")),
    ("a loaded index", load("t", [u]), facts("H", box=(("u", H),))),
    ("a negative step", w + c * S, facts("W C", "S", box=(("w", W), ("c", C)))),
    ("rounding up", h // r - (h + 1) // r, SHUFFLE),
]


@pytest.mark.parametrize(("value", "known"), [pytest.param(v, f, id=name) for name, v, f in FALSE])
def test_must_not_prove(value: Poly, known: Facts) -> None:
    assert not is_nonnegative(value, known)


# ---------------------------------------------------------------------------- random claims
@dataclass(frozen=True)
class Claim:
    value: Poly
    known: Facts
    upper: tuple[tuple[str, Poly], ...]  # symbol -> exclusive bound, for the grid

    def __repr__(self) -> str:
        return f"{self.value} >= 0 where {', '.join(map(str, self.known.conditions))}"


SIZE = ("A", "B")
BASE = Facts.of([("A", 1), ("B", 0), ("s", 1), ("q", None)])
A, q = symbols("A q")


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    extents = [A, B + 1, A * s, poly(3)]
    upper = tuple((name, draw(st.sampled_from(extents))) for name in ("x", "y"))
    known = BASE
    for name, extent in upper:
        known = known.with_bounds(name, ZERO, extent - 1)
    x, y = symbols("x y")
    if draw(st.booleans()):
        extra = [A - B, s - 2, A - x - y, q - 1, B - q, x // s - 1]
        known = known.with_conditions(Condition(draw(st.sampled_from(extra))))
    value = draw(st.one_of(_sums(upper), _edges(upper)))
    return Claim(value, known, upper)


def _sums(upper: tuple[tuple[str, Poly], ...]) -> st.SearchStrategy[Poly]:
    """Arbitrary sums, mostly false."""
    x, y = symbols("x y")
    terms = [ONE, x, y, A, B, s, q, x * s, y * A, x // s, x % s, (x + y) // 2, x * y, A * s]
    terms += [minimum(x, y), maximum(x, B), select_zero(x, y, A), upper[0][1], upper[1][1]]
    term = st.tuples(st.integers(-2, 2), st.sampled_from(terms)).map(lambda t: t[0] * t[1])
    return st.lists(term, min_size=1, max_size=4).map(lambda parts: sum(parts, ZERO))


def _edges(upper: tuple[tuple[str, Poly], ...]) -> st.SearchStrategy[Poly]:
    """Sums of what is just nonnegative, and the same less one."""
    x, y = symbols("x y")
    zero = [x, y, upper[0][1] - 1 - x, upper[1][1] - 1 - y, A - 1, B, s - 1, x % s]
    zero += [s - 1 - x % s, x - x // s, maximum(x, y) - y, s * (A - 1), (A - 1) * (s - 1), x * y]
    parts = st.lists(st.sampled_from(zero), min_size=1, max_size=3, unique=True)
    return st.tuples(parts, st.sampled_from([0, -1])).map(lambda t: sum(t[0], poly(t[1])))


def grid(claim: Claim) -> Iterator[dict[str, int]]:
    """Every small point at which the facts hold."""
    for values in itertools.product(range(1, 4), range(4), range(1, 4), range(-1, 3)):
        sizes = dict(zip("ABsq", values, strict=True))
        ranges = [range(bound.evaluate(sizes)) for _, bound in claim.upper]
        for indices in itertools.product(*ranges):
            point = {**sizes, **dict(zip("xy", indices, strict=True))}
            if all(condition.holds(point) for condition in claim.known.conditions):
                yield point


def is_contradicted(claim: Claim) -> bool:
    """Whether something was proved that is false at a small point."""
    return is_nonnegative(claim.value, claim.known) and any(
        claim.value.evaluate(point) < 0 for point in grid(claim)
    )


@settings(max_examples=120)
@given(claims())
def test_what_is_proved_holds_on_a_grid(claim: Claim) -> None:
    assert not is_contradicted(claim)


@settings(max_examples=40)
@given(claims(), st.sampled_from([s, poly(2), A, A * s, B + 2]))
def test_quotients_are_those_of_integers(claim: Claim, divisor: Poly) -> None:
    floor = prove.floor_div(claim.value, divisor, claim.known)
    for point in grid(claim):
        value, by = claim.value.evaluate(point), divisor.evaluate(point)
        assert floor.evaluate(point) == value // by


def test_a_factor_is_cancelled_where_it_is_positive() -> None:
    unknown, positive = facts("H", "s r"), facts("H", "s r", where=(at_least(s, 1),))
    assert prove.floor_div(s * H, s * r, positive) == H // r
    assert prove.floor_div(s * H, s * r, unknown) == (s * H) // (s * r) != H // r
    # At s = r = -1 it is -H.
    assert not is_nonnegative((s * H) // (s * r), unknown)


@settings(max_examples=60)
@given(claims())
def test_sample_points_satisfy_what_is_known(claim: Claim) -> None:
    names = ["A", "B", "s", "q", "x", "y"]
    points = claim.known.samples
    columns = []
    for name in names:
        found = points.value(symbol(name))
        assert found is not None
        columns.append(found[0])
    alive = [n for n in range(points.count) if points.alive >> n & 1]
    for n in alive:
        point = {name: column[n] for name, column in zip(names, columns, strict=True)}
        assert all(condition.holds(point) for condition in claim.known.conditions)


@settings(max_examples=60)
@given(claims(), st.sampled_from(Relation))
def test_conditions_are_implied_only_if_they_hold(claim: Claim, relation: Relation) -> None:
    condition = Condition(claim.value, relation)
    if implies(claim.known, condition):
        assert all(condition.holds(point) for point in grid(claim))


def test_an_unsound_prover_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a prover that is off by one does not pass the grid."""
    original = search.proves
    monkeypatch.setattr(search, "proves", lambda value, known: original(value + 1, known))
    monkeypatch.setattr(f"{__name__}.BASE", Facts.of(BASE.parameters))  # without kept answers
    contradicted: list[bool] = []

    @settings(max_examples=60)
    @given(claims())
    def every_claim(claim: Claim) -> None:
        contradicted.append(is_contradicted(claim))

    every_claim()
    assert sum(contradicted) >= 5


# ---------------------------------------------------------------------------- z3 as a judge
class Encoder:
    """Polynomials as z3 terms; an atom becomes an integer with the facts that define it."""

    def __init__(self) -> None:
        self.terms: dict[Atom, z3.ArithRef] = {}
        self.axioms: list[z3.BoolRef] = []

    def poly(self, value: Poly) -> z3.ArithRef:
        total = z3.IntVal(value.constant)
        for monomial, coefficient in value.terms.items():
            if monomial:
                product = z3.IntVal(coefficient)
                for atom in monomial:
                    product = product * self.atom(atom)
                total = total + product
        return total

    def atom(self, atom: Atom) -> z3.ArithRef:
        if atom not in self.terms:
            term = self.terms[atom] = z3.Int(atom.key)
            args = [self.poly(arg) for arg in atom.args]
            match atom.kind:
                case Kind.FLOOR_DIV:
                    x, y = args
                    self.axioms += [y >= 1, y * term <= x, x < y * term + y]
                case Kind.MIN | Kind.MAX:
                    self.axioms.append(z3.Or([term == x for x in args]))
                    for x in args:
                        self.axioms.append(term <= x if atom.kind is Kind.MIN else term >= x)
                case Kind.SELECT_ZERO:
                    self.axioms.append(term == z3.If(args[0] == 0, args[1], args[2]))
                case _:
                    pass
        return self.terms[atom]

    def condition(self, condition: Condition) -> z3.BoolRef:
        value = self.poly(condition.value)
        match condition.relation:
            case Relation.GE:
                return value >= 0
            case Relation.EQ:
                return value == 0
            case Relation.NE:
                return value != 0


def verdict(value: Poly, known: Facts, milliseconds: int = 400) -> str:
    """What z3 says of `value >= 0`: proved, refuted or unknown."""
    encoder = Encoder()
    assumed = [encoder.condition(condition) for condition in known.conditions]
    assumed += [encoder.poly(symbol(name)) >= floor for name, floor in known.floors.items()]
    denied = encoder.poly(value) < 0
    solver = z3.Solver()
    solver.set("timeout", milliseconds)
    solver.add(*assumed, denied, *encoder.axioms)
    answer = str(solver.check())
    return {"unsat": "proved", "sat": "refuted"}.get(answer, "unknown")


def test_z3_never_disagrees() -> None:
    """z3 must not refute what was proved; and hardly anything that z3 proves may stay open."""
    table: Counter[tuple[bool, str]] = Counter()

    @settings(max_examples=80)
    @given(claims())
    def every_claim(claim: Claim) -> None:
        ours, theirs = is_nonnegative(claim.value, claim.known), verdict(claim.value, claim.known)
        assert not (ours and theirs == "refuted"), claim
        table[ours, theirs] += 1

    every_claim()
    print(dict(table))
    assert table[True, "proved"] >= 10
    assert table[False, "refuted"] >= 10
    assert table[False, "proved"] <= 0.15 * table[True, "proved"]


@pytest.mark.parametrize(("value", "known"), [pytest.param(v, f, id=name) for name, v, f in FALSE])
def test_z3_agrees_that_it_is_false(value: Poly, known: Facts) -> None:
    assert verdict(value, known, 2000) != "proved"


# ---------------------------------------------------------------------------- facts
def test_facts_are_immutable_and_grow() -> None:
    base = facts("H", box=(("h", H),))
    more = base.with_conditions(Condition(H - 5))
    assert is_nonnegative(H - 4, more)
    assert not is_nonnegative(H - 4, base)
    tighter = base.with_bounds("h", poly(2), None)
    assert is_nonnegative(h - 2, tighter)
    assert is_nonnegative(H - 3, tighter)
    assert not is_nonnegative(h - 2, base)


def test_the_same_step_leads_to_the_same_facts() -> None:
    base = facts("H")
    assert base.with_bounds("h", ZERO, H) is base.with_bounds("h", ZERO, H)
    assert base.with_bounds("h", ZERO, H) is not base.with_bounds("h", ZERO, H - 1)


def test_equations_work_both_ways() -> None:
    known = facts("H W", where=(Condition(H - 2 * W, Relation.EQ),))
    assert prove.is_zero(H - 2 * W, known)
    assert is_nonnegative(H - W, known)
    assert prove.sign(2 * W - H, known) == 0


def test_unequal_zero_helps_where_the_sign_is_plain() -> None:
    known = facts("H", "S").with_conditions(
        Condition(H, Relation.NE), Condition(symbol("S"), Relation.NE)
    )
    assert is_nonnegative(H - 1, known)
    assert not is_nonnegative(symbol("S") - 1, known)


def test_hidden_definitions_show_their_bounds_only() -> None:
    known = facts("H").with_definition("t", H * H, lower=ZERO, upper=H * 7)
    assert is_nonnegative(symbol("t"), known)
    assert is_nonnegative(7 * H - symbol("t"), known)
    assert not is_nonnegative(H * H - symbol("t"), known)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (h // r - 2, [h - 2 * r]),
        (2 - h // r, [3 * r - 1 - h]),
        (minimum(a := symbol("a"), b) - c, [a - c, b - c]),
        (c - 2 * maximum(a, b), [c - 2 * a, c - 2 * b]),
        (maximum(a, b) - c, [maximum(a, b) - c]),
        (2 * (h // r) - 5, [h // r - 3]),
        (3 * a - 5, [a - 2]),
    ],
)
def test_clearing_is_exact(value: Poly, parts: list[Poly]) -> None:
    result = cleared(value)
    if value == 2 * (h // r) - 5:
        assert result == (h - 3 * r,)  # tightened, then cleared
    else:
        assert list(result) == parts
    grids = itertools.product(range(-3, 6), range(-3, 6), range(-3, 6), range(0, 9), range(1, 4))
    for point in grids:
        values: Mapping[str, int] = dict(zip("abchr", point, strict=True))
        assert (value.evaluate(values) >= 0) == all(x.evaluate(values) >= 0 for x in result)


@pytest.mark.parametrize("names", list(itertools.permutations("abc")), ids="".join)
def test_answers_do_not_depend_on_names(names: tuple[str, str, str]) -> None:
    """Of a window that steps by 2: the bound of the tap makes all the rest even."""
    extent, cell, tap = map(symbol, names)
    known = Facts.of([(names[0], 2)])
    known = known.with_bounds(names[1], ZERO, poly(1) + (extent - 1) // 2 - 1)
    known = known.with_bounds(names[2], ZERO, poly(2))
    assert is_nonnegative(2 * extent - 1 - 2 * cell - tap, known)
    assert not is_nonnegative(2 * extent - 3 - 2 * cell - tap, known)


def test_answers_do_not_depend_on_what_was_asked_before() -> None:
    questions = [value for _, value, known in MUST_PROVE if known is CONV]
    questions += [value - 1 for value in questions]

    def fresh() -> Facts:
        return facts(
            "H K",
            "s p d",
            (("OH", (H + 2 * p - d * (K - 1) - 1) // s + 1),),
            (at_least(s, 1), at_least(d, 1), at_least(p, 0)),
            (("i", OH), ("k", K)),
        )

    forward, backward = fresh(), fresh()
    there = [is_nonnegative(value, forward) for value in questions]
    back = [is_nonnegative(value, backward) for value in reversed(questions)]
    alone = [is_nonnegative(value, fresh()) for value in questions]
    assert there == back[::-1] == alone


def test_a_question_costs_a_bounded_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuel is a count: a hopeless question ends after as many steps everywhere."""
    taken: list[int] = []
    original = search._Fuel.take

    def take(self: search._Fuel) -> bool:
        taken.append(1)
        return original(self)

    monkeypatch.setattr(search._Fuel, "take", take)
    hopeless = H * K * W - OH * V * L + S * S * d - p * r * step + 10**6
    known = facts("H K W OH V L", "S d p r step", where=(at_least(d, 1),))
    monkeypatch.setattr(Facts, "refutes", lambda self, slack: False)
    assert not is_nonnegative(hopeless, known)
    assert 0 < len(taken) < 500
