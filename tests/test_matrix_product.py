"""Products of matrices are known by their index maps, and only they go to PyTorch's library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import library_products
import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.matrix_product import MatrixProduct
from opgen.passes.derive import derive
from opgen.passes.matrix_product import matrix_product
from opgen.runtime import library_product

LINEAR = """
op linear(x[N,C], w[O,C], bias[O] = 0) -> y[N,O]
  y[n,o] = bias[o] + sum(c) x[n,c] * w[o,c]
"""
BATCHED = """
op batched(x[..., C], w[O,C]) -> y[..., O]
  y[..., o] = sum(c) x[..., c] * w[o,c]
"""
SCORES = """
op scores(q[B,H,N,D], k[B,H,M,D]) -> y[B,H,N,M]
  y[b,h,n,m] = sum(d) q[b,h,n,d] * k[b,h,m,d]
"""
HEADS = """
op heads(q[B,N,(H D)], k[B,M,(H D)], bias[B,H,M] = 0; H: size) -> y[B,H,N,M]
  y[b,h,n,m] = bias[b,h,m] + sum(d) q[b,n,(h d)] * k[b,m,(h d)]
"""
GROUPED = """
op grouped(x[N,(G C)], w[G,O,C]) -> y[N,(G O)]
  y[n,(g o)] = sum(c) x[n,(g c)] * w[g,o,c]
"""
TWO_SUMS = """
op two_sums(x[N,A,B], z[M,B,A]) -> y[M,N]
  y[m,n] = sum(a,b) x[n,a,b] * z[m,b,a]
"""
GRAM = """
op gram(x[N,C]) -> y[N,N]
  y[i,j] = sum(c) x[i,c] * x[j,c]
"""


ROWS_FIRST = """
op rows_first(x[B,N,C], w[B,O,C]) -> y[N,B,O]
  y[n,b,o] = sum(c) x[b,n,c] * w[b,o,c]
"""


def all_found(spec: str) -> list[MatrixProduct | None]:
    """Of an op and its first gradients."""
    (op,) = check_source(Source(spec, "<test>"))
    return [matrix_product(member.op) for member in derive((op,), 1)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return library_products.listening(monkeypatch)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    library_products.of_any_size(monkeypatch)


# ---------------------------------------------------------------------------- what is found
@pytest.mark.parametrize("spec", [LINEAR, BATCHED, SCORES, GROUPED, TWO_SUMS])
def test_they_and_their_gradients(spec: str) -> None:
    forward, of_left, of_right, *_ = all_found(spec)
    assert forward and of_left and of_right
    # What is written keeps its last dim's elements side by side.
    for each in (forward, of_left, of_right):
        last = len([part for dim in each.target.arrangement.parts for part in dim]) - 1
        assert each.target.arrangement.order[-1][-1] == last


def test_which_dims_they_are() -> None:
    found = all_found(HEADS)[0]
    assert found is not None and found.bias is not None
    assert (found.left.tensor, found.right.tensor, found.bias.tensor) == ("q", "k", "bias")
    assert found.target.arrangement.order == ((0, 1), (2,), (3,))
    assert found.left.arrangement.order == ((0, 2), (1,), (3,))
    assert found.right.arrangement.order == ((0, 2), (3,), (1,))
    assert found.bias.arrangement.order == ((0, 1), (), (2,)), "all rows share it"


def test_a_tensor_with_itself() -> None:
    forward, gradient = all_found(GRAM)[:2]
    assert forward is not None and forward.left.tensor == forward.right.tensor == "x"
    assert gradient is None, "two sums"


@pytest.mark.parametrize(
    "spec",
    [
        # Vectors.
        "op f(x[N,C], w[C]) -> y[N]\n  y[n] = sum(c) x[n,c] * w[c]\n",
        "op f(x[N,C], w[N,C]) -> y[N]\n  y[n] = sum(c) x[n,c] * w[n,c]\n",
        # Nothing is summed.
        "op f(x[N], w[O]) -> y[N,O]\n  y[n,o] = x[n] * w[o]\n",
        # A sum of sums: the left factor is summed by itself.
        "op f(x[N,C,K], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c,k) x[n,c,k] * w[o,c]\n",
        # One factor is repeated.
        "op f(x[N,C], w[O,C]; K: size) -> y[N,O,K]\n"
        "  y[n,o,k] = sum(c) x[n,c] * w[o,c]  for k in K\n",
        # A third factor.
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) x[n,c] * w[o,c] * 2\n",
        # A sum, a difference, a maximum.
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) (x[n,c] + w[o,c])\n",
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = max(c) x[n,c] * w[o,c]\n",
        # A diagonal.
        "op f(x[C,C], w[O,C]) -> y[C,O]\n  y[n,o] += x[n,n] * w[o,n]\n",
        # Shifted, mirrored, every other one, a part.
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) x[n, c - 1 ?0] * w[o,c]\n",
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) x[n, C - 1 - c] * w[o,c]\n",
        "op f(x[N,(C 2)], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) x[n, 2*c] * w[o,c]\n",
        "op f(x[N,C], w[O,D]) -> y[N,O]\n  where D <= C\n  y[n,o] = sum(c in D) x[n,c] * w[o,c]\n",
        # Clamped, wrapped, guarded.
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) x[n, c + 1 ?clamp] * w[o,c]\n",
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) x[n, c + 1 ?wrap] * w[o,c]\n",
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c if c <= n) x[n,c] * w[o,c]\n",
        # What another tensor says.
        "op f(x[N,C], w[O,C], k: int[C]) -> y[N,O]\n  y[n,o] = sum(c) x[n, k[c] ?0] * w[o,c]\n",
        # A type of its own.
        "op f(x: f32[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) x[n,c] * w[o,c]\n",
        # A bias that has half of the rows' indices, and one that is read backwards.
        "op f(x[N,M,C], w[O,C], b[N]) -> y[N,M,O]\n  y[n,m,o] = b[n] + sum(c) x[n,m,c] * w[o,c]\n",
        "op f(x[N,C], w[O,C], b[O]) -> y[N,O]\n  y[n,o] = b[O - 1 - o] + sum(c) x[n,c] * w[o,c]\n",
        # More than the product.
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = max(sum(c) x[n,c] * w[o,c], 0)\n",
        "op f(x[N,C], w[O,C]) -> y[N,O], z[N]\n  y[n,o] = sum(c) x[n,c] * w[o,c]\n"
        "  z[n] = sum(c) x[n,c]\n",
    ],
)
def test_near_misses(spec: str) -> None:
    assert all_found(spec)[0] is None


# ---------------------------------------------------------------------------- what comes out
def outer(left: Tensor, right: Tensor) -> Tensor:
    """left[..., n, c] and right[..., m, c] by a loop over c."""
    total = left.new_zeros(*left.shape[:-1], right.shape[-2])
    for c in range(left.shape[-1]):
        total = total + left[..., c, None] * right[..., None, :, c]
    return total


def heads(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    (b, n, _), m = q.shape, k.shape[1]
    apart = (each.view(b, size, 3, -1).transpose(1, 2) for each, size in ((q, n), (k, m)))
    found = outer(*apart)
    return found if bias is None else found + bias[:, :, None]


def grouped(x: Tensor, w: Tensor) -> Tensor:
    parts = zip(x.chunk(len(w), 1), w, strict=True)
    return torch.cat([outer(one, other) for one, other in parts], 1)


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    found = outer(x, w.expand(*x.shape[:-2], *w.shape))
    return found if bias is None else found + bias


CASES: dict[str, tuple[str, Callable[..., Tensor], list[tuple[int, ...]], dict[str, int]]] = {
    "linear": (LINEAR, linear, [(37, 24), (19, 24)], {}),
    "linear with bias": (LINEAR, linear, [(37, 24), (19, 24), (19,)], {}),
    "batched": (BATCHED, linear, [(2, 3, 5, 8), (7, 8)], {}),
    "scores": (SCORES, outer, [(2, 3, 9, 8), (2, 3, 7, 8)], {}),
    "heads": (HEADS, heads, [(2, 9, 12), (2, 5, 12)], {"H": 3}),
    "heads with bias": (HEADS, heads, [(2, 9, 12), (2, 5, 12), (2, 3, 5)], {"H": 3}),
    "grouped": (GROUPED, grouped, [(9, 12), (3, 5, 4)], {}),
    "two sums": (
        TWO_SUMS,
        lambda x, z: outer(z.mT.flatten(1), x.flatten(1)),
        [(9, 4, 3), (7, 3, 4)],
        {},
    ),
    "gram": (GRAM, lambda x: outer(x, x), [(9, 5)], {}),
    "rows first": (
        ROWS_FIRST,
        lambda x, w: outer(x, w).transpose(0, 1),
        [(3, 9, 5), (3, 7, 5)],
        {},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(12)
def test_results_and_gradients(
    name: str, dtype: torch.dtype, always: None, asked: list[str]
) -> None:
    spec, reference, shapes, attributes = CASES[name]
    function = getattr(opgen.compile(spec), spec.split("(")[0].split()[-1])
    torch.manual_seed(0)
    given = [torch.randint(-2, 3, shape).to(dtype).requires_grad_() for shape in shapes]
    exact = reference(*(each.double() for each in given))
    seed = torch.randint(-1, 2, exact.shape)
    wanted = exact, *torch.autograd.grad(exact, given, seed.double())
    for _ in range(3):
        asked.clear()
        y = function(*given, **attributes)
        gradients = torch.autograd.grad(y, given, seed.to(dtype))
        for one, other in zip((y, *gradients), wanted, strict=True):
            assert torch.equal(one, other.to(dtype)), "small integers have no rounding"
            assert one.is_contiguous()
    with torch.no_grad():
        assert torch.equal(function(*given, **attributes), exact.to(dtype))


@pytest.mark.parametrize("name", ["linear with bias", "batched", "scores", "heads with bias"])
def test_calls_like_earlier_ones_are_looked_up(name: str, always: None, asked: list[str]) -> None:
    spec, reference, shapes, attributes = CASES[name]
    own = spec.split("(")[0].split()[-1]
    function = opgen.compile(spec.replace(f"op {own}", "op again")).again  # no other test knows it
    torch.manual_seed(0)
    given = [torch.randint(-2, 3, shape).float() for shape in shapes]
    function(*given, **attributes)
    assert asked == ["multiply"]
    function(*given, **attributes)
    asked.clear()
    again = [torch.randint(-2, 3, shape).float() for shape in shapes]
    assert torch.equal(function(*again, **attributes), reference(*again))
    assert asked == []


@pytest.mark.parametrize("name", ["batched", "heads with bias", "grouped", "two sums"])
def test_results_may_be_changed_in_place(name: str, always: None) -> None:
    """Also when something is recorded by then, which what began as a view may not."""
    spec, reference, shapes, attributes = CASES[name]
    own = spec.split("(")[0].split()[-1]
    function = opgen.compile(spec.replace(f"op {own}", "op changed")).changed  # nobody else's
    torch.manual_seed(0)
    given = [torch.randint(-2, 3, shape).float() for shape in shapes]
    for _ in range(3):
        with torch.no_grad():
            y = function(*given, **attributes)
        factor = torch.full((), 2.0, requires_grad=True)
        y *= factor
        assert torch.equal(y, 2 * reference(*given))


def strided(name: str, shape: tuple[int, ...]) -> Tensor:
    """Small integers that lie in memory as the name says."""
    numbers = torch.randint(-2, 3, shape).float()
    match name:
        case "transposed":
            return numbers.mT.contiguous().mT
        case "every other":
            wide = torch.zeros(*shape[:-1], 2 * shape[-1])
            wide[..., ::2] = numbers
            return wide[..., ::2]
        case "one for all":
            return numbers[:1].expand(shape)
        case "behind others":
            return torch.cat((torch.ones(3, *shape[1:]), numbers))[3:]
        case "negated":
            return torch._neg_view(numbers)
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize(
    "name", ["transposed", "every other", "one for all", "behind others", "negated"]
)
def test_other_strides(name: str, always: None) -> None:
    torch.manual_seed(0)
    for spec in (LINEAR, SCORES, GROUPED):
        key = spec.split("(")[0].split()[-1]
        _, reference, shapes, _ = CASES[key]
        function = getattr(opgen.compile(spec), key)
        for at in (0, 1):
            given = [torch.randint(-2, 3, shape).float() for shape in shapes]
            given[at] = strided(name, shapes[at])
            for _ in range(3):
                assert torch.equal(function(*given), reference(*given))


def test_strides_of_dims_of_one_element(always: None) -> None:
    function = opgen.compile(
        "op f(x[B,N,C], w[B,O,C]) -> y[O,N,B]\n  y[o,n,b] = sum(c) x[b,n,c] * w[b,o,c]\n"
    ).f
    for batch, rows, columns in ((1, 5, 6), (3, 1, 6), (3, 5, 1), (1, 1, 6), (2, 5, 6)):
        x, w = torch.ones(batch, rows, 4), torch.ones(batch, columns, 4)
        for _ in range(3):
            found = function(x, w)
            assert torch.equal(found, torch.full((columns, rows, batch), 4.0))
            assert found.stride() == (rows * batch, batch, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "shape", "is_asked"),
    [
        (torch.float32, (64, 64, 64), True),
        (torch.float32, (32, 64, 200), False),
        (torch.float32, (64, 64, 600), False),
        (torch.float32, (64, 8, 64), False),
        (torch.float64, (64, 64, 64), False),
        (torch.float64, (64, 64, 16), True),
        (torch.bfloat16, (64, 64, 64), True),
        (torch.bfloat16, (32, 32, 32), False),
        (torch.bfloat16, (256, 256, 256), True),
        (torch.bfloat16, (1024, 3, 1024), False),
        (torch.float32, (64, 0, 64), False),
        (torch.float32, (64, 64, 0), False),
    ],
)
def test_when_it_is_asked(
    dtype: torch.dtype, shape: tuple[int, int, int], is_asked: bool, asked: list[str]
) -> None:
    rows, columns, terms = shape
    function = opgen.compile(LINEAR).linear
    x, w = torch.ones(rows, terms, dtype=dtype), torch.ones(columns, terms, dtype=dtype)
    found = function(x, w)
    assert torch.equal(found, torch.full((rows, columns), terms, dtype=dtype))
    assert (asked == ["multiply"]) == is_asked


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize(
    ("batch", "rows", "columns", "terms", "is_asked"),
    [
        (1, 70, 66, 210, True),
        (1, 66, 300, 514, False),
        (1, 129, 128, 514, True),
        (2, 66, 64, 514, True),
        (2, 66, 60, 514, False),
    ],
)
def test_long_sums_where_the_first_cache_is_small(
    batch: int,
    rows: int,
    columns: int,
    terms: int,
    is_asked: bool,
    is_small: bool,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_product, "_has_small_cache", lambda: is_small)
    function = opgen.compile(SCORES).scores
    q, k = torch.ones(batch, 1, rows, terms), torch.ones(batch, 1, columns, terms)
    assert torch.equal(function(q, k), torch.full((batch, 1, rows, columns), float(terms)))
    assert (asked == ["multiply"]) == (is_small and is_asked)


@pytest.mark.parametrize(
    ("text", "is_small"), [("32K\n", True), ("48K\n", False), ("1M\n", False), (None, False)]
)
def test_the_size_of_the_first_cache(
    text: str | None, is_small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "size"
    if text is not None:
        file.write_text(text, encoding="ascii")
    monkeypatch.setattr(library_product, "_CACHE", file)
    assert library_product._has_small_cache.__wrapped__() == is_small


def test_copies_are_worth_it_where_much_is_multiplied(asked: list[str]) -> None:
    function = opgen.compile(GROUPED).grouped
    for channels, is_asked in ((16, False), (64, True)):
        asked.clear()
        x, w = torch.ones(64, 4 * channels), torch.ones(4, channels, channels)
        assert torch.equal(function(x, w), torch.full((64, 4 * channels), float(channels)))
        assert (asked == ["multiply"]) == is_asked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("terms", [32, 33])
def test_numbers_that_are_not_finite_stay_where_they_are(
    dtype: torch.dtype, terms: int, always: None
) -> None:
    function = opgen.compile(SCORES).scores
    torch.manual_seed(0)
    q, k = (torch.randn(2, 3, size, terms).to(dtype) for size in (50, 40))
    q[0, 1, 7, terms - 1], k[1, 2, 5, 0] = torch.inf, torch.nan
    for _ in range(3):
        is_finite = function(q, k).isfinite()
        assert not is_finite[0, 1, 7].any() and not is_finite[1, 2, :, 5].any()
        is_finite[0, 1, 7] = is_finite[1, 2, :, 5] = True
        assert is_finite.all()


def test_a_factor_may_be_left_out(always: None, asked: list[str]) -> None:
    function = opgen.compile(
        "op f(x[N,C], w[O,C] = 2; O: size) -> y[N,O]\n  y[n,o] = sum(c) x[n,c] * w[o,c]\n"
    ).f
    x = torch.arange(12.0).view(3, 4)
    assert torch.equal(function(x, O=2), (2 * x.sum(1, keepdim=True)).expand(3, 2))
    assert asked == []
    assert torch.equal(function(x, torch.ones(2, 4), O=2), x.sum(1, keepdim=True).expand(3, 2))
    assert asked == ["multiply"]


def test_a_bias_may_stand_for_another_number_than_zero(always: None) -> None:
    function = opgen.compile(
        LINEAR.replace("op linear", "op biased").replace("= 0)", "= 2)")
    ).biased
    x, w = torch.ones(32, 16), torch.ones(24, 16)
    for _ in range(2):
        assert torch.equal(function(x, w), torch.full((32, 24), 18.0))
        assert torch.equal(function(x, w, torch.ones(24)), torch.full((32, 24), 17.0))


def test_gradients_under_autocast(always: None) -> None:
    """What is cast is cast on the way forward; a derived op is no product of autocast's."""
    function = opgen.compile(LINEAR).linear
    torch.manual_seed(0)
    x, w = torch.randn(40, 24, requires_grad=True), torch.randn(24, 24, requires_grad=True)
    y = function(x, w)
    wanted = torch.autograd.grad((y * y).sum(), (x, w), create_graph=True)
    second = torch.autograd.grad((wanted[0] ** 2).sum() + (wanted[1] ** 2).sum(), (x, w))
    for _ in range(2):
        y = function(x, w)
        with torch.autocast("cpu", torch.bfloat16):
            found = torch.autograd.grad((y * y).sum(), (x, w), create_graph=True)
            again = torch.autograd.grad((found[0] ** 2).sum() + (found[1] ** 2).sum(), (x, w))
        for one, other in zip((*found, *again), (*wanted, *second), strict=True):
            assert one.dtype == torch.float32
            torch.testing.assert_close(one, other)


def test_under_autocast(asked: list[str]) -> None:
    """Products of large tensors are cast, as for PyTorch's own, not rounded by kernels."""
    function = opgen.compile(LINEAR).linear
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (2048, 256)).float().requires_grad_()
    w = torch.randint(-1, 2, (256, 256)).float().requires_grad_()
    exact = (x.detach() @ w.detach().T).bfloat16()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, w)
        assert y.dtype == torch.bfloat16 and torch.equal(y, exact)
    gradients = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    assert torch.equal(gradients[0], w.detach().sum(0).expand_as(x))
    assert asked


def test_second_derivatives(always: None) -> None:
    function = opgen.compile(SCORES).scores
    torch.manual_seed(0)
    q, k = (torch.randint(-2, 3, (2, 2, size, 4)).double() for size in (5, 6))

    def second(f: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        a, b = q.clone().requires_grad_(), k.clone().requires_grad_()
        y = f(a, b)
        first = torch.autograd.grad((y * y).sum(), (a, b), create_graph=True)
        return torch.autograd.grad((first[0] * q).sum() + (first[1] * k).sum(), (a, b))

    for one, other in zip(second(function), second(outer), strict=True):
        assert torch.equal(one, other)
