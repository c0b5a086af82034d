"""The interpreter: reductions, numbers of every type, and exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from opgen.algebra.condition import Condition
from opgen.ir.notation import Boundary, Constant, DType, Expr, Index, Op, Reducer, Table, Value
from opgen.ir.reference import evaluate
from reference_ops import (
    K,
    M,
    N,
    R,
    Z,
    at,
    call,
    i,
    j,
    k,
    make_op,
    random_array,
    read,
    reduce_op,
    run,
    statement,
    tensor,
)

# ---------------------------------------------------------------------------- reducers
TORCH_REDUCERS = {
    Reducer.ADD: lambda x: x.sum(1),
    Reducer.MULTIPLY: lambda x: x.prod(1),
    Reducer.MAX: lambda x: x.amax(1),
    Reducer.MIN: lambda x: x.amin(1),
    Reducer.ARGMAX: lambda x: x.argmax(1),
    Reducer.ARGMIN: lambda x: x.argmin(1),
}
ROWS = [
    [-3.0, -1.0, -2.0],
    [1.0, math.nan, 2.0],
    [math.nan, math.inf, -math.inf],
    [math.inf, math.nan, math.nan],
    [-math.inf, -math.inf, -math.inf],
    [2.0, 2.0, 1.0],
    [-0.0, 0.0, -0.0],
    [math.inf, 0.0, 1.0],
]


@pytest.mark.parametrize("reducer", TORCH_REDUCERS)
def test_reducers_are_those_of_torch(reducer: Reducer) -> None:
    for array in (np.array(ROWS), np.array(ROWS, np.float32), random_array(4, 5)):
        expected = TORCH_REDUCERS[reducer](torch.tensor(array))
        actual = run(reduce_op(reducer), {"x": array}, {"N": array.shape[0], "K": array.shape[1]})
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
        if not reducer.is_argument:
            assert actual.dtype == array.dtype


def test_the_first_of_equals_and_the_first_nan_win() -> None:
    x = np.array([[1.0, 3.0, 3.0, 0.0], [1.0, math.nan, 5.0, math.nan]])
    assert run(reduce_op(Reducer.ARGMAX), {"x": x}, {"N": 2, "K": 4}).tolist() == [1, 1]
    x = np.array([[1.0, 0.0, 3.0, 0.0], [math.nan, math.nan, -5.0, 0.0]])
    assert run(reduce_op(Reducer.ARGMIN), {"x": x}, {"N": 2, "K": 4}).tolist() == [1, 0]


def test_the_order_of_ties_is_that_of_the_iterators() -> None:
    """The same box with the iterators declared the other way round takes another maximum."""
    for names, expected in (("jk", 1), ("kj", 10)):
        op = make_op(
            [tensor("x", N, N)],
            [tensor("y", dtype=DType.I64)],
            statement(
                at("y"),
                Reducer.ARGMAX,
                dict.fromkeys(names, N),
                read("x", j, k),
                position=j * 10 + k,
            ),
        )
        assert run(op, {"x": np.array([[0.0, 1.0], [1.0, 0.0]])}, {"N": 2}) == expected


@pytest.mark.parametrize(
    ("dtype", "numpy_type", "least", "greatest"),
    [
        (DType.SAME, np.float64, -math.inf, math.inf),
        (DType.F16, np.float16, -math.inf, math.inf),
        (DType.U8, np.uint8, 0, 255),
        (DType.I8, np.int8, -128, 127),
        (DType.I64, np.int64, -(2**63), 2**63 - 1),
        (DType.SAME, np.int32, -(2**31), 2**31 - 1),
        (DType.BOOL, np.bool_, False, True),
    ],
)
def test_empty_reductions_are_identities(dtype, numpy_type, least, greatest) -> None:
    expected = {
        Reducer.ADD: 0,
        Reducer.MULTIPLY: 1,
        Reducer.MAX: least,
        Reducer.MIN: greatest,
        Reducer.ARGMAX: -1,
        Reducer.ARGMIN: -1,
    }
    for reducer, value in expected.items():
        actual = run(
            reduce_op(reducer, dtype), {"x": np.zeros((2, 0), numpy_type)}, {"N": 2, "K": 0}
        )
        assert actual.tolist() == [value, value], reducer


def test_absent_bodies_by_reducer() -> None:
    """x has two elements; the third term lies outside."""
    x = np.array([-2.0, -3.0])
    expected = {
        Reducer.ADD: -5,
        Reducer.MULTIPLY: 0,
        Reducer.MAX: -2,
        Reducer.MIN: -3,
        Reducer.ARGMAX: 0,
        Reducer.ARGMIN: 1,
    }
    for reducer, value in expected.items():
        op = make_op(
            [tensor("x", N)],
            [tensor("y", dtype=DType.I64 if reducer.is_argument else DType.SAME)],
            statement(
                at("y"),
                reducer,
                {"k": 3},
                read("x", Index(k, Z)),
                position=k if reducer.is_argument else None,
            ),
        )
        assert run(op, {"x": x}, {"N": 2}) == value, reducer
    assign = make_op(
        [tensor("x", N)],
        [tensor("y", 3)],
        statement(at("y", i), Reducer.ASSIGN, {"i": 3}, read("x", Index(i, Z))),
    )
    assert run(assign, {"x": x}, {"N": 2}).tolist() == [-2, -3, 0]


# ---------------------------------------------------------------------------- numbers
def unary_op(body: Expr, dtype: DType = DType.SAME, out: DType = DType.SAME) -> Op:
    return make_op(
        [tensor("x", N, dtype=dtype)],
        [tensor("y", N, dtype=out)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, body),
    )


X = read("x", i)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_integers_wrap_around_at_the_store(dtype: type) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 3], dtype)
    op = unary_op(call("add", call("mul", X, X), Constant(1)))
    with np.errstate(over="ignore"):
        expected = x * x + dtype(1)
    actual = run(op, {"x": x}, {"N": 3})
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, expected)


def test_integers_are_computed_in_64_bits() -> None:
    """127 + 1 is no overflow before the comparison; 2**62 * 4 is one."""
    op = unary_op(call("gt", call("add", X, Constant(1)), Constant(0)))
    assert run(op, {"x": np.array([127], np.int8)}, {"N": 1}) == 1
    op = unary_op(call("eq", call("mul", X, Constant(4)), Constant(0)))
    assert run(op, {"x": np.array([2**62])}, {"N": 1}) == 1
    op = unary_op(call("lt", Value(i + 2**63), Constant(0)))
    assert run(op, {"x": np.array([0])}, {"N": 1}) == 1


def test_temporaries_are_as_wide_as_what_is_computed() -> None:
    op = make_op(
        [tensor("x", N, K, dtype=DType.I8)],
        [tensor("y", dtype=DType.I64)],
        statement(at("t"), Reducer.ADD, {"i": N, "k": K}, read("x", i, k)),
        statement(at("none"), Reducer.MIN, {"i": N, "k": K}, read("x", i, k), Condition(-i - 1)),
        statement(at("y"), Reducer.ASSIGN, {}, call("sub", read("none"), read("t"))),
        temporaries=(tensor("t", dtype=DType.I8), tensor("none", dtype=DType.I8)),
    )
    x = np.full((2, 3), 100, np.int8)
    assert run(op, {"x": x}, {"N": 2, "K": 3}) == 2**63 - 1 - 600


def test_half_precision_is_accumulated_in_single() -> None:
    """2048 + 1 is 2048 in half precision: accumulated there, the sum would be stuck."""
    x = np.concatenate([[2048], np.ones(512)]).astype(np.float16)[None]
    assert run(reduce_op(Reducer.ADD), {"x": x}, {"N": 1, "K": 513}) == 2560
    assert run(reduce_op(Reducer.MULTIPLY), {"x": x[:, :1] * 30}, {"N": 1, "K": 1}) == 61440
    overflow = run(unary_op(call("mul", X, Constant(64))), {"x": x[0, :1]}, {"N": 1})
    assert overflow == np.inf
    # Half of the product is in range again: intermediate results are wider than the tensors.
    back = call("mul", call("mul", X, Constant(64)), Constant(0.25))
    assert run(unary_op(back), {"x": x[0, :1]}, {"N": 1}) == 32768


def test_single_precision_is_rounded_after_every_operation() -> None:
    body = call("sub", call("add", X, Constant(1)), X)
    x = [2.0**24, 2.0**25, 1.0]
    assert run(unary_op(body), {"x": np.array(x, np.float32)}, {"N": 3}).tolist() == [0, 0, 1]
    assert run(unary_op(body), {"x": np.array(x)}, {"N": 3}).tolist() == [1, 1, 1]
    overflow = call("div", call("exp", X), call("exp", X))
    assert np.isnan(run(unary_op(overflow), {"x": np.array([100], np.float32)}, {"N": 1}))


def test_mixed_types() -> None:
    """An integer meets a real operand as a real; a real value does not go into integers."""
    op = make_op(
        [tensor("x", N), tensor("n", N, dtype=DType.I32), tensor("m", N, dtype=DType.BOOL)],
        [tensor("y", N)],
        statement(
            at("y", i),
            Reducer.ASSIGN,
            {"i": N},
            call("div", call("add", call("mul", X, read("n", i)), read("m", i)), Value(i + 2)),
        ),
    )
    arrays = {"x": [0.5, 1.5], "n": np.array([3, -1], np.int32), "m": np.array([True, False])}
    assert run(op, arrays, {"N": 2}).tolist() == [1.25, -0.5]
    real = unary_op(call("mul", X, Constant(0.5)))
    with pytest.raises(TypeError, match=r"real value 0\.5 written to integer tensor 'y'"):
        run(real, {"x": np.array([1])}, {"N": 1})


def test_an_integer_is_rounded_before_it_meets_a_real_operand() -> None:
    op = make_op(
        [tensor("x", N), tensor("n", N, dtype=DType.I32)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, call("gt", read("n", i), X)),
    )
    n, x = np.array([2**24 + 1], np.int32), np.array([2.0**24])
    assert run(op, {"x": x, "n": n}, {"N": 1}) == 1
    assert run(op, {"x": x.astype(np.float32), "n": n}, {"N": 1}) == 0


def test_tables_and_fills_take_the_type_that_is_computed_with() -> None:
    x = np.array([0.1, 0.1], np.float32)
    op = make_op(
        [tensor("x", N)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, call("eq", X, read("tenth", 0))),
        tables=(Table("tenth", (1,), (0.1,)),),
    )
    assert run(op, {"x": x}, {"N": 2}).tolist() == [1, 1]
    filled = unary_op(
        call("eq", Constant(0.1), read("x", Index(i - N, Boundary.FILL, 0.1))), DType.F32
    )
    assert run(filled, {"x": x}, {"N": 2}).tolist() == [1, 1]
    whole = unary_op(read("x", Index(i + 1, Boundary.FILL, -7.0)), DType.I64, DType.I64)
    assert run(whole, {"x": np.array([1, 2])}, {"N": 2}).tolist() == [2, -7]


def test_bool_outputs_are_nonzero() -> None:
    op = unary_op(call("mul", X, X), DType.I64, DType.BOOL)
    assert run(op, {"x": np.array([0, 3, -1])}, {"N": 3}).tolist() == [False, True, True]


def test_the_type_of_outputs_without_typed_inputs() -> None:
    op = make_op(
        [tensor("index", N, dtype=DType.I64)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, read("index", i)),
    )
    arrays = {"index": np.array([1, 2])}
    assert evaluate(op, {"N": 2}, arrays, {})["y"].dtype == np.float32
    assert evaluate(op, {"N": 2}, arrays, {}, dtype=np.float16)["y"].dtype == np.float16


# ---------------------------------------------------------------------------- exact arithmetic
def fractions(*shape: int, seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng(seed)
    array = np.empty(shape, object)
    for cell in np.ndindex(shape):
        array[cell] = Fraction(int(numbers.integers(-9, 10)), int(numbers.integers(1, 10)))
    return array


def test_fractions_are_exact() -> None:
    body = call("div", call("add", X, Constant(0.5)), Value(i + 3))
    x = np.array([Fraction(1, 3), Fraction(-2, 7)], object)
    actual = run(unary_op(body), {"x": x}, {"N": 2})
    assert actual.tolist() == [Fraction(5, 18), Fraction(3, 56)]
    assert all(type(value) is Fraction for value in actual)
    thirds = unary_op(call("mul", X, call("div", Value(i + 1), Constant(3))))
    assert run(thirds, {"x": x}, {"N": 2}).tolist() == [Fraction(1, 9), Fraction(-4, 21)]
    whole = run(unary_op(call("mul", X, X)), {"x": np.array([2**40], object)}, {"N": 1})
    assert whole.tolist() == [2**80]  # an integer among fractions is a fraction
    (empty,) = run(reduce_op(Reducer.ADD), {"x": x[None, :0]}, {"N": 1, "K": 0})
    assert type(empty) is Fraction
    total = run(reduce_op(Reducer.ADD), {"x": x[None]}, {"N": 1, "K": 2})
    assert total.tolist() == [Fraction(1, 21)]
    with pytest.raises(ZeroDivisionError):
        run(unary_op(call("div", X, Value(i))), {"x": x}, {"N": 2})


def test_the_dot_product_identity_is_exact() -> None:
    """<conv(x), g> = <x, transposed conv(g)>, with the transpose written by hand."""
    adjoint = make_op(
        [tensor("g", M), tensor("w", R), tensor("like", N)],
        [tensor("y", N)],
        statement(
            at("y", Index(i * 2 + k - 1, Boundary.DROP)),
            Reducer.ADD,
            {"i": M, "k": R},
            call("mul", read("g", i), read("w", k)),
        ),
    )
    forward = make_op(
        [tensor("x", N), tensor("w", R), tensor("like", M)],
        [tensor("y", M)],
        statement(
            at("y", i),
            Reducer.ADD,
            {"i": M, "k": R},
            call("mul", read("x", Index(i * 2 + k - 1, Z)), read("w", k)),
        ),
    )
    x, w, g = fractions(7), fractions(3, seed=1), fractions(4, seed=2)
    y = run(forward, {"x": x, "w": w, "like": g}, {"N": 7, "R": 3, "M": 4})
    grad = run(adjoint, {"g": g, "w": w, "like": x}, {"N": 7, "R": 3, "M": 4})
    assert y @ g == x @ grad
    wrong = run(adjoint, {"g": g, "w": w[::-1], "like": x}, {"N": 7, "R": 3, "M": 4})
    assert y @ g != x @ wrong  # the identity can fail


def test_exact_identities_hold_through_functions_too() -> None:
    """exp is rounded, but to the same rational on both sides: sum of g * exp(x) * t."""
    x, t, g = fractions(5), fractions(5, seed=1), fractions(5, seed=2)
    product = call("mul", call("exp", X), read("d", i))
    op = make_op(
        [tensor("x", N), tensor("d", N)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, product),
    )
    tangent, cotangent = (run(op, {"x": x, "d": d}, {"N": 5}) for d in (t, g))
    assert all(type(value) is Fraction for value in tangent)
    assert tangent @ g == cotangent @ t
