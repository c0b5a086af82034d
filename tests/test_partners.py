"""Gradients of image and filter in one pass, where channels are single and rows are short."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen import on_demand, paths
from opgen.on_demand import special_source
from opgen.passes import group_sums
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.passes.specialise import attributes_of
from opgen.programs import along_rows
from opgen.runtime import partners, special

TYPES = [
    torch.float32,
    pytest.param(torch.float64, marks=pytest.mark.slow),
    pytest.param(torch.float16, marks=pytest.mark.slow),
    torch.bfloat16,
]


@pytest.fixture(autouse=True)
def kernels_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No case runs on general kernels because there were many before it."""
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "1000")


@pytest.fixture(scope="module")
def transposed() -> Any:
    return opgen.load(SPECS / "conv_transpose.op").conv_transpose2d


@pytest.fixture(scope="module")
def convolved() -> Any:
    return opgen.load(SPECS / "conv.op").conv2d


def real(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def apart(tensor: Tensor) -> Tensor:
    """The same elements, every second one of a row in memory."""
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "sliced": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "apart": apart,
    "expanded": lambda x: x[:1].expand(x.shape),
}

ATTRIBUTES = ("stride", "padding", "output_padding", "dilation")

SHAPES = [(3, 67, 8, 8), (1, 130, 8, 8), (2, 41, 16, 16), (9, 17, 7, 9), (140, 1, 8, 8)]


def both(op: Any, x: Tensor, weight: Tensor, cotangent: Tensor, **given: Any) -> list[Tensor]:
    """The gradients, in a call that is not the first one of its kind."""
    inputs = [each.detach().requires_grad_() for each in (x, weight)]
    for _ in range(2):
        found = torch.autograd.grad(op(*inputs, **given), inputs, cotangent)
    return list(found)


def check(found: list[Tensor], wanted: list[Tensor], terms: tuple[int, int]) -> None:
    """Whether sums of that many terms agree with those in float64."""
    for own, exact, count in zip(found, wanted, terms, strict=True):
        assert own.dtype == found[0].dtype
        eps = torch.finfo(own.dtype).eps
        # The sum is one of float32, or of float64, and is rounded once.
        bound = eps + 2 * count * (2**-52 if own.dtype == torch.float64 else 2**-23)
        scale = exact.abs().max().clamp(min=1)
        assert own.shape == exact.shape
        assert (own.double() - exact).abs().max() <= bound * scale


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_transposed(transposed: Any, dtype: torch.dtype, layout: str, threads: int) -> None:
    for shape in SHAPES:
        n, channels, height, width = shape
        x = LAYOUTS[layout](real(*shape, dtype=dtype))
        cotangent = LAYOUTS[layout](real(n, channels, 2 * height, 2 * width, dtype=dtype))
        weight = real(channels, 1, 2, 2, dtype=dtype)
        found = both(transposed, x, weight, cotangent, stride=2, groups=channels)
        exact = [each.double().requires_grad_() for each in (x, weight)]
        result = F.conv_transpose2d(*exact, stride=2, groups=channels)
        wanted = torch.autograd.grad(result, exact, cotangent.double())
        check(found, list(wanted), (4, n * height * width))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise(convolved: Any, dtype: torch.dtype, stride: int, threads: int) -> None:
    for shape, layout in itertools.product(SHAPES[:2], ("contiguous", "channels_last")):
        channels = shape[1]
        x = LAYOUTS[layout](real(*shape, dtype=dtype))
        weight = real(channels, 1, 3, 3, dtype=dtype)
        given = {"stride": stride, "padding": 1, "groups": channels}
        exact = [each.double().requires_grad_() for each in (x, weight)]
        result = F.conv2d(*exact, **given)
        cotangent = LAYOUTS[layout](real(*result.shape, dtype=dtype))
        found = both(convolved, x, weight, cotangent, **given)
        wanted = torch.autograd.grad(result, exact, cotangent.double())
        check(found, list(wanted), (9, result[:, 0].numel()))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_steps_of_three(transposed: Any, dtype: torch.dtype) -> None:
    """No vectors are loaded; the terms of each channel are those of its own sum."""
    given: dict[str, Any] = {"stride": (1, 3), "padding": (0, 1), "groups": 67}
    x, weight = real(6, 67, 14, 14, dtype=dtype), real(67, 1, 1, 3, dtype=dtype)
    cotangent = real(6, 67, 14, 40, dtype=dtype)
    found = both(transposed, x, weight, cotangent, **given)
    exact = [each.double().requires_grad_() for each in (x, weight)]
    result = F.conv_transpose2d(*exact, **given)
    wanted = torch.autograd.grad(result, exact, cotangent.double())
    check(found, list(wanted), (3, 6 * 14 * 14))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_one_pass_gives_the_bits_of_two(transposed: Any, dtype: torch.dtype, threads: int) -> None:
    """A graph of the backward pass asks for each gradient by itself."""
    for n, channels, size in [(4, 131, 8), (2, 41, 16)]:
        x = real(n, channels, size, size, dtype=dtype).requires_grad_()
        weight = real(channels, 1, 2, 2, dtype=dtype).requires_grad_()
        cotangent = real(n, channels, 2 * size, 2 * size, dtype=dtype)
        result = transposed(x, weight, stride=2, groups=channels)
        alone = torch.autograd.grad(result, (x, weight), cotangent, create_graph=True)
        together = both(transposed, x, weight, cotangent, stride=2, groups=channels)
        assert all(map(torch.equal, alone, together))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flags", ["-O1 -march=x86-64", "-O1 -march=x86-64-v3", "-mno-avx512f"])
def test_other_instructions(flags: str, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Without those that pick elements out of two vectors nothing is a part of its host."""
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    op = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    for dtype, shape in itertools.product((torch.float32, torch.bfloat16), SHAPES[:3]):
        n, channels, height, width = shape
        x, weight = real(*shape, dtype=dtype), real(channels, 1, 2, 2, dtype=dtype)
        cotangent = real(n, channels, 2 * height, 2 * width, dtype=dtype)
        found = both(op, x, weight, cotangent, stride=2, groups=channels)
        exact = [each.double().requires_grad_() for each in (x, weight)]
        result = F.conv_transpose2d(*exact, stride=2, groups=channels)
        wanted = torch.autograd.grad(result, exact, cotangent.double())
        check(found, list(wanted), (4, n * height * width))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize(
    "channels", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (7, 40)), 8, 9]
)
def test_planes_are_parts_of_their_hosts(size: int, channels: int) -> None:
    """Each cell of a group has its plane at each image, and all of them have one."""
    known = {f"{name}[{at}]": 2 * (name == "stride") for name in ATTRIBUTES for at in (0, 1)}
    known |= {"dilation[0]": 1, "dilation[1]": 1, "K": 2, "L": 2, "Ci": 1, "Co": 1}
    known |= {"H": size, "W": size, "OH": 2 * size, "OW": 2 * size}
    text = (SPECS / "conv_transpose.op").read_text()
    path = ("conv_transpose2d", "x,weight")
    source = special_source(text, "conv_transpose.op", path, known)
    host = source[source.index("KERNEL void conv_transpose2d_grad_x_and_weight_grad_weight(") :]
    host = host[: host.index("ANY_STEPS")]
    assert host.count("#if HAVE_PLANES\n") == host.count("if (guest) {\n") == 1
    assert "_task(" not in host
    program, *_ = on_demand._special_program(text, "conv_transpose.op", path, known, 0)
    *in_rounds, sums = (each for each in program.kernels if each.guest is not None)
    # Images of 4 by 4 are a single vector.
    assert [each.sums is not None for each in in_rounds] == [True] * (size > 4)
    assert all(
        replace(each, name=sums.name, only=None, sums=None, unless=sums.unless) == sums
        for each in in_rounds
    )
    assert sums.guest is not None
    assert sums.group is not None
    (planes,) = (each for each in program.kernels if each.name == sums.guest.kernel)
    assert not sums.axes
    values = dict.fromkeys(program.integers, 1) | known | {"N": 3, "groups": channels}
    seen = []
    for first in range(0, channels, sums.group.width):
        for n, member in itertools.product(range(3), range(sums.group.width)):
            if first + member < channels:
                here = {**values, sums.guest.loop: n, sums.group.axis.name: first + member}
                at = {name: value.evaluate(here) for name, value in sums.guest.point}
                seen.append(tuple(at[axis.name] for axis in planes.axes))
    extents = [range(axis.extent.evaluate(values)) for axis in planes.axes]
    assert sorted(seen) == list(itertools.product(*extents))


def test_numbers_that_are_not_finite(transposed: Any) -> None:
    """They stay where they belong: no zero is multiplied with them."""
    x, weight = real(3, 67, 8, 8, dtype=torch.float32), real(67, 1, 2, 2, dtype=torch.float32)
    cotangent = real(3, 67, 16, 16, dtype=torch.float32)
    x[1, 3, 7, 7], weight[5, 0, 1, 0], cotangent[2, 66, 15, 15] = torch.inf, torch.nan, -torch.inf
    found = both(transposed, x, weight, cotangent, stride=2, groups=67)
    exact = [each.double().requires_grad_() for each in (x, weight)]
    result = F.conv_transpose2d(*exact, stride=2, groups=67)
    wanted = torch.autograd.grad(result, exact, cotangent.double())
    for own, other in zip(found, wanted, strict=True):
        assert torch.equal(own.isfinite(), other.isfinite())


def test_nothing(transposed: Any) -> None:
    x, weight, cotangent = torch.ones(0, 3, 8, 8), torch.ones(3, 1, 2, 2), torch.ones(0, 3, 16, 16)
    image, taps = both(transposed, x, weight, cotangent, stride=2, groups=3)
    assert image.shape == x.shape
    assert torch.equal(taps, torch.zeros_like(taps))


def test_a_gradient_by_hand_has_an_op_of_its_own() -> None:
    """It is nothing that can be derived together with others."""
    sizes = """
  where stride >= 1, groups >= 1
  let OH = (H - K)//stride + 1
  let OW = (W - L)//stride + 1"""
    inputs = "x[N,(groups Ci),H,W], weight[(groups Co),Ci,K,L]; stride = 1, groups = 1"
    op = opgen.compile(f"""
op own({inputs})
    -> y[N,(groups Co),OH,OW]{sizes}
  gradient weight by three_times
  y[n,(g o),i,j] = sum(c,k,l) x[n,(g c), i*stride + k, j*stride + l] * weight[(g o),c,k,l]
op three_times(grad_y[N,(groups Co),OH,OW], {inputs}) -> grad_weight[(groups Co),Ci,K,L]{sizes}
  grad_weight[(g o),c,k,l] = 3*weight[(g o),c,k,l]
""").own
    for size in (4, 16):
        x, weight = torch.randn(3, 131, size, size), torch.randn(131, 1, 2, 2)
        cotangent = torch.randn(3, 131, size // 2, size // 2)
        image, taps = both(op, x, weight, cotangent, stride=2, groups=131)
        expected = F.conv_transpose2d(cotangent, weight, stride=2, groups=131)
        assert torch.allclose(image, expected)
        assert torch.equal(taps, 3 * weight)


def test_where_one_pass_is(monkeypatch: pytest.MonkeyPatch) -> None:
    transposed = opgen.load(SPECS / "conv_transpose.op").conv_transpose2d
    seen: dict[int, set[str | None]] = {}
    ask = partners.partners

    def listening(*given: Any) -> Any:
        found = ask(*given)
        name = None if found is None else found[0].name
        seen.setdefault(given[2][0][-1], set()).add(name)
        return found

    monkeypatch.setattr(partners, "partners", listening)
    weight = torch.randn(131, 1, 2, 2)
    for size in (8, 16, 80, 2):
        x = torch.randn(3, 131, size, size)
        both(transposed, x, weight, torch.ones(3, 131, 2 * size, 2 * size), stride=2, groups=131)
    # Long rows have no kernels of their own, and small tensors no kernels at all.
    one = {"conv_transpose2d_grad_x_and_weight"}
    assert seen == {8: one, 16: one, 80: {None}, 2: {None}}


@pytest.mark.parametrize(
    ("file", "name"), [("conv", "conv2d"), ("conv_transpose", "conv_transpose2d")]
)
def test_kernels_for_all_sizes_do_not_run_within_another(file: str, name: str) -> None:
    """So that nobody asks for it: see `special.is_one_pass`."""
    text, path = (SPECS / f"{file}.op").read_text(encoding="utf-8"), (name, "x,weight")
    op = paths.op_of(text, f"{file}.op", path)
    assert not along_rows(op, schedule(op, gather(op))).is_one_pass
    for stride in (1, 2):
        values = dict.fromkeys(attributes_of(op), stride)
        assert not on_demand.one_pass(text, f"{file}.op", path, values)


def test_larger_filters_go_by_themselves(convolved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    ask = partners.partners
    monkeypatch.setattr(partners, "partners", lambda *given: seen.append(ask(*given)))
    x, weight = torch.randn(3, 131, 8, 8), torch.randn(131, 1, 3, 3)
    both(convolved, x, weight, torch.ones(3, 131, 8, 8), padding=1, groups=131)
    assert set(seen) == {None}


def test_more_images_make_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do more channels. The op is none of which other tests have asked for many sizes."""
    text = (SPECS / "conv_transpose.op").read_text()
    text = text.replace("op conv_transpose2d(", "op conv_transpose2d_of_more_images(")
    transposed = opgen.compile(text, "more_images.op").conv_transpose2d_of_more_images
    weight, x = torch.randn(131, 1, 2, 2), torch.randn(3, 131, 8, 8)
    both(transposed, x, weight, torch.ones(3, 131, 16, 16), stride=2, groups=131)
    made: list[object] = []
    monkeypatch.setattr(special, "_made", lambda *given: made.append(given))
    for n, channels in ((4, 131), (5, 150), (9, 77)):
        x, weight = torch.randn(n, channels, 8, 8), torch.randn(channels, 1, 2, 2)
        cotangent = torch.ones(n, channels, 16, 16)
        both(transposed, x, weight, cotangent, stride=2, groups=channels)
    assert not made


def test_many_sums_do_not_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a filter with nine taps leave the registers where they do."""
    text = (SPECS / "conv.op").read_text()
    values = {"stride[0]": 1, "stride[1]": 1, "padding[0]": 1, "padding[1]": 1}
    values |= {"dilation[0]": 1, "dilation[1]": 1, "K": 3, "L": 3, "Ci": 1, "Co": 1}
    values |= {"H": 8, "W": 8, "OH": 8, "OW": 8}
    source = functools.partial(special_source, text, "conv.op", ("conv2d", "x,weight"), values)
    assert "g_first" not in source()
    monkeypatch.setattr(group_sums, "MOST_SUMS", 9)
    assert "g_first" in source()
