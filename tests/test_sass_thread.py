"""What a thread executes: counts of known kernels, and the limits of generated ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache

import pytest
import torch

from opgen.runtime.cuda import KernelLaunch
from opgen.testing import nvrtc, sass
from opgen.testing.sass import Code
from opgen.testing.sass_thread import executed
from seed_kernels import ARCHITECTURE, WORKLOADS, Workload, launched, measured

# ---------------------------------------------------------------------------- generated kernels
# Instructions of an inner thread for an element of the result. Goals are in WORKLOADS.
LIMITS = {
    ("shift_sum", torch.float32): 46,
    ("depth_to_space", torch.float32): 3.7,
    ("depth_to_space", torch.bfloat16): 2.4,
    ("depthwise", torch.float32): 22.5,
    ("depthwise", torch.bfloat16): 23,
    ("transposed", torch.float32): 4.1,
    ("transposed", torch.bfloat16): 3.5,
    ("bilinear", torch.bfloat16): 7.4,
    ("unfold", torch.bfloat16): 1.7,
}
LIKE_OTHERS = [(name, torch.float32) for name in ("depth_to_space", "depthwise", "transposed")]
"""Their instructions are counted in another type at once."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.slow] if (name, dtype) in LIKE_OTHERS else [])
        for name, dtype in LIMITS
    ],
    ids=str,
)
def test_instructions_for_an_output(name: str, dtype: torch.dtype) -> None:
    (found,) = launched(WORKLOADS[name], dtype)
    line = measured(found, dtype.itemsize)
    assert line.for_an_output <= LIMITS[name, dtype] <= WORKLOADS[name].goal
    assert not line.spills


# Of the gradient for the filter: for one term of all nine taps together, what it takes to add up
# what 256 threads have after two stretches each included.
BACKWARD_LIMITS = {
    ("depthwise", "grad_weight", torch.float32): 29,
    ("depthwise", "grad_weight", torch.bfloat16): 30,
    ("transposed", "grad_x", torch.float32): 12,
    ("transposed", "grad_x", torch.bfloat16): 13,
    ("bilinear", "grad_x", torch.float32): 43,
    ("bilinear", "grad_x", torch.bfloat16): 55,
    ("unfold", "grad_x", torch.float32): 35,
    ("unfold", "grad_x", torch.bfloat16): 32,
}


OFTEN = {
    ("depthwise", "grad_weight", torch.bfloat16),
    ("bilinear", "grad_x", torch.bfloat16),
}


@pytest.mark.parametrize(
    ("name", "gradient", "dtype"),
    [
        pytest.param(*each, marks=() if each in OFTEN else pytest.mark.slow)
        for each in BACKWARD_LIMITS
    ],
    ids=str,
)
def test_instructions_of_gradients(name: str, gradient: str, dtype: torch.dtype) -> None:
    workload = WORKLOADS[name]
    found = launched(workload, dtype, backward=True)
    (of_gradient,) = (each for each in found if each[1].kernel.endswith(f"{gradient}_{gradient}"))
    line = measured(of_gradient, dtype.itemsize, math.prod(workload.shapes[0]))
    assert line.for_an_output <= BACKWARD_LIMITS[name, gradient, dtype]
    assert not line.spills


@pytest.mark.parametrize(
    ("dtype", "side", "limit"), [(torch.float32, 9, 39), (torch.bfloat16, 14, 41)], ids=str
)
def test_instructions_for_a_cell_of_a_plane(dtype: torch.dtype, side: int, limit: float) -> None:
    """A thread has one row of cells."""
    call = WORKLOADS["depthwise"].call
    shapes = ((8, 8, side, side), (8, 1, 3, 3))
    (found,) = launched(Workload(call, shapes, math.inf), dtype)
    assert f"#define planes_of_{found[1].kernel}" in found[0]
    line = measured(found, dtype.itemsize, 1)
    assert line.instructions / side <= limit
    assert not line.spills


# ---------------------------------------------------------------------------- the harness
def kernels(bodies: Iterable[str]) -> list[Code]:
    """Kernels with `long long` arguments a to c, in blocks of any size."""
    texts = [
        f'extern "C" __global__ void k{at}(const int *x, int *y, long long a_, long long b_, '
        f"long long c_) {{ const int a = a_, b = b_, c = c_; {body} }}\n"
        for at, body in enumerate(bodies)
    ]
    found = sass.disassemble(nvrtc.compile_cuda("".join(texts), ARCHITECTURE).cubin)
    return [found[f"k{at}"] for at in range(len(texts))]


@cache
def kernel(body: str) -> Code:
    return kernels([body])[0]


def way(code: Code, a: int = 0, b: int = 0, c: int = 0, thread: int = 0) -> list[str]:
    launch = KernelLaunch("k", (4, 1, 1), (64, 1, 1), (4096, 8192, a, b, c))
    found = executed(code, launch, (2, 0, 0), (thread, 0, 0))
    return [each.opcode.partition(".")[0] for each in found]


def test_turns_of_a_loop_are_counted() -> None:
    code = kernel('_Pragma("unroll 1") for (int i = 0; i < a; i++) y[i * b] = x[i * c];')
    five, seven, hundred = (way(code, a=turns, b=2, c=3) for turns in (5, 7, 100))
    assert (five.count("LDG"), seven.count("LDG"), hundred.count("STG")) == (5, 7, 100)
    turn = (len(seven) - len(five)) // 2
    assert len(hundred) == len(seven) + 93 * turn


def test_only_what_a_thread_executes_is_counted() -> None:
    code = kernel("if (blockIdx.x * blockDim.x + threadIdx.x >= a) return; y[threadIdx.x] = b;")
    assert way(code, a=2 * 64 + 8, thread=7).count("STG") == 1
    assert way(code, a=2 * 64 + 8, thread=8).count("STG") == 0


FORMULAS: dict[str, Callable[[int, int, int], int]] = {
    "a / 4 + b % 8": lambda a, b, c: int(a / 4) + b % 8,
    "a / 3 + (unsigned)b / 7": lambda a, b, c: int(a / 3) + b // 7,
    "min(a, b) + max(c, 3)": lambda a, b, c: min(a, b) + max(c, 3),
    "max(0, a + c) + min(a - b, 9) * 2": lambda a, b, c: max(0, a + c) + min(a - b, 9) * 2,
    "(a < b ? a : c * 5) + (a > 0 && b > c)": lambda a, b, c: (
        (a if a < b else c * 5) + (a > 0 and b > c)
    ),
    "(a << 2) - (b >> 1) + ((a ^ b) & 6)": lambda a, b, c: (a << 2) - (b >> 1) + ((a ^ b) & 6),
    "(a | c) + (~b & 12) + (a == 11)": lambda a, b, c: (a | c) + (~b & 12) + (a == 11),
}


def test_integers_are_computed() -> None:
    """As turns of a loop."""
    loop = "for (int i = 0; i < count; i++) *(volatile int *)y = x[i];"
    codes = kernels(f"const int count = {formula}; {loop}" for formula in FORMULAS)
    for code, formula in zip(codes, FORMULAS.values(), strict=True):
        for a, b, c in ((11, 6, 2), (29, 40, 1), (9, 5, 7)):
            expected = formula(a, b, c)
            assert expected > 0
            assert way(code, a, b, c).count("STG") == expected


def test_a_way_that_depends_on_memory_is_refused() -> None:
    code = kernel("if (x[a]) { for (int i = 0; i < b; i++) y[i * c] = x[i]; }")
    with pytest.raises(nvrtc.NvrtcError, match=r"k0: it is not known where .* goes"):
        way(code, a=1, b=9, c=1)


def test_a_way_without_end_is_refused() -> None:
    code = kernel('_Pragma("unroll 1") for (int i = 0; i < a; i++) y[i * b] = x[i];')
    with pytest.raises(nvrtc.NvrtcError, match="more than 100000 instructions"):
        way(code, a=2**30)
