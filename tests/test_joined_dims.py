"""Dims that kernels go through as one: which of an op may be, and what calls give."""

from __future__ import annotations

import functools
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor

import opgen
from opgen.errors import Source
from opgen.lang.read import read
from opgen.passes.joined_dims import joined_dims
from opgen.runtime import joined

SPEC = """
op bias(x: float[N,C,H,W], b[C]) -> y[N,C,H,W]
  y[n,c,h,w] = max(x[n,c,h,w] + b[c], 0)

op alone(x: float[N,C,H,W]) -> y[N,C,H,W]
  y[n,c,h,w] = exp(x[n,c,h,w])

op image_mean(x: float[N,C,H,W]) -> y[N,C]
  y[n,c] = mean(h,w) x[n,c,h,w]

op norm(x: float[N,(G C),H,W]; G: size) -> y[N,(G C),H,W]
  where G >= 1
  tmp s[N,G]
  s[n,g] = mean(c,h,w) x[n,(g c),h,w]
  y[n,(g c),h,w] = x[n,(g c),h,w] - s[n,g]

op rows(x: float[M,H,W], i: int[K]) -> y[K,H,W]
  y[k,h,w] = x[i[k],h,w]

op middle(x: float[H,W,C], k[C]) -> y[H,W]
  y[h,w] = sum(c) x[h,w,c] * k[c]

op named_otherwise(x: float[N,H,W]) -> y[N,H,W], z[H,W]
  y[n,a,b] = 2*x[n,a,b]
  z[h,w] = sum(n) x[n,h,w]

op neighbours(x: float[H,W]) -> y[H,W]
  y[h,w] = x[h, w+1 ?0]

op turned(x: float[H,W]) -> y[W,H]
  y[w,h] = x[h,w]

op place(x: float[H,W]) -> y[H,W]
  y[h,w] = x[h,w] * w

op width(x: float[H,W]) -> y[H,W]
  y[h,w] = x[h,w] / W

op derived(x: float[H,W]) -> y[H,W], z[V]
  let V = W + 1
  y[h,w] = x[h,w]
  z[v] = 0 for v in V

op condition(x: float[H,W]) -> y[H,W]
  where W >= 2
  y[h,w] = x[h,w]

op row_means(x: float[H,W]) -> y[H,W]
  tmp s[H]
  s[h] = mean(w) x[h,w]
  y[h,w] = x[h,w] - s[h]

op one_is_lacking(x: float[H,W], b[W]) -> y[H,W]
  y[h,w] = x[h,w] + b[w]

op square(x: float[H,H]) -> y[H,H]
  y[h,i] = x[h,i] + x[i,h] for h in H, i in H

op looked_up(x: float[H,W], i: int[W]) -> y[H,W]
  y[h,w] = x[h,i[w]]

op by_a_mask(x: float[H,W], m: int[H,W], t[T]) -> y[H,W]
  y[h,w] = x[h,w] * t[m[h,w]]

op triangle(x: float[H,W]) -> y[H,W]
  y[h,w] = x[h,w] for h, w in W if w <= h

op where_it_is(x: float[N,H,W]) -> y: int[N]
  y[n] = argmax(h,w; W*h + w) x[n,h,w]
"""

JOINED = {
    "bias": (("H", "W"), {"x": 2, "y": 2}),
    "alone": (("N", "C", "H", "W"), {"x": 0, "y": 0}),
    "image_mean": (("H", "W"), {"x": 2}),
    "norm": (("H", "W"), {"x": 2, "y": 2}),
    "rows": (("H", "W"), {"x": 1, "y": 1}),
    "middle": (("H", "W"), {"x": 0, "y": 0}),
    "named_otherwise": (("H", "W"), {"x": 1, "y": 1, "z": 0}),
}
NOT = (
    *("neighbours", "turned", "place", "width", "derived", "condition", "row_means"),
    *("one_is_lacking", "square", "looked_up", "by_a_mask", "triangle", "where_it_is"),
)
OPS = opgen.compile(SPEC)


def of(name: str) -> tuple[tuple[str, ...], dict[str, int]] | None:
    (op,) = (op for op in read(Source(SPEC)) if op.name == name)
    found = joined_dims(op)
    return None if found is None else (found.sizes, dict(found.places))


@pytest.mark.parametrize("name", JOINED)
def test_dims_that_are_one(name: str) -> None:
    assert of(name) == JOINED[name]


@pytest.mark.parametrize("name", NOT)
def test_dims_that_are_not(name: str) -> None:
    assert of(name) is None


# ---------------------------------------------------------------------------- calls
SHAPES = [(2, 3, 7, 7), (1, 4, 1, 9), (3, 2, 8, 1), (2, 3, 1, 1), (0, 3, 4, 4), (2, 3, 0, 4)]


def views(shape: tuple[int, ...]) -> list[Tensor]:
    """Images whose rows adjoin, and such whose rows do not."""
    images, channels, height, width = shape
    x = torch.randn(shape, dtype=torch.float64)
    wide = torch.randn(images, channels, height, width + 2, dtype=torch.float64)
    return [
        *(x, x.contiguous(memory_format=torch.channels_last), wide[..., 1:-1], wide[..., :width]),
        *(x.mT.contiguous().mT, x.flip(3), x[:, :1].expand(shape), x.permute(1, 0, 2, 3)),
        *(x[:, :, ::2], x.transpose(0, 1).contiguous().transpose(0, 1), x[..., :1].expand(shape)),
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_images_of_any_strides(shape: tuple[int, ...]) -> None:
    for x in views(shape):
        b = torch.randn(x.size(1), dtype=torch.float64)
        wanted = torch.relu(x + b[:, None, None])
        for _ in range(2):  # the second call is looked up
            found = OPS.bias(x, b)
            assert torch.equal(found, wanted) and found.shape == x.shape
        torch.testing.assert_close(OPS.alone(x), x.exp())
        if x.numel():
            torch.testing.assert_close(OPS.image_mean(x), x.mean((2, 3)))
            groups = x.reshape(x.size(0), 1, -1).mean(2)
            found = OPS.norm(x, G=1)
            torch.testing.assert_close(found, x - groups[..., None, None])
        flat = x.reshape(x.size(0) * x.size(1), *x.shape[2:])
        index = torch.arange(len(flat)).flip(0)
        assert torch.equal(OPS.rows(flat, index), flat[index])


def test_gradients() -> None:
    for x in views((2, 3, 7, 5)):
        b = torch.randn(x.size(1), dtype=torch.float64).requires_grad_()
        x = x.detach().requires_grad_()
        flowing = torch.randn(x.shape, dtype=torch.float64)
        mine = torch.autograd.grad(OPS.bias(x, b), (x, b), flowing)
        theirs = torch.autograd.grad(torch.relu(x + b[:, None, None]), (x, b), flowing)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other)


def seen(call: Callable[[], object]) -> list[dict[str, int]]:
    """The sizes with which kernels run."""
    found: list[dict[str, int]] = []
    of_call = joined.of_call

    def noting(*given: object) -> object:
        made = of_call(*given)  # type: ignore[arg-type]
        found.append(made[0].shapes.integers)
        return made

    with mock.patch.object(joined, "of_call", noting):
        call()
    return found


def test_sizes_of_kernels() -> None:
    x, b = torch.randn(2, 3, 5, 7), torch.randn(3)
    assert seen(lambda: OPS.bias(x, b)) == [{"N": 2, "C": 3, "H": 1, "W": 35}]
    assert seen(lambda: OPS.alone(x)) == [{"N": 1, "C": 1, "H": 1, "W": 210}]
    apart = torch.randn(2, 3, 5, 9)[..., :7]
    for other in (apart, x.contiguous(memory_format=torch.channels_last), torch.randn(2, 3, 5, 33)):
        (sizes,) = seen(functools.partial(OPS.bias, other, b))
        assert sizes == dict(zip("NCHW", other.shape, strict=True)), (
            "no row of memory, or a long one"
        )
    halves = torch.randn(2, 3, 5, 64).bfloat16()
    assert seen(lambda: OPS.bias(halves, b.bfloat16())) == [{"N": 2, "C": 3, "H": 1, "W": 320}]
