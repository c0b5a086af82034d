"""Long sums of few cells go along what lies side by side in memory, and mean what they meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import For, Kernel, walk
from opgen.on_demand import special_source
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise

SHARED = Path(__file__).parent.parent / "benchmarks" / "specs" / "shared_filter.op"
SUM = (
    "op f(x[N,H,C], y[N,I,E]) -> w[K]\n  where H >= I, E >= 2*C\n  let K = H - I + 1\n"
    "  w[k] = sum(n,c,i) x[n,i + k,c] * y[n,i,2*c]\n"
)


def kernel(text: str, **sizes: int) -> Kernel:
    (op,) = check_source(Source(text, "<test>"))
    op = specialise(op, sizes)
    (found,) = rows(schedule(op, gather(op)), facts_of(op)).kernels
    return found


def innermost(found: Kernel) -> set[tuple[str, bool]]:
    """The loops without others in them, and whether their terms may come in any order."""
    loops = [node for node in walk(found.body) if isinstance(node, For)]
    return {
        (loop.name, loop.any_order)
        for loop in loops
        if not any(isinstance(node, For) for node in walk(loop.body))
    }


def test_the_loop_along_consecutive_terms_goes_inside() -> None:
    assert innermost(kernel(SUM, H=9, I=7)) == {("c", True)}


VARIATION = """op f(x: float[N,H,W,C]) -> y[N]
  where H >= 1, W >= 1
  y[n] += abs(x[n,h+1,w,c] - x[n,h,w,c]) for n, c, h in H-1, w
  y[n] += abs(x[n,h,w+1,c] - x[n,h,w,c]) for n, c, h, w in W-1
"""


def test_sums_with_loops_in_common_have_their_own() -> None:
    found = kernel(VARIATION)
    assert innermost(found) == {("c", True)}
    assert sum(isinstance(node, For) for node in found.body) == 2
    assert ("c", True) not in innermost(kernel(VARIATION, C=8))  # less than a vector
    apart = VARIATION.replace("W,C]) ->", "W,C], k[C,2]) ->").replace("abs(x", "k[c,0] * abs(x", 1)
    assert ("c", True) not in innermost(kernel(apart))


@pytest.mark.parametrize("shape", [(3, 32, 9, 11), (2, 5, 4, 1), (1, 130, 1, 6)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_variation_of_images(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    text = VARIATION.replace("N,H,W,C", "N,C,H,W")
    for one, other in (("h+1,w,c", "c,h+1,w"), ("h,w+1,c", "c,h,w+1"), ("h,w,c", "c,h,w")):
        text = text.replace(f"x[n,{one}]", f"x[n,{other}]")
    x = torch.randint(-4, 5, shape).float().contiguous(memory_format=layout)
    wanted = x.diff(dim=2).abs().sum((1, 2, 3)) + x.diff(dim=3).abs().sum((1, 2, 3))
    assert torch.equal(opgen.compile(text).f(x), wanted)


NEAR_MISSES = {
    "many cells": (SUM, {}),
    "few channels": (SUM, {"H": 9, "I": 7, "C": 4}),
    "no sum": (SUM.replace("sum(", "max("), {"H": 9, "I": 7}),
    "a loop that depends on it": (SUM.replace("n,c,i", "n,c,i if i <= c"), {"H": 9, "I": 7}),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    text, sizes = NEAR_MISSES[name]
    assert ("c", True) not in innermost(kernel(text, **sizes))


def test_the_same_text_every_time() -> None:
    given = SHARED.read_text(), SHARED.name, ("shared_filter", "weight")
    values = {"K": 3, "L": 3, "H": 7, "W": 7, "multiplier": 2, "padding[0]": 1, "padding[1]": 1}
    one, other = (special_source(*given, values, 3) for _ in range(2))
    assert one == other and "every_second(&" in one


CALLS = [
    (torch.float32, 128, 2, 7),
    pytest.param((torch.float32, 131, 1, 6), marks=pytest.mark.slow),
    (torch.bfloat16, 129, 2, 7),
    pytest.param((torch.float64, 123, 3, 7), marks=pytest.mark.slow),
    pytest.param((torch.float16, 145, 2, 5), marks=pytest.mark.slow),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_a_shared_filter(
    call: tuple[torch.dtype, int, int, int],
    layout: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Whole numbers, so that the order of a sum does not show."""
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    dtype, channels, multiplier, size = call
    shared = opgen.load(SHARED).shared_filter
    torch.manual_seed(0)
    x = torch.randint(-1, 2, (9, channels, size, size + 2)).double()
    w = torch.randint(-1, 2, (3, 3)).double().requires_grad_()
    filters = w.expand(channels * multiplier, 1, 3, 3)
    exact = F.conv2d(x, filters, padding=1, groups=channels)
    seed = torch.randint(-1, 2, exact.shape).double()
    seed *= torch.rand(seed.shape) < 0.02
    (wanted,) = torch.autograd.grad(exact, w, seed)
    assert wanted.abs().max() < 256, "bfloat16 has all of these"
    own = w.detach().to(dtype).requires_grad_()
    images = x.to(dtype).contiguous(memory_format=layout)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            y = shared(images, own, multiplier=multiplier, padding=1)
            cotangent = seed.to(dtype).contiguous(memory_format=layout)
            (got,) = torch.autograd.grad(y, own, cotangent)
            assert torch.equal(got.double(), wanted)
    finally:
        torch.set_num_threads(before)
    for empty in (images[:0], images[:, :0]):
        none = shared(empty, own, multiplier=multiplier, padding=1).sum()
        assert not torch.autograd.grad(none, own)[0].any()
