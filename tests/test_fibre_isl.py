"""isl as an independent judge: both sets of points are equal for all sizes and cells at once.

isl knows no products of symbols, so attributes are numbers here and sizes stay symbols.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy
import pytest

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.fibre import Definition, Fibre, Loop, Problem, solve
from opgen.algebra.poly import Atom, Kind, Poly, poly
from relations import FACTS, describe, seeded
from test_fibre import CASES, Case


class NotQuasiAffineError(Exception):
    """isl has no words for it."""


class Isl:
    """Polynomials as isl text; minima, maxima and selections become bound variables."""

    def __init__(self) -> None:
        self.bound: list[str] = []
        self.parts: list[str] = []

    def text(self, value: Poly) -> str:
        out = [str(value.constant)]
        for monomial, coefficient in value.terms.items():
            if len(monomial) > 1:
                raise NotQuasiAffineError(str(value))
            if monomial:
                out.append(f"{coefficient}*{self.atom(monomial[0])}")
        return "(" + " + ".join(out) + ")"

    def atom(self, atom: Atom) -> str:
        match atom.kind:
            case Kind.SYMBOL:
                return atom.name
            case Kind.FLOOR_DIV if atom.args[1].is_constant:
                return f"floor({self.text(atom.args[0])}/{atom.args[1].constant})"
            case Kind.MIN | Kind.MAX:
                name = self.variable()
                sign = "<=" if atom.kind is Kind.MIN else ">="
                args = [self.text(arg) for arg in atom.args]
                self.parts += [f"{name} {sign} {arg}" for arg in args]
                self.parts.append("(" + " or ".join(f"{name} = {arg}" for arg in args) + ")")
                return name
            case Kind.SELECT_ZERO:
                name = self.variable()
                test, zero, other = (self.text(arg) for arg in atom.args)
                self.parts.append(
                    f"(({test} = 0 and {name} = {zero}) or ({test} != 0 and {name} = {other}))"
                )
                return name
            case _:
                raise NotQuasiAffineError(atom.key)

    def variable(self) -> str:
        self.bound.append(f"z{len(self.bound)}")
        return self.bound[-1]

    def condition(self, condition: Condition) -> None:
        relation = {">=": ">=", "==": "=", "!=": "!="}[condition.relation.value]
        self.parts.append(f"{self.text(condition.value)} {relation} 0")

    def set(self, parameters: Sequence[str], names: Sequence[str]) -> islpy.Set:
        body = " and ".join(self.parts) or "true"
        exists = f"exists {', '.join(self.bound)} : " if self.bound else ""
        text = f"[{', '.join(parameters)}] -> {{ [{', '.join(names)}] : {exists}{body} }}"
        return islpy.Set(text)


def context(isl: Isl, given: Case) -> None:
    """A cell, and sizes for which there are points at all."""
    isl.parts += [f"{name} >= {floor}" for name, floor in given.facts.floors.items()]
    for name, formula in given.facts.definitions:
        isl.parts.append(f"{name} = {isl.text(formula)}")
    for name, index in zip(given.problem.coordinates, given.problem.target, strict=True):
        isl.parts += [f"0 <= {name}", f"{name} < {isl.text(index.extent)}"]
    for _, extent in given.problem.iterators:
        isl.parts.append(f"{isl.text(extent)} >= 1")


def relation_set(given: Case, parameters: Sequence[str]) -> islpy.Set:
    """The points that reach a cell, as the problem says it."""
    isl = Isl()
    context(isl, given)
    for name, extent in given.problem.iterators:
        isl.parts.append(f"0 <= {name} < {isl.text(extent)}")
    for guard in given.problem.guards:
        isl.condition(guard)
    for name, index in zip(given.problem.coordinates, given.problem.target, strict=True):
        value, cell, last = isl.text(index.value), name, isl.text(index.extent - 1)
        if index.clamp:
            low, high = f"({value} <= 0 and {cell} = 0)", f"({value} >= {last} and {cell} = {last})"
            isl.parts.append(f"({value} = {cell} or {low} or {high})")
        else:
            isl.parts.append(f"{value} = {cell}")
    return isl.set(parameters, [name for name, _ in given.problem.iterators])


def fibre_set(given: Case, fibre: Fibre, parameters: Sequence[str]) -> islpy.Set:
    """The points that a solved fibre runs through."""
    isl = Isl()
    names = {name: f"{name}_" for name, _ in given.problem.iterators}
    context(isl, given)
    for item in fibre.host:
        isl.bound.append(item.name)
        isl.parts.append(f"{item.name} = {isl.text(item.value)}")
    for step in fibre.steps:
        match step:
            case Definition(name, value):
                isl.bound.append(name)
                isl.parts.append(f"{name} = {isl.text(value)}")
            case Loop(name, lower, upper):
                isl.bound.append(name)
                isl.parts += [f"{isl.text(bound)} <= {name}" for bound in lower]
                isl.parts += [f"{name} <= {isl.text(bound)}" for bound in upper]
            case Condition():
                isl.condition(step)
    isl.parts += [f"{names[name]} = {isl.text(value)}" for name, value in fibre.solution]
    return isl.set(parameters, list(names.values()))


def same_points(given: Case, fibre: Fibre) -> bool:
    """Whether isl finds both sets equal, for all sizes and all cells at once."""
    sizes = [name for name, _ in given.facts.parameters]
    lets = [name for name, _ in given.facts.definitions]
    parameters = [*sizes, *lets, *given.problem.coordinates]
    return bool(relation_set(given, parameters).is_equal(fibre_set(given, fibre, parameters)))


def specialised(given: Case, values: Mapping[str, int]) -> Case:
    """The case with attributes replaced by numbers, as for a compiled kernel."""
    numbers = {name: poly(value) for name, value in values.items()}
    facts = given.facts
    problem = given.problem
    return Case(
        Problem(
            tuple((name, extent.substitute(numbers)) for name, extent in problem.iterators),
            tuple(guard.substitute(numbers) for guard in problem.guards),
            tuple(
                replace(
                    index,
                    value=index.value.substitute(numbers),
                    extent=index.extent.substitute(numbers),
                )
                for index in problem.target
            ),
            problem.coordinates,
        ),
        Facts.of(
            [parameter for parameter in facts.parameters if parameter[0] not in values],
            [(name, formula.substitute(numbers)) for name, formula in facts.definitions],
        ),
        {name: range_ for name, range_ in given.sizes.items() if name not in values},
    )


AFFINE = [
    "quotient and remainder",
    "diagonal",
    "sum and difference",
    "convolution over one stride",
    "convolution with stride",
    "stride and dilation with a common factor",
    "stride and dilation, coprime",
    "stride larger than the kernel",
    "window larger than the input",
    "windows side by side",
    "clamp to an extent that the value may miss",
    "causal prefix",
    "off the diagonal",
    "every third",
]
ATTRIBUTES: list[tuple[str, dict[str, int]]] = [
    ("depth to space, read form", {"r": 2}),
    ("depth to space, write form", {"r": 3}),
    ("nearest, integer factor", {"r": 3}),
    ("bilinear, integer factor", {"r": 2}),
    ("bilinear, integer factor", {"r": 3}),
    ("bicubic, integer factor", {"r": 2}),
    ("replicate padding", {"p": 2}),
    ("average pooling", {"K": 3, "s": 2, "p": 1}),
    ("average pooling", {"K": 2, "s": 3, "p": 0}),
    ("transposed convolution", {"K": 4, "s": 2, "p": 1, "d": 1}),
    ("transposed convolution", {"K": 3, "s": 3, "p": 0, "d": 2}),
    ("shifted sum", {"s": 2, "C": 4}),
    ("nearest, any sizes", {"H": 3, "OH": 7}),
    ("bilinear, any sizes", {"H": 5, "OH": 3}),
]


@pytest.mark.parametrize(
    "given",
    [
        *(pytest.param(CASES[name], id=name) for name in AFFINE),
        *(
            pytest.param(specialised(CASES[name], values), id=f"{name} {values}")
            for name, values in ATTRIBUTES
        ),
    ],
)
def test_isl_finds_the_same_points(given: Case) -> None:
    assert same_points(given, solve(given.problem, given.facts))


def random_affine(seed: int) -> Case | None:
    """A random relation with numbers for attributes, if it is quasi-affine then."""
    relation = seeded(seed)
    numbers = random.Random(seed)
    values = {name: numbers.randint(1, 3) for name in "sdr"} | {
        "p": numbers.randint(0, 2),
        "S": numbers.randint(-2, 2),
    }
    if any(index.coordinate is not None for index in relation.problem.target):
        return None
    given = specialised(Case(relation.problem, FACTS, {}), values)
    try:
        relation_set(given, ["A", "B", "D", *given.problem.coordinates])
    except NotQuasiAffineError:
        return None
    return given


def test_isl_finds_the_same_points_of_random_relations() -> None:
    compared = 0
    for seed in range(150):
        given = random_affine(seed)
        if given is None or len(given.problem.iterators) > 3:
            continue
        fibre = solve(given.problem, given.facts)
        try:
            assert same_points(given, fibre), f"{describe(given.problem)}\n{fibre}"
        except NotQuasiAffineError:
            continue  # products of sizes in bounds
        compared += 1
    assert compared >= 30


def test_isl_notices_a_wrong_fibre() -> None:
    """Negative control."""
    given = CASES["convolution with stride"]
    fibre = solve(given.problem, given.facts)
    (loop,) = fibre.loops
    for lower, upper in (
        (loop.lower, tuple(bound + 1 for bound in loop.upper)),
        (tuple(bound + 1 for bound in loop.lower), loop.upper),
        (loop.lower, loop.upper[1:]),
    ):
        wrong = replace(fibre, steps=(replace(loop, lower=lower, upper=upper),))
        assert not same_points(given, wrong)
