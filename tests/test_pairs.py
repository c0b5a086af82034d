"""Sums that go from plane to plane of a tensor take two planes at a time."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch

import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import For, Kernel, walk
from opgen.ir.show_loops import show_kernel
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.testing.run_loops import run

OPS = """
op planes(x[B,C,H,W], g[B,H,W]) -> m[H,W]
  m[h,w] = sum(b,c) x[b,c,h,w] * g[b,h,w]

op backwards(x[B,C,H,W], g[B,H,W]) -> m[H,W]
  m[h,w] = sum(c,b) x[b,c,h,w] * g[b,h,w]

op largest(x[C,H,W]) -> m[H,W]
  m[h,w] = max(c) x[c,h,w]

op three(x[3,H,W]) -> m[H,W]
  m[h,w] = sum(c) x[c,h,w]

op moving(x[C,H,W]; step = 1) -> m[H,V]
  where step >= 0, C >= 1
  let V = W + (C-1)*step
  m[h,v] = sum(c) x[c,h, v - c*step ?0]

op products(x[B,C,H,W], z[B,C,H,W]) -> m[H,W]
  m[h,w] = sum(b,c) x[b,c,h,w] * z[b,c,h,w]
"""
SIZES = [(1, 1), (1, 2), (2, 1), (2, 5), (3, 4), (5, 3)]


def kernels(name: str) -> tuple[Kernel, ...]:
    (op,) = (each for each in check_source(Source(OPS, "pairs.op")) if each.name == name)
    return rows(schedule(op, gather(op)), facts_of(op)).kernels


def loops_of(name: str) -> list[str]:
    return [
        node.name for kernel in kernels(name) for node in walk(kernel.body) if isinstance(node, For)
    ]


@pytest.mark.parametrize("name", ["planes", "backwards"])
def test_planes_are_taken_in_pairs_and_in_the_order_of_memory(name: str) -> None:
    assert loops_of(name) == ["h", "b", "c_pair", "h", "c", "h", "h"]
    (kernel,) = kernels(name)
    reads = re.findall(r"x\[(.*?), h, w\]", show_kernel(kernel))
    assert reads == ["b, 2*c_pair", "b, 2*c_pair + 1", "b, c"]


@pytest.mark.parametrize("name", ["largest", "three"])
def test_what_is_not_paired(name: str) -> None:
    """What is no sum, and few terms."""
    assert not any("_pair" in each for each in loops_of(name))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["planes", "backwards", "products"])
@pytest.mark.parametrize(("b", "c"), [*SIZES, (0, 3), (3, 0)])
def test_the_loops_add_every_term_once(name: str, b: int, c: int) -> None:
    (op,) = (each for each in check_source(Source(OPS, "pairs.op")) if each.name == name)
    program = rows(schedule(op, gather(op)), facts_of(op))
    generator = np.random.default_rng(b * 10 + c)
    x = generator.integers(-9, 9, (b, c, 3, 5)).astype(float)
    other = "z" if name == "products" else "g"
    second = generator.integers(-9, 9, (b, c, 3, 5) if other == "z" else (b, 3, 5)).astype(float)
    given = {"x": x, other: second}
    found, counts = run(program, given, {"B": b, "C": c, "H": 3, "W": 5})
    wanted = (x * (second if other == "z" else second[:, None])).sum((0, 1))
    for h, w in itertools.product(range(3), range(5)):
        assert found["m"][h, w] == wanted[h, w]
    assert counts.terms == b * c * 15


@pytest.mark.sampled(6)
@pytest.mark.parametrize("step", [0, 1, 2, 5])
@pytest.mark.parametrize(("c", "width"), [(1, 4), (2, 1), (3, 3), (4, 2), (5, 7)])
def test_lanes_of_one_plane_alone(c: int, width: int, step: int) -> None:
    """Two planes overlap, or do not: every cell has its terms, and has them once."""
    assert any("_pair" in each for each in loops_of("moving"))
    (op,) = (each for each in check_source(Source(OPS, "pairs.op")) if each.name == "moving")
    program = rows(schedule(op, gather(op)), facts_of(op))
    x = np.random.default_rng(c).integers(-9, 9, (c, 3, width)).astype(float)
    columns = width + (c - 1) * step
    sizes = {"C": c, "H": 3, "W": width, "V": columns, "step": step}
    found, counts = run(program, {"x": x}, {name: sizes[name] for name in program.integers})
    wanted = np.zeros((3, columns))
    for plane in range(c):
        wanted[:, plane * step : plane * step + width] += x[plane]
    for h, v in itertools.product(range(3), range(columns)):
        assert found["m"][h, v] == wanted[h, v]
    assert counts.terms == c * 3 * width
    ops = opgen.compile(OPS, "pairs.op")
    wide = torch.from_numpy(x).repeat(1, 9, 1)
    assert torch.equal(ops.moving(wide, step=step), torch.from_numpy(wanted).repeat(9, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_kernels_agree_with_pytorch(dtype: torch.dtype) -> None:
    """Integers, which all types add exactly."""
    ops = opgen.compile(OPS, "pairs.op")
    generator = torch.Generator().manual_seed(3)
    for (b, c), (h, w) in itertools.product(SIZES, [(1, 1), (17, 9), (40, 33)]):
        x = torch.randint(-2, 3, (b, c, h, w), generator=generator)
        g = torch.randint(-2, 3, (b, h, w), generator=generator)
        wanted = (x * g[:, None]).sum((0, 1)).to(dtype)
        for name in ("planes", "backwards"):
            assert torch.equal(getattr(ops, name)(x.to(dtype), g.to(dtype)), wanted)
            turned = x.to(dtype).transpose(2, 3).contiguous().transpose(2, 3)
            assert torch.equal(getattr(ops, name)(turned, g.to(dtype)), wanted)
        squares = (x * x).sum((0, 1)).to(dtype)
        assert torch.equal(ops.products(x.to(dtype), x.to(dtype)), squares)
