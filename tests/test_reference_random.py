"""The interpreter: what it tells other tests, and any op at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import notation_strategies
from opgen.algebra.condition import Relation
from opgen.algebra.poly import Kind, Poly, load, maximum, poly
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    DType,
    Expr,
    Op,
    Read,
    Reducer,
    Value,
)
from opgen.ir.primitives import PRIMITIVES
from opgen.ir.reference import evaluate
from opgen.ir.verify import verify
from opgen.testing.magnitude import magnitude
from reference_ops import (
    CONV2D,
    K,
    N,
    at,
    call,
    i,
    k,
    make_op,
    random_array,
    read,
    reduce_op,
    run,
    softmax_op,
    statement,
    tensor,
)


# ---------------------------------------------------------------------------- for other tests
def test_trace_counts_the_contributing_terms() -> None:
    counts: Counter[tuple[int, bool]] = Counter()

    def trace(number: int, point: Mapping[str, int], present: bool) -> None:
        assert point["n"] < 3
        assert point["p"] == 1
        counts[number, present] += 1

    arrays = {"x": random_array(1, 1, 3, 3), "w": random_array(1, 1, 3, 3)}
    sizes = {"B": 1, "C": 1, "H": 3, "W": 3, "K": 1, "R": 3}
    evaluate(CONV2D, sizes, arrays, {"p": 1}, trace=trace)
    inside = sum(0 <= n + i - 1 < 3 for n in range(3) for i in range(3)) ** 2
    assert counts == {(0, True): 9, (1, True): inside, (1, False): 81 - inside}


def test_magnitude_is_the_sum_of_absolute_terms() -> None:
    x = np.array([[1e16, 1.0, -1e16]])
    scale = magnitude(reduce_op(Reducer.ADD), {"N": 1, "K": 3}, {"x": x}, {})["y"]
    np.testing.assert_allclose(scale, [2e16 + 1])
    arrays = {"x": random_array(1, 2, 4, 4), "w": random_array(3, 2, 2, 2, seed=1)}
    sizes = {"B": 1, "C": 2, "H": 4, "W": 4, "K": 3, "R": 2}
    scale = magnitude(CONV2D, sizes, arrays, {"p": 1})["y"]
    absolute = {name: np.abs(array) for name, array in arrays.items()}
    terms = evaluate(CONV2D, sizes, absolute, {"p": 1})["y"]
    assert (scale >= terms * (1 - 1e-12)).all()
    assert (scale <= terms * (2 + 1e-12)).all()


def test_errors_are_small_on_the_scale_of_magnitude() -> None:
    """Single precision against double, where cancellation makes relative errors large."""
    x = (random_array(4, 50) * 3).astype(np.float32)
    variance = make_op(
        [tensor("x", N, K)],
        [tensor("y", N)],
        statement(at("first", i), Reducer.ADD, {"i": N, "k": K}, read("x", i, k)),
        statement(
            at("second", i),
            Reducer.ADD,
            {"i": N, "k": K},
            call("mul", read("x", i, k), read("x", i, k)),
        ),
        statement(
            at("y", i),
            Reducer.ASSIGN,
            {"i": N},
            call(
                "sub",
                call("div", read("second", i), Value(K)),
                call("pow", call("div", read("first", i), Value(K)), Constant(2)),
            ),
        ),
        temporaries=(tensor("first", N), tensor("second", N)),
    )
    shifted = x + np.float32(1000)
    for op, array in ((softmax_op(), x), (variance, x), (variance, shifted)):
        sizes = {"N": 4, "K": 50}
        single = run(op, {"x": array}, sizes).astype(np.float64)
        double = run(op, {"x": array.astype(np.float64)}, sizes)
        scale = magnitude(op, sizes, {"x": array}, {})["y"]
        unit = np.finfo(np.float32).eps
        assert (np.abs(single - double) <= 10 * unit * scale).all()
        # The scale is no alibi: a relative error of a thousandth is far outside, where the
        # result does not cancel; where it does, the error really is a large part of it.
        if array is x:
            assert (np.abs(0.001 * double) > 10 * unit * scale).all()
        else:
            assert (np.abs(single - double) > 100 * unit * np.abs(double)).any()


# ---------------------------------------------------------------------------- everything
def nodes(op: Op) -> Counter[str]:
    """Every class, mode, reducer, primitive and atom that occurs."""
    seen: Counter[str] = Counter()

    def polynomial(value: Poly) -> None:
        seen.update(atom.kind.value for atom in value.all_atoms())

    def access(found: Access) -> None:
        for index in found.indices:
            seen[f"{index.boundary.name}"] += 1
            polynomial(index.value)

    def expression(expr: Expr) -> None:
        seen[type(expr).__name__] += 1
        match expr:
            case Apply(primitive=name, arguments=arguments):
                seen[f"primitive {name}"] += 1
                for argument in arguments:
                    expression(argument)
            case Read(access=found):
                access(found)
            case Value(value=value):
                polynomial(value)
            case _:
                pass

    for found in op.statements:
        seen[f"reducer {found.reducer.name}"] += 1
        seen.update(f"write {index.boundary.name}" for index in found.target.indices)
        access(found.target)
        expression(found.body)
        for guard in found.guards:
            seen[f"relation {guard.relation.name}"] += 1
            polynomial(guard.value)
    for declared in (*op.inputs, *op.outputs, *op.temporaries):
        seen[f"dtype {declared.dtype.name}"] += 1
    return seen


EVERYTHING = {
    *("Constant", "Parameter", "Value", "Read", "Apply"),
    *(boundary.name for boundary in Boundary),
    *(f"write {name}" for name in ("DROP", "CLAMP", "REFLECT", "SYMMETRIC", "WRAP")),
    *(f"reducer {reducer.name}" for reducer in Reducer),
    *(f"primitive {name}" for name in PRIMITIVES),
    *(f"relation {relation.name}" for relation in Relation),
    *(f"dtype {dtype.name}" for dtype in DType if dtype is not DType.BF16),
    *(kind.value for kind in (Kind.FLOOR_DIV, Kind.MIN, Kind.MAX, Kind.LOAD, Kind.SYMBOL)),
}


@pytest.mark.slow
def test_random_ops_cover_everything_and_have_a_meaning() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=450, derandomize=True)
    @given(st.data())
    def explore(data: st.DataObject) -> None:
        op = data.draw(notation_strategies.ops())
        verify(op)
        call = data.draw(notation_strategies.calls(op))
        outputs = evaluate(op, call.sizes, call.tensors, call.attributes)
        assert list(outputs) == [output.name for output in op.outputs]
        seen.update(nodes(op))

    explore()
    assert sorted(EVERYTHING - seen.keys()) == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shared", [np.float32, np.float16, np.int64, np.int8])
def test_random_ops_have_a_meaning_in_every_type(shared: type) -> None:
    @settings(max_examples=20)
    @given(st.data())
    def explore(data: st.DataObject) -> None:
        op = data.draw(notation_strategies.ops())
        real = any(found.dtype is DType.FLOAT for found in (*op.inputs, *op.outputs))
        kind = np.float32 if real and np.issubdtype(shared, np.integer) else shared
        call = data.draw(notation_strategies.calls(op, kind))
        outputs = evaluate(op, call.sizes, call.tensors, call.attributes)
        for output in op.outputs:
            if output.dtype is DType.SAME:
                assert outputs[output.name].dtype == kind

    explore()


def test_index_arithmetic_does_not_wrap_around() -> None:
    """An index may pass through numbers beyond 64 bits; a value may not."""
    huge = poly(2**70)
    op = make_op(
        [tensor("x", N)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, read("x", (i * huge) // huge)),
    )
    x = random_array(3)
    np.testing.assert_array_equal(run(op, {"x": x}, {"N": 3}), x)
    atoms = maximum(load("n", [i]) * huge, i) // huge
    op = make_op(
        [tensor("x", N), tensor("n", N, dtype=DType.I64)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, read("x", atoms)),
    )
    arrays = {"x": x, "n": np.array([2, 1, 0])}
    np.testing.assert_array_equal(run(op, arrays, {"N": 3}), x[::-1])
