"""Copies into frames of zeros: against copies element by element, and PyTorch's windows."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.emit import frames
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.runtime import build, prelude
from test_moves import ASKED, TYPES, guarded
from test_planes import under_other_names

ALWAYS = f"{prelude.C}\n#define FRAMED_FEWEST 1\n#define FRAMED_SMALL 0\n"
FLAGS = ["", "-mno-avx512f", "-march=x86-64"]

ENTRY = """
/* Whether a copy was made; `axes` are extents, steps, and steps of the tests. */
int64_t copied(T *to, const T *from, int64_t first, int64_t rank, int64_t count,
               const int64_t *axes, const int64_t *tests, int64_t streams)
{
    struct framed all = {to, from, first, (int)rank, (int)count, {{0}}, {{0}}};
    struct call call = {0, 0, 0, 0, (int)streams, 0};
    for (int at = 0; at < rank; at++, axes += 3 + count) {
        all.axes[at].extent = axes[0], all.axes[at].to = axes[1], all.axes[at].from = axes[2];
        for (int test = 0; test < count; test++) all.axes[at].tests[test] = axes[3 + test];
    }
    for (int test = 0; test < count; test++)
        all.tests[test].first = tests[2 * test], all.tests[test].extent = tests[2 * test + 1];
    return framed_made(&all, &call);
}
"""


def library(kind: str, helpers: str | None = None, begin: str = ALWAYS) -> ctypes.CDLL:
    helpers = frames.helpers() if helpers is None else helpers
    return build.library(f"{begin}{prelude.bindings(kind, 'f32', {})}{helpers}{ENTRY}")


@dataclass(frozen=True)
class Copy:
    """Windows of images: their axes with steps in target, source and tests; the tests."""

    axes: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    first: int
    tests: tuple[tuple[int, int], ...]

    def places(self, first: int, kind: int, test: int = 0) -> npt.NDArray[np.int64]:
        """A number for each cell: `first` plus the steps of that kind along all axes."""
        found = np.full([axis[0] for axis in self.axes], first, np.int64)
        for number, axis in enumerate(self.axes):
            step = axis[3][test] if kind == 3 else axis[kind]
            shape = [-1 if at == number else 1 for at in range(len(self.axes))]
            found += (np.arange(axis[0]) * step).reshape(shape)
        return found

    def is_right(
        self, compiled: ctypes.CDLL, kind: str, streams: int = 0, at_end: bool = True
    ) -> tuple[bool, bool]:
        """Whether all cells are right and no others were written; whether any were.

        The source ends where memory ends, or begins where it begins.
        """
        element = np.dtype(TYPES[kind])
        targets, sources = self.places(0, 1), self.places(self.first, 2)
        inside = np.ones(targets.shape, bool)
        for test, (first, extent) in enumerate(self.tests):
            index = self.places(first, 3, test)
            inside &= (index >= 0) & (index < extent)
        lowest = int(sources[inside].min(initial=1 << 40)) if inside.any() else 0
        highest = int(sources[inside].max(initial=lowest))
        given = np.random.default_rng(1).integers(1, 200, highest - lowest + 1).astype(element)
        room = np.full(int(targets.max()) + 129, 201, element)
        begin = (-room.ctypes.data // element.itemsize) % (64 // element.itemsize)
        wanted = room.copy()
        wanted[begin + targets] = 0
        wanted[begin + targets[inside]] = given[sources[inside] - lowest]
        table = [each for axis in self.axes for each in (*axis[:3], *axis[3])]
        axes, tests = np.array(table, np.int64), np.array(self.tests, np.int64)
        with guarded(given.nbytes, at_end) as address:
            ctypes.memmove(address, given.ctypes.data, given.nbytes)
            made = compiled.copied(
                ctypes.c_void_p(room.ctypes.data + begin * element.itemsize),
                ctypes.c_void_p(address - lowest * element.itemsize),
                *map(ctypes.c_int64, (self.first, len(self.axes), len(self.tests))),
                ctypes.c_void_p(axes.ctypes.data),
                ctypes.c_void_p(tests.ctypes.data),
                ctypes.c_int64(streams),
            )
        if not made:
            return bool((room == 201).all()), False
        return bool((room == wanted).all()), True


def windows(
    image: tuple[int, int, int],
    window: tuple[int, int],
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    stride: tuple[int, int] = (1, 1),
    gaps: tuple[int, int] = (0, 0),
    size: tuple[int, int] | None = None,
) -> Copy:
    """Windows of channels of images, with gaps between the rows and planes of the source.

    There are `size` of them, or as many as have any cell in the padded image.
    """
    channels, height, width = image
    row = width + gaps[0]
    plane = height * row + gaps[1]
    if size is None:
        fits = (
            each + 2 * pad - dil * (taps - 1) - 1
            for each, pad, dil, taps in zip((height, width), padding, dilation, window, strict=True)
        )
        down, across = (fit // step + 1 for fit, step in zip(fits, stride, strict=True))
    else:
        down, across = size
    one = down * across
    axes = (
        (channels, window[0] * window[1] * one, plane, (0, 0)),
        (window[0], window[1] * one, dilation[0] * row, (dilation[0], 0)),
        (window[1], one, dilation[1], (0, dilation[1])),
        (down, across, stride[0] * row, (stride[0], 0)),
        (across, 1, stride[1], (0, stride[1])),
    )
    first = -padding[0] * row - padding[1]
    return Copy(axes, first, ((-padding[0], height), (-padding[1], width)))


def drawn(generator: random.Random) -> Copy:
    """Windows of an image, of any kind, at least one."""
    while True:
        copy = any_windows(generator)
        if all(axis[0] > 0 for axis in copy.axes):
            return copy


def any_windows(generator: random.Random) -> Copy:
    window = generator.choice([(3, 3), (1, 1), (2, 4), (5, 3)])
    dilation = generator.choice([(1, 1), (1, 1), (2, 2), (1, 3)])
    padding = generator.choice([(1, 1), (0, 0), (2, 1), (4, 7)])
    stride = generator.choice([(1, 1), (1, 1), (1, 1), (2, 1), (3, 1), (1, 2)])
    gaps = generator.choice([(0, 0), (0, 0), (0, 5), (3, 0), (-1, 9)])
    height, width = generator.choice([(9, 10), (13, 17), (9, 50), (20, 9), (10, 33)])
    return windows((2, height, width), window, padding, dilation, stride, gaps)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("kind", TYPES)
def test_cells_are_those_of_the_source_or_zero(
    kind: str, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other is written, and nothing outside of the source is read."""
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    compiled, generator, found = library(kind), random.Random(5), Counter[bool]()
    for number in range(200):
        copy = drawn(generator)
        is_right, is_made = copy.is_right(compiled, kind, number % 3 == 0, number % 2 == 0)
        assert is_right, copy
        found[is_made] += 1
    assert found[True] > 50 and found[False] > 10


@pytest.mark.parametrize("kind", TYPES)
def test_planes_of_several_parts(kind: str) -> None:
    """And parts that are single rows, of the most that a part holds."""
    compiled, most = library(kind), 16384 // np.dtype(TYPES[kind]).itemsize
    for width, height in ((most // 3, 10), (most // 2, 3), (most // 2 + 1, 3), (most, 2)):
        for streams in (0, 1):
            copy = windows((1, height, width), (2, 1), (0, 0), size=(height, width))
            assert copy.is_right(compiled, kind, streams) == (True, True), (width, height)
            copy = windows((1, height, width), (1, 3), (0, 1), size=(height, width))
            assert copy.is_right(compiled, kind, streams) == (True, True), (width, height)


@pytest.mark.parametrize(
    "copy",
    [
        windows((2, 9, 50), (3, 3), (1, 1), stride=(1, 2)),  # every second column
        windows((2, 9, 5000), (1, 3), (0, 1)),  # long rows
        windows((2, 1, 50), (1, 3), (0, 1)),  # a single row: the next one is that of another tap
        Copy(((9, 60, 60, (0,)), (50, 1, 1, (1,))), -1, ((-1, 50),)),  # a target with gaps
        Copy(((9, 50, 50, (-1,)), (50, 1, 1, (0,))), 0, ((7, 9),)),  # a test that goes backwards
        Copy(((9, 50, 50, (1,)), (50, 1, 1, (1,))), 0, ((-9, 40),)),  # a test of both
    ],
)
def test_what_is_left_to_loops(copy: Copy) -> None:
    assert copy.is_right(library("f32"), "f32") == (True, False)


@pytest.mark.parametrize(("kind", "is_small"), [("f32", True), ("f64", True), ("bf16", False)])
def test_small_planes_are_left_to_loops(kind: str, is_small: bool) -> None:
    """But for those of 16 bits; past the caches less is worth it."""
    compiled = library(kind, begin=prelude.C)
    for bytes_, streams, is_made in (
        (1 << 12, 0, 1),
        (1 << 11, 0, 0),
        (1 << 10, 1, 1),
        (512, 1, 0),
    ):
        width = bytes_ // 8 // np.dtype(TYPES[kind]).itemsize
        copy = windows((2, 8, width), (3, 3), (1, 1))
        assert copy.is_right(compiled, kind, streams) == (True, bool(is_made) or not is_small)


def test_tests_of_neither_and_of_more() -> None:
    """A test that is the same for a whole plane, and several of the same axis."""
    compiled = library("f32")
    axes = ((7, 450, 450, (1, 0, 0, 0)), (9, 50, 50, (0, 1, 0, 0)), (50, 1, 1, (0, 0, 1, 1)))
    for first, streams in itertools.product((-3, 0, 2, -9, 9), (0, 1)):
        copy = Copy(axes, 0, ((first, 6), (-2, 5), (first, 49), (-7, 90)))
        assert copy.is_right(compiled, "f32", streams) == (True, True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("framed_gaps(row + length, width - length, count - 1, width);", ""),
        ("memset(behind, 0,", "memset(behind, 1,"),
        ("found.top = greatest(found.top, first);", ""),
        ("at * all->row.from, length", "at * width, length"),
    ],
)
def test_the_harness_notices_a_wrong_copy(old: str, new: str) -> None:
    right = frames.helpers()
    assert old in right
    dense, with_gaps = (windows((2, 9, 50), (3, 3), (1, 1), gaps=each) for each in ((0, 0), (3, 0)))
    compiled, wrong = library("f32"), library("f32", right.replace(old, new))
    assert [each.is_right(compiled, "f32")[0] for each in (dense, with_gaps)] == [True, True]
    found = [each.is_right(wrong, "f32")[0] for each in (dense, with_gaps)]
    assert found == [old.startswith("at * all"), False]


# ---------------------------------------------------------------------------- ops
UNFOLD = (SPECS / "unfold.op").read_text()
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same numbers: one piece, channels last, with gaps, turned, and repeated."""
    yield x
    yield x.contiguous(memory_format=torch.channels_last)
    room = x.new_full([each + 2 for each in x.shape], torch.nan)
    inside = room[tuple(slice(1, -1) for _ in x.shape)]
    yield inside.copy_(x)
    yield x.transpose(2, 3).contiguous().transpose(2, 3)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("special", ["0", "1"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows_are_those_of_pytorch(
    dtype: torch.dtype, special: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With kernels for all values and with those for one, past the caches or not."""
    text = ALWAYS.replace("will_be_written(void", "was_to_be_written(void")
    monkeypatch.setattr(prelude, "C", text + ASKED)
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", special)
    ops = under_other_names(UNFOLD, f"with_{special}_kernels")
    check_windows(ops, dtype, special)
    monkeypatch.setenv("MOVES_ARE_STREAMED", "1")
    check_windows(ops, dtype, special)


def check_windows(ops: SimpleNamespace, dtype: torch.dtype, special: str) -> None:
    """With one thread and with two."""
    torch.manual_seed(1)
    threads = torch.get_num_threads()
    try:
        for number, (shape, options) in enumerate(
            (
                ((2, 3, 50, 50), {"kernel_size": 3, "padding": 1}),
                ((3, 2, 13, 19), {"kernel_size": 3}),
                ((1, 2, 40, 33), {"kernel_size": (2, 5), "padding": (0, 2), "dilation": (3, 1)}),
                ((2, 1, 21, 35), {"kernel_size": 3, "padding": 1, "stride": 2}),
                ((2, 2, 7, 5), {"kernel_size": (3, 1), "padding": (4, 3)}),
                ((0, 2, 7, 5), {"kernel_size": 3, "padding": 1}),
            )
        ):
            torch.set_num_threads(1 + number % 2)
            for x in layouts(torch.randn(shape).to(dtype)):
                wanted = F.unfold(x.contiguous(), **options) if x.numel() else None
                found = ops.unfold(x, **options)
                if wanted is None:
                    assert found.shape == (0, 18, 35)
                    continue
                assert torch.equal(found, wanted)
                if special == "0" or dtype == torch.float16:
                    continue  # gradients are kernels of their own, of the same kind
                columns = wanted.clone().requires_grad_()
                image = ops.fold(columns, output_size=shape[2:], **options)
                (found,) = torch.autograd.grad(image, columns, x)
                assert torch.equal(found, wanted)
    finally:
        torch.set_num_threads(threads)


def test_a_copy_that_is_not_made_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is compared above might be the work of loops."""
    line = "in_parallel(framed_task, call, points, all->together * all->column.extent);"
    helpers = frames.helpers()
    assert line in helpers
    monkeypatch.setattr(frames, "helpers", lambda: helpers.replace(line, ""))
    monkeypatch.setattr(prelude, "C", ALWAYS)
    x = torch.randn(2, 3, 20, 30)
    for special in ("0", "1"):
        monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", special)
        ops = opgen.compile(UNFOLD, f"no_frames_{special}.op")
        found = ops.unfold(x, kernel_size=3, padding=1)
        assert not torch.equal(found, F.unfold(x, 3, padding=1))


KINDS = """
op shifted(x[N,C]) -> y[N,C]
  y[n,c] = x[n, c - 1 ?0]

op of_whole(x: i32[N,C]) -> y: i32[N,C]
  y[n,c] = x[n, c - 1 ?0]

op one(x[N,C]) -> y[N,C]
  y[n,c] = x[n, c - 1 ?(1)]

op plain(x[N,C]) -> y[N,C]
  y[n,c] = x[n,c]

op clamped(x[N,C]) -> y[N,C]
  y[n,c] = x[n, c - 1 ?clamp]

op doubled(x[N,C]) -> y[N,C]
  y[n,c] = 2 * x[n, c - 1 ?0]

op looked_up(x[N,C], at: int[M]) -> y[M,C]
  y[m,c] = x[at[m] ?0, c]

op every_second(x[N,C]) -> y[N,C]
  y[n,c] = x[n, 2*c - 1 ?0]

op turned(x[N,C]) -> y[N,C]
  y[n,c] = x[n, C - c ?0]
"""


@pytest.mark.parametrize(
    ("name", "is_framed"),
    [
        ("shifted", True),
        ("of_whole", False),  # elements are not of the type that a call chooses
        ("one", False),  # is not zero outside
        ("plain", False),
        ("clamped", False),
        ("doubled", False),
        ("looked_up", False),  # where a source lies is not known before the call
        ("every_second", False),  # neighbours are not those of the source
        ("turned", False),
    ],
)
def test_kernels_that_are_copies_into_frames(name: str, is_framed: bool) -> None:
    (op,) = (each for each in check_source(Source(KINDS, "kinds.op")) if each.name == name)
    program = rows(schedule(op, gather(op)), facts_of(op))
    assert [kernel.framed is not None for kernel in program.kernels] == [is_framed]


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0])
def test_what_stands_outside(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """-0.0 is another number than 0.0 is."""
    monkeypatch.setattr(prelude, "C", ALWAYS)
    ops = opgen.compile(
        f"op shifted(x[N,C]) -> y[N,C]\n  y[n,c] = x[n, c - 1 ?({value})]\n", f"outside_{value}.op"
    )
    x = torch.randn(30, 40)
    found = ops.shifted(x)
    assert torch.equal(found[:, 1:], x[:, :-1])
    outside = torch.full((30,), value)
    assert torch.equal(found[:, 0], outside)
    assert torch.equal(found[:, 0].signbit(), outside.signbit())
