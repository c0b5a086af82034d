"""The interpreter against loops written by hand, numpy and PyTorch, on ops built by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from opgen.algebra.condition import Condition
from opgen.algebra.poly import load, poly, symbol
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Attribute,
    AttributeType,
    Constant,
    Constraint,
    DType,
    Index,
    Iterator,
    Let,
    Op,
    Parameter,
    Reducer,
    Table,
    Value,
)
from opgen.ir.reference import IllDefinedError, evaluate
from reference_ops import (
    CONV2D,
    B,
    C,
    H,
    K,
    N,
    R,
    V,
    W,
    Z,
    at,
    b,
    c,
    call,
    h,
    i,
    integer,
    j,
    k,
    make_op,
    n,
    random_array,
    read,
    reduce_op,
    run,
    softmax_op,
    statement,
    tensor,
    v,
)

# ---------------------------------------------------------------------------- whole ops
SHIFT_SUM = make_op(
    [tensor("x", B, C, H, W)],
    [tensor("y", B, 1, H, V)],
    statement(
        at("y", b, 0, h, v),
        Reducer.ADD,
        {"b": B, "h": H, "v": V, "c": C},
        read("x", b, c, h, Index(v - c * symbol("step"), Z)),
    ),
    attributes=(integer("step"),),
    lets=(Let("V", W + (C - 1) * symbol("step")),),
)


@pytest.mark.parametrize(
    ("shape", "step"), [((2, 3, 2, 4), 1), ((1, 2, 1, 3), 3), ((1, 4, 2, 5), 0)]
)
def test_shift_sum(shape: tuple[int, ...], step: int) -> None:
    x = random_array(*shape)
    batch, channels, height, width = shape
    expected = np.zeros((batch, 1, height, width + (channels - 1) * step))
    for channel in range(channels):
        for column in range(width):
            expected[:, 0, :, column + channel * step] += x[:, channel, :, column]
    actual = run(
        SHIFT_SUM, {"x": x}, {"B": batch, "C": channels, "H": height, "W": width}, step=step
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_depth_to_space(dtype: type) -> None:
    op = make_op(
        [tensor("x", B, C * R * R, H, W)],
        [tensor("y", B, C, H * R, W * R)],
        statement(
            at("y", b, c, h * R + i, v * R + j),
            Reducer.ASSIGN,
            {"b": B, "c": C, "h": H, "v": W, "i": R, "j": R},
            read("x", b, c * R * R + i * R + j, h, v),
        ),
    )
    x = np.arange(2 * 12 * 2 * 3).reshape(2, 12, 2, 3).astype(dtype)
    actual = run(op, {"x": x}, {"B": 2, "C": 3, "R": 2, "H": 2, "W": 3})
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, F.pixel_shuffle(torch.tensor(x), 2).numpy())


@pytest.mark.parametrize(
    ("stride", "dilation", "padding"), [(1, 1, 0), (2, 1, 1), (1, 2, 2), (3, 2, 3)]
)
def test_conv2d(stride: int, dilation: int, padding: int) -> None:
    x, w, bias = random_array(2, 2, 5, 6), random_array(3, 2, 2, 2, seed=1), random_array(3, seed=2)
    sizes = {"B": 2, "C": 2, "H": 5, "W": 6, "K": 3, "R": 2}
    attributes = {"s": stride, "d": dilation, "p": padding}
    for extra in ({}, {"bias": bias}):
        actual = run(CONV2D, {"x": x, "w": w, **extra}, sizes, **attributes)
        expected = F.conv2d(
            torch.tensor(x),
            torch.tensor(w),
            torch.tensor(bias) if extra else None,
            stride,
            padding,
            dilation,
        )
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_max_pool_of_negative_inputs_skips_the_padding() -> None:
    x = -np.abs(random_array(2, 2, 5, 7)) - 1
    window = read("x", b, c, Index(n * 2 + i - 1, Z), Index(v * 2 + j - 1, Z))
    box = {"b": B, "c": C, "n": (H - 1) // 2 + 1, "v": (W - 1) // 2 + 1, "i": 3, "j": 3}
    dims = (B, C, (H - 1) // 2 + 1, (W - 1) // 2 + 1)
    op = make_op(
        [tensor("x", B, C, H, W)],
        [tensor("y", *dims), tensor("index", *dims, dtype=DType.I64)],
        statement(at("y", b, c, n, v), Reducer.MAX, box, window),
        statement(
            at("index", b, c, n, v),
            Reducer.ARGMAX,
            box,
            window,
            position=(n * 2 + i - 1) * W + v * 2 + j - 1,
        ),
    )
    actual = evaluate(op, {"B": 2, "C": 2, "H": 5, "W": 7}, {"x": x}, {})
    values, positions = F.max_pool2d(torch.tensor(x), 3, 2, 1, return_indices=True)
    np.testing.assert_array_equal(actual["y"], values)
    np.testing.assert_array_equal(actual["index"], positions)


def test_roll_and_diagonals() -> None:
    x = random_array(5, 5)
    roll = make_op(
        [tensor("x", N, N)],
        [tensor("y", N, N)],
        statement(
            at("y", i, j), Reducer.ASSIGN, {"i": N, "j": N}, read("x", i, (j - symbol("shift")) % N)
        ),
        attributes=(integer("shift"),),
    )
    for shift in (-7, -1, 0, 2, 11):
        np.testing.assert_array_equal(
            run(roll, {"x": x}, {"N": 5}, shift=shift), np.roll(x, shift, 1)
        )
    diagonal = make_op(
        [tensor("x", N, N)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, read("x", i, i)),
    )
    np.testing.assert_array_equal(run(diagonal, {"x": x}, {"N": 5}), np.diagonal(x))
    embed = make_op(
        [tensor("x", N)],
        [tensor("y", N, N)],
        statement(at("y", i, i), Reducer.ASSIGN, {"i": N}, read("x", i)),
    )
    np.testing.assert_array_equal(run(embed, {"x": x[0]}, {"N": 5}), np.diag(x[0]))


def test_batch_is_one_flattened_size() -> None:
    dots = symbol(BATCH_ITERATOR)
    op = make_op(
        [tensor("x", symbol(BATCH), N)],
        [tensor("y", symbol(BATCH))],
        statement(
            at("y", dots), Reducer.ADD, {BATCH_ITERATOR: symbol(BATCH), "i": N}, read("x", dots, i)
        ),
    )
    x = random_array(6, 4)
    np.testing.assert_allclose(run(op, {"x": x}, {BATCH: 6, "N": 4}), x.sum(1))


# ---------------------------------------------------------------------------- several statements
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_softmax(dtype: type) -> None:
    x = (random_array(3, 6) * 4).astype(dtype)
    expected = torch.tensor(x).double().softmax(1)
    tolerance = {np.float64: 1e-14, np.float32: 1e-6, np.float16: 1e-3}[dtype]
    actual = run(softmax_op(), {"x": x}, {"N": 3, "K": 6})
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, expected, rtol=tolerance)


def test_statements_of_one_tensor_accumulate_in_order() -> None:
    op = make_op(
        [tensor("x", N)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, Constant(10)),
        statement(at("y", 0), Reducer.ADD, {"i": N}, read("x", i)),
    )
    assert run(op, {"x": np.array([1.0, 2.0])}, {"N": 2}).tolist() == [13, 10]
    best = make_op(
        [tensor("x", N)],
        [tensor("y")],
        *(statement(at("y"), Reducer.MAX, {"i": N}, body) for body in (read("x", 0), read("x", i))),
    )
    assert run(best, {"x": np.array([-1.0, 7.0])}, {"N": 2}) == 7


def test_reading_a_cell_that_nothing_wrote_is_an_error() -> None:
    def op(reducer: Reducer) -> Op:
        return make_op(
            [tensor("x", N)],
            [tensor("y", N)],
            statement(at("t", i + 1), reducer, {"i": N - 1}, read("x", i)),
            statement(at("y", i), Reducer.ASSIGN, {"i": N}, read("t", i)),
            temporaries=(tensor("t", N),),
        )

    x = np.array([1.0, 2.0, 3.0])
    with pytest.raises(IllDefinedError, match=r"t\[0\] is read before it is written"):
        run(op(Reducer.ASSIGN), {"x": x}, {"N": 3})
    assert run(op(Reducer.ADD), {"x": x}, {"N": 3}).tolist() == [0, 1, 2]


def test_assigning_a_cell_twice_is_an_error() -> None:
    op = make_op(
        [tensor("x", N)],
        [tensor("y", N)],
        statement(at("y", i // 2), Reducer.ASSIGN, {"i": N}, read("x", i)),
    )
    with pytest.raises(IllDefinedError, match=r"y\[0\] is assigned, but was written before"):
        run(op, {"x": np.zeros(3)}, {"N": 3})
    once = replace(op.statements[0], iterators=(Iterator("i", poly(1)),))
    add = replace(once, reducer=Reducer.ADD)
    with pytest.raises(IllDefinedError, match=r"y\[0\] is assigned, but was written before"):
        run(replace(op, statements=(add, once)), {"x": np.zeros(3)}, {"N": 3})
    assert run(replace(op, statements=(once, add)), {"x": np.ones(3)}, {"N": 3})[0] == 2


def test_cells_that_nothing_writes_are_zero() -> None:
    op = make_op(
        [tensor("x", N)],
        [tensor("y", 2 * N)],
        statement(at("y", 2 * i), Reducer.ASSIGN, {"i": N}, read("x", i)),
    )
    assert run(op, {"x": np.ones(2)}, {"N": 2}).tolist() == [1, 0, 1, 0]


# ---------------------------------------------------------------------------- calls
def test_attributes() -> None:
    attributes = (
        integer("step", (1, 2), length=2),
        Attribute("gain", AttributeType.FLOAT, 0.5),
        Attribute("flip", AttributeType.BOOL, False),
        Attribute("mode", AttributeType.CHOICE, None, ("sum", "mean")),
        Attribute("extra", AttributeType.SIZE),
    )
    total = (
        symbol("step[0]") * 1000 + symbol("step[1]") * 100 + symbol("flip") * 10 + symbol("mode")
    )
    op = make_op(
        [tensor("x", N)],
        [tensor("y", symbol("extra"))],
        statement(
            at("y", i),
            Reducer.ASSIGN,
            {"i": symbol("extra")},
            call("mul", Value(total), Parameter("gain")),
        ),
        attributes=attributes,
    )

    def value(**attributes: object) -> float:
        (result,) = run(op, {"x": np.zeros(1)}, {"N": 1}, extra=1, **attributes)
        return float(result)

    assert value(mode="sum") == 600
    assert value(mode="mean", step=3, flip=True, gain=2) == 6622
    assert value(mode="sum", step=(0, 5)) == 250
    with pytest.raises(KeyError, match="attribute 'mode' has no value"):
        value()
    with pytest.raises(ValueError, match="'max' is none of sum, mean"):
        value(mode="max")
    with pytest.raises(ValueError, match="size 'extra' is negative"):
        run(op, {"x": np.zeros(1)}, {"N": 1}, extra=-1, mode="sum")
    with pytest.raises(ValueError, match="'step' takes 2 numbers"):
        value(mode="sum", step=(1, 2, 3))


def test_tables() -> None:
    op = make_op(
        [tensor("x", N)],
        [tensor("y", N)],
        statement(
            at("y", i),
            Reducer.ADD,
            {"i": N, "k": 2},
            call("mul", read("taps", 1, k), read("x", Index(i + load("offsets", [k]), Z))),
        ),
        tables=(Table("taps", (2, 2), (0, 0, 0.5, 3)), Table("offsets", (2,), (1, -1))),
    )
    x = np.array([1.0, 10.0, 100.0])
    assert run(op, {"x": x}, {"N": 3}).tolist() == [5, 53, 30]


def test_lets_are_computed_or_compared() -> None:
    sizes = {"B": 1, "C": 2, "H": 1, "W": 3}
    x = np.ones((1, 2, 1, 3))
    computed = run(SHIFT_SUM, {"x": x}, sizes, step=1)
    np.testing.assert_array_equal(run(SHIFT_SUM, {"x": x}, {**sizes, "V": 4}, step=1), computed)
    with pytest.raises(ValueError, match="V is 5, not 4"):
        run(SHIFT_SUM, {"x": x}, {**sizes, "V": 5}, step=1)
    with pytest.raises(ValueError, match="'y' has negative shape"):
        run(SHIFT_SUM, {"x": x}, sizes, step=-4)


def test_calls_that_do_not_fit_are_refused() -> None:
    op = replace(
        reduce_op(Reducer.ADD),
        constraints=(Constraint(Condition(K - 1), "the window is not empty"),),
    )
    x = np.zeros((2, 3))
    with pytest.raises(ValueError, match="the window is not empty does not hold"):
        run(op, {"x": x[:, :0]}, {"N": 2, "K": 0})
    with pytest.raises(ValueError, match=r"'x' has shape \(2, 3\), not \(2, 4\)"):
        run(op, {"x": x}, {"N": 2, "K": 4})
    with pytest.raises(KeyError, match="input 'x' is missing"):
        run(op, {}, {"N": 2, "K": 3})
    with pytest.raises(TypeError, match="'x' is float32, not float64"):
        evaluate(op, {"N": 2, "K": 3}, {"x": x.astype(np.float32)}, {}, dtype=np.float64)
    fixed = reduce_op(Reducer.ADD, DType.F16)
    with pytest.raises(TypeError, match="'x' is float64, not float16"):
        run(fixed, {"x": x}, {"N": 2, "K": 3})
    floating = reduce_op(Reducer.ADD, DType.FLOAT)
    with pytest.raises(TypeError, match="'x' is int64, not a floating type"):
        run(floating, {"x": x.astype(np.int64)}, {"N": 2, "K": 3})
    two = make_op(
        [tensor("x", N), tensor("w", N)],
        [tensor("y", N)],
        statement(at("y", i), Reducer.ASSIGN, {"i": N}, read("w", i)),
    )
    with pytest.raises(TypeError, match="'w' is float32, not float64"):
        run(two, {"x": x[0], "w": x[0].astype(np.float32)}, {"N": 3})


def test_inputs_are_not_changed() -> None:
    x = random_array(2, 3)
    before = x.copy()
    run(softmax_op(), {"x": x}, {"N": 2, "K": 3})
    np.testing.assert_array_equal(x, before)
