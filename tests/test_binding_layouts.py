"""Memory formats, strides, autocast: what kernels compute and what compilers are told agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode

import opgen
from binding_cases import OPS, Op, real, spec
from catalogue import SPECS
from opgen.runtime import Operation
from opgen.runtime.layout import is_channels_last

close = torch.testing.assert_close
every_op = pytest.mark.parametrize("op", OPS, ids=repr)

VOLUME = "op shift(x[N,C,D,H,W]) -> y[N,C,D,H,W]\n  y[n,c,d,h,w] = x[n,c,d,h,w - 1 ?0]\n"


def layouts(x: Tensor) -> dict[str, Tensor]:
    """The same numbers with other strides."""
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    found = {
        "contiguous": x.contiguous(),
        "transposed": x.transpose(0, -1).contiguous().transpose(0, -1),
        "every other": wide[..., ::2],
        "offset": torch.cat([x, x])[x.shape[0] :],
        "flipped twice": x.flip(-1).flip(-1),
    }
    if x.dim() == 4:
        found["channels_last"] = x.contiguous(memory_format=torch.channels_last)
        padded = torch.cat([x, x], 1).contiguous(memory_format=torch.channels_last)
        found["channels of channels_last"] = padded[:, : x.shape[1]]
    return found


def faked(function: Any, *tensors: Tensor) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return function(*(mode.from_tensor(tensor) for tensor in tensors))


@every_op
def test_any_strides_and_fake_tensors_agree(op: Op) -> None:
    wanted = op.ours(*op.tensors)
    for at, tensor in enumerate(op.tensors):
        for other in layouts(tensor).values():
            given = [*op.tensors[:at], other, *op.tensors[at + 1 :]]
            got = op.ours(*given)
            assert torch.equal(got, wanted)
            for alike in (faked(op.ours, *given), op.ours(*(x.to("meta") for x in given))):
                assert (alike.shape, alike.stride(), alike.dtype) == (
                    got.shape,
                    got.stride(),
                    got.dtype,
                )


@every_op
def test_expanded_inputs(op: Op) -> None:
    flat = [torch.ones((), dtype=x.dtype).expand(x.shape) for x in op.tensors]
    close(op.ours(*flat), op.reference(*(x.contiguous() for x in flat)))


def test_channels_last_in_gives_channels_last_out() -> None:
    x = real(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    conv, weight = spec("conv").conv2d, real(6, 3, 3, 3)
    assert conv(x, weight).is_contiguous(memory_format=torch.channels_last)
    assert conv(x.contiguous(), weight).is_contiguous()
    for y in spec("pool").max_pool2d(x, kernel_size=2, stride=2):
        assert y.is_contiguous(memory_format=torch.channels_last)
    volume = real(1, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last_3d)
    shift = opgen.compile(VOLUME).shift
    assert shift(volume).is_contiguous(memory_format=torch.channels_last_3d)
    assert torch.equal(shift(volume), shift(volume.contiguous()))


def test_leading_dims_follow_the_memory_format() -> None:
    softmax = spec("softmax").softmax
    x = real(2, 3, 4, 5)
    given = {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(1, 2).contiguous().transpose(1, 2),
        "sliced": real(4, 6, 8, 5)[::2, ::2, ::2],
        "reversed": x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        "expanded": real(1, 3, 1, 5).expand(2, 3, 4, 5),
        "empty": x[:0].contiguous(memory_format=torch.channels_last),
        "five dims": real(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),
    }
    for name, tensor in given.items():
        for _ in range(2):  # the second call is looked up where it can be
            leaf = tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_()
            y = softmax(leaf)
            close(y, leaf.softmax(-1))
            assert y.stride() == softmax(tensor.to("meta")).stride(), name
            format_ = suggest_memory_format(tensor)
            assert y.is_contiguous(memory_format=format_), name
            (gradient,) = torch.autograd.grad(y.pow(3).sum(), leaf)
            (wanted,) = torch.autograd.grad(leaf.softmax(-1).pow(3).sum(), leaf)
            close(gradient, wanted)


def test_a_gradient_follows_too() -> None:
    x = real(2, 4, 3, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = spec("depth_to_space").depth_to_space(x, r=2)
    (gradient,) = torch.autograd.grad(y, x, y.detach())
    assert gradient.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 3, 4, 5), (2, 0, 4, 5)]
)
def test_formats_are_told_apart_as_pytorch_does(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    for other in layouts(x).values():
        by_torch = suggest_memory_format(other) is torch.channels_last
        assert is_channels_last(other.shape, other.stride()) == by_torch


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_calls_see_the_strides_of_eager_ones(backend: str) -> None:
    torch._dynamo.reset()
    pool = spec("pool").avg_pool2d
    function = torch.compile(
        lambda x: pool(x[:, ::2] * 1, kernel_size=2, stride=2), backend=backend, fullgraph=True
    )
    x = real(2, 4, 6, 8).contiguous(memory_format=torch.channels_last)
    got = function(x)
    wanted = pool(x[:, ::2] * 1, kernel_size=2, stride=2)
    close(got, wanted)
    assert got.stride() == wanted.stride()


# ---------------------------------------------------------------------------- autocast
def autocast(dtype: torch.dtype) -> Any:
    return torch.autocast("cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_follows_the_active_type_eager_and_compiled(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    x, weight = real(1, 2, 5, 5).float(), real(3, 2, 3, 3).float()

    def run(x: Tensor, weight: Tensor) -> Tensor:
        with autocast(dtype):
            result: Tensor = spec("conv").conv2d(x.to(dtype), weight)  # of two types
        return result

    wanted = spec("conv").conv2d(x.to(dtype), weight.to(dtype))
    assert wanted.dtype == dtype
    got = run(x, weight)
    assert got.dtype == dtype
    assert torch.equal(got, wanted)
    traced = torch.compile(run, backend="aot_eager", fullgraph=True)(x, weight)
    assert traced.dtype == dtype
    assert torch.equal(traced, wanted)


def test_gradients_under_autocast_have_the_type_of_their_input() -> None:
    x = real(1, 2, 5, 5).float().requires_grad_()
    weight = real(3, 2, 3, 3).float().requires_grad_()
    with autocast(torch.bfloat16):
        y = spec("conv").conv2d(x, weight)
    y.float().sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    wanted = torch.autograd.grad(
        spec("conv").conv2d(x.bfloat16(), weight.bfloat16()).float().sum(), x
    )
    assert torch.equal(x.grad, *wanted)


@pytest.mark.parametrize("channels", [2, 64])  # kernels of opgen's own, and the library's
def test_repeated_calls_under_autocast_are_cast_too(channels: int) -> None:
    conv = spec("conv").conv2d
    x = real(1, channels, 5, 5).float().requires_grad_()
    weight = real(3, channels, 3, 3).float().requires_grad_()
    plain = conv(x, weight)
    wanted = conv(x.bfloat16(), weight.bfloat16())
    cotangent = torch.ones_like(plain)
    gradients = torch.autograd.grad(plain, (x, weight), cotangent, retain_graph=True)
    with autocast(torch.bfloat16):
        for _ in range(3):
            with torch.no_grad():
                assert torch.equal(conv(x, weight), wanted)
            assert torch.equal(conv(x, weight), wanted)
            # What was computed in full precision is differentiated in it.
            again = torch.autograd.grad(plain, (x, weight), cotangent, retain_graph=True)
            assert all(map(torch.equal, again, gradients))
        with pytest.raises(ValueError, match="x must be 4-d"):
            conv(x[0], weight)
        assert torch.is_autocast_enabled("cpu")
        assert conv(x, weight).dtype == torch.bfloat16
    assert conv(x, weight).dtype == torch.float32


def test_autocast_leaves_double_and_declared_types_alone() -> None:
    module = opgen.compile("op mix(x: f32[N], i: int[N]) -> y: f32[N]\n  y[n] = x[n] * i[n]\n")
    with autocast(torch.bfloat16):
        assert spec("softmax").softmax(real(3)).dtype == torch.float64
        assert module.mix(torch.ones(2), torch.ones(2, dtype=torch.int32)).dtype == torch.float32
    with autocast(torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert spec("softmax").softmax(real(3).float()).dtype == torch.float32


@pytest.mark.sampled(4)
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("call", ["first", "later", "autocast"])
def test_a_cotangent_that_repeats_a_number_is_taken_as_rows(
    call: str, format_: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of `sum()`, for which kernels for any steps in memory took a hundred times as long."""
    conv = opgen.load(SPECS / "conv.op").conv2d
    x = torch.randn(2, 48, 20, 19).contiguous(memory_format=format_).requires_grad_()
    w = torch.randn(48, 1, 5, 5, requires_grad=True)
    with torch.autocast("cpu", enabled=call == "autocast"):
        y = conv(x, w, padding=2, groups=48)
        y = conv(x, w, padding=2, groups=48) if call == "later" else y
    given: list[tuple[int, ...]] = []
    apply = Operation.apply

    def noted(self: Operation, tensors: Any, numbers: Any) -> Any:
        given.extend(each.stride() for each in tensors if each is not None)
        return apply(self, tensors, numbers)

    monkeypatch.setattr(Operation, "apply", noted)
    repeated = torch.autograd.grad(y.sum(), (x, w), retain_graph=True)
    dense = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    assert all(map(torch.equal, repeated, dense))
    assert [each.stride() for each in repeated] == [each.stride() for each in dense]
    assert not any(0 in strides for strides in given)
