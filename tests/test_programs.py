"""The loops of an op for particular purposes, and what the rewritten ops compute."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import notation_strategies
from derivatives import read_op
from opgen.errors import OpgenError
from opgen.ir.notation import Op
from opgen.ir.reference import evaluate
from opgen.passes.differentiate import derivative
from opgen.programs import for_cpu, for_gpu, scheduled


@pytest.mark.parametrize(("one", "other"), [("2", "2.0"), ("1.0", "1"), ("0.0", "-0.0")])
def test_loops_of_equal_ops_with_other_literals(one: str, other: str) -> None:
    """Equal numbers, but 2 is an integer and 2.0 is none, and -0.0 has a sign."""
    header = "op f(x: float[N]) -> y[N]"
    ops = [read_op(f"{header}\n  y[n] = max(x[n], {text})") for text in (one, other)]
    assert ops[0] == ops[1]
    found = [repr(scheduled(op)) for op in ops]
    assert found[0] != found[1]
    assert [repr(scheduled(op)) for op in ops] == found


def test_loops_are_found_once() -> None:
    ops = [read_op("op f(x[N]) -> y[N]\n  y[n] = 3*x[n]") for _ in range(2)]
    assert scheduled(ops[0]) is scheduled(ops[1])


# ---------------------------------------------------------------------------- rewritten ops
def forms(op: Op) -> Sequence[Op]:
    """The op as kernels of both kinds of devices compute it."""
    return for_cpu(op), for_cpu(op, is_derived=True), for_gpu(op)


@settings(max_examples=60)
@given(data=st.data())
def test_random_ops_mean_the_same_on_devices(data: st.DataObject) -> None:
    """As the naive interpreter says, which also refuses a cell outside of a tensor."""
    op = data.draw(notation_strategies.ops())
    call = data.draw(notation_strategies.calls(op, np.float64))
    wanted = evaluate(op, call.sizes, call.tensors, call.attributes)
    for form in forms(op):
        found = evaluate(form, call.sizes, call.tensors, call.attributes)
        for name, values in wanted.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-9)


# Indices that rise by jumps, fall again, or stay, of an iterator `w` without an end and `j` in 4.
_ATOMS = ("w", "j", "2*w", "-w", "3*j", "1", "-2")


def _longer(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from((" + ", " - "))
    return st.one_of(
        st.tuples(inner, operators, inner).map("".join),
        st.tuples(inner, st.sampled_from(("//2", "//3", "%3"))).map(lambda e: f"({e[0]}){e[1]}"),
        st.tuples(st.sampled_from(("min", "max")), inner, inner).map(
            lambda e: f"{e[0]}({e[1]}, {e[2]})"
        ),
    )


INDICES = st.recursive(st.sampled_from(_ATOMS), _longer, max_leaves=5).map("w + {}".format)
MODES = ("?clamp", "?wrap", "?drop")


@settings(max_examples=60)
@given(INDICES, INDICES, st.sampled_from(MODES), st.sampled_from((("W", "W"), ("9", "5"))))
@example("w + j//2", "w + 1", "?clamp", ("W", "W"))
@example("w + min(j, 2)", "w + j%3", "?wrap", ("W", "W"))
@example("w + w//2 + j//2", "w + j", "?clamp", ("9", "5"))
def test_indices_mean_the_same_on_devices(
    one: str, other: str, mode: str, extents: tuple[str, str]
) -> None:
    """Also those of the gradient of what reads at them, each beside loops of Python."""
    terms, cells = extents
    where = "  where W >= 1\n" if cells == "W" else ""
    try:
        spread = read_op(
            f"op f(x[{terms},4,A], z[{terms},4,A]) -> y[{cells},A]\n{where}"
            f"  y[{one} {mode},a] += x[w,j,a]\n  y[{other} {mode},a] += 2*z[w,j,a]\n"
        )
        taken = read_op(
            f"op f(y[{cells},A]) -> x[{terms},4,A]\n{where}"
            f"  x[w,j,a] = y[{one} {mode.replace('?drop', '?0')},a]\n"
        )
    except OpgenError:
        return  # more than a proof takes
    for width in (1, 4, 9) if terms == "W" else (9,):
        size = width if cells == "W" else 5
        x = np.arange(1.0, 1 + width * 4).reshape(width, 4, 1)
        sizes = {"W": width, "A": 1} if terms == "W" else {"A": 1}
        wanted = scattered(one, x, mode, size)
        both = wanted + scattered(other, 2 * (x + 100), mode, size)
        for form in forms(spread):
            found = evaluate(form, sizes, {"x": x, "z": x + 100}, {})
            np.testing.assert_array_equal(found["y"], both)
        gradient = derivative(taken, "y").op
        for form in forms(gradient):
            found = evaluate(form, sizes, {"grad_x": x}, {})
            np.testing.assert_array_equal(found["grad_y"], wanted)


def place(index: str, mode: str, size: int, w: int, j: int) -> int | None:
    """The cell of a dim that an index means; None for none."""
    value: int = eval(index, {"w": w, "j": j, "min": min, "max": max})
    match mode:
        case "?clamp":
            return min(max(value, 0), size - 1)
        case "?wrap":
            return value % size
        case _:
            return value if 0 <= value < size else None


Numbers = npt.NDArray[np.float64]


def scattered(index: str, x: Numbers, mode: str, size: int) -> Numbers:
    """What is added to each cell."""
    y = np.zeros((size, x.shape[2]))
    for w, j in itertools.product(range(x.shape[0]), range(4)):
        cell = place(index, mode, size, w, j)
        if cell is not None:
            y[cell] += x[w, j]
    return y
