// Floating-point numbers of 16 bits: stored as bits, computed in float, rounded once.
#pragma once

namespace emu_narrow {

struct ieee_half {
    static constexpr int code = 'e';
    static constexpr unsigned short nan = 0x7fff;

    static float widen(unsigned short bits) {
        const unsigned int sign = unsigned(bits & 0x8000) << 16;
        const unsigned int exponent = bits >> 10 & 31, fraction = bits & 1023;
        if (exponent == 31) return emu_bits<float>(sign | 0x7f800000 | fraction << 13);
        if (exponent > 0) return emu_bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
        const float size = float(fraction) * 0x1p-24f;
        return sign ? -size : size;
    }

    // To nearest, ties to even.
    static unsigned short narrow(float value) {
        unsigned int bits = emu_bits<unsigned int>(value);
        const unsigned int sign = bits >> 16 & 0x8000;
        bits &= 0x7fffffff;
        if (bits > 0x7f800000) return nan;
        if (bits >= 0x477ff000) return (unsigned short)(sign | 0x7c00);
        if (bits < 0x38800000) {  // the addition rounds to the grid of subnormal numbers
            const float on_grid = emu_bits<float>(bits) + 0.5f;
            return (unsigned short)(sign | (emu_bits<unsigned int>(on_grid) - 0x3f000000));
        }
        const unsigned int rounded = bits + 0xfff + (bits >> 13 & 1);
        return (unsigned short)(sign | (rounded - 0x38000000) >> 13);
    }
};

struct brain_float {
    static constexpr int code = 'E';
    static constexpr unsigned short nan = 0x7fff;

    static float widen(unsigned short bits) { return emu_bits<float>(unsigned(bits) << 16); }

    static unsigned short narrow(float value) {
        const unsigned int bits = emu_bits<unsigned int>(value);
        if ((bits & 0x7fffffff) > 0x7f800000) return nan;
        return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

// Rounding to odd: what is rounded again to far fewer bits is then as if rounded once (Boldo and
// Melquiond, "When double rounding is odd").
inline float to_odd_float(double value) {
    const float near = float(value);
    if (double(near) == value || value != value || __builtin_isinf(near)) return near;
    const unsigned int bits = emu_bits<unsigned int>(near);
    if (bits & 1) return near;
    const bool is_too_large = (double(near) > value) == (value > 0);
    return emu_bits<float>(is_too_large ? bits - 1 : bits + 1);
}

inline double odd_sum(double a, double b) {
    const double sum = a + b;
    if (!__builtin_isfinite(sum)) return sum;
    const double b_part = sum - a, error = (a - (sum - b_part)) + (b - b_part);
    const unsigned long long bits = emu_bits<unsigned long long>(sum);
    if (error == 0 || (bits & 1)) return sum;
    return emu_bits<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

template <class Format>
struct alignas(2) number {
    unsigned short bits;

    number() = default;
    number(float value) : bits(Format::narrow(value)) {}
    number(double value) : bits(Format::narrow(to_odd_float(value))) {}
    number(int value) : number(double(value)) {}
    number(unsigned int value) : number(double(value)) {}
    number(short value) : number(double(value)) {}
    number(unsigned short value) : number(double(value)) {}
    number(long long value) : number(double(value)) {}
    number(unsigned long long value) : number(double(value)) {}
    operator float() const { return Format::widen(bits); }

    friend number operator+(number a, number b) { return float(a) + float(b); }
    friend number operator-(number a, number b) { return float(a) - float(b); }
    friend number operator*(number a, number b) { return float(a) * float(b); }
    friend number operator/(number a, number b) { return float(a) / float(b); }
    friend number operator-(number a) {
        a.bits ^= 0x8000;
        return a;
    }
    friend number &operator+=(number &a, number b) { return a = a + b; }
    friend number &operator-=(number &a, number b) { return a = a - b; }
    friend number &operator*=(number &a, number b) { return a = a * b; }
    friend number &operator/=(number &a, number b) { return a = a / b; }
    friend bool operator<(number a, number b) { return float(a) < float(b); }
    friend bool operator>(number a, number b) { return float(a) > float(b); }
    friend bool operator<=(number a, number b) { return float(a) <= float(b); }
    friend bool operator>=(number a, number b) { return float(a) >= float(b); }
    friend bool operator==(number a, number b) { return float(a) == float(b); }
    friend bool operator!=(number a, number b) { return float(a) != float(b); }
};

template <class Format>
struct alignas(4) pair {
    number<Format> x, y;

    friend pair operator+(pair a, pair b) { return {a.x + b.x, a.y + b.y}; }
    friend pair operator-(pair a, pair b) { return {a.x - b.x, a.y - b.y}; }
    friend pair operator*(pair a, pair b) { return {a.x * b.x, a.y * b.y}; }
    friend pair operator/(pair a, pair b) { return {a.x / b.x, a.y / b.y}; }
};

}  // namespace emu_narrow

template <class Format>
constexpr int emu_code_of_class<emu_narrow::number<Format>> = Format::code;

#define EMU_NUMBER template <class F> EMU_INLINE emu_narrow::number<F>
#define EMU_PAIR template <class F> EMU_INLINE emu_narrow::pair<F>
#define EMU_TRUTH template <class F> EMU_INLINE bool

EMU_NUMBER __hadd(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a + b; }
EMU_NUMBER __hsub(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a - b; }
EMU_NUMBER __hmul(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a * b; }
EMU_NUMBER __hdiv(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a / b; }
EMU_NUMBER __hneg(emu_narrow::number<F> a) { return -a; }
EMU_NUMBER __habs(emu_narrow::number<F> a) {
    a.bits &= 0x7fff;
    return a;
}
// The product of two 16-bit numbers is exact in double.
EMU_NUMBER __hfma(
    emu_narrow::number<F> a, emu_narrow::number<F> b, emu_narrow::number<F> c) {
    return emu_narrow::odd_sum(double(float(a)) * float(b), float(c));
}
EMU_NUMBER __hmax(emu_narrow::number<F> a, emu_narrow::number<F> b) {
    return __builtin_fmaxf(a, b);
}
EMU_NUMBER __hmin(emu_narrow::number<F> a, emu_narrow::number<F> b) {
    return __builtin_fminf(a, b);
}
EMU_TRUTH __hgt(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a > b; }
EMU_TRUTH __hlt(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a < b; }
EMU_TRUTH __hge(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a >= b; }
EMU_TRUTH __hle(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a <= b; }
EMU_TRUTH __heq(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a == b; }
EMU_TRUTH __hne(emu_narrow::number<F> a, emu_narrow::number<F> b) { return a != b; }
EMU_TRUTH __hisnan(emu_narrow::number<F> a) { return a != a; }

EMU_PAIR __hadd2(emu_narrow::pair<F> a, emu_narrow::pair<F> b) { return a + b; }
EMU_PAIR __hsub2(emu_narrow::pair<F> a, emu_narrow::pair<F> b) { return a - b; }
EMU_PAIR __hmul2(emu_narrow::pair<F> a, emu_narrow::pair<F> b) { return a * b; }
EMU_PAIR __hfma2(emu_narrow::pair<F> a, emu_narrow::pair<F> b, emu_narrow::pair<F> c) {
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
EMU_PAIR __hmax2(emu_narrow::pair<F> a, emu_narrow::pair<F> b) {
    return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
EMU_PAIR __hmin2(emu_narrow::pair<F> a, emu_narrow::pair<F> b) {
    return {__hmin(a.x, b.x), __hmin(a.y, b.y)};
}

EMU_NUMBER hexp(emu_narrow::number<F> a) { return expf(a); }
EMU_NUMBER hlog(emu_narrow::number<F> a) { return logf(a); }
EMU_NUMBER hsqrt(emu_narrow::number<F> a) { return sqrtf(a); }
EMU_NUMBER hrsqrt(emu_narrow::number<F> a) { return 1.0f / sqrtf(a); }
EMU_NUMBER hrcp(emu_narrow::number<F> a) { return 1.0f / float(a); }
EMU_NUMBER htanh(emu_narrow::number<F> a) { return tanhf(a); }

template <class F>
EMU_INLINE float __low2float(emu_narrow::pair<F> a) {
    return a.x;
}
template <class F>
EMU_INLINE float __high2float(emu_narrow::pair<F> a) {
    return a.y;
}

// The conversions, whose names carry the type. The arguments: `half` or `bfloat16`; the names of
// the number and the pair; how __halves2half2 and make_half2 begin and end.
#define EMU_CONVERSIONS(name, number, pair, halves, vector)                                     \
    EMU_INLINE number __float2##name(float x) { return x; }                                     \
    EMU_INLINE number __float2##name##_rn(float x) { return x; }                                \
    EMU_INLINE number __double2##name(double x) { return x; }                                   \
    EMU_INLINE number __int2##name##_rn(int x) { return x; }                                    \
    EMU_INLINE float __##name##2float(number x) { return x; }                                   \
    EMU_INLINE int __##name##2int_rn(number x) { return int(__builtin_rintf(x)); }              \
    EMU_INLINE unsigned short __##name##_as_ushort(number x) { return x.bits; }                 \
    EMU_INLINE number __ushort_as_##name(unsigned short bits) {                                 \
        number x;                                                                               \
        x.bits = bits;                                                                          \
        return x;                                                                               \
    }                                                                                           \
    EMU_INLINE short __##name##_as_short(number x) { return short(x.bits); }                    \
    EMU_INLINE number __short_as_##name(short bits) {                                           \
        return __ushort_as_##name((unsigned short)bits);                                        \
    }                                                                                           \
    EMU_INLINE pair __floats2##name##2_rn(float x, float y) { return {x, y}; }                  \
    EMU_INLINE pair __float22##name##2_rn(float2 v) { return {v.x, v.y}; }                      \
    EMU_INLINE pair __float2##name##2_rn(float x) { return {x, x}; }                            \
    EMU_INLINE float2 __##name##22float2(pair v) { return {v.x, v.y}; }                         \
    EMU_INLINE pair __##name##2##name##2(number x) { return {x, x}; }                           \
    EMU_INLINE pair halves(number x, number y) { return {x, y}; }                               \
    EMU_INLINE pair make_##vector(number x, number y) { return {x, y}; }                        \
    EMU_INLINE number __low2##name(pair v) { return v.x; }                                      \
    EMU_INLINE number __high2##name(pair v) { return v.y; }
