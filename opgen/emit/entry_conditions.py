"""What kernels are conditional on, as variables that a C entry sets for each call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from opgen.algebra.poly import Poly
from opgen.emit.c_layout import broken
from opgen.emit.entry_scope import EntryScope
from opgen.emit.expression import type_name
from opgen.emit.function import is_replaced
from opgen.emit.lane_pairs import hold_pairs
from opgen.emit.planes import HAVE
from opgen.emit.streams import stores_rows
from opgen.ir.loops import Blocks, Elements, Finite, Fitting, Kernel, Planes, Program, Short
from opgen.ir.primitives import Level

Condition = Finite | Blocks | Short | Planes | Fitting
"""What may be so in some calls only."""


def condition_sizes(condition: Condition, program: Program) -> Iterator[Poly]:
    """The integers that the variable of a condition is computed from, but for strides."""
    match condition:
        case Finite(tensor=tensor):
            yield from program.operand(tensor).extents
        case Blocks(extent=extent, together=together):
            yield from (extent, *(together or ()))
        case Short(extent=extent):
            yield extent
        case Fitting(stretches=stretches, extent=extent, together=together):
            yield from (stretches, extent, *together)
        case Planes():
            pass
        case unexpected:
            assert_never(unexpected)


def declare_flag(entry: EntryScope, kernel: Kernel, condition: Condition, streams: str) -> str:
    """The name of a variable that says whether the condition of a kernel holds; it is written now.

    `streams` is the variable that says whether the kernel's result goes past the caches, if it may.
    """
    match condition:
        case Finite(tensor=tensor):
            flag = entry.scope.fresh(f"{tensor}_is_finite")
            sizes, steps = entry.extents(tensor), entry.strides(tensor)
            entry.declare_array(f"const int64_t {flag}_sizes", sizes)
            entry.declare_array(f"const int64_t {flag}_steps", steps)
            arguments = f"{entry.tensor(tensor)}, {len(steps)}, {flag}_sizes, {flag}_steps"
            tests = [f"are_finite({arguments})"]
        case Blocks():
            flag = entry.scope.fresh("are_blocks" if condition.together is None else "is_one_pass")
            tests = list(_block_tests(entry, kernel, condition, streams))
        case Short():
            flag = entry.scope.fresh("is_short")
            tests = list(_short_tests(entry, condition))
        case Fitting():
            flag = entry.scope.fresh("is_one_pass")
            tests = list(_fitting_tests(entry, condition))
        case Planes():
            flag = entry.scope.fresh("are_planes")
            tests = list(_plane_tests(entry, condition, streams))
        case unexpected:
            assert_never(unexpected)
    entry.lines += broken(f"const int {flag} = {' && '.join(tests)};")
    return flag


def _block_tests(
    entry: EntryScope, kernel: Kernel, condition: Blocks, streams: str
) -> Iterator[str]:
    is_one = condition.together is not None
    if condition.is_paired:
        yield "PAIRED_LANES"
    if is_replaced(kernel) and isinstance(kernel.unless, Planes):
        yield f"!{HAVE[kernel.unless.elements]}"
    # Sums of pairs of vectors go by these in all passes.
    least = "LANES * (1 + PAIRED_LANES)" if is_one and hold_pairs(kernel) else "LANES"
    yield f"{entry.printer.poly(condition.extent).at(Level.RELATIONAL)} >= {least}"
    yield from _consecutive(entry, condition.tensors)
    if condition.together is not None:
        counts = (entry.printer.poly(each).text for each in condition.together)
        yield f"run_as_one({', '.join(counts)})"
    if condition.is_cached and streams:
        yield _goes_to_caches(entry, kernel, condition, streams)


def _goes_to_caches(entry: EntryScope, kernel: Kernel, condition: Blocks, streams: str) -> str:
    """Whether the results of blocks need not go past the caches, or can, as all are whole lines."""
    tensor = kernel.written
    own = (each for each in entry.program.kernels if each.only == condition)
    if not any(stores_rows(each, entry.program) for each in own):
        return f"!{streams}"
    operand = entry.program.operand(tensor)
    steps = " | ".join(entry.strides(tensor)[:-1])
    bytes_ = f" | (uintptr_t)({steps}) * sizeof({type_name(operand)})" if steps else ""
    extent = entry.printer.poly(condition.extent).at(Level.MULTIPLICATIVE)
    places = f"((uintptr_t){entry.tensor(tensor)}{bytes_}) % LINE == 0"
    lanes = "(2 * LANES)" if condition.is_paired else "LANES"
    return f"(!{streams} || (STORES_LINES && {places} && {extent} % {lanes} == 0))"


def _short_tests(entry: EntryScope, condition: Short) -> Iterator[str]:
    yield "HAVE_MASKS"
    yield f"{entry.printer.poly(condition.extent).at(Level.RELATIONAL)} <= {condition.most}"
    yield from (f"{entry.strides(tensor)[-1]} == 1" for tensor in condition.tensors)


def _fitting_tests(entry: EntryScope, condition: Fitting) -> Iterator[str]:
    poly = entry.printer.poly
    yield f"{poly(condition.stretches).at(Level.EQUALITY)} == 1"
    yield f"{poly(condition.extent).at(Level.RELATIONAL)} <= {condition.most}"
    yield from _consecutive(entry, condition.tensors)
    yield f"run_as_one({', '.join(poly(each).text for each in condition.together)})"


def _plane_tests(entry: EntryScope, condition: Planes, streams: str) -> Iterator[str]:
    yield HAVE[condition.elements]
    for tensor, dims in condition.tensors:
        step = 1
        extents, strides = entry.program.operand(tensor).extents, entry.strides(tensor)
        for at in range(1, dims + 1):
            if extents[-at] != 1:
                yield f"{strides[-at]} == {step}"
            step *= extents[-at].constant
    if condition.elements is Elements.STORED and streams:
        yield f"!{streams}"  # blocks go past the caches


def _consecutive(entry: EntryScope, tensors: Sequence[str]) -> Iterator[str]:
    """Whether neighbours in the last dims of tensors lie side by side, or one is absent."""
    for tensor in tensors:
        step = entry.strides(tensor)[-1]
        if entry.called_as.operand(tensor).optional:
            yield f"({step} == 1 || {step} == 0)"
        else:
            yield f"{step} == 1"
