"""C functions by which an entry looks at its inputs, and copies them, and those of copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opgen.emit import frames, moves
from opgen.emit.coarse import coarse
from opgen.emit.expression import type_name
from opgen.ir.loops import Finite, Program

Orders = Mapping[str, tuple[int, ...]]
"""The axes of tensors whose dims stand in another order in a special program."""

_ARE_FINITE: Final = """
/* Whether all elements of a tensor are finite; dims that lie one behind the other count as one. */
static int are_finite(const T *data, int rank, const int64_t *sizes, const int64_t *steps)
{
    int64_t size = 1, step = 1, rows = 1;
    int finite = 1;
    if (rank > 0) size = sizes[--rank], step = steps[rank];
    while (rank > 0 && steps[rank - 1] == size * step) size *= sizes[--rank];
    for (int axis = 0; axis < rank; axis++) rows *= sizes[axis];
    for (int64_t row = 0; row < rows; row++) {
        const T *first = data;
        int64_t rest = row;
        for (int axis = rank - 1; axis >= 0; axis--) {
            first += rest % sizes[axis] * steps[axis];
            rest /= sizes[axis];
        }
        if (step == 1)
            for (int64_t at = 0; at < size; at++) finite &= from_T(first[at]) * 0 == 0;
        else
            for (int64_t at = 0; at < size; at++) finite &= from_T(first[at * step]) * 0 == 0;
    }
    return finite;
}
"""

_HAS_COARSE: Final = """
/* Whether elements lie one behind the other, `most` of them at most, and all are coarse: zero, or
   not so small that products of two are subnormal. What repeats itself counts as one. */
static int has_coarse(
    const T *data, int rank, const int64_t *sizes, const int64_t *steps, int64_t most)
{
#if ROUNDS_AT_ONCE
    int64_t size = 1;
    uint16_t least_word = 0xffff;
    for (int axis = rank - 1; axis >= 0; axis--) {
        if (sizes[axis] == 0 || size > most) return 0;
        if (sizes[axis] == 1 || steps[axis] == 0) continue;
        if (steps[axis] != size) return 0;
        size *= sizes[axis];
    }
    if (size > most) return 0;
    for (int64_t at = 0; at < size; at++) {
        const uint16_t word = (uint16_t)(2 * data[at].bits - 1);
        least_word = word < least_word ? word : least_word;
    }
    return least_word >= LEAST_COARSE >> 16;
#else
    (void)data, (void)rank, (void)sizes, (void)steps, (void)most;
    return 0;
#endif
}
"""

_CONSECUTIVE: Final = """
/* A tensor of a call replaced by a copy whose last dim is consecutive. 0 where it is so already, or
   the tensor has more than `most` elements, or there is no memory: the tensor is then as it was.
   Its strides stand at `places` of n. */
static void *consecutive(
    void **tensor, int64_t *n, int rank, const int64_t *sizes, const int *places, int64_t most)
{
    const T *data = *tensor;
    const int64_t size = sizes[rank - 1], step = n[places[rank - 1]];
    int64_t rows = 1, next = 1;
    T *copy;
    for (int axis = 0; axis < rank - 1; axis++) rows *= sizes[axis];
    if (step == 1 || rows * size == 0 || rows * size > most) return 0;
    copy = malloc(rows * size * sizeof(T));
    if (!copy) return 0;
    for (int64_t row = 0; row < rows; row++) {
        const T *first = data;
        int64_t rest = row;
        for (int axis = rank - 2; axis >= 0; axis--) {
            first += rest % sizes[axis] * n[places[axis]];
            rest /= sizes[axis];
        }
        for (int64_t at = 0; at < size; at++) copy[row * size + at] = first[at * step];
    }
    for (int axis = rank - 1; axis >= 0; axis--) n[places[axis]] = next, next *= sizes[axis];
    *tensor = copy;
    return copy;
}
"""


def entry_helpers(program: Program, orders: Orders) -> tuple[str, ...]:
    """The lines of the functions that an entry calls."""
    text = ""
    if any(isinstance(kernel.only, Finite) for kernel in program.kernels):
        text += _ARE_FINITE
    if copied_inputs(program, orders):
        text += _CONSECUTIVE
    if any(coarse(kernel, program) is not None for kernel in program.kernels):
        text += _HAS_COARSE
    if any(map(moves.has_moves, program.kernels)):
        text += "\n" + moves.helpers()
    if any(map(frames.has_frames, program.kernels)):
        text += "\n" + frames.helpers()
    return tuple(text.rstrip().split("\n")) if text else ()


def copied_inputs(program: Program, orders: Orders) -> tuple[str, ...]:
    """The inputs that a kernel reads along their first dim: small ones are worth a copy."""
    written = {kernel.written for kernel in program.kernels}
    return tuple(
        name
        for name, order in orders.items()
        if order[-1] == 0 and name not in written and type_name(program.operand(name)) == "T"
    )
