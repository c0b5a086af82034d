"""Outputs recycled: memory that was freed is given out again, instead of fresh pages.

opgen's functions make their outputs themselves, as PyTorch's do, so that neither can be given one.
Instead PyTorch is given an allocator that hands out the piece of the same size that was freed last:
then every call, of opgen and of PyTorch alike, writes into the memory that it wrote before. `copy_`
into the same target is what compares with it. The C library's allocator would not do: a piece with
a boundary does not fit into where such a piece was, so it takes two places by turns, and they push
each other out of the caches. On a GPU PyTorch's allocator always works like this.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

import torch

from opgen.bench.faults import BenchError

_ALLOCATOR: Final = r"""
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

struct Pieces {
  std::mutex lock;
  bool are_kept = false;
  std::unordered_map<void *, size_t> sizes;
  std::unordered_map<size_t, std::vector<void *>> freed;
};

Pieces &pieces() {
  static Pieces *const all = new Pieces;  // tensors are freed even while the program ends
  return *all;
}

const c10::Device cpu(c10::DeviceType::CPU);

void tell_profiler(void *piece, int64_t size) {
  if (c10::memoryProfilingEnabled()) c10::reportMemoryUsageToProfiler(piece, size, 0, 0, cpu);
}

void release(void *piece) {
  pieces().sizes.erase(piece);
  c10::free_cpu(piece);
}

void give_back(void *piece) {
  if (piece == nullptr) return;
  const std::lock_guard<std::mutex> guard(pieces().lock);
  const size_t size = pieces().sizes.at(piece);
  tell_profiler(piece, -static_cast<int64_t>(size));
  if (pieces().are_kept)
    pieces().freed[size].push_back(piece);
  else
    release(piece);
}

struct Recycling final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void *piece = nullptr;
    if (size != 0) {
      const std::lock_guard<std::mutex> guard(pieces().lock);
      auto &found = pieces().freed[size];
      if (found.empty()) {
        piece = c10::alloc_cpu(size);
        pieces().sizes[piece] = size;
      } else {
        piece = found.back();
        found.pop_back();
      }
      tell_profiler(piece, static_cast<int64_t>(size));
    }
    return {piece, piece, give_back, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void *to, const void *from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }
};

}  // namespace

extern "C" void recycle(int are_kept) {
  static Recycling *const allocator = new Recycling;
  c10::SetCPUAllocator(allocator, /*priority=*/1);
  const std::lock_guard<std::mutex> guard(pieces().lock);
  pieces().are_kept = are_kept;
  for (auto &[size, found] : pieces().freed)
    for (void *piece : found) release(piece);
  pieces().freed.clear();
}
"""


@functools.cache
def _library() -> ctypes.CDLL:
    """The allocator, compiled; BenchError where that cannot be done."""
    home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(prefix="opgen_bench_") as scratch:
        source, built = Path(scratch) / "recycle.cpp", Path(scratch) / "recycle.so"
        source.write_text(_ALLOCATOR, encoding="utf-8")
        command = [
            *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{home}/include", str(source)),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *("-o", str(built), f"-L{home}/lib", "-lc10"),
        ]
        try:
            made = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BenchError(f"the allocator that keeps memory needs g++: {error}") from error
        if made.returncode != 0:
            raise BenchError(f"the allocator that keeps memory cannot be compiled:\n{made.stderr}")
        return ctypes.CDLL(str(built))


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Tensors are made in memory of the same size that was freed, if there is any; not threadsafe.

    Nothing is given back to the system until the end. BenchError where the system is not Linux or
    has no compiler of C++.
    """
    if sys.platform != "linux":
        raise BenchError(f"freed memory can be kept on Linux only, and this is {sys.platform}")
    _library().recycle(1)
    try:
        yield
    finally:
        _library().recycle(0)


_MOST_CALLS: Final = 20
_FEW_PAGES: Final = 64
"""Of a round in which nothing large was new."""


def settle(calls: Collection[Callable[[], object]]) -> None:
    """Make all calls in turn until they bring no new pages: pieces of memory find their places."""
    for _ in range(_MOST_CALLS):
        before = _pages()
        for call in calls:
            call()
        if _pages() - before < _FEW_PAGES:
            return


def _pages() -> int:
    """How many pages this process has been given so far; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
