"""Products of matrices with images in channels-last format: rows of them are pixels."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import library_products
import opgen
from opgen.runtime.arrangement import Arrangement

LAST = torch.channels_last
DYNAMIC = """op dynamic(x[N,C,H,W], k[N,O,C]) -> y[N,O,H,W]
  y[n,o,h,w] = sum(c) x[n,c,h,w] * k[n,o,c]
"""
GRAM = """op gram(x[N,C,H,W]) -> y[N,C,C]
  y[n,c,d] = sum(h,w) x[n,c,h,w] * x[n,d,h,w]
"""
PLACES = """op places(x[N,C,H,W], a[N,H,W,P]) -> y[N,C,P]
  y[n,c,p] = sum(h,w) x[n,c,h,w] * a[n,h,w,p]
"""
VOLUMES = """op volumes(x[N,C,D,H,W], k[N,O,C]) -> y[N,O,D,H,W]
  y[n,o,d,h,w] = sum(c) x[n,c,d,h,w] * k[n,o,c]
"""
GROUPS = """op groups(x[N,(G C),H,W], k[N,G,O,C]) -> y[N,(G O),H,W]
  y[n,(g o),h,w] = sum(c) x[n,(g c),h,w] * k[n,g,o,c]
"""


def summed(x: Tensor, k: Tensor) -> Tensor:
    """A sum over channels, one after the other."""
    total = torch.zeros(len(x), k.shape[1], *x.shape[2:], dtype=x.dtype)
    for c in range(x.shape[1]):
        numbers = k[:, :, c].reshape(*k.shape[:2], *(1 for _ in x.shape[2:]))
        total = total + numbers * x[:, c : c + 1]
    return total


def gram(x: Tensor) -> Tensor:
    total = torch.zeros(len(x), x.shape[1], x.shape[1], dtype=x.dtype)
    for h in range(x.shape[2]):
        for w in range(x.shape[3]):
            total = total + x[:, :, None, h, w] * x[:, None, :, h, w]
    return total


def places(x: Tensor, a: Tensor) -> Tensor:
    total = torch.zeros(len(x), x.shape[1], a.shape[3], dtype=x.dtype)
    for h in range(x.shape[2]):
        for w in range(x.shape[3]):
            total = total + x[:, :, None, h, w] * a[:, None, h, w]
    return total


def groups(x: Tensor, k: Tensor) -> Tensor:
    parts = zip(x.chunk(k.shape[1], 1), k.unbind(1), strict=True)
    return torch.cat([summed(one, other) for one, other in parts], 1)


_NUMBERS = itertools.count()
CASES: dict[str, tuple[str, Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "dynamic": (DYNAMIC, summed, [(2, 6, 5, 4), (2, 7, 6)]),
    "one image": (DYNAMIC, summed, [(1, 6, 5, 4), (1, 7, 6)]),
    "one channel": (DYNAMIC, summed, [(2, 1, 5, 4), (2, 7, 1)]),
    "one result": (DYNAMIC, summed, [(2, 6, 5, 4), (2, 1, 6)]),
    "one row": (DYNAMIC, summed, [(2, 6, 1, 4), (2, 7, 6)]),
    "gram": (GRAM, gram, [(2, 6, 5, 4)]),
    "places": (PLACES, places, [(2, 6, 5, 4), (2, 5, 4, 3)]),
    "volumes": (VOLUMES, summed, [(2, 6, 3, 2, 4), (2, 7, 6)]),
    "groups": (GROUPS, groups, [(2, 6, 5, 4), (2, 3, 4, 2)]),
}


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Small integers, images in channels-last format."""
    numbers = torch.randint(-2, 3, shape).to(dtype)
    formats = {4: LAST, 5: torch.channels_last_3d}
    if numbers.dim() in formats:
        numbers = numbers.contiguous(memory_format=formats[numbers.dim()])
    return numbers


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("of_any_size", [True, False])
def test_results_and_gradients(
    name: str, dtype: torch.dtype, of_any_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library gives what kernels give, and tensors that lie as theirs do."""
    if of_any_size:
        library_products.of_any_size(monkeypatch)
    text, reference, shapes = CASES[name]
    name = f"f_{next(_NUMBERS)}"  # tables have no calls of it
    _, arguments = text.split("(", 1)
    call = getattr(opgen.compile(f"op {name}({arguments}"), name)
    torch.manual_seed(0)
    given = [drawn(shape, dtype).requires_grad_() for shape in shapes]
    exact = reference(*(each.double() for each in given))
    seed = drawn(tuple(exact.shape), torch.float64)
    wanted = exact, *torch.autograd.grad(exact, given, seed)
    for _ in range(3):
        y = call(*given)
        gradients = torch.autograd.grad(y, given, seed.to(dtype))
        for one, other in zip((y, *gradients), wanted, strict=True):
            assert torch.equal(one, other.to(dtype)), "small integers have no rounding"
    if y.dim() == 4 and not given[0].is_contiguous():
        assert y.is_contiguous(memory_format=LAST)
    with torch.no_grad():
        assert torch.equal(call(*given), exact.to(dtype))


def test_results_are_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied, and a call like an earlier one is looked up."""
    asked = library_products.listening(monkeypatch)
    call = opgen.compile(DYNAMIC.replace("op dynamic", "op looked_up")).looked_up
    x, k = drawn((3, 64, 12, 12), torch.float32), torch.randint(-2, 3, (3, 48, 64)).float()
    for _ in range(2):
        y = call(x, k)
    assert asked == ["multiply"]
    assert y.is_contiguous(memory_format=LAST)
    assert torch.equal(y, summed(x, k))
    assert y.untyped_storage().nbytes() == y.nbytes


def test_the_order_of_pixels() -> None:
    parts = ((2,), (3,), (4,), (5,))
    assert Arrangement(parts, ((0,), (2, 3), (1,))).keeps_order_of_pixels
    assert not Arrangement(parts, ((0,), (1,), (2, 3))).keeps_order_of_pixels
    assert not Arrangement(parts, ((0,), (3, 2), (1,))).keeps_order_of_pixels
    one = ((2,), (1,), (4,), (5,))
    assert Arrangement(one, ((0,), (1,), (2, 3))).keeps_order_of_pixels, "of one channel"
