"""Adjoints and tangents of any order against difference quotients, transposes and PyTorch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis.strategies import DrawFn

import notation_strategies
from derivative_cases import BY_NAME, CASES, Case
from derivatives import (
    adjoint_call,
    make_call,
    randoms,
    read_op,
    slope_error,
    stated,
    transpose_sides,
    verified_tangent,
)
from opgen.ir.notation import Gradient
from opgen.ir.show import show
from opgen.ir.verify import verify
from opgen.passes.differentiate import (
    NotDifferentiableError,
    adjoint,
    joint_adjoint,
    tangent,
)

SMOOTH = 1e-6
"""What rounding leaves of a difference quotient."""


# ---------------------------------------------------------------------------- every case, any order
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_tangents_are_limits_of_difference_quotients(case: Case) -> None:
    call = case.call()
    for name in call.numeric:
        assert slope_error(call, name) < SMOOTH


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_adjoints_are_transposed_tangents(case: Case) -> None:
    call = case.call(exact=True)
    for name in call.numeric:
        left, right = transpose_sides(call, name)
        assert left == right


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.sampled(6)
def test_derivatives_of_adjoints(case: Case) -> None:
    call, exact = case.call(), case.call(exact=True)
    for name in call.numeric:
        second, exact_second = adjoint_call(call, name), adjoint_call(exact, name, exact=True)
        for inner in second.numeric:
            assert slope_error(second, inner) < SMOOTH, inner
            left, right = transpose_sides(exact_second, inner)
            assert left == right, inner


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_adjoints_of_tangents(case: Case) -> None:
    call = case.call(exact=True)
    forward = verified_tangent(call.op, *call.numeric)
    values = {given: call.values[name] * Fraction(2, 3) for name, given in forward.tangents}
    along = call.of(forward.op, **values)
    for name in along.numeric:
        left, right = transpose_sides(along, name)
        assert left == right, name


WITH_SEVERAL = [
    case for case in CASES if len(case.call().numeric) > 1 and not case.call().op.gradients
]


@pytest.mark.parametrize("case", WITH_SEVERAL, ids=repr)
def test_a_joint_adjoint_is_all_of_them(case: Case) -> None:
    call = case.call(exact=True)
    joint = joint_adjoint(call.op, call.numeric)
    verify(joint.op)
    numbers = np.random.default_rng(3)
    cotangents = {o.name: randoms(call.shape(o.name), numbers, True) for o in call.op.outputs}
    together = call.of(joint.op, **{t: cotangents[o] for o, t in joint.cotangents}).run()
    assert len(together) == len(call.numeric)
    for name, found in zip(call.numeric, together.values(), strict=True):
        alone = adjoint(call.op, name)
        (wanted,) = (
            call.of(alone.op, **{t: cotangents[o] for o, t in alone.cotangents}).run().values()
        )
        assert (found == wanted).all(), name


def test_all_adjoints_of_a_quotient_divide_the_same_way() -> None:
    """So that a kernel which makes several of them divides once for all."""
    text = "op f(x[N], k[N], m[N]) -> y[N]\n  y[n] = k[n]*x[n] / m[n]"
    shown = show(joint_adjoint(read_op(text), ["x", "k", "m"]).op)
    assert shown.count("grad_y[n] / m[n]") == 3
    assert shown.count("/") == 4  # and the quotient itself


def test_what_flows_back_meets_outer_functions_first() -> None:
    """As in PyTorch's graph: a cotangent that is multiplied by 0 is not divided before."""
    text = "op f(p[N], q[N], n[N], m[N]) -> y[N]\n  y[i] = p[i]*log(q[i]) / n[i] / m[i]"
    shown = show(adjoint(read_op(text), "q").op)
    assert "p[i] * (grad_y[i] / m[i] / n[i]) / q[i]" in shown


def test_a_joint_adjoint_of_what_was_written_by_hand_is_refused() -> None:
    op = read_op("op f(x[N], k[N]) -> y[N]\n  y[n] = x[n]*k[n]")
    op = replace(op, gradients=(Gradient("x", "g"),))
    with pytest.raises(NotDifferentiableError, match="'x' is written by hand"):
        joint_adjoint(op, ["x", "k"])


@pytest.mark.parametrize("name", ["softmax", "prod", "max of several statements", "strided window"])
def test_third_derivatives(name: str) -> None:
    call = BY_NAME[name].call(exact=True)
    second = adjoint_call(call, call.numeric[0], exact=True)
    for inner in second.numeric:
        third = adjoint_call(second, inner, exact=True)
        for innermost in third.numeric:
            left, right = transpose_sides(third, innermost)
            assert left == right, (inner, innermost)


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.sampled(12)
def test_derived_ops_are_specs(case: Case) -> None:
    op = read_op(case.text)
    names = [tensor.name for tensor in op.inputs if not tensor.dtype.is_integer]
    first = [adjoint(op, name).op for name in names]
    second = [adjoint(f, t.name).op for f in first for t in f.inputs if not t.dtype.is_integer]
    for derived in (*first, *second, tangent(op, tuple(names)).op):
        assert stated(read_op(show(derived))) == stated(derived)


# ---------------------------------------------------------------------------- random ops
_INDEX = ("i", "i + k - 1 ?0", "i - k ?clamp", "i + k ?wrap", "2*i - k ?0", "N - 1 - i",
          "i + k - 1 ?(0.5)", "i + k - 1 ?reflect", "i - k ?symmetric")  # fmt: skip
_GUARDS = ("", "", "", " if k <= i", " if i != 1", " if i + k < N")


@st.composite
def values(draw: DrawFn, tensors: tuple[str, ...], depth: int) -> str:
    """The text of a value over `i` and `k`."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        tensor = draw(st.sampled_from((*tensors, "v")))
        if tensor == "v":
            return f"v[{draw(st.sampled_from(_INDEX))},k]"
        return f"{tensor}[{draw(st.sampled_from(_INDEX))}]"
    a, b = (draw(values(tensors, depth - 1)) for _ in range(2))
    forms = (
        "({a} * {b})", "({a} * {b})", "({a} + {b})", "({a} - {b})", "(-{a})", "(2 * {a})",
        "({a} / (2 + {b}*{b}))", "tanh({a})", "{a}**2", "max({a}, {b})", "relu({a})",
        "select({a} > {b}, {a}, {b}*{b})", "select(k <= i, {a}, {b})", "select(k == i, {a}, 0)",
    )  # fmt: skip
    return draw(st.sampled_from(forms)).format(a=a, b=b)


@st.composite
def specs(draw: DrawFn) -> str:
    """A statement, and one before it that writes what it reads, if it reads a temporary."""
    guard = draw(st.sampled_from(_GUARDS))
    first = draw(values(("x", "w"), 2))
    reduced = draw(st.sampled_from(("sum", "max", "min", "prod")))
    written = draw(
        st.sampled_from(
            (
                f"t[i] = {reduced}(k in 3{guard}) {first}",
                f"t[i + k - 1 ?drop] += {first} for i in N, k in 3{guard}",
                f"t[2*i - k ?clamp] += {first} for i in N, k in 3{guard}",
                f"t[i - k ?drop] max= {first} for i in N, k in 3{guard}\n  t[i] max= x[i]",
            )
        )
    )
    second = draw(values(("x", "w", "t"), 2))
    reduced = draw(st.sampled_from(("sum", "sum", "max", "prod")))
    before = f"  tmp t[N]\n  {written}\n" if "t[" in second else ""  # unread, it is refused
    return (
        "op drawn(x: float[N], w[N], v[N,3]) -> y[N]\n  where N >= 3\n"
        f"{before}  y[i] = {reduced}(k in 3) {second}\n"
    )


@given(text=specs(), seed=st.integers(0, 2**16))
def test_random_adjoints_of_adjoints_are_transposed_tangents(text: str, seed: int) -> None:
    call = make_call(read_op(text), {"N": 3}, seed=seed, exact=True)
    assume(all(_finite(array) for array in call.run().values()))
    for name in call.numeric:
        left, right = transpose_sides(call, name)
        assert left == right, name
        second = adjoint_call(call, name, exact=True)
        for inner in second.numeric:
            left, right = transpose_sides(second, inner)
            assert left == right, (name, inner)


def _finite(array: np.ndarray) -> bool:
    return all(isinstance(element, Fraction) for element in array.flat)


@given(text=specs(), seed=st.integers(0, 2**16))
def test_random_tangents_are_limits_of_difference_quotients(text: str, seed: int) -> None:
    call = make_call(read_op(text), {"N": 3}, seed=seed)
    assume(all(np.isfinite(array).all() for array in call.run().values()))
    for name in call.numeric:
        error = slope_error(call, name)
        if error >= 1e-4:
            # Near a kink the quotient depends on the step, and says nothing.
            assume(abs(slope_error(call, name, step=1e-7) - error) < 1e-2 * error)
        assert error < 1e-4, name


@given(text=specs())
def test_random_derived_ops_are_specs(text: str) -> None:
    op = read_op(text)
    for name in ("x", "v"):
        for derived in (adjoint(op, name).op, tangent(op, (name,)).op):
            assert stated(read_op(show(derived))) == stated(derived)


@settings(max_examples=100)
@given(data=st.data())
def test_any_op_of_the_notation(data: st.DataObject) -> None:
    op = data.draw(notation_strategies.ops())
    drawn = data.draw(notation_strategies.calls(op, special=False))
    given = {a.name: a.default for a in op.attributes} | dict(drawn.attributes) | drawn.sizes
    integers = {t.name: drawn.tensors[t.name] for t in op.inputs if t.dtype.is_integer}
    call = make_call(op, given, integers, seed=data.draw(st.integers(0, 99)), exact=True)
    assume(any(not tensor.dtype.is_integer for tensor in op.outputs))
    try:
        call.run()
    except ZeroDivisionError:
        assume(False)
    for name in call.numeric:
        left, right = transpose_sides(call, name)
        assert left == right or not (_rational(left) and _rational(right))


def _rational(number: Fraction | float) -> bool:
    return isinstance(number, Fraction)
