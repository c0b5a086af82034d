"""How kernels are handed to the emulator, and what it says of launches that no GPU would take."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emulator_kernels import ROTATE, SCALE, I, numbers, out, replaced, run
from opgen.runtime import cache
from opgen.testing.cuda_on_cpu import (
    EmulatorError,
    FindingKind,
    Module,
    RawKernel,
    compiler,
    empty,
)

X, Y, N = numbers(64), out(64), I(64)


# ---------------------------------------------------------------------------- arguments
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            (X, Y),
            "k(const float *x, float *y, int n) takes 3 arguments, got 2",
        ),
        (
            (X, Y, 64),
            "argument 2 (n) of k is int; Python's int is passed as long long; pass "
            "numpy.int32(...)",
        ),
        ((X, Y, np.int64(64)), "argument 2 (n) of k is int, got int64; pass numpy.int32(...)"),
        ((X, Y, np.float32(64)), "argument 2 (n) of k is int, got float32; pass numpy.int32(...)"),
        ((X, Y, True), "argument 2 (n) of k is int; Python's bool is passed as bool; pass "
                       "numpy.int32(...)"),
        ((X, Y, "64"), "argument 2 (n) of k is int, got str '64'; pass numpy.int32(...)"),
        ((X, Y, X), "argument 2 (n) of k is int, a value; got an array of float32"),
        ((X.astype(np.float64), Y, N), "argument 0 (x) of k is const float *, got an array of "
                                       "float64"),
        ((X.view(np.int32), Y, N), "argument 0 (x) of k is const float *, got an array of int32"),
        ((1.5, Y, N), "argument 0 (x) of k is const float *: pass a NumPy array or a CPU tensor, "
                      "got float 1.5"),
        ((X, np.broadcast_to(Y, (64,)), N), "argument 1 (y) of k is float *, and the array is "
                                            "read-only"),
        ((X, torch.empty(64, device="meta"), N), "argument 1 (y) of k: the emulator takes tensors "
                                                 "of the CPU, got meta"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_match(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        run(SCALE, (1,), (64,), args)
    assert str(caught.value) == message


VALUES = r"""#include <cuda_fp16.h>
extern "C" __global__ void k(
    double* y, bool a, signed char b, unsigned char c, short d, unsigned short e, int f,
    unsigned g, long long h, unsigned long long i, float j, double l, __half m, float2 n) {
    double all[] = {double(a), double(b), double(c), double(d), double(e), double(f), double(g),
                    double(h), double(i), double(j), double(l), double(float(m)), n.x, n.y};
    for (int t = 0; t < 14; t++) y[t] = all[t];
}"""


def test_values_of_every_type() -> None:
    y = out(14, dtype=np.float64)
    pair = np.zeros(1, np.dtype([("x", "f4"), ("y", "f4")]))
    pair["x"], pair["y"] = 5, 6
    values = (
        np.bool_(True), np.int8(-2), np.uint8(200), np.int16(-3), np.uint16(4), np.int32(-5),
        np.uint32(6), np.int64(-7), np.uint64(8), np.float32(0.5), np.float64(0.25),
        np.float16(1.5), pair[0],
    )  # fmt: skip
    run(VALUES, (1,), (1,), (y, *values)).raise_if_errors()
    assert y.tolist() == [1, -2, 200, -3, 4, -5, 6, -7, 8, 0.5, 0.25, 1.5, 5, 6]
    python = list(values)
    python[0], python[7], python[8], python[10] = True, -9, 10, 0.125
    run(VALUES, (1,), (1,), (y, *python)).raise_if_errors()
    assert y.tolist() == [1, -2, 200, -3, 4, -5, 6, -9, 10, 0.5, 0.125, 1.5, 5, 6]
    python[8] = -1
    with pytest.raises(OverflowError):
        run(VALUES, (1,), (1,), (y, *python))


def test_tensors_and_views() -> None:
    x, y = torch.rand(64), torch.zeros(64)
    run(SCALE, (1,), (64,), (x, y, N), outs=(1,)).raise_if_errors()
    assert torch.equal(y, 2 * x)
    wide = torch.rand(64, 2)
    source = replaced(SCALE, "x[i]", "x[2 * i]")
    run(source, (1,), (64,), (wide[:, 0], y, N), outs=("y",)).raise_if_errors()
    assert torch.equal(y, 2 * wide[:, 0])
    report = run(source, (1,), (64,), (wide[:, 1][:63], y, N))
    assert report.kinds == {FindingKind.OUT_OF_BOUNDS}
    backwards = numbers(64)[::-1]
    run(replaced(SCALE, "x[i]", "x[-i]"), (1,), (64,), (backwards, Y, N)).raise_if_errors()
    assert np.array_equal(Y, 2 * backwards)


def test_one_array_as_input_and_output() -> None:
    x = numbers(64)
    wanted = 2 * x
    run(SCALE, (1,), (64,), (x, x, N)).raise_if_errors()
    assert np.array_equal(x, wanted)


def test_empty_arrays() -> None:
    run(SCALE, (1,), (64,), (X[:0], Y[:0], I(0)), outs=("y",)).raise_if_errors()
    report = run(SCALE, (1,), (64,), (X[:0], Y[:0], I(1)))
    assert report.kinds == {FindingKind.OUT_OF_BOUNDS}


# ---------------------------------------------------------------------------- launches
@pytest.mark.parametrize(
    ("grid", "block", "options", "message"),
    [
        ((1,), (1025,), {}, "the block is (1025, 1, 1)"),
        ((1,), (64, 32), {}, "a block of 2048 threads; a GPU takes 1024"),
        ((1,), (1, 1, 65), {}, "the block is (1, 1, 65)"),
        ((1, 65536), (1,), {}, "the grid is (1, 65536, 1)"),
        ((0,), (1,), {}, "the grid is (0, 1, 1)"),
        ((1, 1, 1, 1), (1,), {}, "the grid has 1 to 3 dimensions"),
        ((1,), (1,), {"shared_mem": 50_000}, "max_dynamic_shared_size_bytes"),
        ((1,), (1,), {"order": "sideways"}, "order is 'sideways'"),
        ((1,), (1,), {"blocks": [1]}, "blocks names numbers outside 0 to 0"),
        ((1,), (1,), {"outs": ("z",)}, "k has no argument 'z'"),
        ((1,), (1,), {"outs": ("x",)}, "x is const, and no output"),
        ((1,), (1,), {"written": {"y": np.zeros(3, bool)}}, "expected bool of shape (64,)"),
    ],
)
def test_launches_that_no_gpu_takes(
    grid: tuple[int, ...], block: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(SCALE, grid, block, (X, Y, N), **options)


def test_more_dynamic_shared_memory() -> None:
    source = r"""extern "C" __global__ void k(float* y) {
        extern __shared__ __align__(16) float s[];
        s[threadIdx.x * 1024] = threadIdx.x;
        __syncthreads();
        y[threadIdx.x] = s[(31 - threadIdx.x) * 1024];
    }"""
    kernel, y = RawKernel(source, "k"), out(32)
    kernel.max_dynamic_shared_size_bytes = 131_072
    kernel((1,), (32,), (y,), shared_mem=131_072).raise_if_errors()
    assert y.tolist() == list(range(31, -1, -1))


def test_every_dimension() -> None:
    source = r"""extern "C" __global__ void k(int* y) {
        int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        y[block * blockDim.x * blockDim.y * blockDim.z + thread]
            = ((blockIdx.x * 10 + blockIdx.y) * 10 + blockIdx.z) * 1000
            + (threadIdx.x * 10 + threadIdx.y) * 10 + threadIdx.z;
    }"""
    y = out(4, 3, 2, 2, 4, 3, dtype=np.int32)
    for order in ("forward", "reverse", "random"):
        run(source, (2, 3, 4), (3, 4, 2), (y,), outs=("y",), order=order).raise_if_errors()
        for at in ((0, 0, 0, 0, 0, 0), (3, 2, 1, 1, 3, 2), (1, 2, 0, 1, 0, 2)):
            bz, by, bx, tz, ty, tx = at
            assert y[at] == (bx * 100 + by * 10 + bz) * 1000 + tx * 100 + ty * 10 + tz


# ---------------------------------------------------------------------------- sources
def test_a_source_that_is_refused() -> None:
    with pytest.raises(EmulatorError, match=r"kernel\.cu:3:.*'z' was not declared"):
        run(replaced(SCALE, "x[i]", "z[i]"), (1,), (64,), (X, Y, N))


def test_an_uninitialised_register() -> None:
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        float a;
        for (int i = 0; i < 4; i++) a += x[i];
        y[0] = a;
    }"""
    with pytest.raises(EmulatorError, match=r"'a' (may be|is) used uninitialized"):
        run(source, (1,), (1,), (X, Y))
    run(replaced(source, "float a;", "float a = 0;"), (1,), (1,), (X, Y)).raise_if_errors()


def test_modules_and_templates() -> None:
    source = r"""
    template <typename T, int V> struct alignas(sizeof(T) * V) Pack { T v[V]; };
    template <typename T, int V>
    __global__ void copy(const T* __restrict__ x, T* __restrict__ y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i * V < n) ((Pack<T, V>*)y)[i] = ((const Pack<T, V>*)x)[i];
    }
    extern "C" __global__ void __launch_bounds__(64) one(float* y) { y[0] = 1; }
    extern "C" __global__ void two(float* y) { y[0] = 2; }
    """
    module = Module(source, ["copy<float, 4>", "copy<unsigned char, 16>", "two"])
    x, y = numbers(4096), out(4096)
    report = module.get_function("copy<float, 4>")(
        (4,), (256,), (x, y, I(4096)), outs=("y",), trace=True
    )
    report.raise_if_errors()
    assert np.array_equal(x, y)
    assert {site.bytes for site in report.sites} == {16}
    narrow = module.get_function("copy<unsigned char, 16>")
    b, c = (x * 200).astype(np.uint8), empty((4096,), np.uint8)
    narrow((1,), (256,), (b, c, I(4096)), outs=("y",)).raise_if_errors()
    assert np.array_equal(b, c)
    assert Module(source).names == ("one", "two")
    with pytest.raises(KeyError, match="no kernel 'three'; there are one, two"):
        Module(source).get_function("three")
    with pytest.raises(ValueError, match="declares no kernel"):
        Module("template <class T> __global__ void f(T* x) {}")


def test_constants_and_device_variables() -> None:
    source = r"""
    __constant__ float table[4] = {1, 2, 3, 4};
    __device__ int count;
    extern "C" __global__ void k(float* y, int n) {
        int t = threadIdx.x;
        y[t] = table[t % n];
        atomicAdd(&count, 1);
    }"""
    y = out(32)
    run(source, (1,), (32,), (y, I(4))).raise_if_errors()
    assert np.array_equal(y, np.arange(32) % 4 + 1)
    assert run(source, (1,), (32,), (y, I(5))).kinds == {FindingKind.UNDEFINED_BEHAVIOUR}


def test_names_that_libraries_of_the_process_have() -> None:
    """A kernel is itself, whatever else is called so."""
    source = 'extern "C" __global__ void getenv(float* y) { y[0] = 7; }'
    y = out(1)
    run(source, (1,), (1,), (y,), name="getenv").raise_if_errors()
    assert y[0] == 7


def test_options() -> None:
    source = 'extern "C" __global__ void k(int* y) { y[0] = FACTOR + __CUDA_ARCH__; }'
    y = out(1, dtype=np.int32)
    options = ("-DFACTOR=3", "--gpu-architecture=sm_90", "-std=c++17", "--fmad=false", "-lineinfo")
    RawKernel(source, "k", options)((1,), (1,), (y,)).raise_if_errors()
    assert y[0] == 903
    with pytest.raises(ValueError, match="does not know the compiler option '--gpu'"):
        RawKernel(source, "k", ("--gpu",))
    with pytest.raises(ValueError, match="mode is 'slow'"):
        RawKernel(source, "k", mode="slow")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="traced in mode 'check' only"):
        RawKernel(SCALE, "k", mode="fast")((1,), (64,), (X, Y, N), trace=True)


def test_headers() -> None:
    source = r"""#include <cstdint>
    #include <stdint.h>
    #include <limits.h>
    #include <float.h>
    #include <math.h>
    extern "C" __global__ void k(double* y, std::int64_t n) {
        y[0] = INT_MAX; y[1] = FLT_MAX; y[2] = n; y[3] = sqrt(2.0); y[4] = sqrt(2.0f);
    }"""
    y = out(5, dtype=np.float64)
    run(source, (1,), (1,), (y, 5)).raise_if_errors()
    limit = np.finfo(np.float32).max
    assert y.tolist() == [2**31 - 1, limit, 5, 2**0.5, float(np.sqrt(np.float32(2)))]
    with pytest.raises(EmulatorError, match=r"(?s)vector: No such file.*has cuda_fp16\.h"):
        run("#include <vector>\n" + source, (1,), (1,), (y, 5))


# ---------------------------------------------------------------------------- the compiler
@pytest.fixture
def fresh_compiler() -> Any:
    compiler.find_compiler.cache_clear()
    yield
    compiler.find_compiler.cache_clear()


def test_without_a_compiler(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    with pytest.raises(EmulatorError, match=r"no g\+\+ on the PATH; .*apt install g\+\+"):
        compiler.find_compiler()


@pytest.mark.parametrize("said", ["Apple clang version 15", "g++ 9.4 Free Software Foundation"])
def test_another_compiler(
    fresh_compiler: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    program = tmp_path / "g++"
    program.write_text(f'#!/bin/sh\n[ "$1" = -dumpversion ] && echo 9 || echo "{said}"\n')
    program.chmod(0o755)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: str(program))
    with pytest.raises(EmulatorError, match=r"g\+\+ 10 or newer; .* says"):
        compiler.find_compiler()


def test_another_machine(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.platform, "machine", lambda: "aarch64")
    with pytest.raises(EmulatorError, match="on Linux and x86-64"):
        compiler.find_compiler()


def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    source = f"// {tmp_path}\n{SCALE}"
    RawKernel(source, "k")
    compiler.library.cache_clear()
    commands: list[Any] = []
    monkeypatch.setattr(compiler, "_run", lambda *rest: commands.append(rest))
    RawKernel(source, "k")((1,), (64,), (X, Y, N)).raise_if_errors()
    assert commands == []
    (entry,) = tmp_path.glob("*/*.so")
    compiler.library.cache_clear()
    monkeypatch.undo()
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    entry.write_bytes(b"damaged")
    RawKernel(source, "k")((1,), (64,), (X, Y, N)).raise_if_errors()
    assert cache.directory() == tmp_path


def test_a_float4_stays_one_access() -> None:
    """Other versions of g++ might split it; then vector widths and alignment would be lost."""
    source = r"""extern "C" __global__ void k(const float* x, float* y) {
        int t = threadIdx.x;
        float4 v = ((const float4*)x)[t];
        v.x *= 2; v.y += v.z;
        ((float4*)y)[t] = make_float4(v.w, v.x, v.y, v.z);
    }"""
    x, y = numbers(128), out(128)
    report = run(source, (1,), (32,), (x, y), trace=True).raise_if_errors()
    assert [(site.array, site.bytes, site.requests) for site in report.sites] == [
        ("x", 16, 1),
        ("y", 16, 1),
    ]


def test_inline_ptx_needs_a_twin() -> None:
    ptx = 'asm volatile("st.global.b32 [%0], %1;" :: "l"(y), "r"(1) : "memory");'
    source = f'extern "C" __global__ void k(int* y) {{\n{ptx}\n}}'
    with pytest.raises(EmulatorError, match=r"(?s)kernel\.cu:2: Error.*#ifdef OPGEN_HOST_EMU"):
        RawKernel(source, "k")
    twin = f"\n#ifdef OPGEN_HOST_EMU\ny[0] = 1;\n#else\n{ptx}\n#endif\n"
    y = out(1, dtype=np.int32)
    run(replaced(source, ptx, twin), (1,), (1,), (y,), outs=("y",)).raise_if_errors()
    assert y[0] == 1


# ---------------------------------------------------------------------------- the process
def test_launches_of_several_threads() -> None:
    """Each host thread has shared memory of its own; the run time takes one launch at a time."""
    kernel, wrong = RawKernel(ROTATE, "k"), []

    def launch(seed: int) -> None:
        for _ in range(20):
            x, y = numbers(128, seed=seed), out(128)
            report = kernel((1,), (128,), (x, y))
            if report.findings or not np.array_equal(y, np.roll(x, -3)):
                wrong.append(report)

    threads = [threading.Thread(target=launch, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_process_keeps_its_signal_handlers() -> None:
    """A launch that crashes leaves the handlers of the process as they were."""
    program = """
import faulthandler, signal, sys, numpy
faulthandler.enable()
ticks = []
signal.signal(signal.SIGVTALRM, lambda *about: ticks.append(1))
from opgen.testing.cuda_on_cpu import RawKernel
source = 'extern "C" __global__ void k(float* y, long long n) { y[n] = 1; }'
report = RawKernel(source, "k", mode="fast")((1,), (1,), (numpy.zeros(4, "f"), 1 << 45))
print(len(report.findings))
signal.raise_signal(signal.SIGVTALRM)
print(len(ticks))
sys.stdout.flush()
import ctypes
ctypes.string_at(1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["1", "1"]
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
