"""Factors that all terms of a sum share: which statements have them, and gradients without them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import stage_text
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.ir.show import show
from opgen.ir.verify import verify
from opgen.lang.read import read
from opgen.passes.derive import joint
from opgen.passes.factored_sums import with_factored_sums
from opgen.programs import for_cpu

NORMS = (SPECS / "norm.op").read_text(encoding="utf-8")
HEAD = "op f(x: float[N,C,H], w[C], s[N], m[N,C,H]) -> y[N]\n"


def read_one(text: str) -> Op:
    (op,) = read(Source(text, "<test>"))
    return op


def statements_of(op: Op) -> list[str]:
    """The statements of the factored op as text."""
    found = with_factored_sums(op)
    verify(found)
    lines = show(found).splitlines()
    return [line.strip() for line in lines if " = " in line and "op " not in line]


# ---------------------------------------------------------------------------- which statements
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "y[n] = sum(c,h) x[n,c,h] / s[n]",
            ["y_sums[n] = sum(c,h) x[n,c,h]", "y[n] = select(C*H == 0, 0, y_sums[n] / s[n])"],
        ),
        (
            "y[n] = sum(c,h) (-w[c] * x[n,c,h]) * m[n,c,h]",
            [
                "y_sums[n,c] = sum(h) m[n,c,h] * x[n,c,h]",
                "y[n] = sum(c) (-select(H == 0, 0, w[c] * y_sums[n,c]))",
            ],
        ),
        (
            "y[n] = sum(h,c) s[n] / x[n,c,h]",
            ["y_sums[n] = sum(c,h) 1 / x[n,c,h]", "y[n] = select(C*H == 0, 0, s[n] * y_sums[n])"],
        ),
        (
            "y[n] = sum(c,h in H) x[n,c,h+1 ?clamp] * s[n]",
            None,  # a cell that the boundary chooses
        ),
    ],
)
def test_what_is_multiplied_once(line: str, expected: list[str] | None) -> None:
    op = read_one(f"{HEAD}  {line}\n")
    if expected is None:
        assert with_factored_sums(op) == op
        return
    found = statements_of(op)
    assert [each.replace("sum(h,c)", "sum(c,h)") for each in found] == expected


@pytest.mark.parametrize(
    "line",
    [
        "y[n] = sum(c,h) x[n,c,h] * m[n,c,h]",  # no factor is shared
        "y[n] = sum(c,h) 2 * C * x[n,c,h] / 3",  # numbers
        "y[n] = sum(c,h) (x[n,c,h] + s[n])",  # a sum in a sum
        "y[n] = sum(c,h in H) x[n,c,h ?0] * s[n]",
        "y[n] = sum(c,h if h >= c) x[n,c,h] * s[n]",
        "y[n] = max(c,h) x[n,c,h] * s[n]",
        "y[n] = sum(c in 3) x[n,c ?0,0 ?0] * s[n]",
        "y[n] = sum(c,h in 20) w[c] * s[n]",  # h counts: no factor moves with all
    ],
)
def test_what_is_not(line: str) -> None:
    op = read_one(f"{HEAD}  {line}\n")
    assert with_factored_sums(op) == op


def test_few_terms_are_not_worth_it() -> None:
    head = "op f(x: float[N,4], z[N,17], s[N]) -> y[N]\n"
    few = read_one(f"{head}  y[n] = sum(k) x[n,k] * s[n]\n")
    assert with_factored_sums(few) == few
    # With a constant number of terms there is no sum of nothing.
    many = read_one(f"{head}  y[n] = sum(k) z[n,k] * s[n]\n")
    assert statements_of(many) == ["y_sums[n] = sum(k) z[n,k]", "y[n] = s[n] * y_sums[n]"]


def test_other_types_stay() -> None:
    """What is declared as float32 is summed in it, and integers have no reciprocals."""
    for declared in ("f32", "i64"):
        text = f"op f(x: {declared}[N,C], s: {declared}[N]) -> y: {declared}[N]\n"
        op = read_one(f"{text}  y[n] = sum(c) x[n,c] * s[n]\n")
        assert with_factored_sums(op) == op


DECIDING = {
    "a condition": "y[n,c] = select(d[n,c] >= 1, 3*x[n,c], x[n,c])",
    "the larger": "y[n,c] = max(d[n,c], 1)",
    "a function": "y[n,c] = floor(d[n,c]) * x[n,c]",
    "through another": "e[n,c] = 2*d[n,c] - 1\n  y[n,c] = select(e[n,c] == 1, 3*x[n,c], x[n,c])",
    "an extreme": "e[n] = max(c) d[n,c]\n  y[n,c] = e[n] * x[n,c]",
}


@pytest.mark.parametrize("lines", DECIDING.values(), ids=DECIDING)
def test_what_something_is_decided_by_stays(lines: str) -> None:
    """`x * (1 / s)` is not 1 where `x / s` is: gradients would go another way."""
    head = "op f(x: float[N,C], s[N]) -> y[N,C]\n  d[n,c] = x[n,c] / s[n]\n"
    op = read_one(f"{head}  {lines}\n")
    assert with_factored_sums(op) == op
    assert (
        with_factored_sums(read_one(f"{head}  y[n,c] = d[n,c] * 2\n")).statements[0]
        != (op.statements[0])
    )


@pytest.mark.parametrize("shape", [(60, 30), (400, 131)])
def test_quotients_that_are_exactly_one(shape: tuple[int, int]) -> None:
    """Of the largest number in each row; small calls, and large ones, which keep it."""
    text = """op f(x: float[N,C]) -> y[N,C]
  m[n] = max(c) x[n,c]
  d[n,c] = x[n,c] / m[n]
  y[n,c] = select(d[n,c] >= 1, 3*x[n,c], x[n,c])
"""
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    call = opgen.compile(text).f
    largest = x.detach().amax(1, keepdim=True)
    wanted = torch.where(x.detach() / largest >= 1, 3.0, 1.0)
    assert (wanted == 3).sum() >= shape[0]
    for _ in range(2):
        y = call(x)
        assert torch.equal(y, wanted * x)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], wanted)


def test_an_op_of_a_spec_computes_what_is_written() -> None:
    op = read_one(f"{HEAD}  y[n] = sum(c,h) x[n,c,h] / s[n]\n")
    assert for_cpu(op) == op
    assert for_cpu(op, is_derived=True) != op
    text = stage_text(Source(f"{HEAD}  y[n] = sum(c,h) x[n,c,h] / s[n]\n", "<test>"), "loops")
    forward, *gradients = text.split("program f")
    assert "y_sums" not in "".join(gradients).split("kernel f_grad")[0] + forward


def test_sums_are_shared() -> None:
    """Gradients of a group norm are two sums over images, those of its parameters sums of these."""
    ops = {each.name: each for each in read(Source(NORMS, "norm.op"))}
    op = ops["group_norm"]
    derived = joint(op, ops)
    assert derived is not None
    over_images = [
        each
        for each in with_factored_sums(derived.op).statements
        if each.target.tensor.startswith("grad_")
        and {"h", "w"} <= {i.name for i in each.iterators} - target_names(each.target.indices)
    ]
    assert [each.target.tensor for each in over_images] == ["grad_mu_sums", "grad_variance_sums"]


def target_names(indices: tuple[object, ...]) -> set[str]:
    return {name for index in indices for name in index.value.symbols}  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------- values
SHIFTED = """op shifted(x: float[N,(g C),H], w[(g C)], s[N,g]; g: int) -> y[N,(g C),H], t[N,g]
  where g >= 1
  y[n,(k c),h] = x[n,(k c),h] * w[(k c)] / s[n,k]
  t[n,k] = sum(c,h) x[n,(k c),h] * x[n,(k c),h] * w[(k c)] / (s[n,k] * 3)
"""


def shifted(x: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    n, channels, h = x.shape
    g = s.shape[1]
    grouped, weight = x.reshape(n, g, channels // g, h), w.reshape(g, channels // g, 1)
    y = grouped * weight / s[..., None, None]
    t = (grouped * grouped * weight).sum((2, 3)) / (s * 3)
    return y.reshape(n, channels, h), t


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "sizes", [(2, 2, 3, 17), (1, 1, 1, 1), (3, 4, 1, 40), (2, 3, 2, 0), (0, 2, 2, 5)]
)
@pytest.mark.parametrize("layout", ["contiguous", "turned"])
def test_gradients_beside_pytorch(sizes: tuple[int, ...], layout: str) -> None:
    n, g, c, h = sizes
    module = opgen.compile(SHIFTED)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, g * c, h, generator=generator, dtype=torch.float64)
    if layout == "turned":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    w = torch.randn(g * c, generator=generator, dtype=torch.float64)
    s = torch.rand(n, g, generator=generator, dtype=torch.float64) + 0.5
    inputs = tuple(each.requires_grad_() for each in (x, w, s))
    compare(lambda *given: module.shifted(*given, g=g), shifted, inputs)


def compare(
    ours: Callable[..., tuple[Tensor, ...]],
    theirs: Callable[..., tuple[Tensor, ...]],
    inputs: tuple[Tensor, ...],
) -> None:
    """First and second gradients of all inputs together, and each alone."""
    generator = torch.Generator().manual_seed(4)
    results = [ours(*inputs), theirs(*inputs)]
    flowing = [
        torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in results[0]
    ]
    first = [torch.autograd.grad(each, inputs, flowing, create_graph=True) for each in results]
    torch.testing.assert_close(*first)
    for at, one in enumerate(inputs):
        (alone,) = torch.autograd.grad(ours(*inputs), one, flowing)
        torch.testing.assert_close(alone, first[1][at].detach())
    along = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in inputs]
    second = [torch.autograd.grad(each, inputs, along, allow_unused=True) for each in first]
    for mine, wanted in zip(*second, strict=True):
        torch.testing.assert_close(mine, wanted)


LEADING = """op scaled(x: float[...,D], w[D], s[D], t[...]) -> y[...,D], z[...]
  y[...,d] = x[...,d] * w[d] / s[d]
  z[...] = sum(d) x[...,d] * w[d] / t[...]
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(5,), (7, 33), (2, 3, 40), (0, 4), (3, 0), (600, 20)])
def test_leading_dims(shape: tuple[int, ...]) -> None:
    """Sums over all that leads, of which there may be nothing."""
    module = opgen.compile(LEADING)
    generator = torch.Generator().manual_seed(5)
    sizes = (shape, shape[-1:], shape[-1:], shape[:-1])
    drawn = (torch.rand(each, generator=generator, dtype=torch.float64) + 0.5 for each in sizes)
    compare(
        module.scaled,
        lambda x, w, s, t: (x * w / s, (x * w).sum(-1) / t),
        tuple(each.requires_grad_() for each in drawn),
    )


def test_sums_of_nothing_are_zero() -> None:
    """The deviation of a group without cells is no number, and its parameters still have
    gradients: nothing was added to them."""
    norm = opgen.compile(NORMS).group_norm
    x = torch.randn(2, 4, 0, 3, requires_grad=True)
    w, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    flowing = torch.randn(2, 4, 0, 3)
    found = torch.autograd.grad(norm(x, w, b, num_groups=2), (x, w, b), flowing)
    assert found[0].shape == x.shape
    assert torch.equal(found[1], torch.zeros(4))
    assert torch.equal(found[2], torch.zeros(4))


def test_small_divisors() -> None:
    """Divided by one after the other: the square of this one is no float32."""
    text = "op f(x: float[N,C], s[N]) -> y[N,C]\n  y[n,c] = x[n,c] / s[n]\n"
    ours = opgen.compile(text).f
    x = torch.full((2, 40), 1e-12, requires_grad=True)
    s = torch.full((2,), 1e-20, requires_grad=True)
    flowing = torch.full((2, 40), 1e-12)
    found = torch.autograd.grad(ours(x, s), (x, s), flowing)
    wanted = torch.autograd.grad(x / s[:, None], (x, s), flowing)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
