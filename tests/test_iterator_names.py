"""What is derived does not depend on how the iterators of a spec are spelled."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from derivatives import read_op
from opgen.algebra.fibre import Fibre, points
from opgen.algebra.poly import symbol
from opgen.ir.indices import product
from opgen.ir.notation import (
    BATCH_ITERATOR,
    Op,
    Statement,
    substitute_access,
    substitute_expression,
)
from opgen.passes.convolution import convolution
from opgen.passes.derive import differentiable
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import gather, known_names
from opgen.passes.gathered_form import gathered_form
from spec_calls import ops_of

SPECS = Path(__file__).parent.parent / "specs"

CORRELATION = """op correlation(a[N,C,H,W], b[N,C,H,W]; d: size = 4) -> y[N,D,D,H,W]
  let D = 2*d + 1
  y[n,p,q,h,w] = sum(c) a[n,c,h,w] * b[n,c, h+p-d ?0, w+q-d ?0]
"""
OTHERS = {
    "valid": "op f(x[N], w[K]) -> y[M]\n  let M = N - K + 1\n  y[m] = sum(k) x[m + k] * w[k]",
    "same": "op f(x[N], w[K]) -> y[N]\n  y[n] = sum(k) x[n - k ?0] * w[k]",
    "full": "op f(x[N], w[K]) -> y[M]\n  let M = N + K - 1\n  y[n + k] += x[n] * w[k]",
    "hankel": "op f(x[M]; N: size) -> y[N,N]\n  where M >= 2*N\n  y[i,j] = x[i + j]",
    "windows": "op f(x[N,W], k[A,B]; r: size = 2) -> y[N,R,W]\n  let R = 2*r + 1\n"
    "  y[n,s,w] = sum(a,b) x[n, w + a + s - b - r ?0] * k[a,b]",
}


def examples() -> Iterator[tuple[str, Op]]:
    yield "correlation of the test", read_op(CORRELATION)
    for name, text in OTHERS.items():
        yield name, read_op(text)
    for spec in ("correlation", "conv", "unfold", "conv_transpose", "shift_sum"):
        for op in ops_of(SPECS / f"{spec}.op"):
            yield op.name, op


EXAMPLES = dict(examples())


# ---------------------------------------------------------------------------- renaming
def spelled(op: Op, seed: int) -> tuple[Op, dict[str, str]]:
    """The op with other letters for its iterators, and what they stand for."""
    letters = [letter for letter in string.ascii_letters if letter not in known_names(op)]
    random.Random(seed).shuffle(letters)
    own = {i.name: None for statement in op.statements for i in statement.iterators}
    own.pop(BATCH_ITERATOR, None)
    names = dict(zip(own, letters, strict=False))
    assert len(names) == len(own)
    return renamed(op, names), {new: old for old, new in names.items()}


def renamed(op: Op, names: Mapping[str, str]) -> Op:
    return replace(op, statements=tuple(_renamed(each, names) for each in op.statements))


def _renamed(statement: Statement, names: Mapping[str, str]) -> Statement:
    values = {old: symbol(new) for old, new in names.items()}
    return replace(
        statement,
        target=substitute_access(statement.target, values),
        iterators=tuple(replace(i, name=names.get(i.name, i.name)) for i in statement.iterators),
        guards=tuple(guard.substitute(values) for guard in statement.guards),
        body=substitute_expression(statement.body, values),
    )


def derivatives(op: Op, order: int) -> Iterator[Op]:
    for tensor in differentiable(op):
        derived = adjoint(op, tensor.name, {}).op
        yield derived
        if order > 1:
            yield from derivatives(derived, order - 1)


# ---------------------------------------------------------------------------- shapes
def shape_of_fibre(fibre: Fibre) -> object:
    """How a fibre was solved and what is left of it, without names."""
    loops = [loop.name for loop in fibre.loops]
    return (
        [rule.split(":")[0] for rule in fibre.rules],
        [next((k for k, n in enumerate(loops) if n in v.symbols), -1) for _, v in fibre.solution],
        [(loop.enumerated, len(loop.lower), len(loop.upper)) for loop in fibre.loops],
        len(fibre.conditions),
        fibre.ordered,
    )


def shapes(op: Op) -> list[object]:
    fibres = [shape_of_fibre(piece) for each in gather(op) for piece in each.pieces]
    return [*fibres, *([i.extent for i in s.iterators] for s in gathered_form(op).statements)]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.sampled(6)
def test_gradients_are_the_same_up_to_the_names_of_iterators(name: str, seed: int) -> None:
    op = EXAMPLES[name]
    other, meaning = spelled(op, seed)
    assert shapes(other) == shapes(op)
    pairs = zip(derivatives(op, 2), derivatives(other, 2), strict=True)
    for derived, found in pairs:
        assert renamed(found, meaning) == derived
        assert shapes(found) == shapes(derived)
        assert (convolution(found) is None) == (convolution(derived) is None)


# ---------------------------------------------------------------------------- terms
SIZES = {"N": 1, "C": 1, "H": 11, "W": 13, "d": 2, "D": 5}


@pytest.mark.parametrize("names", ["pqhw", "xzhw", "hwpq", "zxba", "abzx"])
def test_terms_of_a_correlation(names: str) -> None:
    """A cell sums over the window of displacements, and not over the image."""
    op = renamed(read_op(CORRELATION), dict(zip("pqhw", names, strict=True)))
    derived = adjoint(op, "b").op
    (statement,) = gathered_form(derived).statements
    box = product(i.extent for i in statement.iterators).evaluate(SIZES)
    cells = product(derived.extents("grad_b")).evaluate(SIZES)
    assert box == cells * SIZES["D"] ** 2
    ((piece,),) = (each.pieces for each in gather(derived))
    rows, columns = (loop.name for loop in piece.loops)
    assert (rows, columns) == (names[0], names[1])
    assert len(list(points(piece, SIZES, (0, 0, 5, 6)))) == SIZES["D"] ** 2


@pytest.mark.parametrize(
    ("text", "tensor", "kept"),
    [
        (OTHERS["valid"], "x", "k"),
        (OTHERS["same"], "x", "k"),
        # Attributes make a window, whatever the degree of its extent.
        ("op f(x[N]; r: size = 2) -> y[R,N]\n  let R = r*r*r\n"
         "  y[s,n] = x[n + s ?0]", "x", "s"),
        # A size that is an attribute of the gradient is still that of a dim.
        ("op f(x[N]; K: size, s = 1) -> y[K,M]\n  where N >= K, K >= 1, s >= 1\n"
         "  let M = N - K + 1\n  y[k,m] = x[m + k]", "x", "k"),
    ],
)  # fmt: skip
def test_windows_are_kept(text: str, tensor: str, kept: str) -> None:
    op = read_op(text)
    for seed in range(5):
        other, meaning = spelled(op, seed)
        derived = adjoint(other, tensor).op
        ((piece,),) = (each.pieces for each in gather(derived))
        assert [meaning[loop.name] for loop in piece.loops] == [kept]
