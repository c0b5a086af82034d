"""Random relations, their points by brute force, and the comparison with solved fibres.

Brute force walks the whole box and evaluates guards and indices; it shares nothing with the solver
but the evaluation of polynomials, which `test_poly` checks.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.fibre import Fibre, Loop, Problem, TargetIndex, points, solve
from opgen.algebra.poly import ZERO, Poly, load, maximum, minimum, poly, select_zero, symbol

T = TypeVar("T")
Point = tuple[int, ...]
Choose = Callable[[Sequence[Any]], Any]  # picks one alternative


@dataclass(frozen=True)
class RandomRelation:
    """A problem with the facts that its parameters obey and the features it was made of."""

    problem: Problem
    facts: Facts
    features: tuple[str, ...]

    def __str__(self) -> str:
        return describe(self.problem)

    __repr__ = __str__


def describe(problem: Problem) -> str:
    """A relation in one line."""
    box = ", ".join(f"{name} in {extent}" for name, extent in problem.iterators)
    guards = " and ".join(map(str, problem.guards)) or "always"
    target = ", ".join(
        f"{index.value}{' clamped' if index.clamp else ''} = {name} in {index.extent}"
        + (f" (cell {index.coordinate})" if index.coordinate is not None else "")
        for name, index in zip(problem.coordinates, problem.target, strict=True)
    )
    return f"[{box}] if {guards} -> {target}"


# ---------------------------------------------------------------------------- random relations
A, B, D = symbol("A"), symbol("B"), symbol("D")
s, d, r, p, S = symbol("s"), symbol("d"), symbol("r"), symbol("p"), symbol("S")
PARAMETERS: tuple[tuple[str, int | None], ...] = (
    ("A", 0),
    ("B", 0),
    ("D", 0),
    ("s", 1),
    ("d", 1),
    ("r", 1),
    ("p", 0),
    ("S", None),
)
FACTS = Facts.of(PARAMETERS)


class _Builder:
    """Makes a relation of what `choose` picks; each method is one syntactic category."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.features: list[str] = []
        extents = [A, A, B, D, poly(2), poly(3), r, s, A * r, A * s, poly(1), B * 2]
        count = choose([1, 2, 2, 3, 3, 4])
        self.iterators = [(f"i{k}", choose(extents)) for k in range(count)]
        self.names = [symbol(name) for name, _ in self.iterators]

    def pick(self, alternatives: Sequence[T]) -> T:
        chosen: T = self.choose(alternatives)
        return chosen

    def chance(self, percent: int) -> bool:
        return self.pick(range(20)) < percent // 5

    def some(self, count: int) -> list[int]:
        left = list(range(len(self.names)))
        picked: list[int] = []
        for _ in range(min(count, len(left))):
            picked.append(self.pick(left))
            left.remove(picked[-1])
        return picked

    def coefficient(self) -> Poly:
        plain = [poly(1)] * 8 + [poly(-1)] * 2
        others = [poly(2), poly(3), poly(-2), s, s, d, -s, r, A, s * d, poly(4), S]
        return self.pick([*plain, *others])

    def term(self, value: Poly) -> Poly:
        kind = self.pick(range(20))
        if kind < 12:
            return value
        if kind == 12:
            return self.opaque(value)
        self.features.append("quotient or remainder")
        divisor = self.pick([poly(2), poly(3), r, s])
        if kind > 17:
            value = value + self.pick([p, poly(1), -p, poly(2)])
        return value // divisor if kind % 2 else value % divisor

    def opaque(self, value: Poly) -> Poly:
        """Something that no rule inverts."""
        self.features.append("opaque")
        other = self.pick(self.names)
        return self.pick(
            [
                minimum(value, other),
                maximum(value - other, ZERO),
                value * other,
                value // (other + 1),
                value % (other + 1),
                select_zero(other, value, A - value),
                (value // 2 + other) // 2,
                load("offset", [load("offset", [value]) + 1]) + value,
            ]
        )

    def form(self) -> Poly:
        value = ZERO
        if len(self.names) > 1 and self.chance(30):
            self.features.append("mixed radix")
            for k in self.some(self.pick([2, 3])):
                value = value * self.iterators[k][1] + self.names[k]
            return value
        for k in self.some(self.pick([1, 1, 2, 2, 3])):
            value = value + self.coefficient() * self.term(self.names[k])
        return value + self.pick([ZERO, ZERO, ZERO, poly(1), -p, p, poly(-1)])

    def index(self, position: int) -> TargetIndex:
        extent = self.pick([A, B * r, poly(5), poly(7), D + 2, A * s])
        value = self.form()
        kind = self.pick(range(20))
        if kind < 3:
            self.features.append("clamped target")
            return TargetIndex(value, extent, clamp=True)
        if kind < 6:
            self.features.append("wrapped target")
            return TargetIndex(value % extent, extent)
        if kind < 8:
            self.features.append("load")
            return TargetIndex(value + load("offset", [self.pick(self.names)]), extent)
        if kind < 9:
            self.features.append("phase")
            return TargetIndex(value, extent, coordinate=2 * symbol(f"u{position}") + 1)
        return TargetIndex(value, extent)

    def guards(self) -> Iterator[Condition]:
        first, last = self.names[0], self.names[-1]
        if self.chance(25):
            self.features.append("guard >=")
            plain = [first - 1, A - last, first - last, s - 2, first % 3 - 1]
            yield Condition(self.pick(plain))
        if self.chance(35):  # a factor that is absent outside its tensor
            self.features.append("guard of a read")
            value, extent = self.form(), self.pick([A, poly(4), B + 1])
            yield Condition(value)
            yield Condition(extent - 1 - value)
        if self.chance(15):
            self.features.append("guard ==")
            values = [first % 2, first - last, self.form() - 1, 2 * first - s * last]
            yield Condition(self.pick(values), Relation.EQ)
        if self.chance(15):
            self.features.append("guard !=")
            yield Condition(self.pick([first - last, first - 1, self.form()]), Relation.NE)
        if self.chance(10):
            self.features.append("load")
            offset = load("offset", [self.pick(self.names)])
            yield Condition(offset - self.pick([ZERO, poly(1)]))

    def relation(self) -> RandomRelation:
        target = tuple(self.index(k) for k in range(self.pick([0, 1, 1, 1, 2, 2, 2, 3])))
        coordinates = tuple(f"u{k}" for k in range(len(target)))
        problem = Problem(tuple(self.iterators), tuple(self.guards()), target, coordinates)
        facts = FACTS
        for name, index in zip(coordinates, target, strict=True):
            if index.coordinate is not None:
                facts = facts.with_bounds(name, ZERO, (index.extent - 2) // 2)
        return RandomRelation(problem, facts, tuple(self.features))


@st.composite
def relations(draw: st.DrawFn) -> RandomRelation:
    """Relations of one to four iterators and up to three target indices; they shrink."""
    return _Builder(lambda alternatives: draw(st.sampled_from(alternatives))).relation()


def seeded(seed: int) -> RandomRelation:
    """The relation of a seed."""
    return _Builder(random.Random(seed).choice).relation()


# ---------------------------------------------------------------------------- brute force
def offsets(name: str, index: tuple[int, ...]) -> int:
    """A tensor of integers in [-1, 1] that notices a read outside."""
    assert all(0 <= i < 1000 for i in index), f"{name}{list(index)} was read outside"
    return zlib.crc32(f"{name}{index}".encode()) % 3 - 1


def box(problem: Problem, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every point of the iterators' box, in order of iteration, with the sizes."""
    names = [name for name, _ in problem.iterators]
    ranges = [range(extent.evaluate(sizes)) for _, extent in problem.iterators]
    for values in itertools.product(*ranges):
        yield {**sizes, **dict(zip(names, values, strict=True))}


def brute_force(problem: Problem, sizes: Mapping[str, int]) -> dict[Point, list[Point]]:
    """The points that reach each cell, in order of iteration, by trying all."""
    found: dict[Point, list[Point]] = {}
    if any(index.extent.evaluate(sizes) < 1 for index in problem.target):
        return found  # there are no cells, and `% extent` has no value
    for values in box(problem, sizes):
        if not all(guard.holds(values, offsets) for guard in problem.guards):
            continue
        cell: list[int] = []
        for index in problem.target:
            extent = index.extent.evaluate(sizes)
            value = index.value.evaluate(values, offsets)
            if index.clamp:
                value = min(max(value, 0), extent - 1)
            if not 0 <= value < extent:
                break
            cell.append(value)
        else:
            point = tuple(values[name] for name, _ in problem.iterators)
            found.setdefault(tuple(cell), []).append(point)
    return found


def cells(problem: Problem, sizes: Mapping[str, int]) -> Iterator[tuple[Point, Point]]:
    """Every cell that the coordinates can name, after the coordinates that name it."""
    ranges: list[list[tuple[int, int]]] = []
    for name, index in zip(problem.coordinates, problem.target, strict=True):
        extent = index.extent.evaluate(sizes)
        named = [(u, u) for u in range(extent)]
        if index.coordinate is not None:
            values = [(u, index.coordinate.evaluate({**sizes, name: u})) for u in range(extent)]
            named = [(u, value) for u, value in values if 0 <= value < extent]
        ranges.append(named)
    for chosen in itertools.product(*ranges):
        yield tuple(u for u, _ in chosen), tuple(cell for _, cell in chosen)


# ---------------------------------------------------------------------------- comparison
class MismatchError(AssertionError):
    """A fibre is not what brute force finds."""


def small_sizes(generator: random.Random) -> dict[str, int]:
    """Sizes from 0 to 4, attributes from their floor to 4."""
    sizes: dict[str, int] = {}
    for name, floor in PARAMETERS:
        if floor is None:
            sizes[name] = generator.randint(-2, 3)
        elif name.isupper():
            sizes[name] = generator.choice([0, 1, 2, 2, 3, 3, 4])
        else:
            sizes[name] = generator.randint(floor, 4 if floor else 2)
    return sizes


def compare(problem: Problem, fibre: Fibre, sizes: Mapping[str, int]) -> Counter[str]:
    """Check one fibre at one choice of sizes, cell by cell; count what was executed.

    The points have to be the same, each once: a fibre that executes the body for a point that does
    not contribute fails as one that misses a point does.
    """
    counts: Counter[str] = Counter()
    expected = brute_force(problem, sizes)
    order = [name for name, _ in problem.iterators]
    for coordinates, cell in cells(problem, sizes):
        where = f"{describe(problem)}\nat {dict(sizes)} cell {cell}"
        try:
            found = list(points(fibre, sizes, coordinates, offsets))
        except (ZeroDivisionError, ValueError, KeyError, AssertionError) as error:
            raise MismatchError(f"{where}: {error!r}\n{fibre}") from error
        got = [tuple(point[name] for name in order) for point in found]
        want = expected.get(cell, [])
        if (got if fibre.ordered else sorted(got)) != want:
            raise MismatchError(f"{where}: got {got}, expected {want}\n{fibre}")
        counts["cells"] += 1
        counts["points"] += len(got)
    return counts


def iterations(fibre: Fibre, sizes: Mapping[str, int], coordinates: Point) -> int:
    """How often the innermost loop turns for one cell."""
    loops = [k for k, step in enumerate(fibre.steps) if isinstance(step, Loop)]
    steps = fibre.steps[: loops[-1] + 1] if loops else ()
    skeleton = Fibre(fibre.coordinates, fibre.nonempty, fibre.host, steps, (), ())
    return sum(1 for _ in points(skeleton, sizes, coordinates, offsets))


def check(relation: RandomRelation, trials: int = 4, limit: int = 400) -> Counter[str]:
    """Solve a relation, compare it with brute force at several sizes, and count what it took."""
    fibre = solve(relation.problem, relation.facts)
    counts: Counter[str] = Counter(set(relation.features))
    counts["relations"] += 1
    counts["fallback"] += fibre.fallback is not None
    counts["loop-free"] += fibre.is_injective
    counts["ordered loops"] += fibre.ordered and not fibre.is_injective
    counts.update({rule.split(":")[0] for rule in fibre.rules})
    generator = random.Random(zlib.crc32(str(relation).encode()))
    for _ in range(trials):
        sizes = small_sizes(generator)
        volume = 1
        for _, extent in relation.problem.iterators:
            volume *= extent.evaluate(sizes)
        if volume <= limit:
            counts["comparisons"] += 1
            counts.update(compare(relation.problem, fibre, sizes))
    return counts
