"""CUDA kernels of every spec, run on the CPU, against PyTorch; and those for wide accesses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import opgen
from catalogue import SPECS, Entry
from opgen.runtime import cuda, cuda_grid, cuda_operands
from opgen.runtime.record import replaced
from opgen.testing.cuda_on_cpu.emulated import Products, emulated
from test_spec_kernels import check_two_backwards, each


@pytest.mark.slow
@each
@settings(max_examples=1)
@given(data=st.data())
def test_kernels_for_the_attributes_of_a_call(subject: Entry, data: st.DataObject) -> None:
    """Through autograd; those for all attributes run in `test_emulator_specs.py`."""
    with emulated(threads=4, products=Products.NEVER, most_blocks=(3, 2, 2)):
        check_two_backwards(subject, data)


# ---------------------------------------------------------------------------- wide accesses
@contextmanager
def launched(change: Callable[[str], str]) -> Iterator[None]:
    """CUDA kernels on CPU tensors, of sources that are changed before they are compiled."""
    with (
        emulated(threads=4, products=Products.NEVER, most_blocks=(3, 2, 2)),
        pytest.MonkeyPatch.context() as patch,
    ):
        real = cuda.launch

        def launch(launched: cuda.Launched) -> None:
            real(replaced(launched, source=(change("".join(launched.source)),)))

        patch.setattr(cuda, "launch", launch)
        yield


@contextmanager
def watched() -> Iterator[dict[str, int]]:
    """The same with sources as they are; gives the cells of a thread by the names of kernels."""
    found: dict[str, int] = {}

    def look(text: str) -> str:
        chosen = re.findall(r"^#define lanes_of_(\w+) (\d+)\n(?!#endif)", text, re.MULTILINE)
        found.update((name, int(count)) for name, count in chosen)
        return text

    with launched(look):
        yield found


Function = Callable[..., torch.Tensor]


def op(stem: str, name: str, **attributes: object) -> Function:
    function = getattr(opgen.load(SPECS / f"{stem}.op"), name)
    return partial(function, **attributes)


CASES: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "depthwise": (
        op("conv", "conv2d", padding=1, groups=3),
        partial(F.conv2d, padding=1, groups=3),
        ((2, 3, 5, 16), (3, 1, 3, 3)),
    ),
    "dense": (
        op("conv", "conv2d", padding=(0, 2)),
        partial(F.conv2d, padding=(0, 2)),
        ((2, 3, 5, 16), (4, 3, 3, 5)),
    ),
    "strided": (
        op("conv", "conv2d", padding=1, stride=2),
        partial(F.conv2d, padding=1, stride=2),
        ((2, 3, 6, 32), (4, 3, 3, 3)),
    ),
    "transposed": (
        op("conv_transpose", "conv_transpose2d", stride=2, groups=3),
        partial(F.conv_transpose2d, stride=2, groups=3),
        ((2, 3, 3, 16), (3, 1, 2, 2)),
    ),
    "shuffle": (
        op("depth_to_space", "depth_to_space", r=2),
        partial(F.pixel_shuffle, upscale_factor=2),
        ((2, 8, 3, 16),),
    ),
    "unshuffle": (
        op("depth_to_space", "space_to_depth", r=2),
        partial(F.pixel_unshuffle, downscale_factor=2),
        ((2, 2, 6, 32),),
    ),
    "bilinear": (
        op("upsample_bilinear", "upsample_bilinear", scale_factor=2),
        partial(F.interpolate, scale_factor=2, mode="bilinear"),
        ((2, 3, 4, 16),),
    ),
    "nearest": (
        op("upsample_nearest", "upsample_nearest", scale_factor=2),
        partial(F.interpolate, scale_factor=2, mode="nearest"),
        ((2, 3, 4, 16),),
    ),
    "unfold": (
        op("unfold", "unfold", kernel_size=3, padding=1),
        partial(F.unfold, kernel_size=3, padding=1),
        ((2, 3, 4, 16),),
    ),
}

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}


def compare(name: str, inputs: list[torch.Tensor]) -> dict[str, int]:
    """Outputs and gradients against PyTorch in double precision; gives the cells of threads."""
    ours, theirs, _ = CASES[name]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    wanted = theirs(*exact)
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).to(inputs[0])
    wanted.backward(weight.double())
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with watched() as lanes:
        got = ours(*leaves)
        got.backward(weight)
    tolerance = TOLERANCES[inputs[0].dtype]
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    close(got, wanted.to(got.dtype))
    for leaf, reference in zip(leaves, exact, strict=True):
        assert leaf.grad is not None and reference.grad is not None
        scale = reference.grad.abs().max()
        close(leaf.grad / scale, (reference.grad / scale).to(leaf.grad.dtype))
    return lanes


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


FORWARD = re.compile(r"\w+_(y|_t1)$")


OFTEN = {
    ("strided", torch.float32),
    ("transposed", torch.bfloat16),
    ("shuffle", torch.float16),
    ("unfold", torch.float64),
}
"""An op for every type, so that each way of access is run often; the others are slow tests."""


def is_often(name: str, dtype: torch.dtype) -> tuple[pytest.MarkDecorator, ...]:
    return () if (name, dtype) in OFTEN else (pytest.mark.slow,)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=is_often(name, dtype))
        for name in CASES
        for dtype in TOLERANCES
    ],
    ids=str,
)
def test_several_cells_of_a_thread(name: str, dtype: torch.dtype) -> None:
    shapes = CASES[name][2]
    lanes = compare(name, [random(shape, at, dtype) for at, shape in enumerate(shapes)])
    forward = [count for kernel, count in lanes.items() if FORWARD.match(kernel)]
    assert forward
    # Interleaved cells share an access; sums of 16-bit numbers are kept in 32 bits.
    least = {8: 1, 4: 2, 2: 4}[dtype.itemsize]
    assert min(forward) >= least


@pytest.mark.parametrize(
    "name",
    [name if name == "depthwise" else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_rows_that_are_not_aligned(name: str) -> None:
    """Narrower accesses where rows begin anywhere, are strided, or have an odd length."""
    shapes = CASES[name][2]
    whole = [
        random((*shape[:-1], shape[-1] + 3), at, torch.float32) for at, shape in enumerate(shapes)
    ]
    shifted = [x[..., 1 : 1 + shape[-1]] for x, shape in zip(whole, shapes, strict=True)]
    assert 1 in compare(name, shifted).values()
    strided = [
        random((*shape[:-1], 2 * shape[-1]), at, torch.float32)[..., ::2]
        for at, shape in enumerate(shapes)
    ]
    with mock.patch.object(cuda_operands, "SMALL", 0.0):  # a small one is copied
        assert 1 in compare(name, strided).values()
    first, *others = (random(shape, at, torch.float32) for at, shape in enumerate(shapes))
    half = [first[..., : first.shape[-1] // 2 + 2].clone(), *others]
    with mock.patch.object(cuda_grid, "slab", return_value=None):  # which has whole rows
        assert max(compare(name, half).values()) <= 2


def test_channels_last_and_expanded() -> None:
    x, w = (random(shape, 3, torch.float32) for shape in CASES["depthwise"][2])
    compare("depthwise", [x.to(memory_format=torch.channels_last), w])
    compare("depthwise", [x[:, :, :1].expand(x.shape), w])


@pytest.mark.parametrize(
    "name", ["depthwise", "shuffle", pytest.param("transposed", marks=pytest.mark.slow)]
)
def test_indices_of_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_grid, "is_narrow", lambda *sizes: False)
    shapes = CASES[name][2]
    compare(name, [random(shape, at, torch.float32) for at, shape in enumerate(shapes)])


def test_a_wrong_run_is_reported() -> None:
    """Negative control: halo elements from the wrong place."""
    x, w = (random(shape, 3, torch.float32) for shape in CASES["depthwise"][2])

    def spoiled(text: str) -> str:
        wrong = text.replace("load_run<-1, LANES + 1", "load_run<-2, LANES")
        assert wrong != text
        return wrong

    with launched(spoiled):
        got = CASES["depthwise"][0](x, w)
    assert not torch.allclose(got, CASES["depthwise"][1](x, w))
