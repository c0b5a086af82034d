"""Tensors between the statements of an op, where its images are in channels-last format."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen import on_demand
from opgen.runtime import evaluation

pool = opgen.load(SPECS / "pool.op")
IMAGE = """op spread(x[N,C,H,W]) -> y[N,C,H,W]
  t[n,c,h,w] = exp(x[n,c,h,w]) for n in N, c in C, h in H, w in W
  y[n,c,h,w] = sum(j in 3, k in 3) t[n,c,h - j ?0,w - k ?0]
"""
VOLUME = """op spread(x[N,C,D,H,W]) -> y[N,C,D,H,W]
  t[n,c,d,h,w] = exp(x[n,c,d,h,w]) for n in N, c in C, d in D, h in H, w in W
  y[n,c,d,h,w] = sum(j in 3, k in 3) t[n,c,d,h - j ?0,w - k ?0]
"""
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2.0**-7}


def image(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    made = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    format_ = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return made.contiguous(memory_format=format_)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("images", "channels"), [(2, 1), (2, 7), (92, 5), (12, 40)])
@pytest.mark.parametrize("counts", [True, False])
def test_gradients_of_means(
    dtype: torch.dtype, images: int, channels: int, counts: bool, threads: int
) -> None:
    """They divide what flows back by the size of each window, and keep that for all its cells.

    The last two are large enough for kernels of their own.
    """
    x = image(images, channels, 9, 8, dtype=dtype).requires_grad_()
    y = pool.avg_pool2d(x, kernel_size=(3, 2), stride=(2, 1), padding=1, count_include_pad=counts)
    cotangent = image(*y.shape, dtype=dtype)
    wide = x.detach().double().requires_grad_()
    expected = F.avg_pool2d(wide, (3, 2), (2, 1), 1, count_include_pad=counts)
    for flowing in (cotangent, cotangent.contiguous(), cotangent[:, :1].expand_as(cotangent)):
        (wanted,) = torch.autograd.grad(expected, wide, flowing.double(), retain_graph=True)
        (got,) = torch.autograd.grad(y, x, flowing, retain_graph=True)
        tolerance = TOLERANCE[dtype] * float(wanted.abs().max())
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=tolerance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 7, 3, 5, 6), (9, 40, 4, 5, 6)], ids=str)
def test_volumes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = image(*shape, dtype=dtype)
    raised = F.pad(x.double().exp(), (2, 0, 2, 0))
    wanted = sum(raised[..., 2 - j :, 2 - k :][..., :5, :6] for j in range(3) for k in range(3))
    got = opgen.compile(VOLUME, "volume.op").spread(x)
    tolerance = TOLERANCE[dtype] * float(wanted.abs().max())
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=tolerance)
    assert got.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
def test_kernels_and_memory_have_one_order(is_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that walk along channels find them side by side."""
    own = opgen.compile(IMAGE, "image.op").spread
    found: list[dict[str, Tensor]] = []
    operands_of = evaluation.operands_of

    def listening(call: evaluation.Call, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        found.append(operands_of(call, outputs))
        return found[-1]

    monkeypatch.setattr(evaluation, "operands_of", listening)
    x = image(2, 24, 6, 7, dtype=torch.float32)
    own(x if is_last else x.contiguous())
    (operands,) = found
    for tensor in operands.values():
        assert tensor.is_contiguous(memory_format=torch.channels_last) == is_last
    if is_last:
        source = on_demand.special_source(IMAGE, "image.op", ("spread",), {}, 0b11)
        assert "t[n, h, w, c] by assign" in source and "y[n, h, w, c] by add" in source
