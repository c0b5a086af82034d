"""Cells that go through lists of the points that chose them; numbers are those of loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import opgen
from opgen.passes.buckets import with_buckets
from opgen.programs import along_rows, for_cpu, for_gpu, scheduled
from written_anew import read

INF = float("inf")
_Points = Iterable[tuple[tuple[int, ...], Tensor]]


def largest(values: Tensor) -> Tensor:
    return values.max(0).values


def least(values: Tensor) -> Tensor:
    return values.min(0).values


@dataclass(frozen=True)
class Case:
    """A spec, the shapes of `x` and `i`, where each point goes, and what a cell is made of."""

    spec: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    points: Callable[[Tensor, Tensor], _Points]
    cells: tuple[int, ...]
    joined: Callable[[Tensor], Tensor] = largest
    empty: float = -INF

    def reference(self, x: Tensor, i: Tensor) -> Tensor:
        lists: dict[tuple[int, ...], list[Tensor]] = {}
        for cell, value in self.points(x, i):
            lists.setdefault(cell, []).append(value)
        rest = next(value.shape for _, value in self.points(x, i))
        empty = x.new_full(rest, self.empty)
        found = [
            self.joined(torch.stack(lists[cell])) if cell in lists else empty
            for cell in itertools.product(*map(range, self.cells))
        ]
        return torch.stack(found).reshape(*self.cells, *rest)


V = 5
CASES = {
    "nodes": Case(
        "op f(x[M,F], i: int[M]; V: size) -> y[V,F]\n  y[i[m],f] max= x[m,f]\n",
        ((13, 4), (13,)),
        lambda x, i: (((int(i[m]),), x[m]) for m in range(13)),
        (V,),
    ),
    "numbers": Case(
        "op f(x[M], i: int[M]; V: size) -> y[V]\n  y[i[m] ?drop] min= x[m]\n",
        ((40,), (40,)),
        lambda x, i: (((int(i[m]),), x[m]) for m in range(40)),
        (V,),
        least,
        INF,
    ),
    "clouds": Case(
        "op f(x[B,M,F], i: int[B,M]; V: size) -> y[B,V,F]\n  y[b,i[b,m],f] max= x[b,m,f]\n",
        ((3, 9, 4), (3, 9)),
        lambda x, i: (((b, int(i[b, m])), x[b, m]) for b in range(3) for m in range(9)),
        (3, V),
    ),
    "pixels": Case(
        "op f(x[B,C,H,W], i: int[B,H,W]; V: size) -> y[B,V,C]\n  y[b,i[b,h,w],c] max= x[b,c,h,w]\n",
        ((2, 3, 4, 5), (2, 4, 5)),
        lambda x, i: (
            ((b, int(i[b, h, w])), x[b, :, h, w])
            for b in range(2)
            for h in range(4)
            for w in range(5)
        ),
        (2, V),
    ),
    "a grid": Case(
        "op f(x[M,F], i: int[M,2]; V: size) -> y[V,3,F]\n"
        "  y[i[m,0],i[m,1]//2 ?drop,f] max= x[m,f]\n",
        ((30, 4), (30, 2)),
        lambda x, i: (((int(i[m, 0]), int(i[m, 1]) // 2), x[m]) for m in range(30)),
        (V, 3),
    ),
    "products": Case(
        "op f(x[M,F], i: int[M]; V: size) -> y[V,F]\n"
        "  y[v,f] = prod(m if i[m] == v) x[m,f] for v in V\n",
        ((13, 4), (13,)),
        lambda x, i: (((int(i[m]),), x[m]) for m in range(13)),
        (V,),
        lambda values: values.prod(0),
        1.0,
    ),
    "channels": Case(
        "op f(x[C,M], i: int[M]; V: size) -> y[V]\n  y[i[m]] max= x[c,m]\n",
        ((3, 11), (11,)),
        lambda x, i: (((int(i[m]),), x[c, m]) for c in range(3) for m in range(11)),
        (V,),
    ),
    "sums of those asked for": Case(
        "op f(x[M,F], i: int[M]; V: size) -> y[V,F]\n"
        "  y[v,f] = sum(m if i[m] == v) x[m,f] for v in V\n",
        ((13, 4), (13,)),
        lambda x, i: (((int(i[m]),), x[m]) for m in range(13)),
        (V,),
        lambda values: values.sum(0),
        0.0,
    ),
    "some of those asked for": Case(
        "op f(x[B,M,F], i: int[M,B]; V: size) -> y[V,B,F]\n"
        "  y[v,b,f] = max(m if i[m,b] - 1 == v and m >= 2) x[b,m,f] for v in V\n",
        ((3, 9, 4), (9, 3)),
        lambda x, i: (((int(i[m, b]) - 1, b), x[b, m]) for b in range(3) for m in range(2, 9)),
        (V, 3),
    ),
    "neighbours": Case(
        "op f(x[M,F], i: int[N]; V: size) -> y[V,F]\n  where N == M + 1\n"
        "  y[i[m+1] - i[m] ?drop,f] max= x[m,f] for m in M\n",
        ((13, 4), (14,)),
        lambda x, i: (((int(i[m + 1] - i[m]),), x[m]) for m in range(13)),
        (V,),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    case = CASES[name]
    assert any(each.buckets for each in with_buckets(read(case.spec)).statements)
    function = opgen.compile(case.spec).f
    torch.manual_seed(len(name))
    shape, of_places = case.shapes
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    i = torch.randint(V, of_places)
    for given, places in ((x, i), (x.movedim(0, -1).contiguous().movedim(-1, 0), i)):
        y, wanted = function(given, places, V=V), case.reference(x, i)
        torch.testing.assert_close(y, wanted)
        along = torch.randn_like(wanted)
        (found,) = torch.autograd.grad(y, x, along)
        torch.testing.assert_close(found, torch.autograd.grad(wanted, x, along)[0])
    single = x.detach().float()
    torch.testing.assert_close(function(single, i, V=V), case.reference(single, i))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    case = CASES["nodes"]
    x, i = torch.randint(-50, 50, case.shapes[0]), torch.randint(V, case.shapes[1])
    found = opgen.compile(case.spec).f(x.to(dtype), i, V=V)
    wanted = torch.full((V, 4), torch.iinfo(dtype).min) if dtype is torch.int64 else None
    if wanted is None:
        assert torch.equal(found, case.reference(x.to(dtype), i))
    else:
        wanted.scatter_reduce_(0, i[:, None].expand_as(x), x, "amax")
        assert torch.equal(found, wanted)


def test_the_first_among_equals_and_what_is_no_number() -> None:
    """Lists have points in the order of iterators."""
    spec = (
        "op f(x[H,W], i: int[H,W]; V: size) -> y[V], at: int[V]\n"
        "  y[v] = max(h,w if i[h,w] == v) x[h,w] for v in V\n"
        "  at[v] = argmax(h,w if i[h,w] == v; h*W + w) x[h,w] for v in V\n"
    )
    op = with_buckets(read(spec))
    assert len({each.buckets for each in op.statements}) == 1
    x = torch.tensor([[1.0, 3, 2], [3, torch.nan, 3], [torch.nan, 2, 5]])
    i = torch.tensor([[0, 0, 0], [0, 1, 2], [1, 2, 9]])
    y, at = opgen.compile(spec).f(x, i, V=4)
    torch.testing.assert_close(y, torch.tensor([3, torch.nan, 3, -INF]), equal_nan=True)
    assert at.tolist() == [1, 4, 5, -1]


@pytest.mark.parametrize("mode", ["?clamp", "?wrap"])
def test_gradients_of_cells_that_a_mode_brings_inside(mode: str) -> None:
    """No list: positions are looked for in lanes, with an index that all of them share."""
    spec = f"op f(x[M,F], i: int[M]; V: size) -> y[V,F]\n  y[i[m] {mode},f] max= x[m,f]\n"
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    i = torch.tensor([0, 7, 2, 2, 1, -3, 0, 4, 1])
    folded = i.clamp(0, 3) if mode == "?clamp" else i % 4
    wanted = torch.stack([x[folded == v].amax(0) for v in range(4)])
    y = opgen.compile(spec).f(x, i, V=4)
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found, theirs = (torch.autograd.grad(each, x, along)[0] for each in (y, wanted))
    torch.testing.assert_close(found, theirs)


def test_nothing_to_list() -> None:
    function = opgen.compile(CASES["clouds"].spec).f
    i = torch.empty(2, 0, dtype=torch.int64)
    assert torch.equal(function(torch.ones(2, 0, 3), i, V=2), torch.full((2, 2, 3), -INF))
    none = torch.zeros(0, 3, dtype=torch.int64)
    assert function(torch.ones(0, 3, 2), none, V=2).shape == (0, 2, 2)
    dropped = opgen.compile(CASES["numbers"].spec).f
    outside = torch.tensor([-1, 7, 2])
    assert dropped(torch.ones(3), outside, V=0).shape == (0,)
    assert dropped(torch.ones(3), outside, V=3).tolist() == [INF, INF, 1]


def test_an_index_outside_is_refused() -> None:
    case = CASES["clouds"]
    function = opgen.compile(case.spec).f
    i = torch.zeros(case.shapes[1], dtype=torch.int64)
    for bad in (-1, V):
        i[1, 4] = bad
        with pytest.raises(IndexError, match=f"^f: index {bad} .* of 'y'"):
            function(torch.ones(case.shapes[0]), i, V=V)


def test_lists_are_those_of_kernels_for_the_cpu() -> None:
    op = read(CASES["nodes"].spec)
    program = along_rows(for_cpu(op), scheduled(for_cpu(op)))
    assert [each.name for each in program.kernels] == ["f_y_ends", "f_y", "f_y_check"]
    assert not program.workspaces
    assert len(scheduled(for_gpu(op)).kernels) == 2


@pytest.mark.parametrize(
    "spec",
    [
        # A point adds to its cell.
        "op f(x[M], i: int[M]; V: size) -> y[V]\n  y[i[m]] += x[m]\n",
        # The cell that is chosen is another one for each cell, or brought inside.
        "op f(x[M], i: int[M]; V: size) -> y[V]\n  y[i[m] ?clamp] max= x[m]\n",
        "op f(x[M], i: int[M]; V: size) -> y[V,M]\n  y[i[m],m] max= x[m]\n",
        # Nothing is asked of a cell, or something else.
        "op f(x[M,V], i: int[M]) -> y[V]\n  y[v] = max(m if i[m] >= v) x[m,v]\n",
        "op f(x[M,V], i: int[V]) -> y[V]\n  y[v] = max(m if i[v] == m) x[m,v]\n",
        "op f(x[M,V], i: int[M]) -> y[V]\n  y[v] = max(m if i[m] == 2*v) x[m,v]\n",
    ],
)
def test_near_misses(spec: str) -> None:
    op = read(spec)
    assert with_buckets(op) is op
