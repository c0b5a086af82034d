// Products of small matrices by a warp: nvcuda::wmma, and twins of the PTX instructions mma.sync
// m16n8k16 and m16n8k8, cvt.rna.tf32 and ldmatrix.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda {
namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k>
struct emu_shape;
template <int m, int n, int k>
struct emu_shape<matrix_a, m, n, k> {
    static constexpr int rows = m, columns = k;
};
template <int m, int n, int k>
struct emu_shape<matrix_b, m, n, k> {
    static constexpr int rows = k, columns = n;
};
template <int m, int n, int k>
struct emu_shape<accumulator, m, n, k> {
    static constexpr int rows = m, columns = n;
};

// CUDA does not say which lane holds which element; here element e of lane l is number 32 e + l, row
// by row.
template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
    using shape = emu_shape<Use, m, n, k>;
    static constexpr int num_elements = shape::rows * shape::columns / 32;
    T x[num_elements];
};

template <class Fragment, class T>
EMU_INLINE void fill_fragment(Fragment &target, T value) {
    for (auto &element : target.x) element = value;
}

template <class Use, int m, int n, int k, class T, class Layout>
EMU_INLINE void load_matrix_sync(
    fragment<Use, m, n, k, T, Layout> &target, const T *source, unsigned int stride) {
    using shape = emu_shape<Use, m, n, k>;
    __syncwarp();
    for (int element = 0; element < target.num_elements; element++) {
        const int number = element * 32 + int(emu_lane());
        const int row = number / shape::columns, column = number % shape::columns;
        const bool by_rows = emu_is_same<Layout, row_major>;
        target.x[element] = source[by_rows ? row * stride + column : column * stride + row];
    }
}

template <int m, int n, int k, class T>
EMU_INLINE void load_matrix_sync(
    fragment<accumulator, m, n, k, T> &target, const T *source, unsigned int stride,
    layout_t layout) {
    __syncwarp();
    for (int element = 0; element < target.num_elements; element++) {
        const int number = element * 32 + int(emu_lane()), row = number / n, column = number % n;
        const bool by_rows = layout == mem_row_major;
        target.x[element] = source[by_rows ? row * stride + column : column * stride + row];
    }
}

template <int m, int n, int k, class T>
EMU_INLINE void store_matrix_sync(
    T *target, const fragment<accumulator, m, n, k, T> &source, unsigned int stride,
    layout_t layout) {
    __syncwarp();
    for (int element = 0; element < source.num_elements; element++) {
        const int number = element * 32 + int(emu_lane()), row = number / n, column = number % n;
        const bool by_rows = layout == mem_row_major;
        target[by_rows ? row * stride + column : column * stride + row] = source.x[element];
    }
    __syncwarp();
}

// All elements of a matrix whose lanes hold one fragment each.
template <int kind, class Fragment>
EMU_UNCHECKED void emu_gather_matrix(const Fragment &mine, float *all) {
    for (int element = 0; element < Fragment::num_elements; element++) {
        const auto value = mine.x[element];
        const void *lanes = emu_meet(~0u, kind, &value, int(sizeof value));
        for (int lane = 0; lane < 32; lane++) {
            all[element * 32 + lane] = float(emu_value_of<emu_plain<decltype(value)>>(lanes, lane));
        }
    }
}

template <int m, int n, int k, class C, class A, class LayoutA, class B, class LayoutB>
EMU_UNCHECKED void mma_sync(
    fragment<accumulator, m, n, k, C> &result, const fragment<matrix_a, m, n, k, A, LayoutA> &a,
    const fragment<matrix_b, m, n, k, B, LayoutB> &b,
    const fragment<accumulator, m, n, k, C> &added) {
    float all_a[m * k], all_b[k * n];
    emu_gather_matrix<emu_matrix_a>(a, all_a);
    emu_gather_matrix<emu_matrix_b>(b, all_b);
    for (int element = 0; element < result.num_elements; element++) {
        const int number = element * 32 + int(emu_lane()), row = number / n, column = number % n;
        float total = float(added.x[element]);
        for (int at = 0; at < k; at++) total += all_a[row * k + at] * all_b[at * n + column];
        result.x[element] = C(total);
    }
}

}  // namespace wmma
}  // namespace nvcuda

// d = a b + c with the registers of mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32, T f16 or bf16
// (PTX ISA, "Matrix fragments for mma.m16n8k16").
template <class T>
EMU_UNCHECKED void emu_mma_16816(
    float *d, const unsigned int *a, const unsigned int *b, const float *c) {
    struct registers {
        unsigned int a[4], b[2];
    };
    const registers mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const void *lanes = emu_meet(~0u, emu_matrix, &mine, int(sizeof mine));
    registers all[32];
    for (int lane = 0; lane < 32; lane++) all[lane] = emu_value_of<registers>(lanes, lane);
    const auto element = [](unsigned int pair, int which) {
        T value;
        value.bits = (unsigned short)(pair >> 16 * which);
        return float(value);
    };
    const int group = int(emu_lane()) / 4, member = int(emu_lane()) % 4;
    for (int register_ = 0; register_ < 4; register_++) {
        const int row = group + register_ / 2 * 8, column = member * 2 + register_ % 2;
        float total = c[register_];
        for (int k = 0; k < 16; k++) {
            const registers &of_row = all[row % 8 * 4 + k % 8 / 2];
            const registers &of_column = all[column * 4 + k % 8 / 2];
            total += element(of_row.a[row / 8 + k / 8 * 2], k % 2)
                * element(of_column.b[k / 8], k % 2);
        }
        d[register_] = total;
    }
}

// cvt.rna.tf32.f32: 10 bits of the fraction are left, rounded to nearest, ties away from zero.
EMU_INLINE unsigned int emu_tf32(float value) {
    const unsigned int bits = emu_bits<unsigned int>(value);
    return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu;
}

// d = a b + c with the registers of mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 (PTX ISA,
// "Matrix fragments for mma.m16n8k8"), which leaves out the lowest 13 bits of elements.
EMU_UNCHECKED void emu_mma_1688(
    float *d, const unsigned int *a, const unsigned int *b, const float *c) {
    struct registers {
        unsigned int a[4], b[2];
    };
    const registers mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const void *lanes = emu_meet(~0u, emu_matrix, &mine, int(sizeof mine));
    registers all[32];
    for (int lane = 0; lane < 32; lane++) all[lane] = emu_value_of<registers>(lanes, lane);
    const auto element = [](unsigned int word) { return emu_bits<float>(word & ~0x1fffu); };
    const int group = int(emu_lane()) / 4, member = int(emu_lane()) % 4;
    for (int register_ = 0; register_ < 4; register_++) {
        const int row = group + register_ / 2 * 8, column = member * 2 + register_ % 2;
        float total = c[register_];
        for (int k = 0; k < 8; k++) {
            total += element(all[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2])
                * element(all[column * 4 + k % 4].b[k / 4]);
        }
        d[register_] = total;
    }
}

template <int count, bool is_transposed>
EMU_UNCHECKED void emu_take_elements(unsigned int *registers, const void *rows) {
    struct row_t {
        unsigned short elements[8];
    };
    const int group = int(emu_lane()) / 4, member = int(emu_lane()) % 4;
    for (int matrix = 0; matrix < count; matrix++) {
        unsigned int halves[2];
        for (int which = 0; which < 2; which++) {
            const int other = 2 * member + which;
            const int row = is_transposed ? other : group, column = is_transposed ? group : other;
            halves[which] = emu_value_of<row_t>(rows, 8 * matrix + row).elements[column];
        }
        registers[matrix] = halves[0] | halves[1] << 16;
    }
}

// ldmatrix.sync.aligned.m8n8.xCOUNT[.trans].shared.b16: lane 8 m + r tells where row r of matrix m
// is, 16 bytes each (PTX ISA, "ldmatrix").
template <int count, bool is_transposed = false>
EMU_INLINE void emu_ldmatrix(unsigned int *registers, const void *row) {
    static_assert(count == 1 || count == 2 || count == 4, "1, 2 or 4 matrices");
    uint4 mine = {};
    if (int(emu_lane()) < 8 * count) mine = *static_cast<const uint4 *>(row);
    emu_take_elements<count, is_transposed>(
        registers, emu_meet(~0u, emu_rows, &mine, int(sizeof mine)));
}
