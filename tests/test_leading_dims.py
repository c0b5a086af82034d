"""Leading dims that lie in memory as no single dim would: kernels see each of them."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.show import show_file
from opgen.passes.leading_dims import with_leading_dims
from opgen.runtime import evaluation, generated

pad = opgen.load(SPECS / "pad.op")
roll = opgen.load(SPECS / "roll.op")
norm = opgen.load(SPECS / "norm.op")
softmax = opgen.load(SPECS / "softmax.op")


# ---------------------------------------------------------------------------- the op
def split(spec: str, count: int = 2) -> str | None:
    """The op of a spec with so many leading dims, as text."""
    (op,) = check_source(Source(spec, "<test>"))
    found = with_leading_dims(op, count)
    return None if found is None else show_file([found])


def test_every_dim_has_an_iterator() -> None:
    spec = "op f(x[...,W]; s: int) -> y[...,V]\n  let V = W + s\n  y[...,v] = x[..., v - s ?0]\n"
    assert split(spec) == (
        "op f(x[B1,B2,W]; s: int) -> y[B1,B2,V]\n  let V = W + s\n"
        "  y[b1,b2,v] = x[b1,b2, v - s ?0]\n"
    )


def test_names_are_new() -> None:
    text = split("op f(x[...,B1], b2[B1]) -> y[...,B1]\n  y[...,b1] = x[...,b1] * b2[b1]\n")
    assert text is not None
    assert "x[B1_,B2,B1], b2[B1]) -> y[B1_,B2,B1]\n  y[b1_,b2_,b1] = x[b1_,b2_,b1]*b2[b1]" in (
        text.replace(" * ", "*")
    )


def test_sums_over_all_of_them() -> None:
    text = split("op f(x[...,W]) -> y[W]\n  y[w] += x[...,w]\n", 3)
    assert text is not None
    assert "y[w] = sum(b1,b2,b3) x[b1,b2,b3,w]" in text


def test_an_index_that_is_read_for_each_is_left() -> None:
    assert split("op f(x[...,W], k: i64[...]) -> y[...]\n  y[...] = x[..., k[...] ?0]\n") is None


# ---------------------------------------------------------------------------- calls
def last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()])


Call = Callable[[Tensor], Tensor]
PADDING = (3, 1, 2, 4)
CALLS: dict[str, tuple[Call, Call]] = {
    "pad_zero": (lambda x: pad.pad_zero(x, padding=PADDING), lambda x: F.pad(x, PADDING)),
    "crop": (
        lambda x: pad.pad_zero(x, padding=(-2, 1, -1, -3)),
        lambda x: F.pad(x, (-2, 1, -1, -3)),
    ),
    "pad_replicate": (
        lambda x: pad.pad_replicate(x, padding=PADDING),
        lambda x: F.pad(x, PADDING, mode="replicate"),
    ),
    "pad_reflect": (
        lambda x: pad.pad_reflect(x, padding=PADDING),
        lambda x: F.pad(x, PADDING, mode="reflect"),
    ),
    "pad_circular": (
        lambda x: pad.pad_circular(x, padding=PADDING),
        lambda x: F.pad(x, PADDING, mode="circular"),
    ),
    "roll": (
        lambda x: roll.roll(x, shifts=(3, -2)),
        lambda x: torch.roll(x, (3, -2), (-2, -1)),
    ),
    "softmax": (softmax.softmax, lambda x: F.softmax(x, -1)),
    "layer_norm": (norm.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
}
IMAGES: dict[str, Callable[[], Tensor]] = {
    "channels last": lambda: last(torch.randn(3, 24, 28, 20)),
    "of three channels": lambda: last(torch.randn(2, 3, 90, 70)),
    "every second": lambda: torch.randn(3, 44, 28, 20)[:, ::2],
    "transposed": lambda: torch.randn(24, 3, 28, 20).transpose(0, 1),
    "rows of a column": lambda: torch.randn(3, 24, 20, 28).transpose(2, 3),
    "with one channel": lambda: last(torch.randn(3, 1, 128, 90)),
    "small": lambda: last(torch.randn(2, 3, 6, 7)),
}


@pytest.fixture
def ops_that_ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops whose kernels were asked for: the first of their paths, and the inputs behind it."""
    names: list[str] = []
    inner = evaluation.run_on_cpu

    def run(call: evaluation.Call, operands: dict[str, Tensor]) -> bool:
        names.append(" ".join(call.operation.path))
        return inner(call, operands)

    monkeypatch.setattr(evaluation, "run_on_cpu", run)
    return names


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("which", IMAGES)
def test_numbers(name: str, which: str) -> None:
    own, other = CALLS[name]
    torch.manual_seed(0)
    image = IMAGES[which]().double()
    exact = image.clone(memory_format=torch.contiguous_format).requires_grad_()
    wanted = other(exact)
    cotangent = torch.randn_like(wanted)
    (gradient,) = torch.autograd.grad(wanted, exact, cotangent)
    for _ in range(3):  # the third one is looked up
        x = image.detach().requires_grad_()
        got = own(x)
        torch.testing.assert_close(got, wanted)
        flowing = last(cotangent) if x.is_contiguous(memory_format=torch.channels_last) else None
        for each in (cotangent, flowing):
            if each is not None:
                (mine,) = torch.autograd.grad(got, x, each, retain_graph=True)
                torch.testing.assert_close(mine, gradient)


def test_images_are_not_copied(ops_that_ran: list[str]) -> None:
    torch.manual_seed(0)
    x = last(torch.randn(5, 16, 33, 31))
    got = pad.pad_zero(x, padding=PADDING)
    assert ops_that_ran == ["pad_zero...2"]
    assert got.is_contiguous(memory_format=torch.channels_last)
    for _ in range(2):
        assert torch.equal(pad.pad_zero(x, padding=PADDING), got)
    assert ops_that_ran == ["pad_zero...2"]  # the others were looked up
    pad.pad_zero(x.contiguous(), padding=PADDING)
    assert ops_that_ran[1:] == ["pad_zero"]


def test_gradients_are_not_copied_either(ops_that_ran: list[str]) -> None:
    x = last(torch.randn(5, 16, 33, 32)).requires_grad_()
    got = roll.roll(x, shifts=(1, 2))
    torch.autograd.grad(got, x, last(torch.randn(5, 16, 33, 32)))
    assert ops_that_ran == ["roll...2", "roll...2 x"]


def test_three_leading_dims(ops_that_ran: list[str]) -> None:
    x = last(torch.randn(2, 8, 12, 20, 24))
    got = pad.pad_reflect(x, padding=PADDING)
    assert ops_that_ran == ["pad_reflect...3"]
    wanted = F.pad(x.flatten(0, 2), PADDING, mode="reflect").view(*x.shape[:3], 26, 28)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(64, 20, 40),  # one leading dim
        torch.randn(4, 16, 20, 40),  # leading dims that are one
        torch.randn(4, 16, 40, 20).transpose(2, 3)[:, ::2],  # no dim is consecutive
        last(torch.randn(2, 3, 20, 40)),  # few elements
    ],
)
def test_others_are_as_they_were(x: Tensor, ops_that_ran: list[str]) -> None:
    assert torch.equal(roll.roll(x, shifts=(2, 1)), torch.roll(x, (2, 1), (-2, -1)))
    assert set(ops_that_ran) == {"roll"}


def test_formats_that_differ_are_copied(ops_that_ran: list[str]) -> None:
    ops = opgen.compile("op f(x[...,W], z[...,W]) -> y[...,W]\n  y[...,w] = x[...,w] - z[...,w]\n")
    x, z = torch.randn(2, 4, 24, 28, 20)
    for one, other, name in (
        (last(x), z, "f"),
        (x, last(z), "f"),
        (last(x), last(z), "f...3"),
    ):
        assert torch.equal(ops.f(one, other), x - z)
        assert ops_that_ran.pop() == name


def test_without_opgen_tensors_are_copied(
    monkeypatch: pytest.MonkeyPatch, ops_that_ran: list[str]
) -> None:
    monkeypatch.setattr(generated, "is_installed", lambda: False)
    x = last(torch.randn(3, 16, 30, 34))
    assert torch.equal(roll.roll(x, shifts=(2, 1)), torch.roll(x, (2, 1), (-2, -1)))
    assert ops_that_ran == ["roll"]


def test_errors_speak_of_the_op_of_the_spec() -> None:
    ops = opgen.compile("op f(x[...,W], z[...,W]) -> y[...,W]\n  y[...,w] = x[...,w] - z[...,w]\n")
    x, z = last(torch.randn(4, 24, 28, 20)), last(torch.randn(4, 24, 28, 21))
    with pytest.raises(ValueError, match=r"^f: z.shape\[-1\] = 21 but the spec needs W = 20"):
        ops.f(x, z)


def test_messages_have_the_name_of_the_op() -> None:
    """Those of what is found after the op was chosen, too."""
    operation = pad.FAMILY.operations["pad_zero"].with_leading_dims(2)
    assert operation is not None and operation.name == "pad_zero"
    assert operation.registered_name != pad.FAMILY.operations["pad_zero"].registered_name


def test_batches_and_channels_ask_for_no_kernels() -> None:
    operation = softmax.FAMILY.operations["softmax"].with_leading_dims(2)
    assert operation is not None and operation.special is not None
    assert operation.special.integers == ("D",)  # short rows do, B1 and B2 do not


def test_a_gradient_of_an_op_that_has_no_such_form(ops_that_ran: list[str]) -> None:
    """One output needs the batch as one index, which the gradient of the other input does not."""
    ops = opgen.compile(
        "op f(x[...,W], k: i64[...], z[...,H,V]) -> y[...], u[...,H,V]\n"
        "  y[...] = x[..., k[...] ?0]\n  u[...,h,v] = z[...,h,v] * z[...,h,v]\n"
    )
    x, k = torch.randn(3, 16, 5), torch.randint(0, 5, (3, 16))
    z = last(torch.randn(3, 16, 30, 34)).requires_grad_()
    cotangent = last(torch.randn(3, 16, 30, 34))
    for _ in range(2):
        _, u = ops.f(x, k, z)
        (mine,) = torch.autograd.grad(u, z, cotangent)
        torch.testing.assert_close(mine, 2 * z * cotangent)
    assert "f...2 z" in ops_that_ran


def test_threads_that_meet_an_op_at_the_same_time() -> None:
    ops = opgen.compile("op g(x[...,H,W]) -> y[...,H,W]\n  y[...,h,w] = 3 * x[...,h,w]\n")
    x = last(torch.randn(3, 16, 30, 34))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: ops.g(x), range(16)))
    assert all(torch.equal(each, 3 * x) for each in results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
def test_other_types(dtype: torch.dtype, threads: int) -> None:
    x = last(torch.randint(-9, 9, (4, 16, 30, 34)).to(dtype))
    for _ in range(2):
        assert torch.equal(roll.roll(x, shifts=(2, 1)), torch.roll(x, (2, 1), (-2, -1)))
        assert torch.equal(pad.pad_zero(x, padding=PADDING), F.pad(x, PADDING))


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    x = last(torch.randn(2, 3, 5, 4, dtype=torch.float64)).requires_grad_()
    wide = last(torch.randn(16, 64, 6, 8, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradgradcheck(softmax.softmax, (x,))
    got = softmax.softmax(wide)
    (first,) = torch.autograd.grad((got**2).sum(), wide, create_graph=True)
    wanted = F.softmax(wide, -1)
    (other,) = torch.autograd.grad((wanted**2).sum(), wide, create_graph=True)
    torch.testing.assert_close(first, other)
    (mine,) = torch.autograd.grad((first**2).sum(), wide)
    (theirs,) = torch.autograd.grad((other**2).sum(), wide)
    torch.testing.assert_close(mine, theirs)
