"""Fibres of statements: every point that counts, once, in the piece of its cell; their names."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import notation_strategies
from catalogue import CATALOGUE, Entry
from opgen.algebra.condition import Condition
from opgen.algebra.fibre import Fibre, points
from opgen.algebra.poly import symbol
from opgen.errors import Source
from opgen.ir.binding import Array, bind
from opgen.ir.notation import Op
from opgen.ir.reference import evaluate
from opgen.ir.show import show
from opgen.lang.read import read
from opgen.passes.gather import GatheredStatement, Kind, gather
from opgen.passes.gathered_form import gathered_form
from spec_calls import checked, complete, gradient, leading, run, sizes_of

Point = frozenset[tuple[str, int]]


def op_of(text: str) -> Op:
    """The last op of a spec."""
    return read(Source(text))[-1]


def kinds_of(text: str) -> list[Kind]:
    return [gathered.kind for gathered in gather(op_of(text))]


# ---------------------------------------------------------------------------- kinds
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("op f(x[N,(C r)]; r=2) -> y[N,C,r]\n  where r >= 1\n  y[n,c,i] = x[n,(c i)]", "bijective"),
        ("op f(x[N]; N2: size) -> y[N2]\n  y[2*n ?drop] += x[n]", "injective"),
        ("op f(x[N], w[K]) -> y[N]\n  y[n] = sum(k) x[n - k ?0] * w[k]", "gather"),
        ("op f(x[N]) -> y[N]\n  where N >= 1\n  y[n ?clamp] += x[n]", "bijective"),
        ("op f(x[N]) -> y[N]\n  where N >= 1\n  y[n - 1 ?clamp] += x[n]", "gather"),
        ("op f(x[N]; M: size) -> y[M]\n  y[n*n ?drop] += x[n]", "enumerated"),
        ("op f(x[N], i: i64[N]; M: size) -> y[M]\n  y[i[n]] += x[n]", "scatter"),
        ("op f(x[N], i: i64[N]; M: size) -> y[M]\n  y[i[n] ?drop] += x[n]", "scatter"),
        # The offset belongs to the row that is asked for, so the column can be solved for.
        ("op f(x[N,W], i: i64[N]) -> y[N,W]\n  y[n, w + i[n] ?drop] += x[n,w]", "injective"),
    ],
)
def test_kind(text: str, kind: str) -> None:
    assert kinds_of(text) == [Kind(kind)]


def test_mirrors_are_three_pieces_a_dim() -> None:
    (gathered,) = gather(
        op_of("op f(x[M,N]) -> y[M,N]\n  where M >= 2, N >= 2\n"
              "  y[m - 1 ?reflect, n + 1 ?symmetric] += x[m,n]")
    )  # fmt: skip
    assert len(gathered.pieces) == 9
    assert gathered.kind is Kind.GATHER


# ---------------------------------------------------------------------------- names
def test_coordinates_are_named_after_iterators_then_sizes() -> None:
    (gathered,) = gather(
        op_of("op f(x[B,V]; C: size, W: size) -> y[B,C,W,1]\n"
              "  y[b, c, v - c ?drop, 0] += x[b,v]  for c in C")
    )  # fmt: skip
    assert gathered.coordinates == ("b", "c", "w", "u3")
    assert dict(gathered.names) == {"b": "b_", "c": "c_", "v": "v"}


def test_batch_is_no_clash() -> None:
    (gathered,) = gather(op_of("op f(x[...,N]) -> y[...]\n  y[...] = sum(n) x[...,n]"))
    assert gathered.coordinates == ("batch",)


# ---------------------------------------------------------------------------- absent reads
@pytest.mark.parametrize(
    ("body", "assumed"),
    [
        ("sum(n) x[n + 1 ?0]", ["x"]),
        ("sum(n) x[n + 1 ?0] * w[n - 1 ?0]", ["x", "w"]),
        ("sum(n) (x[n + 1 ?0] + w[n])", []),
        ("sum(n) (x[n + 1 ?0] - x[n + 1 ?0])", ["x"]),
        ("sum(n) x[n + 1 ?0] / w[n - 1 ?0]", ["x"]),
        ("sum(n) (-x[n + 1 ?0])", ["x"]),
        ("sum(n) exp(x[n + 1 ?0])", []),
        ("sum(n) select(w[n] > 0, x[n + 1 ?0], w[n])", []),
        ("max(n) x[n + 1 ?0]", ["x"]),
        ("prod(n) x[n + 1 ?0]", []),
    ],
)
def test_reads_without_which_nothing_happens(body: str, assumed: list[str]) -> None:
    op = op_of(f"op f(x: float[N], w[N]) -> y[1]\n  y[0] = {body}".replace("(n)", "(n in N)", 1))
    (gathered,) = gather(op)
    assert [inside.access.tensor for inside in gathered.assumed] == assumed


# ---------------------------------------------------------------------------- the same points
def faults_of(
    op: Op,
    gathered: tuple[GatheredStatement, ...],
    sizes: Mapping[str, int],
    tensors: Mapping[str, Array],
    attributes: Mapping[str, notation_strategies.AttributeValue],
) -> list[str]:
    """What is wrong with the points that fibres enumerate, compared with the interpreter."""
    wanted: dict[int, dict[Point, bool]] = {at: {} for at in range(len(op.statements))}

    def trace(number: int, point: Mapping[str, int], present: bool) -> None:
        own = {iterator.name for iterator in op.statements[number].iterators}
        wanted[number][frozenset((n, v) for n, v in point.items() if n in own)] = present

    evaluate(op, sizes, tensors, attributes, trace=trace)
    symbols = bind(op, sizes, tensors, attributes).symbols
    integers = {name: array for name, array in tensors.items() if array.dtype.kind in "iub"}
    integers |= {t.name: np.reshape(t.values, t.shape) for t in op.tables}

    def load(name: str, at: tuple[int, ...]) -> int:
        array = integers[name]
        inside = all(0 <= i < n for i, n in zip(at, array.shape, strict=True))
        return int(array[at]) if inside else 0

    faults = []
    for number, part in enumerate(gathered):
        found: Counter[Point] = Counter()
        extents = op.extents(part.statement.target.tensor)
        box = [range(extent.evaluate(symbols)) for extent in extents]
        names = {new: old for old, new in part.names}
        for cell in itertools.product(*box):
            for piece in part.pieces:
                for point in points(piece, symbols, cell, load):
                    found[frozenset((names[name], value) for name, value in point.items())] += 1
        present = {point for point, is_present in wanted[number].items() if is_present}
        faults += [f"{number}: twice {sorted(p)}" for p, count in found.items() if count > 1]
        faults += [f"{number}: missing {sorted(p)}" for p in present - found.keys()]
        faults += [f"{number}: too many {sorted(p)}" for p in found.keys() - wanted[number].keys()]
    return faults


@given(data=st.data())
def test_fibres_enumerate_the_points(data: st.DataObject) -> None:
    op = data.draw(notation_strategies.ops())
    call = data.draw(notation_strategies.calls(op))
    assert not faults_of(op, gather(op), call.sizes, call.tensors, call.attributes)


def _spoiled(part: GatheredStatement, kind: str) -> GatheredStatement:
    """A statement whose fibre is wrong in one way."""
    (piece,) = part.pieces
    if kind == "repeated":
        return replace(part, pieces=(piece, piece))
    steps = list(piece.steps)
    if kind == "narrower":
        steps.insert(0, Condition(symbol(part.coordinates[0]) - 1))
    else:
        loop = piece.loops[0]
        steps[steps.index(loop)] = replace(loop, upper=tuple(bound + 1 for bound in loop.upper))
    return replace(part, pieces=(replace(piece, steps=tuple(steps)),))


@pytest.mark.parametrize("kind", ["repeated", "narrower", "wider"])
def test_a_wrong_fibre_is_reported(kind: str) -> None:
    op = op_of(
        "op f(x[N]; K=2) -> y[N]\n  where K >= 0\n  y[n] = sum(k in K) x[n - k ?0]  for n in N"
    )
    gathered = gather(op)
    tensors = {"x": np.arange(4.0)}
    assert not faults_of(op, gathered, {"N": 4}, tensors, {"K": 3})
    (part,) = gathered
    assert faults_of(op, (_spoiled(part, kind),), {"N": 4}, tensors, {"K": 3})


def test_loops_of_a_convolution_try_no_point_in_vain() -> None:
    """Padding, stride and dilation all become loop bounds, in the gradient of the weight too."""
    op = op_of(
        "op f(x[N], w[K]; s=1, p=0, d=1) -> y[M]\n"
        "  where s >= 1, p >= 0, d >= 1\n"
        "  let M = (N + 2*p - d*(K-1) - 1)//s + 1\n"
        "  y[m] = sum(k) x[m*s - p + k*d ?0] * w[k]"
    )
    for each in (op, gradient(op, "w").op):
        (gathered,) = gather(each)
        (piece,) = gathered.pieces
        assert isinstance(piece, Fibre)
        assert not piece.is_enumerated
        assert not piece.conditions


# ---------------------------------------------------------------------------- gather form
@pytest.mark.parametrize(
    ("text", "input_", "wanted"),
    [
        (
            "op f(x[C,W]; step=1) -> y[V]\n  where step >= 0\n  let V = W + (C-1)*step\n"
            "  y[v] = sum(c) x[c, v - c*step ?0]",
            "x",
            "grad_x[c,w] = grad_y[c*step + w]",
        ),
        (
            "op f(x[N], w[K]) -> y[M]\n  let M = N - K + 1\n  y[m] = sum(k) x[m + k] * w[k]",
            "x",
            "grad_x[n] = sum(k) w[k] * grad_y[n - k ?0]",
        ),
        (
            "op f(x[N]; k=1) -> y[N]\n  y[n] = x[n + k ?0]  for n in N",
            "x",
            "grad_x[n] = grad_y[n - k ?0]",
        ),
        (
            "op f(x[N,(C r)]; r=2) -> y[N,C,r]\n  where r >= 1\n  y[n,c,i] = x[n,(c i)]",
            "x",
            "grad_x[n,(c i)] = grad_y[n,c,i]",
        ),
        (
            "op f(x[N]; s=1) -> y[M]\n  where s >= 1\n  let M = (N - 1)//s + 1\n  y[m] = x[m*s ?0]",
            "x",
            "grad_x[m*s ?drop] += grad_y[m]",
        ),
    ],
)
def test_gathered_form(text: str, input_: str, wanted: str) -> None:
    derived = gradient(op_of(text), input_).op
    line = show(gathered_form(derived)).splitlines()[-1].strip()
    assert line == wanted


@pytest.mark.sampled(2)
@pytest.mark.parametrize("subject", [e for e in CATALOGUE if e.differentiable], ids=repr)
@settings(max_examples=3)
@given(data=st.data())
def test_gathered_form_means_the_same(subject: Entry, data: st.DataObject) -> None:
    op = checked(subject)
    case = data.draw(subject.cases)
    inputs = complete(subject, op, case, subject.make_inputs(case, data.draw(st.integers(0, 99))))
    sizes, batch = sizes_of(op, case), leading(op, case)
    for name in subject.differentiable:
        derived = gradient(op, name)
        shapes = _output_shapes(op, sizes)
        cotangents = {
            twin: np.random.default_rng(1).standard_normal((*batch, *_own(op, output, shapes)))
            for output, twin in derived.cotangents
        }
        arguments = (sizes, {**inputs, **cotangents}, case.attributes, batch)
        relation = run(derived.op, *arguments)
        gathered = run(gathered_form(derived.op), *arguments)
        for output in derived.op.outputs:
            np.testing.assert_allclose(gathered[output.name], relation[output.name], atol=1e-9)


def _output_shapes(op: Op, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {
        tensor.name: tuple(dim.extent.evaluate(sizes) for dim in tensor.dims)
        for tensor in op.outputs
    }


def _own(op: Op, name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of an output behind its batch dims."""
    batched = next(tensor.batched for tensor in op.outputs if tensor.name == name)
    return shapes[name][1:] if batched else shapes[name]
