"""Fibres of the index maps of real ops, as text, and against brute force.

The texts are what a reader of a derived op gets to see; they fix the rules that apply, the names
they invent, and how far out conditions stand.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from opgen.algebra import fibre_system, search
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.facts import Facts
from opgen.algebra.fibre import (
    Definition,
    Loop,
    Problem,
    TargetIndex,
    points,
    solve,
)
from opgen.algebra.poly import ZERO, Kind, Poly, load, maximum, poly, symbol
from relations import FACTS, compare, iterations, seeded

B, C, G, H, W, V, K, L, N, R = map(symbol, "BCGHWVKLNR")
a, b, c, d, e, f, g, h, i, j, k, l, n = map(symbol, "abcdefghijkln")
o, p, q, r, s, t, u, v, w, x, y = map(symbol, "opqrstuvwxy")
S, OH, OW, Ci, Co = map(symbol, ("S", "OH", "OW", "Ci", "Co"))

Sizes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Case:
    """A relation with its facts, and the sizes at which it is compared with brute force."""

    problem: Problem
    facts: Facts
    sizes: Sizes

    def choices(self, limit: int) -> list[dict[str, int]]:
        """Some of the sizes that satisfy the facts, lets filled in."""
        every = list(itertools.product(*self.sizes.values()))
        random.Random(0).shuffle(every)
        found: list[dict[str, int]] = []
        for values in every:
            sizes = dict(zip(self.sizes, values, strict=True))
            for name, formula in self.facts.definitions:
                sizes[name] = formula.evaluate(sizes)
            known = [c for c in self.facts.conditions if c.value.symbols <= sizes.keys()]
            if all(condition.holds(sizes) for condition in known):
                found.append(sizes)
            if len(found) == limit:
                break
        assert found
        return found


def case(
    iterators: dict[str, Poly],
    target: Sequence[TargetIndex],
    sizes: Sizes,
    guards: Sequence[Condition] = (),
    lets: Sequence[tuple[str, Poly]] = (),
    where: Sequence[Condition] = (),
) -> Case:
    """Capital letters are sizes; others are attributes, at least 1 if that is all they take."""
    parameters = [
        (name, 0 if name.isupper() else (1 if min(values) >= 1 else None))
        for name, values in sizes.items()
    ]
    names = ("u", "v", "t", "q")[: len(target)]
    problem = Problem(tuple(iterators.items()), tuple(guards), tuple(target), names)
    return Case(problem, Facts.of(parameters, lets, where), sizes)


def at(value: Poly, extent: Poly, *, clamp: bool = False) -> TargetIndex:
    return TargetIndex(value, extent, clamp)


SMALL = range(4)
POSITIVE = range(1, 4)


def window(extent: Poly, kernel: Poly) -> Poly:
    return (extent + 2 * p - d * (kernel - 1) - 1) // s + 1


CONV = case(
    {"n": N, "g": G, "o": Co, "i": OH, "j": OW, "c": Ci, "k": K, "l": L},
    [
        at(n, N),
        at(g * Ci + c, G * Ci),
        at(i * s - p + k * d, H),
        at(j * s - p + l * d, W),
    ],
    {
        **{"N": [1], "G": [1, 2], "Ci": [1, 2], "Co": [1, 2]},
        **{"H": range(7), "W": [1, 3, 5], "K": POSITIVE, "L": [1, 2]},
        **{"s": POSITIVE, "p": range(3), "d": [1, 2, 3]},
    },
    lets=[("OH", window(H, K)), ("OW", window(W, L))],
    where=[Condition(p), Condition(OH), Condition(OW)],
)


def conv1d(stride: int, dilation: int, kernel: int, padding: int) -> Case:
    extent = (H + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return case(
        {"i": OH, "k": poly(kernel)},
        [at(i * stride - padding + k * dilation, H)],
        {"H": range(12)},
        lets=[("OH", extent)],
        where=[Condition(OH)],
    )


def resize(extra: int, taps: int) -> Case:
    """Interpolation by an integer factor r with half-pixel centres and edges repeated."""
    first = (2 * h + 1 - r) // (2 * r) - extra
    return case(
        {"h": H * r, "a": poly(taps)},
        [at(first + a, H, clamp=True)],
        {"H": range(6), "r": range(1, 5)},
    )


CASES = {
    "quotient and remainder": case(
        {"x": N}, [at(x // 2, H), at(x % 2, poly(2))], {"N": range(8), "H": SMALL}
    ),
    "depth to space, read form": case(
        {"c": C, "h": H * r, "w": W * r},
        [at(c * r * r + (h % r) * r + w % r, C * r * r), at(h // r, H), at(w // r, W)],
        {"C": SMALL, "H": SMALL, "W": SMALL, "r": POSITIVE},
    ),
    "depth to space, write form": case(
        {"c": C, "h": H, "i": r, "w": W, "j": r},
        [at((c * r + i) * r + j, C * r * r), at(h, H), at(w, W)],
        {"C": SMALL, "H": SMALL, "W": SMALL, "r": POSITIVE},
    ),
    "space to depth": case(
        {"c": C, "h": H, "i": r, "w": W, "j": r},
        [at(c, C), at(h * r + i, H * r), at(w * r + j, W * r)],
        {"C": SMALL, "H": SMALL, "W": SMALL, "r": POSITIVE},
    ),
    "channel shuffle": case(
        {"g": G, "c": C}, [at(c * G + g, C * G)], {"G": range(5), "C": range(5)}
    ),
    "diagonal": case({"x": H}, [at(x, H), at(x, H)], {"H": range(5)}),
    "sum and difference": case(
        {"i": H, "j": W}, [at(i + j, V), at(i - j, V)], {"H": range(5), "W": range(5), "V": [6]}
    ),
    "cyclic shift": case({"w": W}, [at((w + a) % W, W)], {"W": range(1, 6), "a": range(-7, 8)}),
    "convolution": CONV,
    "convolution over one stride": conv1d(1, 1, 3, 1),
    "convolution with stride": conv1d(2, 1, 3, 1),
    "stride and dilation with a common factor": conv1d(2, 2, 3, 1),
    "stride and dilation, coprime": conv1d(3, 2, 5, 2),
    "stride larger than the kernel": conv1d(3, 1, 2, 0),
    "window larger than the input": conv1d(1, 2, 7, 1),
    "windows side by side": conv1d(2, 1, 2, 0),
    "transposed convolution": case(
        {"i": H, "k": K},
        [at(i * s - p + k * d, OH)],
        {"H": range(5), "K": POSITIVE, "s": POSITIVE, "p": [0, 1], "d": POSITIVE},
        lets=[("OH", (H - 1) * s - 2 * p + d * (K - 1) + 1)],
        where=[Condition(p), Condition(OH)],
    ),
    "unfold": case(
        {"c": C, "k": K, "l": L, "i": OH, "j": OW},
        [at((c * K + k) * L + l, C * K * L), at(i * OW + j, OH * OW)],
        {"C": POSITIVE, "K": POSITIVE, "L": POSITIVE, "OH": POSITIVE, "OW": POSITIVE},
    ),
    "average pooling": case(
        {"i": OH, "k": K},
        [at(i * s - p + k, H)],
        {"H": range(7), "K": POSITIVE, "s": POSITIVE, "p": [0, 1]},
        lets=[("OH", (H + 2 * p - K) // s + 1)],
        where=[Condition(p), Condition(OH)],
    ),
    "nearest, integer factor": case(
        {"h": H * r}, [at(h // r, H)], {"H": range(5), "r": range(1, 5)}
    ),
    "nearest, any sizes": case(
        {"h": OH}, [at((h * H) // OH, H)], {"H": range(7), "OH": range(1, 9)}
    ),
    "bilinear, integer factor": resize(0, 2),
    "bicubic, integer factor": resize(1, 4),
    "bilinear, any sizes": case(
        {"h": OH, "a": poly(2)},
        [at(((2 * h + 1) * H - OH) // (2 * OH) + a, H, clamp=True)],
        {"H": range(6), "OH": range(1, 8)},
    ),
    "replicate padding": case(
        {"w": V},
        [at(w - p, W, clamp=True)],
        {"W": range(5), "p": range(4)},
        lets=[("V", W + 2 * p)],
        where=[Condition(p)],
    ),
    "bilinear, corners aligned": case(
        {"h": OH, "a": poly(2)},
        [at(h * (H - 1) // maximum(OH - 1, poly(1)) + a, H, clamp=True)],
        {"H": range(1, 5), "OH": range(1, 8)},
        where=[Condition(H - 1)],
    ),
    "clamp to an extent that the value may miss": case(
        {"w": W}, [at(w - 5, H, clamp=True)], {"W": range(9), "H": range(5)}
    ),
    "shifted sum": case(
        {"c": C, "w": W},
        [at(w + c * s, V)],
        {"W": range(5), "C": range(4), "s": POSITIVE},
        lets=[("V", W + (C - 1) * s)],
        where=[Condition(V)],
    ),
    "causal prefix": case({"t": N, "e": N}, [at(e, N)], {"N": range(6)}, guards=[Condition(t - e)]),
    "offsets from a tensor": case(
        {"c": C, "h": H},
        [at(c, C), at(h + load("dy", [c]), H)],
        {"C": SMALL, "H": range(5)},
    ),
    "offsets of a summed channel": case(
        {"c": C, "h": H}, [at(h + load("dy", [c]), H)], {"C": SMALL, "H": range(5)}
    ),
    "embedding": case(
        {"n": N, "e": C}, [at(load("id", [n]), V), at(e, C)], {"N": SMALL, "C": SMALL, "V": SMALL}
    ),
    "a load needs its index in range": case(
        {"i": H}, [at(i + s, V), at(load("id", [i]), W)], {"H": SMALL, "V": [5], "W": [2], "s": [2]}
    ),
    "a divisor needs its iterator in range": case(
        {"i": H}, [at(i + s, V), at(6 // (i + 1), W)], {"H": SMALL, "V": [5], "W": [7], "s": [2]}
    ),
    "loads in loads": case(
        {"c": C, "h": H},
        [at(h + load("dy", [load("order", [c]) + 1]), H), at(c, C)],
        {"C": SMALL, "H": SMALL},
    ),
    "square": case({"h": H}, [at(h * h, W)], {"H": range(5), "W": range(12)}),
    "scalar target": case({"h": H, "w": W}, [], {"H": SMALL, "W": SMALL}),
    "no iterators": case({}, [at(poly(2), H)], {"H": range(5)}),
    "iterators of extent 1": case(
        {"h": H, "a": poly(1), "b": poly(1)}, [at(h + a, H), at(b, poly(1))], {"H": SMALL}
    ),
    "an attribute decides": case(
        {"h": H},
        [at(h, H)],
        {"H": SMALL, "r": POSITIVE},
        guards=[Condition(h - 1), Condition(r - 2, Relation.EQ)],
    ),
    "off the diagonal": case(
        {"h": H, "w": W},
        [at(h, H)],
        {"H": SMALL, "W": SMALL},
        guards=[Condition(h - w, Relation.NE)],
    ),
    "digits whose range slides": case(
        {"x": N, "i": K, "j": L},
        [at((K * x + i - 2 * K * j) % (N + 2), N + 2)],
        {"N": SMALL, "K": SMALL, "L": SMALL},
    ),
    "every third": case({"h": H}, [], {"H": range(9)}, guards=[Condition(h % 3 - 1, Relation.EQ)]),
}

TEXTS = {
    "a load needs its index in range": """
        if u - s >= 0
        if H + s - u - 1 >= 0
        if id[u - s] - v == 0
        i = u - s
    """,
    "a divisor needs its iterator in range": """
        if u - s >= 0
        if H + s - u - 1 >= 0
        if 6//(u + 1 - s) - v == 0
        i = u - s
    """,
    "loads in loads": """
        if u - dy[order[v] + 1] >= 0
        if H + dy[order[v] + 1] - u - 1 >= 0
        c = v, h = u - dy[order[v] + 1]
    """,
    "quotient and remainder": """
        if N - 2*u - v - 1 >= 0
        x = 2*u + v
    """,
    "depth to space, read form": """
        c = u//(r*r), h = r*v + u//r - r*(u//(r*r)), w = r*t + u - r*(u//r)
    """,
    "depth to space, write form": """
        c = u//(r*r), h = v, i = u//r - r*(u//(r*r)), w = t, j = u - r*(u//r)
    """,
    "diagonal": """
        if u - v == 0
        x = u
    """,
    "sum and difference": """
        if u - 2*((u - v)//2) - v == 0
        if 2*H - u - v - 2 >= 0
        if u - v >= 0
        if 2*W + v - u - 1 >= 0
        i = u - (u - v)//2, j = (u - v)//2
    """,
    "cyclic shift": """
        w = u - ((u - a)//W)*W - a
    """,
    "convolution over one stride": """
        for k in max(u + 2 - OH, 0) .. min(u + 1, 2)
          i = u + 1 - k, k = k
    """,
    "convolution with stride": """
        for i in u//2 .. min(OH - 1, (u + 1)//2)
          i = i, k = u + 1 - 2*i
    """,
    "stride and dilation with a common factor": """
        if u + 1 - 2*((u + 1)//2) == 0
        for k in max((u + 1)//2 + 1 - OH, 0) .. min((u + 1)//2, 2)
          i = (u + 1)//2 - k, k = k
    """,
    "stride and dilation, coprime": """
        k_first = 2*u + 1 - 3*((2*u + 1)//3)
        i_first = (u + 2 - 2*k_first)//3
        for k_step in max((i_first - OH)//2 + 1, 0) .. min(i_first//2, (1 - k_first)//3 + 1)
          i = i_first - 2*k_step, k = k_first + 3*k_step
    """,
    "stride larger than the kernel": """
        if 3*OH - u - 1 >= 0
        if 3*(u//3) + 1 - u >= 0
        i = u//3, k = u - 3*(u//3)
    """,
    "windows side by side": """
        if 2*OH - u - 1 >= 0
        i = u//2, k = u - 2*(u//2)
    """,
    "transposed convolution": """
        host i_k_gcd = gcd(d, s)
        host k_stride = s//i_k_gcd
        host i_stride = d//i_k_gcd
        host k_inverse = modinv(i_stride, k_stride)
        if p + u - ((p + u)//i_k_gcd)*i_k_gcd == 0
        k_first = ((p + u)//i_k_gcd)*k_inverse - ((((p + u)//i_k_gcd)*k_inverse)//k_stride)*k_stride
        i_first = (p + u - d*k_first)//s
        for k_step in max((i_first - H)//i_stride + 1, 0) .. min(i_first//i_stride, (K - k_first - 1)//k_stride)
          i = i_first - i_stride*k_step, k = k_step*k_stride + k_first
    """,  # noqa: E501
    "average pooling": """
        for i in max(0, (p + u - K)//s + 1) .. min(OH - 1, (p + u)//s)
          i = i, k = p + u - i*s
    """,
    "unfold": """
        c = u//(K*L), k = u//L - K*(u//(K*L)), l = u - L*(u//L), i = v//OW, j = v - OW*(v//OW)
    """,
    "nearest, integer factor": """
        for h_remainder in 0 .. r - 1
          h = r*u + h_remainder
    """,
    "nearest, any sizes": """
        for h in (OH*u - 1)//H + 1 .. (OH*u + OH - 1)//H
          h = h
    """,
    "bilinear, integer factor": """
        u_low = selectzero(u, (1 - r)//(2*r), u)
        u_high = selectzero(H - u - 1, H, u)
        for h in max(0, r*u_low + (-r)//2) .. min(H*r - 1, r*u_high + (3*r)//2 - 1)
          for a in max(0, (3*r - 2*h - 2)//(2*r) + u_low) .. min(1, (3*r - 2*h - 2)//(2*r) + u_high)
            h = h, a = a
    """,
    "replicate padding": """
        u_low = selectzero(u, -p, u)
        u_high = selectzero(W - u - 1, V - p - 1, u)
        for w in p + u_low .. p + u_high
          w = w
    """,
    "shifted sum": """
        for c in max(0, (u - W)//s + 1) .. min(C - 1, u//s)
          c = c, w = u - c*s
    """,
    "causal prefix": """
        for t in u .. N - 1
          t = t, e = u
    """,
    "offsets from a tensor": """
        if v - dy[u] >= 0
        if H + dy[u] - v - 1 >= 0
        c = u, h = v - dy[u]
    """,
    "offsets of a summed channel": """
        for c in 0 .. C - 1
          if u - dy[c] >= 0
          if H + dy[c] - u - 1 >= 0
          c = c, h = u - dy[c]
    """,
    "embedding": """
        for n in 0 .. N - 1  # every value
          if id[n] - u == 0
          n = n, e = v
    """,
    "scalar target": """
        for h in 0 .. H - 1
          for w in 0 .. W - 1
            h = h, w = w
    """,
    "iterators of extent 1": """
        h = u, a = 0, b = 0
    """,
    "an attribute decides": """
        if r - 2 == 0
        if u - 1 >= 0
        h = u
    """,
    "off the diagonal": """
        for w in 0 .. W - 1
          if u - w != 0
          h = u, w = w
    """,
    "every third": """
        for h_quotient in 0 .. (H + 1)//3 - 1
          h = 3*h_quotient + 1
    """,
}

BIJECTIVE = {
    "depth to space, read form",
    "depth to space, write form",
    "space to depth",
    "channel shuffle",
    "cyclic shift",
    "unfold",
    "iterators of extent 1",
}
ENUMERATED = {"embedding", "square"}
UNORDERED = {
    "convolution",
    "convolution over one stride",
    "stride and dilation with a common factor",
    "stride and dilation, coprime",
    "window larger than the input",
    "transposed convolution",
    "digits whose range slides",
}
# No turn of the innermost loop is wasted: its bounds say exactly which points contribute.
TIGHT = {
    "convolution",
    "convolution over one stride",
    "convolution with stride",
    "stride and dilation with a common factor",
    "stride and dilation, coprime",
    "transposed convolution",
    "average pooling",
    "nearest, integer factor",
    "nearest, any sizes",
    "bilinear, integer factor",
    "bicubic, integer factor",
    "bilinear, any sizes",
    "replicate padding",
    "shifted sum",
    "causal prefix",
    "every third",
}


@pytest.mark.parametrize("name", CASES)
def test_fibres_are_brute_force(name: str) -> None:
    given = CASES[name]
    fibre = solve(given.problem, given.facts)
    assert fibre.fallback is None
    counts = sum(compare(given.problem, fibre, sizes)["points"] for sizes in given.choices(12))
    assert counts > 0


@pytest.mark.parametrize("name", TEXTS)
def test_fibres_read_well(name: str) -> None:
    given = CASES[name]
    assert str(solve(given.problem, given.facts)) == textwrap.dedent(TEXTS[name]).strip()


@pytest.mark.parametrize("name", CASES)
def test_classification(name: str) -> None:
    given = CASES[name]
    fibre = solve(given.problem, given.facts)
    assert fibre.is_bijective == (name in BIJECTIVE)
    assert fibre.is_enumerated == (name in ENUMERATED)


@pytest.mark.parametrize("name", CASES)
def test_order(name: str) -> None:
    """`ordered` decides whether the first of equal maxima is the one met first."""
    given = CASES[name]
    fibre = solve(given.problem, given.facts)
    assert fibre.ordered == (name not in UNORDERED)


@pytest.mark.parametrize("name", sorted(TIGHT))
def test_no_turn_is_wasted(name: str) -> None:
    given = CASES[name]
    fibre = solve(given.problem, given.facts)
    for sizes in given.choices(8):
        extents = [index.extent.evaluate(sizes) for index in given.problem.target]
        for cell in itertools.product(*map(range, extents)):
            turns = iterations(fibre, sizes, cell)
            assert turns == sum(1 for _ in points(fibre, sizes, cell))


@pytest.mark.parametrize("size", [50, 100])
def test_turns_of_aligned_corners_do_not_grow(size: int) -> None:
    """The factor of a row, one less than a size, may be 0; where it is not, the row is known."""
    given = CASES["bilinear, corners aligned"]
    fibre = solve(given.problem, given.facts)
    turns = [iterations(fibre, {"H": size, "OH": 2 * size}, (cell,)) for cell in range(size)]
    assert max(turns) <= 8
    assert iterations(fibre, {"H": 1, "OH": size}, (0,)) == 2 * size


# ---------------------------------------------------------------------------- structure
def test_every_name_is_defined_before_use() -> None:
    for seed in range(80):
        relation = seeded(seed)
        fibre = solve(relation.problem, relation.facts)
        known = {*FACTS.symbols, *fibre.coordinates}
        for item in fibre.host:
            assert item.value.symbols <= known
            assert item.name not in known
            known.add(item.name)
        assert not known & {name for name, _ in relation.problem.iterators}
        for step in fibre.steps:
            match step:
                case Definition(name, value):
                    assert value.symbols <= known
                    assert name not in known
                    known.add(name)
                case Loop(name, lower, upper):
                    assert lower and upper
                    assert all(bound.symbols <= known for bound in (*lower, *upper))
                    assert name not in known
                    known.add(name)
                case Condition():
                    assert step.value.symbols <= known
        assert all(value.symbols <= known for _, value in fibre.solution)
        assert [name for name, _ in fibre.solution] == [x for x, _ in relation.problem.iterators]


def test_conditions_stand_as_far_out_as_they_can() -> None:
    for seed in range(80):
        relation = seeded(seed)
        fibre = solve(relation.problem, relation.facts)
        defined: set[str] = set()  # inside the innermost loop so far
        inside = False
        for step in fibre.steps:
            match step:
                case Loop(name):
                    defined, inside = {name}, True
                case Definition(name):
                    defined.add(name)
                case Condition():
                    assert not inside or step.value.symbols & defined


def test_names_are_fresh() -> None:
    given = CASES["convolution"]
    plain = solve(given.problem, given.facts)
    taken = {item.name for item in plain.host} | {loop.name for loop in plain.loops}
    crowded = solve(replace(given.problem, reserved=tuple(sorted(taken))), given.facts)
    used = {item.name for item in crowded.host} | {loop.name for loop in crowded.loops}
    assert used.isdisjoint(taken - {"o"})
    assert "k_step_2" in used


def test_phases_of_a_strided_convolution_have_no_division() -> None:
    """Splitting the cells by residue class, as CUTLASS does, leaves one affine nest for each."""
    for stride, dilation, kernel, padding in ((2, 1, 3, 1), (3, 2, 5, 2), (4, 1, 7, 3)):
        given = conv1d(stride, dilation, kernel, padding)
        for phase in range(stride):
            cell = stride * u + phase
            (index,) = given.problem.target
            problem = replace(given.problem, target=(replace(index, coordinate=cell),))
            known = given.facts.with_bounds("u", ZERO, (H - 1 - phase) // stride)
            fibre = solve(problem, known)
            values = [value for _, value in fibre.solution]
            values += [condition.value for condition in fibre.conditions]
            assert all(condition.relation is Relation.GE for condition in fibre.conditions)
            assert not [
                atom
                for value in values
                for atom in value.all_atoms()
                if atom.kind is Kind.FLOOR_DIV
            ]
            for sizes in given.choices(6):
                if sizes["H"] > phase:
                    compare(problem, fibre, sizes)


def test_an_empty_box_is_no_problem() -> None:
    problem = Problem((("h", ZERO), ("w", W)), (), (TargetIndex(h + w, W),), ("u",))
    fibre = solve(problem, Facts.of([("W", 0)]))
    assert ZERO in fibre.nonempty
    assert list(points(fibre, {"W": 3}, (1,))) == []


def test_too_involved_relations_are_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fibre_system, "QUESTIONS", 3)
    for name in ("convolution", "depth to space, read form", "bilinear, integer factor"):
        given = CASES[name]
        fibre = solve(given.problem, given.facts)
        assert fibre.fallback is not None
        assert fibre.is_enumerated
        assert fibre.ordered
        for sizes in given.choices(3):
            compare(given.problem, fibre, sizes)


def test_deriving_asks_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of the most involved op, in searches for a proof: the same on every host."""
    asked: list[Poly] = []
    original = search.proves

    def proves(value: Poly, facts: Facts) -> bool:
        asked.append(value)
        return original(value, facts)

    monkeypatch.setattr(search, "proves", proves)
    fresh = Facts.of(CONV.facts.parameters, CONV.facts.definitions, CONV.facts.conditions)
    solve(CONV.problem, fresh)
    assert len(asked) < 120


_SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from relations import seeded
from opgen.algebra.fibre import solve
for seed in {seeds}:
    relation = seeded(seed)
    text = str(solve(relation.problem, relation.facts))
    if seed % 2 == 0:
        print(text)
"""


def test_results_do_not_depend_on_history_or_hash_seed() -> None:
    tests = os.path.dirname(__file__)  # noqa: PTH120
    texts = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT.format(tests=tests, seeds=seeds)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed, seeds in (("1", list(range(40))), ("2", list(range(0, 40, 2))))
    }
    assert len(texts) == 1
