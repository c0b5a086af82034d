"""Results that are written past the caches."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import opgen
from opgen.compiler import check_source
from opgen.emit.streams import lines
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Lanes, walk
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.runtime import build, prelude

OPS = """
op copied(x[N,W]) -> y[N,W]
  y[n,w] = x[n,w]

op doubled(x[N,W]) -> y[N,(W 2)]
  y[n,(w i)] = x[n,w]

op window_sum(x[N,W]) -> y[N,W]
  y[n,w] = sum(k in 3) x[n, w + k - 1 ?0]

op blocks(x[N,(C 2 2),H,W]) -> y[N,C,(H 2),(W 2)]
  y[n,c,(h i),(w j)] = x[n,(c i j),h,w]

op spread(x[N,C,H,W], weight[C,2,2]) -> y[N,C,(H 2),(W 2)]
  y[n,c,(h i),(w j)] = x[n,c,h,w] * weight[c,i,j]

op every_second(x[N,W]) -> y[N,(W 2)]
  y[n,2*w] = x[n,w]

op read_again(x[N,W]) -> y[N,W], z[N,W]
  y[n,w] = x[n,w] + 1
  z[n,w] = y[n,w] + y[n,0]
"""
WIDTHS = [1, 7, 32, 33, 65, 1023, 1025, 2050]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int8]


def always(count: str = "1") -> str:
    """The prelude with results that are always written past the caches, or never."""
    changed = prelude.C.replace("will_be_written(void", "was_to_be_written(void")
    assert changed != prelude.C
    return f"{changed}\n#define will_be_written(memory, bytes) {count}\n"


@pytest.mark.parametrize(
    "dtype",
    [DTYPES[0], *(pytest.param(each, marks=pytest.mark.slow) for each in DTYPES[1:])],
    ids=str,
)
def test_both_ways_write_the_same_numbers(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For lines of all lengths, which begin and end anywhere between two lines of the cache."""
    monkeypatch.setattr(prelude, "C", always())
    ops = opgen.compile(OPS, f"streams_{str(dtype).removeprefix('torch.')}.op")
    generator = torch.Generator().manual_seed(1)
    for width in WIDTHS:
        x = torch.randint(0, 9, (3, width), generator=generator).to(dtype)
        assert torch.equal(ops.copied(x), x)
        assert torch.equal(ops.doubled(x), x.repeat_interleave(2, 1))
        padded = F.pad(x.long(), (1, 1))
        windows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
        assert torch.equal(ops.window_sum(x), windows.to(dtype))
        gaps = torch.stack((x, torch.zeros_like(x)), 2).flatten(1)
        assert torch.equal(ops.every_second(x), gaps)
        more, sums = ops.read_again(x)
        assert torch.equal(more, x + 1)
        assert torch.equal(sums, more + more[:, :1])
        image = torch.randint(0, 9, (2, 8, 3, width), generator=generator).to(dtype)
        assert torch.equal(ops.blocks(image), F.pixel_shuffle(image, 2))
        if dtype.is_floating_point:
            weight = torch.randint(0, 5, (8, 2, 2), generator=generator).to(dtype)
            wanted = F.conv_transpose2d(
                image.double(), weight.double()[:, None], stride=2, groups=8
            )
            assert torch.equal(ops.spread(image, weight), wanted.to(dtype))


def test_a_copy_goes_to_every_place() -> None:
    """Each beginning within a line, each length: those bytes, and no others."""
    source = "\nvoid copy(void *to, const void *from, int64_t bytes) { stream(to, from, bytes); }\n"
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + source)
    given = torch.arange(1, 701, dtype=torch.int64).to(torch.uint8)
    for start in range(0, 65, 3):
        for length in (64, 65, 127, 128, 191, 192, 500):
            room = torch.zeros(800, dtype=torch.uint8)
            library.copy(
                ctypes.c_void_p(room.data_ptr() + start),
                ctypes.c_void_p(given.data_ptr()),
                ctypes.c_int64(length),
            )
            wanted = torch.zeros(800, dtype=torch.uint8)
            wanted[start : start + length] = given[:length]
            assert torch.equal(room, wanted)


def test_only_memory_that_is_there_and_larger_than_the_cache() -> None:
    source = """
int written(void *memory, int64_t bytes) { return will_be_written(memory, bytes); }
void set_cache(int64_t bytes) { largest_cache = bytes; }
"""
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + source)
    size = 16 << 20
    library.set_cache(ctypes.c_int64(size // 2))
    with mmap.mmap(-1, size) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        pointer, count = ctypes.c_void_p(address), ctypes.c_int64(size)
        assert library.written(pointer, count) == 0  # no page is there yet
        ctypes.memset(address, 1, size)
        assert library.written(pointer, count) == 1
        library.set_cache(ctypes.c_int64(2 * size))
        assert library.written(pointer, count) == 0
        assert library.written(pointer, ctypes.c_int64(1 << 20)) == 0


def test_the_first_cache_has_the_size_that_the_c_library_finds() -> None:
    source = """
int64_t found(void) { return first_cache; }
int64_t expected(void) { return sysconf(_SC_LEVEL1_DCACHE_SIZE); }
"""
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + source)
    is_known = Path("/sys/devices/system/cpu/cpu0/cache/index0/size").exists()
    assert library.found() == (library.expected() if is_known else 0)


def test_memory_that_the_caches_hold_is_asked_about_now_and_then() -> None:
    source = """
int ready(void *memory, int64_t bytes) { return is_ready(memory, bytes); }
void set_cache(int64_t bytes) { largest_cache = bytes; }
"""
    library = build.library(prelude.C + prelude.bindings("f32", "f32", {}) + source)
    size = 16 << 20
    count = ctypes.c_int64(size)
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        pointer = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        for cache, calls in ((2 * size, 15), (size, 0)):
            library.set_cache(ctypes.c_int64(cache))
            memory.madvise(mmap.MADV_DONTNEED)
            assert library.ready(pointer, count) == 0
            memory[:] = bytes(size)
            assert library.ready(pointer, count) == 1
            memory.madvise(mmap.MADV_DONTNEED)
            assert [library.ready(pointer, count) for _ in range(calls + 1)] == [1] * calls + [0]
            assert library.ready(pointer, count) == 0


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("copied", [1]),
        ("window_sum", [1, 1, 1]),  # the ends and the middle
        ("doubled", [2]),
        ("every_second", [2]),  # the zeros between are written in the same pass
        ("read_again", [1]),  # the result that is not
    ],
)
def test_lines(name: str, steps: list[int]) -> None:
    (op,) = (each for each in check_source(Source(OPS, "streams.op")) if each.name == name)
    program = rows(schedule(op, gather(op)), facts_of(op))
    found = [
        line.step
        for kernel in program.kernels
        for node in walk(kernel.body)
        if isinstance(node, Lanes)
        for line in lines(node, kernel, program)
    ]
    assert found == steps
