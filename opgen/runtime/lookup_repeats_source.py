"""The C side of `library_repeats`: channels several times, and sums over the copies.

Cells of images in channels-last format are repeated one by one, whatever their channels: channel
`c` of a pixel stands `count` times where there was one.
"""

from __future__ import annotations

from opgen.runtime.library_repeats import MOST
from opgen.runtime.streams import PAGES

_INCLUDED = r"""
#ifdef __linux__
#include <sys/mman.h>
#endif
"""

_SOURCE = r"""
/* Cells of `bytes` each, so many times, or the sums of so many; some at a time as threads become
   free. A few are not worth waiting for a thread, which another program may have interrupted. */
enum { CELLS_AT_ONCE = 32768, FEW_CELLS = 1 << 20 };
typedef struct {
    const char *from;
    char *to;
    int64_t cells, count, bytes, is_summed, next;
} Repeats;

#define REPEAT(TYPE, COUNT) \
    static void TYPE##_repeat_##COUNT(const TYPE *restrict from, TYPE *restrict to, int64_t cells) \
    { \
        for (int64_t i = 0; i < cells; i++) \
            for (int k = 0; k < COUNT; k++) to[COUNT * i + k] = from[i]; \
    }
#define SUM(COUNT) \
    static void sum_##COUNT(const float *restrict from, float *restrict to, int64_t cells) \
    { \
        for (int64_t i = 0; i < cells; i++) { \
            float sum = from[COUNT * i]; \
            for (int k = 1; k < COUNT; k++) sum += from[COUNT * i + k]; \
            to[i] = sum; \
        } \
    }
KERNELS

static void take_cells(void *data)
{
    Repeats *all = data;
    for (;;) {
        const int64_t at = __atomic_fetch_add(&all->next, CELLS_AT_ONCE, __ATOMIC_RELAXED);
        const int64_t left = all->cells - at, here = left < CELLS_AT_ONCE ? left : CELLS_AT_ONCE;
        const int64_t many = all->count * all->bytes;
        if (here <= 0) return;
        const char *from = all->from + at * (all->is_summed ? many : all->bytes);
        char *to = all->to + at * (all->is_summed ? all->bytes : many);
        switch (4 * all->count + 2 * all->is_summed + (all->bytes == 2)) {
            CASES
        }
    }
}

static void repeat(
    const void *from, void *to, int64_t cells, int64_t count, int64_t bytes, int64_t is_summed)
{
    Repeats all = {from, to, cells, count, bytes, is_summed, 0};
    is_mapped(to, cells * bytes * (is_summed ? 1 : count), 1);
    take_all(take_cells, &all, cells * count <= FEW_CELLS);
}
"""


def source() -> str:
    """The text of `repeat`; before it stand <stdint.h> and the threads of `share_source`."""
    kernels, cases = [], []
    for count in range(2, MOST + 1):
        kernels += [f"REPEAT(uint16_t, {count})", f"REPEAT(uint32_t, {count})", f"SUM({count})"]
        for code, name, type_ in (
            (4 * count, f"uint32_t_repeat_{count}", "uint32_t"),
            (4 * count + 1, f"uint16_t_repeat_{count}", "uint16_t"),
            (4 * count + 2, f"sum_{count}", "float"),
        ):
            call = f"{name}((const {type_} *)from, ({type_} *)to, here)"
            cases.append(f"case {code}: {call}; break;")
    text = _SOURCE.replace("KERNELS", "\n".join(kernels))
    return _INCLUDED + PAGES + text.replace("CASES", "\n            ".join(cases))
