"""Copies by blocks, planned in each call: against copies element by element, and PyTorch's."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.emit import moves
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.runtime import build, prelude

LOOPS, RUNS, SHUFFLED, TILES = 0, 1, 2, 3
TYPES = {"u8": np.uint8, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}
ALWAYS = f"{prelude.C}\n#define MOVE_FEWEST 1\n"

ENTRY = """
/* 1 for a copy of runs, 2 for one of shuffled blocks, 3 for tiles, 0 where it is left to loops. */
int64_t moved(
    T *to, const T *from, int64_t rank, const int64_t *axes, int64_t row, int64_t streams)
{
    struct move move = {to, from, (int)rank, {{0}}, 0}, planned;
    struct call call = {0, 0, 0, 0, (int)streams, 0};
    struct move_plan plan;
    for (int at = 0; at < rank; at++) {
        move.axes[at].extent = axes[3 * at];
        move.axes[at].to = axes[3 * at + 1];
        move.axes[at].from = axes[3 * at + 2];
    }
    planned = move;
    const struct move_row along = {row, 1, 1};
    const int is_planned = move_planned(&planned, &along, &plan, (int)streams, row > MOVE_ROW);
    if (is_planned != move_made(&move, -1, row, &call)) return -1;
    return is_planned ? (plan.tile_from ? 3 : plan.window_count > 0 ? 2 : 1) : 0;
}
"""


def library(kind: str, helpers: str | None = None) -> ctypes.CDLL:
    helpers = moves.helpers() if helpers is None else helpers
    return build.library(f"{ALWAYS}{prelude.bindings(kind, 'f32', {})}{helpers}{ENTRY}")


@contextmanager
def guarded(size: int, is_at_end: bool) -> Iterator[int]:
    """The address of memory with a page before it and one behind it that cannot be read."""
    page = mmap.PAGESIZE
    whole = -(-size // page) * page
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    with mmap.mmap(-1, whole + 2 * page) as memory:
        view = ctypes.c_char.from_buffer(memory)
        begin = ctypes.addressof(view)
        ends = [ctypes.c_void_p(begin), ctypes.c_void_p(begin + page + whole)]
        for end in ends:
            assert protect(end, ctypes.c_size_t(page), 0) == 0
        try:
            yield begin + page + (whole - size if is_at_end else 0)
        finally:
            for end in ends:
                protect(end, ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)
            del view


@dataclass(frozen=True)
class Copy:
    """Extents, and the steps along them in the target and in the source."""

    extents: tuple[int, ...]
    to: tuple[int, ...]
    source: tuple[int, ...]

    def places(self, steps: Sequence[int]) -> npt.NDArray[np.int64]:
        """Where each cell is, from the first cell on."""
        found = np.zeros(self.extents, np.int64)
        for axis, (extent, step) in enumerate(zip(self.extents, steps, strict=True)):
            shape = [-1 if each == axis else 1 for each in range(len(self.extents))]
            found = found + (np.arange(extent) * step).reshape(shape)
        return found

    def is_right(
        self, compiled: ctypes.CDLL, kind: str, row: int = 1, streams: int = 0, at_end: bool = True
    ) -> tuple[bool, int]:
        """Whether all cells are those of the source and no others were written; what was done.

        The source ends where memory ends, or begins where it begins.
        """
        element = np.dtype(TYPES[kind])
        sources, targets = self.places(self.source), self.places(self.to)
        first = -int(sources.min(initial=0))
        count = int(sources.max(initial=0)) + first + 1
        given = np.random.default_rng(1).integers(0, 200, count).astype(element)
        room = np.full(int(targets.max(initial=0)) + 129, 201, element)
        begin = (-room.ctypes.data // element.itemsize) % (64 // element.itemsize)
        wanted = room.copy()
        wanted[begin + targets.ravel()] = given[first + sources.ravel()]
        axes = np.array([self.extents, self.to, self.source], np.int64).T.copy()
        with guarded(given.nbytes, at_end) as address:
            ctypes.memmove(address, given.ctypes.data, given.nbytes)
            found = compiled.moved(
                ctypes.c_void_p(room.ctypes.data + begin * element.itemsize),
                ctypes.c_void_p(address + first * element.itemsize),
                ctypes.c_int64(len(self.extents)),
                ctypes.c_void_p(axes.ctypes.data),
                ctypes.c_int64(row),
                ctypes.c_int64(streams),
            )
        if found == LOOPS:
            return bool((room == 201).all()), found
        return bool((room == wanted).all()), found


def dense(extents: Sequence[int], order: Sequence[int], gap: int = 0) -> tuple[int, ...]:
    """Steps along axes that lie in memory in that order, slowest first; rows `gap` longer."""
    steps, step = [0] * len(extents), 1
    for number, axis in enumerate(reversed(order)):
        steps[axis] = step
        step = step * extents[axis] + (gap if number == 0 else 0)
    return tuple(steps)


def drawn(generator: random.Random) -> Copy:
    """A copy between two orders of the same axes, with gaps, flips and axes that are repeated."""
    extents = [generator.choice([1, 2, 2, 3, 4, 4, 5, 8, 16, 17, 33]) for _ in range(4)]
    to = dense(extents, generator.sample(range(4), 4), generator.choice([0, 0, 0, 3]))
    source = list(dense(extents, generator.sample(range(4), 4), generator.choice([0, 0, 5])))
    if generator.random() < 0.2:
        source[generator.randrange(4)] *= -1
    if generator.random() < 0.2:
        source[generator.randrange(4)] = 0
    return Copy(tuple(extents), to, tuple(source))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", TYPES)
def test_cells_are_those_of_the_source(kind: str) -> None:
    """And no other is written, and nothing outside of the source is read."""
    compiled, generator = library(kind), random.Random(4)
    kinds: Counter[int] = Counter()
    for number in range(400):
        copy = drawn(generator)
        is_right, found = copy.is_right(
            compiled, kind, streams=number % 3 == 0, at_end=number % 2 == 0
        )
        assert is_right, copy
        kinds[found] += 1
    assert kinds[RUNS] > 20 and kinds[LOOPS] > 20
    assert kinds[SHUFFLED] > 20 or not can_shuffle(compiled)


def can_shuffle(compiled: ctypes.CDLL) -> bool:
    """Whether processor and compiler have what it takes: columns of a small matrix as rows."""
    return Copy((100, 4, 8), (32, 8, 1), (32, 1, 4)).is_right(compiled, "f32")[1] == SHUFFLED


@pytest.mark.sampled(6)
@pytest.mark.parametrize("flags", ["", "-mno-avx512f", "-march=x86-64"])
@pytest.mark.parametrize("kind", TYPES)
def test_blocks_of_rows_in_turn(kind: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of images in channels-last format: each point has a block of several rows."""
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    compiled, size = library(kind), np.dtype(TYPES[kind]).itemsize
    for number, lines, streams in itertools.product(range(2, 10), (1, 3), (0, 1)):
        run, at_end = lines * 64 // size, bool(number % 2)
        copy = Copy((33, number, run), (number * run, run, 1), (run, 33 * run, 1))
        assert copy.is_right(compiled, kind, streams=streams, at_end=at_end) == (True, RUNS)
    # Half lines: two rows make a block, and two, three or four blocks a point.
    half, found = 32 // size, Counter[int]()
    for number, streams, at_end in itertools.product((2, 4, 6, 8), (0, 1), (False, True)):
        copy = Copy((33, number, half), (number * half, half, 1), (half, 33 * half, 1))
        is_right, done = copy.is_right(compiled, kind, streams=streams, at_end=at_end)
        assert is_right
        found[done] += 1
    assert found[SHUFFLED if kind == "f32" and can_shuffle(compiled) else done] == 16


@pytest.mark.sampled(3)
@pytest.mark.parametrize("flags", ["", "-mno-avx512f", "-march=x86-64"])
@pytest.mark.parametrize("kind", TYPES)
def test_long_runs(kind: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of kilobytes, repeated and in turn, whole ones and those of several parts.

    Past the caches go whole lines alone: others that are long are left to loops.
    """
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    compiled, size = library(kind), np.dtype(TYPES[kind]).itemsize
    for number, extra in itertools.product((2, 3, 100, 128, 129, 255, 257, 1100), (0, 1, 8, 63)):
        run = number * 64 // size + extra
        for count, copy in (
            (1, Copy((3, 2, run), (2 * run, run, 1), (run + 5, 0, 1))),
            (2, Copy((3, 2, 2, run), (4 * run, 2 * run, run, 1), (2 * run, 0, run, 1))),
            (3, Copy((2, 2, 3, run), (6 * run, 3 * run, run, 1), (3 * run, 0, run, 1))),
            (1, Copy((2, 3, run), (3 * run + 64 // size, run, 1), (run, 2 * run, 1))),
        ):
            assert copy.is_right(compiled, kind, streams=0) == (True, RUNS), copy
            is_right, found = copy.is_right(compiled, kind, streams=1, at_end=bool(number % 2))
            assert is_right, copy
            are_lines = count * run * size % 64 == 0
            assert (found == RUNS) == (are_lines or count * run * size <= 2048), copy


@pytest.mark.sampled(3)
@pytest.mark.parametrize("flags", ["", "-mno-avx512f", "-march=x86-64"])
@pytest.mark.parametrize("kind", TYPES)
def test_tiles(kind: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices that change their axes: alone, beside others, with gaps, and behind long rows."""
    monkeypatch.setenv("OPGEN_CFLAGS", flags)
    compiled, lanes = library(kind), 64 // np.dtype(TYPES[kind]).itemsize
    for height, width in itertools.product((lanes, lanes + 1, 2 * lanes, 3 * lanes - 1), repeat=2):
        size = height * width
        for number, copy in enumerate(
            (
                Copy((height, width), (width, 1), (1, height)),
                Copy((height, width), (width + 3, 1), (1, height + 5)),
                Copy((3, height, 2, width), (2 * size, 2 * width, width, 1), (1, 3, 0, 3 * height)),
                Copy((3, height, width), (size, width, 1), (size, 1, height)),
                Copy((height, 3, width), (3 * width, width, 1), (1, height, 3 * height)),
                Copy((height, 3, width), (3 * width, width, 1), (1, -height, 3 * height)),
            )
        ):
            done = LOOPS if number == 2 else TILES
            for streams, at_end in itertools.product((0, 1), (False, True)):
                found = copy.is_right(compiled, kind, 1000, streams, at_end)
                assert found == (True, done), copy


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_tiles_past_the_caches_follow_rows_of_the_source(kind: str) -> None:
    """As many as are in such a row, the last one over the one before, or few."""
    compiled, lanes = library(kind), 64 // np.dtype(TYPES[kind]).itemsize
    for height, width in itertools.product((4 * lanes, 5 * lanes - 3), (lanes, 3 * lanes)):
        size = height * width
        for copy in (
            Copy((height, width), (width, 1), (1, height)),
            Copy((2, height, 3, width), (3 * size, 3 * width, width, 1), (size, 1, 0, height)),
            Copy((3, height, width), (size, width, 1), (1, 3, 3 * height + 5)),
        ):
            done = TILES if copy.source[-2] == 1 or copy.source[1] == 1 else LOOPS
            for at_end in (False, True):
                assert copy.is_right(compiled, kind, 1000, 1, at_end) == (True, done), copy


PAST = """
void set_cache(int64_t bytes) { largest_cache = bytes; }
int64_t has_lines(void) { return LANE_BYTES == LINE; }
int64_t goes_past(T *to, const T *from, int64_t height, int64_t width, int64_t gap)
{
    struct move move = {to, from, 2, {{height, width + gap, 1}, {width, 1, height}}, 0};
    struct move_row along = {1, 1, 1};
    struct move_plan plan;
    move.axes[0].extent = height, move.axes[1].extent = width;
    return move_planned(&move, &along, &plan, 0, 0) && plan.tile_from && plan.streams;
}
"""


def test_which_tiles_go_past_the_caches() -> None:
    """Those of whole lines into memory that is there, if source and target fill most of a cache."""
    compiled = build.library(f"{ALWAYS}{prelude.bindings('f32', 'f32', {})}{moves.helpers()}{PAST}")
    height = width = 1536
    given = np.zeros(height * (width + 16) + 16, np.float32)
    to = np.zeros_like(given)
    first = (-to.ctypes.data // 4) % 16

    def goes_past(begin: int = first, width: int = width, gap: int = 0) -> bool:
        place, source = to.ctypes.data + 4 * begin, ctypes.c_void_p(given.ctypes.data)
        sizes = map(ctypes.c_int64, (height, width, gap))
        return bool(compiled.goes_past(ctypes.c_void_p(place), source, *sizes))

    for cache, is_small in ((16 << 20, True), (24 << 20, True), (26 << 20, False)):
        compiled.set_cache(ctypes.c_int64(cache))
        assert goes_past() == (is_small and bool(compiled.has_lines()))
    compiled.set_cache(ctypes.c_int64(16 << 20))
    assert not goes_past(gap=16), "what lies between is not written"
    assert not goes_past(begin=first + 1)
    assert not goes_past(width=width - 1)


def test_the_harness_notices_a_wrong_copy() -> None:
    right = moves.helpers()
    wrong = right.replace("to + (at), &part", "to + (at) + (at > 0), &part")
    assert wrong != right
    copy = Copy((50, 4, 40), (160, 40, 1), (40, 2000, 1))
    assert copy.is_right(library("f32", right), "f32") == (True, RUNS)
    assert copy.is_right(library("f32", wrong), "f32") == (False, RUNS)


@pytest.mark.parametrize(
    ("copy", "row"),
    [
        (Copy((64, 64), (64, 1), (64, 1)), 1),  # one piece of memory
        (Copy((64, 8), (16, 2), (8, 1)), 1),  # a target with gaps
        (Copy((64, 8), (8, 1), (9, 1)), 300),  # long rows
        (Copy((64, 12), (12, 1), (1, 64)), 1),  # sources far apart, in rows that are short
        (Copy((64, 64), (64, 1), (1, 15)), 1),  # columns that overlap
        (Copy((64, 64), (-64, 1), (64, 1)), 1),  # a target that is filled from its end
        (Copy((0, 8), (8, 1), (9, 1)), 1),  # nothing
        (Copy((1, 1), (1, 1), (1, 1)), 1),
        (Copy((100, 4, 8), (32, 8, 1), (32, 1, 4)), 17),  # shuffled, but with rows of a vector
    ],
)
def test_what_is_left_to_loops(copy: Copy, row: int) -> None:
    compiled = library("f32")
    if copy.to[0] < 0:
        axes = np.array([copy.extents, copy.to, copy.source], np.int64).T.copy()
        room = np.zeros(64 * 64, np.uint32)
        arguments = (ctypes.c_void_p(room.ctypes.data),) * 2
        place = ctypes.c_void_p(axes.ctypes.data)
        counts = (ctypes.c_int64(each) for each in (row, 0))
        assert compiled.moved(*arguments, ctypes.c_int64(2), place, *counts) == LOOPS
        return
    assert copy.is_right(compiled, "f32", row) == (True, LOOPS)


# ---------------------------------------------------------------------------- ops
OPS = """
op windows(x[N,(H s),(W s),C]; s = 4) -> y[N,H,W,(s s),C]
  where s >= 1
  y[n,h,w,(i j),c] = x[n,(h i),(w j),c]

op patches(x[N,C,(H s),(W s)]; s = 4) -> y[N,(H W),(s s C)]
  where s >= 1
  y[n,(h w),(i j c)] = x[n,c,(h i),(w j)]

op heads(x[N,L,(K D)]; K: size) -> y[N,K,L,D]
  y[n,k,l,d] = x[n,l,(k d)]

op mirrored(x[N,H,W]) -> y[N,W,H]
  y[n,w,h] = x[n,h,W - 1 - w]

op to_blocks(x[N,C,(H r),(W r)]; r = 2, by_block = false) -> y[N,(C r r),H,W]
  where r >= 1
  y[n,(c i j),h,w] = x[n,c,(h i),(w j)]  if by_block == 0
  y[n,(i*r + j)*C + c,h,w] = x[n,c,(h i),(w j)]  if by_block == 1

op added(x[N,C], z[N,C]) -> y[N,C]
  y[n,c] = x[n,c] + z[n,c]

op shifted(x[N,C]) -> y[N,C]
  y[n,c] = x[n, c - 1 ?0]

op turned(x[N,M,K]) -> y[K,N,M]
  y[k,n,m] = x[n,m,k]

op looked_up(x[N,C], at: int[M]) -> y[M,C]
  y[m,c] = x[at[m] ?clamp, c]
"""
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int64]
LIKE_OTHERS = (torch.float16, torch.int64)
"""They are copied as another type of their size is."""


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same numbers: one piece, channels last, with gaps, and turned."""
    yield x
    if x.dim() == 4:
        yield x.contiguous(memory_format=torch.channels_last)
    room = x.new_zeros([each + 2 for each in x.shape])
    inside = room[tuple(slice(1, -1) for _ in x.shape)]
    yield inside.copy_(x)
    yield x.transpose(0, -1).contiguous().transpose(0, -1)


ASKED = """
char *getenv(const char *name);
#define will_be_written(memory, bytes) (getenv("MOVES_ARE_STREAMED") != 0)
"""
"""For the kernels of both: ops that are the same share them."""


@functools.cache
def copies() -> ModuleType:
    return opgen.compile(OPS, "moves.op")


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,  # those of other sizes are copied in the tests of all modes
        *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in DTYPES[1:]),
    ],
    ids=str,
)
def test_ops_that_only_copy(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ALWAYS.replace("will_be_written(void", "was_to_be_written(void")
    monkeypatch.setattr(prelude, "C", text + ASKED)
    for are_streamed in (False, True):
        if are_streamed:
            monkeypatch.setenv("MOVES_ARE_STREAMED", "1")
        check_copies(copies(), dtype)


def check_copies(ops: ModuleType, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(0, 99, shape, generator=generator).to(dtype)

    for s, c in itertools.product((2, 3, 4, 7), (1, 3, 16)):
        for x in layouts(numbers(2, 3 * s, 5 * s, c)):
            blocks = x.reshape(2, 3, s, 5, s, c)
            wanted = blocks.transpose(2, 3).reshape(2, 3, 5, s * s, c)
            assert torch.equal(ops.windows(x, s=s), wanted)
    for s, c in itertools.product((2, 4), (1, 3, 5)):
        for x in layouts(numbers(2, c, 3 * s, 2 * s)):
            blocks = x.reshape(2, c, 3, s, 2, s).permute(0, 2, 4, 3, 5, 1)
            assert torch.equal(ops.patches(x, s=s), blocks.reshape(2, 6, s * s * c))
    for r, c in itertools.product((2, 3, 4), (2, 4, 7, 16)):
        for x in layouts(numbers(2, c, 3 * r, 5 * r)):
            assert torch.equal(ops.to_blocks(x, r=r), F.pixel_unshuffle(x, r))
            blocks = x.reshape(2, c, 3, r, 5, r).permute(0, 3, 5, 1, 2, 4)
            by_block = ops.to_blocks(x, r=r, by_block=True)
            assert torch.equal(by_block, blocks.reshape(2, r * r * c, 3, 5))
    for x in layouts(numbers(3, 7, 20)):
        assert torch.equal(ops.mirrored(x), x.flip(2).transpose(1, 2))
        assert torch.equal(ops.heads(x, K=4), x.reshape(3, 7, 4, 5).transpose(1, 2))
    for x in layouts(numbers(70, 3, 81)):
        assert torch.equal(ops.turned(x), x.permute(2, 0, 1))


@pytest.mark.parametrize(("r", "c"), [(2, 16), pytest.param(4, 4, marks=pytest.mark.slow), (3, 5)])
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        (torch.float32, "CRD"),
        pytest.param(torch.bfloat16, "DCR", marks=pytest.mark.slow),
        pytest.param(torch.float32, "DCR", marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, "CRD", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_images_with_channels_last(r: int, c: int, dtype: torch.dtype, mode: str) -> None:
    """Of a size at which plans are made, with their gradients: a shuffle undoes the other."""
    ops = opgen.load("specs/depth_to_space.op")
    x = torch.arange(2 * c * r * r * 13 * 21).reshape(2, -1, 13, 21).remainder(251).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    y = ops.depth_to_space(x, r=r, mode=mode)
    if mode == "CRD":
        assert torch.equal(y, F.pixel_shuffle(x, r))
    else:
        blocks = x.reshape(2, r, r, c, 13, 21).permute(0, 3, 4, 1, 5, 2)
        assert torch.equal(y, blocks.reshape(2, c, 13 * r, 21 * r))
    assert torch.equal(ops.space_to_depth(y, r=r, mode=mode), x)
    (grad,) = torch.autograd.grad(y, x, y.detach())
    assert torch.equal(grad, x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "is_move"),
    [
        ("windows", True),
        ("patches", True),
        ("heads", True),
        ("mirrored", True),
        ("turned", True),
        ("added", False),
        ("shifted", False),  # some cells have no source
        ("looked_up", False),  # where a source lies is not known before the call
    ],
)
def test_kernels_that_are_moves(name: str, is_move: bool) -> None:
    (op,) = (each for each in check_source(Source(OPS, "moves.op")) if each.name == name)
    program = rows(schedule(op, gather(op)), facts_of(op))
    assert [bool(kernel.moves) for kernel in program.kernels] == [is_move]


def shuffled(x: torch.Tensor, r: int, mode: str) -> torch.Tensor:
    """Blocks of channels as blocks of pixels, by PyTorch."""
    if mode == "CRD":
        return F.pixel_shuffle(x, r)
    n, c, h, w = x.shape
    blocks = x.reshape(n, r, r, c // (r * r), h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // (r * r), h * r, w * r)


SHUFFLES = (SPECS / "depth_to_space.op").read_text()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtype, marks=[pytest.mark.slow] if dtype in LIKE_OTHERS else [])
        for dtype in DTYPES
    ],
    ids=str,
)
def test_kernels_for_all_modes_are_moves(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mode is another copy, which a call finds by its value."""
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "0")
    monkeypatch.setattr(prelude, "C", ALWAYS)
    ops = opgen.compile(SHUFFLES, f"modes_{str(dtype).removeprefix('torch.')}.op")
    generator = torch.Generator().manual_seed(3)
    for r, c, mode in itertools.product((1, 2, 3, 4), (1, 3, 8), ("CRD", "DCR")):
        shape = (2, c * r * r, 5, 7)
        for x in layouts(torch.randint(0, 99, shape, generator=generator).to(dtype)):
            y = shuffled(x, r, mode)
            assert torch.equal(ops.depth_to_space(x, r=r, mode=mode), y)
            for image in layouts(y):
                assert torch.equal(ops.space_to_depth(image, r=r, mode=mode), x)
    for shape in ((0, 4, 5, 7), (2, 0, 5, 7), (2, 4, 0, 7)):
        empty = torch.zeros(shape, dtype=dtype)
        assert torch.equal(ops.depth_to_space(empty, r=2), F.pixel_shuffle(empty, 2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients_for_all_modes_are_moves(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "0")
    monkeypatch.setattr(prelude, "C", ALWAYS)
    ops = opgen.compile(SHUFFLES, f"gradients_{str(dtype).removeprefix('torch.')}.op")
    torch.manual_seed(4)
    for r, mode in itertools.product((2, 3), ("CRD", "DCR")):
        for x in layouts(torch.randn(2, 5 * r * r, 6, 9).to(dtype)):
            x = x.detach().requires_grad_()
            y = ops.depth_to_space(x, r=r, mode=mode)
            seed = torch.randn_like(y)
            (found,) = torch.autograd.grad(y, x, seed)
            (wanted,) = torch.autograd.grad(shuffled(x, r, mode), x, seed)
            assert torch.equal(found, wanted)
            image = shuffled(x, r, mode).detach().requires_grad_()
            seed = torch.randn_like(x)
            z = ops.space_to_depth(image, r=r, mode=mode)
            (found,) = torch.autograd.grad(z, image, seed)
            assert torch.equal(found, shuffled(seed, r, mode))


def test_a_move_that_is_not_made_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is compared above might be the work of loops."""
    line = "in_parallel(move_task, call, plan.points, plan.block * plan.together);"
    helpers = moves.helpers()
    assert line in helpers
    monkeypatch.setattr(moves, "helpers", lambda: helpers.replace(line, ""))
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "0")
    monkeypatch.setattr(prelude, "C", ALWAYS)
    ops = opgen.compile(SHUFFLES, "no_moves.op")
    x = torch.randn(2, 8, 6, 33)
    for mode in ("CRD", "DCR"):
        assert not torch.equal(ops.depth_to_space(x, r=2, mode=mode), shuffled(x, 2, mode))


CONDITIONAL = """
op each(x[N,C]; mode = 0) -> y[C,N]
  y[c,n] = x[n,c]  if mode == 0
  y[c,n] = x[n, C - 1 - c]  if mode == 1

op overlapping(x[N,C]; mode = 0, other = 0) -> y[C,N]
  y[c,n] += x[n,c]  if mode == 0
  y[c,n] += x[n, C - 1 - c]  if other == 1

op unequal(x[N,C]; mode = 0) -> y[C,N]
  y[c,n] += x[n,c]  if mode >= 0
  y[c,n] += x[n, C - 1 - c]  if mode <= 3

op of_cells(x[N,C]; mode = 0) -> y[C,N]
  y[c,n] += x[n,c]  if n >= mode
  y[c,n] += x[n, C - 1 - c]  if mode == 1

op doubled(x[N,C]; mode = 0) -> y[C,N]
  y[c,n] += 2 * x[n,c]  if mode == 0
  y[c,n] += x[n, C - 1 - c]  if mode == 1

op greatest(x[N,C]; mode = 0) -> y[C,N]
  y[c,n] max= x[n,c]  if mode == 0
  y[c,n] max= x[n, C - 1 - c]  if mode == 1
"""


@pytest.mark.parametrize(
    ("name", "count"),
    [("each", 2), *((n, 0) for n in ("overlapping", "unequal", "of_cells", "doubled", "greatest"))],
)
def test_conditions_of_moves_exclude_each_other(name: str, count: int) -> None:
    (op,) = (o for o in check_source(Source(CONDITIONAL, "conditional.op")) if o.name == name)
    program = rows(schedule(op, gather(op)), facts_of(op))
    assert sum(len(kernel.moves) for kernel in program.kernels) == count


def test_a_call_of_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied where no condition holds: cells have what they have without a term."""
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "0")
    monkeypatch.setattr(prelude, "C", ALWAYS)
    ops = opgen.compile(CONDITIONAL, "modes_of_none.op")
    x = torch.randn(40, 50)
    assert torch.equal(ops.each(x, mode=0), x.T)
    assert torch.equal(ops.each(x, mode=1), x.flip(1).T)
    assert torch.equal(ops.overlapping(x, mode=0, other=1), x.T + x.flip(1).T)
    assert torch.equal(ops.overlapping(x, mode=7), torch.zeros(50, 40))
