"""Rows that go around what they read, by sizes that only a call knows: by any number of turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import For, walk
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule

ROLLS = """op roll(x[B,N]; s = 1) -> y[B,N]
  y[b,n] = x[b, n - s ?wrap]

op forward(x[B,N]; s = 1) -> y[B,N]
  y[b,n] = x[b, (n + s) % N]

op backward(x[B,N]; s = 1) -> y[B,N]
  y[b,n] = x[b, s - n ?wrap]

op lines(x[N,C]; s = 1) -> y[N,C]
  y[n,c] = x[n - s ?wrap, c]

op stencil(x[B,N]; s = 1) -> y[B,N]
  y[b,n] = x[b, n - s ?wrap] + 3*x[b, n + s ?wrap] - 2*x[b,n]

op cross(x[B,N]; s = 1) -> y[B,N]
  y[b,n] = x[b, n - s ?wrap] * x[b, n + 2*s ?wrap] * x[b, n - 1 ?wrap]

op most(x[B,N]; s = 1) -> y[B,N]
  y[b,n] = max(k in 3) x[b, n - k*s ?wrap]
"""
"""Ops of what they read at `n`, of `N` cells, for a step."""


def at(x: Tensor, place: Callable[[int], int]) -> Tensor:
    """The columns at these places, around the row."""
    count = x.shape[1]
    return x[:, [place(n) % count for n in range(count)]]


REFERENCES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "roll": lambda x, s: at(x, lambda n: n - s),
    "forward": lambda x, s: at(x, lambda n: n + s),
    "backward": lambda x, s: at(x, lambda n: s - n),
    "lines": lambda x, s: at(x.T, lambda n: n - s).T,
    "stencil": lambda x, s: at(x, lambda n: n - s) + 3 * at(x, lambda n: n + s) - 2 * x,
    "cross": lambda x, s: (
        at(x, lambda n: n - s) * at(x, lambda n: n + 2 * s) * at(x, lambda n: n - 1)
    ),
    "most": lambda x, s: torch.stack([at(x, lambda n, k=k: n - k * s) for k in range(3)]).amax(0),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("shape", [(3, 1), (2, 2), (2, 37), (2, 1025), (1030, 5), (2, 2300)])
@pytest.mark.parametrize("name", REFERENCES)
def test_any_step(name: str, shape: tuple[int, int]) -> None:
    op = getattr(opgen.compile(ROLLS), name)
    count = shape[0] if name == "lines" else shape[1]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for step in (0, 1, -1, 3, count // 2, count, -count, 3 * count + 2, -2 * count - 1):
        ours, expected = op(x, s=step), REFERENCES[name](x, step)
        assert torch.equal(ours, expected) or name == "stencil"
        torch.testing.assert_close(ours, expected)
        back = torch.randn_like(ours)
        (grad,) = torch.autograd.grad(ours, x, back)
        # Of terms that are the same cell a maximum may choose any, so there it is not compared.
        if name != "most" or (count > 3 and step in (1, -1, 3)):
            (wanted,) = torch.autograd.grad(expected, x, back)
            torch.testing.assert_close(grad, wanted)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("taps", [1, 7, 40])
@pytest.mark.parametrize("count", [1, 5, 64, 1500])
def test_sums_around_a_row(taps: int, count: int) -> None:
    spec = """op around(x[B,N], w[K]; d = 1) -> y[B,N]
      y[b,n] = sum(k) x[b, n + d*k ?wrap] * w[k]
    """
    op = opgen.compile(spec).around
    x = torch.randn(2, count, dtype=torch.float64, requires_grad=True)
    w = torch.randn(taps, dtype=torch.float64, requires_grad=True)
    for step in (1, -1, 3, count):
        expected = sum(at(x, lambda n, by=step * k: n + by) * w[k] for k in range(taps))
        ours = op(x, w, d=step)
        torch.testing.assert_close(ours, expected)
        back = torch.randn_like(ours)
        found = torch.autograd.grad(ours, (x, w), back, create_graph=True)
        wanted = torch.autograd.grad(expected, (x, w), back, create_graph=True)
        torch.testing.assert_close(found, wanted)
        again = torch.randn_like(x)
        second = torch.autograd.grad((found[0] * again).sum(), w)
        torch.testing.assert_close(second, torch.autograd.grad((wanted[0] * again).sum(), w))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("period", [1, 2, 3, 16, 1024, 1700, 5000])
def test_what_repeats(period: int, dtype: torch.dtype) -> None:
    op = opgen.compile("""op periodic(x[B,N], w[P]) -> y[B,N]
      where P >= 1
      y[b,n] = x[b,n] * w[n % P]
    """).periodic
    x = torch.randint(-8, 8, (3, 2500)).to(dtype)
    w = torch.randint(-8, 8, (period,)).to(dtype)
    assert torch.equal(op(x, w), x * w[[n % period for n in range(2500)]])


@pytest.mark.parametrize("lengths", [(1, 1), (2, 1), (8, 5), (1100, 7), (3000, 1024)])
def test_a_row_that_goes_around_two_others(lengths: tuple[int, int]) -> None:
    op = opgen.compile("""op two(x[B,P], w[Q]; N: size) -> y[B,N]
      where P >= 1, Q >= 1
      y[b,n] = x[b, n % P] * w[n % Q]
    """).two
    x, w = torch.randn(2, lengths[0]), torch.randn(lengths[1])
    at_p, at_q = ([n % length for n in range(2500)] for length in lengths)
    assert torch.equal(op(x, w, N=2500), x[:, at_p] * w[at_q])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["n_turn", "n_first", "n_last", "n_begin", "quotient"])
@pytest.mark.parametrize("which", ["B", "P", "N", "s"])
def test_names_of_what_a_row_has_itself(which: str, name: str) -> None:
    """Found by a review: a length named `n_first` was taken for where a stretch begins."""
    names = {each: each for each in "BPNs"} | {which: name}
    op = opgen.compile(
        """op f(x[{B},{P}]; {N}: size, {s} = 0) -> y[{B},{N}]
      where {P} >= 1
      y[b,n] = x[b, (n - {s}) % {P}]
    """.format(**names)
    ).f
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    found = op(x, **{names["N"]: 1500, names["s"]: 5})
    wanted = x[:, [(n - 5) % 7 for n in range(1500)]]
    assert torch.equal(found, wanted)
    back = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, x, back), torch.autograd.grad(wanted, x, back)
    )


def test_a_turn_is_a_loop_without_quotients() -> None:
    for op in check_source(Source(ROLLS, "<test>")):
        program = rows(schedule(op, gather(op)), facts_of(op))
        loops = [node for kernel in program.kernels for node in walk(kernel.body)]
        turns = [node for node in loops if isinstance(node, For) and "turn" in node.name]
        assert len(turns) == {"roll": 2, "forward": 2, "backward": 1, "stencil": 4}.get(op.name, 0)
