// The functions of CUDA's mathematics on the library of the host: for double, with the suffix f for
// float, and without it by overloading. Fast variants (__expf) are as exact as the others.
#pragma once

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

#define EMU_UNARY(name)                             \
    EMU_RUNTIME double name(double x) noexcept;     \
    EMU_RUNTIME float name##f(float x) noexcept;    \
    EMU_INLINE float name(float x) { return name##f(x); }
#define EMU_BINARY(name)                                      \
    EMU_RUNTIME double name(double x, double y) noexcept;     \
    EMU_RUNTIME float name##f(float x, float y) noexcept;     \
    EMU_INLINE float name(float x, float y) { return name##f(x, y); }

EMU_UNARY(acos)
EMU_UNARY(acosh)
EMU_UNARY(asin)
EMU_UNARY(asinh)
EMU_UNARY(atan)
EMU_UNARY(atanh)
EMU_UNARY(cbrt)
EMU_UNARY(ceil)
EMU_UNARY(cos)
EMU_UNARY(cosh)
EMU_UNARY(erf)
EMU_UNARY(erfc)
EMU_UNARY(exp)
EMU_UNARY(exp2)
EMU_UNARY(expm1)
EMU_UNARY(fabs)
EMU_UNARY(floor)
EMU_UNARY(lgamma)
EMU_UNARY(log)
EMU_UNARY(log10)
EMU_UNARY(log1p)
EMU_UNARY(log2)
EMU_UNARY(nearbyint)
EMU_UNARY(rint)
EMU_UNARY(round)
EMU_UNARY(sin)
EMU_UNARY(sinh)
EMU_UNARY(sqrt)
EMU_UNARY(tan)
EMU_UNARY(tanh)
EMU_UNARY(tgamma)
EMU_UNARY(trunc)
EMU_BINARY(atan2)
EMU_BINARY(copysign)
EMU_BINARY(fdim)
EMU_BINARY(fmax)
EMU_BINARY(fmin)
EMU_BINARY(fmod)
EMU_BINARY(hypot)
EMU_BINARY(nextafter)
EMU_BINARY(pow)
EMU_BINARY(remainder)
EMU_RUNTIME double fma(double x, double y, double z) noexcept;
EMU_RUNTIME float fmaf(float x, float y, float z) noexcept;
EMU_INLINE float fma(float x, float y, float z) { return fmaf(x, y, z); }
EMU_RUNTIME double ldexp(double x, int exponent) noexcept;
EMU_RUNTIME float ldexpf(float x, int exponent) noexcept;
EMU_INLINE float ldexp(float x, int exponent) { return ldexpf(x, exponent); }
EMU_INLINE float abs(float x) { return __builtin_fabsf(x); }
EMU_INLINE double abs(double x) { return __builtin_fabs(x); }
EMU_INLINE float pow(float x, int y) { return powf(x, float(y)); }
EMU_INLINE double pow(double x, int y) { return pow(x, double(y)); }

EMU_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
EMU_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
EMU_INLINE float rsqrt(float x) { return rsqrtf(x); }
EMU_INLINE float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
EMU_INLINE double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }

#define EMU_CLASS(name, builtin)                                 \
    EMU_INLINE bool name(float x) { return builtin(x); }         \
    EMU_INLINE bool name(double x) { return builtin(x); }
EMU_CLASS(isnan, __builtin_isnan)
EMU_CLASS(isinf, __builtin_isinf)
EMU_CLASS(isfinite, __builtin_isfinite)
EMU_CLASS(signbit, __builtin_signbit)

EMU_INLINE float __expf(float x) { return expf(x); }
EMU_INLINE float __logf(float x) { return logf(x); }
EMU_INLINE float __log2f(float x) { return log2f(x); }
EMU_INLINE float __log10f(float x) { return log10f(x); }
EMU_INLINE float __sinf(float x) { return sinf(x); }
EMU_INLINE float __cosf(float x) { return cosf(x); }
EMU_INLINE float __tanf(float x) { return tanf(x); }
EMU_INLINE float __exp10f(float x) { return powf(10.0f, x); }
EMU_INLINE float __powf(float x, float y) { return powf(x, y); }
EMU_INLINE float __fdividef(float x, float y) { return x / y; }
EMU_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
EMU_INLINE float __frcp_rn(float x) { return 1.0f / x; }
EMU_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
EMU_INLINE float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
EMU_INLINE float __fadd_rn(float x, float y) { return x + y; }
EMU_INLINE float __fsub_rn(float x, float y) { return x - y; }
EMU_INLINE float __fmul_rn(float x, float y) { return x * y; }
EMU_INLINE float __fdiv_rn(float x, float y) { return x / y; }
EMU_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
EMU_INLINE double __dadd_rn(double x, double y) { return x + y; }
EMU_INLINE double __dmul_rn(double x, double y) { return x * y; }
EMU_INLINE double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
