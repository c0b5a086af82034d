"""Kernels that run within others, which read the same part of a tensor right after them."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, stage_text
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Kernel, Program
from opgen.ir.work import points
from opgen.on_demand import special_source
from opgen.passes.gather import gather
from opgen.passes.guests import with_guests
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule

OPS = """
op both(x[B,C,H,W], m[H,W]) -> s[B,H,W], t[H,W]
  s[b,h,w] = sum(c) x[b,c,h,w] * m[h,w]
  t[h,w] = sum(b,c) x[b,c,h,w] * x[b,c,h,w]

op turned(x[B,C,H,W]) -> t[H,W], s[B,H,W]
  t[h,w] = sum(b,c) x[b,c,h,w]
  s[b,h,w] = sum(c) x[b,c,h,w]

op channels(x[N,G,H,W], y[N,G,H,W]) -> s[G], d[N,G,H,W]
  s[g] = sum(n,h,w) x[n,g,h,w] * y[n,g,h,w]
  d[n,g,h,w] = x[n,g,h,w] + y[n,g,h,w]

op framed(x[N,G,H,W], y[N,G,H,W]) -> s[G], d[N,G,H,W]
  s[g] = sum(n,h,w) x[n,g,h,w] * y[n,g,h,w]
  d[n,g,h,w] = x[n,g, h, w - 1 ?0]

op chained(x[B,C,H,W]) -> t[H,W], s[B,H,W]
  t[h,w] = sum(b,c) x[b,c,h,w]
  s[b,h,w] = sum(c) x[b,c,h,w] * t[h,w]

op apart(x[B,C,H,W], z[B,C,H,W], m[H,W]) -> s[B,H,W], t[H,W]
  s[b,h,w] = sum(c) x[b,c,h,w] * m[h,w]
  t[h,w] = sum(b,c) z[b,c,h,w] * m[h,w]

op later(x[B,C,H,W]) -> s[B,H,W], t[H,W]
  s[b,h,w] = sum(c) x[b,c,h,w]
  t[h,w] = sum(b,c) x[b,c, h, w - 1 ?0] * s[b,h,w]

op rolled(x[B,C,H,W]) -> s[B,H,W], t[H,W]
  s[b,h,w] = sum(c) x[b,c,h,w]
  t[h,w] = sum(b in B, c) x[B - 1 - b,c,h,w]

op long(x[B,C,H,4096]) -> s[B,H,4096], t[H,4096]
  s[b,h,w] = sum(c) x[b,c,h,w]
  t[h,w] = sum(b,c) x[b,c,h,w]
"""


def program_of(name: str) -> Program:
    (op,) = (each for each in check_source(Source(OPS, "guests.op")) if each.name == name)
    return with_guests(rows(schedule(op, gather(op)), facts_of(op)))


def pair_of(program: Program) -> tuple[Kernel, Kernel] | None:
    """A guest and its host."""
    for guest, host in itertools.pairwise(program.kernels):
        if host.guest is not None:
            assert host.guest.kernel == guest.name
            return guest, host
    return None


@pytest.mark.parametrize("name", ["both", "turned", "channels"])
def test_guests_come_before_their_hosts(name: str) -> None:
    assert pair_of(program_of(name)) is not None


@pytest.mark.parametrize("name", ["framed", "chained", "apart", "later", "rolled", "long"])
def test_near_misses(name: str) -> None:
    """One is a copy with a way of its own, or reads what the other writes; nothing is shared, or
    another image at the same time.

    Or a row is known to be several stretches, each of which would run the guest.
    """
    assert pair_of(program_of(name)) is None


SIZES = [1, 2, 3, 4, 5, 17]


@pytest.mark.parametrize("name", ["both", "turned", "channels"])
def test_every_point_of_a_guest_runs_once(name: str) -> None:
    program = program_of(name)
    found = pair_of(program)
    assert found is not None
    guest, host = found
    assert host.guest is not None
    for outer, height, width in itertools.product((0, 1, 3), SIZES, (1, 1024, 1025)):
        known = dict.fromkeys(program.integers, outer) | {"H": height, "W": width, "C": 2}
        known["G"] = height + 3
        values = {name: known[name] for name in program.integers}
        counters = [range(axis.extent.evaluate(values)) for axis in host.axes]
        if host.group is not None:
            counters.append(range(0, host.group.axis.extent.evaluate(values), host.group.width))
        names = [axis.name for axis in host.axes]
        names += [] if host.group is None else [host.group.first]
        seen: list[int] = []
        for index, at in itertools.product(range(outer), itertools.product(*counters)):
            here = {**values, **dict(zip(names, at, strict=True)), host.guest.loop: index}
            if host.group is not None:
                end = here[host.group.first] + host.group.width
                here[host.group.last] = min(end, host.group.axis.extent.evaluate(values)) - 1
            first = host.guest.first.evaluate(here)
            seen += range(first, first + host.guest.count.evaluate(here))
        assert sorted(seen) == list(range(points(guest).evaluate(values)))


def test_c_runs_guests_within_their_hosts_or_alone() -> None:
    text = stage_text(Source(OPS, "guests.op"), "c")
    begin = text.index("// both\n")
    text = text[begin : text.index("return fault[0];", begin)]
    assert len(re.findall(r"if \(guest\) both_s_task\(", text)) == 1
    assert len(re.findall(r"if \(!s_is_guest\)\n    in_parallel\(both_s_task", text)) == 1
    spec = Source((SPECS / "shift_sum.op").read_text(), "shift_sum.op")
    path = ("shift_sum_pinv", "y,mask")
    assert "grad_y_is_guest" in special_source(spec.text, spec.name, path, {"step": 2})


# ---------------------------------------------------------------------------- numbers
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SHAPES = [
    (2, 3, 5, 7),
    (3, 2, 16, 33),
    (2, 5, 35, 40),
    (1, 1, 17, 1),
    (2, 2, 129, 300),
    (3, 9, 16, 16),
    (2, 1, 9, 1030),
    (0, 2, 3, 4),
    (2, 0, 3, 4),
    (2, 3, 0, 4),
    (2, 3, 4, 0),
]


@pytest.fixture(scope="module")
def ops() -> Any:
    return opgen.compile(OPS, "guests.op")


def whole(*shape: int, dtype: torch.dtype) -> Tensor:
    """Small integers, which all types add exactly."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-1, 2, shape, generator=generator).to(dtype)


def turned(tensor: Tensor) -> Tensor:
    """The same elements, the last two dims the other way round in memory."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_values_are_those_of_pytorch(dtype: torch.dtype, ops: Any, threads: int) -> None:
    for shape in SHAPES:
        plain, other = whole(*shape, dtype=dtype), whole(*shape, dtype=dtype).flip(0)
        mask = whole(*shape[2:], dtype=dtype)
        for x in (plain, turned(plain)):
            s, t = ops.both(x, mask)
            exact = x.double()
            assert torch.equal(s, ((exact * mask).sum(1)).to(dtype))
            assert torch.equal(t, (exact * exact).sum((0, 1)).to(dtype))
            t, s = ops.turned(x)
            assert torch.equal(s, exact.sum(1).to(dtype))
            assert torch.equal(t, exact.sum((0, 1)).to(dtype))
            s, d = ops.channels(x, other)
            assert torch.equal(s, (exact * other).sum((0, 2, 3)).to(dtype))
            assert torch.equal(d, x + other)


def inverse(y: Tensor, mask: Tensor, channels: int, step: int) -> Tensor:
    """The right inverse of `shift_sum_masked`, channel by channel."""
    width = y.shape[-1] - (channels - 1) * step
    counts = torch.zeros(y.shape[-1], dtype=y.dtype)
    for c in range(channels):
        counts[c * step : c * step + width] += 1
    z = y / counts.clamp(min=1)
    return torch.cat([z[..., c * step : c * step + width] for c in range(channels)], 1) / mask


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_gradients_of_the_inverse(dtype: torch.dtype, step: int, threads: int) -> None:
    """Those of both inputs together, beside autograd in float64."""
    op = opgen.load(SPECS / "shift_sum.op").shift_sum_pinv
    for batch, channels, height, width in [
        (2, 3, 5, 11),
        (3, 4, 40, 37),
        (1, 1, 17, 1),
        (2, 2, 130, 40),
    ]:
        generator = torch.Generator().manual_seed(height)
        columns = width + (channels - 1) * step
        y = torch.randn(batch, 1, height, columns, generator=generator).to(dtype)
        mask = (torch.rand(1, 1, height, width, generator=generator) + 0.5).to(dtype)
        cotangent = torch.randn(batch, channels, height, width, generator=generator).to(dtype)
        for given in (cotangent, turned(cotangent)):
            inputs = [each.clone().requires_grad_() for each in (y, mask)]
            found = torch.autograd.grad(op(*inputs, C=channels, step=step), inputs, given)
            exact = [each.double().requires_grad_() for each in (y, mask)]
            precise = inverse(*exact, channels, step)
            wanted = torch.autograd.grad(precise, exact, given.double())
            for own, other in zip(found, wanted, strict=True):
                eps = torch.finfo(dtype).eps
                scale = other.abs().max()
                assert (own.double() - other).abs().max() <= 8 * batch * channels * eps * scale


def test_one_after_the_other_gives_the_same_bits() -> None:
    """Two threads have too few points of the host for the guest to run within it."""
    op = opgen.load(SPECS / "shift_sum.op").shift_sum_pinv
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(4, 1, 20, 94, generator=generator, requires_grad=True)
    mask = torch.rand(1, 1, 20, 40, generator=generator).add(0.5).requires_grad_()
    cotangent = torch.randn(4, 28, 20, 40, generator=generator)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        result = op(y, mask, C=28, step=2)
        found.append(torch.autograd.grad(result, (y, mask), cotangent))
    torch.set_num_threads(before)
    assert all(map(torch.equal, *found))
