"""Calls under autocast whose kernels round float32 themselves give what casts and the op give."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen import on_demand
from opgen.algebra.poly import poly
from opgen.emit.c import c_source
from opgen.ir.loops import For, Lanes
from opgen.passes import unrounded as passes_unrounded
from opgen.runtime import Operation, build, prelude, special, unrounded, unrounded_source
from test_plane_lines import DECISION

LAST = torch.channels_last
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": LAST}
SIZES = [(3, 5, 8, 8), (2, 33, 16, 16), (1, 17, 5, 7), (2, 16, 9, 40), (0, 3, 8, 8)]
FLAGS = {"this": "-O0", "avx2": "-O1 -march=x86-64-v3", "sse2": "-O1 -march=x86-64"}
PROCESSORS = [
    "this",
    pytest.param("avx2", marks=pytest.mark.slow),
    pytest.param("sse2", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All tensors are large enough; one thread and two."""
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setattr(special, "MOST", 1000)
    monkeypatch.setattr(special, "MOST_SIZES", 1000)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def module(file: str, op: str, name: str) -> ModuleType:
    """A spec under a name that no other test uses: ops that are the same share their kernels."""
    text = (SPECS / f"{file}.op").read_text(encoding="utf-8")
    assert f"op {op}(" in text
    return opgen.compile(text.replace(f"op {op}(", f"op {name}("))


def operation(found: ModuleType, name: str) -> Operation:
    result: Operation = found.FAMILY.operations[name]
    return result


def rounds_itself(op: Operation) -> bool:
    """Whether some kernels of an op round, and no call was refused."""
    kernels = unrounded._KERNELS.get(op.registered_name)
    if kernels is None:
        return False
    made = any(len(types) > 2 for types, _ in kernels.operation.compiled)
    return made and not kernels.refused


SPECIAL = torch.tensor(
    [
        *(0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x00000000, 0x80000000),
        *(0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00008000, 0x00018000, 0x00008001),
        *(0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F7FFF),
        *(0x00800000, 0x00807FFF, 0x00808000),
    ],
    dtype=torch.int64,
)
"""Infinities, NaNs, zeros, subnormals, ties to even, and what overflows, by their bits."""


def image(shape: tuple[int, ...], format_: torch.memory_format, *, special_ones: bool) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    if special_ones and x.numel():
        bits = x.view(torch.int32).flatten()
        at = torch.randperm(x.numel(), generator=generator)[: len(SPECIAL)]
        bits[at] = SPECIAL[: len(at)].to(torch.int32)
    return x.to(memory_format=format_)


def same(got: Tensor, wanted: Tensor) -> bool:
    """Whether all bits agree; any NaN is as good as another one."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert torch.equal(got.isnan(), wanted.isnan())
    bits = torch.int16 if got.dtype == torch.bfloat16 else torch.int32
    zero = torch.zeros((), dtype=got.dtype)
    pair = [torch.where(x.isnan(), zero, x).contiguous().view(bits) for x in (got, wanted)]
    return torch.equal(*pair)


def autocast(dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype)


# ---------------------------------------------------------------------------- values
@pytest.mark.sampled(4)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("layout", FORMATS)
def test_upsampling(layout: str, processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy, and sums of four; beside PyTorch's own casts and its own op."""
    monkeypatch.setenv("OPGEN_CFLAGS", FLAGS[processor])
    name = f"unrounded_nearest_{layout}_{processor}"
    found = module("upsample_nearest", "upsample_nearest", name)
    up = getattr(found, name)
    for shape, threads in itertools.product(SIZES, (1, 2)):
        torch.set_num_threads(threads)
        x = image(shape, FORMATS[layout], special_ones=True)
        wanted = F.interpolate(x.to(torch.bfloat16), scale_factor=2) if x.numel() else None
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        for _ in range(2):  # found out, and looked up
            with autocast():
                with torch.no_grad():
                    plain = up(x)
                y = up(leaf)
            for each in (plain, y):
                assert each.dtype == torch.bfloat16
                assert wanted is None or same(each, wanted)
            # Sums of small integers are exact in any order, up to the rounding of the result.
            cotangent = torch.randint(-90, 90, y.shape).to(torch.bfloat16)
            cotangent = cotangent.to(memory_format=FORMATS[layout])
            (gradient,) = torch.autograd.grad(y, leaf, cotangent)
            n, c, h, w = shape
            sums = cotangent.float().reshape(n, c, h, 2, w, 2).sum((3, 5))
            assert same(gradient, sums.to(torch.bfloat16).float())
            assert not gradient.numel() or gradient.stride() == leaf.stride()
    assert rounds_itself(operation(found, name))
    assert rounds_itself(operation(found, name).gradient("x")[0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(
    "layout", [pytest.param("contiguous", marks=pytest.mark.slow), "channels_last"]
)
@pytest.mark.parametrize(
    "shape",
    [
        *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[:2]),
        SIZES[2],
        (2, 1061, 2, 4),  # Many channels have kernels that compute both gradients, in pairs.
    ],
    ids=str,
)
def test_transposed_convolutions(
    shape: tuple[int, ...], layout: str, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One product for each cell, exact but for the rounding of the result; weights stay casts."""
    monkeypatch.setenv("OPGEN_CFLAGS", FLAGS[processor])
    name = f"unrounded_transposed_{layout}_{processor}"
    found = module("conv_transpose", "conv_transpose2d", name)
    up = getattr(found, name)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        channels = shape[1]
        x = torch.randint(-300, 300, shape).float().to(memory_format=FORMATS[layout])
        weight = torch.randint(-9, 9, (channels, 1, 2, 2)).float()
        leaves = [x.clone(memory_format=torch.preserve_format), weight.clone()]
        rounded = [each.to(torch.bfloat16).double().requires_grad_() for each in leaves]
        for each in leaves:
            each.requires_grad_()
        exact = F.conv_transpose2d(*rounded, stride=2, groups=channels)
        wanted = exact.detach().to(torch.bfloat16)
        for _ in range(2):
            with autocast():
                with torch.no_grad():
                    plain = up(x, weight, stride=2, groups=channels)
                y = up(*leaves, stride=2, groups=channels)
            # No negative zeros: a bias of 0 is added.
            assert torch.equal(plain, wanted)
            assert torch.equal(y, wanted)
            cotangent = torch.randint(-3, 3, y.shape).to(torch.bfloat16)
            cotangent = cotangent.to(memory_format=FORMATS[layout])
            got = torch.autograd.grad(y, leaves, cotangent)
            expected = torch.autograd.grad(exact, rounded, cotangent.double(), retain_graph=True)
            for own, other in zip(got, expected, strict=True):
                assert own.dtype == torch.float32
                assert torch.equal(own, other.to(torch.bfloat16).float())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "layout", [pytest.param("contiguous", marks=pytest.mark.slow), "channels_last"]
)
@pytest.mark.parametrize("shape", [SIZES[1], pytest.param(SIZES[2], marks=pytest.mark.slow)])
def test_windows_that_overlap_are_cast_as_ever_or_rounded_alike(
    shape: tuple[int, ...], layout: str
) -> None:
    name = f"unrounded_conv_{layout}"
    found = module("conv", "conv2d", name)
    channels = shape[1]
    x = torch.randint(-9, 9, shape).float().to(memory_format=FORMATS[layout])
    x += 2**-10  # rounded away
    weight = torch.randint(-3, 3, (channels, 1, 3, 3)).float() * (1 + 2**-10)
    leaves = [x.clone(memory_format=torch.preserve_format), weight.clone()]
    rounded = [each.to(torch.bfloat16).double().requires_grad_() for each in leaves]
    for each in leaves:
        each.requires_grad_()
    exact = F.conv2d(*rounded, padding=1, groups=channels)
    with autocast():
        with torch.no_grad():
            plain = getattr(found, name)(x, weight, padding=1, groups=channels)
        y = getattr(found, name)(*leaves, padding=1, groups=channels)
    assert torch.equal(plain, exact.detach().float().to(torch.bfloat16))
    assert torch.equal(y, plain)
    cotangent = torch.randint(-2, 2, y.shape).to(torch.bfloat16)
    got = torch.autograd.grad(y, leaves, cotangent)
    expected = torch.autograd.grad(exact, rounded, cotangent.double())
    for own, other in zip(got, expected, strict=True):
        limit = 2**-7 * other.abs().max()
        assert own.dtype == torch.float32
        assert (own.double() - other).abs().max() <= limit
        assert torch.equal(own, own.to(torch.bfloat16).float())


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_strides(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CFLAGS", FLAGS[processor])
    name = f"unrounded_strides_{processor}"
    up = getattr(module("upsample_nearest", "upsample_nearest", name), name)
    wide = image((2, 6, 9, 11), torch.contiguous_format, special_ones=True)
    views = [
        wide[:, ::2, :8, :8],
        wide[..., 1:9, 3:11],
        wide.transpose(2, 3),
        wide[:1, :1].expand(2, 6, 9, 11),
        wide.to(memory_format=LAST)[:, 1:4],
        wide.to(memory_format=LAST)[:, ::3, :8, ::2],
    ]
    for x, _ in itertools.product(views, range(2)):
        with autocast(), torch.no_grad():
            assert same(up(x), F.interpolate(x.to(torch.bfloat16), scale_factor=2))
        gradients = []
        for layout in FORMATS.values():
            leaf = x.detach().requires_grad_()
            with autocast():
                y = up(leaf)
            cotangent = torch.ones_like(y).to(memory_format=layout)
            gradients += torch.autograd.grad(y, leaf, cotangent)

        assert all(torch.equal(each, torch.full(x.shape, 4.0)) for each in gradients)


# ---------------------------------------------------------------------------- autograd
def graphs() -> tuple[Callable[..., Tensor], list[Tensor], dict[str, int]]:
    torch.manual_seed(1)
    leaves = [torch.randn(2, 6, 8, 8), torch.randn(6, 1, 2, 2)]
    return in_graphs(), [x.requires_grad_() for x in leaves], {"stride": 2, "groups": 6}


@functools.cache
def in_graphs() -> Callable[..., Tensor]:
    """One op for the tests below: its derivatives take seconds to derive."""
    name = "unrounded_in_graphs"
    op: Callable[..., Tensor] = getattr(module("conv_transpose", "conv_transpose2d", name), name)
    return op


def test_second_derivatives_and_a_kept_graph() -> None:
    op, leaves, attributes = graphs()
    cotangent = torch.randn(2, 6, 16, 16)

    def derivatives(is_cast: bool) -> list[Tensor]:
        if is_cast:
            given = [x.to(torch.bfloat16) for x in leaves]
            y = op(*given, **attributes)
        else:
            with autocast():
                y = op(*leaves, **attributes)
        seed = cotangent.to(torch.bfloat16).requires_grad_()
        once = torch.autograd.grad(y, leaves, seed, create_graph=True)
        assert all(each.dtype == torch.float32 and each.requires_grad for each in once)
        loss = sum((each**2).sum() for each in once)
        twice = torch.autograd.grad(loss, [*leaves, seed], retain_graph=True)
        again = torch.autograd.grad(y, leaves, seed.detach(), retain_graph=True)
        last = torch.autograd.grad(y, leaves[:1], seed.detach())
        return [*once, *twice, *again, *last]

    for own, other in zip(derivatives(False), derivatives(True), strict=True):
        assert own.dtype == other.dtype
        assert torch.equal(own, other)


def test_some_leaves_only_and_mixed_types() -> None:
    op, (x, weight), attributes = graphs()
    cotangent = torch.randn(2, 6, 16, 16).to(torch.bfloat16)
    for given in (
        (x, weight.detach()),
        (x.detach(), weight),
        (x.detach().to(torch.bfloat16).requires_grad_(), weight),
        (x, weight.detach().to(torch.bfloat16).requires_grad_()),
        (x.detach().to(torch.bfloat16).requires_grad_(), weight.detach()),
    ):
        wanted_of = [each for each in given if each.requires_grad]
        cast = op(*(each.to(torch.bfloat16) for each in given), **attributes)
        wanted = torch.autograd.grad(cast, wanted_of, cotangent)
        for _ in range(2):
            with autocast():
                y = op(*given, **attributes)
                got = torch.autograd.grad(y, wanted_of, cotangent)
            assert torch.equal(y, cast)
            for own, leaf, other in zip(got, wanted_of, wanted, strict=True):
                assert own.dtype == leaf.dtype
                assert torch.equal(own, other)


def test_accumulated_into_leaves_within_a_net() -> None:
    op, (x, weight), attributes = graphs()
    sums = []
    for is_cast in (False, True):
        x.grad = weight.grad = None
        for _ in range(2):
            hidden = torch.tanh(x)
            if is_cast:
                y = op(hidden.to(torch.bfloat16), weight.to(torch.bfloat16), **attributes)
            else:
                with autocast():
                    y = op(hidden, weight, **attributes)
            (y.float() ** 2).sum().backward()
        assert x.grad is not None
        assert weight.grad is not None
        sums.append((x.grad, weight.grad))
    assert all(map(torch.equal, *sums))


def test_other_ways_through_pytorch() -> None:
    op, leaves, attributes = graphs()
    wanted = op(*(x.to(torch.bfloat16) for x in leaves), **attributes)
    with autocast():
        op(*leaves, **attributes)
        mapped = torch.func.vmap(lambda x: op(x[None], leaves[1], **attributes)[0])(leaves[0])
        assert torch.equal(mapped, wanted)
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, w: op(x, w, **attributes), backend="aot_eager", fullgraph=True
        )
        assert torch.equal(compiled(*leaves), wanted)
        checked = torch.utils.checkpoint.checkpoint(
            lambda x, w: op(x, w, **attributes), *leaves, use_reentrant=False
        )
        assert torch.equal(checked, wanted)
    cotangent = torch.ones_like(wanted)
    for own, other in zip(
        torch.autograd.grad(checked, leaves, cotangent),
        torch.autograd.grad(wanted, leaves, cotangent),
        strict=True,
    ):
        assert torch.equal(own, other)


# ---------------------------------------------------------------------------- what is cast as ever
def test_what_is_left_to_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "unrounded_left"
    found = module("upsample_nearest", "upsample_nearest", name)
    up = getattr(found, name)
    x = torch.randn(2, 3, 8, 8)
    with autocast(torch.float16):
        assert torch.equal(up(x), F.interpolate(x.half(), scale_factor=2))
    with autocast():
        assert up(x.double()).dtype == torch.float64
        assert up(x.half()).dtype == torch.bfloat16
        with pytest.raises(ValueError, match="x must be 4-d"):
            up(x[0])
        monkeypatch.setattr(special, "LARGE", x.numel() + 1)
        assert up(x).dtype == torch.bfloat16
    assert not rounds_itself(operation(found, name))
    monkeypatch.setattr(special, "LARGE", 0)
    with autocast():
        up(x)
    assert rounds_itself(operation(found, name))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_is_wrong_with_a_call_is_said_as_without_autocast(requires_grad: bool) -> None:
    op, (x, weight), _ = graphs()
    x, weight = (each.detach().requires_grad_(requires_grad) for each in (x, weight))
    nested = torch.nested.nested_tensor([torch.randn(6, 8, 8)] * 2, requires_grad=requires_grad)
    with autocast():
        for stride in (2**70, 2**62 + 1):
            with pytest.raises(ValueError, match="attribute 'stride' must lie between"):
                op(x, weight, stride=stride, groups=6)
        op(x, weight, stride=2, groups=6)
        for _ in range(2):
            with pytest.raises(TypeError, match="x must be a dense strided tensor, got a nested"):
                op(nested, weight, stride=2, groups=6)


def test_a_program_that_another_thread_forgets_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(dict[object, object]):
        def __setitem__(self, key: object, value: object) -> None:
            """Another thread clears it at once."""

    monkeypatch.setattr(on_demand, "_LATEST", Forgetful())
    text = (SPECS / "upsample_nearest.op").read_text(encoding="utf-8")
    given = text, "upsample_nearest.op", ("upsample_nearest",), {"scale_factor": 2}
    assert on_demand.one_pass(*given) == ""
    assert "stored_T(" in on_demand.special_source(*given)
    assert "= to_T(x[" in on_demand.unrounded_source(*given, 0, ("x",))


def test_an_input_that_is_loaded_many_times_is_cast() -> None:
    text = (SPECS / "conv.op").read_text(encoding="utf-8")
    values = {f"{n}[{at}]": 1 for n in ("stride", "padding", "dilation") for at in (0, 1)}
    values |= {"K": 3, "L": 3, "Ci": 1, "Co": 1}
    made = on_demand.unrounded_source(text, "conv.op", ("conv2d",), values, 0, ("x",))
    assert made == ""
    gradient = on_demand.unrounded_source(text, "conv.op", ("conv2d", "x"), values, 0, ("grad_x",))
    assert "to_unrounded(" in gradient
    # As the kernels of images in channels-last format, with vectors of even and odd channels.
    values |= {"H": 16, "W": 16, "groups": 64}
    gradient = on_demand.unrounded_source(text, "conv.op", ("conv2d", "x"), values, 6, ("grad_x",))
    assert "pair_to_unrounded(&grad_x[" in gradient
    assert "pair_to_T(&grad_x[" not in gradient


def test_cells_that_repeat_an_element_are_written_together() -> None:
    text = (SPECS / "upsample_nearest.op").read_text(encoding="utf-8")
    given = text, "upsample_nearest.op", ("upsample_nearest",)
    for factor, stores, vectors in ((2, 2, 4), (3, 3, 3), (5, 1, 0)):
        values = {"scale_factor": factor, "H": 8, "W": 8}
        made = on_demand.unrounded_source(*given, values, 3, ("x",))
        assert made.count("= to_T(x[") == stores
        assert made.count("*(stored_lanes *)&y[") == vectors
        assert made.count("= stored_from_unrounded(&x[") == (vectors > 0)
        assert ("&& !y_streams;" in made) == (vectors > 0)
        rows = on_demand.unrounded_source(*given, values, 0, ("x",))
        assert "*(stored_lanes *)&y[" not in rows  # neighbours in a row of y are not those in x


def test_a_vector_of_an_inner_scope_has_no_name_outside_of_it() -> None:
    """The cell of a loop and those behind it: each scope loads and rounds for itself."""
    text = (SPECS / "upsample_nearest.op").read_text(encoding="utf-8")
    values = {"scale_factor": 2, "H": 8, "W": 8}
    given = text, "upsample_nearest.op", ("upsample_nearest",), values, 3
    special_one, called_as, orders = on_demand._special_program(*given)
    program = passes_unrounded.unrounded(special_one, {"x"})
    assert program is not None
    (blocks,) = (each for each in program.kernels if each.name.endswith("_blocks"))
    (lanes,) = blocks.body
    assert isinstance(lanes, Lanes)
    first, *others = lanes.body
    inner = For("again", (poly(0),), (poly(0),), (first,))
    nested = replace(blocks, body=(replace(lanes, body=(inner, *others)),))
    kernels = tuple(nested if each is blocks else each for each in program.kernels)
    made = c_source(replace(program, kernels=kernels), called_as, orders)
    assert made.count("= stored_from_unrounded(&x[") == 2
    bindings = prelude.bindings("bf16", "f32", {})
    build.library(prelude.C + bindings + unrounded_source.unrounded() + made)


@pytest.mark.parametrize("past_caches", [False, True])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_vectors_of_channels(
    processor: str, past_caches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer channels than a vector has lanes, some more, and more than a stretch; also slices."""
    monkeypatch.setenv("OPGEN_CFLAGS", FLAGS[processor])
    if past_caches:
        changed = prelude.C.replace("will_be_written(void", "was_to_be_written(void")
        assert changed != prelude.C
        monkeypatch.setattr(prelude, "C", f"{changed}\n#define will_be_written(memory, bytes) 1\n")
    name = f"unrounded_channels_{processor}_{past_caches}"
    found = module("upsample_nearest", "upsample_nearest", name)
    for channels, threads in itertools.product((1, 15, 16, 17, 47, 1031, 2050), (1, 2)):
        torch.set_num_threads(threads)
        wide = image((2, channels + 4, 3, 2), LAST, special_ones=True)
        whole = wide[:, :channels].clone(memory_format=LAST)
        for x, factor in itertools.product((whole, wide[:, 3:-1], wide[:, 2:-2, ::2]), (2, 3)):
            with autocast(), torch.no_grad():
                got = getattr(found, name)(x, scale_factor=factor)
            assert same(got, F.interpolate(x.to(torch.bfloat16), scale_factor=factor))
    assert rounds_itself(operation(found, name))


@pytest.mark.parametrize("past_caches", [False, True])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_gradients_as_vectors_of_channels(
    processor: str, past_caches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of four, rounded once: of few channels, of whole lines of memory, and of others."""
    monkeypatch.setenv("OPGEN_CFLAGS", FLAGS[processor])
    if past_caches:
        monkeypatch.setattr(prelude, "C", prelude.C.replace(DECISION, ALWAYS))
    name = f"unrounded_sums_{processor}_{past_caches}"
    found = module("upsample_nearest", "upsample_nearest", name)
    for channels, threads in itertools.product((1, 15, 16, 17, 48, 49, 64, 1031, 2064), (1, 2)):
        torch.set_num_threads(threads)
        x = image((2, channels, 3, 2), LAST, special_ones=False).requires_grad_()
        with autocast():
            y = getattr(found, name)(x, scale_factor=2)
        wide = image((2, channels + 4, 6, 4), LAST, special_ones=True).to(torch.bfloat16)
        for cotangent in (wide[:, :channels].clone(memory_format=LAST), wide[:, 3:-1]):
            (got,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
            assert same(got, sum_of_four(cotangent.float()).to(torch.bfloat16).float())
    assert rounds_itself(operation(found, name).gradient("x")[0])


def test_whole_lines_of_gradients_go_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gets lost on the way is missed; rows that are not whole lines go another way."""
    has_lines = "avx512f" in Path("/proc/cpuinfo").read_text()
    lost = "\n#undef STORE_LINE\n#define STORE_LINE(place, values) ((void)(place))\n"
    monkeypatch.setattr(prelude, "C", prelude.C.replace(DECISION, ALWAYS) + lost)
    found = module("upsample_nearest", "upsample_nearest", "unrounded_lost")
    for channels, is_lost in ((64, True), (70, False)):
        x = image((2, channels, 3, 2), LAST, special_ones=False).requires_grad_()
        with autocast():
            y = found.unrounded_lost(x, scale_factor=2)
        cotangent = torch.randn(y.shape).to(torch.bfloat16).to(memory_format=LAST)
        (got,) = torch.autograd.grad(y, x, cotangent)
        wanted = sum_of_four(cotangent.float()).to(torch.bfloat16).float()
        assert torch.equal(got, wanted) != (is_lost and has_lines)


ALWAYS = "(void)is_there, (void)rest; return 1;"
assert DECISION in prelude.C


def sum_of_four(y: Tensor) -> Tensor:
    """Each pixel of four in the order of the spec, as float32."""
    total = y[..., ::2, ::2] + y[..., ::2, 1::2]
    return total + y[..., 1::2, ::2] + y[..., 1::2, 1::2]


EXTREMES = """
op extremes(x[N,W]) -> most[N], least[N]
  most[n] = max(w) x[n,w]
  least[n] = min(w) x[n,w]
"""


@pytest.mark.parametrize("width", [1, 7, 33, 0])
def test_extremes_that_are_stored_unrounded(width: int) -> None:
    """Of no number at all as well: results are rounded, so that they begin as those of T."""
    outputs = ("most", "least")
    made = on_demand.unrounded_source(EXTREMES, "extremes.op", ("extremes",), {}, 0, outputs)
    bindings = prelude.bindings("bf16", "f32", {})
    library = build.library(prelude.C + bindings + unrounded_source.unrounded() + made)
    x = torch.randn(5, width).to(torch.bfloat16)
    found = torch.zeros(2, 5)
    memory = [ctypes.c_void_p(each.data_ptr()) for each in (x, *found)]
    integers = (5, width, width, 1, 1, 1)  # sizes, then strides
    fault = (ctypes.c_int64 * 3)()
    library.run_extremes(
        (ctypes.c_void_p * 3)(*memory), (ctypes.c_int64 * 6)(*integers), None, fault
    )
    if width:
        wanted = torch.stack([x.amax(1), x.amin(1)]).float()
    else:
        wanted = torch.tensor([[-torch.inf], [torch.inf]]).expand(2, 5)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "factor", [3, *(pytest.param(factor, marks=pytest.mark.slow) for factor in (1, 5))]
)
def test_images_enlarged_by_other_factors(factor: int) -> None:
    name = f"unrounded_factor_{factor}"
    found = module("upsample_nearest", "upsample_nearest", name)
    for layout, shape in itertools.product(FORMATS.values(), SIZES[:3]):
        x = image(shape, layout, special_ones=True)
        with autocast(), torch.no_grad():
            got = getattr(found, name)(x, scale_factor=factor)
        assert same(got, F.interpolate(x.to(torch.bfloat16), scale_factor=factor))
    assert rounds_itself(operation(found, name))


def test_the_tests_notice_numbers_that_are_rounded_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = unrounded_source.unrounded()
    wrong = right.replace("0x7fff ", "0x8000 ").replace("__AVX512BF16__", "NEVER")
    assert wrong != right
    monkeypatch.setattr(unrounded_source, "unrounded", lambda: wrong)
    name = "unrounded_wrongly"
    up = getattr(module("upsample_nearest", "upsample_nearest", name), name)
    x = image((2, 3, 8, 8), torch.contiguous_format, special_ones=True)
    with autocast(), torch.no_grad():
        assert not same(up(x), F.interpolate(x.to(torch.bfloat16), scale_factor=2))
