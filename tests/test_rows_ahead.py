"""Points ask for what the next ones read, where that is one piece of memory."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from asked_ahead import FETCH, asked_for, noting
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.emit.rows_ahead import Piece, piece
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.runtime import build, prelude, special

OPS = """
op halved(x[N,H,W,C]) -> y[N,H//2,W//2,C]
  where H >= 2, W >= 2
  y[n,h,w,c] = sum(i in 2, j in 2) x[n, 2*h + i, 2*w + j, c]

op pixels(x[N,2*H,2*W,C]) -> y[N,H,W,C]
  y[n,h,w,c] = sum(i in 2, j in 2) x[n, 2*h + i, 2*w + j, c]

op folded(x[N,(C 3),(H 8)]) -> y[N,C,H,8]
  y[n,c,h,w] = sum(k in 3) x[n, (c k), (h w)]

op copied(x[N,H,W,C]) -> y[N,H,W,C]
  y[n,h,w,c] = x[n,h,w,c]

op one_row(x[N,2*C,W]) -> y[N,C,W]
  y[n,c,w] = x[n,2*c,w] + x[n,2*c+1,w]

op overlapping(x[N,2*H + 1,2*W,C]) -> y[N,H,W,C]
  y[n,h,w,c] = sum(i in 3, j in 2) x[n, 2*h + i, 2*w + j, c]

op with_gaps(x[N,2*H,2*W,C]) -> y[N,H,W,C]
  y[n,h,w,c] = sum(j in 2) x[n, 2*h, 2*w + j, c]

op weighted(x[N,2*H,2*W,C], weight[2,2,C]) -> y[N,H,W,C]
  y[n,h,w,c] = sum(i in 2, j in 2) x[n, 2*h + i, 2*w + j, c] * weight[i,j,c]
"""
DTYPES = [
    *(torch.float32, torch.bfloat16),
    *(pytest.param(each, marks=pytest.mark.slow) for each in (torch.float64, torch.float16)),
]


def piece_of(name: str) -> Piece | None:
    (op,) = (each for each in check_source(Source(OPS, "ahead.op")) if each.name == name)
    program = rows(schedule(op, gather(op)), facts_of(op))
    found = [piece(kernel, program) for kernel in program.kernels]
    return next((each for each in found if each is not None), None)


@pytest.mark.parametrize(("name", "dim", "step"), [("pixels", 1, 2), ("folded", 1, 3)])
def test_rows_of_one_piece(name: str, dim: int, step: int) -> None:
    found = piece_of(name)
    assert found is not None
    assert (found.tensor, found.dim, found.step, found.inner) == ("x", dim, step, 1)


@pytest.mark.parametrize(
    "name", ["copied", "one_row", "overlapping", "with_gaps", "halved", "weighted"]
)
def test_others_ask_for_nothing(name: str) -> None:
    """Rows in the order of memory or read twice, pieces that are not all read, two tensors."""
    assert piece_of(name) is None


# ---------------------------------------------------------------------------- in each call
@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads there are; as many as before after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def op_of(text: str, op: str, test: str) -> Callable[..., Tensor]:
    """An op under a name of its own, with kernels that no other test has made."""
    assert f"op {op}(" in text
    name = f"{op}_{test}"
    module = opgen.compile(text.replace(f"op {op}(", f"op {name}("), f"{name}.op")
    found: Callable[..., Tensor] = getattr(module, name)
    return found


def small_cache(monkeypatch: pytest.MonkeyPatch) -> list[ctypes.CDLL]:
    """As if no tensor fit into the caches; the kernels made from now on, which note what they ask.

    Each place that is asked for is noted.
    """
    return noting(monkeypatch, FETCH, {"bytes < largest_cache ||": "bytes < 0 ||"})


def sums_of_four(x: Tensor) -> Tensor:
    return x.double().unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).sum((2, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_but_the_first_piece_is_asked_for_in_order(
    dtype: torch.dtype, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small_cache(monkeypatch)
    threads(1)
    x = torch.randn(2, 6, 8, 200, dtype=dtype)
    op_of(OPS, "pixels", f"asked_{x.element_size()}")(x)
    at = [place - x.data_ptr() for place in asked_for(made)]
    piece_bytes, whole = 2 * 8 * 200 * x.element_size(), x.numel() * x.element_size()
    assert (at[0], at) == (piece_bytes, sorted(at))
    assert max(at) < whole + piece_bytes
    lines = range((x.data_ptr() + piece_bytes) // 64 + 1, (x.data_ptr() + whole - 1) // 64)
    assert {*lines} <= {(x.data_ptr() + each) // 64 for each in at}
    shares = 4 * 6  # of a piece, times all pieces: the ends of shares may be in the same line
    assert len(at) <= whole // 64 + shares


@pytest.mark.sampled(4)
@pytest.mark.parametrize("channels", [64, 200, 1100, 2100])
def test_blocks_of_lanes_ask_in_turn(
    channels: int, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of an upsampling under autocast rounds vectors: it asks for all lines."""
    made = small_cache(monkeypatch)
    library, sources = build.library, list[str]()

    def seen(source: str) -> ctypes.CDLL:
        sources.append(source)
        return library(source)

    monkeypatch.setattr(build, "library", seen)
    monkeypatch.setattr(special, "LARGE", 1)
    threads(1)
    text = (SPECS / "upsample_nearest.op").read_text(encoding="utf-8")
    nearest = op_of(text, "upsample_nearest", f"in_turn_{channels}")
    image = torch.zeros(2, channels, 3, 4).to(memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        result = nearest(image, scale_factor=2)
    generator = torch.Generator().manual_seed(3)
    cotangent = torch.randint(-4, 4, result.shape, generator=generator).to(result.dtype)
    cotangent = cotangent.to(memory_format=torch.channels_last)
    (found,) = torch.autograd.grad(result, image, cotangent)
    assert torch.equal(found, (F.avg_pool2d(cotangent.double(), 2) * 4).float())
    assert re.search(r"LANES\) \{(\n.*){1,4}FETCH\(asked\)", sources[-1])
    start, whole = cotangent.data_ptr(), cotangent.numel() * 2
    at = [place - start for place in asked_for(made)]
    piece_bytes = 2 * 8 * channels * 2
    assert at[0] == piece_bytes
    assert max(at) < whole + piece_bytes + 2 * channels  # of each lane no more than a byte too many
    lines = range((start + piece_bytes) // 64 + 1, (start + whole - 1) // 64)
    assert {*lines} <= {(start + each) // 64 for each in at}


def test_what_is_not_one_piece_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = small_cache(monkeypatch)
    pixels = op_of(OPS, "pixels", "apart")
    whole = torch.randn(2, 12, 12, 100)
    for x in (
        whole[:, :, :, :90],
        whole[:, :, :8],
        whole.transpose(1, 2),
        whole[:, :1].expand(-1, 12, -1, -1),
        whole[:, :, :1].expand(-1, -1, 12, -1),
    ):
        torch.testing.assert_close(pixels(x).double(), sums_of_four(x), rtol=1e-5, atol=1e-5)
        assert made
        assert asked_for(made) == []
    pixels(whole)
    assert asked_for(made) != []


def test_tensors_that_the_caches_hold_are_not_asked_for() -> None:
    source = """
int64_t asked(int64_t bytes, int64_t piece, int64_t points)
{
    return asked_ahead(bytes, piece, MOST_AT_ONCE, points);
}
int64_t asked_in_turn(int64_t bytes, int64_t piece, int64_t points)
{
    return asked_ahead(bytes, piece, MOST_IN_TURN, points);
}
void set_cache(int64_t bytes) { largest_cache = bytes; }
"""
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + source)
    library.asked.restype = ctypes.c_int64

    def asked(*given: int) -> int:
        return int(library.asked(*map(ctypes.c_int64, given)))

    library.set_cache(ctypes.c_int64(1 << 20))
    assert asked((1 << 20) - 1, 1000, 10) == 0
    assert asked(1 << 20, 1000, 10) == 100
    assert asked(1 << 20, 1001, 10) == 101
    assert asked(1 << 30, (96 << 10) + 1, 10) == 0  # a piece that is gone before it is read
    library.asked_in_turn.restype = ctypes.c_int64
    assert library.asked_in_turn(*map(ctypes.c_int64, (1 << 30, 512 << 10, 512))) == 1024
    assert library.asked_in_turn(*map(ctypes.c_int64, (1 << 30, (512 << 10) + 1, 512))) == 0
    assert asked(1 << 30, 1000, 0) == 0
    assert asked(1 << 30, 0, 10) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_are_those_of_pytorch(
    dtype: torch.dtype, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over sizes with and without stretches of a row, and empty ones."""
    small_cache(monkeypatch)
    name = str(dtype).removeprefix("torch.")
    pixels, folded = (op_of(OPS, each, name) for each in ("pixels", "folded"))
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 3, 5, 7), (1, 1, 1, 1), (3, 2, 2, 33), (1, 2, 3, 1030), (2, 4, 1, 2100)]
    shapes += [(0, 2, 2, 8), (2, 0, 3, 8), (2, 3, 0, 8), (2, 3, 3, 0), (5, 16, 8, 100)]
    for count in (1, 2):
        threads(count)
        for n, h, w, c in shapes:
            x = torch.randint(-9, 9, (n, 2 * h, 2 * w, c), generator=generator).to(dtype)
            assert torch.equal(pixels(x), sums_of_four(x).to(dtype))
        for n, c, h in [(1, 1, 1), (2, 5, 3), (3, 40, 7), (0, 2, 2), (2, 0, 3), (2, 3, 0)]:
            x = torch.randint(-9, 9, (n, 3 * c, 8 * h), generator=generator).to(dtype)
            expected = x.double().unflatten(1, (-1, 3)).sum(2).unflatten(2, (-1, 8))
            assert torch.equal(folded(x), expected.to(dtype))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_for_sizes_and_channels_last(
    dtype: torch.dtype, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fold and the gradients of upsampling, whose special kernels ask."""
    monkeypatch.setattr(special, "MOST_SIZES", 10)
    made = small_cache(monkeypatch)
    name = str(dtype).removeprefix("torch.")
    fold = op_of((SPECS / "unfold.op").read_text(encoding="utf-8"), "fold", name)
    text = (SPECS / "upsample_nearest.op").read_text(encoding="utf-8")
    nearest = op_of(text, "upsample_nearest", name)
    generator = torch.Generator().manual_seed(2)
    for count in (1, 2):
        threads(count)
        for batch, channels, height, width in ((8, 10, 17, 23), (3, 9, 20, 33)):
            x = torch.randint(-4, 4, (batch, 9 * channels, height * width), generator=generator)
            wanted = F.fold(x.double(), (height, width), 3, padding=1)
            found = fold(x.to(dtype), output_size=(height, width), kernel_size=3, padding=1)
            assert torch.equal(found, wanted.to(dtype))
    assert asked_for(made)
    made.clear()
    for count, (batch, channels, height, width) in ((1, (2, 300, 8, 8)), (2, (1, 1100, 5, 6))):
        threads(count)
        image = torch.zeros(batch, channels, height, width, dtype=dtype)
        image = image.to(memory_format=torch.channels_last).requires_grad_()
        result = nearest(image, scale_factor=2)
        cotangent = torch.randint(-4, 4, result.shape, generator=generator).to(dtype)
        cotangent = cotangent.to(memory_format=torch.channels_last)
        (found,) = torch.autograd.grad(result, image, cotangent)
        assert torch.equal(found, (F.avg_pool2d(cotangent.double(), 2) * 4).to(dtype))
    assert asked_for(made)
