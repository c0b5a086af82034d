"""Calls that do not fit their op: the whole message of each is pinned, with its type."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

import opgen
from bad_arguments import ATTRIBUTES, SIGNATURES, TENSORS
from bad_calls import COUNTED, Bad, Call, W, X, conv1d, embedding, inline, roll, spec, zeros
from bad_shapes import CONDITIONS, SHAPES
from opgen.errors import OpgenError
from opgen.runtime import eager

REFUSALS = (TypeError, ValueError, IndexError, RuntimeError)
BAD_CALLS = (*SHAPES, *CONDITIONS, *TENSORS, *SIGNATURES, *ATTRIBUTES)


def outcome(call: Call) -> tuple[type[Exception], str] | None:
    """The type and the message of what a call raises, if it does."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None


def refusal(call: Call) -> tuple[type[Exception], str]:
    """The type and the message of what a call raises, which it must."""
    found = outcome(call)
    assert found is not None, "the call was accepted"
    return found


# ---------------------------------------------------------------------------- pinned messages
# Torch warns about quantized and nested tensors.
@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("bad", BAD_CALLS, ids=repr)
def test_the_whole_message_is_as_pinned(bad: Bad) -> None:
    assert refusal(bad.call) == (bad.kind, bad.message)


def test_many_different_calls_are_pinned() -> None:
    assert len({bad.message for bad in BAD_CALLS}) >= 90
    assert len({bad.name for bad in BAD_CALLS}) == len(BAD_CALLS)


RIGHT = "conv1d: stride >= 1 does not hold (stride=0)"


@pytest.mark.parametrize(
    "wrong",
    [
        Bad("accepted", lambda: conv1d(X, W), ValueError, RIGHT),
        Bad("other value", lambda: conv1d(X, W, stride=-1), ValueError, RIGHT),
        Bad("wider type", lambda: conv1d(X, W, stride=0), Exception, RIGHT),
        Bad("part of the message", lambda: conv1d(X, W, stride=0), ValueError, RIGHT[:-1]),
    ],
    ids=repr,
)
def test_the_harness_notices(wrong: Bad) -> None:
    with pytest.raises(AssertionError):
        test_the_whole_message_is_as_pinned(wrong)


# ---------------------------------------------------------------------------- around them
def test_an_op_works_after_refused_calls() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(5, 3, generator=generator, requires_grad=True)
    indices = torch.tensor([4, 0])
    for _ in range(2):
        assert refusal(lambda: embedding(torch.tensor([0, 5]), table))[0] is IndexError
        assert refusal(lambda: embedding(indices, [1.0]))[0] is TypeError
        assert refusal(lambda: embedding(indices, table[0]))[0] is ValueError
        rows = embedding(indices, table)
        assert isinstance(rows, torch.Tensor)
        assert torch.equal(rows, table[indices])
        (gradient,) = torch.autograd.grad(rows.sum(), table)
        assert gradient[:, 0].tolist() == [1, 0, 0, 0, 1]


def test_integer_outputs_ask_for_no_gradient() -> None:
    x = zeros(1, 1, 4, 4, requires_grad=True)
    y, index = spec("pool").max_pool2d(x, kernel_size=2, stride=2)
    assert y.requires_grad
    assert not index.requires_grad
    rows = torch.arange(4).reshape(2, 2)
    with torch.enable_grad():
        rolled = roll(rows, shifts=1)
    assert isinstance(rolled, torch.Tensor)
    assert not rolled.requires_grad


def test_a_size_that_an_absent_input_would_leave_open_is_refused_in_the_spec() -> None:
    with pytest.raises(OpgenError, match="'M' does not follow from the shapes of the inputs"):
        opgen.compile("op f(x[N], w[M] = 1) -> y[N]\n  y[n] = x[n] * w[0]\n")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CC", "no-such-compiler")
    fresh = opgen.compile("op negated(x[N]) -> y[N]\n  y[n] = -x[n]\n")
    eager.warn_once.cache_clear()
    with pytest.warns(RuntimeWarning) as caught:
        assert fresh.negated(torch.ones(2)).tolist() == [-1, -1]
    assert str(caught[0].message) == (
        "$OPGEN_CC is 'no-such-compiler', but there is no such program; let it name a compiler, "
        "or unset it and install gcc or clang (Debian and Ubuntu: apt install gcc, macOS: "
        "xcode-select --install), or the package ziglang (pip install ziglang). Without one ops of "
        "opgen run on the CPU as plain PyTorch operations, which gives the same results much more "
        "slowly."
    )


# ---------------------------------------------------------------------------- anything at all
def on_meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")


GOOD: tuple[tuple[str, str, dict[str, object]], ...] = (
    (
        "conv",
        "conv2d",
        {
            "x": on_meta(2, 4, 7, 7),
            "weight": on_meta(6, 2, 3, 3),
            "bias": on_meta(6),
            "stride": 2,
            "padding": (1, 0),
            "groups": 2,
        },
    ),
    (
        "unfold",
        "fold",
        {"x": on_meta(2, 8, 9), "output_size": (4, 4), "kernel_size": 2, "stride": 1},
    ),
    (
        "pool",
        "avg_pool2d",
        {"x": on_meta(1, 2, 6, 6), "kernel_size": 2, "stride": 2, "ceil_mode": True},
    ),
    (
        "depth_to_space",
        "depth_to_space",
        {"x": on_meta(1, 8, 3, 3), "r": 2, "mode": "DCR"},
    ),
    (
        "norm",
        "group_norm",
        {"x": on_meta(2, 6, 2, 2), "weight": on_meta(6), "num_groups": 3, "eps": 1e-3},
    ),
    (
        "embedding",
        "embedding",
        {"indices": on_meta(3, dtype=torch.int64), "weight": on_meta(5, 2)},
    ),
    ("shift_sum", "shift_sum_pinv", {"y": on_meta(1, 1, 3, 9), "C": 3, "step": 1}),
)
SUBSTITUTES: tuple[object, ...] = (
    *(None, True, -1, 0, 1, 3, 2**40, 2**61, 2**70, 2.5, float("nan"), 10**400, 10**5000),
    *("", "CRD", b"x", [], [1, 2], (0, 0), (-1, 1), (1, 2, 3), {}, {2}, object, np.int64(2)),
    *(on_meta(), on_meta(0), on_meta(6), on_meta(1, 2, 3, 4), on_meta(0, 0, 0, 0)),
    *(on_meta(3, 3, 3, 3, dtype=torch.complex64), on_meta(6, dtype=torch.bool), zeros(6)),
)


def substituted() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Good calls with one argument replaced by anything, or left out."""
    for file, op, arguments in GOOD:
        for name in arguments:
            rest = {other: value for other, value in arguments.items() if other != name}
            yield file, op, rest
            for value in SUBSTITUTES:
                yield file, op, {**arguments, name: value}


def test_a_divisor_of_a_condition_may_rest_on_a_range() -> None:
    assert inline(COUNTED).counted(zeros(5), s=0).tolist() == [0.0] * 5


def test_the_calls_that_are_disturbed_are_good() -> None:
    for file, op, arguments in GOOD:
        assert isinstance(getattr(spec(file), op)(**arguments), torch.Tensor)


def test_any_argument_gives_a_result_or_one_sentence_that_names_the_op() -> None:
    refused = 0
    for file, op, arguments in substituted():
        found = outcome(partial(getattr(spec(file), op), **arguments))
        if found is None:
            continue
        refused += 1
        kind, message = found
        assert kind in REFUSALS
        assert message.startswith((f"{op}: ", f"{op}() ")), message
        assert "\n" not in message
        assert len(message) < 400
    assert refused > 400
