"""Short rows of which a tensor says where they are: large calls have kernels for their lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import opgen
from opgen.ir.loops import Lanes, walk
from opgen.passes.specialise import rows_of_points, sizes_of_products, specialise
from opgen.programs import along_rows, for_cpu, scheduled
from opgen.runtime import Operation
from written_anew import read

MESSAGES = """op f(x: float[N,D], s[E], i: int[E], j: int[E]) -> y[N,D]
  y[j[e],d] += s[e]*x[i[e],d]
"""
LARGEST = """op f(x: float[N,D], s[E], i: int[E], j: int[E]) -> y[N,D]
  y[j[e],d] max= s[e]*x[i[e],d]
"""
MODES = MESSAGES.replace("y[j[e],d] +=", "y[j[e] ?drop,d] +=").replace("x[i[e],d]", "x[i[e] ?0,d]")
SHIFTED = """op f(x: float[N,D], i: int[E]) -> y[E,D]
  where D >= 1
  y[e,d] = x[i[e] + D - 1, d]
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))


def made(text: str) -> tuple[Callable[..., Tensor], Operation]:
    """The op, and what is known of it."""
    module = opgen.compile(text)
    return module.f, module.FAMILY.operations["f"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (MESSAGES, ("D",)),
        (MODES, ("D",)),
        ("op f(x[N], j: int[E]) -> y[E]\n  y[e] = x[j[e]]\n", ()),
        ("op f(x[N,4], j: int[E]) -> y[E,4]\n  y[e,d] = x[j[e],d]\n", ()),
        ("op f(x[N,D], j: int[D]) -> y[N,D]\n  y[n,d] = x[n,j[d]]\n", ()),
        ("op f(x[N,D], j: int[E]) -> y[E,D]\n  y[e,d] = x[j[e],D-1-d]\n", ()),
        ("op f(x[N,D]) -> y[N,D]\n  y[n,d] = 2*x[n,d]\n", ()),
        ("op f(x[N], t: int[N]; V: size) -> y[V]\n  y[t[n]] += x[n]\n", ()),
    ],
)
def test_what_such_a_row_is(text: str, rows: tuple[str, ...]) -> None:
    assert rows_of_points(read(text)) == rows


LAYER = """op f(x: float[N,D], w[O,D], i: int[E], j: int[E]) -> y[N,O]
  y[j[e],o] += w[o,d]*x[i[e],d]
"""


@pytest.mark.parametrize(
    ("text", "sizes"), [(MESSAGES, set()), (LARGEST, set()), (LAYER, {"O", "D", "E"})]
)
def test_which_sizes_are_those_of_a_product(text: str, sizes: set[str]) -> None:
    assert sizes_of_products(read(text)) == sizes


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("inner", "outer"), [(1, 32), (4, 5), (32, 1), (1, 1)])
def test_products_have_kernels_for_a_single_number(inner: int, outer: int) -> None:
    torch.manual_seed(0)
    i, j = torch.randint(50, (2, 40_000))
    x, w = torch.randn(50, inner, dtype=torch.float64), torch.randn(outer, inner).double()
    inputs = [x.requires_grad_(), w.requires_grad_()]
    call, operation = made(LAYER)
    y, wanted = call(*inputs, i, j), x.new_zeros(50, outer).index_add(0, j, x[i] @ w.T)
    torch.testing.assert_close(y, wanted)
    assert operation.special is not None
    assert set(operation.special.factors) == {"D", "O"} and not operation.special.lengths
    flowing = torch.randn_like(y)
    found = torch.autograd.grad(y, inputs, flowing)
    for mine, theirs in zip(found, torch.autograd.grad(wanted, inputs, flowing), strict=True):
        torch.testing.assert_close(mine, theirs)


def loops(x: Tensor, s: Tensor, i: Tensor, j: Tensor, largest: bool) -> Tensor:
    y = torch.full_like(x, -torch.inf if largest else 0)
    for e in range(len(s)):
        if 0 <= int(i[e]) < len(x) and 0 <= int(j[e]) < len(x):
            term = s[e] * x[i[e]]
            y[j[e]] = torch.maximum(y[j[e]], term) if largest else y[j[e]] + term
    return y


def eager(x: Tensor, s: Tensor, i: Tensor, j: Tensor, largest: bool) -> Tensor:
    terms = s[:, None] * x[i]
    if not largest:
        return torch.zeros_like(x).index_add(0, j, terms)
    start = torch.full_like(x, -torch.inf)
    return start.scatter_reduce(0, j[:, None].expand_as(terms), terms, "amax")


@pytest.mark.parametrize("width", [1, 3, 4, 16])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.sampled(8)
def test_numbers_and_gradients(width: int, largest: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    edges, nodes = 33_000, 50
    x, s = torch.randn(nodes, width).to(dtype), torch.randn(edges).to(dtype)
    i, j = torch.randint(nodes, (2, edges))
    if width == 3:
        x, s, j = x.t().contiguous().t(), torch.stack([s, s], 1)[:, 0], torch.stack([j, j], 1)[:, 1]
    call, operation = made(LARGEST if largest else MESSAGES)
    inputs = [x.requires_grad_(), s.requires_grad_()]
    wide = [each.detach().double().requires_grad_() for each in inputs]
    flowing = torch.randn(nodes, width, dtype=torch.float64).to(dtype)
    y, wanted = call(*inputs, i, j), eager(*wide, i, j, largest)
    assert any(width in values for _, values in operation.compiled)
    how = {"rtol": 0.02, "atol": 0.02} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    scale = float(wanted.detach().abs().max())
    torch.testing.assert_close(y.double() / scale, wanted / scale, **how)
    if largest and dtype is torch.bfloat16:
        return  # terms that are rounded are equal to others, and the first of these counts
    found = torch.autograd.grad(y, inputs, flowing)
    for mine, theirs in zip(
        found, torch.autograd.grad(wanted, wide, flowing.double()), strict=True
    ):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(mine.double() / scale, theirs / scale, **how)


@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize("largest", [False, True])
def test_values_of_every_kind(width: int, largest: bool) -> None:
    """Against loops, with indices that repeat, nodes without edges, and numbers without end."""
    torch.manual_seed(0)
    text = LARGEST if largest else MESSAGES
    for nodes, edges in ((9, 40), (9, 0), (12_000, 200)):
        x, s = torch.randn(nodes, width), torch.randn(edges)
        i, j = torch.randint(min(nodes, 9), (2, edges))
        x[2], x[5, 0] = torch.inf, torch.nan
        wanted = loops(x, s, i, j, largest)
        torch.testing.assert_close(made(text)[0](x, s, i, j), wanted, equal_nan=True)


@pytest.mark.parametrize("width", [1, 4])
def test_modes(width: int) -> None:
    torch.manual_seed(0)
    x, s = torch.randn(20_000, width), torch.randn(500)
    i, j = torch.randint(-3, 12, (2, 500))
    i[::7] = 20_000
    torch.testing.assert_close(made(MODES)[0](x, s, i, j), loops(x, s, i, j, False))


@pytest.mark.parametrize("width", [1, 4, 65])
@pytest.mark.parametrize("text", [MESSAGES, LARGEST], ids=["sums", "maxima"])
def test_indices_outside_are_refused_in_the_same_words(text: str, width: int) -> None:
    call, _ = made(text)
    x, s = torch.randn(9, width), torch.randn(40_000)
    for wrong in ("i", "j"):
        i, j = torch.randint(9, (2, 40_000))
        (i if wrong == "i" else j)[77] = 9
        with pytest.raises(IndexError) as error:
            call(x, s, i, j)
        with pytest.raises(IndexError) as small:
            call(x[:, :1], s[70:80], i[70:80], j[70:80])
        assert str(error.value) == str(small.value)
        assert f"{wrong}[e]" in str(error.value)


def test_where_a_message_speaks_of_the_length_one_kernel_takes_all() -> None:
    call, operation = made(SHIFTED)
    x, i = torch.randn(20_000, 4), torch.randint(19_000, (20_000,))
    assert torch.equal(call(x, i), x[i + 3])
    assert operation.special is not None
    i[5] = 20_000
    with pytest.raises(IndexError, match=r"x\[D \+ i\[e\] - 1, d\]"):
        call(x, i)


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    x, s = torch.randn(5, 3, dtype=torch.float64), torch.randn(11_000, dtype=torch.float64)
    i, j = torch.randint(5, (2, 11_000))
    inputs = [x.requires_grad_(), s.requires_grad_()]
    second = []
    for y in (made(MESSAGES)[0](*inputs, i, j), eager(*inputs, i, j, False)):
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        second += torch.autograd.grad(sum(each.square().sum() for each in first), inputs)  # type: ignore[arg-type]
    for mine, theirs in zip(second[:2], second[2:], strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("width", [2, 4])
def test_cells_that_share_a_list_are_lanes(width: int) -> None:
    op = specialise(for_cpu(read(LARGEST)), {"D": width})
    program = along_rows(op, scheduled(op))
    (kernel,) = (each for each in program.kernels if each.name == "f_y")
    assert any(isinstance(node, Lanes) for node in walk(kernel.body))
