"""Maxima and minima of rows, which the lanes of a vector share, beside PyTorch's."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

import opgen
from guarded_memory import before_a_page
from opgen.compiler import stage_text
from opgen.errors import Source

TEXT = """op highest(x[N,W]) -> y[N]
  y[n] = max(w) x[n,w]

op lowest(x[N,W]) -> y[N]
  y[n] = min(w) x[n,w]

op both(x[N,W], z[N,W]) -> y[N], u[N]
  y[n] = max(w) x[n,w] * z[n,w]
  u[n] = min(w) (x[n,w] - z[n,w])

op filled(x[N,W]) -> y[N,W]
  y[n,w] = max(i in 3) x[n,w + 2*i - 2 ?(-inf)]

op smallest(x[N,W]) -> y[N,W]
  y[n,w] = min(i in 3) x[n,w + i - 1 ?(inf)]
"""
WIDTHS = (1, 2, 15, 16, 17, 31, 33, 70, 257)


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


def numbers(rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randn(rows, width, generator=generator).mul(50).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_extremes_of_rows(dtype: torch.dtype, ops: ModuleType) -> None:
    for width in WIDTHS:
        x = numbers(7, width, dtype)
        for each in (x, x.T.contiguous().T, numbers(7, 3 * width, dtype)[:, ::3]):
            assert torch.equal(ops.highest(each), each.amax(1))
            assert torch.equal(ops.lowest(each), each.amin(1))


def test_the_lowest_numbers_there_are(ops: ModuleType) -> None:
    for value in (-torch.inf, torch.inf):
        x = torch.full((2, 40), value)
        assert torch.equal(ops.highest(x), x[:, 0])
        assert torch.equal(ops.lowest(x), x[:, 0])
    x = torch.full((2, 40), torch.iinfo(torch.int64).min)
    assert torch.equal(ops.highest(x), x[:, 0])
    assert ops.highest(torch.zeros(2, 0)).tolist() == [-torch.inf, -torch.inf]


@pytest.mark.parametrize("at", [0, 1, 15, 16, 40, 69])
def test_nan_wins_in_every_lane(at: int, ops: ModuleType) -> None:
    x = numbers(3, 70)
    x[1, at] = torch.nan
    for found in (ops.highest(x), ops.lowest(x)):
        assert found.isnan().tolist() == [False, True, False]


SEVERAL_ROWS = """op over_planes(x[N,H,W]) -> y[N], u[N]
  y[n] = max(h,w) x[n,h,w]
  u[n] = min(h,w) x[n,h,w]

op joined(x[N,W], z[N,W]) -> y[N], u[N]
  y[n] max= x[n,w] for w in W
  y[n] max= z[n,w] for w in W
  u[n] min= x[n,w] for w in W
  u[n] min= z[n,w] for w in W
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nan_of_an_earlier_row_stays(width: int, dtype: torch.dtype) -> None:
    ops = opgen.compile(SEVERAL_ROWS)
    for row in range(3):
        x = numbers(4, 3 * width, dtype).view(4, 3, width)
        x[1, row, width // 2] = torch.nan
        for each in (x, x.mT.contiguous().mT):
            for found, wanted in zip(
                ops.over_planes(each), (x.amax((1, 2)), x.amin((1, 2))), strict=True
            ):
                assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))
        parts = x[:, row], x[:, (row + 1) % 3]
        both = torch.cat(parts, 1)
        for given in (parts, parts[::-1]):
            for found, wanted in zip(ops.joined(*given), (both.amax(1), both.amin(1)), strict=True):
                assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))


def test_several_at_once(ops: ModuleType) -> None:
    x, z = numbers(4, 90), numbers(4, 91)[:, 1:]
    y, u = ops.both(x, z)
    assert torch.equal(y, (x * z).amax(1))
    assert torch.equal(u, (x - z).amin(1))


PARTS = """op part(x: float[N,W], t: float[N]) -> y[N], u[N]
  a[n,w] = exp(x[n,w])
  y[n] = max(w if n <= w) (2*x[n,w] - t[n])
  u[n] = min(w) (a[n,w] - t[n])
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [15, 16, 17, 31, 32, 40])
def test_vectors_of_terms_end_where_memory_does(width: int, dtype: torch.dtype) -> None:
    """Of rows that begin late, and of temporaries: the last vector begins earlier."""
    part = opgen.compile(PARTS).part
    x = numbers(5, width).div(100).to(dtype)
    guarded, memory = before_a_page(x)
    t = numbers(5, 1)[:, 0].div(50).to(dtype)
    y, u = part(guarded, t)
    late = torch.where(torch.arange(width) >= torch.arange(5)[:, None], x.float(), -torch.inf)
    assert torch.equal(y, (2 * late - t.float()[:, None]).amax(1).to(dtype))
    wanted = (x.double().exp() - t.double()[:, None]).amin(1)
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(u.double(), wanted, rtol=tolerance, atol=tolerance)
    del guarded
    memory.close()


def test_names_of_the_extremes_may_be_those_of_a_spec() -> None:
    function = opgen.compile(
        "op nans(extreme: float[N,E], is_nan: float[N]) -> each[N]\n"
        "  each[term] = max(at) extreme[term, at] * is_nan[term]\n"
    ).nans
    x, z = numbers(4, 50), numbers(1, 4)[0]
    assert torch.equal(function(x, z), (x * z[:, None]).amax(1))


def test_rows_are_loops_of_lanes() -> None:
    text = stage_text(Source(TEXT), "c")
    assert text.count("EXTREMES(reduction(max") == 2
    assert text.count("EXTREMES(reduction(min") == 2
    assert text.count("EXTREME_OF_VECTORS(max_lanes") == 2
    assert text.count("EXTREME_OF_VECTORS(min_lanes") == 2


# ---------------------------------------------------------------------------- where they are
POSITIONS = """op highest_at(x[N,W]) -> y: i64[N]
  y[n] = argmax(w) x[n,w]

op lowest_at(x[N,W]) -> y: i64[N]
  y[n] = argmin(w) x[n,w]

op of_all(x[H,W]) -> y: i64[]
  y[] = argmax(h,w; h*W + w) x[h,w]
"""


@pytest.fixture(scope="module")
def positions() -> ModuleType:
    return opgen.compile(POSITIONS)


def first_best(row: list[float], sign: int) -> int:
    """The first NaN, or else the first of the best numbers."""
    best = -1
    for at, value in enumerate(row):
        if value != value:
            return at
        if best < 0 or sign * value > sign * row[best]:
            best = at
    return best


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_positions(dtype: torch.dtype, positions: ModuleType) -> None:
    for width in (*WIDTHS, 32, 64, 65, 100):
        x = numbers(7, width, dtype).div(20).round().to(dtype)  # many are equal
        for each in (x, x.T.contiguous().T, numbers(7, 3 * width, dtype)[:, ::3]):
            rows = each.tolist()
            assert positions.highest_at(each).tolist() == [first_best(row, 1) for row in rows]
            assert positions.lowest_at(each).tolist() == [first_best(row, -1) for row in rows]


@pytest.mark.parametrize("at", [0, 1, 31, 32, 33, 63, 64, 69])
def test_the_first_nan_is_the_position(at: int, positions: ModuleType) -> None:
    x = numbers(3, 70)
    x[1, at:] = torch.nan
    x[2, at] = torch.nan
    x[2, -1] = torch.inf
    for function, sign in ((positions.highest_at, 1), (positions.lowest_at, -1)):
        assert function(x).tolist() == [first_best(row, sign) for row in x.tolist()]


def test_positions_of_infinities_and_of_nothing(positions: ModuleType) -> None:
    for value in (-torch.inf, torch.inf):
        x = torch.full((2, 70), value)
        assert positions.highest_at(x).tolist() == positions.lowest_at(x).tolist() == [0, 0]
    x = torch.full((2, 70), torch.iinfo(torch.int64).min)
    x[1, 50] += 1
    assert positions.highest_at(x).tolist() == [0, 50]
    assert positions.highest_at(torch.zeros(2, 0)).tolist() == [-1, -1]


@pytest.mark.parametrize("at", [None, (0, 3), (2, 40), (4, 69)])
def test_a_position_in_several_rows(at: tuple[int, int] | None, positions: ModuleType) -> None:
    x = numbers(5, 70).div(20).round()
    if at is not None:
        x[at] = torch.nan
        x[4, 69] = torch.nan
    assert positions.of_all(x).item() == first_best(x.flatten().tolist(), 1)


@pytest.mark.parametrize("begin", [0, 5, 40])
def test_positions_in_a_part_of_a_row(begin: int) -> None:
    """Rows that begin late may have nothing, and nothing beside them is read."""
    function = opgen.compile(
        f"op late(x[N,W]) -> y: i64[N]\n  y[n] = argmax(w if w >= n + {begin}) x[n,w]\n"
    ).late
    for width in (1, 2, 30, 45, 80, 120):
        x = numbers(7, width).div(20).round()
        rows = [row[at + begin :] for at, row in enumerate(x.tolist())]
        places = [first_best(row, 1) for row in rows]
        wanted = [-1 if p < 0 else p + at + begin for at, p in enumerate(places)]
        assert function(x).tolist() == wanted


def test_names_of_the_search_may_be_those_of_a_spec() -> None:
    function = opgen.compile(
        "op each(extreme[N,E]) -> is_here: i64[N]\n"
        "  is_here[from] = argmax(is_better) extreme[from, is_better]\n"
    ).each
    x = numbers(4, 90)
    assert torch.equal(function(x), x.argmax(1))


# ---------------------------------------------------------------------------- outside
@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_infinite_outside_is_skipped(width: int, ops: ModuleType) -> None:
    x = numbers(3, width).requires_grad_()
    padded = torch.nn.functional.pad(x, (2, 2), value=-torch.inf)
    wanted = torch.stack([padded[:, 2 * i : 2 * i + width] for i in range(3)]).amax(0)
    found = ops.filled(x)
    assert torch.equal(found, wanted)
    cotangent = numbers(3, width)
    (ours,) = torch.autograd.grad(found, x, cotangent)
    (theirs,) = torch.autograd.grad(wanted, x, cotangent)
    torch.testing.assert_close(ours, theirs)  # no two numbers of a window are equal
    padded = torch.nn.functional.pad(x.detach(), (1, 1), value=torch.inf)
    wanted = torch.stack([padded[:, i : i + width] for i in range(3)]).amin(0)
    assert torch.equal(ops.smallest(x.detach()), wanted)


def test_integers_are_refused_as_before(ops: ModuleType) -> None:
    """The -inf says that the op is one of reals, also where it is skipped."""
    with pytest.raises(TypeError, match="filled: x must be float16"):
        ops.filled(torch.zeros(2, 3, dtype=torch.int64))


# ---------------------------------------------------------------------------- one cell of a row
CHOSEN = """op chosen(x[N,W], f: i64[N], g[N], z[W]) -> y[N,W]
  y[n,w] = exp(x[n,w]) + select(f[n] == w, g[n], z[w])
"""
"""What may be chosen is there in any case, and loaded before the loop."""

GUARDED = """op guarded(x[N,W], g[M]) -> y[N,W]
  y[n,w] = x[n,w] + select(n < M and w >= 1, g[n], 0) for n in N
"""
"""What is chosen is there only where it is chosen."""


def test_cells_that_lanes_choose_are_loaded_ahead() -> None:
    text = stage_text(Source(CHOSEN), "c")
    assert " g_cell = from_T(g[n * g_s0]);" in text
    assert "z_cell" not in text
    x, z, g = numbers(5, 70) / 50, numbers(1, 70)[0], numbers(1, 5)[0]
    f = torch.tensor([0, 69, 70, -1, 33])
    wanted = x.exp() + torch.where(f[:, None] == torch.arange(70), g[:, None], z)
    torch.testing.assert_close(opgen.compile(CHOSEN).chosen(x, f, g, z), wanted)


def test_cells_that_may_not_be_there_are_not() -> None:
    assert "g_cell" not in stage_text(Source(GUARDED), "c")
    x, g = numbers(5, 70), numbers(1, 3)[0]
    wanted = x.clone()
    wanted[:3, 1:] += g[:, None]
    torch.testing.assert_close(opgen.compile(GUARDED).guarded(x, g), wanted)
