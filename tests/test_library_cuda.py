"""What goes to PyTorch's libraries on a GPU is computed as opgen would.

Tensors of the CPU take the way of those of a GPU, up to PyTorch's own ops; some on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from library_cuda_specs import (
    BLOCKS,
    BRAIN,
    CONVOLUTION,
    FLOAT,
    HALF,
    IEEE,
    LAST,
    LINE,
    PLAIN,
    PRODUCT,
    TF32,
    ops,
    take_the_way_of_a_gpu,
    whole_numbers,
)
from opgen.runtime import (
    autocast,
    evaluation,
    library_call,
    library_cuda,
    library_product,
    lookup_autograd,
    lookup_cuda_casts,
    lookup_library,
)
from opgen.runtime.lookup_table import CONVOLUTIONS
from opgen.testing.cuda_on_cpu.emulated import emulated


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of large tensors take the way of a GPU, with TF32 set; no number may be looked at."""
    take_the_way_of_a_gpu(monkeypatch)


@pytest.fixture
def asked(as_on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return listening(monkeypatch)


def listening(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways to the library that are taken from now on."""
    heard: list[str] = []
    ways = ((library_call, "convolve"), (library_call, "_both"), (library_product, "multiply"))
    for module, name in ways:
        original = getattr(module, name)

        def call(*given: Any, original: Any = original, name: str = name) -> Any:
            result = original(*given)
            if result is not None:
                heard.append(name)
            return result

        monkeypatch.setattr(module, name, call)
    return heard


@pytest.fixture
def without_twins() -> Iterator[None]:
    """Calls that kernels computed once are not looked up without asking again."""
    with lookup_library.suspended():
        yield


@pytest.fixture
def without_least_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small calls go there too."""
    of_copies = ("_WORTH_COPIES", "_WORTH_COPIES_OF_FEW", "_LEAST_WORK_OF_COPIES")
    for name in ("_LEAST_WORK", "_LEAST_WORK_OF_GRADIENTS", *of_copies):
        monkeypatch.setattr(library_cuda, name, 0)


# ---------------------------------------------------------------------------- results
def equal(ours: Tensor, theirs: Tensor, precision: float) -> None:
    """The same numbers, but for so much of the largest one."""
    scale = float(theirs.detach().abs().max()) if theirs.numel() else 0.0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=precision * scale)


def same(ours: Tensor, theirs: Tensor, inputs: tuple[Tensor, ...], precision: float = 0.0) -> None:
    """The same numbers, gradients, and gradients of these."""
    equal(ours, theirs, precision)
    flowing = whole_numbers(*ours.shape, dtype=ours.dtype).to(ours.device).requires_grad_()
    of_ours, of_theirs = (
        torch.autograd.grad(each, inputs, flowing, create_graph=True) for each in (ours, theirs)
    )
    for one, other in zip(of_ours, of_theirs, strict=True):
        equal(one, other, precision)
    onwards = [whole_numbers(*each.shape, dtype=each.dtype).to(each.device) for each in of_ours]
    second = [
        torch.autograd.grad(each, (*inputs, flowing), onwards, allow_unused=True)
        for each in (of_ours, of_theirs)
    ]
    for one, other in zip(*second, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            equal(one, other, precision)


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("without_least_work")
@pytest.mark.parametrize("dtype", [FLOAT, BRAIN])
@pytest.mark.parametrize("format_", [PLAIN, LAST])
@pytest.mark.parametrize(
    ("groups", "stride", "padding", "dilation"),
    [(1, 1, (1, 1), 1), (1, 2, (0, 1), 1), (2, 1, (1, 2), 2), (3, 3, (2, 0), 1)],
)
def test_results(
    groups: int,
    stride: int,
    padding: tuple[int, int],
    dilation: int,
    format_: Any,
    dtype: torch.dtype,
    asked: list[str],
) -> None:
    side = 64 if dtype != FLOAT else 16
    x = whole_numbers(2, groups * side, 9, 7, dtype=dtype, format_=format_).requires_grad_()
    w = whole_numbers(groups * side, side, 3, 2, dtype=dtype).requires_grad_()
    bias = whole_numbers(groups * side, dtype=dtype).requires_grad_()
    if dtype != FLOAT:  # sums of which 8 bits hold all
        with torch.no_grad():
            w[torch.rand(w.shape) < 0.97] = 0
    ours = ops(CONVOLUTION).conv_on_gpu(x, w, bias, g=groups, s=stride, p=padding, d=dilation)
    assert asked == ["convolve"]
    assert ours.is_contiguous(memory_format=format_)
    theirs = F.conv2d(x, w, bias, stride, padding, dilation, groups)
    if dtype == FLOAT:
        same(ours, theirs, (x, w, bias))
        assert asked.count("convolve") + 2 * asked.count("_both") >= 5
    else:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.usefixtures("without_least_work")
@pytest.mark.parametrize("format_", [PLAIN, LAST])
def test_results_that_are_in_another_order(format_: Any, asked: list[str]) -> None:
    x = whole_numbers(2, 12, 8, 6, format_=format_).requires_grad_()
    w = whole_numbers(40, 12, 3, 3).requires_grad_()
    ours = ops(BLOCKS).blocks_on_gpu(x, w)
    assert asked == ["convolve"]
    same(ours, F.pixel_shuffle(F.conv2d(x, w), 2), (x, w))


@pytest.mark.usefixtures("without_least_work")
def test_rows(asked: list[str]) -> None:
    x, w = whole_numbers(2, 32, 11).requires_grad_(), whole_numbers(16, 32, 3).requires_grad_()
    ours = ops(LINE).line_on_gpu(x, w)
    assert asked == ["convolve"]
    same(ours, F.conv1d(x, w, padding=1), (x, w))


@pytest.mark.usefixtures("without_least_work", "as_on_gpu")
@pytest.mark.parametrize("format_", [PLAIN, LAST])
def test_transposed_convolutions(format_: Any, asked: list[str]) -> None:
    module = opgen.load(SPECS / "conv_transpose.op")
    x = whole_numbers(2, 32, 5, 6, format_=format_).requires_grad_()
    w = whole_numbers(32, 24, 3, 3).requires_grad_()
    ours = module.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)
    assert asked == ["convolve"]
    same(ours, F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1), (x, w))


def test_both_gradients_are_one_call(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[Any] = []
    gradients = library_call.gradients

    def noted(*given: Any) -> Any:
        wanted.append(given[-1])
        return gradients(*given)

    monkeypatch.setattr(library_call, "gradients", noted)
    x = whole_numbers(4, 32, 32, 32).requires_grad_()
    w = whole_numbers(32, 32, 3, 3).requires_grad_()
    for _ in range(3):
        del asked[:], wanted[:]
        x.grad = w.grad = None
        ours = ops(CONVOLUTION).conv_on_gpu(x, w, p=1)
        ours.backward(torch.ones_like(ours))
    assert asked == ["convolve", "_both"]
    assert wanted == [(True, True)]
    theirs = torch.autograd.grad(F.conv2d(x, w, padding=1).sum(), (x, w))
    for found, expected in zip((x.grad, w.grad), theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("without_twins")
def test_gradients_one_by_one(asked: list[str]) -> None:
    """A backward pass that nothing differentiates again, where no pair is looked up."""
    x = whole_numbers(4, 32, 32, 32).requires_grad_()
    w = whole_numbers(32, 32, 3, 3).requires_grad_()
    ours = ops(CONVOLUTION).conv_on_gpu(x, w, p=1)
    found = torch.autograd.grad(ours, (x, w), torch.ones_like(ours))
    assert asked == ["convolve"] * 3
    theirs = torch.autograd.grad(F.conv2d(x, w, padding=1).sum(), (x, w))
    for one, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("groups", [1, 2, 64])
def test_steps_of_a_backward_pass_on_a_gpu(groups: int) -> None:
    """Each gradient has its op, and these know each other; of single channels one kernel has both.

    So it is of convolutions alone whose gradients a library may compute.
    """
    operation = ops(CONVOLUTION).FAMILY.operations["conv_on_gpu"]
    shapes = ((8, 64, 28, 28), (64, 64 // groups, 3, 3), None)
    steps = lookup_autograd.plan(
        *(operation, (True, True, False), shapes, (groups, 1, 1, 1, 1)),
        is_last=True,
        on_gpu=(8, 64, 28, 28),
    )
    if groups == 64:
        assert [each.together for each in steps] == [(0, 1)]
    else:
        assert [each.at for each in steps] == [0, 1]
        assert steps[0].beside is not None and steps[0].beside.other is steps[1]


def test_filters_in_another_format_do_not_copy_images(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch brings images into channels-last format if the filter is in it."""
    given: list[Tensor] = []
    convolution = torch.convolution

    def noted(image: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        given.append(weight)
        return convolution(image, weight, *rest)

    monkeypatch.setattr(torch, "convolution", noted)
    x, w = whole_numbers(4, 32, 32, 32), whole_numbers(32, 32, 3, 3, format_=LAST)
    ours = ops(CONVOLUTION).conv_on_gpu(x, w)
    assert [each.is_contiguous() for each in given] == [True]
    torch.testing.assert_close(ours, F.conv2d(x, w), rtol=0, atol=0)


@pytest.mark.usefixtures("without_twins")
def test_filters_that_are_not_finite(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a convolution that multiplies zeros; without the library there are none."""
    convolution = torch.convolution

    def multiplying_zeros(image: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        bias, stride, (p, q), *others = rest
        return convolution(F.pad(image, (q, q, p, p)), weight, bias, stride, (0, 0), *others)

    monkeypatch.setattr(torch, "convolution", multiplying_zeros)
    x, w = 1 + whole_numbers(4, 32, 32, 32).abs(), whole_numbers(32, 32, 3, 3)
    w[0, 0, 0, 0] = torch.inf
    ours = ops(CONVOLUTION).conv_on_gpu(x, w, p=1)
    assert asked == ["convolve"]
    monkeypatch.setattr(library_cuda, "settings", lambda: None)
    own = ops(CONVOLUTION).conv_on_gpu(x, w, p=1)
    assert asked == ["convolve"]
    assert not own.isnan().any()
    border = torch.zeros_like(ours, dtype=torch.bool)
    border[:, 0, 0, :] = border[:, 0, :, 0] = True
    assert (ours.isnan() == border).all()
    torch.testing.assert_close(ours[~border], own[~border], rtol=0, atol=0)


@pytest.mark.usefixtures("without_twins")
def test_settings_decide_call_by_call(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call like an earlier one, with other settings."""
    x, w = whole_numbers(4, 64, 32, 32), whole_numbers(64, 16, 3, 3)
    for settings, expected in ((TF32, 1), (IEEE, 0), (TF32, 1), (None, 0)):
        del asked[:]
        monkeypatch.setattr(library_cuda, "settings", lambda each=settings: each)
        ours = ops(CONVOLUTION).conv_on_gpu(x, w, g=4)
        assert len(asked) == expected
        torch.testing.assert_close(ours, F.conv2d(x, w, groups=4), rtol=0, atol=0)


@pytest.mark.parametrize("has_bias", [False, True])
def test_products(has_bias: bool, asked: list[str]) -> None:
    a = whole_numbers(16, 64, 64).requires_grad_()
    b = whole_numbers(16, 64, 80).requires_grad_()
    c = whole_numbers(80).requires_grad_()
    given = (a, b, c) if has_bias else (a, b)
    ours = ops(PRODUCT).product_on_gpu(*given)
    assert asked == ["multiply"]
    same(ours, a @ b + c if has_bias else a @ b, given)
    assert asked.count("multiply") >= 3


def test_autocast_does_not_cast_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs it casts what `torch.convolution` takes."""
    key, excluded = torch._C.DispatchKey.AutocastCUDA, []

    def noted(*_: Any) -> str:
        excluded.append(torch._C._dispatch_tls_is_dispatch_key_excluded(key))
        return "result"

    monkeypatch.setattr(torch, "convolution", noted)
    image: Any = SimpleNamespace(is_cuda=True)
    torch.set_autocast_enabled("cuda", True)
    try:
        torch.convolution(image)
        assert library_call._uncast(image, None) == "result"
        torch.convolution(image)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert excluded == [False, True, False]


_RUN_ON_CUDA = evaluation.run_on_cuda


def test_the_emulator_runs_kernels(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of calls like those that a library computed."""
    monkeypatch.setattr(evaluation, "run_on_cuda", _RUN_ON_CUDA)
    x, w = whole_numbers(1, 16, 34, 34), whole_numbers(32, 16, 3, 3)
    ours = ops(CONVOLUTION).conv_on_gpu(x, w)
    assert asked == ["convolve"]
    with emulated() as launches:
        again = ops(CONVOLUTION).conv_on_gpu(x, w)
    assert launches.kernels and asked == ["convolve"]
    torch.testing.assert_close(again, ours, rtol=0, atol=0)


# ---------------------------------------------------------------------------- in another format
@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether images that PyTorch convolves from now on, without TF32, are contiguous."""
    monkeypatch.setattr(library_cuda, "settings", lambda: IEEE)
    seen: list[bool] = []
    convolution, gradients = torch.convolution, library_call.gradients

    def convolving(image: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        seen.extend(each.is_contiguous() for each in (image, weight))
        return convolution(image, weight, *rest)

    def differentiating(case: Any, *given: Any) -> Any:
        seen.extend(each.is_contiguous() for each in given[:3])
        return gradients(case, *given)

    monkeypatch.setattr(torch, "convolution", convolving)
    monkeypatch.setattr(library_call, "gradients", differentiating)
    return seen


def has_strides_of(format_: Any, *tensors: Tensor) -> bool:
    alike = (torch.empty(each.shape, memory_format=format_) for each in tensors)
    pairs = zip(alike, tensors, strict=True)
    return all(one.stride() == other.stride() for one, other in pairs)


@pytest.mark.usefixtures("without_least_work")
@pytest.mark.parametrize("of_filter", [PLAIN, LAST])
@pytest.mark.parametrize(
    ("batch", "groups", "side", "stride", "padding", "dilation"),
    [
        (2, 1, 16, 1, (1, 1), 1),
        (1, 1, 48, 2, (0, 1), 1),
        (2, 2, 32, 1, (1, 2), 2),
        (1, 4, 16, 1, (1, 1), 1),
        (2, 3, 8, 3, (2, 0), 1),
    ],
)
@pytest.mark.sampled(6)
def test_channels_last_images_in_contiguous_format(
    batch: int,
    groups: int,
    side: int,
    stride: int,
    padding: tuple[int, int],
    dilation: int,
    of_filter: Any,
    asked: list[str],
    formats: list[bool],
) -> None:
    x = whole_numbers(batch, groups * side, 9, 7, format_=LAST).requires_grad_()
    w = whole_numbers(groups * side, side, 3, 3, format_=of_filter).requires_grad_()
    bias = whole_numbers(groups * side).requires_grad_()
    how = {"g": groups, "s": stride, "p": padding, "d": dilation}
    for _ in range(2):  # a new call, and one like an earlier one
        ours = ops(CONVOLUTION).conv_on_gpu(x, w, bias, **how)
        assert has_strides_of(LAST, ours)
        flowing = whole_numbers(*ours.shape, format_=LAST)
        assert has_strides_of(LAST, *torch.autograd.grad(ours, (x, w), flowing))
    # Gradients of several groups are those of opgen's kernels.
    assert asked[-2:] == (["convolve", "_both"] if groups == 1 else ["convolve", "convolve"])
    same(
        ops(CONVOLUTION).conv_on_gpu(x, w, bias, **how),
        F.conv2d(x, w, bias, stride, padding, dilation, groups),
        (x, w, bias),
    )
    assert all(formats)


@pytest.mark.usefixtures("without_least_work")
def test_other_convolutions_in_contiguous_format(asked: list[str], formats: list[bool]) -> None:
    """Results with other dims, and transposed convolutions."""
    x = whole_numbers(2, 12, 8, 6, format_=LAST).requires_grad_()
    w = whole_numbers(40, 12, 3, 3).requires_grad_()
    ours = ops(BLOCKS).blocks_on_gpu(x, w)
    assert has_strides_of(LAST, ours)
    same(ours, F.pixel_shuffle(F.conv2d(x, w), 2), (x, w))
    module = opgen.load(SPECS / "conv_transpose.op")
    x = whole_numbers(2, 32, 5, 6, format_=LAST).requires_grad_()
    w = whole_numbers(32, 24, 3, 3).requires_grad_()
    how: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1}
    ours = module.conv_transpose2d(x, w, **how)
    assert has_strides_of(LAST, ours)
    same(ours, F.conv_transpose2d(x, w, **how), (x, w))
    assert asked.count("convolve") >= 2 and all(formats)


@pytest.mark.usefixtures("without_least_work")
@pytest.mark.parametrize(("of_image", "of_flowing"), [(PLAIN, LAST), (LAST, PLAIN)])
def test_what_flows_back_in_another_format(
    of_image: Any, of_flowing: Any, asked: list[str], formats: list[bool]
) -> None:
    x = whole_numbers(2, 16, 9, 7, format_=of_image).requires_grad_()
    w = whole_numbers(16, 16, 3, 3).requires_grad_()
    flowing = whole_numbers(2, 16, 9, 7, format_=of_flowing)
    theirs = torch.autograd.grad(F.conv2d(x, w, padding=1), (x, w), flowing)
    ours = ops(CONVOLUTION).conv_on_gpu(x, w, p=1)
    assert has_strides_of(of_image, ours)
    found = torch.autograd.grad(ours, (x, w), flowing)
    assert has_strides_of(of_flowing, *found)
    for one, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert asked[0] == "convolve" and len(asked) > 1 and all(formats)


@pytest.mark.usefixtures("without_least_work", "asked", "formats")
@pytest.mark.parametrize("shape", [(2, 16, 1, 5), (2, 16, 3, 1), (1, 16, 4, 4), (2, 16, 1, 1)])
def test_strides_of_single_rows(shape: tuple[int, ...]) -> None:
    """Dims of one element have the strides of the format too."""
    x, w = whole_numbers(*shape, format_=LAST).requires_grad_(), whole_numbers(16, 16, 3, 3)
    ours = ops(CONVOLUTION).conv_on_gpu(x, w, p=1)
    assert has_strides_of(LAST, ours) == has_strides_of(LAST, x)
    same(ours, F.conv2d(x, w, padding=1), (x,))


# ---------------------------------------------------------------------------- looked up
@pytest.fixture
def in_tables(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tables convolve like a GPU's, by the library for the CPU; the ways there from Python."""

    def functions() -> list[ctypes.c_void_p]:
        library = lookup_library._libtorch()
        return [ctypes.cast(getattr(library, each), ctypes.c_void_p) for each in CONVOLUTIONS]

    monkeypatch.setattr(lookup_library, "cuda_convolutions", functions)
    monkeypatch.setattr(lookup_library, "_CUDA", [])
    return asked


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("without_least_work")
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("format_", [PLAIN, LAST])
@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_calls_like_an_earlier_one(
    dtype: torch.dtype, format_: Any, has_bias: bool, in_tables: list[str]
) -> None:
    """Results and both gradients; what is not finite is not looked for there either."""
    conv = ops(CONVOLUTION).conv_on_gpu
    for turn in range(4):
        x = whole_numbers(2 + has_bias, 32, 6, 5, dtype=dtype, format_=format_).requires_grad_()
        w = whole_numbers(32, 16, 3, 3, dtype=dtype).requires_grad_()
        bias = whole_numbers(32, dtype=dtype) if has_bias else None
        ours = conv(x, w, bias, g=2, p=1, s=2)
        theirs = F.conv2d(x, w, bias, stride=2, padding=1, groups=2)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert has_strides_of(format_, ours)
        flowing = whole_numbers(*ours.shape, dtype=dtype, format_=format_)
        pairs = (torch.autograd.grad(each, (x, w), flowing) for each in (ours, theirs))
        for one, other in zip(*pairs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        if turn < 2:
            assert in_tables == ["convolve", "_both"] or in_tables == ["convolve"] * 3 or turn
            del in_tables[:]
    assert not in_tables
    with torch.no_grad():
        w[0, 0, 0, 0] = torch.inf
        assert not conv(x, w, bias, g=2, p=1, s=2).isfinite().all()
    assert not in_tables


@pytest.mark.usefixtures("without_least_work")
def test_other_calls_like_an_earlier_one(in_tables: list[str]) -> None:
    """Rows, transposed convolutions, gradients of one input alone."""
    transposed = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    for turn in range(3):
        x, w = whole_numbers(3, 32, 13).requires_grad_(), whole_numbers(24, 32, 3)
        ours, theirs = ops(LINE).line_on_gpu(x, w), F.conv1d(x, w, padding=1)
        assert ours.equal(theirs)
        (found,) = torch.autograd.grad(ours.sum(), x)
        assert found.equal(torch.autograd.grad(theirs.sum(), x)[0])
        x, w = whole_numbers(3, 32, 5, 6), whole_numbers(32, 24, 3, 3)
        ours = transposed(x, w, stride=2, padding=1)
        assert ours.equal(F.conv_transpose2d(x, w, stride=2, padding=1))
        if turn == 1:
            del in_tables[:]
    assert in_tables == ["convolve"]  # one gradient alone


@pytest.mark.usefixtures("without_least_work")
def test_casts_before_a_convolution(in_tables: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of all may be one under autocast: the next one of its casts is looked up."""
    monkeypatch.setattr(autocast, "_is_eligible", lambda tensor, _: tensor.is_floating_point())
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: HALF)
    conv = ops(CONVOLUTION).conv_on_gpu
    under_autocast = lookup_cuda_casts.caller(ops(CONVOLUTION).FAMILY.operations["conv_on_gpu"])
    x, w = whole_numbers(5, 32, 6, 5), whole_numbers(32, 32, 3, 3)
    wanted = F.conv2d(x, w, padding=1).to(HALF)
    assert under_autocast((1, 1, 1, 1, 1), (x, w, None)).equal(wanted)
    assert in_tables == ["convolve"]
    assert under_autocast((1, 1, 1, 1, 1), (x, w, None)) is None
    assert conv(x.to(HALF), w.to(HALF), p=1).equal(wanted)
    assert in_tables == ["convolve"]
    assert not torch.is_autocast_enabled("cuda")


@pytest.mark.usefixtures("without_least_work")
def test_what_is_copied_is_not_looked_up(in_tables: list[str], formats: list[bool]) -> None:
    """Images that are brought into another format, and filters that are, take the way of Python."""
    for of_image, of_filter in ((LAST, PLAIN), (PLAIN, LAST)):
        x = whole_numbers(3, 32, 7, 5, format_=of_image)
        w = whole_numbers(16, 32, 3, 3, format_=of_filter)
        for _ in range(3):
            del in_tables[:]
            ours = ops(CONVOLUTION).conv_on_gpu(x, w, p=1)
            assert in_tables == ["convolve"]
            assert ours.equal(F.conv2d(x, w, padding=1)) and has_strides_of(of_image, ours)
    assert all(formats)


# ---------------------------------------------------------------------------- on a GPU
gpu = pytest.mark.gpu
CLOSE = 2e-3  # Winograd's algorithm has fractions, which TF32 rounds


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return listening(monkeypatch)


@gpu
def test_a_captured_graph_and_no_synchronisation(on_gpu: list[str]) -> None:
    x = whole_numbers(8, 64, 28, 28).cuda().requires_grad_()
    w = whole_numbers(64, 64, 3, 3).cuda().requires_grad_()
    flowing = whole_numbers(8, 64, 28, 28).cuda()

    def step() -> tuple[Tensor, ...]:
        result = ops(CONVOLUTION).conv_on_gpu(x, w, p=1)
        return (result, *torch.autograd.grad(result, (x, w), flowing))

    step()
    assert on_gpu == ["convolve", "_both"] or on_gpu == ["convolve"] * 3
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        del on_gpu[:]
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not on_gpu  # it was looked up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        for tensor in (x, w, flowing):
            tensor.copy_(whole_numbers(*tensor.shape))
    graph.replay()
    theirs = F.conv2d(x, w, padding=1)
    for ours, expected in zip(
        found, (theirs, *torch.autograd.grad(theirs, (x, w), flowing)), strict=True
    ):
        equal(ours, expected, CLOSE)


@gpu
@pytest.mark.parametrize("format_", [PLAIN, LAST])
@pytest.mark.parametrize("dtype", [FLOAT, HALF, BRAIN])
@pytest.mark.parametrize("groups", [1, 2])
def test_results_on_a_gpu(groups: int, dtype: torch.dtype, format_: Any, on_gpu: list[str]) -> None:
    x = whole_numbers(8, 128, 28, 28, dtype=dtype, format_=format_).cuda().requires_grad_()
    w = whole_numbers(128, 128 // groups, 3, 3, dtype=dtype).cuda().requires_grad_()
    ours = ops(CONVOLUTION).conv_on_gpu(x, w, g=groups, p=1)
    assert on_gpu == ["convolve"]
    assert ours.is_contiguous(memory_format=format_)
    theirs = F.conv2d(x, w, padding=1, groups=groups)
    same(ours, theirs, (x, w), CLOSE if dtype == FLOAT else 2e-2)


@gpu
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_contiguous_format_on_a_gpu(
    groups: int, on_gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without TF32 images in channels-last format are copied; results have strides of theirs."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    x = whole_numbers(16, 128, 56, 56, format_=LAST).cuda().requires_grad_()
    w = whole_numbers(128, 128 // groups, 3, 3).cuda().requires_grad_()
    flowing = whole_numbers(16, 128, 56, 56, format_=LAST).cuda()
    ours = ops(CONVOLUTION).conv_on_gpu(x, w, g=groups, p=1)
    assert has_strides_of(LAST, ours, *torch.autograd.grad(ours, (x, w), flowing))
    if groups == 8:  # what is copied, forward alone
        assert on_gpu == ["convolve"]
    else:
        assert on_gpu == ["convolve", "_both"] or on_gpu == ["convolve"] * 3
    ours = ops(CONVOLUTION).conv_on_gpu(x, w, g=groups, p=1)
    same(ours, F.conv2d(x, w, padding=1, groups=groups), (x, w), 1e-4)


@gpu
def test_products_on_a_gpu(on_gpu: list[str]) -> None:
    a = whole_numbers(16, 64, 64).cuda().requires_grad_()
    b = whole_numbers(16, 64, 80).cuda().requires_grad_()
    ours = ops(PRODUCT).product_on_gpu(a, b)
    assert on_gpu == ["multiply"]
    same(ours, a @ b, (a, b))
