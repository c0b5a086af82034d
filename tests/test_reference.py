"""The interpreter against loops written by hand, numpy and PyTorch, on ops built by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

import notation_strategies
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Kind, Poly, load, maximum, poly, symbol
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Apply,
    Attribute,
    AttributeType,
    Boundary,
    Constant,
    Constraint,
    Dim,
    DType,
    Expr,
    Index,
    Iterator,
    Let,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Table,
    Tensor,
    Value,
)
from opgen.ir.primitives import PRIMITIVES, Absence
from opgen.ir.reference import IllDefinedError, evaluate
from opgen.ir.verify import verify
from opgen.testing.magnitude import magnitude

b, c, h, i, j, k, l, n, r, v = (symbol(name) for name in "bchijklnrv")
B, C, H, K, L, M, N, R, V, W = (symbol(name) for name in "BCHKLMNRVW")
p, s = symbol("p"), symbol("s")
Z = Boundary.ZERO


# ---------------------------------------------------------------------------- building by hand
def tensor(name: str, *extents: Poly | int, dtype: DType = DType.SAME, **more: object) -> Tensor:
    return Tensor(name, tuple(Dim(poly(extent)) for extent in extents), dtype, **more)


def at(name: str, *indices: Poly | int | Index) -> Access:
    return Access(name, tuple(x if isinstance(x, Index) else Index(poly(x)) for x in indices))


def read(name: str, *indices: Poly | int | Index) -> Read:
    return Read(at(name, *indices))


def call(name: str, *arguments: Expr) -> Apply:
    return Apply(name, arguments)


def statement(
    target: Access,
    reducer: Reducer,
    box: Mapping[str, Poly | int],
    body: Expr,
    *guards: Condition,
    position: Poly | None = None,
) -> Statement:
    iterators = tuple(Iterator(name, poly(extent)) for name, extent in box.items())
    return Statement(target, reducer, iterators, guards, body, position)


def make_op(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], *statements: Statement, **more: object
) -> Op:
    """An op whose sizes are the capital letters of its inputs' dims."""
    dims = [dim.extent.symbols for t in inputs for dim in t.dims]
    sizes = sorted({name for symbols in dims for name in symbols if name.isupper()} | {"..."})
    lets = {let.name for let in more.get("lets", ())}
    fields = {"attributes": (), "lets": (), "constraints": (), "tables": (), "temporaries": ()}
    op = Op(
        name="handmade",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        sizes=tuple(name for name in sizes if name not in lets),
        statements=statements,
        **{**fields, **more},
    )
    verify(op)
    return op


def run(op: Op, tensors: Mapping[str, object], sizes: Mapping[str, int], **attributes: object):
    arrays = {name: np.asarray(array) for name, array in tensors.items()}
    return evaluate(op, sizes, arrays, attributes)["y"]


def integer(name: str, default: int | None = None, **more: object) -> Attribute:
    return Attribute(name, AttributeType.INT, default, **more)


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


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


CONV2D = make_op(
    [tensor("x", B, C, H, W), tensor("w", K, C, R, R), tensor("bias", K, default=0.0)],
    [tensor("y", B, K, N, M)],
    statement(
        at("y", b, k, n, v),
        Reducer.ASSIGN,
        {"b": B, "k": K, "n": N, "v": M},
        read("bias", k),
    ),
    statement(
        at("y", b, k, n, v),
        Reducer.ADD,
        {"b": B, "k": K, "n": N, "v": M, "c": C, "i": R, "j": R},
        call(
            "mul",
            read(
                "x",
                b,
                c,
                Index(n * s + i * symbol("d") - p, Z),
                Index(v * s + j * symbol("d") - p, Z),
            ),
            read("w", k, c, i, j),
        ),
    ),
    attributes=(integer("s", 1), integer("d", 1), integer("p", 0)),
    lets=(
        Let("N", (H + 2 * p - symbol("d") * (R - 1) - 1) // s + 1),
        Let("M", (W + 2 * p - symbol("d") * (R - 1) - 1) // s + 1),
    ),
)


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


# ---------------------------------------------------------------------------- reducers
def reduce_op(reducer: Reducer, dtype: DType = DType.SAME, **more: object) -> Op:
    position = k if reducer.is_argument else None
    kind = DType.I64 if reducer.is_argument else dtype
    body = read("x", i, k)
    box = {"i": N, "k": K}
    return make_op(
        [tensor("x", N, K, dtype=dtype)],
        [tensor("y", N, dtype=kind)],
        statement(at("y", i), reducer, box, body, position=position),
    )


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


# ---------------------------------------------------------------------------- boundaries
def pad_op(boundary: Boundary, fill: float | None = None) -> Op:
    return make_op(
        [tensor("x", N)],
        [tensor("y", symbol("a") + N + symbol("z"))],
        statement(
            at("y", i),
            Reducer.ASSIGN,
            {"i": symbol("a") + N + symbol("z")},
            read("x", Index(i - symbol("a"), boundary, fill)),
        ),
        attributes=(integer("a"), integer("z")),
    )


PADS = {
    Boundary.ZERO: ("constant", None),
    Boundary.FILL: ("constant", 7.5),
    Boundary.REFLECT: ("reflect", None),
    Boundary.CLAMP: ("replicate", None),
    Boundary.WRAP: ("circular", None),
}


@pytest.mark.parametrize("boundary", PADS)
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 1), (3, 3), (-1, 2), (1, -2)])
def test_boundaries_are_the_modes_of_torch(boundary: Boundary, before: int, after: int) -> None:
    mode, fill = PADS[boundary]
    if boundary is Boundary.WRAP:  # PyTorch crops before it wraps
        before, after = abs(before), abs(after)
    x = random_array(4)
    value = 0.0 if fill is None else fill
    arguments = (value,) if mode == "constant" else ()
    expected = F.pad(torch.tensor(x)[None, None], (before, after), mode, *arguments)[0, 0]
    actual = run(pad_op(boundary, fill), {"x": x}, {"N": 4}, a=before, z=after)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("boundary", [Boundary.SYMMETRIC, Boundary.REFLECT, Boundary.WRAP])
def test_boundaries_are_the_modes_of_numpy(boundary: Boundary) -> None:
    for extent in (1, 2, 3, 5):
        x = np.arange(1.0, extent + 1)
        reach = extent - 1 if boundary is Boundary.REFLECT else extent
        for before, after in itertools.product(range(reach + 1), repeat=2):
            expected = np.pad(x, (before, after), mode=boundary.value[1:])
            actual = run(pad_op(boundary), {"x": x}, {"N": extent}, a=before, z=after)
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("boundary", "first"), [(Boundary.REFLECT, -3), (Boundary.SYMMETRIC, -4), (Boundary.NONE, 0)]
)
def test_the_range_of_a_boundary_is_closed(boundary: Boundary, first: int) -> None:
    """N = 4: reflect reaches [-3, 6], symmetric [-4, 7], no mode [0, 3]; one more is an error."""
    x = np.arange(4.0)
    assert run(pad_op(boundary), {"x": x}, {"N": 4}, a=-first, z=-first).shape == (4 - 2 * first,)
    for before, after in ((1 - first, 0), (0, 1 - first)):
        with pytest.raises(IndexError, match="outside of dimension 0 of 'x', which has extent 4"):
            run(pad_op(boundary), {"x": x}, {"N": 4}, a=before, z=after)


@pytest.mark.parametrize("boundary", [Boundary.CLAMP, Boundary.WRAP, Boundary.REFLECT])
def test_no_mode_finds_a_cell_in_an_empty_dimension(boundary: Boundary) -> None:
    with pytest.raises(IndexError, match="extent 0"):
        run(pad_op(boundary), {"x": np.zeros(0)}, {"N": 0}, a=1, z=0)


# A fill value is a constant and has no transpose.
@pytest.mark.parametrize(
    "boundary", [*(mode for mode in PADS if mode is not Boundary.FILL), Boundary.SYMMETRIC]
)
def test_writing_with_a_boundary_is_the_transpose_of_reading(boundary: Boundary) -> None:
    before, after, extent = 2, 3, 4
    writing = Boundary.DROP if boundary is Boundary.ZERO else boundary
    op = make_op(
        [tensor("x", M), tensor("like", N)],
        [tensor("y", N)],
        statement(at("y", Index(i - symbol("a"), writing)), Reducer.ADD, {"i": M}, read("x", i)),
        attributes=(integer("a"),),
    )
    g = random_array(extent + before + after)
    actual = run(op, {"x": g, "like": np.zeros(extent)}, {"M": len(g), "N": extent}, a=before)
    matrix = np.stack(
        [
            run(pad_op(boundary), {"x": unit}, {"N": extent}, a=before, z=after)
            for unit in np.eye(extent)
        ]
    )
    np.testing.assert_allclose(actual, matrix @ g, rtol=1e-14)


def test_an_access_that_is_not_made_needs_no_other_index() -> None:
    """Absence outranks a fill value, and both outrank an index without a mode."""
    none, zero, fill = Index(poly(9)), Index(poly(9), Z), Index(poly(9), Boundary.FILL, 4.0)
    for indices, expected in (((zero, none), 0), ((fill, none), 4), ((fill, zero), 0)):
        op = make_op(
            [tensor("x", N, N)],
            [tensor("y")],
            statement(at("y"), Reducer.ASSIGN, {}, read("x", *indices)),
        )
        assert run(op, {"x": np.ones((2, 2))}, {"N": 2}) == expected
    dropped = make_op(
        [tensor("x", N)],
        [tensor("y", N, N)],
        statement(
            at("y", Index(i + N, Boundary.DROP), i + N), Reducer.ADD, {"i": N}, read("x", i + N)
        ),
    )
    assert run(dropped, {"x": np.ones(2)}, {"N": 2}).tolist() == [[0, 0], [0, 0]]


# ---------------------------------------------------------------------------- absence
def value_with_absence(body: Expr) -> float | None:
    """The body at one point, None where it is absent: MIN skips it."""
    op = make_op([tensor("x", N)], [tensor("y")], statement(at("y"), Reducer.MIN, {}, body))
    result = float(run(op, {"x": np.array([5.0])}, {"N": 1}))
    return None if result == math.inf else result


GONE = read("x", Index(poly(-1), Z))
FIVE = read("x", 0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (GONE, None),
        (FIVE, 5),
        (call("mul", GONE, FIVE), None),
        (call("mul", FIVE, GONE), None),
        (call("add", GONE, FIVE), 5),
        (call("add", GONE, GONE), None),
        (call("sub", GONE, FIVE), -5),
        (call("sub", FIVE, GONE), 5),
        (call("sub", GONE, GONE), None),
        (call("neg", GONE), None),
        (call("div", GONE, FIVE), None),
        (call("div", GONE, GONE), None),
        (call("div", Constant(-1), GONE), -math.inf),
        (call("exp", GONE), 1),
        (call("pow", FIVE, GONE), 1),
        (call("max", GONE, call("neg", FIVE)), 0),
        (call("lt", GONE, FIVE), 1),
        (call("not", GONE), 1),
        (call("or", GONE, FIVE), 1),
        (call("select", GONE, FIVE, Constant(2)), 2),
        (call("select", FIVE, GONE, Constant(2)), None),
        (call("select", FIVE, Constant(2), GONE), 2),
        # Absence inside: 0 * inf never happens, siblings of the product do not see it.
        (call("add", call("mul", GONE, Constant(math.inf)), FIVE), 5),
        (call("mul", call("add", GONE, GONE), FIVE), None),
        (call("mul", call("exp", GONE), FIVE), 5),
    ],
)
def test_absence(body: Expr, expected: float | None) -> None:
    assert value_with_absence(body) == expected


def test_every_row_follows_its_rule_of_absence() -> None:
    """The table's rule, row by row, on arguments that are absent in every combination."""
    for row in PRIMITIVES.values():
        for missing in itertools.product((False, True), repeat=row.arity):
            body = Apply(row.name, tuple(GONE if gone else FIVE for gone in missing))
            rule = {
                Absence.ANY: any(missing),
                Absence.PASS: any(missing),
                Absence.ALL: all(missing),
                Absence.NUMERATOR: missing[0],
                Absence.NEVER: False,
                Absence.BRANCH: len(missing) == 3 and missing[2 if missing[0] else 1],
            }
            zeroed = [0.0 if gone else 5.0 for gone in missing]
            result = float(row.function(*zeroed))
            expected = None if rule[row.absence] or result == math.inf else result
            actual = value_with_absence(body)
            both_nan = actual is not None and expected is not None and actual != actual
            assert actual == expected or both_nan, (row.name, missing)


def test_select_evaluates_the_chosen_branch_only() -> None:
    """The other branch would leave the tensor, or read what nothing has written."""
    op = make_op(
        [tensor("x", N)],
        [tensor("y", N)],
        statement(
            at("y", i),
            Reducer.ASSIGN,
            {"i": N},
            call("select", Value(i), read("x", i - 1), Constant(0)),
        ),
    )
    assert run(op, {"x": np.arange(1.0, 4)}, {"N": 3}).tolist() == [0, 1, 2]


# ---------------------------------------------------------------------------- integers in indices
def test_data_dependent_reads_are_those_of_torch() -> None:
    op = make_op(
        [tensor("x", N, C), tensor("index", M, dtype=DType.INT)],
        [tensor("y", M, C)],
        statement(
            at("y", i, c), Reducer.ASSIGN, {"i": M, "c": C}, read("x", load("index", [i]), c)
        ),
    )
    x, sizes = random_array(5, 2), {"N": 5, "C": 2, "M": 4}
    for dtype in (np.int32, np.int64):
        index = np.array([4, 0, 0, 2], dtype)
        np.testing.assert_array_equal(run(op, {"x": x, "index": index}, sizes), x[index])
    with pytest.raises(IndexError, match=r"index 5 is outside of dimension 0 of 'x'.*i=1"):
        run(op, {"x": x, "index": np.array([4, 5, 0, 2])}, sizes)


def test_scatter_drops_what_lies_outside() -> None:
    op = make_op(
        [tensor("x", M, dtype=DType.I32), tensor("like", N)],
        [tensor("y", N, dtype=DType.I64)],
        statement(
            at("y", Index(load("x", [i]), Boundary.DROP)), Reducer.ADD, {"i": M}, Constant(1)
        ),
    )
    x = np.array([3, -1, 0, 3, 7, 3, 4], np.int32)
    actual = run(op, {"x": x, "like": np.zeros(4)}, {"M": 7, "N": 4})
    np.testing.assert_array_equal(actual, np.bincount(x[(x >= 0) & (x < 4)], minlength=4))


def test_guards_may_load_outside_where_another_guard_fails() -> None:
    """Whatever their order: neighbours in an index that are equal."""
    inside = Condition(i - 1)
    equal = Condition(load("x", [i]) - load("x", [i - 1]), Relation.EQ)
    for guards in ((inside, equal), (equal, inside)):
        op = make_op(
            [tensor("x", N, dtype=DType.I64)],
            [tensor("y", dtype=DType.I64)],
            statement(at("y"), Reducer.ADD, {"i": N}, Value(i), *guards),
        )
        assert run(op, {"x": np.array([2, 2, 3, 3, 3])}, {"N": 5}) == 1 + 3 + 4
    alone = replace(op, statements=(replace(op.statements[0], guards=(equal,)),))
    with pytest.raises(IndexError, match="index -1 is outside of dimension 0 of 'x'"):
        run(alone, {"x": np.array([2, 2])}, {"N": 2})


@pytest.mark.parametrize(
    ("relation", "expected"), [(">=", [2, 3, 4]), ("==", [2]), ("!=", [0, 1, 3, 4])]
)
def test_guards(relation: str, expected: list[int]) -> None:
    op = make_op(
        [tensor("x", N)],
        [tensor("y", N)],
        statement(
            at("y", i), Reducer.ADD, {"i": N}, Constant(1), Condition(i - 2, Relation(relation))
        ),
    )
    assert np.flatnonzero(run(op, {"x": np.zeros(5)}, {"N": 5})).tolist() == expected


# ---------------------------------------------------------------------------- several statements
def softmax_op() -> Op:
    return make_op(
        [tensor("x", N, K)],
        [tensor("y", N, K)],
        statement(at("top", i), Reducer.MAX, {"i": N, "k": K}, read("x", i, k)),
        statement(
            at("total", i),
            Reducer.ADD,
            {"i": N, "k": K},
            call("exp", call("sub", read("x", i, k), read("top", i))),
        ),
        statement(
            at("y", i, k),
            Reducer.ASSIGN,
            {"i": N, "k": K},
            call(
                "div", call("exp", call("sub", read("x", i, k), read("top", i))), read("total", i)
            ),
        ),
        temporaries=(tensor("top", N), tensor("total", N)),
    )


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
        *(statement(at("y"), Reducer.MAX, {"i": N}, body) for body in (FIVE, read("x", i))),
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
