"""Two sums that read the same rows in one pass, one of them shifted from plane to plane."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Fitting, Program
from opgen.on_demand import special_source
from opgen.passes.gather import gather
from opgen.passes.guests import with_guests
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.shared_rows import LONGEST, with_shared_rows
from opgen.testing.run_loops import run

OPS = """
op moved(g[B,C,H,W], z[B,H,V]) -> t[H,W], s[B,H,V]
  where V == W + (C-1)*3, C >= 1
  t[h,w] = sum(b,c) g[b,c,h,w] * z[b,h, w + 3*c]
  s[b,h, w + 3*c] += g[b,c,h,w]

op together(g[B,C,H,W], m[H,W]) -> s[B,H,W], t[H,W]
  s[b,h,w] = sum(c) g[b,c,h,w] / m[h,w]
  t[h,w] = sum(b,c) g[b,c,h,w] * m[h,w]

op backwards(g[B,C,H,W]) -> t[H,W], s[B,H,V]
  where C >= 1
  let V = W + (C-1)*2
  t[h,w] = sum(b,c) g[b,c,h,w]
  s[b,h,v] = sum(c) g[b,c,h, v - 2*(C - 1 - c) ?0]

op some(g[B,C,H,W]) -> t[H,W], s[B,H,W]
  t[h,w] = sum(b,c) g[b,c,h,w]
  s[b,h,w] = sum(c in C if c >= 1) g[b,c,h,w]

op longer(g[B,C,H,W]; step = 1) -> t[H,W], s[B,H,W]
  where step >= 0
  t[h,w] = sum(b,c) g[b,c,h,w]
  s[b,h,w] = sum(c) g[b,c,h, w - c*step ?0]

op diagonal(g[B,C,C,H,W]) -> t[H,W], s[B,H,W]
  t[h,w] = sum(b,c,d) g[b,c,d,h,w]
  s[b,h,w] = sum(c) g[b,c,c,h,w]

op first(g[B,C,D,H,W]) -> t[H,W], s[B,H,W]
  where C >= 1
  t[h,w] = sum(b,c,d) g[b,c,d,h,w]
  s[b,h,w] = sum(d) g[b,0,d,h,w]

op others(g[B,C,H,W]) -> t[H,W], s[B,H,W]
  t[h,w] = sum(b,c) g[b,c,h,w]
  s[b,h,w] = max(c) g[b,c,h,w]
"""
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
JOINED = ["moved", "together", "backwards"]
"""Ops with a kernel that does the work of both sums."""


def program(name: str) -> Program:
    (op,) = (each for each in check_source(Source(OPS, "shared.op")) if each.name == name)
    plain = schedule(op, gather(op))
    return with_shared_rows(plain, with_guests(rows(plain, facts_of(op))), facts_of(op))


def of_any_size(found: Program) -> Program:
    """The program with the one kernel for both sums, whatever the sizes."""
    kernels = tuple(each for each in found.kernels if not isinstance(each.unless, Fitting))
    return replace(found, kernels=tuple(replace(each, only=None) for each in kernels))


def joined(found: Program) -> list[str]:
    return [each.name for each in found.kernels if isinstance(each.only, Fitting)]


@pytest.mark.parametrize("name", JOINED)
def test_both_sums_are_one_kernel(name: str) -> None:
    found = program(name)
    (both,) = (each for each in found.kernels if isinstance(each.only, Fitting))
    assert set(both.all_written) == {"s", "t"}
    assert both.local
    assert {each.name for each in found.kernels if each.unless == both.only} == {
        each.name for each in found.kernels if each is not both
    }


@pytest.mark.parametrize("name", ["some", "longer", "diagonal", "first", "others"])
def test_what_is_not_joined(name: str) -> None:
    """Sums of only some planes, columns or elements, and what is no sum."""
    assert joined(program(name)) == []


# ---------------------------------------------------------------------------- meaning
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
def test_the_loops_add_every_term_once(name: str, width: int) -> None:
    """One plane to five of them, beside loops that are written out here."""
    found = of_any_size(program(name))
    for b, c, h in itertools.product((0, 1, 2), (1, 2, 3, 4, 5), (1, 4, 5)):
        generator = np.random.default_rng(100 * b + 10 * c + h)
        step = {"moved": 3, "together": 0, "backwards": 2}[name]
        columns = width + (c - 1) * step
        sizes = {"B": b, "C": c, "H": h, "W": width, "V": columns}
        g = generator.integers(-9, 10, (b, c, h, width)).astype(float)
        z = generator.integers(-9, 10, (b, h, columns)).astype(float)
        m = generator.integers(1, 5, (h, width)).astype(float)
        s, t = np.zeros((b, h, columns)), np.zeros((h, width))
        for image, plane, row, w in itertools.product(*map(range, g.shape)):
            element = g[image, plane, row, w]
            if name == "moved":
                s[image, row, w + step * plane] += element
                t[row, w] += element * z[image, row, w + step * plane]
            elif name == "backwards":
                s[image, row, w + step * (c - 1 - plane)] += element
                t[row, w] += element
            else:
                s[image, row, w] += element / m[row, w]
                t[row, w] += element * m[row, w]
        others = {"moved": {"z": z}, "together": {"m": m}, "backwards": {}}
        given = {"g": g, **others[name]}
        own = {name: sizes[name] for name in found.integers}
        made, counts = run(found, given, own)
        for row, w in itertools.product(range(h), range(width)):
            assert made["t"][row, w] == t[row, w]
        for image, row, v in itertools.product(range(b), range(h), range(columns)):
            assert made["s"][image, row, v] == s[image, row, v]
        assert counts.terms == g.size  # those of the host: the other sum is in memory


# ---------------------------------------------------------------------------- numbers
def turned(tensor: Tensor) -> Tensor:
    """The same elements, the last two dims the other way round in memory."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def inverse(y: Tensor, mask: Tensor, channels: int, step: int) -> Tensor:
    """The right inverse of `shift_sum_masked`, channel by channel."""
    width = y.shape[-1] - (channels - 1) * step
    counts = torch.zeros(y.shape[-1], dtype=y.dtype)
    for c in range(channels):
        counts[c * step : c * step + width] += 1
    z = y / counts.clamp(min=1)
    return torch.cat([z[..., c * step : c * step + width] for c in range(channels)], 1) / mask


SIZES = [
    (2, 3, 5, 11),
    (3, 4, 9, 37),
    (1, 1, 17, 1),
    (2, 2, 6, 70),
    (2, 5, 3, 1030),  # rows of the host in two stretches
    (2, 130, 5, 260),  # an odd number of rows, groups and vectors
    (1, 131, 5, 251),
    (1, 700, 2, 650),  # rows of 2048 cells with a step of 2, and too long with one of 3
]


USUAL = {
    torch.float32: (0, 3),
    torch.float64: (1,),  # those of PyTorch as well
    torch.bfloat16: (2,),
    torch.float16: (1,),
}
"""Steps that are tried at once: types of 16 bits have the loops of float32, and other stores."""


@pytest.fixture(scope="module")
def op() -> Any:
    return opgen.load(SPECS / "shift_sum.op").shift_sum_pinv


@pytest.mark.sampled(14)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "step"),
    [
        pytest.param(dtype, step, marks=[] if step in USUAL[dtype] else [pytest.mark.slow])
        for dtype in TYPES
        for step in range(4)
    ],
    ids=str,
)
def test_gradients_have_the_bits_that_they_have_alone(
    dtype: torch.dtype, step: int, threads: int, op: Any
) -> None:
    """Also where the mask is 0. In float64 they are those of PyTorch; where these are no numbers,
    opgen has none either: PyTorch adds up terms that are infinite, opgen divides a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for batch, channels, height, width in SIZES:
        generator = torch.Generator().manual_seed(height)
        columns = width + (channels - 1) * step
        y = torch.randn(batch, 1, height, columns, generator=generator).to(dtype)
        mask = torch.rand(1, 1, height, width, generator=generator).add(0.5).to(dtype)
        mask[..., 0, ::5] = 0
        cotangent = torch.randn(batch, channels, height, width, generator=generator).to(dtype)
        for given in (cotangent, turned(cotangent), cotangent[:, :1].expand_as(cotangent)):
            inputs = [each.clone().requires_grad_() for each in (y, mask)]
            together = torch.autograd.grad(op(*inputs, C=channels, step=step), inputs, given)
            for at, found in enumerate(together):
                own = [each.detach().requires_grad_(n == at) for n, each in enumerate(inputs)]
                (alone,) = torch.autograd.grad(op(*own, C=channels, step=step), own[at], given)
                torch.testing.assert_close(found, alone, rtol=0, atol=0, equal_nan=True)
            if dtype is torch.float64:
                inputs = [each.clone().requires_grad_() for each in (y, mask)]
                precise = inverse(*inputs, channels, step)
                wanted = torch.autograd.grad(precise, inputs, given)
                for found, theirs in zip(together, wanted, strict=True):
                    is_number = theirs.isfinite()
                    assert torch.equal(found.isfinite(), is_number)
                    torch.testing.assert_close(found[is_number], theirs[is_number])
    torch.set_num_threads(before)


@pytest.mark.parametrize(("batch", "height", "width"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_sizes(batch: int, height: int, width: int, op: Any) -> None:
    """Cells that nothing flows back to are 0."""
    y = torch.ones(batch, 1, height, width + 4, requires_grad=True)
    mask = torch.ones(1, 1, height, width, requires_grad=True)
    result = op(y, mask, C=3, step=2)
    found = torch.autograd.grad(result, (y, mask), torch.ones_like(result))
    for own, other in zip(found, (y, mask), strict=True):
        assert own.shape == other.shape
        assert not own.any() or (batch and height and width)


def test_calls_are_of_one_kernel_where_rows_fit() -> None:
    spec = Source((SPECS / "shift_sum.op").read_text(), "shift_sum.op")
    text = special_source(spec.text, spec.name, ("shift_sum_pinv", "y,mask"), {"step": 2})
    assert re.search(rf"V <= {LONGEST} [^;]* run_as_one\(", text)
    assert text.count("if (is_one_pass)") == 1
    assert text.count("if (!is_one_pass)") == 2
