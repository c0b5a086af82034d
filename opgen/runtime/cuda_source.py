"""What every generated CUDA kernel may use."""

from __future__ import annotations

from typing import Final

from opgen.runtime.numbers_source import FAULT, NUMBERS

CUDA: Final = (
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
#define THREADS_OF_CHAIN 512
"""
    + NUMBERS
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

FUNCTION int64_t limited(int64_t bound)
{
    return least(greatest(bound, -((int64_t)1 << 61)), (int64_t)1 << 61);
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
        if (WHOLE && !CLAMPED && VECTOR > 1 && to_o - from_o > 1) {
            UNROLL
            for (int o = from_o; o < to_o; o++) run[o - BEGIN] = A();
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

/* A power of two that brings a number among those whose inverses have all their digits. */
FUNCTION float scale_of(float number)
{
    const float size = fabsf(number);
    return size < 0x1p-96f ? 0x1p64f : size > 0x1p96f ? 0x1p-64f : 1.0f;
}
FUNCTION double scale_of(double number)
{
    const double size = fabs(number);
    return size < 0x1p-960 ? 0x1p640 : size > 0x1p960 ? 0x1p-640 : 1.0;
}

/* A quotient, within 2 units in its last place. The compiler takes the inverse out of loops, and
   finds that of a number once for all who are divided by it. Zero, infinity and NaN give what a
   division by them does. */
template <class A, class B>
FUNCTION auto by_inverse(A number, B divisor) -> decltype(number / divisor)
{
    const decltype(number / divisor) by = divisor, scale = scale_of(by);
    return number * (1 / (by * scale)) * scale;
}

/* The same where a loop meets another divisor in every turn: a division has a branch, so that
   nothing is loaded ahead of it. So this is one step of Newton's method from what the machine has,
   except where the error of that is no number. */
FUNCTION double inverse(double number) { return 1 / number; }
#ifndef OPGEN_HOST_EMU
FUNCTION float inverse(float number)
{
    float rough;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(rough) : "f"(number));
    const float error = fmaf(-number, rough, 1.0f);
    return fabsf(error) < 1.0f ? fmaf(rough, error, rough) : rough;
}
#else
FUNCTION float inverse(float number) { return 1 / number; }
#endif
template <class A, class B>
FUNCTION auto by_moving_inverse(A number, B divisor) -> decltype(number / divisor)
{
    const decltype(number / divisor) by = divisor, scale = scale_of(by);
    return number * inverse(by * scale) * scale;
}

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

/* Powers with a small whole exponent that is a literal, as on a CPU. */
template <int EXPONENT, class A> FUNCTION A whole_power(A base)
{
    const A of = EXPONENT < 0 ? 1 / base : base, square = of * of;
    constexpr int COUNT = EXPONENT < 0 ? -EXPONENT : EXPONENT;
    return COUNT == 1 ? of : COUNT == 2 ? square : COUNT == 3 ? square * of : square * square;
}

/* How two parts are put together. What is no number stays, as where terms are joined one by one. */
struct Added {
    template <class A> FUNCTION A of(A total, A part) { return total + part; }
};
struct Greatest {
    template <class A> FUNCTION A of(A total, A part)
    {
        return part > total || part != part ? part : total;
    }
};
struct Least {
    template <class A> FUNCTION A of(A total, A part)
    {
        return part < total || part != part ? part : total;
    }
};

/* For each of several sums: what all members of a team have, with its first member, always added in
   the same order: by warps, then warp after warp. Teams have a power of two of members; a block has
   whole warps, or is one. */
template <int COUNT, class JOIN, class A> FUNCTION void team_sums(A (&totals)[COUNT], A *shared)
{
    const unsigned threads = MEMBERS * blockDim.z, width = MEMBERS < 32 ? MEMBERS : 32;
    const unsigned all = threads < 32 ? (1u << threads) - 1 : 0xffffffffu;
    UNROLL
    for (int at = 0; at < COUNT; at++) {
        for (unsigned half = width / 2; half > 0; half /= 2) {
            totals[at] = JOIN::of(totals[at], __shfl_down_sync(all, totals[at], half, width));
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
            for (int at = 0; at < COUNT; at++) {
                totals[at] = JOIN::of(totals[at], own[warp * COUNT + at]);
            }
        }
    }
    __syncthreads();
}

/* The same where the threads of a block with the same x are a team, and y is their number in it:
   the members' totals are added in the order of these. So many sums at a time have room for a
   number of each thread, and a member each that adds it up. The first member reads what nobody else
   writes next, so that no barrier is behind that. */
template <int COUNT> constexpr int SUMS_TOGETHER = COUNT < 8 ? COUNT : 8;

template <int COUNT, class JOIN, class A> FUNCTION void sums_across(A (&totals)[COUNT], A *shared)
{
    constexpr int AT_ONCE = SUMS_TOGETHER<COUNT>;
    if (blockDim.y == 1) return;
    UNROLL
    for (int first = 0; first < COUNT; first += AT_ONCE) {
        UNROLL
        for (int at = 0; at < AT_ONCE; at++) {
            if (first + at < COUNT) {
                shared[at * THREADS + threadIdx.y * blockDim.x + threadIdx.x] = totals[first + at];
            }
        }
        __syncthreads();
        for (unsigned at = threadIdx.y; at < AT_ONCE && first + at < COUNT; at += blockDim.y) {
            A *own = shared + at * THREADS + threadIdx.x;
            A total = own[0];
            for (unsigned member = 1; member < blockDim.y; member++) {
                total = JOIN::of(total, own[member * blockDim.x]);
            }
            own[0] = total;
        }
        __syncthreads();
        UNROLL
        for (int at = 0; at < AT_ONCE; at++) {
            if (threadIdx.y == 0 && first + at < COUNT) {
                totals[first + at] = shared[at * THREADS + threadIdx.x];
            }
        }
    }
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
    + FAULT
    + r"""
FUNCTION void atomic_add(float *cell, float value) { atomicAdd(cell, value); }
FUNCTION void atomic_add(double *cell, double value) { atomicAdd(cell, value); }
FUNCTION void atomic_add(int64_t *cell, int64_t value)
{
    atomicAdd((unsigned long long *)cell, (unsigned long long)value);
}
"""
)

UNROUNDED = r"""
/* Numbers of float32 in a call that computes with those of 16 bits, as casts give them. */
typedef float unrounded;
FUNCTION real from_unrounded(unrounded cell) { return from_T(to_T(cell)); }
"""
"""What follows the bindings of types where kernels round inputs."""
