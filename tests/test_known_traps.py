"""By name: index maps and corner cases that other compilers are known to get wrong.

Each goes the whole way, from text to a compiled kernel and two derivatives (gradcheck and
gradgradcheck compare them with finite differences of the forward pass).
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS

CONV = opgen.load(SPECS / "conv.op")
POOL = opgen.load(SPECS / "pool.op")
PAD = opgen.load(SPECS / "pad.op")


def double(*shape: int) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def check_derivatives(function: object, *inputs: torch.Tensor) -> None:
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_digits_on_the_left() -> None:
    """b[x//2, x%2]"""
    op = opgen.compile("op f(x[N]; M: size) -> b[M,2]\n  where N == 2*M\n  b[i//2, i%2] = x[i]\n").f
    x = double(6)
    assert torch.equal(op(x, M=3), x.reshape(3, 2))
    check_derivatives(lambda x: op(x, M=3), x)


@pytest.mark.parametrize(
    "statement",
    [
        "y[n,c,h,w] = x[n, c*r*r + h%r*r + w%r, h//r, w//r]",
        "y[n,c, h*r + i, w*r + j] = x[n,(c i j),h,w]",
        "y[n,c,(h i),(w j)] = x[n,(c i j),h,w]",
    ],
    ids=["gathered", "scattered", "composite"],
)
def test_depth_to_space_both_ways(statement: str) -> None:
    op = opgen.compile(
        "op f(x[N,(C r r),H,W]; r = 2) -> y[N,C,(H r),(W r)]\n  where r >= 1\n  " + statement + "\n"
    ).f
    x = double(2, 8, 2, 3)
    assert torch.equal(op(x), F.pixel_shuffle(x, 2))
    check_derivatives(op, x)


def test_diagonal() -> None:
    """b[x,x]"""
    op = opgen.compile("op f(x[N]) -> b[N,N]\n  b[i,i] = x[i]\n").f
    x = double(4)
    assert torch.equal(op(x), torch.diag(x))
    check_derivatives(op, x)


def test_sum_and_difference_of_indices() -> None:
    """x[i+j, i-j]"""
    op = opgen.compile(
        "op f(x[A,B]; n: size, m: size) -> y[n,m]\n  y[i,j] = x[i + j ?0, i - j ?0]\n"
    ).f
    x = double(5, 4)
    wanted = torch.zeros(4, 3, dtype=torch.float64)
    for i in range(4):
        for j in range(3):
            if 0 <= i + j < 5 and 0 <= i - j < 4:
                wanted[i, j] = x[i + j, i - j]
    assert torch.equal(op(x, n=4, m=3), wanted)
    check_derivatives(lambda x: op(x, n=4, m=3), x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shift", [-7, -1, 0, 3, 5, 12])
def test_cyclic_shift(shift: int) -> None:
    """y[(w+S)%W]"""
    op = opgen.compile("op f(x[W]; S = 1) -> y[W]\n  y[(w + S)%W] = x[w]\n").f
    x = double(5)
    assert torch.equal(op(x, S=shift), torch.roll(x, shift))
    check_derivatives(lambda x: op(x, S=shift), x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("width", "kernel", "settings"),
    [
        (11, 3, {"stride": 2, "dilation": 2}),
        (13, 3, {"stride": 4, "dilation": 2, "padding": 1}),
        pytest.param(14, 3, {"stride": 6, "dilation": 4, "padding": 2}, marks=pytest.mark.slow),
        (2, 5, {"padding": 2}),
        (9, 2, {"stride": 3}),
    ],
    ids=["gcd-2", "gcd-2-padded", "gcd-2-wide", "window-beyond-input", "stride-beyond-kernel"],
)
def test_convolution(width: int, kernel: int, settings: dict[str, int]) -> None:
    x, weight = double(1, 2, width), double(2, 2, kernel)
    torch.testing.assert_close(CONV.conv1d(x, weight, **settings), F.conv1d(x, weight, **settings))
    check_derivatives(lambda x, w: CONV.conv1d(x, w, **settings), x, weight)


@pytest.mark.parametrize("left", [0, 3, 4])
def test_reflection_as_far_as_it_goes(left: int) -> None:
    x = double(1, 1, 2, 5)
    padding = (left, 4, 1, 0)
    wanted = F.pad(x, padding, mode="reflect")
    assert torch.equal(PAD.pad_reflect(x, padding=padding), wanted)
    check_derivatives(lambda x: PAD.pad_reflect(x, padding=padding), x)


def test_reflection_too_far_is_refused() -> None:
    with pytest.raises(ValueError, match="pad_reflect"):
        PAD.pad_reflect(double(1, 1, 2, 5), padding=(5, 0, 0, 0))


def test_second_derivative_through_a_temporary() -> None:
    """A temporary that is saved detached loses this derivative without a word."""
    op = opgen.compile(
        "op f(x: float[N]) -> y[N]\n  total[] = sum(n) x[n]**2\n  y[n] = x[n] * total[]\n"
    ).f
    x = double(3)
    torch.testing.assert_close(op(x), x * (x * x).sum())
    check_derivatives(op, x)


def test_max_pooling_of_negative_inputs_with_padding() -> None:
    x = (-1 - torch.rand(1, 2, 5, 5, dtype=torch.float64)).requires_grad_()
    settings = {"kernel_size": 3, "stride": 2, "padding": 1}
    values, index = POOL.max_pool2d(x, **settings)
    wanted, where = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    assert torch.equal(values, wanted)
    assert torch.equal(index, where)
    check_derivatives(lambda x: POOL.max_pool2d(x, **settings)[0], x)


def test_nan_in_max() -> None:
    op = opgen.compile(
        "op f(x: float[N,K]) -> y[N], index: i64[N]\n"
        "  y[n] = max(k) x[n,k]\n  index[n] = argmax(k) x[n,k]\n"
    ).f
    x = torch.tensor([[1.0, math.nan, 3, math.nan], [2, 5, 5, 1]], requires_grad=True)
    y, index = op(x)
    assert y[0].isnan()
    assert y[1] == 5
    assert index.tolist() == [1, 1]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.tolist() == [[0, 1, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_gradients_of_two_pass_beside_nan(name: str) -> None:
    """To both, as in PyTorch; of what is equal, which PyTorch shares out, to the first."""
    nan, short = math.nan, name[:3]
    op = opgen.compile(f"op f(a: float[N], b[N]) -> y[N]\n  y[n] = {short}(a[n], b[n])\n").f
    a = torch.tensor([nan, 1, nan, 1, 2, -1], requires_grad=True)
    b = torch.tensor([1, nan, nan, 2, 1, -1.0], requires_grad=True)
    mine, theirs = op(a, b), getattr(torch, name)(a, b)
    torch.testing.assert_close(mine, theirs, equal_nan=True)
    wanted = [each.tolist() for each in torch.autograd.grad(theirs.sum(), (a, b))]
    wanted[0][-1], wanted[1][-1] = 1, 0
    assert [each.tolist() for each in torch.autograd.grad(mine.sum(), (a, b))] == wanted


def test_empty_reductions_with_non_empty_output() -> None:
    op = opgen.compile(
        "op f(x: float[N,K]) -> total[N], product[N], top[N], low[N], average[N], index: i64[N]\n"
        "  total[n] = sum(k) x[n,k]\n  product[n] = prod(k) x[n,k]\n"
        "  top[n] = max(k) x[n,k]\n  low[n] = min(k) x[n,k]\n"
        "  average[n] = mean(k) x[n,k]\n  index[n] = argmax(k) x[n,k]\n"
    ).f
    x = torch.zeros(2, 0, requires_grad=True)
    total, product, top, low, average, index = op(x)
    assert total.tolist() == [0, 0]
    assert product.tolist() == [1, 1]
    assert top.tolist() == [-math.inf] * 2
    assert low.tolist() == [math.inf] * 2
    assert average.isnan().all()
    assert index.tolist() == [-1, -1]
    (gradient,) = torch.autograd.grad(total.sum() + product.sum() + top.sum(), x)
    assert gradient.shape == (2, 0)


NESTED = """
op guarded(x[N], id: int[M], jd: int[N]) -> y[N]
  y[n] = x[n] if id[jd[n]] > 0

op placed(x[N], id: int[M], jd: int[N]) -> y: i64[]
  y[] = argmax(n; id[jd[n]]) x[n]

op counted(x[N], id: int[M], jd: int[N], at: int[N]; K: size) -> y[K]
  y[at[n]] += x[n] if id[jd[n]] > 0
"""


def test_an_index_inside_a_condition_or_a_position_is_checked() -> None:
    """id[jd[n]] with jd[n] outside of id: an error, not some number."""
    ops = opgen.compile(NESTED)
    x, id_, at = torch.tensor([1.0, 8, 2, 4]), torch.tensor([1, 0, 2]), torch.tensor([0, 1, 0, 1])
    good, bad = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 9, 2, 0])
    assert ops.guarded(x, id_, good).tolist() == [1, 0, 2, 4]
    assert ops.placed(x, id_, good) == 0
    assert ops.counted(x, id_, good, at, K=2).tolist() == [3, 4]
    for call in (
        lambda: ops.guarded(x, id_, bad),
        lambda: ops.placed(x, id_, bad),
        lambda: ops.counted(x, id_, bad, at, K=2),
    ):
        with pytest.raises(IndexError, match=r"index 9 .* of 'id', which has extent 3"):
            call()


MIRRORED = """
op reflected(x[W], at: int[N]) -> y[N]
  where W >= 1
  y[n] = x[at[n] ?reflect]

op mirrored(x[W], at: int[N]) -> y[N]
  where W >= 1
  y[n] = x[at[n] ?symmetric]

op placed(x[N], at: int[N]; W: size) -> y[W]
  where W >= 1
  y[at[n] ?symmetric] += x[n]
"""


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_an_index_from_data_is_mirrored_once(width: int) -> None:
    """What one mirror throws past the other one is outside, on either side."""
    ops, x = opgen.compile(MIRRORED), torch.arange(1.0, width + 1)
    for index in range(-3 * width - 2, 4 * width + 2):
        at, one = torch.tensor([index]), torch.ones(1)
        folded = {
            "reflected": -index if index < 0 else min(index, 2 * width - 2 - index),
            "mirrored": -index - 1 if index < 0 else min(index, 2 * width - 1 - index),
        }
        for name, cell in folded.items():
            if 0 <= cell < width:
                assert getattr(ops, name)(x, at).tolist() == [cell + 1]
            else:
                with pytest.raises(IndexError, match="is outside of dimension 0 of 'x'"):
                    getattr(ops, name)(x, at)
        if 0 <= folded["mirrored"] < width:
            assert ops.placed(one, at, W=width).nonzero().tolist() == [[folded["mirrored"]]]
        else:
            with pytest.raises(IndexError, match="is outside of dimension 0 of 'y'"):
                ops.placed(one, at, W=width)


def test_the_first_fill_that_is_outside_decides() -> None:
    """Also where memory has the dims in another order."""
    op = opgen.compile(
        "op f(x[N,C,H,W]) -> y[N,C,H,W]\n  y[n,c,h,w] = x[n, c + 2 ?(-1), h + 3 ?(2), w]\n"
    ).f
    x = torch.randn(8, 16, 32, 32)
    wanted = torch.full_like(x, -1.0)
    wanted[:, :-2] = 2.0
    wanted[:, :-2, :-3] = x[:, 2:, 3:]
    assert torch.equal(op(x), wanted)
    assert torch.equal(op(x.contiguous(memory_format=torch.channels_last)), wanted)
