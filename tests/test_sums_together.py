"""Sums over the same loops as one kernel: which are, and what they compute."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.family import JOINT
from opgen.ir.loops import Short
from opgen.on_demand import special_source
from opgen.passes.sums_together import with_sums_together
from opgen.programs import _each_along_rows, along_rows, for_cpu, scheduled
from opgen.runtime.description import KEPT

NORMS = (SPECS / "norm.op").read_text(encoding="utf-8")
HEAD = "op f(x: float[N,D], z[N,D], w[D]) -> y[N], t[N]\n"


def kernels_of(text: str) -> list[set[str]]:
    """What each kernel of an op writes."""
    (op,) = check_source(Source(text, "<test>"))
    op = for_cpu(op)
    program = along_rows(op, scheduled(op))
    return [set(kernel.all_written) for kernel in program.kernels]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("y[n] = sum(d) x[n,d]*x[n,d]\n  t[n] = sum(d) x[n,d]*z[n,d]", True),
        ("y[n] = sum(d) x[n,d]*w[d]\n  t[n] = sum(d) w[d]*x[n,d]*z[n,d]", True),
        ("y[n] = sum(d) x[n,d]*w[d]\n  t[n] = sum(d) x[n,d]*z[n,d]", False),  # rows share `w`
        ("y[n] = sum(d) x[n,d]*z[n,d]\n  t[m] = sum(k) z[m,k]*z[m,k]", True),  # other names
        ("y[n] = sum(d) x[n,d]\n  t[n] = sum(d) z[n,d]*w[d]", False),  # nothing is shared
        ("y[n] = sum(d) x[n,d]*w[d]\n  t[n] = sum(d) z[n,d]*w[d]", False),  # but a row of numbers
        ("y[n] = sum(d) x[n,d]*w[d]\n  t[n] = sum(d) x[n,d]*y[n]*z[n,d]", False),  # reads the first
        ("y[n] = sum(d) x[n,d]*w[d]\n  t[n] = sum(d in D) x[n,d+1 ?0]*z[n,d]", False),
        ("y[n] = sum(d if d >= 1) x[n,d]*w[d]\n  t[n] = sum(d) x[n,d]*z[n,d]", False),
        ("y[n] = max(d) x[n,d]*w[d]\n  t[n] = max(d) x[n,d]*z[n,d]", False),
    ],
)
def test_which_sums(lines: str, expected: bool) -> None:
    assert (kernels_of(f"{HEAD}  {lines}\n") == [{"y", "t"}]) == expected


def test_sums_down_columns() -> None:
    head = "op f(x: float[N,D], z[N,D]) -> y[D], t[D]\n"
    lines = "  y[d] = sum(n) x[n,d]\n  t[d] = sum(n) x[n,d]*z[n,d]\n"
    assert {"y_strips", "t_strips"} in kernels_of(head + lines)


def test_what_stands_between() -> None:
    """A kernel in between keeps its place, and one that the second one reads keeps them apart."""
    head = "op f(x: float[N,D], z[N,D]) -> y[N], t[N], s[N,D]\n"
    before = "  y[n] = sum(d) x[n,d]*z[n,d]\n  s[n,d] = "
    behind = "\n  t[n] = sum(d) x[n,d]*"
    assert kernels_of(f"{head}{before}exp(x[n,d]){behind}x[n,d]\n") == [{"y", "t"}, {"s"}]
    apart = [{"y"}, {"s"}, {"t"}]
    assert kernels_of(f"{head}{before}exp(x[n,d]){behind}s[n,d]\n") == apart


def test_many_sums_are_not_one() -> None:
    """As many as there are registers for."""
    names = [f"y{at}" for at in range(5)]
    head = f"op f(x: float[N,D], z[N,D]) -> {', '.join(f'{name}[N]' for name in names)}\n"
    lines = "".join(
        f"  {name}[n] = sum(d) x[n,d]*z[n,d]*{at + 1}\n" for at, name in enumerate(names)
    )
    found = kernels_of(head + lines)
    assert 1 < len(found) < len(names)


def test_a_condition_for_both() -> None:
    """Where one of two kernels runs, the other one of each pair does not: or they stay apart."""
    text = special_source(NORMS, "norm.op", ("layer_norm", "x,weight,bias"), {}, 0)
    assert "grad_weight_strips_short" in text
    assert "grad_bias_strips_short" not in text


NORM_OF_CHANNELS = """op f(x: float[N,C,H,W], w[C], b[C]) -> y[N,C,H,W]
  mu[n,h,i] = mean(c) x[n,c,h,i]
  s[n,h,i] = mean(c) (x[n,c,h,i] - mu[n,h,i])**2
  y[n,c,h,i] = (x[n,c,h,i] - mu[n,h,i]) * rsqrt(s[n,h,i] + 0.00001) * w[c] + b[c]
"""


def test_sums_of_images_whose_channels_are_last() -> None:
    """Pixels beside and below share the same weights: the one of the two leaves room for both sums,
    and eight lines of a strip are added to one accumulator."""
    path = ("f", "x,w,b", f"{KEPT}mu{JOINT}s")
    images = sum(1 << at for at in (0, 4, 5))  # x, grad_y, grad_x
    text = special_source(NORM_OF_CHANNELS, "<test>", path, {}, images)
    written = set(
        re.findall(r"^KERNEL void f_grad_x_and_w_and_b_of_kept_(\w+)\($", text, re.MULTILINE)
    )
    assert {"grad__t2", "grad_w_strips"} <= written
    assert written.isdisjoint({"grad__t1", "grad_b_strips"})


def test_a_pair_without_its_other_half_stays() -> None:
    """Else there would be calls in which nobody writes a tensor."""
    head = "op f(x: float[N,D], z[N,D]) -> y[D], t[D]\n"
    lines = "  y[d] = sum(n) x[n,d]\n  t[d] = sum(n) x[n,d]*z[n,d]\n"
    (op,) = check_source(Source(head + lines, "<test>"))
    (kernel,) = along_rows(op, scheduled(op)).kernels
    plain = _each_along_rows(op, scheduled(op))
    first, second = (replace(each, row=kernel.row) for each in plain.kernels)
    assert kernel.row is not None
    short = [Short(kernel.row.axis.extent, 48, (name,), True) for name in "yt"]
    long = [replace(each, holds=False) for each in short]
    pairs = [
        replace(each, only=only)
        for at, each in enumerate((first, second))
        for only in (short[at], long[at])
    ]
    whole = with_sums_together(replace(plain, kernels=tuple(pairs)))
    assert [each.all_written for each in whole.kernels] == [("y", "t"), ("y", "t")]
    assert all(
        isinstance(each.only, Short) and each.only.tensors == ("y", "t") for each in whole.kernels
    )
    other = replace(pairs[3], row=replace(kernel.row, width=7))
    halves = replace(plain, kernels=(*pairs[:3], other))
    assert with_sums_together(halves) == halves


# ---------------------------------------------------------------------------- values
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("width", [2, 5, 16, 48, 49, 130, 700])
def test_layer_norm(width: int, dtype: torch.dtype, threads: int) -> None:
    norm = opgen.compile(NORMS).layer_norm
    for rows in (1, 3, 4, 9, 517):
        for turned in (False, True):
            given = inputs((rows, width), width, dtype, turned)
            variance = given[0].detach().double().var(-1, unbiased=False)
            deviation = float(variance.min() + 1e-5) ** 0.5
            compare(
                norm, lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), given, 1 / deviation
            )


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 64, 9, 11), (3, 49, 4, 4), (2, 3, 40, 13)])
def test_norm_of_channels(shape: tuple[int, ...], last: bool, threads: int) -> None:
    x, w, b = inputs(shape, shape[1], torch.float32, False)
    if last:
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    compare(
        opgen.compile(NORM_OF_CHANNELS).f,
        lambda x, w, b: F.layer_norm(x.movedim(1, -1), w.shape, w, b).movedim(-1, 1),
        (x, w, b),
        1 / float(x.detach().double().var(1, unbiased=False).min() + 1e-5) ** 0.5,
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 32, 9, 9), (3, 64, 4, 4), (2, 2, 40, 40)])
def test_group_norm(shape: tuple[int, ...], last: bool, threads: int) -> None:
    norm = opgen.compile(NORMS).group_norm
    x, w, b = inputs(shape, shape[1], torch.float32, False)
    if last:
        x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    compare(
        lambda x, w, b: norm(x, w, b, num_groups=2),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (x, w, b),
    )


def inputs(
    shape: tuple[int, ...], channels: int, dtype: torch.dtype, turned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator).to(dtype)
    if turned:
        x = x.mT.contiguous().mT
    w = torch.randn(channels, generator=generator).to(dtype)
    b = torch.randn(channels, generator=generator).to(dtype)
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_()


def compare(
    ours: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
    given: tuple[Tensor, Tensor, Tensor],
    largest: float = 1.0,
) -> None:
    """Gradients beside those of PyTorch in float64; called twice, the second time with what was
    kept of the forward pass. Numbers of size `largest` are subtracted from each other."""
    wide = tuple(each.detach().double().requires_grad_() for each in given)
    wanted_result = theirs(*wide)
    flowing = torch.randn(
        wanted_result.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).to(given[0].dtype)
    wanted = torch.autograd.grad(wanted_result, wide, flowing.double())
    bits = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float64: 1e-10}[given[0].dtype]
    for _ in range(2):
        found = torch.autograd.grad(ours(*given), given, flowing)
        for mine, expected in zip(found, wanted, strict=True):
            scale = max(1.0, largest, float(expected.abs().max()))
            assert float((mine.double() - expected).abs().max()) <= bits * scale
