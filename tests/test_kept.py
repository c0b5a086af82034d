"""Gradients that read what the forward pass computed on its way: sums, maxima, and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import opgen
from catalogue import SPECS
from opgen import on_demand
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.ir.notation import reads as reads_of
from opgen.ir.show import show
from opgen.passes.derive import derive
from opgen.passes.kept import keepable, keeping, with_kept
from opgen.passes.kept_quotients import quotients, without_quotient
from opgen.runtime import Operation, generated
from opgen.runtime.lookup_kept import Keeps

SOFTMAX = """op f(x[N,C]) -> y[N,C]
  p[n] = max(c) x[n,c]
  e[n,c] = exp(x[n,c] - p[n])
  s[n] = sum(c) e[n,c]
  y[n,c] = e[n,c] / s[n]
"""
BATCH_NORM = """op f(x: float[N,C,H,W], w[C], b[C]) -> y[N,C,H,W]
  mu[c] = mean(n,h,i) x[n,c,h,i]
  s[c] = mean(n,h,i) (x[n,c,h,i] - mu[c])**2
  y[n,c,h,i] = (x[n,c,h,i] - mu[c]) * rsqrt(s[c] + 0.00001) * w[c] + b[c]
"""
CHANNELS = """op f(x: float[N,C,H,W]) -> y[N,C,H,W]
  p[n,h,w] = max(c) x[n,c,h,w]
  e[n,c,h,w] = exp(x[n,c,h,w] - p[n,h,w])
  y[n,c,h,w] = e[n,c,h,w] / (sum(k) e[n,k,h,w])
"""
NORMS = (SPECS / "norm.op").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------- the ops
def checked(text: str) -> Op:
    (op,) = check_source(Source(text, "<test>"))
    return op


def of_kept(text: str, names: tuple[str, ...], path: tuple[str, ...] = ("f", "x")) -> str:
    """What a gradient is that is given these tensors, and which it reads, as text."""
    ops = check_source(Source(text, "<test>"))
    derived = next(member.op for member in derive(ops, 1) if member.path == path)
    found, kept = with_kept(derived, ops[0], names)
    return f"{' '.join(kept)}\n{show(found)}"


def test_totals_have_fewer_dims_than_what_they_are_of() -> None:
    assert keepable(checked(SOFTMAX)).totals == ("p", "s")
    assert keepable(checked(BATCH_NORM)).totals == (
        "_t1",
        "_t2",
    )  # sums, of which means are quotients


NONE = {
    "no temporaries": "op f(x[N,C]) -> y[N]\n  y[n] = sum(c) x[n,c]\n",
    "as many dims": """op f(x[N]) -> y[N]
  tmp z[N]
  z[n] = sum(k in 3) x[n + k - 1 ?0]
  y[n] = z[n] * z[n]
""",
    "one other cell": """op f(x[N,C]) -> y[N,C]
  where N >= 1
  tmp z[C]
  z[c] = exp(x[0,c])
  y[n,c] = x[n,c] * z[c]
""",
    "positions": """op f(x[N,C]) -> y[N]
  tmp z: int[N]
  z[n] = argmax(c) x[n,c]
  y[n] = x[n, z[n]]
""",
    "a gradient that is written by hand": """op f(x[N,C]) -> y[N,C]
  gradient x by g
  tmp s[N]
  s[n] = sum(c) x[n,c]
  y[n,c] = x[n,c] * s[n]

op g(x[N,C], grad_y[N,C]) -> grad_x[N,C]
  grad_x[n,c] = grad_y[n,c] * x[n,c]
""",
}


@pytest.mark.parametrize("text", NONE.values(), ids=NONE)
def test_ops_without_totals(text: str) -> None:
    assert keepable(check_source(Source(text, "<test>"))[0]).totals == ()


def test_an_op_that_keeps() -> None:
    assert show(keeping(checked(SOFTMAX), ("s",))) == (
        "op f_keeping(x[N,C]) -> y[N,C], s[N]\n"
        "  tmp p[N], e[N,C]\n"
        "  p[n] = max(c) x[n,c]\n"
        "  e[n,c] = exp(x[n,c] - p[n])\n"
        "  s[n] = sum(c) e[n,c]\n"
        "  y[n,c] = e[n,c] / s[n]\n"
    )


def test_a_gradient_that_is_given_totals_and_the_output() -> None:
    """All that the exponential is multiplied by was divided by the sum: the output is enough."""
    assert of_kept(SOFTMAX, ("p", "s", "y")) == (
        "y\n"
        "## Gradient of `f` with respect to `x`.\n"
        "op f_grad_x_of_kept(y: float[N,C], grad_y: float[N,C]) -> grad_x: float[N,C]\n"
        "  tmp grad_e: float[N,C], grad_s: float[N]\n"
        "  grad_e[n,c] += grad_y[n,c]\n"
        "  grad_s[n] = sum(c) (-y[n,c] * grad_y[n,c])\n"
        "  grad_e[n,c] += grad_s[n]\n"
        "  grad_x[n,c] = y[n,c] * grad_e[n,c]\n"
    )


SQUARES = SOFTMAX.replace("sum(c) e[n,c]", "sum(c) e[n,c]**2")


DECIDING = {
    "a square": SQUARES,
    "a maximum": SOFTMAX.replace("sum(c) e[n,c]", "sum(c) max(e[n,c], 1)"),
    "a condition": SOFTMAX.replace("sum(c) e[n,c]", "sum(c) select(e[n,c] > 1, 2*e[n,c], 1)"),
    "a function": SOFTMAX.replace("sum(c) e[n,c]", "sum(c) log(e[n,c])**2"),
    "a maximum of a multiple": SOFTMAX.replace(
        "  s[n] = sum(c) e[n,c]", "  t[n,c] = 2*e[n,c]\n  s[n] = sum(c) max(t[n,c], 2)"
    ),
    "a largest one": SOFTMAX.replace("sum(c) e[n,c]", "max(c) e[n,c]"),
}


@pytest.mark.parametrize("text", DECIDING.values(), ids=DECIDING)
def test_a_dividend_that_does_more_than_to_multiply_is_computed_again(text: str) -> None:
    """The output times the divisor is rounded twice, and may be 0."""
    kept, found = of_kept(text, ("p", "s", "y")).split("\n", 1)
    assert "s" in kept.split() and "y" not in kept.split()
    assert "exp" in found


@pytest.mark.parametrize(
    "text",
    [
        SOFTMAX.replace("  y[n,c] = e", "  z[n,c] = e[n,c] * x[n,c]\n  y[n,c] = e").replace(
            "-> y[N,C]", "-> y[N,C], z[N,C]"
        ),
        SOFTMAX.replace("sum(c) e[n,c]", "sum(c) e[n,c] * e[n,C-1-c]"),
        SOFTMAX.replace("s[n] = sum(c) e[n,c]", "s[n] = sum(c) e[n,c] * x[n,c]"),
        SOFTMAX.replace("/ s[n]", "/ s[N-1-n]"),
        SOFTMAX.replace("/ s[n]", "/ s[n-1 ?(1)]"),
        SOFTMAX.replace("s[n] = sum(c)", "tmp s[N]\n  s[n//2] +=").replace("/ s[n]", "/ s[n//2]"),
    ],
    ids=["another output", "another cell", "another factor", "turned", "moved", "shared"],
)
def test_divisors_that_stay(text: str) -> None:
    kept, found = of_kept(text, ("p", "s", "y")).split("\n", 1)
    assert "s" in kept.split() and "y" not in kept.split()
    assert "/ s[" in found and "exp" in found


def test_what_was_tried_leaves_no_trace() -> None:
    """A sum that is divided in one of two factors stays what it was in the other one."""
    text = """op f(q[N,C], s[N], e[N,C], y[N,C]) -> o[N,C]
  t[n] = sum(c) q[n,c] / s[n]
  g[n,c] = (t[n] + q[n,c]) * (q[n,c] / s[n])
  o[n,c] = e[n,c] * g[n,c]
"""
    op = checked(text)
    (quotient,) = quotients(
        checked(
            "op f(e0[N,C], s[N]) -> y[N,C]\n  tmp e[N,C]\n"
            "  e[n,c] = exp(e0[n,c])\n  y[n,c] = e[n,c] / s[n]\n"
        )
    )
    found = without_quotient(op.statements, quotient, {"t", "g"})
    assert found is not None
    t, g, _ = found
    assert t == op.statements[0]
    assert {access.tensor for access in reads_of(g.body)} == {"t", "q"}


def test_a_softmax_of_segments() -> None:
    text = """op f(x: float[N,C], t: i64[N]) -> y[N,C]
  e[n,c] = exp(x[n,c])
  tmp s[N]
  s[t[n]] += e[n,c]
  y[n,c] = e[n,c] / s[t[n]]
"""
    torch.manual_seed(0)
    x, t = torch.randn(300, 131, requires_grad=True), torch.randint(20, (300,))
    call = opgen.compile(text).f
    sums = torch.zeros(300).index_add(0, t, x.exp().sum(1))
    theirs = x.exp() / sums[t][:, None]
    for _ in range(2):
        y = call(x, t)
        close(y, theirs)
        (found,) = gradients(y, [x])
        close(found, gradients(theirs, [x], retain_graph=True)[0])


def test_an_output_says_nothing_without_its_divisor() -> None:
    assert of_kept(SOFTMAX, ("p", "y")).startswith("p\n")


OTHERS = {
    "a type of fewer bits": SOFTMAX.replace("y[N,C]\n", "y: bf16[N,C]\n"),
    "another cell": SOFTMAX.replace("e[n,c] / s[n]", "e[n, c - 1 ?0] / s[n]"),
    "a part of it": SOFTMAX.replace("y[N,C]\n", "y[N,D]\n  let D = C - 1\n").replace(
        " / s[n]", " / s[n] for c in D"
    ),
    "written twice": SOFTMAX + "  y[n,c] += x[n,c]\n",
    "a dividend that is quick to compute": SOFTMAX.replace("exp(x[n,c] - p[n])", "x[n,c] - p[n]"),
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_outputs_that_do_not_tell_what_they_were_divided_from(text: str) -> None:
    kept, _ = of_kept(text, ("p", "s", "y")).split("\n", 1)
    assert "y" not in kept.split()


def test_dims_in_another_order() -> None:
    text = SOFTMAX.replace("y[N,C]\n", "y[C,N]\n").replace("y[n,c] =", "y[c,n] =")
    assert "grad_x[n,c] = y[c,n] * grad_e[n,c]" in of_kept(text, ("s", "y"))


# ---------------------------------------------------------------------------- numbers
@dataclass(frozen=True)
class Case:
    """An op, the shapes of its inputs, and what PyTorch has in its place."""

    text: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    theirs: Callable[..., Tensor]
    attributes: dict[str, Any] = field(default_factory=dict)

    def made(self) -> tuple[Callable[..., Tensor], Operation]:
        """The op, and what is known of its calls, nothing so far."""
        module = opgen.compile(self.text)
        call, operation = getattr(module, self.op), module.FAMILY.operations[self.op]
        return lambda *inputs: call(*inputs, **self.attributes), operation

    def inputs(
        self, dtype: torch.dtype, format_: torch.memory_format = torch.contiguous_format
    ) -> list[Tensor]:
        torch.manual_seed(len(self.text))
        made = [torch.randn(shape, dtype=dtype) for shape in self.shapes]
        if made[0].dim() == 4:
            made[0] = made[0].contiguous(memory_format=format_)
        return [each.requires_grad_() for each in made]


def at_zeros(rows: int, columns: int) -> Tensor:
    """Numbers of which half are zeros, as behind a ReLU: their exponentials are exactly 1."""
    torch.manual_seed(0)
    return torch.randn(rows, columns, dtype=torch.float64).clamp(min=0)


def with_small(rows: int, columns: int) -> Tensor:
    """Numbers of which one in each row has so small an exponential that its quotient is 0."""
    x = at_zeros(rows, columns)
    x[:, 3] = -85
    return x


BARE = """op f(x: float[N,C]) -> y[N,C]
  e[n,c] = exp(x[n,c])
  s[n] = sum(c) e[n,c]
  y[n,c] = e[n,c] / s[n]
"""


def _of_exponentials(divisor: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        e = x.exp()
        return e / divisor(e).sum(1, keepdim=True)

    return call


EXACT = {
    "a maximum": (
        BARE.replace("sum(c) e[n,c]", "sum(c) max(e[n,c], 1)"),
        at_zeros,
        _of_exponentials(lambda e: torch.where(e >= 1, e, 1)),  # to the first, of equal ones
    ),
    "a maximum of a multiple": (
        BARE.replace(
            "  s[n] = sum(c) e[n,c]", "  t[n,c] = 2*e[n,c]\n  s[n] = sum(c) max(t[n,c], 2)"
        ),
        at_zeros,
        _of_exponentials(lambda e: torch.where(e >= 1, 2 * e, 2)),
    ),
    "a logarithm": (
        BARE.replace("sum(c) e[n,c]", "sum(c) 1000000*log(e[n,c])**2"),
        with_small,
        _of_exponentials(lambda e: 1e6 * e.log() ** 2),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", EXACT)
def test_what_decides_is_the_very_number(case: str, dtype: torch.dtype) -> None:
    """Large calls, of which sums are kept, against PyTorch in float64."""
    text, numbers, theirs = EXACT[case]
    x = numbers(300, 131).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    call = opgen.compile(text).f
    for _ in range(2):
        y = call(x)
        torch.manual_seed(1)
        flowing = torch.randn(y.shape, dtype=torch.float64).to(dtype)
        (wanted,) = torch.autograd.grad(theirs(wide), wide, flowing.double())
        (found,) = torch.autograd.grad(y, x, flowing)
        scale = float(wanted.abs().max())
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5 * scale)


IMAGES = (3, 16, 31, 32)


def _over_squares(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / (e * e).sum(-1, keepdim=True)


CASES = {
    "over squares": Case(SQUARES, "f", ((311, 131),), _over_squares),
    "softmax": Case(SOFTMAX, "f", ((311, 131),), lambda x: torch.softmax(x, -1)),
    "softmax of channels": Case(CHANNELS, "f", (IMAGES,), lambda x: torch.softmax(x, 1)),
    "batch norm": Case(
        BATCH_NORM,
        "f",
        (IMAGES, (16,), (16,)),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    ),
    "layer norm": Case(
        NORMS,
        "layer_norm",
        ((7, 50, 120), (120,), (120,)),
        lambda x, w, b: F.layer_norm(x, (120,), w, b),
    ),
    "group norm": Case(
        NORMS,
        "group_norm",
        (IMAGES, (16,), (16,)),
        lambda x, w, b: F.group_norm(x, 4, w, b),
        {"num_groups": 4},
    ),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
FORMATS = (torch.contiguous_format, torch.channels_last)


def gradients(y: Tensor, inputs: list[Tensor], **how: Any) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    cotangent = torch.empty_like(y).copy_(torch.randn(y.shape, dtype=y.dtype))
    return torch.autograd.grad(y, inputs, cotangent, **how)


def close(mine: Tensor, theirs: Tensor) -> None:
    scale = max(1.0, float(theirs.detach().abs().max()))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5 * scale)


def reads(y: Tensor) -> tuple[str, ...] | None:
    """What a call kept for its gradients."""
    left = getattr(y.grad_fn, "left", None)
    if left is None:
        return None
    return (*left.names, *(name for name, _, _ in left.outputs))


@EACH
@pytest.mark.parametrize("format_", FORMATS, ids=["contiguous", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.sampled(12)
def test_numbers_and_gradients(
    case: Case, format_: torch.memory_format, dtype: torch.dtype
) -> None:
    call, _ = case.made()
    inputs = case.inputs(dtype, format_)
    for _ in range(2):
        y, theirs = call(*inputs), case.theirs(*inputs)
        assert reads(y), "it kept nothing"
        close(y, theirs)
        found = gradients(y, inputs)
        assert found[0].stride() == inputs[0].stride()
        for mine, other in zip(found, gradients(theirs, inputs), strict=True):
            close(mine, other)


@pytest.mark.sampled(4)
@EACH
def test_a_call_always_gives_the_same_bits(case: Case) -> None:
    (call, _), inputs = case.made(), case.inputs(torch.float32)
    y = call(*inputs)
    first = gradients(y, inputs, retain_graph=True)
    assert all(map(torch.equal, gradients(y, inputs), first))
    with torch.no_grad():
        assert torch.equal(call(*inputs), y)
    assert all(map(torch.equal, gradients(call(*inputs), inputs), first))


@EACH
@pytest.mark.sampled(12)
def test_gradients_of_gradients(case: Case) -> None:
    inputs = case.inputs(torch.float64)

    def second(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        first = gradients(call(*inputs), inputs, create_graph=True)
        total = sum((each * each).sum() for each in first)
        assert isinstance(total, Tensor)
        return torch.autograd.grad(total, inputs, allow_unused=True)

    mine, theirs = second(case.made()[0]), second(case.theirs)
    for one, other in zip(mine, theirs, strict=True):
        if one is None or other is None:
            rest = one if other is None else other
            assert rest is None or not rest.any()
        else:
            close(one, other)


def test_some_gradients() -> None:
    case = CASES["batch norm"]
    (call, _), inputs = case.made(), case.inputs(torch.float32)
    whole = gradients(case.theirs(*inputs), inputs)
    for wanted in ((0,), (1,), (2,), (0, 2), (1, 2)):
        given = [x if at in wanted else x.detach() for at, x in enumerate(inputs)]
        found = gradients(call(*given), [given[at] for at in wanted])
        for at, mine in zip(wanted, found, strict=True):
            close(mine, whole[at])


def test_an_input_that_is_absent() -> None:
    case = CASES["layer norm"]
    (call, _), (x, w, b) = case.made(), case.inputs(torch.float32)
    for given in ((x,), (x, w), (x, None, b)):
        wanted = [each for each in given if each is not None]
        mine = call(*given)
        theirs = F.layer_norm(x, (120,), *given[1:])
        close(mine, theirs)
        for one, other in zip(gradients(mine, wanted), gradients(theirs, wanted), strict=True):
            close(one, other)


# ---------------------------------------------------------------------------- outputs that are read
def test_an_output_that_was_changed_is_not_read() -> None:
    case = CASES["softmax"]
    (call, _), inputs = case.made(), case.inputs(torch.float32)
    assert reads(call(*inputs)) == ("p", "s", "y")  # no gradient is known yet
    gradients(call(*inputs), inputs)
    y = call(*inputs)
    assert reads(y) == ("y",)
    y.mul_(3)
    (found,) = gradients(y, inputs)
    close(found, gradients(case.theirs(*inputs) * 3, inputs)[0])


def test_outputs_are_released_with_the_graph() -> None:
    case = CASES["softmax"]
    (call, _), inputs = case.made(), case.inputs(torch.float32)
    y = call(*inputs)
    gradients(y, inputs, retain_graph=True)
    assert reads(y) is not None
    gradients(y, inputs)
    assert reads(y) is None


def test_outputs_that_were_changed_are_released_too() -> None:
    case = CASES["softmax"]
    (call, _), inputs = case.made(), case.inputs(torch.float32)
    y = call(*inputs)
    node = y.grad_fn
    y.mul_(3)
    gradients(y, inputs)
    assert node is not None and getattr(node, "left", y) is None


def test_rows_that_are_masked() -> None:
    case = CASES["softmax"]
    (call, _), (x,) = case.made(), case.inputs(torch.float32)
    with torch.no_grad():
        x[5, 3:] = -torch.inf
        x[6, :] = -torch.inf
        x[7, 4] = 200.0
    for mine, theirs in (
        (call(x), case.theirs(x)),
        (gradients(call(x), [x])[0], gradients(case.theirs(x), [x])[0]),
    ):
        assert torch.equal(torch.isnan(mine), torch.isnan(theirs))
        close(mine[~torch.isnan(mine)], theirs[~torch.isnan(theirs)])


def test_a_divisor_without_end() -> None:
    """Each exponential is finite and their sum is not: results are 0, and so are gradients."""
    text = SOFTMAX.replace("x[n,c] - p[n]", "x[n,c]").replace("  p[n] = max(c) x[n,c]\n", "")
    x = torch.full((311, 131), 88.5)
    x[1:] = 0.5
    x.requires_grad_()
    call = opgen.compile(text).f
    gradients(call(x), [x])
    y = call(x)
    assert reads(y) == ("y",)
    (found,) = gradients(y, [x])
    assert not y[0].any()
    assert torch.equal(found[0], torch.zeros(131))
    assert torch.isfinite(found).all()


CROSS_ENTROPY = """op f(x: float[N,C], t: i64[N]) -> y[N]
  p[n] = max(c) x[n,c]
  y[n] = log(sum(c) exp(x[n,c] - p[n])) + p[n] - x[n,t[n]]
"""


def test_beside_indices() -> None:
    call = opgen.compile(CROSS_ENTROPY).f
    torch.manual_seed(0)
    x, t = torch.randn(311, 131, requires_grad=True), torch.randint(131, (311,))
    for _ in range(2):
        y, theirs = call(x, t), F.cross_entropy(x, t, reduction="none")
        assert reads(y), "it kept nothing"
        close(y, theirs)
        close(*(gradients(each, [x])[0] for each in (y, theirs)))


def test_calls_without_any_tensor() -> None:
    text = """op f(m: float[N,K] = 2; N: size, K: size) -> y[N,K]
  c[n] = sum(k) m[n,k]
  y[n,k] = c[n] * m[n,k]
"""
    module = opgen.compile(text)
    assert Keeps.of(module.FAMILY.operations["f"]).forward((True,), (None,), (300, 200)) is None
    assert torch.equal(module.f(N=300, K=200), torch.full((300, 200), 800.0))


def test_indices_that_are_outside() -> None:
    call = opgen.compile(CROSS_ENTROPY).f
    x, t = torch.randn(311, 131, requires_grad=True), torch.randint(131, (311,))
    for _ in range(2):
        for wrong in (131, -1, 2**40):
            with pytest.raises(IndexError, match="f: index"):
                call(x, t.clone().index_fill_(0, torch.tensor([7]), wrong))
        close(call(x, t), F.cross_entropy(x, t, reduction="none"))


# ---------------------------------------------------------------------------- nothing is kept
def test_small_calls_keep_nothing() -> None:
    call, _ = CASES["softmax"].made()
    x = torch.randn(20, 30, requires_grad=True)
    y = call(x)
    assert reads(y) is None
    close(gradients(y, [x])[0], gradients(torch.softmax(x, -1), [x])[0])


def test_sparse_tensors_are_refused_as_ever() -> None:
    call, _ = CASES["softmax"].made()
    x = torch.eye(300).to_sparse().requires_grad_()
    with pytest.raises((TypeError, ValueError), match="f: x"):
        call(x)


def test_totals_that_are_not_small() -> None:
    """Of rows of two cells a maximum and a sum are as much as the input."""
    call, _ = CASES["softmax"].made()
    x = torch.randn(40000, 2, requires_grad=True)
    y = call(x)
    assert reads(y) is None
    close(gradients(y, [x])[0], gradients(torch.softmax(x, -1), [x])[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype: torch.dtype) -> None:
    """Sums have more bits than a tensor of such a type."""
    call, _ = CASES["softmax"].made()
    x = torch.randn(311, 131).to(dtype).requires_grad_()
    y = call(x)
    assert reads(y) is None
    wide = x.detach().float().requires_grad_()
    torch.manual_seed(1)
    cotangent = torch.randn(y.shape, dtype=dtype)
    (mine,) = torch.autograd.grad(y, [x], cotangent)
    (theirs,) = torch.autograd.grad(torch.softmax(wide, -1), [wide], cotangent.float())
    torch.testing.assert_close(mine.float(), theirs, rtol=0.02, atol=0.002)


def test_without_opgen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["softmax"]
    (call, _), inputs = case.made(), case.inputs(torch.float32)
    y = call(*inputs)
    gradients(y, inputs)
    monkeypatch.setattr(generated, "is_installed", lambda: False)
    x = inputs[0].detach()[:300].requires_grad_()
    y = call(x)
    assert reads(y) is None
    close(gradients(y, [x])[0], gradients(torch.softmax(x, -1), [x])[0])


@pytest.mark.parametrize("missing", ["kept_source", "keeping_source"])
def test_beside_an_older_opgen(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that was written with its runtime meets whatever opgen is installed."""
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    (call, _), (x,) = CASES["softmax"].made(), CASES["softmax"].inputs(torch.float32)
    monkeypatch.delattr(on_demand, missing)
    for _ in range(2):
        y = call(x)
        close(gradients(y, [x])[0], gradients(torch.softmax(x, -1), [x])[0])
    assert not reads(call(x))


def test_totals_of_leading_dims() -> None:
    """The gradient has a dim for each where images are in channels-last format."""
    text = """op f(x[...,C], w[C]) -> y[...,C]
  tmp s[C]
  s[c] += x[...,c] * x[...,c]
  y[...,c] = tanh(x[...,c]) * s[c] * w[c]
"""
    x = torch.randn(3, 16, 31, 32).contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(32, requires_grad=True)
    call = opgen.compile(text).f
    theirs = torch.tanh(x) * (x * x).sum((0, 1, 2)) * w
    for _ in range(2):
        y = call(x, w)
        assert "s" in (reads(y) or ())
        others = gradients(theirs, [x, w], retain_graph=True)
        for mine, other in zip(gradients(y, [x, w]), others, strict=True):
            close(mine, other)


def test_numbers_that_are_equal_and_not_the_same() -> None:
    text = """op f(x[N,C]; low = 0.0) -> y[N,C]
  tmp s[N]
  s[n] = max(c) x[n,c]
  y[n,c] = x[n,c] * s[n] / low
"""
    call, x = opgen.compile(text).f, torch.ones(300, 130, requires_grad=True)
    for low in (0.0, -0.0, float("nan"), -0.0, 0.0):
        found = call(x, low=low)[0, 0].item()
        if math.isnan(low):
            assert math.isnan(found)
        else:
            assert found == math.copysign(math.inf, low)


def test_checkpoints_save_as_many_tensors_each_time() -> None:
    case = CASES["layer norm"]
    (call, _), inputs = case.made(), case.inputs(torch.float32)
    gradients(call(*inputs), inputs)
    y = checkpoint(call, *inputs, use_reentrant=False)
    for mine, theirs in zip(
        gradients(y, inputs), gradients(case.theirs(*inputs), inputs), strict=True
    ):
        close(mine, theirs)


def test_the_first_call_compiles_no_kernels_that_later_ones_do_not_run() -> None:
    case = CASES["batch norm"]
    (call, operation), inputs = case.made(), case.inputs(torch.float32)
    gradients(call(*inputs), inputs)
    assert not operation.compiled


def test_what_is_wrong_with_a_call_has_the_name_of_the_op() -> None:
    (call, _), (x, w, b) = CASES["batch norm"].made(), CASES["batch norm"].inputs(torch.float32)
    with pytest.raises(ValueError, match=r"f: b\.shape\[0\] = 15 but"):
        call(x, w, b[1:])
    call(x, w, b)
    with pytest.raises(ValueError, match=r"f: b\.shape\[0\] = 15 but"):
        call(x, w, b[1:])
