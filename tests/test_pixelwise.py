"""Sums over the channels of each pixel are convolutions whose filter has one tap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.convolution import Convolution, Role
from opgen.passes.convolution import convolution
from opgen.passes.derive import derive
from opgen.runtime import library_call, library_product

PLAIN, LAST = torch.contiguous_format, torch.channels_last

POINTWISE = """
op pointwise(x[N,C,H,W], w[O,C], bias[O] = 0) -> y[N,O,H,W]
  y[n,o,h,w_] = bias[o] + sum(c) x[n,c,h,w_] * w[o,c]
"""
TURNED = """
op turned(x[N,C,W], w[C,O]) -> y[N,O,W]
  y[n,o,w_] = sum(c) x[n,c,w_] * w[c,o]
"""
GROUPED = """
op grouped(x[N,(G C),H,W], w[G,O,C]) -> y[N,(G O),H,W]
  y[n,(g o),h,w_] = sum(c) x[n,(g c),h,w_] * w[g,o,c]
"""
ROWS = """
op rows(x[N,C,H,W], w[O,C,K]) -> y[N,O,H,V]
  let V = W - K + 1
  y[n,o,h,v] = sum(c,k) x[n,c,h, v + k] * w[o,c,k]
"""
COLUMNS = """
op columns(x[N,C,H,W], w[O,C,K]) -> y[N,O,V,W]
  let V = H + 2 - K + 1
  y[n,o,v,w_] = sum(c,k) x[n,c, v + k - 1 ?0, w_] * w[o,c,k]
"""


def found(spec: str) -> Convolution | None:
    (op,) = check_source(Source(spec, "<test>"))
    return convolution(op)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of Python's ways to the library were taken; other calls were looked up without it."""
    heard: list[str] = []
    ways = ((library_call, "convolve"), (library_call, "_both"), (library_product, "multiply"))
    for module, name in ways:
        original = getattr(module, name)

        def listening(*given: Any, original: Any = original, name: str = name) -> Any:
            result = original(*given)
            if result is not None:
                heard.append(name)
            return result

        monkeypatch.setattr(module, name, listening)
    return heard


# ---------------------------------------------------------------------------- what is found
@pytest.mark.parametrize(
    ("spec", "rank"), [(POINTWISE, 2), (TURNED, 1), (GROUPED, 2), (ROWS, 2), (COLUMNS, 2)]
)
def test_they_and_their_gradients_are_convolutions(spec: str, rank: int) -> None:
    (op,) = check_source(Source(spec, "<test>"))
    names = ("y", "grad_y", "grad_y")
    members = derive((op,), 1)[:3]
    roles = [convolution(each.op, name) for each, name in zip(members, names, strict=True)]
    assert [each and each.target for each in roles] == [Role.RESULT, Role.IMAGE, Role.WEIGHT]
    for each in roles:
        assert each is not None and len(each.stride) == rank


def test_pixels_of_four_dims_are_one() -> None:
    many = found(
        "op f(x[N,C,A,B,D,E], w[O,C]) -> y[N,O,A,B,D,E]\n"
        "  y[n,o,a,b,d,e] = sum(c) x[n,c,a,b,d,e] * w[o,c]\n"
    )
    assert many is not None and len(many.stride) == 1
    assert many.arrangements["x"].order == ((0,), (1,), (2, 3, 4, 5))


def test_windows_beside_three_dims_of_pixels_take_these_for_images() -> None:
    many = found(
        "op f(x[N,C,A,B,D,W], w[O,C,K]) -> y[N,O,A,B,D,V]\n  let V = W - K + 1\n"
        "  y[n,o,a,b,d,v] = sum(c,k) x[n,c,a,b,d, v + k] * w[o,c,k]\n"
    )
    assert many is not None and len(many.stride) == 1
    assert many.arrangements["x"].order == ((0, 2, 3, 4), (1,), (5,))


@pytest.mark.parametrize(
    "spec",
    [
        # No pixels: products of matrices.
        "op f(x[N,C], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c) x[n,c] * w[o,c]\n",
        "op f(x[N,W,C], w[O,C]) -> y[N,W,O]\n  y[n,v,o] = sum(c) x[n,v,c] * w[o,c]\n",
        # No images.
        "op f(x[C,W], w[O,C]) -> y[O,W]\n  y[o,v] = sum(c) x[c,v] * w[o,c]\n",
        # Nothing is summed.
        "op f(x[N,C,W], w[C]) -> y[N,C,W]\n  y[n,c,v] = x[n,c,v] * w[c]\n",
        # A filter for each image.
        "op f(x[N,C,W], w[N,O,C]) -> y[N,O,W]\n  y[n,o,v] = sum(c) x[n,c,v] * w[n,o,c]\n",
        # A filter for each pixel.
        "op f(x[N,C,W], w[O,C,W]) -> y[N,O,W]\n  y[n,o,v] = sum(c) x[n,c,v] * w[o,c,v]\n",
        # Pixels of another size.
        "op f(x[N,C,W], w[O,C]; V: size) -> y[N,O,V]\n  where V <= W\n"
        "  y[n,o,v] = sum(c) x[n,c,v] * w[o,c]  for v in V\n",
        # Mirrored.
        "op f(x[N,C,W], w[O,C]) -> y[N,O,W]\n  y[n,o,v] = sum(c) x[n,c, W - 1 - v] * w[o,c]\n",
        # Some of them are absent.
        "op f(x[N,C,W], w[O,C]; p = 1) -> y[N,O,W]\n"
        "  y[n,o,v] = sum(c) x[n,c, v - p ?0] * w[o,c]\n",
        # A sum over pixels beside that over channels.
        "op f(x[N,C,W], w[O,C]) -> y[N,O]\n  y[n,o] = sum(c,v) x[n,c,v] * w[o,c]\n",
    ],
)
def test_near_misses(spec: str) -> None:
    assert found(spec) is None


# ---------------------------------------------------------------------------- what comes out
def reference(name: str, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same by loops over channels and taps."""
    if name == "turned":
        w = w.mT
    elif name == "grouped":
        parts = x.chunk(len(w), 1)
        return torch.cat([reference("", *each) for each in zip(parts, w, strict=True)], 1)
    taps = w.shape[2] if w.dim() == 3 else 1
    if name == "columns":
        x = F.pad(x, (0, 0, 1, 1))
    w = w.reshape(*w.shape[:2], taps)
    along = 2 if name == "columns" else x.dim() - 1
    size = x.shape[along] - taps + 1
    total = x.new_zeros(())
    for c in range(x.shape[1]):
        for k in range(taps):
            part = x[:, c : c + 1].narrow(along, k, size)
            total = total + part * w[:, c, k].view(1, -1, *(1,) * (x.dim() - 2))
    return total if bias is None else total + bias.view(1, -1, *(1,) * (x.dim() - 2))


CASES = {
    "pointwise": (POINTWISE, (3, 16, 5, 7), (24, 16)),
    "turned": (TURNED, (3, 16, 9), (16, 24)),
    "grouped": (GROUPED, (2, 24, 5, 6), (3, 16, 8)),
    "rows": (ROWS, (2, 16, 5, 9), (8, 16, 3)),
    "columns": (COLUMNS, (2, 16, 6, 5), (8, 16, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "format_"),
    [(name, each) for name in CASES for each in (PLAIN, LAST) if (name, each) != ("turned", LAST)],
)
@pytest.mark.parametrize("way", ["convolution", "product", "fastest"])
@pytest.mark.sampled(12)
def test_they_are_looked_up(
    name: str,
    dtype: torch.dtype,
    format_: torch.memory_format,
    way: str,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Views of the filter suffice, so that no call but the first goes through Python."""
    if way != "fastest":
        plan = library_product._plan if way == "product" else lambda _: None
        monkeypatch.setattr(library_product, "instead_of_convolution", plan)
    spec, image, filters = CASES[name]
    own = f"{name}_{way}"  # what one way entered is not for another
    function = getattr(opgen.compile(spec.replace(f"op {name}", f"op {own}")), own)
    torch.manual_seed(0)
    x = torch.randint(-2, 3, image).to(dtype).contiguous(memory_format=format_)
    w = torch.randint(-1, 2, filters).to(dtype)
    given = [x, w]
    if name == "pointwise":
        given.append(torch.randint(-3, 4, (filters[0],)).to(dtype))
    for each in given:
        each.requires_grad_()
    exact = reference(name, *(each.double() for each in given))
    seed = torch.randint(-1, 2, exact.shape).contiguous(memory_format=format_)
    wanted = exact, *torch.autograd.grad(exact, given, seed.double())
    for turn in range(3):
        if turn == 1:
            assert way == "fastest" or asked
        asked.clear()
        y = function(*given)
        gradients = torch.autograd.grad(y, given, seed.to(dtype))
        assert y.is_contiguous(memory_format=format_)
        for one, other in zip((y, *gradients), wanted, strict=True):
            assert torch.equal(one, other.to(dtype)), "small integers have no rounding"
    if way != "fastest" and format_ == PLAIN and name != "turned":
        assert asked == [], "gradients too"
    with torch.no_grad():
        function(*given)
        asked.clear()
        assert torch.equal(function(*given), exact.to(dtype))
    assert asked == []


@pytest.mark.parametrize(
    ("dtype", "format_", "image", "results", "ways", "is_small"),
    [
        # Few channels, or little work, are products, and with very few it is for kernels; so is
        # the gradient of the weight. Else the two gradients are one convolution.
        (torch.float32, PLAIN, (2, 64, 20, 20), 3, [], False),
        (torch.float32, PLAIN, (2, 64, 20, 20), 8, ["multiply"] * 2, False),
        (torch.float32, PLAIN, (2, 64, 16, 16), 64, ["multiply"] * 2, False),
        (torch.float32, PLAIN, (8, 64, 20, 20), 64, ["convolve"] * 2, False),
        (torch.float32, PLAIN, (16, 64, 20, 20), 64, ["convolve"] * 3, False),
        (torch.float32, LAST, (2, 64, 16, 16), 64, ["convolve"] * 3, False),
        # They are products more often where the first cache is small.
        (torch.float32, PLAIN, (8, 64, 20, 20), 64, ["multiply"] * 2, True),
        (torch.float32, PLAIN, (16, 64, 20, 20), 64, ["multiply"] * 2 + ["convolve"], True),
        (torch.float32, PLAIN, (2, 512, 25, 25), 512, ["multiply"] * 2 + ["convolve"], True),
        (torch.float32, PLAIN, (4, 512, 7, 7), 512, ["convolve"] * 3, True),
        (torch.float32, LAST, (2, 64, 20, 20), 64, ["convolve"] * 3, True),
        # In 16 bits they are products unless pixels are few, or there is little to do.
        (torch.bfloat16, PLAIN, (2, 16, 8, 8), 16, [], False),
        (torch.bfloat16, PLAIN, (8, 64, 20, 20), 64, ["multiply"] * 2, False),
        (torch.bfloat16, PLAIN, (16, 64, 20, 20), 64, ["multiply"] * 3, False),
        (torch.bfloat16, PLAIN, (12, 512, 7, 7), 512, ["convolve", "convolve", "multiply"], False),
        (torch.bfloat16, LAST, (8, 64, 20, 20), 64, ["convolve"] * 3, False),
    ],
)
@pytest.mark.sampled(8)
def test_products_or_convolutions(
    dtype: torch.dtype,
    format_: torch.memory_format,
    image: tuple[int, ...],
    results: int,
    ways: list[str],
    is_small: bool,
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_product, "_has_small_cache", lambda: is_small)
    # An op of its own, whose calls are not looked up yet.
    name = f"pointwise_{results}_{image[0]}_{image[2]}_{dtype.itemsize}_{int(format_ == LAST)}"
    name += f"_{int(is_small)}"
    function = getattr(opgen.compile(POINTWISE.replace("op pointwise", f"op {name}")), name)
    torch.manual_seed(0)
    x = torch.randint(-1, 2, image).to(dtype).contiguous(memory_format=format_).requires_grad_()
    w = torch.randint(-1, 2, (results, image[1])).to(dtype).requires_grad_()
    y = function(x, w)
    seed = torch.zeros_like(y)
    seed[:, ::3, ::4, 1::5] = 1
    gradients = torch.autograd.grad(y, (x, w), seed)
    exact = torch.einsum("nchw,oc->nohw", x.double(), w.double())
    wanted = exact, *torch.autograd.grad(exact, (x, w), seed.double())
    for one, other in zip((y, *gradients), wanted, strict=True):
        assert torch.equal(one, other.to(dtype)), "small integers have no rounding"
    assert asked == ways


@pytest.mark.parametrize(
    ("rows", "ways"), [(24, ["multiply"] * 3), (2, []), (0, [])], ids=["many", "few", "none"]
)
def test_what_is_copied_as_a_convolution_is_a_product(
    rows: int, ways: list[str], asked: list[str]
) -> None:
    """Heads are dims of pixels behind channels, and of a matrix. It is copied once, and not both of
    image and result."""
    text = (
        f"op heads_{rows}(x[B,N,D], w[A,H,E,D]) -> y[A,B,H,N,E]\n"
        "  y[a,b,h,n,e] = sum(d) x[b,n,d]*w[a,h,e,d]\n"
    )
    function = getattr(opgen.compile(text), f"heads_{rows}")
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (4, rows, 96)).float().requires_grad_()
    w = torch.randint(-2, 3, (3, 4, 32 if rows > 2 else 2, 96)).float().requires_grad_()
    y = function(x, w)
    exact = torch.einsum("bnd,ahed->abhne", x.double(), w.double())
    assert torch.equal(y, exact.float()), "small integers have no rounding"
    assert y.is_contiguous()
    found, wanted = (torch.autograd.grad(r, (x, w), torch.ones_like(r)) for r in (y, exact))
    assert all(map(torch.equal, found, wanted))
    assert asked == ways


def test_a_bias_may_stand_for_another_number_than_zero() -> None:
    text = POINTWISE.replace("op pointwise", "op biased").replace("= 0)", "= 2)")
    function = opgen.compile(text).biased
    x, w = torch.ones(2, 32, 8, 9), torch.ones(32, 32)
    for _ in range(2):
        assert torch.equal(function(x, w), torch.full((2, 32, 8, 9), 34.0))
        assert torch.equal(function(x, w, torch.ones(32)), torch.full((2, 32, 8, 9), 33.0))


@pytest.mark.parametrize("name", ["x", "w"])
def test_numbers_that_are_not_finite_stay_where_they_are(name: str) -> None:
    function = opgen.compile(POINTWISE).pointwise
    torch.manual_seed(0)
    x, w = torch.randn(2, 64, 4, 4, requires_grad=True), torch.randn(32, 64, requires_grad=True)
    with torch.no_grad():
        if name == "x":
            x[0, 3, 1, 2] = torch.inf
        else:
            w[5, 7] = torch.nan
    for _ in range(3):
        y = function(x, w)
        gradients = torch.autograd.grad(y.square(), (x, w), torch.ones_like(y))
        is_finite = y.isfinite()
        if name == "x":
            assert not is_finite[0, :, 1, 2].any()
            is_finite[0, :, 1, 2] = True
        else:
            assert not is_finite[:, 5].any()
            is_finite[:, 5] = True
        assert is_finite.all()
        exact = 2 * torch.einsum("nohw,nchw->oc", y.detach().double(), x.detach().double())
        assert torch.equal(gradients[1].isfinite(), exact.isfinite())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_second_derivatives(dtype: torch.dtype) -> None:
    function = opgen.compile(POINTWISE).pointwise
    torch.manual_seed(0)
    x, w = torch.randint(-2, 3, (2, 16, 3, 5)), torch.randint(-1, 2, (8, 16))
    v = torch.randint(-1, 2, (8, 16))

    def second(f: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        a, b = x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()
        y = f(a, b)
        first = torch.autograd.grad((y * y.detach().sign()).sum(), (a, b), create_graph=True)
        total = (first[1] * v).sum() + (first[0] * x).sum()
        return torch.autograd.grad(total, (a, b))

    mine = second(function, dtype)
    theirs = second(lambda a, b: reference("pointwise", a, b), torch.float64)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one.double(), other)
