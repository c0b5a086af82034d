"""Where extremes were is kept for gradients, or told by an output; points know their cells."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.ir.show import show
from opgen.on_demand import special_source
from opgen.passes.chosen_terms import with_chosen_terms
from opgen.passes.derive import derive
from opgen.passes.kept import keepable, keeping, with_kept

POOL = (SPECS / "pool.op").read_text(encoding="utf-8")
WINDOWS = """op f(x[N,C,H,W]; size = 3, s = 1, p = 1) -> y[N,C,OH,OW]
  where s >= 1, p >= 0, 2*p <= size, H >= size, W >= size, size >= 1
  let OH = (H + 2*p - size)//s + 1, OW = (W + 2*p - size)//s + 1
  y[n,c,i,j] = EXTREME(k in size, l in size) x[n,c, i*s + k - p ?0, j*s + l - p ?0]
"""
GREATEST = WINDOWS.replace("EXTREME", "max")
LEAST = WINDOWS.replace("EXTREME", "min")
ROWS = """op f(x[N,V]) -> y[N,W], index: i64[N,W]
  where V >= 3
  let W = V - 2
  y[n,w] = max(k in 3) x[n, w + k]
  index[n,w] = argmax(k in 3; w + k) x[n, w + k]
"""
FORMATS = (torch.contiguous_format, torch.channels_last)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def checked(text: str) -> Op:
    (op,) = check_source(Source(text, "<test>"))
    return op


def of_kept(text: str, names: tuple[str, ...]) -> str:
    """The gradient that is given these tensors, and which it reads, as text."""
    ops = check_source(Source(text, "<test>"))
    derived = next(member.op for member in derive(ops, 1) if member.path == ("f", "x"))
    found, kept = with_kept(derived, ops[0], names)
    return f"{' '.join(kept)}\n{show(found)}"


def reads(y: Tensor) -> tuple[str, ...] | None:
    """What a call kept for its gradients."""
    left = getattr(y.grad_fn, "left", None)
    return None if left is None else (*left.names, *(name for name, _, _ in left.outputs))


# ---------------------------------------------------------------------------- what is kept
def test_positions_and_outputs_that_tell_them() -> None:
    assert keepable(checked(GREATEST)).positions == ("first_y",)
    assert keepable(checked(LEAST)).telling == ()
    assert keepable(checked(ROWS)).positions == ()
    assert keepable(checked(ROWS)).telling == ("index",)
    pools = {op.name: keepable(op) for op in check_source(Source(POOL, "<test>"))}
    assert pools["max_pool2d"].telling == ("index",)
    assert pools["avg_pool2d"].positions == pools["avg_pool2d"].telling == ()


def test_a_maximum_through_which_nothing_flows_is_not_looked_for() -> None:
    text = """op f(x[N,C]) -> y[N,C]
  p[n] = max(c) x[n,c]
  y[n,c] = exp(x[n,c] - p[n]) / (sum(k) exp(x[n,k] - p[n]))
"""
    assert keepable(checked(text)).positions == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("index: i64", "index: i32"),  # it may not hold all places
        ("argmax(k in 3; w + k) x", "argmax(k in 3; w + k) 2*x"),
        ("argmax(k in 3; w + k) x", "argmin(k in 3; w + k) x"),
        ("argmax(k in 3; w + k) x", "argmax(k in 2; w + k) x"),
        ("argmax(k in 3; w + k) x", "argmax(k in 3; k) x"),  # no place
        ("argmax(k in 3; w + k) x[n, w + k]", "argmax(k in 3; w + k) x[n, w + 2 - k]"),
        ("max(k in 3) x[n, w + k]", "max(k in 3) (2*x[n, w + k])"),
        (
            "index[n,w] = argmax(k in 3; w + k) x[n, w + k]",
            "index[n,W-1-w] = argmax(k in 3; w + k) x[n, w + k] for w in W",
        ),
    ],
)
def test_outputs_that_tell_no_position(old: str, new: str) -> None:
    text = ROWS.replace(old, new)
    assert text != ROWS
    assert keepable(checked(text)).telling == ()


def test_places_outside_may_be_those_of_other_cells() -> None:
    """Of a term that is filled in the place may be that of a cell in the row before."""
    text = """op f(x[N,H,W]) -> y[N,H,W], index: i64[N,H,W]
  y[n,h,w] = max(k in 3) x[n,h, w + k - 1 MODE]
  index[n,h,w] = argmax(k in 3; h*W + w + k - 1) x[n,h, w + k - 1 MODE]
"""
    assert keepable(checked(text.replace("MODE", "?0"))).telling == ("index",)
    assert keepable(checked(text.replace("MODE", "?(5)"))).telling == ()
    assert keepable(checked(text.replace("MODE", "?clamp"))).telling == ()


def test_the_gradient_that_is_told() -> None:
    kept, text = of_kept(ROWS, ("index",)).split("\n", 1)
    assert kept == "index"
    assert "argmax" not in text
    assert "grad_x[n, index[n, w] ?drop] += grad_y[n,w] if index[n, w] >= 0" in text
    kept, text = of_kept(ROWS.replace("i64", "i32"), ("first_y",)).split("\n", 1)
    assert kept == "first_y"
    assert "argmax" not in text


def test_the_op_that_keeps_positions() -> None:
    text = show(keeping(checked(GREATEST), ("first_y",)))
    assert "-> y[N,C,OH,OW], first_y: i64[N,C,OH,OW]" in " ".join(text.split())
    assert text.count("argmax") == 1


# ---------------------------------------------------------------------------- numbers
def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Few different numbers, the least and the greatest among them.

    No NaN: of several in a window PyTorch gives the last one the gradient, and not the first.
    """
    generator = torch.Generator().manual_seed(math.prod(shape))
    x = torch.randint(0, 5, shape, generator=generator).to(dtype)
    odd = torch.rand(shape, generator=generator)
    x[odd < 0.1], x[odd > 0.98] = -math.inf, math.inf
    x[:, :2] = -math.inf
    return x


def seeds(like: Tensor) -> Tensor:
    """Integers, of which sums are what they are in any order."""
    generator = torch.Generator().manual_seed(1)
    return torch.empty_like(like).copy_(torch.randint(-3, 4, like.shape, generator=generator))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("format_", FORMATS, ids=["contiguous", "last"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", [9, 28, 33, 70])
@pytest.mark.parametrize(
    ("size", "s", "p", "d"),
    [
        (2, 2, 0, 1),
        (3, 2, 1, 1),
        (3, 1, 1, 1),
        (5, 1, 2, 1),
        (3, 1, 1, 2),
        (3, 4, 0, 1),
        (7, 3, 3, 1),
    ],
)
def test_pooling_is_that_of_pytorch(
    size: int, s: int, p: int, d: int, width: int, dtype: torch.dtype, format_: torch.memory_format
) -> None:
    call = opgen.compile(POOL).max_pool2d
    x = numbers((2, 32 if width > 20 else 80, 24, width), dtype).contiguous(memory_format=format_)
    x.requires_grad_()
    pair = [(each, each) for each in (size, s, p, d)]
    given = dict(zip(("kernel_size", "stride", "padding", "dilation"), pair, strict=True))
    theirs, places = F.max_pool2d(x, *pair, return_indices=True)
    for _ in range(2):
        y, index = call(x, **given)
        assert torch.equal(index, places)
        torch.testing.assert_close(y, theirs, rtol=0, atol=0)
        assert "index" in (reads(y) or ())
        seed = seeds(y)
        (found,) = torch.autograd.grad(y, x, seed)
        (wanted,) = torch.autograd.grad(theirs, x, seed, retain_graph=True)
        assert torch.equal(found, wanted)
        assert found.stride() == x.stride()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("format_", FORMATS, ids=["contiguous", "last"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("text", [GREATEST, LEAST], ids=["max", "min"])
@pytest.mark.parametrize(
    ("size", "s", "p"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2), (4, 3, 1)]
)
def test_extremes_of_windows(
    size: int, s: int, p: int, text: str, dtype: torch.dtype, format_: torch.memory_format
) -> None:
    call = opgen.compile(text).f
    x = numbers((3, 20, 25, 30), dtype).contiguous(memory_format=format_).requires_grad_()
    sign = 1 if text == GREATEST else -1
    theirs = sign * F.max_pool2d(sign * x, size, s, p)
    for _ in range(2):
        y = call(x, size=size, s=s, p=p)
        assert "first_y" in (reads(y) or ())
        torch.testing.assert_close(y, theirs, rtol=0, atol=0)
        seed = seeds(y)
        (found,) = torch.autograd.grad(y, x, seed)
        (wanted,) = torch.autograd.grad(theirs, x, seed, retain_graph=True)
        assert torch.equal(found, wanted)


def test_windows_in_three_dims() -> None:
    text = """op f(x[N,C,D,H,W]) -> y[N,C,D,H,W], index: i64[N,C,D,H,W]
  with d = i + a - 1, h = j + b - 1, w = l + e - 1
  y[n,c,i,j,l] = max(a in 3, b in 3, e in 3) x[n,c, d ?0, h ?0, w ?0]
  with d = i + a - 1, h = j + b - 1, w = l + e - 1
  index[n,c,i,j,l] = argmax(a in 3, b in 3, e in 3; (d*H + h)*W + w) x[n,c, d ?0, h ?0, w ?0]
"""
    call = opgen.compile(text).f
    for format_ in (torch.contiguous_format, torch.channels_last_3d):
        x = numbers((2, 5, 12, 18, 20), torch.float32).contiguous(memory_format=format_)
        x.requires_grad_()
        # Of equal ones PyTorch takes the first in contiguous format alone.
        theirs = F.max_pool3d(x.contiguous(), 3, 1, 1)
        for _ in range(2):
            y, _ = call(x)
            assert "index" in (reads(y) or ())
            seed = seeds(y)
            (found,) = torch.autograd.grad(y, x, seed)
            (wanted,) = torch.autograd.grad(theirs, x, seed, retain_graph=True)
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("term", ["(k+1)*x[n, v + k]", "x[n, v + k]/(k+1)", "x[n, v + k] - k"])
def test_terms_with_numbers_of_their_own(term: str) -> None:
    text = f"""op f(x[N,W]) -> y[N,V]
  where W >= 5
  let V = W - 4
  y[n,v] = max(k in 5) ({term})
"""
    call, k = opgen.compile(text).f, torch.arange(5.0)
    for shape in ((30, 300), (30, 3000)):
        x = torch.randn(shape, requires_grad=True)
        windows = x.unfold(1, 5, 1)
        each = {"(": windows * (k + 1), "x": windows / (k + 1)}
        theirs = (each[term[0]] if "-" not in term else windows - k).amax(-1)
        for _ in range(2):
            y = call(x)
            torch.testing.assert_close(y, theirs)
            seed = seeds(y)
            found, wanted = (
                torch.autograd.grad(each, x, seed, retain_graph=True)[0] for each in (y, theirs)
            )
            torch.testing.assert_close(found, wanted)


def test_images_that_are_turned() -> None:
    """Dims that are one number of cells need not be one in memory."""
    call = opgen.compile(POOL).max_pool2d
    whole = numbers((4, 40, 40, 60), torch.float32)
    for x in (whole.transpose(2, 3), whole[:, :, ::2], whole[..., 5:47], whole.transpose(0, 1)):
        x = x.detach().requires_grad_()
        theirs = F.max_pool2d(x, 3, 1, 1)
        for _ in range(2):
            y, _ = call(x, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
            assert "index" in (reads(y) or ())
            seed = seeds(y)
            (found,) = torch.autograd.grad(y, x, seed)
            (wanted,) = torch.autograd.grad(theirs, x, seed, retain_graph=True)
            assert torch.equal(found, wanted)


def test_windows_without_any_cell() -> None:
    """Their position is -1, and their gradient nobody's."""
    text = """op f(x[N,W]) -> y[N,V], index: i64[N,V]
  let V = W + 8
  y[n,v] = max(k in 3) x[n, v + k - 6 ?0]
  index[n,v] = argmax(k in 3; v + k - 6) x[n, v + k - 6 ?0]
"""
    x = torch.randn(300, 150, requires_grad=True)
    for ops in (opgen.compile(text), opgen.compile(text.replace("i64", "i32"))):
        for _ in range(2):
            y, index = ops.f(x)
            assert {"index", "first_y"} & {*(reads(y) or ())}
            empty = index == -1
            assert empty.sum() == 300 * 6 and (y[empty] == -math.inf).all()
            seed = seeds(y)
            (found,) = torch.autograd.grad(y, x, seed)
            wanted = torch.zeros_like(x).scatter_add_(1, index.long().clamp(0), seed * ~empty)
            assert torch.equal(found, wanted)


# ---------------------------------------------------------------------------- other ways
def pooled(x: Tensor) -> Tensor:
    y: Tensor = opgen.compile(POOL).max_pool2d(
        x, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1)
    )[0]
    return y


def test_an_output_that_was_changed_tells_nothing() -> None:
    call = opgen.compile(POOL).max_pool2d
    x = torch.randn(2, 16, 40, 40, requires_grad=True)
    wanted = torch.autograd.grad(F.max_pool2d(x, 3, 2, 1).sum(), x)[0]
    for _ in range(2):
        y, index = call(x, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))
        assert "index" in (reads(y) or ())
        index.zero_()
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], wanted)


def test_gradients_of_gradients_and_along_directions() -> None:
    x = torch.randn(2, 16, 40, 40, dtype=torch.float64, requires_grad=True)

    def second(call: Any) -> Tensor:
        (first,) = torch.autograd.grad((call(x) ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad((first**2).sum(), x)[0]

    theirs = lambda x: F.max_pool2d(x, 3, 2, 1)  # noqa: E731
    torch.testing.assert_close(second(pooled), second(theirs))
    along = torch.randn_like(x)
    mine = torch.func.jvp(pooled, (x.detach(),), (along,))
    for one, other in zip(mine, torch.func.jvp(theirs, (x.detach(),), (along,)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_graph_that_is_kept_and_one_that_is_made_again() -> None:
    x = torch.randn(2, 16, 40, 40, requires_grad=True)
    wanted = torch.autograd.grad(F.max_pool2d(x, 3, 2, 1).sum(), x)[0]
    y = pooled(x)
    for keep in (True, True, False):
        (found,) = torch.autograd.grad(y.sum(), x, retain_graph=keep)
        assert torch.equal(found, wanted)
    assert reads(y) is None
    y = checkpoint(pooled, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], wanted)


def test_the_position_without_its_maximum_has_no_gradient() -> None:
    call = opgen.compile(POOL).max_pool2d
    x = torch.randn(2, 16, 40, 40, requires_grad=True)
    y, index = call(x, kernel_size=(3, 3), stride=(2, 2))
    assert y.requires_grad and not index.requires_grad


def test_a_maximum_behind_the_position() -> None:
    """The outputs may come in any order."""
    text = ROWS.replace("y[N,W], index: i64[N,W]", "index: i64[N,W], y[N,W]")
    call = opgen.compile(text).f
    x = torch.randn(300, 150, requires_grad=True)
    wanted = torch.autograd.grad(F.max_pool1d(x, 3, 1).sum(), x)[0]
    for _ in range(2):
        _, y = call(x)
        assert "index" in (reads(y) or ())
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], wanted)


# ---------------------------------------------------------------------------- terms that are chosen
CHOSEN = """op f(at: i64[N,C,H,W], g[N,C,H,W]; K = 3, L = 5, s = 1) -> y[N,C,H,W]
  where K >= 1, L >= 1, s >= 1
  y[n,c, i*s + k - 1 ?drop, j + l - 2 ?drop] += select(at[n,c,i,j] == L*k + l, g[n,c,i,j], 0)
      for k in K, l in L
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("format_", FORMATS, ids=["contiguous", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 6, 7), (2, 16, 20, 60)], ids=["small", "large"])
def test_numbers_of_no_term_choose_none(
    shape: tuple[int, ...], dtype: torch.dtype, format_: torch.memory_format
) -> None:
    torch.manual_seed(0)
    at = torch.randint(-3, 20, shape).contiguous(memory_format=format_)
    at[0, 0, 0, :5] = torch.tensor([2**62, -(2**63), 15, -1, 2**32])
    g = seeds(at).to(dtype)
    wanted = torch.zeros(shape, dtype=torch.float64)
    for n, c, i, j in itertools.product(*map(range, shape)):
        k, l = divmod(int(at[n, c, i, j]), 5)
        h, w = i + k - 1, j + l - 2
        if 0 <= k < 3 and 0 <= h < shape[2] and 0 <= w < shape[3]:
            wanted[n, c, h, w] += float(g[n, c, i, j])
    assert torch.equal(opgen.compile(CHOSEN).f(at, g).double(), wanted)


def test_which_sums_are_made_of_chosen_terms() -> None:
    def is_made(text: str) -> bool:
        (op,) = check_source(Source(text, "<test>"))
        return with_chosen_terms(op) != op

    assert is_made(CHOSEN)
    assert not is_made(CHOSEN.replace("g[n,c,i,j], 0)", "g[n,c,i,j], 1)"))
    assert not is_made(CHOSEN.replace("L*k + l,", "L*k + l + 1,"))
    assert not is_made(CHOSEN.replace("g[n,c,i,j], 0)", "(k+1)*g[n,c,i,j], 0)"))
    assert not is_made(CHOSEN.replace("L*k + l,", "K*l + L*k,"))
    assert not is_made(
        CHOSEN.replace("g[N,C,H,W];", "g[N,C,H,W], m[K];").replace(
            "g[n,c,i,j], 0)", "g[n,c,i,j]*m[k], 0)"
        )
    )
    # Cells of one window at most, and a single image.
    side_by_side = """op f(at: i64[N,W], g[N,W]) -> y[N,(W 3)]
  y[n,(w k)] += select(at[n,w] == k, g[n,w], 0)
"""
    assert not is_made(side_by_side)
    alone = """op f(at: i64[W], g[W]) -> y[W]
  y[w + k ?drop] += select(at[w] == k, g[w], 0) for k in 3
"""
    assert not is_made(alone)
    assert is_made(alone.replace("[W]", "[N,W]").replace("[w", "[n,w"))


def test_cells_that_are_read_from_memory_are_no_vectors() -> None:
    text = special_source(CHOSEN, "<spec>", ("f",), {"K": 3, "L": 5, "s": 1}, 0b111)
    loop = text[text.index("KERNEL void f_y_total(") :].split("+=", 1)[0]
    assert "for (int64_t c" in loop
    assert "INDEPENDENT" not in loop


def test_numbers_in_channels_last_format() -> None:
    """What is part of an index lies as it lies in memory, too."""
    text = """op f(x[N,C,H,W], at: i64[N,C,H,W]) -> y[N,C,H,W]
  y[n,c,h,w] = x[n,c,h, at[n,c,h,w]]
op g(x[N,C,H,W], at: i64[N,C,H,W], b[C]) -> y[N,C,H,W]
  y[n,c,h,w] = x[n,c,h,w] + b[c] if at[n,c,h,w] > w
"""
    ops = opgen.compile(text)
    torch.manual_seed(0)
    x, at = torch.randn(2, 18, 30, 40), torch.randint(40, (2, 18, 30, 40))
    b, w = torch.randn(18), torch.arange(40)
    gathered = torch.gather(x, 3, at)
    guarded = torch.where(at > w, x + b[:, None, None], 0)
    for one, other in itertools.product(FORMATS, FORMATS):
        given = x.contiguous(memory_format=one), at.contiguous(memory_format=other)
        assert torch.equal(ops.f(*given), gathered)
        assert torch.equal(ops.g(*given, b), guarded)
        with pytest.raises(IndexError, match="f: index"):
            ops.f(given[0], given[1].clone().index_fill_(1, torch.tensor([7]), 40))
