"""Machine code of the kernels that matter most: accesses as wide as declared, registers, memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import pytest

from catalogue import SPECS
from opgen import compiler
from opgen.emit.cuda import cuda_source
from opgen.ir.context import facts_of
from opgen.ir.loops import Program
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.derive import derive
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.passes.specialise import attributes_of, default_values, specialise
from opgen.programs import for_gpu, special_threads
from opgen.runtime import prelude
from opgen.testing import nvrtc, sass


@dataclass(frozen=True)
class Case:
    """A kernel for particular values, and its accesses by their bytes."""

    stem: str
    kernel: str
    shared: str
    lanes: int
    loads: dict[int, int]
    stores: dict[int, int]
    values: dict[str, int] = field(default_factory=dict)


SHUFFLE = {"r": 2}
CONV = {"K": 3, "L": 3, "padding[0]": 1, "padding[1]": 1, "Ci": 1, "Co": 1, "groups": 32}
TRANSPOSED = {"K": 2, "L": 2, "stride[0]": 2, "stride[1]": 2, "Ci": 1, "Co": 1, "groups": 32}
UNFOLD = {f"kernel_size[{at}]": 3 for at in (0, 1)}
UNFOLD |= {f"{name}[{at}]": 1 for name in ("padding", "stride", "dilation") for at in (0, 1)}

CASES = {
    # Four cells of each of four planes; eight elements of each of two rows of output.
    "shuffle bf16": Case("depth_to_space", "depth_to_space_y", "bf16", 4, {8: 4}, {16: 2}, SHUFFLE),
    "shuffle f32": Case("depth_to_space", "depth_to_space_y", "f32", 2, {8: 4}, {16: 2}, SHUFFLE),
    "unshuffle bf16": Case(
        "depth_to_space", "depth_to_space_grad_x_grad_x", "bf16", 4, {16: 2}, {8: 4}, SHUFFLE
    ),
    # Of each of three rows four cells and one at either end; nine weights and a bias.
    "depthwise f32": Case("conv", "conv2d_y", "f32", 4, {16: 3, 4: 6 + 9 + 1}, {16: 1}, CONV),
    "depthwise bf16": Case("conv", "conv2d_y", "bf16", 4, {8: 3, 2: 6 + 9 + 1}, {8: 1}, CONV),
    "depthwise backward": Case(
        "conv", "conv2d_grad_x_grad_x", "f32", 4, {16: 3, 4: 6 + 9}, {16: 1}, CONV
    ),
    # Four weights and a bias for two rows.
    "transposed bf16": Case(
        "conv_transpose", "conv_transpose2d_y", "bf16", 4, {8: 1, 2: 5}, {16: 2}, TRANSPOSED
    ),
    # Of each of three rows four cells and one at either end; two rows of output.
    "bilinear bf16": Case(
        "upsample_bilinear", "upsample_bilinear_y", "bf16", 4, {8: 3, 2: 6}, {16: 2},
        {"scale_factor": 2},
    ),
    # Of each of three rows four cells and one at either end; nine shifted copies.
    "unfold f32": Case("unfold", "unfold_y", "f32", 4, {16: 3, 4: 6}, {16: 9}, UNFOLD),
}  # fmt: skip

PIXELS = {
    # Four channels of one pixel of each block; of each of four pixels of each block.
    "CRD": (
        8,
        Case("depth_to_space", "depth_to_space_y", "bf16", 4, {2: 32}, {8: 8}, {"r": 4}),
    ),
    "CRD back": (
        8,
        Case("depth_to_space", "space_to_depth_y", "f32", 4, {16: 8}, {4: 32}, {"r": 4}),
    ),
    "DCR back": (
        4,
        Case(
            "depth_to_space", "space_to_depth_y", "f32", 4, {16: 16}, {16: 16}, {"r": 4, "mode": 1}
        ),
    ),
}
"""Kernels for images in channels-last format, and how many rows of cells a thread has."""


def program(case: Case, layout: int = 0) -> Program:
    """The threads of the op that has the kernel, for the values of the case and that layout."""
    ops = compiler.check_source(compiler.read_source(SPECS / f"{case.stem}.op"))
    for member in derive(ops, 1):
        known = {*member.op.sizes, *attributes_of(member.op)}
        values = {**(default_values(member.op) or {}), **case.values}
        values = {n: v for n, v in values.items() if n in known}
        if layout:
            found, _, _ = special_threads(for_gpu(member.op), values, layout)
        else:
            special = specialise(member.op, values)
            found = cuda_rows(schedule(special, gather(special)), facts_of(special))
        if any(kernel.name == case.kernel for kernel in found.kernels):
            return found
    raise AssertionError(f"no op has a kernel {case.kernel}")


def source(cases: Iterable[Case], narrow: bool, layout: int = 0) -> str:
    """Their kernels, each op in a namespace."""
    parts = [prelude.cuda(narrow)]
    for number, case in enumerate(cases):
        parts.append(f"#define lanes_of_{case.kernel} {case.lanes}\nnamespace op_{number} {{\n")
        parts.append(
            prelude.bindings(case.shared, "f32", {}) + cuda_source(program(case, layout)) + "}\n"
        )
    return "".join(parts)


@cache
def compiled_together(shared: str, architecture: str, narrow: bool) -> nvrtc.Compilation:
    """The kernels of all cases of a type: the disassembler takes as long to start as to work."""
    cases = [case for case in CASES.values() if case.shared == shared]
    return nvrtc.compile_cuda(source(cases, narrow), architecture)


@cache
def disassembled(shared: str, architecture: str, narrow: bool) -> dict[str, sass.Code]:
    return sass.disassemble(compiled_together(shared, architecture, narrow).cubin)


def code_of(case: Case, architecture: str = "sm_90", narrow: bool = True) -> sass.Code:
    return disassembled(case.shared, architecture, narrow)[case.kernel]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_accesses_are_as_wide_as_declared(name: str) -> None:
    case = CASES[name]
    code = code_of(case)
    assert code.widths("LDG") == Counter(case.loads)
    assert code.widths("STG") == Counter(case.stores)
    assert not code.uses_local_memory
    (use,) = (
        each
        for each in compiled_together(case.shared, "sm_90", True).kernels
        if each.name == case.kernel
    )
    assert not use.spills
    assert use.registers <= 80  # three blocks of 256 threads on a multiprocessor


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_100"])
@pytest.mark.parametrize("name", CASES)
def test_other_architectures(name: str, architecture: str) -> None:
    case = CASES[name]
    code = code_of(case, architecture)
    assert max(code.widths("STG")) == max(case.stores)
    assert max(code.widths("LDG")) == max(case.loads)
    assert not code.uses_local_memory


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        name if case.shared == "bf16" else pytest.param(name, marks=pytest.mark.slow)
        for name, case in CASES.items()
    ],
)
def test_indices_of_64_bits(name: str) -> None:
    case = CASES[name]
    code = code_of(case, narrow=False)
    assert code.widths("STG") == Counter(case.stores)
    assert not code.uses_local_memory


@pytest.mark.parametrize("name", PIXELS)
def test_blocks_of_pixels(name: str) -> None:
    """Short axes beside the channels are threads, which have several rows of cells each."""
    rows, case = PIXELS[name]
    text = f"#define rows_of_{case.kernel} {rows}\n" + source([case], narrow=True, layout=3)
    compiled = nvrtc.compile_cuda(text, "sm_90")
    code = sass.disassemble(compiled.cubin)[case.kernel]
    assert code.widths("LDG") == Counter(case.loads)
    assert code.widths("STG") == Counter(case.stores)
    (use,) = (each for each in compiled.kernels if each.name == case.kernel)
    assert not use.spills
    assert use.registers <= 128  # two blocks of 256 threads on a multiprocessor


def test_multiply_adds_are_fused() -> None:
    """Nine for each of four cells, and no product by itself."""
    code = code_of(CASES["depthwise f32"])
    assert (code.count("FFMA"), code.count("FMUL")) == (4 * 9, 0)


def loops(code: sass.Code) -> list[list[str]]:
    """The kinds of instructions of each innermost loop: up to a branch back to where it begins."""
    ends: dict[int, int] = {}
    for at, each in enumerate(code.instructions):
        found = re.search(r"\.L_x_\d+", each.operands) if each.opcode == "BRA" else None
        if found and code.labels[found[0]] < at:
            ends[code.labels[found[0]]] = at
    inner = [
        (first, last)
        for first, last in ends.items()
        if not any(first < other and ends[other] < last for other in ends)
    ]
    kinds = [each.opcode.partition(".")[0] for each in code.instructions]
    return [kinds[first : last + 1] for first, last in inner]


def test_divisors_that_stay_are_inverted_before_the_loop() -> None:
    """What goes on in loops that load are products: four for each of two cells of several terms."""
    kernel = "shift_sum_pinv_grad_mask_grad_mask"
    case = Case("shift_sum", kernel, "f32", 2, {}, {}, {"step": 2})
    text = f"#define proved_lanes_of_{kernel} 1\n" + source([case], narrow=True)
    code = sass.disassemble(nvrtc.compile_cuda(text, "sm_90").cubin)[kernel]
    assert code.count("MUFU") > 0
    assert max(kinds.count("FMUL") for kinds in loops(code)) >= 4 * 2 * 2
    assert not any("MUFU" in kinds for kinds in loops(code) if "LDG" in kinds)


# ---------------------------------------------------------------------------- the harness
NARROW = """
extern "C" __global__ void bytes(const char *x, char *y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void words(const uint4 *x, uint4 *y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void local(float *x, int n)
{
    float values[400];
    for (int i = 0; i < 400; i++) values[i] = x[i * n];
    for (int k = 0; k < n; k++)
        for (int i = 0; i < 400; i++) values[i] = values[i] * values[(i * 7 + k) % 400] + k;
    for (int i = 0; i < 400; i++) x[i * n] = values[i];
}
"""


def test_what_is_read_from_machine_code() -> None:
    """Negative control: narrow accesses and memory of a thread are seen."""
    found = sass.disassemble(nvrtc.compile_cuda(NARROW, "sm_90").cubin)
    assert set(found) == {"bytes", "words", "local"}
    assert found["bytes"].widths("LDG") == Counter({1: 1})
    assert found["bytes"].widths("STG") == Counter({1: 1})
    assert found["words"].widths("LDG") == Counter({16: 1})
    assert found["local"].uses_local_memory
    assert not found["words"].uses_local_memory


def test_one_cell_a_thread_has_narrow_accesses() -> None:
    case = CASES["shuffle f32"]
    one = Case(case.stem, case.kernel, case.shared, 1, {}, {}, case.values)
    alone = nvrtc.compile_cuda(source([one], narrow=True), "sm_90")
    code = sass.disassemble(alone.cubin)[case.kernel]
    assert set(code.widths("LDG")) == {4}


def test_what_is_no_machine_code() -> None:
    with pytest.raises(nvrtc.NvrtcError, match="nvdisasm"):
        sass.disassemble(b"nonsense")
