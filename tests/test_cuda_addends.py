"""Terms that neighbouring cells of a thread share: which are added first, and that sums hold."""

from __future__ import annotations

import pytest
import torch

import opgen
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Accumulate, Load, Start, walk
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.testing.cuda_on_cpu.emulated import emulated

SPEC = """
op biased(x[N,W], a[N], b[N]) -> y[N,W]
  y[n,w] += 2*x[n,w]
  y[n,w] += a[n]
  y[n,w] += b[n]

op other(x[N,W], a[W]) -> y[N,W]
  y[n,w] += 2*x[n,w]
  y[n,w] += a[w]

op halves(x[N,W], a[N]) -> y[N,W]
  y[n,w] += 2*x[n,w]
  y[n,w] += a[n] if w < 5

op most(x[N,W], a[N]) -> y[N,W]
  y[n,w] max= 2*x[n,w]
  y[n,w] max= a[n]

op read_before(x[N,W], a[N]) -> y[N,W]
  tmp t[N,W]
  t[n,w] += x[n,w]
  t[n,w] += a[n]
  y[n,w] += 2*t[n,w]
  y[n,w] += a[n]
"""


def terms(name: str) -> list[str]:
    """What joins the sums of an op's kernels, in order: tensors, "*" for a product."""
    (op,) = (op for op in read(Source(SPEC)) if op.name == name)
    found = []
    for kernel in cuda_rows(schedule(op, gather(op)), facts_of(op)).kernels:
        for node in walk(kernel.body):
            match node:
                case Start():
                    found.append("0")
                case Accumulate(value=Load(tensor=tensor)):
                    found.append(tensor)
                case Accumulate():
                    found.append("*")
                case _:
                    pass
    return found


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("biased", ["0", "a", "b", "*"]),
        ("other", ["0", "*", "a"]),  # another for every cell
        ("halves", ["0", "*", "a"]),  # not for every cell
        ("most", ["0", "*", "a"]),  # no sum
    ],
)
def test_what_is_added_first(name: str, order: list[str]) -> None:
    assert terms(name) == order


def test_sums_are_right() -> None:
    """Integers, so that every order gives the same."""
    module = opgen.compile(SPEC)
    x = torch.arange(24.0).reshape(3, 8)
    a, b = torch.tensor([3.0, -50.0, 7.0]), torch.tensor([1.0, 2.0, -8.0])
    column = a[:, None]
    with emulated():
        assert torch.equal(module.biased(x, a, b), 2 * x + column + b[:, None])
        assert torch.equal(module.other(x, x[0]), 2 * x + x[0])
        early = torch.arange(8) < 5
        assert torch.equal(module.halves(x, a), 2 * x + column * early)
        assert torch.equal(module.most(x, a), torch.maximum(2 * x, column))
        assert torch.equal(module.read_before(x, a), 2 * (x + column) + column)
