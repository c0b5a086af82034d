"""Gradients of images that are read beyond their edges: sums into a temporary with a margin."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.ir.show import show
from opgen.lang.read import read
from opgen.passes.differentiate import adjoint
from opgen.passes.margins import with_margins
from opgen.testing.cuda_on_cpu.emulated import emulated

TORCH_MODES = {"clamp": "replicate", "reflect": "reflect", "wrap": "circular"}

STENCIL = """op stencil(x[B,C,H,W]) -> y[B,C,H,W]
  where H >= 2, W >= 3
  y[b,c,h,w] = 2*x[b,c,h-1 ?{mode},w+1 ?{mode}] - x[b,c,h,w]*x[b,c,h,w-2 ?{mode}]
             + x[b,c,h+1 ?{mode},w]
"""
WINDOW = """op window(x[B,C,H,W], k[3,3]) -> y[B,C,H,W]
  where H >= 2, W >= 2
  y[b,c,h,w] = sum(i,j) x[b,c,h+i-1 ?{mode},w+j-1 ?{mode}] * k[i,j]
"""
BLUR = """op blur(x[B,C,H,W], k[3,3]) -> y[B,C,H//2,W//2]
  where H >= 2, W >= 2
  y[b,c,h,w] = sum(i,j) x[b,c,2*h+i-1 ?{mode},2*w+j-1 ?{mode}] * k[i,j]
"""


def padded(x: Tensor, mode: str, *sides: int) -> Tensor:
    return F.pad(x, sides, mode=TORCH_MODES[mode])


def stencil(x: Tensor, mode: str) -> Tensor:
    _, _, height, width = x.shape
    p = padded(x, mode, 2, 1, 1, 1)

    def at(row: int, column: int) -> Tensor:
        return p[:, :, row + 1 : row + 1 + height, column + 2 : column + 2 + width]

    return 2 * at(-1, 1) - at(0, 0) * at(0, -2) + at(1, 0)


def window(x: Tensor, k: Tensor, mode: str, stride: int = 1) -> Tensor:
    channels = x.shape[1]
    kernel = k.expand(channels, 1, 3, 3)
    y = F.conv2d(padded(x, mode, 1, 1, 1, 1), kernel, stride=stride, groups=channels)
    return y[:, :, : x.shape[2] // stride, : x.shape[3] // stride]


def blur(x: Tensor, k: Tensor, mode: str) -> Tensor:
    return window(x, k, mode, stride=2)


OPS: dict[str, tuple[str, Callable[..., Tensor], int]] = {
    "stencil": (STENCIL, stencil, 0),
    "window": (WINDOW, window, 3),
    "blur": (BLUR, blur, 3),
}
MODES = tuple(TORCH_MODES)


def inputs(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    size = OPS[name][2]
    if not size:
        return (x,)
    return x, torch.randn(size, size, generator=generator).to(dtype).requires_grad_()


def compare(name: str, mode: str, tensors: tuple[Tensor, ...], tolerance: float) -> None:
    text, reference, _ = OPS[name]
    op = getattr(opgen.compile(text.format(mode=mode)), name)
    ours, theirs = op(*tensors), reference(*tensors, mode)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    cotangent = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours.dtype)
    found = torch.autograd.grad(ours, tensors, cotangent, create_graph=True)
    wanted = torch.autograd.grad(theirs, tensors, cotangent, create_graph=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    if ours.dtype == torch.float64:
        twice = torch.autograd.grad(sum(each.square().sum() for each in found), tensors)
        again = torch.autograd.grad(sum(each.square().sum() for each in wanted), tensors)
        for one, other in zip(twice, again, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "mode"), [*itertools.product(OPS, MODES)])
@pytest.mark.sampled(12)
def test_gradients_are_those_of_a_padded_image(name: str, mode: str) -> None:
    for height, width in ((3, 3), (4, 7), (9, 3), (8, 40), (5, 70)):
        compare(name, mode, inputs(name, (2, 3, height, width), torch.float64), 1e-9)
        compare(name, mode, inputs(name, (1, 2, height, width), torch.float32), 1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "mode"), [*itertools.product(OPS, MODES)])
def test_gradients_in_channels_last(name: str, mode: str) -> None:
    x, *others = inputs(name, (2, 5, 6, 20), torch.float32)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    compare(name, mode, (last, *others), 1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_sums_of_bfloat16_are_rounded_once(mode: str) -> None:
    (x,) = inputs("stencil", (2, 3, 8, 40), torch.bfloat16)
    op = opgen.compile(STENCIL.format(mode=mode)).stencil
    cotangent = torch.randn(x.shape).bfloat16()
    (found,) = torch.autograd.grad(op(x), x, cotangent)
    exact = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(stencil(exact, mode), exact, cotangent.double())
    torch.testing.assert_close(found, wanted.bfloat16(), rtol=2**-7, atol=1e-3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", MODES)
def test_threads_of_a_gpu_compute_the_same(mode: str) -> None:
    tensors = inputs("window", (2, 2, 4, 6), torch.float32)
    with emulated(threads=4, most_blocks=(3, 2, 2)):
        compare("window", mode, tensors, 1e-4)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_images_smaller_than_the_margin(mode: str) -> None:
    text = f"""op far(x[N]) -> y[N]
  where N >= 0
  y[n] = x[n-3 ?{mode}] + 2*x[n+5 ?{mode}]
"""
    far = opgen.compile(text).far
    for size in range(4):
        x = torch.arange(1.0, size + 1, requires_grad=True)
        wanted = torch.zeros(size)
        for n in range(size):
            for step, factor in ((-3, 1.0), (5, 2.0)):
                at = min(max(n + step, 0), size - 1) if mode == "clamp" else (n + step) % size
                wanted[at] += factor * (n + 1)
        (found,) = torch.autograd.grad(far(x), x, torch.arange(1.0, size + 1))
        assert torch.equal(found, wanted)


# ---------------------------------------------------------------------------- what is rewritten
def gradient(text: str) -> Op:
    ops = {op.name: op for op in read(Source(text))}
    return adjoint(ops[next(iter(ops))], "x", ops).op


def test_what_it_becomes() -> None:
    op = gradient("op f(x[H]) -> y[H]\n  y[h] = x[h + 1 ?clamp] - x[h - 2 ?clamp] + x[h]\n")
    text = show(with_margins(op))
    assert "tmp grad_x_wide[H + 3]" in text
    assert [line.strip() for line in text.splitlines() if "+=" in line] == [
        "grad_x_wide[h + 3] += grad_y[h]",
        "grad_x_wide[h] += -grad_y[h]",
        "grad_x_wide[h + 2] += grad_y[h]",
        "grad_x[u0 - 2 ?clamp] += grad_x_wide[u0]",
    ]


@pytest.mark.parametrize(
    "text",
    [
        # moved once, whatever the mode
        "op f(x[H]) -> y[H]\n  y[h] = x[h + 1 ?clamp]\n",
        # a margin that is not known
        "op f(x[H]; p = 1) -> y[H]\n  y[h] = x[h + p ?clamp] - x[h - p ?clamp]\n",
        "op f(x[H], k[K]) -> y[H]\n  y[h] = sum(k) x[h + k ?clamp] * k[k]\n",
        "op f(x[H]) -> y[H]\n  y[h] = x[2*h ?clamp] - x[h - 1 ?clamp]\n",
        # too wide
        "op f(x[H]) -> y[H]\n  y[h] = x[h + 17 ?clamp] - x[h - 1 ?clamp]\n",
        # two modes in a dim, or none that brings an index inside
        "op f(x[H]) -> y[H]\n  where H >= 2\n  y[h] = x[h+1 ?clamp] - x[h-1 ?reflect]\n",
        "op f(x[H]) -> y[H]\n  y[h] = x[h + 1 ?clamp] - x[h - 1 ?0]\n",
        "op f(x[H]) -> y[H]\n  y[h] = x[h + 1 ?0] - x[h - 1 ?0]\n",
        # what a tensor says
        "op f(x[H], i: int[H]) -> y[H]\n  y[h] = x[i[h] ?clamp] - x[h - 1 ?clamp]\n",
    ],
)
def test_what_stays_as_it_is(text: str) -> None:
    op = gradient(text)
    assert with_margins(op) is op


def test_dims_without_a_mode_stay_as_they_are() -> None:
    text = """op f(x[...,H,W], k[3]) -> y[...,H,W]
  y[...,h,w] = sum(i) x[...,h - 1 ?0,w + i - 1 ?clamp] * k[i]
"""
    op = with_margins(gradient(text))
    assert "tmp grad_x_wide[...,H, W + 2]" in show(op)
    x, k = torch.randn(2, 3, 4, 9, requires_grad=True), torch.randn(3)
    rows = F.pad(x, (0, 0, 1, 0))[..., :-1, :]
    wide = F.pad(rows, (1, 1, 0, 0), mode="replicate")
    wanted = sum(wide[..., i : i + 9] * k[i] for i in range(3))
    assert isinstance(wanted, Tensor)
    cotangent = torch.randn(2, 3, 4, 9)
    (found,) = torch.autograd.grad(opgen.compile(text).f(x, k), x, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, x, cotangent)[0])


# ---------------------------------------------------------------------------- indices of quotients
PLACES: dict[str, Callable[[int, int], int]] = {
    "w + j//2": lambda w, j: w + j // 2,
    "w - j//2": lambda w, j: w - j // 2,
    "w + j%3": lambda w, j: w + j % 3,
    "w + min(j,2)": lambda w, j: w + min(j, 2),
    "w - max(j - 1, 0)": lambda w, j: w - max(j - 1, 0),
    "w + j//2 - j//3": lambda w, j: w + j // 2 - j // 3,
    "(3*w)//2 + j//2": lambda w, j: 3 * w // 2 + j // 2,
    "w + (w + j)//4 - 1": lambda w, j: w + (w + j) // 4 - 1,
}
FOLDS: dict[str, Callable[[int, int], int]] = {
    "clamp": lambda place, size: min(max(place, 0), size - 1),
    "wrap": lambda place, size: place % size,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", FOLDS)
@pytest.mark.parametrize("place", PLACES)
def test_how_far_quotients_go(place: str, mode: str) -> None:
    """They fall and rise, or go on for less than their iterators: no term is lost, or beyond."""
    module = opgen.compile(
        f"op spread(x[W,4,A]; S: size) -> y[S,A]\n  where S >= 1\n"
        f"  y[{place} ?{mode},a] += x[w,j,a]\n"
        f"op taken(x[S,A]; W: size) -> y[W,4,A]\n  where S >= 1\n"
        f"  y[w,j,a] = x[{place} ?{mode},a]\n"
    )
    for size, width, cells in ((20, 40, 1), (5, 3, 2), (2, 7, 3)):
        x = torch.arange(1.0, 1 + width * 4 * cells).reshape(width, 4, cells)
        wanted = torch.zeros(size, cells)
        for w, j in itertools.product(range(width), range(4)):
            wanted[FOLDS[mode](PLACES[place](w, j), size)] += x[w, j]
        assert torch.equal(module.spread(x, S=size), wanted)
        image = torch.zeros(size, cells, requires_grad=True)
        (gradient,) = torch.autograd.grad(module.taken(image, W=width), image, x)
        assert torch.equal(gradient, wanted)


def test_quotients_of_fixed_dims() -> None:
    """A temporary with a margin has room for all that is written into it."""
    op = opgen.compile("op f(x[400,A,4]) -> y[20,A]\n  y[(3*w)//2 + j//2 ?clamp,a] += x[w,a,j]\n").f
    x = torch.arange(1.0, 1601).reshape(400, 1, 4)
    wanted = torch.zeros(20, 1)
    for w, j in itertools.product(range(400), range(4)):
        wanted[min(3 * w // 2 + j // 2, 19)] += x[w, :, j]
    assert torch.equal(op(x), wanted)
    with emulated("random", threads=32):
        assert torch.equal(op(x), wanted)
