"""What every generated kernel may use: element types, conversions and integer functions.

The sources of a module name element types that a call makes concrete: `T`, the type of all tensors
declared without one, `T_NAME` for an integer tensor that may be i32 or i64, `real`, the floating
type of the call's arithmetic, and `wide`, the type in which elements of T are computed. `bindings`
defines them; it stands between the prelude and the source.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from opgen.runtime.half_lanes import bf16_lanes, f16_lanes
from opgen.runtime.streams import STREAMS

_FLOATING = frozenset({"f16", "bf16", "f32", "f64"})

_SHARED = r"""
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef uint8_t u8;
typedef uint8_t b8;
typedef float f32;
typedef double f64;
typedef struct { uint16_t bits; } bf16;

#define i8_least (-128)
#define i8_greatest 127
#define i16_least (-32768)
#define i16_greatest 32767
#define i32_least (-2147483647 - 1)
#define i32_greatest 2147483647
#define i64_least (-9223372036854775807LL - 1)
#define i64_greatest 9223372036854775807LL
#define u8_least 0
#define u8_greatest 255
#define b8_least 0
#define b8_greatest 1
#define f16_least (-INFINITY)
#define f16_greatest INFINITY
#define bf16_least (-INFINITY)
#define bf16_greatest INFINITY
#define f32_least (-INFINITY)
#define f32_greatest INFINITY
#define f64_least (-INFINITY)
#define f64_greatest INFINITY

#define from_i8(cell) ((int64_t)(cell))
#define from_i16(cell) ((int64_t)(cell))
#define from_i32(cell) ((int64_t)(cell))
#define from_i64(cell) (cell)
#define from_u8(cell) ((int64_t)(cell))
#define from_b8(cell) ((int64_t)(cell))
#define from_f32(cell) ((real)(cell))
#define from_f64(cell) ((real)(cell))
#define from_bf16(cell) ((real)bf16_to_f32(cell))
#define to_i8(value) ((int8_t)(value))
#define to_i16(value) ((int16_t)(value))
#define to_i32(value) ((int32_t)(value))
#define to_i64(value) ((int64_t)(value))
#define to_u8(value) ((uint8_t)(value))
#define to_b8(value) ((value) != 0)
#define to_f32(value) ((float)(value))
#define to_f64(value) ((double)(value))
#define to_bf16(value) (bf16_from_f32((float)(value)))

FUNCTION float bf16_to_f32(bf16 value)
{
#if !defined OPGEN_HOST_EMU && defined __CUDA_ARCH__
    float wide;  /* one instruction, also for the upper half of a register */
    asm("mov.b32 %0, {%1, %2};" : "=f"(wide) : "h"((uint16_t)0), "h"(value.bits));
    return wide;
#else
    union { uint32_t bits; float value; } out;
    out.bits = (uint32_t)value.bits << 16;
    return out.value;
#endif
}

/* Rounds to nearest, ties to even; a NaN stays one. */
FUNCTION bf16 bf16_from_f32(float value)
{
#if !defined OPGEN_HOST_EMU && defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    bf16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
    return rounded;
#else
    union { float value; uint32_t bits; } in;
    bf16 out;
    in.value = value;
    if (value != value) out.bits = 0x7fc0;
    else out.bits = (uint16_t)((in.bits + 0x7fff + (in.bits >> 16 & 1)) >> 16);
    return out;
#endif
}

FUNCTION int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a < 0 ? -a : a;
}

/* The x in [0, n) with a * x % n == 1 % n: extended Euclid. 0 where there is none. */
FUNCTION int64_t modular_inverse(int64_t a, int64_t n)
{
    int64_t r = n, next_r, x = 0, next_x = 1;
    if (n <= 1) return 0;
    next_r = a % n < 0 ? a % n + n : a % n;
    while (next_r != 0) {
        const int64_t quotient = r / next_r;
        const int64_t rest = r - quotient * next_r, next = x - quotient * next_x;
        r = next_r;
        next_r = rest;
        x = next_x;
        next_x = next;
    }
    if (r != 1) return 0;
    return x < 0 ? x + n : x;
}

"""

_INTEGERS = r"""
/* Floor of a / b. It is total, since launch constants are computed before it is known whether they
   mean anything: 0 where b is not positive. */
FUNCTION int64_t floor_div(int64_t a, int64_t b)
{
    if (b <= 0) return 0;
    return a / b - (a % b < 0);
}

FUNCTION int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
FUNCTION int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

FUNCTION int inside(int64_t index, int64_t extent) { return 0 <= index && index < extent; }
"""

_FAULT = r"""
/* For an index read from a tensor: an index outside is remembered, and the caller raises. */
FUNCTION int inside_or_fault(int64_t index, int64_t extent, int64_t number, int64_t *fault)
{
    if (0 <= index && index < extent) return 1;
    if (FIRST(fault, number)) {
        fault[1] = index;
        fault[2] = extent;
    }
    return 0;
}
"""

_CALL = r"""
/* What a call is made with, whether the kernel that runs writes past the caches, and the copy that
   is made instead of one, if any. A task runs the points [begin, end). */
struct move;
struct call {
    void *const *tensors;
    const int64_t *integers;
    const double *numbers;
    int64_t *fault;
    int streams;
    const struct move *move;
    const struct call *guest;
};
typedef void (*task)(int64_t begin, int64_t end, const struct call *call);
"""

FORKS = r"""
/* Threads are those of torch: its OpenMP runtime, where it is loaded. Weak symbols, so that a
   library without it is loaded too and runs on one thread. */
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));

/* A child of a fork has no threads but its own: entering the parent's pool would hang. A library
   that is loaded in the child sees no fork, and is told. */
static int is_child;
static void in_child(void) { is_child = 1; }
__attribute__((weak)) void opgen_in_child(void) { is_child = 1; }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, in_child); }
"""
"""The threads of PyTorch, for C that includes <pthread.h>."""

_SHARES = r"""
/* Neighbouring points, of which a thread takes chunks; each share has a line of memory. */
struct share {
    int64_t next, end;
} __attribute__((aligned(64)));
enum { MOST_SHARES = 64 };
struct shares {
    task run;
    const struct call *call;
    int64_t chunk, count;
    struct share *shares;
};

/* A thread begins with its own share: in the next call, and in PyTorch's kernels, the same part of
   a tensor is with the same thread, in whose caches it is, and whose table of pages knows it. Then
   it takes what others have left of theirs. */
static void take_chunks(void *data)
{
    const struct shares *const all = data;
    const int64_t own = omp_get_thread_num ? omp_get_thread_num() : 0;
    for (int64_t at = 0; at < all->count; at++) {
        struct share *const share = all->shares + (own + at) % all->count;
        for (;;) {
            const int64_t begin = __atomic_fetch_add(&share->next, all->chunk, __ATOMIC_RELAXED);
            if (begin >= share->end) break;
            all->run(begin, least(begin + all->chunk, share->end), all->call);
        }
    }
    if (all->call->streams || all->call->guest) FENCE();
}

/* Whether a kernel with that many points runs those of another within them: each thread must have
   enough of them. */
FUNCTION int run_as_one(int64_t points, int64_t others)
{
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    if (points <= 0) return 0;
    return points >= others || points >= 4 * threads || threads <= 1 || is_child || !GOMP_parallel;
}

/* Points in chunks, taken as threads become free; small work is not worth waking a thread. Two
   points may be a lot of it: sums over all images, for half of the channels each. */
static void in_parallel(task run, const struct call *call, int64_t points, int64_t work)
{
    const int64_t grain = greatest(16384 / greatest(work, 1), 1);
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    if (points <= 0) return;
    if (threads <= 1 || is_child || !GOMP_parallel || points < 2 * grain) {
        run(0, points, call);
        if (call->streams || call->guest) FENCE();
        return;
    }
    struct share shares[MOST_SHARES];
    struct shares all = {run, call, greatest(grain, points / (threads * 16)), 0, shares};
    all.count = least(threads, MOST_SHARES);
    for (int64_t at = 0; at < all.count; at++) {
        shares[at].next = at * points / all.count;
        shares[at].end = (at + 1) * points / all.count;
    }
    GOMP_parallel(take_chunks, &all, threads, 0);
}
"""

C = (
    r"""#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <tgmath.h>

#define FUNCTION __attribute__((unused)) static inline
/* One copy for each way of calling it: constant steps make better loops. */
#define KERNEL __attribute__((always_inline)) static inline
/* Steps in memory that differ from call to call are not worth vectors, which take long to make. */
#ifdef __clang__
#define ANY_STEPS __attribute__((noinline)) static
#else
#define ANY_STEPS __attribute__((noinline, optimize("no-tree-vectorize"))) static
#endif
#define LANE_BYTES 64
#if defined __clang__ || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (lane_numbers){__VA_ARGS__})
#endif
#define FETCH(place) __builtin_prefetch(place, 0, 2)
#define FETCH_NEAR(place) __builtin_prefetch(place, 0, 3)
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define INDEPENDENT PRAGMA(clang loop vectorize(assume_safety))
#else
#define INDEPENDENT PRAGMA(GCC ivdep)
#endif
/* Keeps a loop from becoming vectors. Loops around passes over rows must not: gcc 12 does it where
   the passes are short, and then loses all but one of the terms that it adds to a cell. */
#define NOT_A_VECTOR __asm__ volatile("")
#define IN_ANY_ORDER(...) PRAGMA(omp simd reduction(+ : __VA_ARGS__))
/* Threads may find faults at the same time: the first to come is reported. */
#define FIRST(fault, number) \
    __sync_bool_compare_and_swap(&(fault)[0], (int64_t)0, (int64_t)(number))
#ifdef __FLT16_MANT_DIG__
typedef _Float16 f16;
#define from_f16(cell) ((real)(cell))
#define to_f16(value) ((f16)(value))
#endif
"""
    + _SHARED
    + _INTEGERS
    + _FAULT
    + STREAMS
    + _CALL
    + FORKS
    + _SHARES
)

_CUDA = (
    r"""typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
#endif
#define FUNCTION static __device__ __forceinline__
#ifdef OPGEN_HOST_EMU
#include <cuda_fp16.h>
typedef __half f16;
#define f16_to_f32(cell) (__half2float(cell))
#define f16_from_f32(value) (__float2half_rn(value))
#else
typedef struct { uint16_t bits; } f16;
FUNCTION float f16_to_f32(f16 value)
{
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(value.bits));
    return out;
}
FUNCTION f16 f16_from_f32(float value)
{
    f16 out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
    return out;
}
#endif
#define from_f16(cell) ((real)f16_to_f32(cell))
#define to_f16(value) (f16_from_f32((float)(value)))

/* Threads may find faults at the same time: the first to come is reported. */
#define FIRST(fault, number) \
    (atomicCAS((unsigned long long *)(fault), 0ULL, (unsigned long long)(number)) == 0)
#define THREADS 256
"""
    + _SHARED
    + r"""
/* As in C, for indices of 32 and of 64 bits. */
template <class A, class B> FUNCTION auto floor_div(A a, B b) -> decltype(a + b)
{
    if (b <= 0) return 0;
    return a / b - (a % b < 0);
}

template <class A, class B> FUNCTION auto least(A a, B b) -> decltype(a + b)
{
    return a < b ? a : b;
}

template <class A, class B> FUNCTION auto greatest(A a, B b) -> decltype(a + b)
{
    return a > b ? a : b;
}

template <class A, class B> FUNCTION bool inside(A index, B extent)
{
    return 0 <= index && index < extent;
}

/* a / b for a >= 0, b > 0; in 32 bits by the multiplier and the shift that a launch found for b. */
FUNCTION index_t quotient(index_t a, index_t b, int64_t magic)
{
    if (sizeof(index_t) == 8) return a / b;
    return (index_t)(__umulhi((uint32_t)a << 1, (uint32_t)magic) >> (magic >> 32));
}

/* An extent in parts of that many; unsigned, so that it is a shift. */
FUNCTION index_t parts(index_t extent, int count)
{
    if (sizeof(index_t) == 8) return (uint64_t)extent / count;
    return (uint32_t)extent / count;
}

#ifndef OPGEN_HOST_EMU
#define UNROLL _Pragma("unroll")
/* In PTX, since the compiler may make several stores of one. */
FUNCTION void store_words(void *place, uint4 words)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "l"(place), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
}
FUNCTION void store_words(void *place, uint2 words)
{
    asm volatile("st.global.v2.b32 [%0], {%1, %2};"
                 :: "l"(place), "r"(words.x), "r"(words.y) : "memory");
}
#else
#define UNROLL
FUNCTION void store_words(void *place, uint4 words) { *(uint4 *)place = words; }
FUNCTION void store_words(void *place, uint2 words) { *(uint2 *)place = words; }
#endif
FUNCTION void store_words(void *place, uint32_t words) { *(uint32_t *)place = words; }
FUNCTION void store_words(void *place, uint16_t words) { *(uint16_t *)place = words; }
FUNCTION void store_words(void *place, uint8_t words) { *(uint8_t *)place = words; }

/* Unsigned integers of that many bytes. */
template <int BYTES> struct words;
template <> struct words<16> { typedef uint4 type; };
template <> struct words<8> { typedef uint2 type; };
template <> struct words<4> { typedef uint32_t type; };
template <> struct words<2> { typedef uint16_t type; };
template <> struct words<1> { typedef uint8_t type; };

/* How many elements, a power of two, every stretch begins at a multiple of: the launch proved that
   for rows, `lanes` cells of `step` elements follow, and what is added has a divisor (0: nothing
   is added). 0 lanes: it proved nothing. */
FUNCTION constexpr int aligned(int lanes, int step, int divisor)
{
    int found = 1;
    while (lanes > 0 && lanes * step % (2 * found) == 0 && divisor % (2 * found) == 0) found *= 2;
    return found;
}

/* The largest part of that in one access, which is of at most 16 bytes. */
template <class A> FUNCTION constexpr int vector_of(int elements)
{
    return elements * (int)sizeof(A) <= 16 ? elements : 16 / (int)sizeof(A);
}

/* Where the access of element o of a run begins. */
FUNCTION constexpr int access_of(int o, int vector) { return o - (o % vector + vector) % vector; }

/* The elements [BEGIN, END) behind element `start` of a row, which is at `from`. The elements
   [KNOWN, KNOWN_END) are inside of the row; others are looked at, and are the nearest one inside if
   CLAMPED, else 0. If WHOLE, the row has a multiple of ALIGNED elements: so much as one of them
   inside, and all of an access are. */
template <int BEGIN, int END, int KNOWN, int KNOWN_END, int ALIGNED, bool WHOLE, bool CLAMPED,
          class A>
FUNCTION void load_run(A *run, const A *from, index_t start, index_t step, index_t extent)
{
    constexpr int VECTOR = vector_of<A>(ALIGNED);
    typedef typename words<VECTOR * sizeof(A)>::type type;
    UNROLL
    for (int first = access_of(BEGIN, VECTOR); first < END; first += VECTOR) {
        const int past = first + VECTOR, from_o = first > BEGIN ? first : BEGIN;
        const int to_o = past < END ? past : END;
        /* What lies beside the elements is loaded with them, if these are not a single one. */
        if (VECTOR > 1 && to_o - from_o > 1
            && ((WHOLE ? past > KNOWN && first < KNOWN_END && KNOWN < KNOWN_END
                       : first >= KNOWN && past <= KNOWN_END)
                || (start + first >= 0 && start + past <= extent))) {
            const type all = *(const type *)(from + first);
            A each[VECTOR];
            memcpy(each, &all, sizeof all);
            UNROLL
            for (int o = from_o; o < to_o; o++) run[o - BEGIN] = each[o - first];
            continue;
        }
        UNROLL
        for (int o = from_o; o < to_o; o++) {
            if (o >= KNOWN && o < KNOWN_END) {
                run[o - BEGIN] = from[o * step];
            } else if (CLAMPED) {
                run[o - BEGIN] = from[(greatest(least(start + o, extent - 1), 0) - start) * step];
            } else {
                run[o - BEGIN] = A();
                if (start + o >= 0 && start + o < extent) run[o - BEGIN] = from[o * step];
            }
        }
    }
}

/* Writes the elements [BEGIN, END) of a row behind that at `to`, those for which `is_out` holds. */
template <int BEGIN, int END, int ALIGNED, class A>
FUNCTION void store_run(const A *run, A *to, index_t step, const bool *is_out)
{
    constexpr int VECTOR = vector_of<A>(ALIGNED);
    typedef typename words<VECTOR * sizeof(A)>::type type;
    UNROLL
    for (int o = BEGIN; o < END; o++) {
        const int first = access_of(o, VECTOR), last = first + VECTOR - 1;
        bool all = VECTOR > 1 && first >= BEGIN && last < END;
        if (all) {
            UNROLL
            for (int at = first; at <= last; at++) all = all && is_out[at - BEGIN];
        }
        if (all) {
            if (o != first) continue;
            type value;
            memcpy(&value, run + (o - BEGIN), sizeof value);
            store_words(to + o, value);
        } else if (is_out[o - BEGIN]) {
            to[o * step] = run[o - BEGIN];
        }
    }
}
template <int BEGIN, int END, int ALIGNED, class A>
FUNCTION void store_run(const A *run, A *to, index_t step)
{
    bool is_out[END - BEGIN];
    UNROLL
    for (int o = 0; o < END - BEGIN; o++) is_out[o] = true;
    store_run<BEGIN, END, ALIGNED>(run, to, step, is_out);
}

/* Where the cells of a tile lie in shared memory, so that what a warp accesses at once is in
   different banks, of 4 bytes or of one element, `BANKS` of them. Cells `across` are neighbours;
   those `along` are a row and one bank apart, or more banks in short columns. Threads with
   stretches of cells along the columns reach the same banks again after `BANKS` of them, which are
   skewed by what other threads have there. */
template <class A, int ACROSS, int ALONG, int LANES> struct tile_places {
    static constexpr int OF_BANK = sizeof(A) < 4 ? 4 / (int)sizeof(A) : 1;
    static constexpr int BANKS = sizeof(A) < 8 ? 32 : 16;
    static constexpr int APART = LANES == 1 && ALONG < BANKS ? BANKS / ALONG : 1;
    static constexpr int PITCH = ACROSS + APART * OF_BANK;
    static constexpr int SHARED = BANKS * LANES / ALONG > OF_BANK ? BANKS * LANES / ALONG : OF_BANK;
    static constexpr int SKEW = LANES == 1 ? 0 : SHARED / OF_BANK * OF_BANK;
    static constexpr int CELLS = ALONG * PITCH + (ALONG - 1) / BANKS * SKEW;

    FUNCTION int at(int across, int along)
    {
        return along * PITCH + (int)((unsigned)along / BANKS) * SKEW + across;
    }
};

/* Cells to shared memory and from there, by all threads of a block; both begin at 16 bytes. */
template <class A> FUNCTION void copy_in(A *to, const A *from, int count)
{
    constexpr int VECTOR = 16 / sizeof(A);
    for (int at = threadIdx.x * VECTOR; at < count; at += blockDim.x * VECTOR) {
        if (at + VECTOR <= count) {
            *(uint4 *)(to + at) = *(const uint4 *)(from + at);
        } else {
            for (int cell = at; cell < count; cell++) to[cell] = from[cell];
        }
    }
}
template <class A> FUNCTION void copy_out(A *to, const A *from, int count)
{
    constexpr int VECTOR = 16 / sizeof(A);
    for (int at = threadIdx.x * VECTOR; at < count; at += blockDim.x * VECTOR) {
        if (at + VECTOR <= count) {
            store_words(to + at, *(const uint4 *)(from + at));
        } else {
            for (int cell = at; cell < count; cell++) to[cell] = from[cell];
        }
    }
}

/* a * b + total, rounded once. */
template <class A, class B> FUNCTION float multiply_add(A a, B b, float total)
{
    return fmaf((float)a, (float)b, total);
}
template <class A, class B> FUNCTION double multiply_add(A a, B b, double total)
{
    return fma((double)a, (double)b, total);
}
FUNCTION int64_t multiply_add(int64_t a, int64_t b, int64_t total) { return a * b + total; }

/* The threads of a block with the same z are a team; each has a number in it. */
#define MEMBERS (blockDim.x * blockDim.y)
#define MEMBER (threadIdx.y * blockDim.x + threadIdx.x)

/* The sum of what the members of a team have, a power of two of them, always in the same order. */
template <class A> FUNCTION A team_sum(A value, A *partial)
{
    A *own = partial + threadIdx.z * MEMBERS;
    if (MEMBERS == 1) return value;
    own[MEMBER] = value;
    __syncthreads();
    for (unsigned half = MEMBERS / 2; half > 0; half /= 2) {
        if (MEMBER < half) own[MEMBER] += own[MEMBER + half];
        __syncthreads();
    }
    const A total = own[0];
    __syncthreads();
    return total;
}

/* For each of several sums: what all members of a team have, with its first member, always added in
   the same order: by warps, then warp after warp. Teams have a power of two of members; a block has
   whole warps, or is one. */
template <int COUNT, class A> FUNCTION void team_sums(A (&totals)[COUNT], A *shared)
{
    const unsigned threads = MEMBERS * blockDim.z, width = MEMBERS < 32 ? MEMBERS : 32;
    const unsigned all = threads < 32 ? (1u << threads) - 1 : 0xffffffffu;
    UNROLL
    for (int at = 0; at < COUNT; at++) {
        for (unsigned half = width / 2; half > 0; half /= 2) {
            totals[at] += __shfl_down_sync(all, totals[at], half, width);
        }
    }
    if (MEMBERS <= 32) return;
    A *own = shared + threadIdx.z * (MEMBERS / 32) * COUNT;
    if (MEMBER % 32 == 0) {
        UNROLL
        for (int at = 0; at < COUNT; at++) own[MEMBER / 32 * COUNT + at] = totals[at];
    }
    __syncthreads();
    if (MEMBER == 0) {
        for (unsigned warp = 1; warp < MEMBERS / 32; warp++) {
            UNROLL
            for (int at = 0; at < COUNT; at++) totals[at] += own[warp * COUNT + at];
        }
    }
    __syncthreads();
}

/* The points along one dimension of the grid that are this thread's: one at most, if the grids of a
   call leave out none. */
#define THREAD(dimension) \
    (blockIdx.dimension * (index_t)blockDim.dimension + threadIdx.dimension)
#ifdef WHOLE_GRIDS
#define EACH(dimension, name, extent) \
    if (const index_t name = THREAD(dimension); name < (extent))
#else
#define EACH(dimension, name, extent) \
    for (index_t name = THREAD(dimension); name < (extent); \
         name += gridDim.dimension * (index_t)blockDim.dimension)
#endif
"""
    + _FAULT
    + r"""
FUNCTION void atomic_add(float *cell, float value) { atomicAdd(cell, value); }
FUNCTION void atomic_add(double *cell, double value) { atomicAdd(cell, value); }
FUNCTION void atomic_add(int64_t *cell, int64_t value)
{
    atomicAdd((unsigned long long *)cell, (unsigned long long)value);
}
"""
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
    return _with_macros(_CUDA, narrow, whole)


@functools.cache
def _with_macros(text: str, narrow: bool, whole: bool) -> str:
    """The same object for the same call: launches that look it up need not hash it again."""
    macros = "#define WHOLE_GRIDS\n" if whole else ""
    return f"#define index_t {'int32_t' if narrow else 'int64_t'}\n{macros}{text}"


_BYTES = 64
_SIZES = {"f32": 4, "f64": 8, "i64": 8}
_COLUMNS = 16


def _load_columns(lanes: int) -> Iterable[str]:
    """A function that loads consecutive elements of rows, and has a vector for each column."""
    yield "FUNCTION void load_columns(const T *place, int64_t step, wide_lanes *out)"
    yield "{"
    yield f"    for (int first = 0; first < {_COLUMNS}; first += LANES) {{"
    yield "        wide_lanes *const v = out + first;"
    yield "        for (int lane = 0; lane < LANES; lane++)"
    yield "            v[lane] = lanes_from_T(place + lane * step + first);"
    size = 1
    while size < lanes:
        low = (at - size + lanes if at & size else at for at in range(lanes))
        high = (at + lanes if at & size else at + size for at in range(lanes))
        yield f"        PRAGMA(GCC unroll {lanes})"
        yield "        for (int at = 0; at < LANES; at++) {"
        yield f"            if (at & {size}) continue;"
        yield f"            const wide_lanes a = v[at], b = v[at + {size}];"
        yield f"            v[at] = SHUFFLE(a, b, {', '.join(map(str, low))});"
        yield f"            v[at + {size}] = SHUFFLE(a, b, {', '.join(map(str, high))});"
        yield "        }"
        size *= 2
    yield "    }"
    yield "}"


def _lanes(shared: str, wide: str) -> Iterable[str]:
    """Vectors of `wide`, and how elements of T become one."""
    if shared in _SIXTEEN:
        # GCC 12 copies floating-point numbers of 16 bits one by one where it shuffles integers.
        yield "typedef uint16_t stored_bits __attribute__((may_alias));"
        yield "#define stored_T(cell) (*(stored_bits *)&(cell))"
    else:
        yield "#define stored_T(cell) (cell)"
    yield "enum { LANES = LANE_BYTES / sizeof(wide) };"
    number = f"int{8 * _SIZES[wide]}_t"
    yield f"typedef {number} lane_numbers __attribute__((vector_size(LANE_BYTES)));"
    for name, element in (("wide_lanes", "wide"), ("T_lanes", _STORED.get(shared, "T"))):
        size = f"vector_size(LANE_BYTES / sizeof(wide) * sizeof({element}))"
        given = f"{size}, aligned(sizeof({element})), may_alias"
        yield f"typedef {element} {name} __attribute__(({given}));"
    yield "#define lanes_of(values) __builtin_convertvector(values, wide_lanes)"
    yield "#define lanes_from_wide(place) (*(const wide_lanes *)(place))"
    yield "#define lanes_to_wide(place, values) (*(wide_lanes *)(place) = (values))"
    if shared == "bf16":
        yield from bf16_lanes(wide)
    elif shared == "f16":
        yield from f16_lanes(wide)
    else:
        yield "#define lanes_from_T(place) lanes_of(*(const T_lanes *)(place))"
        stored = "(values) != 0" if shared == "bool" else "values"
        one = " & 1" if shared == "bool" else ""
        value = f"__builtin_convertvector({stored}, T_lanes){one}"
        yield f"#define lanes_to_T(place, values) (*(T_lanes *)(place) = {value})"
    yield "FUNCTION wide_lanes same_lanes(wide value) { return value - (wide_lanes){0}; }"
    yield "FUNCTION wide_lanes lanes_apart(const T *place, int64_t step)"
    yield "{"
    yield "    wide_lanes out;"
    yield "    for (int lane = 0; lane < LANES; lane++) out[lane] = from_T(place[lane * step]);"
    yield "    return out;"
    yield "}"
    yield from _load_columns(_BYTES // _SIZES[wide])
    yield "#define lanes_or_one(place, step) \\"
    yield "    ((step) == 1 ? lanes_from_T(place) : same_lanes(from_T(*(place))))"
    yield from _masked_lanes(shared, wide)
    yield from _planes(shared, wide)
    yield from _every_second(_BYTES // _SIZES[wide])
    yield from _each_twice(shared, wide)
    yield "FUNCTION wide sum_of_lanes(wide_lanes values)"
    yield "{"
    yield "    wide total = 0;"
    yield "    for (int lane = 0; lane < LANES; lane++) total += values[lane];"
    yield "    return total;"
    yield "}"


def _every_second(lanes: int) -> Iterable[str]:
    """Vectors of every second element, of all lanes or up to a last one.

    The second vector that is loaded ends with the last element: behind it memory may end.
    """
    picked = (*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2))
    yield f"#define EVERY_SECOND(a, b) SHUFFLE(a, b, {', '.join(map(str, picked))})"
    yield "FUNCTION wide_lanes every_second(const T *place)"
    yield "{"
    yield "    const wide_lanes a = lanes_from_T(place), b = lanes_from_T(place + LANES - 1);"
    yield "    return EVERY_SECOND(a, b);"
    yield "}"
    yield "FUNCTION wide_lanes every_second_within(const T *place, int first, int last)"
    yield "{"
    yield "    const int begin = 2 * first, end = 2 * last;"
    yield "    wide_lanes a = {0}, b = {0};"
    yield "    if (begin < LANES) a = lanes_within(place, begin, end < LANES ? end : LANES - 1);"
    yield "    if (end >= LANES)"
    yield "        b = lanes_within("
    yield "            place + LANES - 1, begin < LANES ? 0 : begin - LANES + 1, end - LANES + 1);"
    yield "    return EVERY_SECOND(a, b);"
    yield "}"


def _each_twice(shared: str, wide: str) -> Iterable[str]:
    """Vectors of half as many elements, each in two lanes; sums of the even or the odd lanes.

    Half a vector is loaded as such: a load of a whole one of which half is masked out still waits
    for the line of memory behind it, which need not be in any cache.
    """
    lanes = _BYTES // _SIZES[wide]
    doubled = ", ".join(str(lane // 2) for lane in range(lanes))
    yield f"#define EACH_TWICE(values) SHUFFLE(values, values, {doubled})"
    element = "uint16_t" if shared in _SIXTEEN else _STORED.get(shared, "T")
    given = f"aligned(sizeof({element})), may_alias"
    yield "#if defined __clang__ || __GNUC__ >= 12"
    for name, count in (("half_T_lanes", lanes // 2), ("doubled_T_lanes", lanes)):
        size = f"vector_size({count} * sizeof({element}))"
        yield f"typedef {element} {name} __attribute__(({size}, {given}));"
    yield "FUNCTION wide_lanes each_twice(const T *place)"
    yield "{"
    yield "    const half_T_lanes half = *(const half_T_lanes *)place;"
    yield f"    const doubled_T_lanes both = __builtin_shufflevector(half, half, {doubled});"
    yield "    return lanes_from_T((const T *)&both);"
    yield "}"
    yield "#else"
    yield "FUNCTION wide_lanes each_twice(const T *place)"
    yield "{"
    yield "    wide_lanes out;"
    yield "    for (int lane = 0; lane < LANES; lane++) out[lane] = from_T(place[lane / 2]);"
    yield "    return out;"
    yield "}"
    yield "#endif"
    yield "FUNCTION wide_lanes each_twice_within(const T *place, int first, int last)"
    yield "{"
    yield "    return EACH_TWICE(lanes_within(place, first / 2, last / 2));"
    yield "}"
    yield "FUNCTION wide_lanes only_every_second(wide_lanes values, int first)"
    yield "{"
    yield "    for (int lane = 1 - first; lane < LANES; lane += 2) values[lane] = 0;"
    yield "    return values;"
    yield "}"
    yield "FUNCTION wide sum_of_every_second(wide_lanes values, int first)"
    yield "{"
    yield "    wide total = 0;"
    yield "    for (int lane = first; lane < LANES; lane += 2) total += values[lane];"
    yield "    return total;"
    yield "}"


def _masked_lanes(shared: str, wide: str) -> Iterable[str]:
    """Vectors of which only some lanes do something, from a first to a last one.

    Compilers make no masked loads of plain C where they should, so those of AVX-512 are asked for;
    without it the functions are there, but `HAVE_MASKS` tells kernels not to be used.
    """
    half = "short", "dquhi256"
    kinds = {"f32": ("float", "ups512"), "bf16": half, "f16": half}
    element, instruction = kinds.get(shared, ("", ""))
    has_masks = bool(element) and wide == "f32"
    yield "#if defined __AVX512BW__ && defined __AVX512VL__ && !defined __clang__"
    yield f"enum {{ HAVE_MASKS = {int(has_masks)} }};"
    yield "#else"
    yield "enum { HAVE_MASKS = 0 };"
    yield "#endif"
    if not has_masks:
        yield from _ALL_LANES
        return
    yield "#if defined __AVX512BW__ && defined __AVX512VL__ && !defined __clang__"
    yield f"typedef {element} masked_lanes __attribute__((vector_size(LANES * sizeof(T))));"
    if shared != "bf16":
        yield "typedef float float_lanes __attribute__((vector_size(LANES * 4)));"
    yield "#define LANE_MASK ((2u << last) - (1u << first))"
    yield "FUNCTION wide_lanes lanes_within(const T *place, int first, int last)"
    yield "{"
    yield f"    const T_lanes found = (T_lanes)__builtin_ia32_load{instruction}_mask("
    yield f"        (const {element} *)place, (masked_lanes){{0}}, LANE_MASK);"
    yield "    return lanes_from_T((const T *)&found);"
    yield "}"
    yield "FUNCTION void lanes_to_T_within(T *place, wide_lanes values, int first, int last)"
    yield "{"
    yield "    T_lanes stored;"
    yield "    lanes_to_T((T *)&stored, values);"
    yield f"    __builtin_ia32_store{instruction}_mask("
    yield f"        ({element} *)place, (masked_lanes)stored, LANE_MASK);"
    yield "}"
    yield "FUNCTION wide_lanes lanes_only(wide_lanes values, int first, int last)"
    yield "{"
    yield "    return (wide_lanes)__builtin_ia32_movaps512_mask("
    yield "        (float_lanes)values, (float_lanes){0}, LANE_MASK);"
    yield "}"
    yield "#else"
    yield from _ALL_LANES
    yield "#endif"


_HALVES = ("f16", "bf16", "i16")


def _planes(shared: str, wide: str) -> Iterable[str]:
    """Whether 16 elements are picked out of two vectors in one instruction, and how.

    Elements of 32 bits that stay as they are gain nothing: loops copy them as fast as memory goes.
    """
    is_narrow = shared in _HALVES
    yield "#if defined __AVX512BW__ && defined __AVX512VL__ \\"
    yield "    && (defined __clang__ || __GNUC__ >= 12)"
    yield f"#define HAVE_PLANES {int(wide == 'f32')}"
    yield f"#define HAVE_NARROW_PLANES {int(wide == 'f32' and is_narrow)}"
    yield f"#define HAVE_PLANES_OF_T {int(is_narrow)}"
    yield "#else"
    yield "#define HAVE_PLANES 0"
    yield "#define HAVE_NARROW_PLANES 0"
    yield "#define HAVE_PLANES_OF_T 0"
    yield "#endif"
    if is_narrow:
        given = "vector_size(16 * sizeof(uint16_t)), aligned(sizeof(uint16_t)), may_alias"
        yield f"typedef uint16_t stored_lanes __attribute__(({given}));"


_ALL_LANES = (
    "#define lanes_within(place, first, last) lanes_from_T(place)",
    "#define lanes_to_T_within(place, values, first, last) lanes_to_T(place, values)",
    "#define lanes_only(values, first, last) (values)",
)

_SIXTEEN = frozenset({"bf16", "f16"})
"""Element types that are copied as integers."""

_STORED = {"bf16": "uint16_t", "bool": "b8"}
"""Element types of vectors where that is not the type of the elements."""


def bindings(shared: str, real: str, integers: Mapping[str, str]) -> str:
    """Definitions of the element types of one call, such as `f32`; `real` is `f32` or `f64`."""
    is_floating = shared in _FLOATING
    names = {"real": real, "wide": real if is_floating else "i64", "T": shared}
    names |= {f"T_{tensor}": type_name for tensor, type_name in integers.items()}
    lines = []
    for name, type_name in names.items():
        lines.append(f"typedef {type_name} {name};")
        lines += [f"#define {name}_{end} {type_name}_{end}" for end in ("least", "greatest")]
    lines.append(f"#define from_T(cell) from_{shared}(cell)")
    lines.append(f"#define to_T(value) to_{shared}(value)")
    lines += ["#ifdef LANE_BYTES", *_lanes(shared, names["wide"]), "#endif"]
    if not is_floating:
        lines += _INTEGER_FUNCTIONS.strip().split("\n")
    return "\n".join(lines) + "\n"
