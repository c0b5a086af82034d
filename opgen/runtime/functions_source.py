"""Functions of the C library for float32, such that loops over them become vectors.

A compiler makes no vectors of calls, and those of `exp` or `tanh` took four times as long as
PyTorch's vectors. Here they are straight lines: an argument is reduced by what is exact, a
polynomial is as close as a float can be, and of two ranges both are computed and one is chosen.

The largest errors among all 2^32 floats are, in units in the last place, where the processor
multiplies and adds at once: exp 0.90, expm1 1.46, log 0.83, log1p 1.44, tanh 1.38, erf 1.02, sin,
cos and tan 0.57. That of erfc, which is here for gelu, is 1.1e-4 of results from 1e-9 on, and
1.1e-13 of smaller ones. Powers are within 0.54: the error of a logarithm grows with the exponent,
so it is a double, as are the exponent's product with it and the power of two.
Powers with a literal exponent up to the fourth whole one are products, those with a half are roots,
of doubles too.
Infinities, NaN, signed zeros and subnormal numbers are as in the C library.

Sources: Cody and Waite's reduction, that of Payne and Hanek for angles; minimax polynomials of the
Cephes library (log, tanh), of N. Juffa (exp, expm1, erf), and of Arm's optimized routines (sin and
cos). Those of powers are by the exchange algorithm of Remez, of log2((1 + s) / (1 - s)) / s by s^2
with a relative error of 2^-37.7, and of 2^r with one of 2^-29.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = ("exp", "expm1", "log", "log1p", "tanh", "erf", "erfc", "sin", "cos", "tan")
"""The functions of the C library that have a form for float32 here."""

FUNCTIONS: Final = r"""
INLINE float f32_of_bits(int32_t bits)
{
    const union { int32_t bits; float value; } both = {bits};
    return both.value;
}

INLINE int32_t f32_bits(float value)
{
    const union { float value; int32_t bits; } both = {value};
    return both.bits;
}

/* One of two numbers, chosen by bits. Of `?:` a compiler makes branches for what it knows of an
   argument that was chosen too, as that of the log in log(1 + exp(a)), and then no vectors. */
INLINE float f32_either(int32_t is_first, float first, float second)
{
    const int32_t mask = -is_first;
    return f32_of_bits((f32_bits(first) & mask) | (f32_bits(second) & ~mask));
}

/* A number, or the nearest within these bounds; NaN is one of its own. */
INLINE float f32_within(float low, float a, float high)
{
    return f32_either(a > high, high, f32_either(a < low, low, a));
}

/* The remainder of a / log(2), at most half of log(2), and which power of two is left. */
INLINE float f32_reduced(float a, float *power)
{
    *power = __builtin_rintf(a * 0x1.715476p0f);
    return *power * -0x1.7f7d1cp-20f + (*power * -0x1.62e400p-1f + a);
}

/* A power of two from 2^-126 to 2^127. */
INLINE float f32_power_of_two(int32_t exponent) { return f32_of_bits((exponent + 127) << 23); }

INLINE float f32_exp(float a)
{
    float power;
    const float r = f32_reduced(f32_within(-104, a, 89), &power);
    float p = 0x1.6850e4p-10f;
    p = p * r + 0x1.123bccp-7f;
    p = p * r + 0x1.555b98p-5f;
    p = p * r + 0x1.55548ep-3f;
    p = p * r + 0x1.fffff8p-2f;
    p = p * r + 1;
    p = p * r + 1;
    /* In two steps, for results that are subnormal, or infinite. */
    const int32_t exponent = (int32_t)power, half = exponent >> 1;
    return p * f32_power_of_two(half) * f32_power_of_two(exponent - half);
}

INLINE float f32_expm1(float a)
{
    float power;
    const float r = f32_reduced(f32_within(-30, a, 89), &power);
    float p = 1.98423862e-4f;
    p = p * r + 1.39354519e-3f;
    p = p * r + 8.33336823e-3f;
    p = p * r + 4.16664928e-2f;
    p = p * r + 1.66666672e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r;
    /* Half of the result first: the power of two of the largest ones is no float. */
    const float half = f32_power_of_two((int32_t)power - 1);
    const float result = (p * half + (half - 0.5f)) * 2;
    return f32_either(a == 0, a, result);
}

INLINE float f32_log(float a)
{
    const int32_t is_subnormal = a < 0x1p-126f;
    const int32_t bits = f32_bits(f32_either(is_subnormal, a * 0x1p23f, a));
    /* a = 2^exponent * (1 + f), with 1 + f between the roots of 1/2 and 2 */
    const int32_t shifted = (bits - 0x3f3504f3) & ~0x7fffff;
    const float exponent = (float)((shifted >> 23) - is_subnormal * 23);
    const float f = f32_of_bits(bits - shifted) - 1, square = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    const float rest = square * -0.5f + (p * f * square + exponent * -2.12194440e-4f);
    const float result = exponent * 0.693359375f + (rest + f);
    const float positive = f32_either(a < INFINITY, result, a);
    return f32_either(a > 0, positive, f32_either(a == 0, -INFINITY, NAN));
}

INLINE float f32_log1p(float a)
{
    const float above = 1 + a;
    const float result = f32_log(above) + (a - (above - 1)) / above;
    const float positive = f32_either(above < INFINITY, result, above);
    const float other = f32_either(a == -1, -INFINITY, NAN);
    return f32_either(a == 0, a, f32_either(a > -1, positive, other));
}

INLINE float f32_tanh(float a)
{
    const float size = __builtin_fabsf(a), square = a * a;
    const float far = 1 - 2 / (f32_exp(2 * size) + 1);
    float p = -5.70498872745e-3f;
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    const float near = p * square * size + size;
    return __builtin_copysignf(f32_either(size < 0.625f, near, far), a);
}

/* 1 - erf(size) from 475/512 on. */
INLINE float f32_erfc_far(float size)
{
    const float square = size * size;
    float q = -1.72853470e-5f * size + 3.83197126e-4f;
    q = q * square + (-3.88396438e-3f * size + 2.42546219e-2f);
    q = q * size - 1.06777877e-1f;
    q = q * size - 6.34846687e-1f;
    q = q * size - 1.28717512e-1f;
    return f32_exp(q * size - size);
}

/* erf(a) up to 475/512. */
INLINE float f32_erf_near(float a)
{
    const float square = a * a;
    float p = -5.96761703e-4f;
    p = p * square + 4.99119423e-3f;
    p = p * square - 2.67681349e-2f;
    p = p * square + 1.12819925e-1f;
    p = p * square - 3.76125336e-1f;
    p = p * square + 1.28379166e-1f;
    return p * a + a;
}

INLINE float f32_erf(float a)
{
    const float size = __builtin_fabsf(a), far = 1 - f32_erfc_far(size), near = f32_erf_near(a);
    return f32_either(size > 0.927734375f, __builtin_copysignf(far, a), near);
}

INLINE float f32_erfc(float a)
{
    const float size = __builtin_fabsf(a), rest = f32_erfc_far(size), near = 1 - f32_erf_near(a);
    const float far = f32_either(a < 0, 2 - rest, rest);
    return f32_either(size > 0.927734375f, far, near);
}

INLINE double f64_of_bits(int64_t bits)
{
    const union { int64_t bits; double value; } both = {bits};
    return both.value;
}

INLINE int64_t f64_bits(double value)
{
    const union { double value; int64_t bits; } both = {value};
    return both.bits;
}

INLINE double f64_either(int64_t is_first, double first, double second)
{
    const int64_t mask = -is_first;
    return f64_of_bits((f64_bits(first) & mask) | (f64_bits(second) & ~mask));
}

/* A product of 24 bits each, which is exact, without the turns that are whole. */
INLINE double f64_turned(double angle, double part)
{
    const double turns = angle * part;
    return turns - __builtin_rint(turns);
}

/* What is left of an angle beyond the nearest quarter of a turn, and how many quarters there are.
   1/(2 pi) has as many bits as the largest float needs, in parts of 24. */
INLINE double f32_angle(float a, int64_t *quarters)
{
    const double first = f64_turned(a, 0x1.45f306p-3), second = f64_turned(a, 0x1.b9391p-28);
    const double third = f64_turned(a, 0x1.529fcp-54), fourth = f64_turned(a, 0x1.3abe88p-77);
    const double fifth = f64_turned(a, 0x1.ea69bap-99), sixth = f64_turned(a, 0x1.81b6c4p-123);
    const double last = a * 0x1.0e4104p-172 + a * 0x1.2b3278p-147;
    const double rest = (last + sixth) + (fifth + fourth);
    /* The last bits of so large a number are quarters. */
    const double rounded = (first + (second + (third + rest))) + 0x1.8p50;
    *quarters = f64_bits(rounded);
    return ((((first - (rounded - 0x1.8p50)) + second) + third) + rest) * 0x1.921fb54442d18p2;
}

/* The sine and the cosine of an angle up to a quarter of pi. */
INLINE double f64_sin_near(double angle)
{
    const double square = angle * angle;
    double p = -0x1.994eb3774cf24p-13;
    p = p * square + 0x1.1107605230bc4p-7;
    p = p * square - 0x1.555545995a603p-3;
    return angle * (1 + p * square);
}

INLINE double f64_cos_near(double angle)
{
    const double square = angle * angle;
    double p = 0x1.99343027bf8c3p-16;
    p = p * square - 0x1.6c087e89a359dp-10;
    p = p * square + 0x1.55553e1068f19p-5;
    p = p * square - 0x1.ffffffd0c621cp-2;
    return p * square + 1;
}

/* The sine of an angle and some quarters. */
INLINE float f32_sin_of(double angle, int64_t quarters)
{
    const double near = f64_either(quarters & 1, f64_cos_near(angle), f64_sin_near(angle));
    return (float)f64_of_bits(f64_bits(near) ^ (int64_t)((uint64_t)quarters >> 1 << 63));
}

INLINE float f32_sin(float a)
{
    int64_t quarters;
    const double angle = f32_angle(a, &quarters);
    return f32_either(a == 0, a, f32_sin_of(angle, quarters));
}

INLINE float f32_cos(float a)
{
    int64_t quarters;
    const double angle = f32_angle(a, &quarters);
    return f32_sin_of(angle, quarters + 1);
}

INLINE float f32_tan(float a)
{
    int64_t quarters;
    const double angle = f32_angle(a, &quarters);
    const double sine = f64_sin_near(angle), cosine = f64_cos_near(angle);
    const double above = f64_either(quarters & 1, -cosine, sine);
    const float result = (float)(above / f64_either(quarters & 1, sine, cosine));
    return f32_either(a == 0, a, result);
}

/* The logarithm to base 2 of a positive number. That of 1 is 0. */
INLINE double f64_log2(double a)
{
    /* 2^exponent * m, with m between the roots of 1/2 and 2 */
    const uint64_t bits = (uint64_t)f64_bits(a);
    const uint64_t biased = (bits + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd)) >> 52;
    const double m = f64_of_bits((int64_t)(bits - (biased << 52) + 0x3ff0000000000000));
    const double exponent = f64_of_bits((int64_t)(biased | 0x4330000000000000)) - (0x1p52 + 1023);
    const double s = (m - 1) / (m + 1), square = s * s;
    double p = 0x1.5ce7ceea0b9f5p-2;
    p = p * square + 0x1.a58d8faede3cep-2;
    p = p * square + 0x1.27777fda8ad4bp-1;
    p = p * square + 0x1.ec709d12e127ap-1;
    p = p * square + 0x1.71547652bede5p+1;
    return p * s + exponent;
}

/* Two to a power, which is zero or infinite as a float beyond 200. */
INLINE double f64_exp2(double a)
{
    const double low = f64_either(a < -200, -200, a), within = f64_either(low > 200, 200, low);
    const double rounded = within + 0x1.8p52, r = within - (rounded - 0x1.8p52);
    double p = 0x1.41d333674dabap-13;
    p = p * r + 0x1.5f456a8ae8c3dp-10;
    p = p * r + 0x1.3b2dbbc105294p-7;
    p = p * r + 0x1.c6aed4b9509edp-5;
    p = p * r + 0x1.ebfbdadcb0ac5p-3;
    p = p * r + 0x1.62e430c7e923cp-1;
    p = p * r + 0x1.0000000261501p+0;
    return p * f64_of_bits((int64_t)(((uint64_t)f64_bits(rounded) + 1023) << 52));
}

/* 2^(exponent * log2(base)) in doubles, rounded once. A finite exponent so large gives what an
   infinite one does, of 1 and -1 too. What the exponent chooses and what the base chooses are not
   joined before: where the base was chosen as well, GCC 12 makes no vectors of that. */
INLINE float f32_power(float base, float exponent)
{
    const float finite = f32_within(-0x1p100f, exponent, 0x1p100f), half = finite * 0.5f;
    const int32_t is_whole = __builtin_rintf(finite) == finite;
    const int32_t is_odd = is_whole & (__builtin_rintf(half) != half);
    const int32_t bits = f32_bits(base), size_bits = bits & 0x7fffffff;
    const float of_size = (float)f64_exp2(finite * f64_log2(f32_of_bits(size_bits)));
    const float of_zero = f32_either(exponent < 0, INFINITY, finite * 0);
    const float of_infinity = f32_either(exponent < 0, 0, exponent * INFINITY);
    const float of_other = f32_either(size_bits == 0x7f800000, of_infinity, base);
    const float far = f32_either(size_bits == 0, of_zero, of_other);
    const float positive = f32_either((uint32_t)size_bits - 1 < 0x7f7fffff, of_size, far);
    const float power = f32_of_bits(f32_bits(positive) ^ (bits & is_odd << 31));
    const int32_t is_below_zero = (uint32_t)bits - 0x80000001 < 0x7f7fffff;
    const float real = f32_either(is_below_zero, f32_either(is_whole, power, NAN), power);
    return f32_either(bits == 0x3f800000, 1, f32_either(exponent == 0, 1, real));
}

/* Powers with a small whole exponent that is a literal are products, as PyTorch's are, and those
   with a half are roots. */
#define POWER(TAG, REAL, ROOT, ANY)                                                       \
    INLINE REAL TAG##_pow(REAL base, REAL exponent)                                       \
    {                                                                                     \
        if (!__builtin_constant_p(exponent)) return ANY(base, exponent);                  \
        const REAL of = exponent < 0 ? 1 / base : base, square = of * of;                 \
        const REAL count = exponent < 0 ? -exponent : exponent;                           \
        const REAL root = TAG##_either(base == -INFINITY, INFINITY, ROOT(base + 0));      \
        if (count == 0) return 1;                                                         \
        if (count == 0.5f) return exponent < 0 ? 1 / root : root;                         \
        if (count == 1) return of;                                                        \
        if (count == 2) return square;                                                    \
        if (count == 3) return square * of;                                               \
        if (count == 4) return square * square;                                           \
        return ANY(base, exponent);                                                       \
    }
POWER(f32, float, __builtin_sqrtf, f32_power)
POWER(f64, double, __builtin_sqrt, __builtin_pow)
"""


def bound(real: str) -> list[str]:
    """Definitions that make these functions those of a call whose arithmetic has that type."""
    names = (*NAMES, "pow") if real == "f32" else ("pow",)
    return [line for name in names for line in (f"#undef {name}", f"#define {name} {real}_{name}")]
