// Integer intrinsics, and casts between numbers and their bits.
#pragma once

EMU_INLINE int __popc(unsigned int x) { return __builtin_popcount(x); }
EMU_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMU_INLINE int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
EMU_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
EMU_INLINE int __ffs(int x) { return __builtin_ffs(x); }
EMU_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
EMU_INLINE unsigned int __brev(unsigned int x) {
    unsigned int reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}
EMU_INLINE unsigned int __umulhi(unsigned int a, unsigned int b) {
    return unsigned((unsigned long long)a * b >> 32);
}
EMU_INLINE int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
EMU_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
EMU_INLINE long long __mul64hi(long long a, long long b) {
    return (long long)((__int128)a * b >> 64);
}
EMU_INLINE unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
    const unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned int result = 0;
    for (int place = 0; place < 4; place++) {
        const unsigned int from = selector >> 4 * place & 7;
        result |= unsigned(bytes >> 8 * from & 0xff) << 8 * place;
    }
    return result;
}
EMU_INLINE int __dp4a(int a, int b, int c) {
    for (int place = 0; place < 4; place++) {
        c += int((signed char)(a >> 8 * place)) * int((signed char)(b >> 8 * place));
    }
    return c;
}

EMU_INLINE int __float_as_int(float x) { return emu_bits<int>(x); }
EMU_INLINE unsigned int __float_as_uint(float x) { return emu_bits<unsigned int>(x); }
EMU_INLINE float __int_as_float(int x) { return emu_bits<float>(x); }
EMU_INLINE float __uint_as_float(unsigned int x) { return emu_bits<float>(x); }
EMU_INLINE long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
EMU_INLINE double __longlong_as_double(long long x) { return emu_bits<double>(x); }

EMU_INLINE int __float2int_rz(float x) { return int(x); }
EMU_INLINE int __float2int_rn(float x) { return int(__builtin_rintf(x)); }
EMU_INLINE int __float2int_rd(float x) { return int(__builtin_floorf(x)); }
EMU_INLINE int __float2int_ru(float x) { return int(__builtin_ceilf(x)); }
EMU_INLINE unsigned int __float2uint_rz(float x) { return unsigned(x); }
EMU_INLINE float __int2float_rn(int x) { return float(x); }
EMU_INLINE float __uint2float_rn(unsigned int x) { return float(x); }
EMU_INLINE float __ll2float_rn(long long x) { return float(x); }
EMU_INLINE double __ll2double_rn(long long x) { return double(x); }

#define EMU_LEAST_AND_GREATEST(T)                              \
    EMU_INLINE T min(T a, T b) { return b < a ? b : a; }       \
    EMU_INLINE T max(T a, T b) { return a < b ? b : a; }
EMU_LEAST_AND_GREATEST(int)
EMU_LEAST_AND_GREATEST(unsigned int)
EMU_LEAST_AND_GREATEST(long)
EMU_LEAST_AND_GREATEST(unsigned long)
EMU_LEAST_AND_GREATEST(long long)
EMU_LEAST_AND_GREATEST(unsigned long long)
EMU_INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
EMU_INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
EMU_INLINE double min(double a, double b) { return __builtin_fmin(a, b); }
EMU_INLINE double max(double a, double b) { return __builtin_fmax(a, b); }

EMU_RUNTIME int abs(int x) noexcept;
EMU_RUNTIME long labs(long x) noexcept;
EMU_RUNTIME long long llabs(long long x) noexcept;
EMU_INLINE long abs(long x) { return labs(x); }
EMU_INLINE long long abs(long long x) { return llabs(x); }
