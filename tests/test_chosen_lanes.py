"""Extremes over windows, where they are, and their gradients: in loops over vectors on the CPU."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
from torch import Tensor

import opgen
from opgen.algebra.condition import Condition
from opgen.algebra.poly import symbol
from opgen.ir.liveness import is_read_behind
from opgen.ir.loops import (
    Accumulate,
    Axis,
    For,
    If,
    Kernel,
    Lanes,
    Load,
    Node,
    Program,
    Result,
    Row,
    Start,
    Store,
)
from opgen.ir.notation import Reducer
from opgen.on_demand import special_source
from opgen.passes.narrow_positions import with_narrow_positions
from opgen.paths import op_of
from opgen.programs import special_along_rows

WINDOWS = """
op extremes(x[N,C,H,W]; s = 1, p = 1)
    -> high[N,C,OH,OW], low[N,C,OH,OW], top: i64[N,C,OH,OW], bottom: i64[N,C,OH,OW]
  where s >= 1, p >= 0, p <= 1, H >= 3, W >= 3
  let OH = (H + 2*p - 3)//s + 1, OW = (W + 2*p - 3)//s + 1
  high[n,c,i,j] = max(k in 3, l in 3) x[n,c, i*s + k - p ?0, j*s + l - p ?0]
  low[n,c,i,j] = min(k in 3, l in 3) x[n,c, i*s + k - p ?0, j*s + l - p ?0]
  with h = i*s + k - p, w = j*s + l - p
  top[n,c,i,j] = argmax(k in 3, l in 3; h*W + w) x[n,c, h ?0, w ?0]
  bottom[n,c,i,j] = argmin(k in 3, l in 3; 3*k + l) x[n,c, i*s + k - p ?0, j*s + l - p ?0]
op highest(x[N,C,H,W]; size = 3, s = 1, p = 1) -> y[N,C,OH,OW]
  where s >= 1, p >= 0, 2*p <= size, H >= size, W >= size, size >= 1
  let OH = (H + 2*p - size)//s + 1, OW = (W + 2*p - size)//s + 1
  y[n,c,i,j] = max(k in size, l in size) x[n,c, i*s + k - p ?0, j*s + l - p ?0]
op higher(x[N,C,W], b[C]) -> y[N,C,W]
  y[n,c,w] = max(k in 3) (x[n,c, w + k - 1 ?0] + b[c])
"""

FORMATS = [torch.contiguous_format, torch.channels_last]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.uint8]


def terms(x: Tensor, size: int, s: int, p: int) -> list[tuple[int, int, Tensor, Tensor]]:
    """The terms of all windows one by one: `k`, `l`, the elements, and which of them are there."""
    *_, height, width = x.shape
    rows = torch.arange((height + 2 * p - size) // s + 1) * s - p
    columns = torch.arange((width + 2 * p - size) // s + 1) * s - p
    found = []
    for k, l in itertools.product(range(size), range(size)):
        h, w = rows + k, columns + l
        inside = ((h >= 0) & (h < height))[:, None] & ((w >= 0) & (w < width))
        there = x[..., h.clamp(0, height - 1), :][..., w.clamp(0, width - 1)]
        found.append((k, l, there, inside.expand(there.shape)))
    return found


def by_hand(x: Tensor, size: int, s: int, p: int, greatest: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The extreme of each window, and the `k` and `l` of the first term that holds it.

    NaN is an extreme before all others.
    """
    windows = terms(x, size, s, p)
    *_, best, _ = windows[0]
    seen = torch.zeros(best.shape, dtype=torch.bool)
    row = column = torch.full(best.shape, -1)
    for k, l, term, inside in windows:
        beats = term > best if greatest else term < best
        better = inside & (~seen | beats | (term.isnan() & ~best.isnan()))
        best = torch.where(better, term, best)
        row, column = (torch.where(better, at, was) for at, was in ((k, row), (l, column)))
        seen = seen | inside
    return best, row, column


def numbers(shape: tuple[int, ...], dtype: torch.dtype, format_: torch.memory_format) -> Tensor:
    """Few different numbers, the least, the greatest and NaN among them."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    x = torch.randint(0, 5, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        odd = torch.rand(shape, generator=generator)
        x[odd < 0.1], x[odd > 0.98] = -math.inf, math.inf
        x[(odd > 0.5) & (odd < 0.52)] = math.nan
        x[:, :2] = -math.inf
    elif dtype is not torch.uint8:
        x[:, :2] = torch.iinfo(dtype).min
    return x.contiguous(memory_format=format_)


@pytest.mark.sampled(48)
@pytest.mark.parametrize("width", [3, 8, 17, 55], ids="W{}".format)
@pytest.mark.parametrize(("s", "p"), [(1, 1), (2, 1), (2, 0), (3, 1)])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("format_", FORMATS, ids=str)
def test_extremes_and_where_they_are(
    width: int, s: int, p: int, dtype: torch.dtype, format_: torch.memory_format
) -> None:
    x = numbers((2, 19, 5, width), dtype, format_)
    high, low, top, bottom = opgen.compile(WINDOWS).extremes(x, s=s, p=p)
    best, row, column = by_hand(x, 3, s, p, greatest=True)
    torch.testing.assert_close(high, best, rtol=0, atol=0, equal_nan=True)
    h = torch.arange(best.shape[2])[:, None] * s + row - p
    w = torch.arange(best.shape[3]) * s + column - p
    assert torch.equal(top, h * width + w)
    best, row, column = by_hand(x, 3, s, p, greatest=False)
    torch.testing.assert_close(low, best, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(bottom, 3 * row + column)


@pytest.mark.sampled(32)
@pytest.mark.parametrize("width", [6, 19, 28, 35], ids="W{}".format)
@pytest.mark.parametrize(("size", "s", "p"), [(3, 2, 1), (3, 1, 1), (2, 2, 0), (5, 1, 2)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("format_", FORMATS, ids=str)
def test_gradients_go_to_the_first_of_the_greatest(
    width: int, size: int, s: int, p: int, dtype: torch.dtype, format_: torch.memory_format
) -> None:
    x = numbers((2, 18, 7, width), dtype, format_).requires_grad_()
    y = opgen.compile(WINDOWS).highest(x, size=size, s=s, p=p)
    generator = torch.Generator().manual_seed(1)
    seed = torch.randint(-3, 4, y.shape, generator=generator).to(dtype)
    (found,) = torch.autograd.grad(y, x, seed.contiguous(memory_format=format_))
    wanted = torch.zeros(x.shape, dtype=torch.float64)
    _, row, column = by_hand(x.detach(), size, s, p, greatest=True)
    for n, c, i, j in itertools.product(*map(range, y.shape)):
        h, w = i * s + int(row[n, c, i, j]) - p, j * s + int(column[n, c, i, j]) - p
        wanted[n, c, h, w] += float(seed[n, c, i, j])
    assert torch.equal(found.double(), wanted)


def test_computed_terms_and_steps_of_any_kind() -> None:
    ops = opgen.compile(WINDOWS)
    torch.manual_seed(0)
    wide = torch.randn(2, 3, 90)
    for x in (wide[..., :45], wide[..., ::2], wide.transpose(0, 1).contiguous().transpose(0, 1)):
        b = torch.randn(3)
        padded = torch.nn.functional.pad(x, (1, 1)) + b[:, None]  # a part of a term is there
        wanted = padded.unfold(2, 3, 1).amax(-1)
        assert torch.equal(ops.higher(x, b), wanted)


@pytest.mark.parametrize("step", [2, 2**29, 2**31 - 1, 2**31, 2**40])
def test_positions_that_no_lane_holds(step: int) -> None:
    text = f"""op given(x[N,W]; step = 1) -> y: i64[N,V]
  let V = W - 4
  y[n,v] = argmax(k in 5; step*k + v) x[n,v + k]
op known(x[N,W]) -> y: i64[N,V]
  let V = W - 4
  y[n,v] = argmax(k in 5; {min(step, 2**31 - 1)}*k + v) x[n,v + k]
"""
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(step))
    first = x.unfold(1, 5, 1).argmax(-1)
    ops = opgen.compile(text)
    assert torch.equal(ops.given(x, step=step), first * step + torch.arange(46))
    assert torch.equal(ops.known(x), first * min(step, 2**31 - 1) + torch.arange(46))


@pytest.mark.parametrize("step", [1, 53687091, 53687092, 2**31 - 1])
def test_positions_in_loops_that_no_lane_holds(step: int) -> None:
    text = f"""op f(x[N,V]) -> y[N,W], index: i64[N,W]
  where V >= 41
  let W = V - 40
  y[n,w] = max(k in 41) x[n, w + k]
  index[n,w] = argmax(k in 41; k*{step} + w) x[n, w + k]
"""
    x = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    y, index = opgen.compile(text).f(x)
    first = x.unfold(1, 41, 1).argmax(-1)
    assert torch.equal(y, x.unfold(1, 41, 1).amax(-1))
    assert torch.equal(index, first * step + torch.arange(60))


@pytest.mark.parametrize(
    ("d", "e"), [(-5, 5), (2**40, -(2**40)), (2**32, 1), (2**28, 2**28), (-(2**28), 2**28)]
)
def test_positions_of_steps_of_any_sign(d: int, e: int) -> None:
    text = """op f(x[N,H,V]; K = 7, L = 7, d = 1, e = 1) -> index: i64[N,G,W]
  where K >= 1, L >= 1, H >= K, V >= L
  let G = H - K + 1, W = V - L + 1
  index[n,h,w] = argmax(k in K, l in L; k*d + l*e) x[n, h + k, w + l]
"""
    x = torch.randn(4, 20, 50, generator=torch.Generator().manual_seed(0))
    first = x.unfold(1, 7, 1).unfold(2, 7, 1).flatten(-2).argmax(-1)
    call = opgen.compile(text).f
    for given in (x, x.repeat(9, 1, 1)):  # with kernels for all sizes, and for these
        wanted = (first // 7 * d + first % 7 * e).repeat(len(given) // 4, 1, 1)
        assert torch.equal(call(given, d=d, e=e), wanted)


UNEVEN = """
op by_division(x[N,W]; s: size) -> y: i64[N,V]
  where s >= 1
  let V = W - 4
  y[n,v] = argmax(k in 5; k + v//s) x[n,v + k]
op by_square(x[N,W]) -> y: i64[N,V]
  let V = W - 4
  y[n,v] = argmax(k in 5; k + v*v) x[n,v + k]
op by_table(x[N,W], at: i64[V]) -> y: i64[N,V]
  where W == V + 4
  y[n,v] = argmax(k in 5; k + at[v]) x[n,v + k]
"""


def test_positions_that_are_not_evenly_apart() -> None:
    ops = opgen.compile(UNEVEN)
    torch.manual_seed(0)
    x, at = torch.randn(40, 200), torch.randint(100, (196,))
    first, v = x.unfold(1, 5, 1).argmax(-1), torch.arange(196)
    assert torch.equal(ops.by_division(x, s=7), first + v // 7)
    assert torch.equal(ops.by_square(x), first + v * v)
    assert torch.equal(ops.by_table(x, at), first + at)


def test_numbers_that_no_narrow_position_is() -> None:
    text = """op f(x[N,C,H,W], g[N,C,H,W]; s = 1) -> y[N,C,H,W]
  where s >= 0
  tmp f: i64[N,C,H,W]
  f[n,c,h,w] = argmax(k in 3; k) x[n,c,h, w + k - 1 ?0]
  y[n,c,h,w] = sum(k in 3) select(f[n,c,h,w] == k + 65536*s, g[n,c,h,w], 0)
"""
    torch.manual_seed(0)
    x, g = torch.randn(4, 8, 30, 60), torch.randn(4, 8, 30, 60)
    call = opgen.compile(text).f
    assert not call(x, g, s=1).any()
    assert torch.equal(call(x, g, s=0), g)


CHOSEN_AND_OTHERS = """op f(f: i64[N,C,H,W], g: float[N,C,H,W], b: float[C]; size = 5)
    -> y[N,C,H,W], z[N,C,H,W]
  where size >= 1
  y[n,c,i+k-2 ?drop, w+l-2 ?drop] += select(f[n,c,i,w] == size*k + l + 1, g[n,c,i,w], 0)
      for k in size, l in size
  z[n,c,i+k-2 ?drop, w+l-2 ?drop] += g[n,c,i,w] + b[c] for k in size, l in size
"""


def test_what_the_last_vectors_of_a_pass_leave_alone() -> None:
    text = special_source(CHOSEN_AND_OTHERS, "<spec>", ("f",), {"size": 5, "H": 14, "W": 14}, 0)
    (first, *others) = re.findall(r"real (\w+)\[30\];", text)  # 14, and a vector more
    assert others
    assert f"lanes_to_wide(&{first}[" in text
    # What is no choice is added in its own lanes; and there may be none.
    assert re.search(r"\+= lanes_only\(lanes_within\(&g\[.*, low, high\);", text, re.DOTALL)
    assert "if (high < low) continue;" in text


@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("width", [14, 20, 40])
def test_other_sums_of_a_pass_that_goes_on(size: int, width: int) -> None:
    torch.manual_seed(0)
    f = torch.randint(1, size * size + 1, (2, 3, 14, width))
    g, b = torch.randint(-9, 10, f.shape).float(), torch.tensor([1.0, 2.0, 3.0])
    y, z = opgen.compile(CHOSEN_AND_OTHERS).f(f, g, b, size=size)
    padded = torch.zeros(2, 2, 3, 14 + 2 * size, width + 2 * size)
    for k, l in itertools.product(range(size), range(size)):
        rows, columns = (
            slice(size + k - 2, size + k + 12),
            slice(size + l - 2, size + l - 2 + width),
        )
        padded[0, :, :, rows, columns] += torch.where(f == size * k + l + 1, g, 0)
        padded[1, :, :, rows, columns] += g + b[:, None, None]
    inside = padded[..., size : size + 14, size : size + width]
    assert torch.equal(y, inside[0])
    assert torch.equal(z, inside[1])


@pytest.mark.parametrize("size", [3, 9, 14, 30])
def test_passes_without_any_lane(size: int) -> None:
    """Terms of which one factor is there, and terms of which none is."""
    text = """op f(a[N,W], b[N,W]; size = 3) -> y[N,W], z[N,W]
  where size >= 1
  y[n,j] = max(k in size if j + k < W and j >= k) (a[n,j+k] * b[n,j-k])
  z[n,j] = max(k in size) (a[n,j+k ?0] * b[n,j-k ?0])
"""
    torch.manual_seed(size)
    for width in (5, 14, 31):
        a, b = torch.randn(3, width), torch.randn(3, width)
        y, z = opgen.compile(text).f(a, b, size=size)
        for j in range(width):
            there = [a[:, j + k] * b[:, j - k] for k in range(size) if j + k < width and j >= k]
            best = torch.stack(there).amax(0)
            assert torch.equal(y[:, j], best)
            assert ((z[:, j] == best) | (z[:, j] == 0)).all()


def test_integers_that_are_absent() -> None:
    text = """op f(x[N,C], f: i64[N,C] = 1; K: size) -> y[N,C]
  y[n,c] = sum(k in K) select(f[n,c] == k, x[n,c], 0)
"""
    assert "lanes_where" not in special_source(text, "<spec>", ("f",), {}, 0)
    call, x = opgen.compile(text).f, torch.randn(40, 200)
    assert torch.equal(call(x, K=3), x)
    assert not call(x, K=1).any()


# ---------------------------------------------------------------------------- which passes
def text_of(path: tuple[str, ...], layout: int = 0, **sizes: int) -> str:
    """The C of an op of the spec for known sizes."""
    return special_source(WINDOWS, "<spec>", path, sizes, layout)


def test_which_passes_are_vectors() -> None:
    given = {"s": 2, "p": 1, "size": 3, "H": 99, "W": 90}
    text = text_of(("highest",), **given)
    assert re.search(r"greatest_lanes\(every_second\(&x\[", text)
    assert "lanes_to_T_within(" in text  # rows of less than a vector
    text = text_of(("highest", "x"), **given)
    assert re.search(r"greatest_lanes_at\(.*positions_to_narrow\(&first_y", text, re.DOTALL)
    assert "lanes_where_narrow_within(&first_y" in text
    # In channels-last format sums of chosen terms stay in registers.
    text = text_of(("highest", "x"), layout=0b111, s=2, p=1, size=3)
    assert re.search(r"total \+= lanes_where_narrow\(&first_y", text)
    # Rows of small images hold a vector through all terms,
    text = text_of(("highest",), s=1, p=2, size=5, H=14, W=14)
    assert "greatest_lanes_within(" in text
    text = text_of(("highest", "x"), s=1, p=2, size=5, H=14, W=14)
    assert "greatest_lanes_at_within(" in text
    # and those of others whose windows are not whole go on with what they have.
    text = text_of(("highest",), s=2, p=1, size=3)
    assert "known_within(" in text
    assert "greatest_in_arrays(" in text_of(("highest", "x"), s=2, p=1, size=3)


def test_windows_side_by_side_store_by_turns() -> None:
    text = text_of(("highest", "x"), size=2, s=2, p=0, H=28, W=28)
    assert re.search(r"turns_to_T\(&grad_x\[[^]]*\],\s*lanes_where_narrow_within\(&first_y", text)
    # A store that is no choice leaves all to the compiler.
    text = text_of(("highest",), size=2, s=2, p=0, H=28, W=28)
    assert "turns_to_T" not in text


def test_a_maximum_and_its_position_are_one_pass() -> None:
    text = special_source(WINDOWS, "<spec>", ("extremes",), {"s": 1, "p": 0, "H": 9, "W": 40}, 0)
    assert text.count("KERNEL void") == 2  # the greatest with the least, and where both are


def test_cells_of_other_shapes_are_not_loaded_unasked() -> None:
    """What is added where an integer is a number may lie outside where it is not."""
    text = """op pick(f: i64[N], x[M]) -> y[N]
  y[n] = sum(k in 3) select(f[n] == k, x[n + 5*k ?0], 0)
"""
    assert "lanes_where" not in special_source(text, "<spec>", ("pick",), {}, 0).split("KERNEL")[1]
    f = torch.tensor([0, 2, 1, 5, 2, 0] * 9)
    x = torch.arange(20.0)
    wanted = [
        float(x[n + 5 * k]) if k < 3 and n + 5 * k < 20 else 0.0 for n, k in enumerate(f.tolist())
    ]
    assert opgen.compile(text).pick(f, x).tolist() == wanted


# ---------------------------------------------------------------------------- what is read behind
START, JOIN = Start("a", "y", Reducer.MAX), Accumulate("a", Reducer.MAX, Load("x", (symbol("j"),)))
STORE = Store("y", (symbol("j"),), Result("a"))
OWN = Lanes((), (), (START, JOIN, STORE))
BEGIN, GO_ON, END = Lanes((), (), (START,)), Lanes((), (), (JOIN,)), Lanes((), (), (STORE,))
PART = Lanes((), (symbol("last"),), (START, JOIN, STORE))
SOMETIMES = (Condition(symbol("i")),)


def loop(*body: Node) -> For:
    return For("k", (symbol("k0"),), (symbol("k1"),), body)


@pytest.mark.parametrize(
    ("body", "is_read"),
    [
        ((OWN,), False),
        ((OWN, END), True),
        ((OWN, GO_ON, END), True),
        ((OWN, BEGIN, GO_ON, END), False),
        ((OWN, PART, END), True),  # lanes behind the part are as they were
        ((If(SOMETIMES, (OWN,)), If(SOMETIMES, (BEGIN, GO_ON, END))), False),
        ((If(SOMETIMES, (OWN,)), If(SOMETIMES, (BEGIN,)), END), True),
        ((loop(OWN),), False),
        ((loop(GO_ON, OWN),), True),  # in the next round
        ((loop(BEGIN, GO_ON, END, OWN),), False),
        ((OWN, OWN), True),  # which one is meant is not known
    ],
)
def test_what_is_read_behind_a_pass(body: tuple[Node, ...], is_read: bool) -> None:
    row = Row(Axis("j", symbol("W")), "j_first", "j_last", 64)
    kernel = Kernel("k", "y", (), (), body, row=row)
    assert is_read_behind(kernel, OWN, "a") is is_read


# ---------------------------------------------------------------------------- positions in 16 bits
def narrow(text: str, path: tuple[str, ...], **values: int) -> list[str]:
    """The temporaries of a derived op in 16 bits."""
    op = op_of(text, "<spec>", path)
    program: Program = special_along_rows(op, op_of(text, "<spec>", path[:1]), values, 0)[0]
    assert with_narrow_positions(program) == program
    return [each.name for each in program.operands if each.narrow]


def test_which_positions_are_narrow() -> None:
    given = {"s": 1, "p": 0, "H": 400, "W": 400}
    assert narrow(WINDOWS, ("highest", "x"), size=3, **given) == ["first_y"]
    assert narrow(WINDOWS, ("highest", "x"), size=5, **given) == ["first_y"]
    text = "op most(x: float[N,C,W]) -> y[N,W]\n  where C >= 1\n  y[n,w] = max(c) x[n,c,w]\n"
    assert narrow(text, ("most", "x"), W=40) == []  # of as many channels as a call has
    # Indices are integers of 64 bits.
    text = """op taken(x: float[N,W], t: float[9]) -> y[N,W]
  tmp f: i64[N,W]
  f[n,w] = argmax(k in 3; k) x[n, w + k - 1 ?0]
  y[n,w] = t[f[n,w]]
"""
    assert narrow(text, ("taken",), W=40) == []
