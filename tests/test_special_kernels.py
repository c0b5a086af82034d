"""Kernels for the attributes and sizes of a call: made once, kept, bounded in number."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

import forks
import opgen
from catalogue import SPECS
from opgen import on_demand
from opgen.errors import Source
from opgen.lang.read import read
from opgen.passes.specialise import counts_of, windows_of
from opgen.runtime import Operation, evaluation, generated, special

SPEC = """
op {name}(x[N,W], k[K]; stride = 1, padding = 0) -> y[N,V]
  where stride >= 1, padding >= 0
  let V = (W + 2*padding - K)//stride + 1
  y[n,v] = sum(l) x[n, v*stride + l - padding ?0] * k[l]
"""


def fresh(name: str) -> Op:
    """The op under a name that no other test uses: ops that are the same share their kernels."""
    return Op(opgen.compile(SPEC.replace("{name}", name)), name)


@dataclass(frozen=True)
class Op:
    """A module and the name of its op."""

    module: ModuleType
    name: str

    def __call__(self, *tensors: torch.Tensor, **attributes: int) -> torch.Tensor:
        result: torch.Tensor = getattr(self.module, self.name)(*tensors, **attributes)
        return result

    @property
    def operation(self) -> Operation:
        found: Operation = self.module.FAMILY.operations[self.name]
        return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    return tmp_path


def call(op: Op, stride: int, padding: int, window: int) -> None:
    """A call, against PyTorch."""
    x, k = torch.randn(3, 40), torch.randn(window)
    got = op(x, k, stride=stride, padding=padding)
    weight = k[None, None]
    wanted = torch.nn.functional.conv1d(x[:, None], weight, stride=stride, padding=padding)[:, 0]
    torch.testing.assert_close(got, wanted)


def made(op: Op) -> set[special.Values]:
    return {values for _, values in op.operation.compiled}


def test_one_kernel_for_each_set_of_values() -> None:
    op = fresh("filtered_1")
    for stride, padding, window in ((1, 0, 3), (2, 1, 3), (1, 0, 5), (1, 0, 3), (3, 2, 17)):
        call(op, stride, padding, window)
    # A window of 17 is left open.
    assert made(op) == {(1, 0, 3, None), (2, 1, 3, None), (1, 0, 5, None), (3, 2, None, None)}


PLANES = """
op {name}(x[N,C,H,W], k[C]; shift = 1) -> y[N,C,H,W]
  where shift >= 0
  y[n,c,h,w] = k[c] * x[n,c,h, w - shift ?0]
"""


def planes(op: Op, *shape: int) -> None:
    """A call, against PyTorch."""
    x, k = torch.randn(shape), torch.randn(shape[1])
    wanted = torch.nn.functional.pad(x, (1, 0))[..., :-1] * k[:, None, None]
    torch.testing.assert_close(op(x, k), wanted)


def test_large_calls_with_short_rows_have_kernels() -> None:
    op = Op(opgen.compile(PLANES.replace("{name}", "planes_1")), "planes_1")
    planes(op, 2, 3, 8, 9)
    assert made(op) == {(1, None, None, None)}
    planes(op, 500, 1, 8, 9)
    planes(op, 1, 500, 8, 9)
    assert made(op) == {(1, None, None, None), (1, 8, 9, None)}
    planes(op, 50, 3, 8, 90)
    planes(op, 50, 3, 8, 91)
    assert made(op) == {(1, None, None, None), (1, 8, 9, None), (1, 8, None, None)}


CUT = """
op {name}(x[N,C,W]; width: size) -> y[N,C,V]
  let V = width
  y[n,c,v] = x[n,c, 2*v ?0]
"""


def test_a_short_row_that_is_asked_for_has_a_kernel() -> None:
    op = Op(opgen.compile(CUT.replace("{name}", "cut_1")), "cut_1")

    def cut(batch: int, row: int, width: int) -> None:
        x = torch.randn(batch, 70, row)
        wanted = torch.nn.functional.pad(x, (0, 2 * width))[..., : 2 * width : 2]
        assert torch.equal(op(x, width=width), wanted)

    # Small calls, long rows and other batches ask for no kernel.
    wanted = {(None, None, None, None)}
    cut(2, 100, 9)
    cut(2, 100, 100)
    cut(50, 100, 100)
    assert made(op) == wanted
    cut(50, 100, 9)
    cut(51, 101, 9)
    assert made(op) == wanted | {(None, None, 9, None)}
    cut(200, 8, 9)
    assert made(op) == wanted | {(None, None, 9, None), (None, 8, 9, None)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("size", [(50, 50), (7, 9), (1, 64), (33, 5), (9, 70)], ids=str)
def test_images_of_sizes_that_are_asked_for(size: tuple[int, int], threads: int) -> None:
    """Sums of small whole numbers, which are exact in all types."""
    name = f"fold_{size[0]}_{size[1]}_{threads}"
    text = (SPECS / "unfold.op").read_text(encoding="utf-8")
    op = Op(opgen.compile(text.replace("op fold(", f"op {name}(")), name)
    windows = {"kernel_size": (1, 3), "padding": (0, 1)} if size[0] == 1 else {"kernel_size": 3}
    if size[0] != 1:
        windows |= {"padding": (1, 0), "stride": (1, 2)} if size[1] % 2 else {"padding": 1}
    batch = 4 * special.LARGE // (9 * size[0] * size[1]) + 3
    ones = torch.ones(batch, 2, *size, dtype=torch.float64)
    shape = torch.nn.functional.unfold(ones, **windows).shape
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            x = torch.randint(-7, 8, shape, generator=torch.Generator().manual_seed(3)).to(dtype)
            wanted = torch.nn.functional.fold(x.double(), size, **windows)
            gaps = x.new_zeros(*shape[:2], 2 * shape[2])[..., ::2].copy_(x)
            for given in (x, gaps, x.mT.contiguous().mT, x[:0]):
                got = getattr(op.module, name)(given, output_size=size, **windows)
                assert got.dtype == dtype
                assert torch.equal(got.double(), wanted[: len(given)])
    finally:
        torch.set_num_threads(before)
    known = tuple(length if length <= 64 else None for length in size)
    assert known in {values[-3:-1] for values in made(op)}


def test_the_same_call_runs_on_the_same_kernel() -> None:
    op = Op(opgen.compile(PLANES.replace("{name}", "planes_3")), "planes_3")
    for _ in range(2):
        for rows in range(4, 12):
            planes(op, 400, 4, rows, 9)
        assert made(op) == {(1, rows, 9, None) for rows in range(4, 10)} | {(1, None, None, None)}


def test_fifty_shapes_make_at_most_seven_kernels() -> None:
    """Six for sizes of images, one for all others."""
    op = Op(opgen.compile(PLANES.replace("{name}", "planes_2")), "planes_2")
    numbers = random.Random(0)
    for _ in range(50):
        shape = [numbers.randint(1, 4), numbers.randint(1, 40), numbers.randint(1, 80)]
        for width in (numbers.randint(1, 9), numbers.randint(1, 200), 70):
            planes(op, *shape, width)
    assert len(op.operation.compiled) == 7


def test_layers_with_several_windows_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of all kernels at most are for sizes; what comes later runs on those for all sizes."""
    monkeypatch.setattr(special, "MOST", 8)
    monkeypatch.setattr(special, "FEW", 2)
    monkeypatch.setattr(special, "MOST_SIZES", 3)
    op = Op(opgen.compile(PLANES.replace("{name}", "planes_4")), "planes_4")
    for shift in (1, 2):
        for rows in (4, 5, 6, 7):
            x, k = torch.randn(400, 4, rows, 9), torch.randn(4)
            wanted = torch.nn.functional.pad(x, (shift, 0))[..., :-shift] * k[:, None, None]
            torch.testing.assert_close(op(x, k, shift=shift), wanted)
    sizes = {(1, rows, 9, None) for rows in (4, 5, 6)} | {(2, 4, 9, None)}
    assert made(op) == sizes | {(shift, None, None, None) for shift in (1, 2)}


def test_long_rows_batches_and_channels_never_ask_for_a_kernel() -> None:
    """However many there are: one kernel serves them all."""
    op = Op(opgen.compile(PLANES.replace("{name}", "planes_5")), "planes_5")
    for size in range(20):
        planes(op, 300 + size, 3, 8, 9)
        planes(op, 3, 300 + size, 8, 9)
    assert made(op) == {(1, 8, 9, None)}
    for size in range(20):
        planes(op, 20, 3, 600 + size, 65 + size)
    assert made(op) == {(1, 8, 9, None), (1, None, None, None)}


def test_values_without_end_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_KNOWN", 3)
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "1")
    op = fresh("filtered_many")
    for padding in range(10):
        call(op, 1, padding, 3)
        assert len(op.operation.compiled) <= 3


def test_a_factor_of_one_has_a_kernel() -> None:
    spec = (
        "op grouped_1(x[N,(g C)], w[(g D),C]; g = 1) -> y[N,(g D)]\n"
        "  where g >= 1\n  y[n,(i d)] = sum(c) x[n,(i c)] * w[(i d),c]"
    )
    op = Op(opgen.compile(spec), "grouped_1")
    for groups, channels, filters in ((6, 1, 1), (2, 3, 4), (3, 5, 1)):
        x, w = torch.randn(2**14, groups * channels), torch.randn(groups * filters, channels)
        wanted = torch.nn.functional.conv1d(x[..., None], w[..., None], groups=groups)[..., 0]
        torch.testing.assert_close(op(x, w, g=groups), wanted)
    # Numbers of groups say how often a loop runs: one kernel for all of them but 1.
    assert made(op) == {(None, 1, 1, None), (None, None, None, None), (None, None, 1, None)}
    x, w = torch.randn(2**14, 3), torch.randn(2, 3)
    torch.testing.assert_close(op(x, w, g=1), x @ w.T)
    assert (1, None, None, None) in made(op)


def test_factors_are_known_for_more_sizes_than_have_kernels() -> None:
    """Otherwise the layers of a net, from the seventh size on, would run many times slower."""
    spec = (
        "op grouped_2(x[N,(g C),H,W], w[(g D),C]; g = 1) -> y[N,(g D),H,W]\n"
        "  where g >= 1\n  y[n,(i d),h,w] = sum(c) x[n,(i c),h,w] * w[(i d),c]"
    )
    op = Op(opgen.compile(spec), "grouped_2")
    for rows in range(4, 12):
        x, w = torch.randn(400, 6, rows, 10)[..., :9], torch.randn(6, 1)  # rows that do not adjoin
        torch.testing.assert_close(op(x, w, g=6), x * w[:, :, None])
    open_ = (None, 1, 1, None, None, None)
    assert made(op) == {(None, 1, 1, rows, 9, None) for rows in range(4, 10)} | {open_}


@pytest.mark.parametrize(
    ("statement", "counted"),
    [
        ("y[n,(i d)] = sum(c) x[n,(i c)] * w[(i d),c]", ("g",)),
        ("y[n,(i d)] = sum(c) x[n,(i c)] * w[(i d),c] * g", ()),  # a value
        ("y[n,(i d)] = sum(c) x[n,(i c)] * w[(i d),c] if i < g - 1", ()),
        ("y[n,(i d)] = sum(j,c) x[n,(j c)] * w[(i d),c]", ()),  # terms of a sum
        ("y[n,(i d)] = sum(c) x[n,i + g*c ?0] * w[(i d),c]", ()),  # a distance
    ],
)
def test_attributes_that_count(statement: str, counted: tuple[str, ...]) -> None:
    (op,) = read(
        Source(
            f"op f(x[N,(g C)], w[(g D),C]; g = 1) -> y[N,(g D)]\n  where g >= 1\n  {statement}\n"
        )
    )
    assert counts_of(op) == counted


def test_sizes_need_no_kernels_of_their_own() -> None:
    op = fresh("filtered_2")
    for rows in range(1, 30):
        x = torch.randn(rows, 5 + 7 * rows)
        wanted = torch.nn.functional.conv1d(x[:, None], torch.ones(1, 1, 3))[:, 0]
        torch.testing.assert_close(op(x, torch.ones(3)), wanted)
    assert made(op) == {(1, 0, 3, None)}


def test_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "2")
    op = fresh("filtered_3")
    asked = []
    source = on_demand.special_source
    monkeypatch.setattr(
        on_demand, "special_source", lambda *given: asked.append(given[3]) or source(*given)
    )
    for stride in (1, 2, 3, 4):
        call(op, stride, 0, 3)
    assert len(asked) == 2


def test_small_calls_leave_kernels_for_the_layers_of_a_net(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels for all values are a hundred times slower than those for one stride and window."""
    monkeypatch.setattr(special, "MOST", 4)
    monkeypatch.setattr(special, "FEW", 2)
    op = fresh("filtered_6")
    for stride in (2, 3, 4, 5):
        call(op, stride, 0, 3)
    few = {(2, 0, 3, None), (3, 0, 3, None)}
    assert made(op) == few | {(None, None, None, None)}
    for stride in (2, 4, 6):
        x, w = torch.randn(4, special.LARGE // 4), torch.randn(3)
        wanted = torch.nn.functional.conv1d(x[:, None], w[None, None], stride=stride)[:, 0]
        torch.testing.assert_close(op(x, w, stride=stride, padding=0), wanted)
    assert made(op) == few | {(None, None, None, None), (4, 0, 3, None), (6, 0, 3, None)}
    chosen = set(op.operation.small)
    call(op, 4, 0, 3)
    assert op.operation.small == chosen == few


def test_small_images_in_channels_last_format_have_one_kernel() -> None:
    """For all sizes: with the others they would take several times as long as contiguous ones."""
    module = opgen.compile(
        "op pixels(x[N,C,H,W], b[C]) -> y[N,C,H,W]\n  y[n,c,h,w] = x[n,c,h,w] + b[c]\n"
    )
    op = Op(module, "pixels")
    few = (1, 3, 5, 4)
    shapes = (few, (2, 32, 14, 14), (1, 128, 7, 7), (4, 16, 9, 11))
    for shape in shapes:
        x, b = torch.randn(shape), torch.randn(shape[1])
        last = x.contiguous(memory_format=torch.channels_last)
        for given in (x, last):
            got = op(given, b)
            assert torch.equal(got, x + b[:, None, None])
            assert got.stride() == given.stride()
    assert few[1] * few[2] * few[3] < special.LARGE_IMAGE <= 2 * 32 * 14 * 14 < special.LARGE
    both = 0b101  # what is read and what is written
    assert {values for values in made(op) if values[-1]} == {(None, None, both)}
    before = len(made(op))
    x = torch.randn(4, special.FEWEST_CHANNELS - 1, 20, 20)
    assert torch.equal(
        op(x.contiguous(memory_format=torch.channels_last), x[0, :, 0, 0]), x + x[0, :, :1, :1]
    )
    assert len(made(op)) == before, "few channels are no rows"


def test_small_images_beside_others_in_channels_last_format() -> None:
    """A kernel is made for the format of images, not for that of a small filter alone."""
    module = opgen.compile(
        "op scaled_pixels(x[N,C,H,W], k[C,O,I,J]) -> y[N,C,H,W]\n  where O >= 1, I >= 1, J >= 1\n"
        "  y[n,c,h,w] = x[n,c,h,w] * k[c,0,0,0]\n"
    )
    op = Op(module, "scaled_pixels")
    x, k = torch.randn(1, 32, 14, 14), torch.randn(32, 9, 3, 3)
    last = k.contiguous(memory_format=torch.channels_last)
    assert torch.equal(op(x, last), x * k[:, 0, :1, :1])
    assert {values[-1] for values in made(op)} == {None}


def test_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "0")
    op = fresh("filtered_4")
    call(op, 2, 1, 3)
    assert made(op) == {()}


def test_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "many")
    op = fresh("filtered_5")
    with pytest.raises(
        RuntimeError, match="SPECIAL_KERNELS must be a number from 0 on, got 'many'"
    ):
        call(op, 1, 0, 3)


def test_a_source_is_made_once(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    op = fresh("filtered_once")
    call(op, 2, 1, 3)
    (entry,) = own_cache.glob("*/*.c")

    def fails(*_: object) -> str:
        raise AssertionError("made again")

    monkeypatch.setattr(on_demand, "special_source", fails)
    source = special.source_of(op.operation, (2, 1, 3, None))
    assert source == entry.read_text()
    entry.write_text(source + "int broken;")
    with pytest.raises(AssertionError, match="made again"):
        special.source_of(op.operation, (2, 1, 3, None))
    assert not list(own_cache.glob("*/*.c"))


def test_a_module_alone_uses_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without opgen: kernels for the default attributes, and those for all."""
    op = fresh("filtered_6")
    monkeypatch.setattr(generated, "_generator", lambda: None)
    operation = op.operation
    names = (operation.special.names, operation.special.windows)
    assert names == (("stride", "padding"), ("K",))
    held = dict(operation.special.sources)
    assert special.source_of(operation, (1, 0, 3, None)) == held[1, 0, None, None]
    assert special.source_of(operation, (2, 0, 3, None)) == operation.sources.c
    call(op, 1, 0, 3)
    call(op, 2, 1, 3)


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        # In the middle of its window, at its end, and backwards.
        ("op f(x[H], k[I]) -> y[H]\n  y[h] = sum(i) x[h+i-I//2 ?0]*k[i]\n", ("I",)),
        ("op f(x[H], k[I]) -> y[H]\n  y[h] = sum(i) x[h+i-I+1 ?0]*k[i] for h in H\n", ("I",)),
        ("op f(x[H], k[I]) -> y[H]\n  y[h] = sum(i) x[h+I-1-2*i ?0]*k[i] for h in H\n", ("I",)),
        # A digit, and what is beside it.
        ("op f(x[(G C)], k[C]) -> y[G]\n  y[g] = sum(c) x[(g c)]*k[c]\n", ()),
        ("op f(x[(G C)], k[C]) -> y[G]\n  y[g] = sum(c) x[g*C + c - C ?0]*k[c] for g in G\n", ()),
    ],
)
def test_what_a_window_is(text: str, windows: tuple[str, ...]) -> None:
    (op,) = read(Source(text, "<test>"))
    assert windows_of(op) == windows


def test_a_window_that_an_attribute_gives_is_one_in_the_gradient_as_well() -> None:
    module = opgen.load(SPECS / "unfold.op")
    x = torch.randn(2, 3, 7, 9, requires_grad=True)
    for size in (2, 3):
        inputs = {"kernel_size": size, "stride": 2}
        y = module.unfold(x, **inputs)
        wanted = torch.nn.functional.unfold(x, **inputs)
        cotangent = torch.randn_like(wanted)
        (got,) = torch.autograd.grad(y, x, cotangent)
        torch.testing.assert_close(got, *torch.autograd.grad(wanted, x, cotangent))
    gradient, _ = module.FAMILY.operations["unfold"].gradient("x")
    assert gradient.special is not None
    assert gradient.special.windows == ("K", "L")
    at = len(gradient.special.names)
    assert {(2, 2), (3, 3)} <= {values[at : at + 2] for _, values in gradient.compiled}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cells_without_terms_load_nothing(dtype: torch.dtype) -> None:
    """The first row of `x` is in no window: its loop has bounds that exclude each other."""
    text = """
op below(x: float[N,H,W], w: float[3]) -> y[N,U,W]
  let U = H + 1
  y[n,i,j] = sum(k) x[n, 2*i + k + 1 ?0, j - 1 ?0] * w[k]
"""
    own = opgen.compile(text, "below.op").below
    x = torch.randn(600, 8, 8, dtype=dtype, requires_grad=True)
    w = torch.randn(3, dtype=dtype)
    exact = x.detach().double().requires_grad_()
    rows = torch.nn.functional.pad(exact, (1, 0, 0, 13))[..., 1:, :-1]
    wanted = sum(rows[:, k : k + 17 : 2] * w.double()[k] for k in range(3))
    found = own(x, w)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=0)
    cotangent = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, x, cotangent)
    (expected,) = torch.autograd.grad(wanted, exact, cotangent.double())
    torch.testing.assert_close(gradient.double(), expected, atol=1e-5, rtol=0)


def test_values_that_are_admitted_have_kernels_for_every_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "1")
    op = fresh("filtered_7")
    call(op, 2, 0, 3)
    call(op, 3, 0, 3)
    x, k = torch.randn(3, 40).double(), torch.randn(3).double()
    asked = []
    source = on_demand.special_source
    monkeypatch.setattr(
        on_demand, "special_source", lambda *given: asked.append(given[3]) or source(*given)
    )
    for stride in (2, 3):
        wanted = torch.nn.functional.conv1d(x[:, None], k[None, None], stride=stride)[:, 0]
        torch.testing.assert_close(op(x, k, stride=stride, padding=0), wanted)
    assert [given["stride"] for given in asked] in ([], [2])  # not asked where it is kept on disk
    assert op.operation.admitted == {(2, 0, 3, None)}


@pytest.mark.parametrize("size", [(3, 3), (2, 2), (4, 4), (0, 2), (1, 3)])
def test_an_attribute_of_two_numbers_of_which_one_counts(size: tuple[int, int]) -> None:
    """The kernel is for one of them, and takes the other."""
    text = """op f(at: i64[N,H,W], v[N,H,W]; size: int[2], OH: size, OW: size) -> y[N,OH,OW]
  where size[0] >= 0, size[1] >= 0
  y[n, i*2 + k - 2 ?drop, j*2 + l*2 - 1 ?drop] += select(at[n,i,j] == k*size[1] + l, v[n,i,j], 0)
      for k in size[0], l in size[1]
"""
    torch.manual_seed(0)
    at, v = torch.randint(0, 9, (6, 5, 6)), torch.randn(6, 5, 6)
    wanted = torch.zeros(6, 10, 12)
    for n, i, j in itertools.product(range(6), range(5), range(6)):
        k, l = divmod(int(at[n, i, j]), max(size[1], 1))
        h, w = i * 2 + k - 2, j * 2 + l * 2 - 1
        if k < size[0] and l < size[1] and 0 <= h < 10 and 0 <= w < 12:
            wanted[n, h, w] += v[n, i, j]
    assert torch.equal(opgen.compile(text).f(at, v, size=size, OH=10, OW=12), wanted)


@pytest.mark.parametrize("shape", [(4, 5, 24, 23), (4, 17, 24, 24)])
def test_copies_of_quotients_have_names_of_their_own(shape: tuple[int, ...]) -> None:
    """The copy for `k = 2` of one quotient was once taken for the second quotient."""
    text = """op f(x[N,C,H,W]) -> y[C,OH,OW,N]
  where H >= 1, W >= 1
  let OH = H + 1, OW = W + 2
  y[c, i + k ?wrap, j + l ?wrap, n] += x[n,c,i,j]
      for n in N, c in C, i in H, j in W, k in 5, l in 5
"""
    torch.manual_seed(0)
    x = torch.randint(-9, 10, shape).float()
    batch, channels, height, width = shape
    wanted = torch.zeros(channels, height + 1, width + 2, batch)
    for k, l in itertools.product(range(5), range(5)):
        rows = (torch.arange(height) + k) % (height + 1)
        columns = (torch.arange(width) + l) % (width + 2)
        wanted[:, rows[:, None], columns] += x.permute(1, 2, 3, 0)
    for format_ in (torch.contiguous_format, torch.channels_last):
        assert torch.equal(opgen.compile(text).f(x.contiguous(memory_format=format_)), wanted)


ANY_STEPS = '''
import torch, opgen
from opgen.runtime import special
special.LARGE = 1
op = opgen.compile("""op f(x[N,C,H,W], w[C,7,7]) -> y[N,C,H,W]
  y[n,c,i,j] = sum(k in 7, l in 9) x[n,c, i + k - 3 ?0, j + l - 3 ?0] * w[c, k, min(l - 1, 1) ?(1)]
""").f
x = torch.randint(-3, 4, (3, 16, 11, 20)).float().contiguous(memory_format=torch.channels_last)
w, x = torch.randint(-3, 4, (16, 7, 7)).float(), x.requires_grad_()
flowing = torch.randint(-3, 4, (20, 16, 11, 3)).float().transpose(0, 3)
taps = torch.cat((torch.ones(16, 7, 1), w[:, :, :1], w[:, :, 1:2].expand(16, 7, 7)), 2)
padded = torch.nn.functional.pad(x, (3, 5, 3, 3))
wanted = torch.nn.functional.conv2d(padded, taps[:, None], groups=16)
found = op(x, w)
assert torch.equal(found, wanted)
one, other = (torch.autograd.grad(y, x, flowing)[0] for y in (found, wanted))
assert torch.equal(one, other)
'''


def test_steps_that_differ_from_call_to_call() -> None:
    """Compiled as for users, and in a process of its own: an array on the stack began at 8 bytes in
    a function without vectors, where gcc took it to begin at 16."""
    assert not forks.printed(ANY_STEPS, OPGEN_CFLAGS="")
