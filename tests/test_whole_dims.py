"""Groups of channels beside what a group has in common: one iterator for both of a composed dim."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.errors import Source
from opgen.ir.notation import reads
from opgen.lang.read import read
from opgen.passes.whole_dims import with_whole_dims

TEXT = """op gated(x[N,(G C),H,W], s[N,G]; f = 0.5) -> y[N,(G C),H,W]
  y[n,(g c),h,w] = x[n,(g c),h,w] * exp(f*s[n,g])

op below(x[N,(G C),H,W], s[N,G]; G: int) -> y[N,(G C),H,W], z[N,G]
  where G >= 1
  z[n,g] = sum(c,h,w if h <= w) (x[n,(g c),h,w] - s[n,g])**2
  y[n,(g c),h,w] = 2*s[n,g] + 2.0*x[n,(g c),h, w-1 ?0]

op in_rows(x[N,(G C),H,W], s[N,G,H]; G: int) -> y[N,(G C),H,W], z[G,H]
  where G >= 1
  y[n,(g c),h,w] = x[n,(g c),h,w] / (1 + s[n,g,h]**2)
  z[g,h] = sum(n,c,w) x[n,(g c),h,w] * s[n,g,h]

op totals(x[N,(G C),H,W]; G: int) -> y[(G C)], z[]
  where G >= 1
  t[n,g] = sum(c,h,w) x[n,(g c),h,w]
  y[(g c)] = sum(n,h,w) x[n,(g c),h,w]
  z[] = sum(n,g,c,h,w) x[n,(g c),h,w] * t[n,g]
"""
"""Ops that have one iterator for a group and its channel."""

SHAPES = [
    (2, 12, 5, 7, 3),
    (1, 8, 16, 16, 1),
    (3, 6, 4, 9, 6),
    (2, 64, 33, 32, 16),
    (1, 4, 1, 1, 2),
]
"""Images, channels, height, width and groups."""

PLANES, LAST = torch.contiguous_format, torch.channels_last


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def of_groups(x: Tensor, groups: int) -> Tensor:
    """The channels of each group in a dim of their own."""
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def gated(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    return ((of_groups(x, s.shape[1]) * torch.exp(s / 2)[:, :, None, None, None]).flatten(1, 2),)


def below(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    grouped, each = of_groups(x, s.shape[1]), s[:, :, None, None, None]
    inside = torch.ones(x.shape[2:], dtype=x.dtype).triu()
    moved = F.pad(grouped, (1, 0))[..., :-1]
    squares = ((grouped - each) ** 2 * inside).sum((2, 3, 4))
    return (2 * each + 2 * moved).flatten(1, 2), squares


def in_rows(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    grouped, each = of_groups(x, s.shape[1]), s[:, :, None, :, None]
    return (grouped / (1 + each**2)).flatten(1, 2), (grouped * each).sum((0, 2, 4))


def totals(x: Tensor, groups: int) -> tuple[Tensor, ...]:
    return x.sum((0, 2, 3)), (of_groups(x, groups).sum((2, 3, 4)) ** 2).sum()


def check(own: Any, reference: Any, *inputs: Tensor) -> None:
    """Results, gradients, and gradients of gradients."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    got, wanted = own(*leaves), reference(*leaves)
    got = (got,) if isinstance(got, Tensor) else got
    torch.testing.assert_close(got, wanted)
    cotangents = [torch.randn_like(each) for each in wanted]
    pair = [
        torch.autograd.grad(results, leaves, cotangents, create_graph=True)
        for results in (got, wanted)
    ]
    torch.testing.assert_close(*pair)
    directions = [torch.randn_like(each) for each in inputs]
    moving = [at for at, each in enumerate(pair[1]) if each.requires_grad]
    again = [
        torch.autograd.grad(
            [found[at] for at in moving],
            leaves,
            [directions[at] for at in moving],
            allow_unused=True,
            materialize_grads=True,
        )
        for found in pair
    ]
    torch.testing.assert_close(*again)


def laid_out(x: Tensor, how: str) -> Tensor:
    if how == "slice":
        wider = torch.zeros(x.shape[0], x.shape[1] + 3, *x.shape[2:], dtype=x.dtype)
        wider[:, 2:-1] = x
        return wider[:, 2:-1]
    return x.contiguous(memory_format=LAST if how == "last" else PLANES)


every_layout = pytest.mark.parametrize("how", ["planes", "last", "slice"])


@pytest.mark.sampled(16)
@every_layout
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["gated", "below", "in_rows", "totals"])
def test_ops_of_groups(name: str, shape: tuple[int, ...], how: str, ops: ModuleType) -> None:
    n, channels, h, w, groups = shape
    x = laid_out(numbers(n, channels, h, w), how)
    own = getattr(ops, name)
    if name == "totals":
        own, reference = functools.partial(own, G=groups), functools.partial(totals, groups=groups)
        check(own, reference, x)
        return
    s = numbers(n, groups, h, seed=1) if name == "in_rows" else numbers(n, groups, seed=1)
    own = own if name == "gated" else functools.partial(own, G=groups)
    check(own, {"gated": gated, "below": below, "in_rows": in_rows}[name], x, s)


@pytest.mark.sampled(10)
@every_layout
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_group_norm(shape: tuple[int, ...], how: str) -> None:
    norm = opgen.load(SPECS / "norm.op").group_norm
    n, channels, h, w, groups = shape
    x, weight, bias = (
        laid_out(numbers(n, channels, h, w), how),
        numbers(channels),
        numbers(channels),
    )
    own = functools.partial(norm, num_groups=groups)
    check(own, lambda *given: (F.group_norm(given[0], groups, *given[1:]),), x, weight, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", ["planes", "last"])
def test_group_norm_of_narrow_types(dtype: torch.dtype, how: str) -> None:
    """As exact as PyTorch's, whose sums are of float32 too: a bfloat16 has 8 bits."""
    norm = opgen.load(SPECS / "norm.op").group_norm
    x = laid_out(numbers(2, 32, 28, 28) + 3, how).to(dtype)
    exact = F.group_norm(x.double(), 4)
    error = (norm(x, num_groups=4).double() - exact).abs().max()
    assert error <= 4 * torch.finfo(dtype).eps * exact.abs().max()


def iterators_of_reads(text: str, tensor: str) -> list[int]:
    """How many iterators each statement that reads an image has beside n, h and w, for its index
    of channels."""
    (op,) = read(Source(text, "test.op"))
    return [
        len(access.indices[1].value.symbols & {each.name for each in statement.iterators})
        for statement in with_whole_dims(op).statements
        for access in reads(statement.body)
        if access.tensor == tensor
    ]


@pytest.mark.parametrize("op", TEXT.strip().split("\n\n"), ids=lambda text: text.split("(")[0][3:])
def test_images_are_read_by_channels(op: str) -> None:
    assert set(iterators_of_reads(op + "\n", "x")) == {1}


KEPT = {
    "what a guard keeps inside": (
        "op f(x: float[N,(G C),H,W], s[N,G]) -> y[N,(G C),H,W]\n"
        "  y[n,(g c),h,w] += x[n,(g c),h,w] * s[n - 1,g]\n"
        "      for n in N, g in G, c in C, h, w if n >= 1\n"
    ),
    "a filter of a group's channel": (
        "op f(x[N,(G C),H,W], s[N,G], k[C]) -> y[N,(G C),H,W]\n"
        "  y[n,(g c),h,w] = x[n,(g c),h,w] * s[n,g] * k[c]\n"
    ),
    "the extreme of a group": (
        "op f(x[N,(G C),H,W]; G: int) -> y[N,G]\n"
        "  where G >= 1, C >= 1, H >= 1, W >= 1\n"
        "  y[n,g] = max(c,h,w) x[n,(g c),h,w]\n"
    ),
    "a value that is zero outside": (
        "op f(x[N,(G C),H,W], s[N,G]) -> y[N,(G C),H,W]\n"
        "  y[n,(g c),h,w] = x[n,(g c),h,w] * s[n, g - 1 ?0]\n"
    ),
    "as many values as pixels": (
        "op f(x[N,(G C),H,W], s[N,G,H,W]) -> y[N,(G C),H,W]\n"
        "  y[n,(g c),h,w] = x[n,(g c),h,w] * s[n,g,h,w]\n"
    ),
    "no rows": ("op f(x[N,(G C)], s[N,G]) -> y[N,(G C)]\n  y[n,(g c)] = x[n,(g c)] * s[n,g]\n"),
    "a range of channels": (
        "op f(x[N,(G C),H,W], s[N,G]) -> y[N,(G C),H,W]\n"
        "  y[n,(g c),h,w] += x[n,(g c),h,w] * s[n,g] for c in C, n, g, h, w if c >= 1\n"
    ),
    "the number of a group": (
        "op f(x[N,(G C),H,W]; G: size) -> y[N,(G C),H,W]\n  y[n,(g c),h,w] = x[n,(g c),h,w] * g\n"
    ),
}


@pytest.mark.parametrize("why", KEPT)
def test_what_is_left_alone(why: str) -> None:
    (op,) = read(Source(KEPT[why], "test.op"))
    assert with_whole_dims(op) is op


def test_windows_of_an_upsampled_image_are_left_alone() -> None:
    """Composed dims whose inner iterator is a factor, not a channel."""
    for name in ("upsample_nearest", "depth_to_space", "channel_shuffle", "conv"):
        for op in read(Source.of_file(SPECS / f"{name}.op")):
            assert with_whole_dims(op) is op
