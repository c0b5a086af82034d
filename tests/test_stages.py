"""Ops with products beside other statements: as several ops, one after the other."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import opgen
from opgen import compiler, on_demand
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.ir.show import show
from opgen.passes.derive import derive
from opgen.passes.kept import with_kept
from opgen.passes.stages import products_of, stages
from opgen.runtime import Operation, generated, library_call, lookup_series
from opgen.runtime import stages as calls

CONVOLUTION = """op f(x[N,C,H,W], k[O,C,3,3], b[O] = 0) -> y[N,O,H,W]
  tmp z[N,O,H,W]
  z[n,o,h,w] = sum(c, i in 3, j in 3) x[n,c, h+i-1 ?0, w+j-1 ?0] * k[o,c,i,j]
  y[n,o,h,w] = max(z[n,o,h,w] + b[o], 0)
"""
PIXELS = """op f(x[N,C,H,W], k[O,C], s[O], b[O]) -> y[N,O,H,W]
  tmp z[N,O,H,W]
  z[n,o,h,w] = b[o] + s[o] * (sum(c) x[n,c,h,w] * k[o,c])
  y[n,o,h,w] = z[n,o,h,w] / (1 + exp(-z[n,o,h,w]))
"""
LINEAR = """op f(x[...,C], k[O,C], b[O]; slope = 0.1) -> y[...,O]
  tmp z[...,O]
  z[...,o] = b[o] + sum(c) x[...,c] * k[o,c]
  y[...,o] = max(z[...,o], slope * z[...,o])
"""
TWO_LAYERS = """op f(x[N,C], a[R,C], b[O,R]) -> y[N,O]
  tmp z[N,R]
  z[n,r] = sum(c) x[n,c] * a[r,c]
  y[n,o] = sum(r) z[n,r] * b[o,r]
"""
ATTENTION = """op f(q[B,N,D], k[B,M,D], v[B,M,E]) -> y[B,N,E]
  tmp a[B,N,M], top[B,N], e[B,N,M], s[B,N]
  a[b,n,m] = (sum(d) q[b,n,d] * k[b,m,d]) / sqrt(D)
  top[b,n] max= a[b,n,m]
  e[b,n,m] = exp(a[b,n,m] - top[b,n])
  s[b,n] = sum(m) e[b,n,m]
  y[b,n,i] = (sum(m) e[b,n,m] * v[b,m,i]) / s[b,n]
"""
GATED = """op f(x: float[N,D], k[E,D], u[N,E]) -> y[N,E]
  tmp z[N,E]
  z[n,e] = sum(d) x[n,d] * k[e,d]
  y[n,e] = silu(z[n,e]) * u[n,e]
"""
SAME_TENSOR_TWICE = """op f(x[N,C], k[C,C]) -> y[N,C]
  tmp z[N,C]
  z[n,c] = sum(d) x[n,d] * k[d,c]
  y[n,c] = sum(d) z[n,d] * k[c,d]
  y[n,c] += tanh(z[n,c])
"""


def linear(x: Tensor, k: Tensor, b: Tensor) -> Tensor:
    return F.leaky_relu(F.linear(x, k, b), 0.1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


def same_tensor_twice(x: Tensor, k: Tensor) -> Tensor:
    z = x @ k
    return z @ k.T + z.tanh()


@dataclass(frozen=True)
class Case:
    """An op, the shapes of its inputs, and what PyTorch has in its place."""

    text: str
    shapes: tuple[tuple[int, ...], ...]
    theirs: Callable[..., Tensor]

    def inputs(self, dtype: torch.dtype, *, is_last: bool = False) -> list[Tensor]:
        torch.manual_seed(len(self.text))
        made = [torch.randn(shape, dtype=dtype) for shape in self.shapes]
        if is_last:
            made[0] = made[0].contiguous(memory_format=torch.channels_last)
        return [each.requires_grad_() for each in made]


CASES = {
    "convolution": Case(
        CONVOLUTION,
        ((2, 32, 9, 8), (48, 32, 3, 3), (48,)),
        lambda x, k, b: F.relu(F.conv2d(x, k, b, padding=1)),
    ),
    "pixels": Case(
        PIXELS,
        ((2, 32, 7, 9), (40, 32), (40,), (40,)),
        lambda x, k, s, b: F.silu(
            F.conv2d(x, k[:, :, None, None]) * s[:, None, None] + b[:, None, None]
        ),
    ),
    "linear": Case(LINEAR, ((3, 11, 48), (33, 48), (33,)), linear),
    "two layers": Case(TWO_LAYERS, ((37, 40), (24, 40), (36, 24)), lambda x, a, b: x @ a.T @ b.T),
    "attention": Case(ATTENTION, ((3, 25, 16), (3, 28, 16), (3, 28, 24)), attention),
    "gated": Case(GATED, ((37, 40), (24, 40), (37, 24)), lambda x, k, u: F.silu(x @ k.T) * u),
    "same tensor twice": Case(SAME_TENSOR_TWICE, ((26, 32), (32, 32)), same_tensor_twice),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture(autouse=True)
def _for_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of any size go in stages."""
    monkeypatch.setattr(calls, "LEAST_WORK", 0)


def made(text: str) -> tuple[Callable[..., Tensor], Operation]:
    """The op of a spec, as a function and with what is known of its calls, none so far."""
    module = opgen.compile(text)
    return module.f, module.FAMILY.operations["f"]


def plans(found: Operation) -> list[calls.Stages | None]:
    return list(found.staged.values())


def gradients(y: Tensor, inputs: list[Tensor], **how: Any) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return torch.autograd.grad(y, inputs, torch.randn_like(y), **how)


def close(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(
        mine, theirs, rtol=1e-4, atol=1e-4 * max(1.0, float(theirs.detach().abs().max()))
    )


# ---------------------------------------------------------------------------- the ops
def checked(text: str) -> Op:
    (op,) = check_source(Source(text, "<test>"))
    return op


def test_a_convolution_and_what_follows_it() -> None:
    op = checked(CONVOLUTION)
    assert products_of(op) == (0,)
    first, second = stages(op, (0,))
    assert (first.statement, second.statement) == (0, None)
    assert show(first.op) == (
        "op f_stage_1(x[N,C,H,W], k[O,C,3,3]) -> z[N,O,H,W]\n"
        "  z[n,o,h,w] = sum(c,i,j) x[n,c, h + i - 1 ?0, j + w - 1 ?0] * k[o,c,i,j]\n"
    )
    assert show(second.op) == (
        "op f_stage_2(b[O], z[N,O,H,W]) -> y[N,O,H,W]\n  y[n,o,h,w] = max(z[n,o,h,w] + b[o], 0)\n"
    )


def test_products_that_add_to_the_tensor_of_others() -> None:
    op = checked(SAME_TENSOR_TWICE)
    assert products_of(op) == (0, 1)
    first, second, third = stages(op, (0, 1))
    assert show(second.op).startswith(
        "op f_stage_2(k: float[C,C], z: float[N,C]) -> y_term: float[N,C]\n"
    )
    assert "y[n,c] += tanh(z[n,c])" in show(third.op)
    assert [tensor.name for tensor in third.op.inputs] == ["z", "y_term"]
    assert first.statement == 0


def test_only_products_that_are_asked_for_are_apart() -> None:
    (first, second) = stages(checked(TWO_LAYERS), (1,))
    assert (first.statement, second.statement) == (None, 1)


def test_sizes_that_no_tensor_of_a_stage_has_are_given() -> None:
    parts = stages(checked(ATTENTION), products_of(checked(ATTENTION)))
    assert [show(each.op).splitlines()[0] for each in parts] == [
        "op f_stage_1(q: float[B,N,D], k: float[B,M,D]) -> _t1: float[B,N,M]",
        "op f_stage_2(_t1[B,N,M]; D: size) -> e[B,N,M], s[B,N]",
        "op f_stage_3(v: float[B,M,E], e: float[B,N,M]) -> _t2: float[B,N,E]",
        "op f_stage_4(s[B,N], _t2[B,N,E]) -> y[B,N,E]",
    ]


NONE = {
    "a product alone": "op f(x[N,C], k[C,O]) -> y[N,O]\n  y[n,o] = sum(c) x[n,c] * k[c,o]\n",
    "no sum": "op f(x[N], k[N]) -> y[N]\n  tmp z[N]\n  z[n] = x[n] * k[n]\n  y[n] = max(z[n], 0)\n",
    "maxima": """op f(x[N,C], k[C,O]) -> y[N,O]
  tmp z[N,O]
  z[n,o] max= x[n,c] * k[c,o]
  y[n,o] = max(z[n,o], 0)
""",
    "three factors": """op f(x[N,C], k[C,O], s[C]) -> y[N,O]
  tmp z[N,O]
  z[n,o] = sum(c) x[n,c] * k[c,o] * s[c]
  y[n,o] = max(z[n,o], 0)
""",
    "a window of a matrix": """op f(x[N,C], k[C,O]) -> y[N,O]
  tmp z[N,O]
  z[n,o] = sum(c) x[n, c - 1 ?wrap] * k[c,o]
  y[n,o] = max(z[n,o], 0)
""",
}


@pytest.mark.parametrize("text", NONE.values(), ids=NONE)
def test_ops_without_products_to_be_apart(text: str) -> None:
    assert products_of(checked(text)) == ()


def test_a_tensor_that_is_read_before_it_is_whole() -> None:
    """The checker refuses it in a spec; a derived op might have it."""
    op = checked(SAME_TENSOR_TWICE)
    first, second, third = op.statements
    assert products_of(replace(op, statements=(second, first, third))) == ()


def gradient(text: str, path: tuple[str, ...]) -> tuple[Op, Op]:
    """An op, and its gradient with respect to some inputs."""
    ops = check_source(Source(text, "<test>"))
    return ops[0], next(member.op for member in derive(ops, 1) if member.path == path)


def test_a_gradient_that_is_the_op_itself_reads_what_was_kept() -> None:
    """That of `u` is the op with what flows back in its place; it has the product by then."""
    (call, found), inputs = made(GATED), CASES["gated"].inputs(torch.float32)
    for _ in range(2):
        mine = gradients(call(*inputs), inputs)
    for one, other in zip(mine, gradients(CASES["gated"].theirs(*inputs), inputs), strict=True):
        close(one, other)
    (known,) = (each for each in plans(found) if each is not None)
    steps = [step for way in known.gradients.values() for step in way.steps]
    assert steps
    assert all("z" in {each.name for each in step.derived.inputs} for step in steps)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wanted", [(1,), (2,), (1, 2), (0, 1, 2)])
def test_gradients_that_are_one_op_read_what_each_needs(
    wanted: tuple[int, ...], tmp_path: Path
) -> None:
    """In a module that was built those of `a` and `b` are one op up to its names."""
    (tmp_path / "both.op").write_text(
        "op f(x[N,D], a[E,D], b[E,D]) -> y[N,E]\n  tmp z[N,E], w[N,E]\n"
        "  z[n,e] = sum(d) x[n,d] * a[e,d]\n  w[n,e] = sum(d) x[n,d] * b[e,d]\n"
        "  y[n,e] = z[n,e] * w[n,e]\n"
    )
    built = compiler.build(tmp_path / "both.op", tmp_path)
    call = generated.load(built.read_text(), "both.op").f
    torch.manual_seed(0)
    tensors = [torch.randn(size) for size in ((26, 32), (24, 32), (24, 32))]
    given = [tensors[at].requires_grad_() for at in wanted]
    x, a, b = tensors
    for _ in range(2):
        mine = gradients(call(*tensors), given)
        for one, other in zip(mine, gradients((x @ a.T) * (x @ b.T), given), strict=True):
            close(one, other)


def test_a_gradient_of_what_was_kept() -> None:
    op, derived = gradient(CONVOLUTION, ("f", "k"))
    found, kept = with_kept(derived, op, ("z",))
    assert kept == ("z",)
    assert show(found) == (
        "## Gradient of `f` with respect to `k`.\n"
        "op f_grad_k_of_kept(x[N,C,H,W], b[O], z[N,O,H,W], grad_y[N,O,H,W]) -> grad_k[O,C,3,3]\n"
        "  tmp grad_z[N,O,H,W]\n"
        "  grad_z[n,o,h,w] = select(z[n,o,h,w] + b[o] < 0, 0, grad_y[n,o,h,w])\n"
        "  grad_k[o,c,i,j] = sum(n,h,w) x[n,c, h + i - 1 ?0, j + w - 1 ?0] * grad_z[n,o,h,w]\n"
    )


def test_what_another_statement_computes_is_not_kept() -> None:
    _, derived = gradient(CONVOLUTION, ("f", "k"))
    others = {
        "another number": CONVOLUTION.replace("h+i-1", "h+i-2"),
        "another spelling": CONVOLUTION.replace("x[n,c,", "2 * x[n,c,"),
        "another input": CONVOLUTION.replace("k[O", "k_[O").replace("k[o", "k_[o"),
    }
    for name, text in others.items():
        _, kept = with_kept(derived, checked(text), ("z",))
        assert kept == (), name
    assert with_kept(derived, checked(CONVOLUTION), ("grad_z",))[1] == ()


# ---------------------------------------------------------------------------- numbers
@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.sampled(16)
def test_numbers_and_gradients(case: Case, dtype: torch.dtype) -> None:
    call, found = made(case.text)
    inputs = case.inputs(dtype)
    for _ in range(3):  # the first one plans, and keeps all; later ones what gradients read
        y, theirs = call(*inputs), case.theirs(*inputs)
        close(y, theirs)
        for mine, other in zip(gradients(y, inputs), gradients(theirs, inputs), strict=True):
            close(mine, other)
    # Convolutions in float64 are opgen's own.
    is_apart = dtype == torch.float32 or case is not CASES["convolution"]
    assert (None in plans(found)) is not is_apart
    assert plans(found)


@pytest.mark.sampled(4)
@EACH
def test_a_call_always_gives_the_same_bits(case: Case) -> None:
    call, inputs = opgen.compile(case.text).f, case.inputs(torch.float32)
    y = call(*inputs)
    with torch.no_grad():
        assert torch.equal(call(*inputs), y)
    first = gradients(y, inputs)
    for _ in range(2):
        assert all(map(torch.equal, gradients(call(*inputs), inputs), first))


@EACH
@pytest.mark.sampled(8, 3)
def test_gradients_of_gradients(case: Case) -> None:
    inputs = case.inputs(torch.float64)

    def second(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        first = gradients(call(*inputs), inputs, create_graph=True)
        total = sum((each * each).sum() for each in first)
        assert isinstance(total, Tensor)
        return torch.autograd.grad(total, inputs)

    mine, theirs = second(opgen.compile(case.text).f), second(case.theirs)
    for one, other in zip(mine, theirs, strict=True):
        close(one, other)


@pytest.mark.parametrize("name", ["convolution", "pixels"])
def test_images_in_channels_last_format(name: str) -> None:
    case = CASES[name]
    (call, found), inputs = made(case.text), case.inputs(torch.float32, is_last=True)
    y, theirs = call(*inputs), case.theirs(*inputs)
    assert y.is_contiguous(memory_format=torch.channels_last)
    close(y, theirs)
    for mine, other in zip(gradients(y, inputs), gradients(theirs, inputs), strict=True):
        close(mine, other)
    assert None not in plans(found)


def test_some_gradients() -> None:
    case = CASES["attention"]
    call, inputs = opgen.compile(case.text).f, case.inputs(torch.float32)
    whole = gradients(case.theirs(*inputs), inputs)
    for wanted in ((0,), (1,), (2,), (0, 2), (1, 2)):
        given = [x if at in wanted else x.detach() for at, x in enumerate(inputs)]
        for _ in range(2):
            found = gradients(call(*given), [given[at] for at in wanted])
            for at, mine in zip(wanted, found, strict=True):
                close(mine, whole[at])


def test_an_input_that_is_absent() -> None:
    x, k, b = CASES["convolution"].inputs(torch.float32)
    call, found = made(CONVOLUTION)
    for bias in (None, b):
        y = call(x, k) if bias is None else call(x, k, bias)
        theirs = F.relu(F.conv2d(x, k, bias, padding=1))
        close(y, theirs)
        for mine, other in zip(gradients(y, [x, k]), gradients(theirs, [x, k]), strict=True):
            close(mine, other)
    assert len(plans(found)) == 2
    assert None not in plans(found)


def test_attributes_are_handed_on() -> None:
    case = CASES["linear"]
    x, k, b = case.inputs(torch.float32)
    call = opgen.compile(case.text).f
    for slope in (0.5, 0.0, -1.0):
        z = F.linear(x, k, b)
        close(call(x, k, b, slope=slope), torch.maximum(z, slope * z))


def test_numbers_that_are_not_finite() -> None:
    """The library multiplies zeros of the padding with what opgen leaves out."""
    x, k, b = CASES["convolution"].inputs(torch.float32)
    with torch.no_grad():
        k[3, 4, 0, 1] = torch.inf
    y, wide = opgen.compile(CONVOLUTION).f(x, k, b), torch.zeros(2, 32, 11, 10)
    wide[:, :, 1:-1, 1:-1] = x.detach()
    total = b.detach()[:, None, None].expand(2, -1, 9, 8).clone()
    for i in range(3):
        for j in range(3):
            rows, columns = (
                slice(max(0, 1 - i), 9 - max(0, i - 1)),
                slice(max(0, 1 - j), 8 - max(0, j - 1)),
            )
            window = wide[:, :, i : i + 9, j : j + 8][:, :, rows, columns]
            taps = k.detach()[:, :, i, j]
            total[:, :, rows, columns] += torch.einsum("nchw,oc->nohw", window, taps)
    expected = total.clamp_min(0)
    assert torch.equal(torch.isnan(y), torch.isnan(expected))
    assert torch.equal(torch.isinf(y), torch.isinf(expected))
    finite = torch.isfinite(expected)
    close(y[finite], expected[finite])


# ---------------------------------------------------------------------------- what is computed
@dataclass
class Count:
    products: int = 0


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    """How many convolutions were the library's, of calls that go through Python."""
    found, computed = Count(), library_call.convolve
    monkeypatch.setattr(lookup_series, "MOST_TRIES", -1)

    def counted(*arguments: Any) -> Any:
        found.products += 1
        return computed(*arguments)

    monkeypatch.setattr(library_call, "convolve", counted)
    return found


def test_what_was_kept_is_not_computed_again(count: Count) -> None:
    case = CASES["convolution"]
    text = case.text.replace("op f(", "op counted(")  # no table has calls of it
    call, inputs = opgen.compile(text).counted, case.inputs(torch.float32)
    for _ in range(2):
        gradients(call(*inputs), inputs)
    count.products = 0
    y = call(*inputs)
    assert count.products == 1
    gradients(y, inputs)
    assert count.products == 1 + 2  # the gradients of image and filter


def test_only_what_gradients_read_is_kept() -> None:
    case = CASES["attention"]
    call, inputs = opgen.compile(case.text).f, case.inputs(torch.float32)

    def saved() -> int:
        y = call(*inputs)
        assert y.grad_fn is not None
        number = len(y.grad_fn.saved_tensors)
        gradients(y, inputs)
        return number

    call(*inputs)
    assert saved() == 3 + 4  # all that is between the stages
    assert saved() == 3 + 3  # exponentials, their sums, and their products


def test_tensors_of_a_graph_are_released() -> None:
    case = CASES["convolution"]
    call, inputs = opgen.compile(case.text).f, case.inputs(torch.float32)
    y = call(*inputs)
    gradients(y, inputs, retain_graph=True)
    again = gradients(y, inputs)
    for mine, other in zip(again, gradients(case.theirs(*inputs), inputs), strict=True):
        close(mine, other)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(y, inputs)


def test_an_input_that_was_changed_is_refused() -> None:
    case = CASES["convolution"]
    inputs = case.inputs(torch.float32)
    y = opgen.compile(case.text).f(*inputs)
    with torch.no_grad():
        inputs[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(y, inputs)


# ---------------------------------------------------------------------------- who else is there
def test_checkpoints_save_as_many_tensors_each_time() -> None:
    case = CASES["convolution"]
    call, (x, k, b) = opgen.compile(case.text).f, case.inputs(torch.float32)
    square = torch.randn(32, 32, 3, 3)

    def net(x: Tensor, own: Callable[..., Tensor]) -> Tensor:
        for _ in range(2):
            x = checkpoint(own, x, square, use_reentrant=False)
        return own(x, k, b)

    def theirs(x: Tensor, k: Tensor, b: Tensor | None = None) -> Tensor:
        return F.relu(F.conv2d(x, k, b, padding=1))

    for _ in range(2):
        found, wanted = (gradients(net(x, own), [x, k, b]) for own in (call, theirs))
        for mine, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_tensors_that_are_kept_elsewhere() -> None:
    case = CASES["attention"]
    call, inputs = opgen.compile(case.text).f, case.inputs(torch.float32)
    for _ in range(2):
        with torch.autograd.graph.save_on_cpu():
            y = call(*inputs)
        for mine, other in zip(
            gradients(y, inputs), gradients(case.theirs(*inputs), inputs), strict=True
        ):
            close(mine, other)


@EACH
@pytest.mark.sampled(6, 2)
def test_transforms(case: Case) -> None:
    inputs = [each.detach() for each in case.inputs(torch.float64)]
    call, found = made(case.text)
    directions = tuple(torch.randn_like(each) for each in inputs)
    mine = torch.func.jvp(call, tuple(inputs), directions)
    theirs = torch.func.jvp(case.theirs, tuple(inputs), directions)
    for one, other in zip(mine, theirs, strict=True):
        close(one, other)
    # PyTorch's library is asked for no convolution of float64: kernels compute it.
    assert case is CASES["convolution"] or None not in plans(found), "it did not go in stages"
    several = torch.stack([inputs[0], 2 * inputs[0]])
    rest = inputs[1:]
    close(
        torch.vmap(lambda x: call(x, *rest))(several),
        torch.stack([case.theirs(x, *rest) for x in several]),
    )


def test_threads_that_meet_a_call_first() -> None:
    case = CASES["attention"]
    call, inputs = opgen.compile(case.text).f, case.inputs(torch.float32)
    expected = gradients(case.theirs(*inputs), inputs)

    def work(_: int) -> tuple[Tensor, ...]:
        y = call(*inputs)
        return torch.autograd.grad(y, inputs, cotangent)

    torch.manual_seed(1)
    cotangent = torch.randn_like(case.theirs(*inputs))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found in pool.map(work, range(16)):
            for mine, other in zip(found, expected, strict=True):
                close(mine, other)


# ---------------------------------------------------------------------------- calls that go as ever
def test_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    case = CASES["convolution"]
    (call, found), inputs = made(case.text), case.inputs(torch.float32)
    inputs[0] = inputs[0][:1, :, :3, :3]
    assert calls.LEAST_WORK > 48 * 32 * 9 * 9
    close(call(*inputs), case.theirs(*inputs))
    assert not any(plans(found))


def test_beside_an_older_opgen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["attention"]
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    (call, found), inputs = made(case.text), case.inputs(torch.float32)
    monkeypatch.delattr(on_demand, "stages_source")
    y, theirs = call(*inputs), case.theirs(*inputs)
    close(y, theirs)
    for mine, other in zip(gradients(y, inputs), gradients(theirs, inputs), strict=True):
        close(mine, other)
    assert plans(found) == [None]


def test_an_index_that_is_checked_has_the_name_of_the_op() -> None:
    text = """op f(x[N,C], k[O,C], j: int[N]) -> y[N]
  tmp z[N,O]
  z[n,o] = sum(c) x[n,c] * k[o,c]
  y[n] = z[n,j[n]]
"""
    call, found = made(text)
    x, k = torch.randn(20, 30), torch.randn(25, 30)
    at = torch.arange(20)
    close(call(x, k, at), (x @ k.T)[at, at])
    for _ in range(3):  # stage by stage, and as one entry of the table
        with pytest.raises(IndexError, match=r"^f: index 99"):
            call(x, k, at + 99)
        close(call(x, k, at), (x @ k.T)[at, at])
    assert all(plans(found))


def test_integers_between_stages() -> None:
    text = """op f(x[N,O], k[O,O], w[O]) -> y[N,O]
  tmp z[N,O], first: int[N]
  z[n,o] = sum(c) x[n,c] * k[o,c]
  first[n] = argmax(o) z[n,o]
  y[n,o] = (sum(p) z[n,p] * k[p,o]) * first[n] + w[o]
"""
    call, found = made(text)
    x, k, w = torch.randn(40, 36), torch.randn(36, 36), torch.randn(36)
    z = x @ k.T
    close(call(x, k, w), (z @ k) * z.argmax(1)[:, None] + w)
    assert all(plans(found)) and plans(found)


def test_without_opgen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["convolution"]
    (call, found), inputs = made(case.text), case.inputs(torch.float32)
    inputs[0] = inputs[0][:1]  # other tests had the whole
    monkeypatch.setattr(generated, "is_installed", lambda: False)
    close(call(*inputs), case.theirs(*inputs))
    assert plans(found) == [None]


def test_bad_calls_have_the_message_of_the_op() -> None:
    x, k, _ = CASES["convolution"].inputs(torch.float32)
    with pytest.raises(ValueError, match=r"f: k\.shape\[1\] = 31 but"):
        opgen.compile(CONVOLUTION).f(x, k[:, 1:])
