"""Clamped writes as writes inside and to the ends: the same cells, for one nest of loops fewer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.errors import Source
from opgen.ir.notation import Boundary, Op
from opgen.ir.reference import evaluate
from opgen.ir.verify import verify
from opgen.lang.read import read
from opgen.passes.unclamp import unclamped
from opgen.testing.cuda_on_cpu.emulated import emulated

SPEC = """
op spread(x[N,K]) -> y[N]
  where N >= 1
  y[n + k - 1 ?clamp] += x[n,k]

op both(x[N,M,K,L]) -> y[N,M]
  where N >= 1, M >= 1
  y[n + k - 1 ?clamp, m - 2*l ?clamp] += x[n,m,k,l]

op listed(x[N], at: int[N], size[W]) -> y[W]
  where W >= 1
  y[at[n] ?clamp] += x[n]

op kept(x[N,K]) -> y[N]
  y[n + k - 1 ?drop] += x[n,k]

op largest(x[N,K]) -> y[N]
  where N >= 1
  y[n + k - 1 ?clamp] max= x[n,k]
"""


def op(name: str) -> Op:
    (found,) = (each for each in read(Source(SPEC)) if each.name == name)
    return found


@pytest.mark.parametrize(("name", "count"), [("spread", 3), ("both", 9)])
def test_a_clamped_dim_makes_three_statements(name: str, count: int) -> None:
    found = unclamped(op(name))
    verify(found)
    assert len(found.statements) == count
    boundaries = {i.boundary for each in found.statements for i in each.target.indices}
    assert boundaries == {Boundary.NONE, Boundary.DROP}


@pytest.mark.parametrize("name", ["listed", "kept", "largest"])
def test_others_stay(name: str) -> None:
    """What a tensor says may be anything; others have no ends, or do not add."""
    found = op(name)
    assert unclamped(found) is found


@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 5), (2, 3), (5, 3), (4, 9)])
def test_every_term_stays(n: int, k: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (n, k)).astype(np.float64)
    expected = np.zeros(n)
    for at in range(n):
        for tap in range(k):
            expected[min(max(at + tap - 1, 0), n - 1)] += x[at, tap]
    for each in (op("spread"), unclamped(op("spread"))):
        got = evaluate(each, {"N": n, "K": k}, {"x": x}, {})["y"]
        np.testing.assert_array_equal(got, expected)


# ---------------------------------------------------------------------------- on threads
@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 2, 1, 5), (2, 1, 2, 2), (1, 3, 8, 16)])
def test_gradients_of_images_enlarged(shape: tuple[int, ...]) -> None:
    """The weights are quarters, so sums of integers are exact in float32."""
    resize = opgen.load(SPECS / "upsample_bilinear.op").upsample_bilinear
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, shape, generator=generator).float().requires_grad_()
    expected = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    grad = torch.randint(-9, 9, expected.shape, generator=generator).float()
    with emulated():
        (got,) = torch.autograd.grad(resize(x), x, grad)
    assert torch.equal(got, torch.autograd.grad(expected, x, grad)[0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 3, 16), (1, 1, 5)])
@pytest.mark.parametrize("padding", [(1, 1, 1, 1), (3, 0, 0, 2)])
def test_gradients_of_images_continued(
    shape: tuple[int, ...], padding: tuple[int, int, int, int]
) -> None:
    pad = opgen.load(SPECS / "pad.op").pad_replicate
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, shape, generator=generator).double().requires_grad_()
    expected = F.pad(x, padding, mode="replicate")
    grad = torch.randint(-9, 9, expected.shape, generator=generator).double()
    with emulated():
        (got,) = torch.autograd.grad(pad(x, padding=padding), x, grad)
    assert torch.equal(got, torch.autograd.grad(expected, x, grad)[0])
