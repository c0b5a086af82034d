"""The plain loops of specs/references against PyTorch, and against the mathematics they state."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

from catalogue import CATALOGUE, SPECS, Case, Entry, entry, load_reference

Arrays = np.ndarray | tuple[np.ndarray, ...]
seeds = st.integers(0, 2**32 - 1)
every_entry = pytest.mark.parametrize("op", CATALOGUE, ids=repr)


def outputs(result: Arrays) -> tuple[np.ndarray, ...]:
    return result if isinstance(result, tuple) else (result,)


def compare_with_torch(
    op: Entry, reference: Callable[..., Arrays], case: Case, seed: int, tolerance: float = 1e-10
) -> None:
    """Fail unless the reference gives what PyTorch gives, in float64."""
    inputs = op.make_inputs(case, seed)
    assert op.torch_equivalent is not None
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    expected = op.torch_equivalent(**tensors, **case.attributes)
    expected = expected if isinstance(expected, tuple) else (expected,)
    actual = outputs(reference(**inputs, **case.attributes))
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.numpy().dtype
        assert ours.shape == tuple(theirs.shape)
        if not np.issubdtype(ours.dtype, np.floating):
            tolerance = 0
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=tolerance, atol=tolerance)


def check(op: Entry, reference: Callable[..., Arrays], shrink: bool = True) -> None:
    """Compare over drawn cases."""
    phases = (Phase.explicit, Phase.generate, *((Phase.shrink,) if shrink else ()))

    @settings(max_examples=max(40, settings().max_examples), phases=phases)
    @given(op.cases, seeds)
    def run(case: Case, seed: int) -> None:
        compare_with_torch(op, reference, case, seed)

    run()


# ---------------------------------------------------------------------------- completeness
def test_every_op_has_an_entry_and_a_reference_with_its_parameters() -> None:
    """Read off the spec text: names of ops, and of the parameters between their parentheses."""
    stated = {}
    for path in sorted(SPECS.glob("*.op")):
        for name, signature in re.findall(
            r"^op (\w+)\((.*?)\)\s*->", path.read_text(), re.MULTILINE | re.DOTALL
        ):
            flat = re.sub(r"\[[^\]]*\]", "", signature)
            stated[(path.stem, name)] = set(re.findall(r"(?:^|[,;])\s*(\w+)", flat))
    listed = {(op.spec, op.op): set(inspect.signature(op.reference).parameters) for op in CATALOGUE}
    assert listed == stated


# ---------------------------------------------------------------------------- against PyTorch
@every_entry
def test_reference_agrees_with_torch(op: Entry) -> None:
    if op.torch_equivalent is None:
        assert op.torch_missing
        return
    check(op, op.reference)


@pytest.mark.slow
@every_entry
def test_reference_agrees_with_torch_on_many_cases(op: Entry) -> None:
    """The same at the length of the profile in force; 300 random cases under "fuzz"."""
    test_reference_agrees_with_torch(op)


@every_entry
def test_a_wrong_cell_is_reported(op: Entry) -> None:
    """Negative control: one cell of one output off by one is noticed."""

    def wrong(**parameters: object) -> Arrays:
        results = tuple(array.copy() for array in outputs(op.reference(**parameters)))
        if results[-1].size:
            results[-1].reshape(-1)[-1] += 1
        return results

    with pytest.raises(AssertionError):
        check(op, wrong, shrink=False)


def _ignoring(op: str, attribute: str, value: object) -> tuple[str, Callable[..., Arrays]]:
    def wrong(**parameters: object) -> Arrays:
        return entry(op).reference(**{**parameters, attribute: value})

    return op, wrong


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        _ignoring("shift_sum", "step", 1),
        _ignoring("shift_sum_pinv", "mask", None),
        _ignoring("depth_to_space", "mode", "CRD"),
        _ignoring("space_to_depth", "mode", "DCR"),
        _ignoring("conv2d", "padding", (0, 0)),
        _ignoring("conv3d", "dilation", (1, 1, 1)),
        _ignoring("conv1d", "bias", None),
        _ignoring("conv_transpose2d", "output_padding", (0, 0)),
        _ignoring("unfold", "stride", (1, 1)),
        _ignoring("upsample_bilinear_size", "align_corners", False),
        _ignoring("avg_pool2d", "count_include_pad", True),
        _ignoring("avg_pool2d", "ceil_mode", False),
        _ignoring("max_pool2d", "ceil_mode", True),
        _ignoring("local_attention", "dilation", 1),
        _ignoring("layer_norm", "eps", 1.0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_reference_that_ignores_a_parameter_is_reported(
    op: str, wrong: Callable[..., Arrays]
) -> None:
    """Negative control: the drawn cases tell every one of these parameters from its default."""
    with pytest.raises(AssertionError):
        check(entry(op), wrong, shrink=False)


# ---------------------------------------------------------------------------- exactness
@pytest.mark.parametrize("op", [op for op in CATALOGUE if op.rational], ids=repr)
@settings(max_examples=10)
@given(data=st.data(), seed=seeds)
def test_fractions_are_computed_exactly(op: Entry, data: st.DataObject, seed: int) -> None:
    case = data.draw(op.cases)
    exact = op.make_inputs(case, seed, "fraction")
    rounded = {
        name: array.astype(np.float64) if array.dtype == object else array
        for name, array in exact.items()
    }
    for ours, theirs in zip(
        outputs(op.reference(**exact, **case.attributes)),
        outputs(op.reference(**rounded, **case.attributes)),
        strict=True,
    ):
        cells = ours.reshape(-1).tolist()
        assert all(isinstance(cell, Fraction | int) for cell in cells)
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours.astype(np.float64), theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("op", [op for op in CATALOGUE if op.integral], ids=repr)
@settings(max_examples=10)
@given(data=st.data(), seed=seeds)
def test_integers_stay_integers(op: Entry, data: st.DataObject, seed: int) -> None:
    case = data.draw(op.cases)
    inputs = op.make_inputs(case, seed, "integer")
    for array in outputs(op.reference(**inputs, **case.attributes)):
        assert array.dtype == np.int64


# ---------------------------------------------------------------------------- stated mathematics
def test_shift_sum_of_the_toy_example() -> None:
    x = np.array([[1, 1, 1], [2, 2, 2], [3, 3, 3]]).reshape(1, 3, 1, 3)
    y = load_reference("shift_sum").shift_sum(x, step=1)
    assert y.tolist() == [[[[1, 3, 6, 5, 3]]]]


@given(case=entry("shift_sum_masked").cases, seed=seeds)
def test_shift_sum_pinv_is_a_right_inverse(case: Case, seed: int) -> None:
    """A(A_pinv(y)) = y exactly, in every column that a channel reaches."""
    ops = load_reference("shift_sum")
    step = case.attributes["step"]
    _, C, _, W = case.shapes["x"]
    generator = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        values = np.empty(shape, object)
        for at in np.ndindex(shape):
            values[at] = Fraction(int(generator.integers(1, 50)), int(generator.integers(1, 9)))
        return values

    B, _, H, _ = case.shapes["x"]
    y, mask = draw((B, 1, H, W + (C - 1) * step)), draw((1, 1, H, W))
    reached = {w + c * step for c in range(C) for w in range(W)}
    for there_and_back in (
        ops.shift_sum(ops.shift_sum_pinv(y, C=C, step=step), step),
        ops.shift_sum_masked(ops.shift_sum_pinv(y, mask, C=C, step=step), mask, step),
    ):
        for at in np.ndindex(y.shape):
            assert there_and_back[at] == (y[at] if at[-1] in reached else 0)


@pytest.mark.parametrize("op", ["depth_to_space", "channel_shuffle", "haar", "roll"])
@given(data=st.data(), seed=seeds)
def test_inverses(op: str, data: st.DataObject, seed: int) -> None:
    """Rearrangements and the orthonormal transform undo themselves."""
    case = data.draw(entry(op).cases)
    x = entry(op).make_inputs(case, seed, "fraction")["x"]
    y = entry(op).reference(x, **case.attributes)
    match op:
        case "depth_to_space":
            back = entry("space_to_depth").reference(y, **case.attributes)
        case "channel_shuffle":
            groups = x.shape[1] // case.attributes["groups"]
            back = entry(op).reference(y, groups)
        case "haar":
            back = entry("haar_inverse").reference(y)
        case _:
            shifts = case.attributes["shifts"]
            back = entry(op).reference(y, (-shifts[0], -shifts[1]))
    assert back.tolist() == x.tolist()


def test_max_pool_skips_padding_takes_the_first_of_equals_and_lets_nan_win() -> None:
    pool = load_reference("pool").max_pool2d
    negative = np.full((1, 1, 2, 2), -5.0)
    y, index = pool(negative, (3, 3), (2, 2), (1, 1))
    assert (y.item(), index.item()) == (-5.0, 0)
    y, index = pool(np.array([[[[1.0, np.nan, 3.0, np.nan]]]]), (1, 4), (1, 1))
    assert np.isnan(y.item())
    assert index.item() == 1
