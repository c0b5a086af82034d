"""The interpreter: reads at the ends of dims, of what is not there, and by loaded indices."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import load, poly, symbol
from opgen.ir.notation import Apply, Boundary, Constant, DType, Expr, Index, Op, Reducer, Value
from opgen.ir.primitives import PRIMITIVES, Absence
from reference_ops import (
    C,
    M,
    N,
    Z,
    at,
    c,
    call,
    i,
    integer,
    make_op,
    random_array,
    read,
    run,
    statement,
    tensor,
)


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
