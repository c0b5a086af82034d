"""Two vectors of lanes in turn compute what one does, however many channels there are."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.emit.c import c_source
from opgen.passes.differentiate import adjoint
from opgen.runtime import build, prelude, special
from opgen.runtime.prelude import bindings
from test_blocks import CONV, geometry, programs


def test_passes_with_cells_of_their_own_have_pairs() -> None:
    """Two rows of cells are tiles, or for short rows one pass that is repeated; sums over images
    stay as they are."""
    values = geometry(3, 16, 16, 1)
    _, rows = programs(CONV["conv2d"], values, 9)
    text = c_source(rows)
    assert text.count("#if PAIRED_LANES") == 4  # for two parts of a row: inside, and at the borders
    assert "number < 2; number++" in text
    assert "total__1_3_next += " in text  # a tile of two rows and four columns
    assert "total__1_4_next" not in text
    _, sums = programs(adjoint(CONV["conv2d"], "weight").op, values, 3)
    assert "wide_lanes" in c_source(sums)
    assert "PAIRED_LANES" not in c_source(sums)


@pytest.mark.parametrize(("kind", "real"), [("bf16", "f32"), ("f16", "f32"), ("f32", "f32")])
def test_only_numbers_of_16_bits_have_pairs(kind: str, real: str) -> None:
    text = bindings(kind, real, {})
    assert f"#define PAIRED_LANES {int(kind != 'f32')}" in text


CALLS = [
    # Fewer lanes than a pair has.
    pytest.param((torch.bfloat16, 16, 8, 3), marks=pytest.mark.slow),
    pytest.param((torch.bfloat16, 31, 9, 3), marks=pytest.mark.slow),
    (torch.bfloat16, 33, 16, 3),
    pytest.param((torch.bfloat16, 32, 8, 3), marks=pytest.mark.slow),
    pytest.param((torch.bfloat16, 48, 12, 2), marks=pytest.mark.slow),
    pytest.param((torch.bfloat16, 289, 20, 3), marks=pytest.mark.slow),
    pytest.param((torch.float16, 17, 16, 3), marks=pytest.mark.slow),
    pytest.param((torch.float16, 47, 7, 3), marks=pytest.mark.slow),
    pytest.param((torch.float32, 33, 16, 3), marks=pytest.mark.slow),
    pytest.param((torch.float64, 17, 9, 3), marks=pytest.mark.slow),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("flags", ["-O1", "-O1 -mno-avx512f"])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_compiled_filters_give_what_torch_gives(
    call: tuple[torch.dtype, int, int, int], flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    dtype, channels, size, window = call
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(3, channels, size, size + 1, dtype=dtype)
    given = [
        x.to(memory_format=torch.channels_last).requires_grad_(),
        torch.randn(channels, 1, window, window, dtype=dtype).requires_grad_(),
    ]
    wide = [each.detach().double().requires_grad_() for each in given]
    z = F.conv2d(*wide, padding=1, groups=channels)
    seed = torch.randn(z.shape).to(dtype).to(memory_format=torch.channels_last)
    wanted = (z, *torch.autograd.grad(z, wide, seed.double()))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            y = conv(*given, padding=1, groups=channels)
            found = (y, *torch.autograd.grad(y, given, seed))
            for own, exact in zip(found, wanted, strict=True):
                limit = 16 * torch.finfo(dtype).eps * exact.abs().max()
                assert (own.double() - exact).abs().max() <= limit
        none = conv(given[0][:0], given[1], padding=1, groups=channels)
        assert none.shape == (0, *z.shape[1:])
    finally:
        torch.set_num_threads(before)


SPECIAL_NUMBERS = (float("nan"), float("inf"), -float("inf"), 3.38e38, -3.38e38, 1e-40, -0.0)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("flags", ["-O1", "-O1 -mno-avx512f"])
@pytest.mark.parametrize(
    ("dtype", "channels"), [(torch.bfloat16, 17), (torch.bfloat16, 75), (torch.float16, 75)]
)
def test_every_number_is_rounded_in_its_place(
    dtype: torch.dtype, channels: int, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one tap that is not 0, and a bias of 0, results are products: exact but for rounding."""
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(2, channels, 8, 9).to(dtype)
    for at, number in enumerate(SPECIAL_NUMBERS):
        x[1, (at * 11) % channels, 2 + at % 4, 3 + at % 5] = number
    weight = torch.zeros(channels, 1, 3, 3, dtype=dtype)
    weight[:, 0, 1, 1] = 1 + torch.rand(channels).to(dtype)
    for bias in (None, torch.zeros(channels, dtype=dtype)):
        y = conv(x.to(memory_format=torch.channels_last), weight, bias, padding=1, groups=channels)
        wide = F.conv2d(x.float(), weight.float(), padding=1, groups=channels)
        assert torch.equal(y.isnan(), wide.isnan())
        assert torch.equal(y.nan_to_num(1.0), wide.to(dtype).nan_to_num(1.0))


@pytest.mark.parametrize("is_past", [False, True])
@pytest.mark.parametrize("channels", [16, 31, 32, 33, 64, 96, 1120])
@pytest.mark.sampled(12)
def test_single_sums_of_several_terms_are_pairs_too(
    channels: int, is_past: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients under autocast, which are rounded and stored as float32; copies are none."""
    decision = "is_there && (bytes >= largest_cache || rest >= largest_cache / 4)"
    assert prelude.C.count(decision) == 1
    monkeypatch.setattr(prelude, "C", prelude.C.replace(decision, str(int(is_past))))
    monkeypatch.setattr(special, "LARGE", 1)
    library, sources = build.library, list[str]()

    def seen(source: str) -> ctypes.CDLL:
        sources.append(source)
        return library(source)

    monkeypatch.setattr(build, "library", seen)
    text = (SPECS / "upsample_nearest.op").read_text(encoding="utf-8")
    name = f"nearest_{channels}_{int(is_past)}"  # with kernels that no other test has made
    text = text.replace("op upsample_nearest(", f"op {name}(")
    nearest = getattr(opgen.compile(text, f"{name}.op"), name)
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(2, channels, 3, 5, generator=generator)
    image = image.to(memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        result = nearest(image, scale_factor=2)
    forward = next(each for each in reversed(sources) if f"run_{name}(" in each)
    assert torch.equal(result, F.interpolate(image.detach().bfloat16(), scale_factor=2))
    assert "first_of_pair(&" not in forward
    cotangent = torch.randint(-40, 40, result.shape, generator=generator) / 16
    cotangent = cotangent.to(torch.bfloat16).to(memory_format=torch.channels_last)
    (found,) = torch.autograd.grad(result, image, cotangent)
    exact = F.avg_pool2d(cotangent.double(), 2) * 4
    assert torch.equal(found, exact.to(torch.bfloat16).float())
    assert "first_of_pair(&" in sources[-1] and "pair_past_unrounded(&" in sources[-1]
