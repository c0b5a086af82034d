"""Element types, conversions, integer functions and faults, for C and for CUDA."""

from __future__ import annotations

from typing import Final

MATHEMATICS: Final = r"""
/* <tgmath.h> in short, which with <math.h> took a fifth of the time of compiling a small kernel: a
   function for the type of its argument, which is float or else double. */
#if defined __clang__ || __GNUC__ < 8
#include <math.h>
#include <tgmath.h>
#else
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define TYPED(name, ...) __builtin_tgmath(__builtin_##name##f, __builtin_##name, __VA_ARGS__)
#define ceil(value) TYPED(ceil, value)
#define cos(value) TYPED(cos, value)
#define erf(value) TYPED(erf, value)
#define erfc(value) TYPED(erfc, value)
#define exp(value) TYPED(exp, value)
#define expm1(value) TYPED(expm1, value)
#define fabs(value) TYPED(fabs, value)
#define floor(value) TYPED(floor, value)
#define log(value) TYPED(log, value)
#define log1p(value) TYPED(log1p, value)
#define pow(base, exponent) TYPED(pow, base, exponent)
#define rint(value) TYPED(rint, value)
#define sin(value) TYPED(sin, value)
#define sqrt(value) TYPED(sqrt, value)
#define tan(value) TYPED(tan, value)
#define tanh(value) TYPED(tanh, value)
#endif
"""

NUMBERS: Final = r"""
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

INTEGERS: Final = r"""
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

/* For a bound that is read from a tensor, of which more is computed: it may be any integer, and one
   more than the largest is the smallest. */
FUNCTION int64_t limited(int64_t bound)
{
    return least(greatest(bound, -((int64_t)1 << 61)), (int64_t)1 << 61);
}
"""

FAULT: Final = r"""
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
