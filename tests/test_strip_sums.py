"""Sums over rows as those of strips: what statements become, and values around the ends of strips.

Values are those that PyTorch computes with float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

import opgen
from opgen.errors import Source
from opgen.ir.show import show
from opgen.lang.read import read
from opgen.passes.relayout import channels_last, of_images, relayout
from opgen.passes.separate import separated
from opgen.passes.strip_sums import with_strip_sums
from opgen.programs import for_cpu, special_along_rows

TEXT = """
op rows(x[N,D]) -> y[D]
  y[d] = sum(n) x[n,d]

op sequences(x[N,T,D]) -> y[D]
  y[d] = d * (sum(n,t) x[n,t,d]**2)

op images(x[N,C,H,W]) -> y[C]
  y[c] = c * (sum(n,h,w) x[n,c,h,w])

op volumes(x[N,C,D,H,W]) -> y[C]
  y[c] = sum(n,d,h,w) x[n,c,d,h,w]

op below(x[N,D]) -> y[D]
  y[d] = sum(n if n >= d + 2) n * x[n,d]

op both(x[N,C,H,W], z[N,D]) -> y[C], u[D], v[C]
  y[c] = sum(n,h,w) x[n,c,h,w]
  u[d] = sum(n) z[n,d]
  v[c] = y[c] * y[c] + (sum(n,h,w if h <= w) x[n,c,h,w])

op more(x[N,D], z[N,D]) -> y[D]
  y[d] += x[n,d]
  y[d] += z[n,d]
  y[d] += 1

op pair(x[N,C,H,W]) -> y[C]
  tmp s[N,C]
  s[n,c] = sum(h,w) x[n,c,h,w]
  y[c] = sum(n) s[n, c]**2

op first(x[N,C,H,W]) -> y[C]
  tmp s[N,C]
  s[n,c] = sum(h,w) x[n,c,h,w]
  y[c] = sum(n in N) s[n ?clamp, c - 1 ?0]

op narrow(x: float[N,D]) -> y: bf16[D]
  y[d] = sum(n) x[n,d]

op integers(x: i32[N,D]) -> y: i64[D]
  y[d] = sum(n) x[n,d]

op signs(x: i32[N,D]) -> y: bool[D]
  y[d] = sum(n) x[n,d]

op shorter(x: f64[N,D]) -> y: f32[D]
  y[d] = sum(n) x[n,d]

op halves(x[N,D], z[N,D]; k: int) -> y[D]
  y[d] = sum(n if d < k) x[n,d]
  y[d] = sum(n if d >= k) z[n,d]

op weighted(x[N,K,D], k[K,N]) -> y[D]
  y[d] = sum(n,j) k[j,n] * x[n,j,d]
"""


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def call(ops: ModuleType, name: str, *tensors: Tensor) -> Tensor:
    found: Tensor = getattr(ops, name)(*tensors)
    return found


TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2**-8}


def assert_near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Within what the sums of that many terms explain, of the greatest cell."""
    assert found.dtype == dtype
    assert found.shape == wanted.shape
    size = 1.0 + float(wanted.detach().abs().max()) if wanted.numel() else 1.0
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * size
    )


def assert_gradient(found: Tensor, wanted: Tensor, given: Tensor, exact: Tensor) -> None:
    """The gradients of what was found are those of what is wanted, and so are second ones."""
    flow = numbers(*wanted.shape)
    (got,) = torch.autograd.grad(found, given, flow.to(found.dtype))
    (expected,) = torch.autograd.grad(wanted, exact, flow)
    assert_near(got, expected, given.dtype)


# ---------------------------------------------------------------------------- values
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", [0, 1, 2, 31, 32, 33, 64, 65, 1000])
@pytest.mark.parametrize("cells", [0, 1, 7, 40, 1030])
def test_rows(rows: int, cells: int, dtype: torch.dtype, ops: ModuleType) -> None:
    x = numbers(rows, cells, dtype=dtype)
    for given in (x, x.mT.contiguous().mT, x.repeat_interleave(2, 1)[:, ::2]):
        assert_near(call(ops, "rows", given), x.double().sum(0), dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    "shape",
    [(0, 4, 5), (1, 1, 7), (1, 33, 20), (2, 32, 70), (3, 65, 9), (5, 0, 9), (9, 2, 17), (64, 1, 5)],
)
def test_sequences(shape: tuple[int, ...], dtype: torch.dtype, ops: ModuleType) -> None:
    x = numbers(*shape, dtype=dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    wanted = torch.arange(shape[2]) * (exact**2).sum((0, 1))
    found = call(ops, "sequences", x)
    assert_near(found, wanted, dtype)
    assert_gradient(found, wanted, x, exact)


IMAGES = (
    (2, 70, 9, 11),
    (1, 3, 5, 7),
    (5, 200, 3, 2),
    (3, 17, 8, 1),
    (1, 5, 2, 129),
    (2, 60, 16, 64),
    (4, 6, 1, 1),
    (2, 1, 17, 4),
    (0, 4, 5, 6),
    (3, 0, 5, 6),
    (3, 4, 0, 6),
    (3, 4, 6, 0),
)


def in_formats(x: Tensor) -> Iterator[Tensor]:
    """The same numbers in other orders of memory."""
    yield x
    format_ = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    yield x.contiguous(memory_format=format_)
    yield x.mT.contiguous().mT


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", IMAGES)
def test_images(shape: tuple[int, ...], dtype: torch.dtype, ops: ModuleType) -> None:
    x = numbers(*shape, dtype=dtype)
    exact = x.double().requires_grad_()
    wanted = exact.sum((0, 2, 3)) * torch.arange(shape[1])
    for image in in_formats(x):
        given = image.clone(memory_format=torch.preserve_format).requires_grad_()
        found = call(ops, "images", given)
        assert_near(found, wanted, dtype)
        flow = numbers(*wanted.shape)
        (got,) = torch.autograd.grad(found, given, flow.to(dtype))
        (expected,) = torch.autograd.grad(wanted, exact, flow, retain_graph=True)
        assert_near(got, expected, dtype)


@pytest.mark.parametrize("shape", [(2, 20, 9, 3, 4), (1, 5, 8, 2, 2), (3, 33, 1, 5, 1)])
def test_volumes(shape: tuple[int, ...], ops: ModuleType) -> None:
    x = numbers(*shape, dtype=torch.float32)
    for volume in in_formats(x):
        found = call(ops, "volumes", volume)
        assert_near(found, x.double().sum((0, 2, 3, 4)), torch.float32)


@pytest.mark.parametrize("rows", [1, 33, 100])
def test_rows_that_are_guarded(rows: int, ops: ModuleType) -> None:
    x = numbers(rows, 50)
    at = torch.arange(rows)[:, None]
    wanted = (x * at * (at >= torch.arange(50) + 2)).sum(0)
    assert_near(call(ops, "below", x), wanted, torch.float64)


@pytest.mark.parametrize("shape", [(3, 20, 9, 11), (2, 130, 4, 4)])
def test_several_outputs(shape: tuple[int, ...], ops: ModuleType) -> None:
    """One of them is read for another one."""
    x, z = numbers(*shape), numbers(shape[0], 45)
    inside = torch.arange(shape[2])[:, None] <= torch.arange(shape[3])
    y = x.sum((0, 2, 3))
    wanted = y, z.sum(0), y * y + (x * inside).sum((0, 2, 3))
    for image in in_formats(x):
        for found, expected in zip(ops.both(image, z), wanted, strict=True):
            assert_near(found, expected, torch.float64)


def test_several_sums_into_the_same_cells(ops: ModuleType) -> None:
    x, z = numbers(70, 33), numbers(70, 33) + 1
    assert_near(call(ops, "more", x, z), x.sum(0) + z.sum(0) + 1, torch.float64)


@pytest.mark.parametrize("shape", IMAGES)
def test_sums_of_images_that_a_spec_has(shape: tuple[int, ...], ops: ModuleType) -> None:
    """Its own temporaries are what it says they are."""
    x = numbers(*shape)
    sums = x.sum((2, 3))
    before = torch.cat((torch.zeros(shape[0], 1), sums[:, :-1]), 1)[:, : shape[1]]
    for image in in_formats(x):
        assert_near(call(ops, "pair", image), (sums**2).sum(0), torch.float64)
        assert_near(call(ops, "first", image), before.sum(0), torch.float64)


def test_sums_of_a_declared_type_of_few_digits_are_rounded_once(ops: ModuleType) -> None:
    x = torch.full((257, 40), 1.0)
    x[1:] = 2**-8
    assert torch.equal(call(ops, "narrow", x), torch.full((40,), 2.0).bfloat16())


def test_integers_wrap_as_they_did(ops: ModuleType) -> None:
    x = torch.full((100, 40), 2**31 - 1, dtype=torch.int32)
    assert torch.equal(call(ops, "integers", x), x.long().sum(0))


def test_strips_that_cancel_are_not_stored_as_the_sum_is(ops: ModuleType) -> None:
    """A strip's sum has the type that sums have, whatever the type of the output."""
    signs = torch.zeros(100, 40, dtype=torch.int32)
    signs[0], signs[70, ::2] = 1, -1
    assert torch.equal(call(ops, "signs", signs), torch.arange(40) % 2 == 1)
    x = torch.zeros(100, 40, dtype=torch.float64)
    x[0], x[1], x[70] = 2.0**30, 1.0, -(2.0**30)
    assert torch.equal(call(ops, "shorter", x), torch.ones(40))


@pytest.mark.parametrize("k", [-1, 0, 7, 40, 41])
def test_statements_that_write_different_cells(k: int, ops: ModuleType) -> None:
    x, z = numbers(70, 40), numbers(70, 40) + 1
    wanted = torch.where(torch.arange(40) < k, x.sum(0), z.sum(0))
    assert_near(ops.halves(x, z, k=k), wanted, torch.float64)


@pytest.mark.parametrize("shape", [(70, 5, 40), (3, 40, 9)])
def test_rows_within_rows(shape: tuple[int, ...], ops: ModuleType) -> None:
    x, k = numbers(*shape), numbers(shape[1], shape[0])
    assert_near(call(ops, "weighted", x, k), torch.einsum("kn,nkd->d", k, x), torch.float64)


# ---------------------------------------------------------------------------- statements
def test_what_a_sum_becomes() -> None:
    (op,) = read(
        Source("op f(x[N,D]; n_part = 1) -> y[D]\n  y[d] = sum(n if n < d) n_part * x[n,d]\n")
    )
    text = " ".join(show(with_strip_sums(op)).split())
    assert "tmp y_strips[(N + 31)//32,D]" in text
    assert "y_strips[n_strip,d] = sum(n_part_ in 32 if" in text
    assert "n_part_ + 32*n_strip < d" in text
    assert ") n_part * x[n_part_ + 32*n_strip,d] y[d] = sum(n_strip) y_strips[n_strip,d]" in text


def test_what_a_sum_of_images_becomes() -> None:
    """A strip is eight lines of 64 pixels."""
    (op,) = read(Source("op f(x[N,C,H,W]) -> y[C]\n  y[c] = sum(n,h,w) x[n,c,h,w]\n"))
    assert with_strip_sums(op) is op
    laid_out = relayout(op, channels_last(op, 1))
    found = with_strip_sums(laid_out, {"x"})
    of_strips, last = found.statements
    names = ["n", "h_strip", "w_strip", "c", "h_part", "w_part"]
    assert [each.name for each in of_strips.iterators] == names
    assert [str(each.extent) for each in of_strips.iterators[-2:]] == ["8", "64"]
    assert [each.name for each in last.iterators] == ["c", *names[:3]]
    assert with_strip_sums(laid_out, {"y"}) is laid_out


def test_guards_of_cells_stay_with_them() -> None:
    text = "op f(x[N,D], z[N,D]) -> y[D]\n"
    text += "  y[d] = sum(n if d < 5) x[n,d]\n  y[d] = sum(n if d >= 5 and n > d) z[n,d]\n"
    shown = show(with_strip_sums(read(Source(text))[-1]))
    assert "y[d] += y_strips[n_strip,d] for n_strip if d <= 4" in shown
    assert "y[d] += y_strips_[n_strip_,d] for n_strip_ if d >= 5" in shown


@pytest.mark.parametrize(
    "text",
    [
        "op f(x[N,W]) -> y[N]\n  y[n] = sum(w) x[n,w]\n",
        "op f(x[N,C,W]) -> y[C]\n  y[c] = sum(n,w) x[n,c,w]\n",
        "op f(x[N,4]) -> y[4]\n  y[d] = sum(n) x[n,d]\n",  # few cells
        "op f(x[3,D]) -> y[D]\n  y[d] = sum(n) x[n,d]\n",  # few rows
        "op f(x[N,D]) -> y[D]\n  where N >= 1\n  y[d] = max(n) x[n,d]\n",
        "op f(x[N,D]) -> y[D]\n  y[d] = prod(n) x[n,d]\n",
        "op f(x[N,D]) -> y[D,D]\n  y[d,e] = sum(n) x[n,d] * x[n,e]\n",
        "op f(x[N,D]) -> y[D+1]\n  y[d+1] += x[n,d] for n, d in D\n",
        "op f(x: float[N,D]) -> y: bf16[D]\n  y[d] = sum(n) x[n,d]\n",
        "op f(x: float[N,D]) -> y: f16[D]\n  y[d] = sum(n) x[n,d]\n",
        "op f(x[N,D], i: i64[N]) -> y[D]\n  y[d] = sum(n) x[i[n],d]\n",
        "op f(x[N,D], i: i64[N]) -> y[D]\n  y[d] = sum(n) x[i[n],d] * x[n,d]\n",
    ],
)
def test_near_misses_stay(text: str) -> None:
    op = read(Source(text))[-1]
    assert with_strip_sums(op) is op


# ---------------------------------------------------------------------------- kernels
def test_kernels_of_both_formats() -> None:
    """Those of images in channels-last format have memory of their own for the sums of strips."""
    (public,) = read(Source("op f(x[N,C,H,W]) -> y[C]\n  y[c] = sum(n,h,w) x[n,c,h,w]\n"))
    op = for_cpu(public)
    special, program, orders = special_along_rows(op, public, {}, 1)
    assert [kernel.written for kernel in program.kernels] == ["y"]
    names = list(dict.fromkeys(kernel.written for kernel in special.kernels))
    assert names == ["y_strips", "y"]
    assert "y_strips" not in {operand.name for operand in program.operands}
    assert set(of_images(orders)) == {"x"}


def test_outputs_with_temporaries_of_their_own_are_separated() -> None:
    text = "op f(x[N,D], z[N,E]) -> y[D], u[E]\n  y[d] = sum(n) x[n,d]\n  u[e] = sum(n) z[n,e]\n"
    (op,) = read(Source(text))
    parts = separated(with_strip_sums(op))
    assert [[each.name for each in part.outputs] for part in parts] == [["y"], ["u"]]
    assert [[each.name for each in part.temporaries] for part in parts] == [
        ["y_strips"],
        ["u_strips"],
    ]
    assert [len(part.statements) for part in parts] == [2, 2]


def test_outputs_with_a_temporary_in_common_are_not() -> None:
    text = """op f(x[N,D]) -> y[D], u[D]
  tmp s[N,D]
  s[n,d] = x[n,d] * x[n,d]
  y[d] = sum(n) s[n,d]
  u[d] = sum(n) s[n,d] * n
"""
    (op,) = read(Source(text))
    assert separated(op) == (op,)
