"""Products of what is looked up, and into cells that are; numbers are those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.passes.derive import derive
from opgen.passes.plain_products import with_plain_products
from opgen.passes.stages import products_of
from written_anew import changed, read

N, M, E, O = 5, 11, 9, 10
"""Nodes, edges, terms and results."""

MESSAGES = "op f(x[N,E], w[O,E], src: int[M]) -> y[M,O]\n  y[m,o] = sum(e) w[o,e]*x[src[m],e]\n"
LAYER = (
    "op f(x[N,E], w[O,E], s[M], src: int[M], dst: int[M]) -> y[N,O]\n"
    "  y[dst[m],o] += s[m]*w[o,e]*x[src[m],e]\n"
)
EXPERTS = (
    "op f(x[B,T,E], w[N,E,O], r: int[B]) -> y[B,T,O]\n  y[b,t,o] = sum(e) x[b,t,e]*w[r[b],e,o]\n"
)
MESH = (
    "op f(x[B,C,N], w[O,C,K], r: int[M,K]) -> y[B,O,M]\n"
    "  y[b,o,m] = sum(c,k) x[b,c,r[m,k]]*w[o,c,k]\n"
)
IMAGES = (
    "op f(x[N,C,T], w[O,C,3], r: int[B]) -> y[B,O,T]\n"
    "  y[b,o,t] = sum(c,i) x[r[b],c,t+i-1 ?0]*w[o,c,i]\n"
)
SCALED = (
    "op f(x[B,C,N], w[O,C,K], s[M,K], r: int[M,K]) -> y[B,O,M]\n"
    "  y[b,o,m] = sum(c,k) x[b,c,r[m,k]]*s[m,k]*w[o,c,k]\n"
)
SHIFTED = (
    "op f(x[B,C,T], w[O,C,3], n: int[B]) -> y[B,O,T]\n"
    "  y[b,o,t] = sum(c,i) x[b,c,t+i-n[b] ?wrap]*w[o,c,i]\n"
)
FIXED = "op f(x[N,3,E], w[O,E], r: int[M]) -> y[M,O]\n  y[m,o] = sum(e) x[r[m] ?clamp,1,e]*w[o,e]\n"
PAIRED = "op f(x[N,E], w[O,E], r: int[N]) -> y[N,O]\n  y[n,o] = sum(e) x[r[n],e]*w[o,e]*x[n,e]\n"
BOTH = (
    "op f(x[N,E], w[N,E], s: int[M], t: int[O]) -> y[M,O]\n  y[m,o] = sum(e) x[s[m],e]*w[t[o],e]\n"
)


def layer(x: Tensor, w: Tensor, s: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return x.new_zeros(len(x), len(w)).index_add(0, dst, s[:, None] * (x[src] @ w.T))


def shifted(x: Tensor, w: Tensor, n: Tensor) -> Tensor:
    rolled = [torch.roll(each, int(by), -1) for each, by in zip(x, n, strict=True)]
    return F.conv1d(F.pad(torch.stack(rolled), (0, 2), "circular"), w)


def number(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape)


CASES: dict[str, tuple[str, Callable[..., Tensor], list[tuple[int, ...]], list[Tensor]]] = {
    "messages": (
        MESSAGES,
        lambda x, w, src: x[src] @ w.T,
        [(N, E), (O, E)],
        [number(N, M)],
    ),
    "layer": (LAYER, layer, [(N, E), (O, E), (M,)], [number(N, M), number(N, M)]),
    "experts": (
        EXPERTS,
        lambda x, w, r: torch.bmm(x, w[r]),
        [(3, 4, E), (N, E, O)],
        [number(N, 3)],
    ),
    "mesh": (
        MESH,
        lambda x, w, r: torch.einsum("bcmk,ock->bom", x[:, :, r], w),
        [(2, 3, N), (O, 3, 4)],
        [number(N, M, 4)],
    ),
    "a mesh with weights": (
        SCALED,
        lambda x, w, s, r: torch.einsum("bcmk,mk,ock->bom", x[:, :, r], s, w),
        [(2, 3, N), (O, 3, 4), (M, 4)],
        [number(N, M, 4)],
    ),
    "images": (
        IMAGES,
        lambda x, w, r: F.conv1d(x[r], w, padding=1),
        [(N, 4, 7), (O, 4, 3)],
        [number(N, 3)],
    ),
    "shifts": (
        SHIFTED,
        shifted,
        [(2, 4, 7), (O, 4, 3)],
        [number(30, 2) - 9],
    ),
    "a fixed dim": (
        FIXED,
        lambda x, w, r: x[r.clamp(0, N - 1), 1] @ w.T,
        [(N, 3, E), (O, E)],
        [number(3 * N, M) - N],
    ),
    "beside the tensor itself": (
        PAIRED,
        lambda x, w, r: (x[r] * x) @ w.T,
        [(N, E), (O, E)],
        [number(N, N)],
    ),
    "both factors": (
        BOTH,
        lambda x, w, s, t: x[s] @ w[t].T,
        [(N, E), (N, E)],
        [number(N, M), number(N, O)],
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients(name: str) -> None:
    spec, reference, shapes, places = CASES[name]
    op = changed(spec)
    assert len(products_of(op)) == 1
    function = opgen.compile(spec).f
    given = [torch.rand(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    y, wanted = function(*given, *places), reference(*given, *places)
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found = torch.autograd.grad(y, given, along)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, given, along))
    if name in ("layer", "experts"):
        assert torch.autograd.gradgradcheck(lambda *reals: function(*reals, *places), given)


def test_gradients_are_products_too() -> None:
    """What flows back is looked up: it stays a copy that is a factor."""
    members = [each.op for each in derive((changed(LAYER),), 1) if not each.is_public]
    assert len(members) == 4
    assert all(map(products_of, members))
    function = opgen.compile(LAYER).f
    x, w = torch.rand(300, 64, requires_grad=True), torch.rand(64, 64, requires_grad=True)
    s, src, dst = torch.rand(2000), number(300, 2000), number(300, 2000)
    for _ in range(3):  # by kernels, in stages, and as those are kept
        y, wanted = function(x, w, s, src, dst), layer(x, w, s, src, dst)
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-3)
        found = torch.autograd.grad(y.square().sum(), (x, w))
        expected = torch.autograd.grad(wanted.square().sum(), (x, w))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_sixteen_bits(dtype: torch.dtype) -> None:
    x, w = torch.rand(50, 64, dtype=dtype), torch.rand(32, 64, dtype=dtype)
    src = number(50, 400)
    found = opgen.compile(MESSAGES).f(x, w, src)
    wanted = (x.double()[src] @ w.double().T).to(dtype)
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_an_index_outside_is_refused_by_the_name_of_the_op() -> None:
    """In kernels of one op, and in stages, which large calls go in."""
    function = opgen.compile(MESSAGES).f
    x, w = torch.rand(300, 64), torch.rand(64, 64)
    src = number(300, 1000)
    for _ in range(4):
        function(x, w, src)
    src[7] = 300
    for _ in range(2):
        with pytest.raises(
            IndexError, match=r"^f: index 300 .* of 'x', .* 300 \(in x\[src\[m\], e"
        ):
            function(x, w, src)
    with pytest.raises(IndexError, match="index 300"):
        function(x[:, :1].contiguous(), w[:, :1].contiguous(), src)
    torch.testing.assert_close(function(x, w, src % 300), x[src % 300] @ w.T)


def test_what_no_term_reads_is_not_looked_at() -> None:
    """Edges that are dropped, and experts that are absent, may have any number."""
    x, src = torch.rand(3, E), torch.tensor([0, 9, 2])
    dropped = opgen.compile(LAYER.replace("dst[m],o", "dst[m] ?drop,o")).f
    w, s = torch.rand(O, E), torch.rand(3)
    found = dropped(x, w, s, src, torch.tensor([0, -1, 1]))
    wanted = torch.stack([s[0] * (w @ x[0]), s[2] * (w @ x[2]), torch.zeros(O)])
    torch.testing.assert_close(found, wanted)
    absent = opgen.compile(
        "op f(x[N,E], w[G,O,E], src: int[M], j: int[M]) -> y[M,O]\n"
        "  y[m,o] = sum(e) w[j[m] ?0,o,e]*x[src[m],e]\n"
    ).f
    w = torch.rand(2, O, E)
    found = absent(x, w, src, torch.tensor([0, -1, 1]))
    wanted = torch.stack([w[0] @ x[0], torch.zeros(O), w[1] @ x[2]])
    torch.testing.assert_close(found, wanted)
    alone = opgen.compile(MESSAGES).f
    assert alone(x, torch.rand(0, E), torch.tensor([0, 9])).shape == (2, 0)


def test_nothing_to_multiply() -> None:
    layer_of = opgen.compile(LAYER).f
    some = torch.tensor([0, 1])
    outside = torch.tensor([0, -1])
    empty = torch.ones(2, 0), torch.ones(3, 0), torch.ones(2)
    assert torch.equal(layer_of(*empty, some, outside), torch.zeros(2, 3))
    none = torch.empty(0, dtype=torch.int64)
    found = layer_of(torch.ones(2, 4), torch.ones(3, 4), torch.ones(0), none, none)
    assert torch.equal(found, torch.zeros(2, 3))


@pytest.mark.parametrize(
    "spec",
    [
        # Each cell that is looked up is used once.
        "op f(p[N,M], x[V,E], i: int[N,M]) -> y[N,E]\n  y[n,e] = sum(m) p[n,m]*x[i[n,m],e]\n",
        "op f(q[B,E], k[N,E], r: int[B,T]) -> y[B,T]\n  y[b,t] = sum(e) q[b,e]*k[r[b,t],e]\n",
        "op f(x[N,E], s[M], i: int[M], j: int[M]) -> y[N,E]\n  y[j[m],e] += s[m]*x[i[m],e]\n",
        # Rotations.
        "op f(x[N,3], r[M,3,3], i: int[M]) -> y[M,3]\n  y[m,a] = sum(k) r[m,a,k]*x[i[m],k]\n",
        # A term of what is absent is none.
        "op f(x[N,E], w[O,E], i: int[M]) -> y[M,O]\n  y[m,o] = sum(e) w[o,e]*x[i[m] ?0,e]\n",
        # No sum, or one of integers.
        "op f(x[N,E], w[O,E], i: int[M]) -> y[M,O]\n  y[m,o] = max(e) w[o,e]*x[i[m],e]\n",
        "op f(x: i64[N,E], w: i64[O,E], i: int[M]) -> y: i64[M,O]\n"
        "  y[m,o] = sum(e) w[o,e]*x[i[m],e]\n",
    ],
)
def test_near_misses(spec: str) -> None:
    op = read(spec)
    assert with_plain_products(op) is op
