"""Sums and extremes of everything: as exact and as quick as those of rows."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import opgen
from opgen import library
from opgen.errors import Source
from opgen.ir.show import show
from opgen.lang.read import read
from opgen.passes.partial_sums import with_partial_sums
from opgen.testing.cuda_on_cpu.emulated import emulated
from test_library import alone

TEXT = """op total(x[N]) -> y[]
  y[] = sum(n) x[n]

op rows(x[N,W]) -> y[]
  y[] = sum(n,w) x[n,w]*x[n,w]

op volume(x[A,B,C,D]) -> y[]
  y[] = sum(a,b,c,d) abs(x[a,b,c,d])

op highest(x[N,W]) -> y[]
  y[] = max(n,w) x[n,w]

op lowest(x[N]) -> y[]
  y[] = min(n) x[n]

op variation(x[N,W]) -> y[]
  where W >= 1
  y[] = (sum(n,w in W-1) abs(x[n,w+1] - x[n,w])) + (sum(n,w if w >= 2 and n < w) x[n,w])

op several(x[N], z[N]) -> y[]
  y[] += x[n]
  y[] += z[n]*x[n]
"""


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(TEXT)


def call(ops: ModuleType, name: str, *tensors: Tensor) -> Tensor:
    found: Tensor = getattr(ops, name)(*tensors)
    return found


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


SIZES = (0, 1, 3, 1023, 1024, 1025, 4096, 4097, 9000)


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_vectors(size: int, ops: ModuleType) -> None:
    x, z = numbers(size), numbers(size) + 1
    torch.testing.assert_close(call(ops, "total", x), x.sum())
    torch.testing.assert_close(call(ops, "several", x, z), x.sum() + (z * x).sum())
    stepped = numbers(3 * size)[::3]
    torch.testing.assert_close(call(ops, "total", stepped), stepped.sum())
    wanted = x.min() if size else torch.tensor(torch.inf, dtype=torch.float64)
    assert torch.equal(call(ops, "lowest", x), wanted)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (3, 700), (700, 3), (5000, 2)])
def test_sums_of_rows(shape: tuple[int, int], ops: ModuleType) -> None:
    x = numbers(*shape)
    torch.testing.assert_close(call(ops, "rows", x), (x * x).sum())
    torch.testing.assert_close(call(ops, "rows", x.T), (x * x).sum())
    wanted = x.max() if x.numel() else torch.tensor(-torch.inf, dtype=torch.float64)
    assert torch.equal(call(ops, "highest", x), wanted)
    if shape[1]:
        n, w = torch.meshgrid(torch.arange(shape[0]), torch.arange(shape[1]), indexing="ij")
        chosen = torch.where((w >= 2) & (n < w), x, 0.0).sum()
        variation = (x[:, 1:] - x[:, :-1]).abs().sum() + chosen
        torch.testing.assert_close(call(ops, "variation", x), variation)


def test_sums_of_volumes(ops: ModuleType) -> None:
    for shape in ((2, 3, 4, 5), (1, 1, 70, 50), (0, 3, 4, 5), (70, 80, 1, 2)):
        x = numbers(*shape)
        torch.testing.assert_close(call(ops, "volume", x), x.abs().sum())


def test_ones_are_counted(ops: ModuleType) -> None:
    """One float for all of them stops at 2^24."""
    ones = torch.ones(1).expand(2**24 + 2**20)
    assert call(ops, "total", ones).item() == 2**24 + 2**20
    ones = torch.ones(1, 1).expand(2**10 + 1, 2**14 + 2**10)
    assert call(ops, "rows", ones).item() == pytest.approx(ones.numel(), rel=1e-7)


def test_half_is_rounded_once(ops: ModuleType) -> None:
    x = torch.full((3000,), 1.0, dtype=torch.bfloat16)
    x[0] = 5
    assert call(ops, "total", x).item() == torch.tensor(3004.0).bfloat16().item()


def test_nan_wins(ops: ModuleType) -> None:
    x = numbers(40, 50)
    x[17, 3] = torch.nan
    assert call(ops, "highest", x).isnan()
    assert call(ops, "lowest", x.flatten()).isnan()


def test_integers(ops: ModuleType) -> None:
    x = torch.arange(-5000, 5001)
    assert call(ops, "total", x).item() == 0
    assert call(ops, "lowest", x).item() == -5000
    assert call(ops, "lowest", x.to(torch.uint8)).item() == 0
    empty = torch.zeros(0, dtype=torch.int32)
    assert call(ops, "lowest", empty).item() == torch.iinfo(torch.int32).max


def test_gradients(ops: ModuleType) -> None:
    x = numbers(6, 30).requires_grad_()
    (first,) = torch.autograd.grad(call(ops, "rows", x), x, create_graph=True)
    torch.testing.assert_close(first, 2 * x)
    (second,) = torch.autograd.grad(first.pow(3).sum(), x)
    torch.testing.assert_close(second, 24 * x.detach() ** 2)


def test_threads_of_a_gpu_share_the_sum_as_it_is(ops: ModuleType) -> None:
    x = numbers(9, 40, dtype=torch.float32)
    with emulated(threads=4, most_blocks=(3, 2, 2)):
        torch.testing.assert_close(call(ops, "rows", x), (x * x).sum())
        torch.testing.assert_close(call(ops, "total", x.flatten()), x.sum())


@pytest.mark.slow
def test_libraries_have_the_temporaries_too(tmp_path: Path) -> None:
    (tmp_path / "sums.op").write_text(TEXT[: TEXT.index("op volume")])
    path = library.build_library(tmp_path / "sums.op", tmp_path, ["f32"])
    operations = opgen.load(tmp_path / "sums.op").FAMILY.operations
    x = numbers(30, 50, dtype=torch.float32)
    calls = [("rows", (x,)), ("total", (x.flatten(),))]
    named = [(operations[name].registered_name, call) for name, call in calls]
    rows, total = alone(path, named, tmp_path)
    torch.testing.assert_close(rows[0], (x * x).sum())
    torch.testing.assert_close(total[0], x.sum())


def test_a_gpu_has_no_memory_for_what_it_does_not_use(ops: ModuleType) -> None:
    temporaries = ops.FAMILY.operations["rows"].temporaries
    assert [each.name for each in temporaries if each.cpu_only] == ["y_rows", "y_cells", "y_rows_"]


# ---------------------------------------------------------------------------- what is rewritten
def statements(text: str) -> list[str]:
    op = with_partial_sums(read(Source(text))[-1])
    return [line.strip() for line in show(op).splitlines() if "=" in line]


def test_what_a_sum_becomes() -> None:
    text = "op f(x[N,W]; n_row = 1) -> y[]\n  y[] = sum(n,w) n_row*x[n,w]\n"
    rows, cells, row, last = statements(text)[1:]
    assert rows == "y_rows[n] = sum(w) n_row * x[n,w]"
    assert cells.startswith("y_cells[n_row_,n_column] = sum(n_step in (N + 4095)//4096")
    assert row == "y_rows_[n_row_] = sum(n_column) y_cells[n_row_,n_column]"
    assert last == "y[] = sum(n_row_) y_rows_[n_row_]"


@pytest.mark.parametrize(
    "text",
    [
        "op f(x[N,W]) -> y[N]\n  y[n] = sum(w) x[n,w]\n",
        "op f(x[N]) -> y[2]\n  y[0] += x[n]\n  y[1] += x[n]\n",
        "op f(x[N]) -> y[]\n  y[] = prod(n) x[n]\n",
        "op f(x[N]) -> y[]: i64\n  y[] = argmax(n) x[n]\n".replace("y[]: i64", "y: i64[]"),
        "op f(x[N]) -> y[]\n  where N >= 1\n  y[] = x[0]\n",
        # an index that is checked in each call, and shown in the message
        "op f(x[N], k: int[M]) -> y[]\n  y[] = sum(m) x[k[m]]\n",
    ],
)
def test_what_stays_as_it_is(text: str) -> None:
    op = read(Source(text))[-1]
    assert with_partial_sums(op) is op
