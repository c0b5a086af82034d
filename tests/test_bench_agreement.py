"""What of a difference rounding explains, and what it does not: sums, types of 16 bits, TF32."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench_rows import to_tf32
from opgen.bench import agreement
from opgen.bench.faults import DisagreementError


def test_what_rounding_explains_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(64, 4096, generator=generator)
    b = torch.randn(4096, 64, generator=generator)
    exact = (a.double() @ b.double()).float()
    in_chunks = sum(a[:, k : k + 7] @ b[k : k + 7] for k in range(0, 4096, 7))
    assert isinstance(in_chunks, Tensor)
    agreement.check("chunks", [in_chunks], [exact], points=64 * 64 * 4096)


def test_what_rounding_does_not_explain_is_refused() -> None:
    """Negative controls: a wrong factor, one wrong cell, a NaN, a wrong shape."""
    x = torch.arange(1.0, 13.0).view(3, 4)
    wrong = x.clone()
    wrong[1, 2] += 1e-3
    for other, message in (
        (x * 1.0001, r"at \[2, 3\], opgen's is 12"),
        (wrong, r"is 7\.00\d* at \[1, 2\], opgen's is 7; rounding explains"),
        (x.where(x != 5, math.nan), "nan"),
        (x[:, :3], r"shape \[3, 3\], opgen's has \[3, 4\]"),
    ):
        with pytest.raises(DisagreementError, match=message):
            agreement.check("other", [other], [x], points=12)


def test_sixteen_bits_are_held_to_their_own_precision() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    agreement.check("rounded", [x.bfloat16()], [x], points=1000)
    with pytest.raises(DisagreementError):
        agreement.check("wrong", [(x * 1.2).bfloat16()], [x], points=1000)


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize(
    ("channels", "groups", "layers"), [(32, 1, 10), (64, 16, 1), (64, 4, 10), (10, 1, 1)]
)
def test_results_in_tf32_are_held_to_it(
    channels: int, groups: int, layers: int, rounded: bool
) -> None:
    """A right result passes, for TF32 alone; one without a tap of the last layer never does."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, channels, 16, 16, generator=generator)
    inside = channels // groups
    weights = [
        torch.randn(channels, inside, 3, 3, generator=generator) * (9 * inside) ** -0.5
        for _ in range(layers)
    ]

    def outcome(rounding: Callable[[Tensor], Tensor]) -> Tensor:
        y = x
        for weight in weights:
            y = F.conv2d(rounding(y), rounding(weight), padding=1, groups=groups)
        return y

    def tf32(x: Tensor) -> Tensor:
        return to_tf32(x, rounded=rounded)

    exact, found = outcome(lambda each: each), outcome(tf32)
    points = layers * exact.numel() * 9 * inside
    agreement.check("TF32", [found], [exact], points, layers, None, torch.float16)
    with pytest.raises(DisagreementError):
        agreement.check("float32", [found], [exact], points, layers)
    weights[-1][:, :, 2, 0] = 0
    for wrong in (outcome(tf32), outcome(lambda each: each)):
        with pytest.raises(DisagreementError):
            agreement.check("no tap", [wrong], [exact], points, layers, None, torch.float16)


@pytest.mark.parametrize("rounded", [True, False])
def test_gradients_in_tf32(rounded: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 16, 20, 20, generator=generator)
    weight = torch.randn(16, 16, 3, 3, generator=generator) / 12
    flowing = torch.randn(4, 16, 20, 20, generator=generator)

    def gradients(*given: Tensor) -> tuple[Tensor, ...]:
        x, weight, flowing = given
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        return torch.autograd.grad(F.conv2d(*leaves, padding=1), leaves, flowing)

    expected = gradients(x, weight, flowing)
    found = gradients(*(to_tf32(each, rounded=rounded) for each in (x, weight, flowing)))
    points = x.numel() * 16 * 9
    agreement.check("TF32", found, expected, points, 1, None, torch.float16)
    with pytest.raises(DisagreementError):
        agreement.check("float32", found, expected, points)
    for at in range(2):
        wrong = [each.clone() for each in found]
        wrong[at][:, :, 1, 1] = 0
        with pytest.raises(DisagreementError):
            agreement.check("no tap", wrong, expected, points, 1, None, torch.float16)
