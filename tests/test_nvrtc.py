"""Generated CUDA through NVIDIA's own compiler: every kernel is accepted, and none spills."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest

from catalogue import SPECS
from opgen import compiler
from opgen.emit.cuda import cuda_source
from opgen.emit.cuda_chain import ChainFunction, chain_function
from opgen.emit.cuda_runs import values_of_cell
from opgen.emit.cuda_sums import stretched
from opgen.emit.types import Types
from opgen.errors import Source
from opgen.ir.loops import Program
from opgen.ir.notation import DType
from opgen.ir.sums import box_sum
from opgen.runtime import cuda_grid, prelude
from opgen.testing import nvrtc

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
STEMS = sorted(
    (path.stem for path in SPECS.glob("*.op")), key=lambda stem: stem != "local_attention"
)
"""The one that takes by far the longest is first: processes that share tests end at one time."""


# ---------------------------------------------------------------------------- sources
@cache
def programs(text: str) -> tuple[Program, ...]:
    """The ops of a spec and their gradients up to order two, as kernels."""
    stages = compiler.stages(Source(text))
    (found,) = (stage.value for stage in stages if stage.name == "cuda")
    assert isinstance(found, tuple)
    return found


def source(ops: tuple[Program, ...], shared: str, narrow: bool = True) -> str:
    """All kernels as one source, each op in a namespace, where `shared` is the undeclared type."""
    real = "f64" if shared == "f64" else "f32"
    parts = [prelude.cuda(narrow)]
    for number, program in enumerate(ops):
        integers = {each.name: "i64" for each in program.operands if each.dtype is DType.INT}
        bindings = prelude.bindings(shared, real, integers)
        chains = "".join(each.text for each in chains_of(program))
        parts.append(f"namespace op_{number} {{\n{bindings}{cuda_source(program)}{chains}\n}}\n")
    return "".join(parts)


def chains_of(program: Program) -> list[ChainFunction]:
    return [chain_function(each, program, Types(program), {}) for each in program.chains]


def check(ops: tuple[Program, ...], shared: str, architecture: str, narrow: bool = True) -> None:
    """Compile, and refuse a kernel that is missing or spills."""
    compiled = nvrtc.compile_cuda(source(ops, shared, narrow), architecture)
    names = {kernel.name for kernel in compiled.kernels}
    chains = {each.name for program in ops for each in program.chains}
    assert names == {kernel.name for program in ops for kernel in program.kernels} | chains
    assert compiled.cubin.startswith(b"\x7fELF")
    spilling = [kernel for kernel in compiled.kernels if kernel.spills]
    assert not spilling, (shared, architecture)


def spec_text(stem: str) -> str:
    return Path(SPECS / f"{stem}.op").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------- every spec
@pytest.mark.slow
@pytest.mark.parametrize("stem", STEMS)
def test_every_kernel(stem: str) -> None:
    """One test for all types: to make the kernels takes as long as to compile them twice."""
    ops = programs(spec_text(stem))
    for shared, architecture in itertools.product(("f32", "bf16", "f64"), ARCHITECTURES):
        check(ops, shared, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("stem", ["conv", "pool", "shift_sum", "softmax"])
def test_float16(stem: str) -> None:
    check(programs(spec_text(stem)), "f16", "sm_90")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("stem", ["shift_sum", "depth_to_space", "embedding", "unfold"])
@pytest.mark.parametrize("shared", ["f32", "bf16", "f16", "f64"])
def test_some_kernels(stem: str, shared: str) -> None:
    check(programs(spec_text(stem)), shared, "sm_80")


@pytest.mark.parametrize(
    "stem", [pytest.param("conv_transpose", marks=pytest.mark.slow), "softmax"]
)
def test_indices_of_64_bits(stem: str) -> None:
    check(programs(spec_text(stem)), "f32", "sm_90", narrow=False)


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "lanes"), [("bf16", 8), ("f64", 2)])
@pytest.mark.parametrize("stem", ["norm", "pad", "pool", "upsample_bicubic"])
def test_threads_of_many_cells(stem: str, shared: str, lanes: int) -> None:
    """Kernels with the most cells that a launch would give a thread; those alone."""
    ops = programs(spec_text(stem))
    macros = []
    for program in ops:
        for kernel in program.kernels:
            box = box_sum(kernel, program.integers)
            thread = kernel if box is None else stretched(kernel, box, program)
            if thread.row is not None:
                macros.append(f"#define lanes_of_{kernel.name} {lanes}\n")
            if thread.group is not None:
                registers = cuda_grid.registers(shared)
                values, most = lanes * values_of_cell(thread), cuda_grid.most_rows(registers)
                rows = cuda_grid.rows((2**10, 2**10, 2**10), values * registers, most)
                macros.append(f"#define rows_of_{kernel.name} {rows}\n")
    compiled = nvrtc.compile_cuda("".join(dict.fromkeys(macros)) + source(ops, shared), "sm_90")
    assert not [kernel for kernel in compiled.kernels if kernel.spills]


INTEGERS = """
op steps(x[N], id: int[N], seen: bool[N]) -> y[N], at: i64[1], any: bool[N]
  y[n] = abs(x[n]) - 2*x[id[n]] + sign(x[n])  if seen[n]
  at[0] = argmax(n) x[n]
  any[id[n]] += 1
"""

FUNCTIONS = """
op functions(x: float[N], w[N]) -> y[N], z[N]
  y[n] = exp(x[n]) + expm1(x[n]) + log(x[n]) + log1p(x[n]) + sqrt(x[n]) + rsqrt(x[n]) + sin(x[n])
      + cos(x[n]) + tan(x[n]) + tanh(x[n]) + erf(x[n]) + sigmoid(x[n]) + gelu(x[n]) + silu(x[n])
      + softplus(x[n]) + floor(x[n]) + ceil(x[n]) + round(x[n]) + relu(x[n]) + abs(x[n])
  z[n] = x[n]**w[n] + min(x[n], w[n]) * max(x[n], w[n]) / select(x[n] > 0 and w[n] > 0, x[n], inf)
"""


@pytest.mark.parametrize("shared", ["u8", "i8", "i16", "i32", "i64", "f32", "bf16"])
def test_integers_and_atomic_additions(shared: str) -> None:
    forward, *_ = programs(INTEGERS)
    check((forward,), shared, "sm_80")


@pytest.mark.parametrize("shared", ["f32", "f64", "f16"])
def test_every_function(shared: str) -> None:
    """The trigonometric functions of large angles need a little memory for each thread."""
    forward, *_ = programs(FUNCTIONS)
    compiled = nvrtc.compile_cuda(source((forward,), shared), "sm_80")
    assert len(compiled.kernels) == 2
    for kernel in compiled.kernels:
        assert (kernel.spill_stores, kernel.spill_loads) == (0, 0)


# ---------------------------------------------------------------------------- the harness
SPILLING = """
extern "C" __global__ void crowded(float *x, int n)
{
    float values[400];
    for (int i = 0; i < 400; i++) values[i] = x[i * n];
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 400; i++) values[i] = values[i] * values[(i * 7 + k) % 400] + k;
    for (int i = 0; i < 400; i++) x[i * n] = values[i];
}
extern "C" __global__ void __launch_bounds__(1024, 2) bounded(float *x, int n)
{
    float a[64];
    #pragma unroll
    for (int i = 0; i < 64; i++) a[i] = x[i * n];
    for (int k = 0; k < n; k++)
        #pragma unroll
        for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i * 7 + 3) % 64] + k;
    #pragma unroll
    for (int i = 0; i < 64; i++) x[i * n] = a[i];
}
extern "C" __global__ void roomy(float *x) { x[threadIdx.x] += 1; }
"""


def test_a_kernel_that_spills_is_reported() -> None:
    """Negative control, once with an array of a thread and once with registers."""
    kernels = {kernel.name: kernel for kernel in nvrtc.compile_cuda(SPILLING, "sm_80").kernels}
    assert kernels["crowded"].stack >= 1600
    assert kernels["bounded"].spill_stores > 0
    assert kernels["bounded"].spill_loads > 0
    assert kernels["bounded"].registers <= 32
    assert [kernels[name].spills for name in ("crowded", "bounded", "roomy")] == [True, True, False]


def test_a_source_that_is_refused_says_why() -> None:
    text = source(programs(spec_text("roll")), "f32").replace("int64_t rest", "int64_t", 1)
    with pytest.raises(nvrtc.NvrtcError, match=r"(?s)sm_80: kernels\.cu\(\d+\): error"):
        nvrtc.compile_cuda(text, "sm_80")
    with pytest.raises(nvrtc.NvrtcError, match="sm_1"):
        nvrtc.compile_cuda("", "sm_1")


def test_a_report_that_is_not_understood_is_an_error() -> None:
    log = nvrtc.compile_cuda(SPILLING, "sm_80").log
    with pytest.raises(nvrtc.NvrtcError, match="not understood"):
        nvrtc.kernel_uses(log.replace("spill stores", "spilled"))


def test_without_the_packages_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    nvrtc._library.cache_clear()
    try:
        with pytest.raises(nvrtc.NvrtcError, match=r"pip install 'opgen\[nvrtc\]'"):
            nvrtc.compile_cuda("", "sm_80")
    finally:
        nvrtc._library.cache_clear()
