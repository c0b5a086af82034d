// float4 and the like, aligned as CUDA aligns them.
#pragma once

#define EMU_VECTOR_1(T, name)                        \
    struct alignas(sizeof(T)) name##1 {              \
        T x;                                         \
    };                                               \
    EMU_INLINE name##1 make_##name##1(T x) { return {x}; }

#define EMU_VECTOR_2(T, name)                        \
    struct alignas(2 * sizeof(T)) name##2 {          \
        T x, y;                                      \
    };                                               \
    EMU_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; }

#define EMU_VECTOR_3(T, name)                        \
    struct alignas(sizeof(T)) name##3 {              \
        T x, y, z;                                   \
    };                                               \
    EMU_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }

// No access of a GPU is wider than 16 bytes, and no vector is aligned more.
#define EMU_VECTOR_4(T, name)                                            \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 {    \
        T x, y, z, w;                                                    \
    };                                                                   \
    EMU_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

#define EMU_VECTORS(T, name) \
    EMU_VECTOR_1(T, name)    \
    EMU_VECTOR_2(T, name)    \
    EMU_VECTOR_3(T, name)    \
    EMU_VECTOR_4(T, name)

EMU_VECTORS(signed char, char)
EMU_VECTORS(unsigned char, uchar)
EMU_VECTORS(short, short)
EMU_VECTORS(unsigned short, ushort)
EMU_VECTORS(int, int)
EMU_VECTORS(unsigned int, uint)
EMU_VECTORS(long, long)
EMU_VECTORS(unsigned long, ulong)
EMU_VECTORS(long long, longlong)
EMU_VECTORS(unsigned long long, ulonglong)
EMU_VECTORS(float, float)
EMU_VECTORS(double, double)

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
    constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1)
        : x(x), y(y), z(z) {}
};
