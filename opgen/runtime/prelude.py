"""What every generated kernel may use: element types, conversions and integer functions.

The sources of a module name element types that a call makes concrete: `T`, the type of all tensors
declared without one, `T_NAME` for an integer tensor that may be i32 or i64, `real`, the floating
type of the call's arithmetic, and `wide`, the type in which elements of T are computed. `bindings`
defines them; it stands between the prelude and the source.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from opgen.runtime.cuda_source import CUDA
from opgen.runtime.functions_source import FUNCTIONS, bound
from opgen.runtime.lanes_source import lanes
from opgen.runtime.numbers_source import FAULT, INTEGERS, MATHEMATICS, NUMBERS
from opgen.runtime.share_source import CALL, FORKS, SHARES
from opgen.runtime.streams import PAGES, STREAMS
from opgen.runtime.zeros_source import ZEROS

_FLOATING = frozenset({"f16", "bf16", "f32", "f64"})

C = (
    r"""#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FUNCTION __attribute__((unused)) static inline
/* No loop with a call becomes vectors, and a compiler leaves calls where there are many. */
#define INLINE __attribute__((always_inline, unused)) static inline
/* One copy for each way of calling it: constant steps make better loops. */
#define KERNEL __attribute__((always_inline)) static inline
/* Steps in memory that differ from call to call are not worth vectors, which take long to make.
   In such a function gcc 12.2 lets an array on the stack begin at 8 bytes, and stores into it as if
   it began at 16, which ends the process: one that may be called with any stack aligns its own. */
#ifdef __clang__
#define ANY_STEPS __attribute__((noinline)) static
#elif defined __x86_64__
#define ANY_STEPS \
    __attribute__((noinline, force_align_arg_pointer, optimize("no-tree-vectorize"))) static
#else
#define ANY_STEPS __attribute__((noinline, optimize("no-tree-vectorize"))) static
#endif
#define LANE_BYTES 64
#if defined __clang__ || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (lane_numbers){__VA_ARGS__})
#endif
/* Into the second cache, for what is read much later: it waits for more lines at a time than the
   first. Where the memory answers at once, the first is up to a seventh quicker; where others keep
   it busy, it takes 1.2 to 1.7 times as long. */
#define FETCH(place) __builtin_prefetch(place, 0, 2)
/* For what is read so soon that the first cache still holds it: into that where it is one of 48 KB,
   as those of processors are whose first cache waits for many lines. Sums of shifted rows take 0.7
   to 0.9 of the time there, and with a first cache of 32 KB 1.2 to 1.5 times as long. */
#define FETCH_SOON(place) \
    (first_cache < 48 << 10 ? __builtin_prefetch(place, 0, 2) : __builtin_prefetch(place, 0, 3))
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define INDEPENDENT PRAGMA(clang loop vectorize(assume_safety))
#define INDEPENDENT_FEW INDEPENDENT
#else
#define INDEPENDENT PRAGMA(GCC ivdep)
/* The same of a loop of few rounds, that gcc 12 else writes out before it makes vectors: by then it
   no longer knows this, and adds one by one. */
#define INDEPENDENT_FEW PRAGMA(GCC ivdep) PRAGMA(GCC unroll 1)
#endif
/* Keeps a loop from becoming vectors. Loops around passes over rows must not: gcc 12 does it where
   the passes are short, and then loses all but one of the terms that it adds to a cell. */
#define NOT_A_VECTOR __asm__ volatile("")
#define IN_ANY_ORDER(...) PRAGMA(omp simd reduction(+ : __VA_ARGS__))
/* Terms of a sum that are computed before they are added, so many at a time. Where the sum is of
   another type than vectors are, one by one. */
enum { TERMS = 256 };
#define ADD_TERMS(total, lanes, terms, count) \
    if (__builtin_types_compatible_p(__typeof__(terms[0]), wide)) { \
        for (int64_t opgen_at = count; opgen_at % LANES; opgen_at++) terms[opgen_at] = 0; \
        for (int64_t opgen_at = 0; opgen_at < count; opgen_at += LANES) { \
            wide_lanes opgen_part; \
            memcpy(&opgen_part, terms + opgen_at, sizeof opgen_part); \
            lanes += opgen_part; \
        } \
    } else { \
        for (int64_t opgen_at = 0; opgen_at < count; opgen_at++) total += terms[opgen_at]; \
    }
/* Lanes share maxima or minima. Those of Clang begin at finite numbers, and would lose infinities;
   it makes no vectors of the loop without this. */
#ifdef __clang__
#define EXTREMES(...)
#else
#define EXTREMES(...) PRAGMA(omp simd __VA_ARGS__)
#endif
/* Where the best number of a row is, if it is better than `best`: what follows is done then. Its
   value comes first, then pieces that may have it; both take lanes. NaN wins, the first of them. */
enum { LONG_ROW = 32 };

/* How many terms of a row vectors add before these are added to others: with 16384 each a float
   keeps the digits that it has no more in a sum of millions. */
enum { STRETCH = 1 << 18 };
#define BEST_OF_ROW(TYPE, JOIN, SIGN, at, first, end, term, found, best) \
    int64_t at = first; \
    TYPE extreme = term; \
    int is_nan = 0; \
    EXTREMES(reduction(JOIN : extreme) reduction(| : is_nan)) \
    for (int64_t at = first; at < end; at++) { \
        const TYPE each = term; \
        extreme = each SIGN extreme ? each : extreme; \
        is_nan |= each != each; \
    } \
    const int is_better = !found || (is_nan ? best == best : extreme SIGN best); \
    while (is_better && end - at >= LONG_ROW) { \
        const int64_t from = at; \
        int is_here = 0; \
        PRAGMA(omp simd reduction(| : is_here)) \
        for (int64_t at = from; at < from + LONG_ROW; at++) { \
            const TYPE each = term; \
            is_here |= (each != each) | (!is_nan & (each == extreme)); \
        } \
        if (is_here) break; \
        at += LONG_ROW; \
    } \
    while (is_better && at < end - 1 && !(is_nan ? term != term : term == extreme)) at++; \
    if (is_better)
/* Threads may find faults at the same time: the first to come is reported. */
#define FIRST(fault, number) \
    __sync_bool_compare_and_swap(&(fault)[0], (int64_t)0, (int64_t)(number))
#ifdef __FLT16_MANT_DIG__
typedef _Float16 f16;
#define from_f16(cell) ((real)(cell))
#define to_f16(value) ((f16)(value))
#endif
"""
    + MATHEMATICS
    + NUMBERS
    + FUNCTIONS
    + INTEGERS
    + FAULT
    + PAGES
    + STREAMS
    + CALL
    + FORKS
    + SHARES
    + ZEROS
)

_INTEGER_FUNCTIONS = """
#undef fabs
#define fabs(value) ((value) < 0 ? -(value) : (value))
#define floor(value) (value)
#define ceil(value) (value)
#define rint(value) (value)
"""


def cuda(narrow: bool, whole: bool = False) -> str:
    """The prelude of CUDA sources. Indices have 32 bits if `narrow`, else 64.

    If `whole`, every grid has a thread for each of its points.
    """
    return _with_macros(CUDA, narrow, whole)


@functools.cache
def _with_macros(text: str, narrow: bool, whole: bool) -> str:
    """The same object for the same call: launches that look it up need not hash it again."""
    macros = "#define WHOLE_GRIDS\n" if whole else ""
    return f"#define index_t {'int32_t' if narrow else 'int64_t'}\n{macros}{text}"


def bindings(shared: str, real: str, integers: Mapping[str, str]) -> str:
    """Definitions of the element types of one call, such as `f32`; `real` is `f32` or `f64`."""
    is_floating = shared in _FLOATING
    names = {"real": real, "wide": real if is_floating else "i64", "T": shared}
    names |= {f"T_{tensor}": type_name for tensor, type_name in integers.items()}
    lines = []
    for name, type_name in names.items():
        lines.append(f"typedef {type_name} {name};")
        lines += [f"#define {name}_{end} {type_name}_{end}" for end in ("least", "greatest")]
    lines.append(f"typedef {'f64' if is_floating else 'i64'} wide_sum;")
    lines.append(f"#define from_T(cell) from_{shared}(cell)")
    lines.append(f"#define to_T(value) to_{shared}(value)")
    lines += ["#ifdef LANE_BYTES", *lanes(shared, names["wide"]), *bound(real), "#endif"]
    if not is_floating:
        lines += _INTEGER_FUNCTIONS.strip().split("\n")
    return "\n".join(lines) + "\n"
