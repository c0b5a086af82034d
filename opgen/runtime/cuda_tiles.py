"""Products of matrices by tiles, in CUDA: what stands before kernels that are one.

A block computes the cells of a tile of rows and columns. It goes through the terms in parts of a
few: the elements of the tile's rows and of its columns for these terms are copied to shared memory,
those of the next part are on their way meanwhile, and all threads multiply from there. Elements of
16 bits, and those of 32 bits where a call allows TF32, are multiplied by tensor cores; others by
fused multiply-adds of a square of cells for each thread. Sums go through shared memory once more,
so that neighbours in the result are stored together. Where there are too few tiles for a GPU,
several blocks share the terms of one, and leave partial sums to a second kernel. All are added up
in an order that depends on nothing but sizes: results are the same in every call.

Shared memory has no bank conflicts of more than two ways. For tensor cores a tile has 64 bytes of
terms for each row, 16 bytes of which change places with others by the number of the row; `ldmatrix`
reads them 8 rows at a time. For multiply-adds it has a row for each term, 4 elements longer than
the tile.

Instructions that C++ has no name for are in PTX, each with a twin that the emulator runs.
"""

from __future__ import annotations

SOURCE = r"""
/* How a product is computed: by multiply-adds (0), tensor cores for 16 bits (1) or TF32 (2); rows
   and columns of a tile; which term is the fastest, and whether no 16 bytes of terms leave its
   range; whether neighbouring threads copy neighbouring terms of a factor, not rows; whether those
   are loaded at once; whether they store neighbouring columns, not rows; whether the blocks along y
   share the terms. */
template <int KIND_, int TILE_, int LAST_, bool WHOLE_, bool LEFT_ALONG_, bool RIGHT_ALONG_,
          bool LEFT_AT_ONCE_, bool RIGHT_AT_ONCE_, bool OUT_ALONG_, bool SPLIT_>
struct product_plan {
    static constexpr int KIND = KIND_, TILE = TILE_, LAST = LAST_;
    static constexpr bool WHOLE = WHOLE_, LEFT_ALONG = LEFT_ALONG_, RIGHT_ALONG = RIGHT_ALONG_,
        LEFT_AT_ONCE = LEFT_AT_ONCE_, RIGHT_AT_ONCE = RIGHT_AT_ONCE_, OUT_ALONG = OUT_ALONG_,
        SPLIT = SPLIT_;
    static constexpr int THREADS_OF_BLOCK = KIND ? 2 * TILE : 256;
};

#ifdef OPGEN_HOST_EMU
#include <mma.h>
FUNCTION void load_matrices(uint32_t *registers, const void *row)
{
    emu_ldmatrix<4>(registers, row);
}
FUNCTION void add_product(f16, float *total, const uint32_t *a, const uint32_t *b)
{
    emu_mma_16816<__half>(total, a, b, total);
}
FUNCTION void add_product(bf16, float *total, const uint32_t *a, const uint32_t *b)
{
    emu_mma_16816<__nv_bfloat16>(total, a, b, total);
}
FUNCTION void add_product(f32, float *total, const uint32_t *a, const uint32_t *b)
{
    emu_mma_1688(total, a, b, total);
}
FUNCTION uint32_t to_tf32(float value) { return emu_tf32(value); }
#elif __CUDA_ARCH__ >= 800
/* Lane 8 m + r tells where row r of matrix m is; register m holds two elements of that matrix. */
FUNCTION void load_matrices(uint32_t *registers, const void *row)
{
    const uint32_t place = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(place) : "memory");
}
#define ADD_PRODUCT(type, shape, name) \
    FUNCTION void add_product(type, float *total, const uint32_t *a, const uint32_t *b) \
    { \
        asm("mma.sync.aligned." shape ".row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, " \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(total[0]), "+f"(total[1]), "+f"(total[2]), "+f"(total[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
ADD_PRODUCT(f16, "m16n8k16", "f16")
ADD_PRODUCT(bf16, "m16n8k16", "bf16")
ADD_PRODUCT(f32, "m16n8k8", "tf32")
FUNCTION uint32_t to_tf32(float value)
{
    uint32_t out;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(value));
    return out;
}
#else
/* No launch asks for these on such a device. */
FUNCTION void load_matrices(uint32_t *, const void *) { __trap(); }
template <class A> FUNCTION void add_product(A, float *, const uint32_t *, const uint32_t *)
{
    __trap();
}
FUNCTION uint32_t to_tf32(float) { return 0; }
#endif

/* An element as it is computed with; temporaries are stored so. */
#define METHOD __device__ __forceinline__
template <class A> struct product_element {
    FUNCTION wide value(A cell) { return from_T(cell); }
};
template <> struct product_element<wide> {
    FUNCTION wide value(wide cell) { return cell; }
};

/* The part of a factor that a block multiplies next: `TILE` rows of it, or columns, and `DEPTH`
   terms. A thread copies units of 16 bytes of terms, of the same rows all the way. */
template <class Plan, bool ALONG, bool AT_ONCE, class A, class At> struct product_part {
    static constexpr int TILE = Plan::TILE;
    static constexpr int UNIT = 16 / sizeof(A);
    static constexpr int DEPTH = Plan::KIND ? 64 / sizeof(A) : 8;
    static constexpr int UNITS = DEPTH / UNIT;
    static constexpr int THREADS_OF_BLOCK = Plan::THREADS_OF_BLOCK;
    static constexpr int COUNT = (TILE * UNITS + THREADS_OF_BLOCK - 1) / THREADS_OF_BLOCK;
    static constexpr int PITCH = TILE + 4;
    static constexpr int BYTES = Plan::KIND ? TILE * 64 : DEPTH * PITCH * (int)sizeof(wide);

    At at[COUNT];
    bool is_inside[COUNT];
    A cells[COUNT][UNIT];

    FUNCTION int row_of(int n)
    {
        const int unit = threadIdx.x + n * Plan::THREADS_OF_BLOCK;
        return ALONG ? unit / UNITS : unit % TILE;
    }
    FUNCTION int unit_of(int n)
    {
        const int unit = threadIdx.x + n * Plan::THREADS_OF_BLOCK;
        return ALONG ? unit % UNITS : unit / TILE;
    }

    template <class Find> METHOD void begin(index_t first, index_t count, const Find &find)
    {
        UNROLL
        for (int n = 0; n < COUNT; n++) {
            const index_t row = first + row_of(n);
            is_inside[n] = row < count && row_of(n) < TILE && unit_of(n) < UNITS;
            at[n] = find(is_inside[n] ? row : 0);
        }
    }

    /* Load the elements of the terms from `first` on; what is absent is 0. */
    template <class Find, class After, class Place>
    METHOD void load(index_t first, index_t count, const Find &find, const After &after,
                       const Place &place)
    {
        UNROLL
        for (int n = 0; n < COUNT; n++) {
            const index_t point = first + unit_of(n) * UNIT;
            const bool is_some = is_inside[n] && point < count;
            auto term = find(is_some ? point : 0);
            if (AT_ONCE) {
                const A *from = is_some ? place(at[n], term) : nullptr;
                UNROLL
                for (int e = 0; e < UNIT; e++) cells[n][e] = A();
                if (from && (size_t)from % 16 == 0) {
                    const uint4 all = *(const uint4 *)from;
                    memcpy(cells[n], &all, 16);
                } else if (from) {
                    UNROLL
                    for (int e = 0; e < UNIT; e++) cells[n][e] = from[e];
                }
            } else {
                UNROLL
                for (int e = 0; e < UNIT; e++) {
                    const bool is_term = is_some && (Plan::WHOLE || point + e < count);
                    const A *from = is_term ? place(at[n], term) : nullptr;
                    cells[n][e] = from ? *from : A();
                    if (e + 1 < UNIT) term = after(term);
                }
            }
        }
    }

    /* Store what was loaded. */
    METHOD void store(unsigned char *tile) const
    {
        UNROLL
        for (int n = 0; n < COUNT; n++) {
            const int row = row_of(n), unit = unit_of(n);
            if (row >= TILE || unit >= UNITS) continue;
            if constexpr (Plan::KIND == 0) {
                UNROLL
                for (int e = 0; e < UNIT; e++) {
                    ((wide *)tile)[(unit * UNIT + e) * PITCH + row]
                        = product_element<A>::value(cells[n][e]);
                }
            } else {
                uint4 all;
                if constexpr (Plan::KIND == 2) {
                    uint32_t rounded[4];
                    UNROLL
                    for (int e = 0; e < 4; e++) rounded[e] = to_tf32(cells[n][e]);
                    memcpy(&all, rounded, 16);
                } else {
                    memcpy(&all, cells[n], 16);
                }
                *(uint4 *)(tile + row * 64 + (unit ^ row / 2 % 4) * 16) = all;
            }
        }
    }
};

/* The sums of a thread's cells. `pass` of `PASSES` writes those of some rows to shared memory, as
   rows `PITCH` apart; `row_of` is the row of the tile that one of these is. */
template <class Plan> struct product_sums_by_adding {
    static constexpr int TILE = Plan::TILE, SIDE = TILE / 16, VECTOR = 16 / sizeof(wide);
    static constexpr int PASSES = SIDE / VECTOR, ROWS = 16 * VECTOR;
    wide total[SIDE][SIDE];

    METHOD void begin()
    {
        UNROLL
        for (int r = 0; r < SIDE; r++) {
            UNROLL
            for (int c = 0; c < SIDE; c++) total[r][c] = 0;
        }
    }
    FUNCTION void read(wide *values, const wide *from, int thread)
    {
        UNROLL
        for (int h = 0; h < SIDE; h += VECTOR) {
            const uint4 all = *(const uint4 *)(from + h * 16 + thread * VECTOR);
            memcpy(values + h, &all, 16);
        }
    }
    template <class Left, class Right>
    METHOD void add(const unsigned char *left, const unsigned char *right)
    {
        UNROLL
        for (int k = 0; k < Left::DEPTH; k++) {
            wide a[SIDE], b[SIDE];
            read(a, (const wide *)left + k * Left::PITCH, threadIdx.x / 16);
            read(b, (const wide *)right + k * Right::PITCH, threadIdx.x % 16);
            UNROLL
            for (int r = 0; r < SIDE; r++) {
                UNROLL
                for (int c = 0; c < SIDE; c++) total[r][c] = multiply_add(a[r], b[c], total[r][c]);
            }
        }
    }
    template <int PITCH> METHOD void write(int pass, wide *to) const
    {
        UNROLL
        for (int r = 0; r < VECTOR; r++) {
            UNROLL
            for (int h = 0; h < SIDE; h += VECTOR) {
                uint4 all;
                memcpy(&all, &total[pass * VECTOR + r][h], 16);
                wide *place = to + (threadIdx.x / 16 * VECTOR + r) * PITCH + h * 16
                    + threadIdx.x % 16 * VECTOR;
                *(uint4 *)place = all;
            }
        }
    }
    FUNCTION int row_of(int pass, int row) { return pass * ROWS + row; }
};

template <class Plan, class A> struct product_sums_by_tensor_cores {
    static constexpr int TILE = Plan::TILE, DOWN = TILE / 32, ACROSS = Plan::THREADS_OF_BLOCK / 64;
    static constexpr int PARTS = TILE / (8 * ACROSS);
    static constexpr int PASSES = DOWN, ROWS = 32;
    float total[DOWN][PARTS][4];  // two rows of warps, each with DOWN parts of 16 rows

    METHOD void begin()
    {
        UNROLL
        for (int d = 0; d < DOWN; d++) {
            UNROLL
            for (int p = 0; p < PARTS; p++) {
                UNROLL
                for (int e = 0; e < 4; e++) total[d][p][e] = 0;
            }
        }
    }
    FUNCTION int warp() { return threadIdx.x / 32; }
    FUNCTION const void *at(const unsigned char *tile, int row, int unit)
    {
        return tile + row * 64 + (unit ^ row / 2 % 4) * 16;
    }
    template <class Left, class Right>
    METHOD void add(const unsigned char *left, const unsigned char *right)
    {
        const int matrix = threadIdx.x / 8 % 4, line = threadIdx.x % 8;
        const int top = warp() / ACROSS * (TILE / 2), side = warp() % ACROSS * (TILE / ACROSS);
        UNROLL
        for (int unit = 0; unit < 4; unit += 2) {
            uint32_t a[DOWN][4], b[2 * PARTS];
            UNROLL
            for (int d = 0; d < DOWN; d++) {
                const int row = top + d * 16 + matrix % 2 * 8 + line;
                load_matrices(a[d], at(left, row, unit + matrix / 2));
            }
            UNROLL
            for (int p = 0; p < PARTS; p += 2) {
                const int row = side + p * 8 + matrix / 2 * 8 + line;
                load_matrices(b + 2 * p, at(right, row, unit + matrix % 2));
            }
            UNROLL
            for (int d = 0; d < DOWN; d++) {
                UNROLL
                for (int p = 0; p < PARTS; p++) add_product(A(), total[d][p], a[d], b + 2 * p);
            }
        }
    }
    template <int PITCH> METHOD void write(int pass, wide *to) const
    {
        const int lane = threadIdx.x % 32;
        const int row = warp() / ACROSS * 16 + lane / 4;
        UNROLL
        for (int d = 0; d < DOWN; d++) {
            if (d != pass) continue;
            UNROLL
            for (int p = 0; p < PARTS; p++) {
                const int side = warp() % ACROSS * (TILE / ACROSS) + p * 8 + lane % 4 * 2;
                wide *place = to + row * PITCH + side;
                place[0] = total[d][p][0];
                place[1] = total[d][p][1];
                place[8 * PITCH] = total[d][p][2];
                place[8 * PITCH + 1] = total[d][p][3];
            }
        }
    }
    FUNCTION int row_of(int pass, int row)
    {
        return row / 16 * (TILE / 2) + pass * 16 + row % 16;
    }
};

template <class Plan, class A, int KIND> struct product_sums {
    typedef product_sums_by_tensor_cores<Plan, A> type;
};
template <class Plan, class A> struct product_sums<Plan, A, 0> {
    typedef product_sums_by_adding<Plan> type;
};

/* One tile of a product of matrices. Rows, columns and terms are numbered; `find_row` and the like
   give the indices of a number, `after` those of the next term, `left` and `right` the places of
   elements, and `store` takes the sum of a cell. Where blocks share the terms, they write what they
   have to `partial` instead, that of the next block `cells` further. */
template <class Plan, class A, class B, class FindRow, class FindColumn, class FindTerm,
          class After, class Left, class Right, class Store>
FUNCTION void multiply_matrices(index_t rows, index_t columns, index_t terms,
                                const FindRow &find_row, const FindColumn &find_column,
                                const FindTerm &find_term, const After &after, const Left &left,
                                const Right &right, const Store &store, wide *partial,
                                int64_t cells)
{
    typedef product_part<Plan, Plan::LEFT_ALONG, Plan::LEFT_AT_ONCE, A, decltype(find_row(0))>
        left_part;
    typedef product_part<Plan, Plan::RIGHT_ALONG, Plan::RIGHT_AT_ONCE, B, decltype(find_column(0))>
        right_part;
    typedef typename product_sums<Plan, A, Plan::KIND>::type sums_t;
    constexpr int TILE = Plan::TILE, PITCH = TILE + 4, DEPTH = left_part::DEPTH;
    constexpr int PARTS = left_part::BYTES + right_part::BYTES;
    constexpr int SUMS = sums_t::ROWS * PITCH * (int)sizeof(wide);
    constexpr int BYTES = 2 * PARTS > SUMS ? 2 * PARTS : SUMS;
    __shared__ uint4 memory[BYTES / 16];
    unsigned char *const shared = (unsigned char *)memory;

    const index_t tiles = (rows + TILE - 1) / TILE;
    const index_t first_column = (index_t)(blockIdx.x / tiles) * TILE;
    const index_t first_row = (index_t)(blockIdx.x % tiles) * TILE;
    left_part a;
    right_part b;
    a.begin(first_row, rows, find_row);
    b.begin(first_column, columns, find_column);
    sums_t sums;
    sums.begin();
    index_t begin = 0;
    if (Plan::SPLIT) {
        const index_t share = (terms / (index_t)gridDim.y / DEPTH + 1) * DEPTH;
        begin = least((index_t)blockIdx.y * share, terms);
        terms = least(begin + share, terms);
        partial += blockIdx.y * cells;
    }
    a.load(begin, terms, find_term, after, left);
    b.load(begin, terms, find_term, after, right);
    int half = 0;
    for (index_t first = begin; first < terms; first += DEPTH) {
        unsigned char *const part = shared + half * PARTS;
        a.store(part);
        b.store(part + left_part::BYTES);
        __syncthreads();
        if (first + DEPTH < terms) {
            a.load(first + DEPTH, terms, find_term, after, left);
            b.load(first + DEPTH, terms, find_term, after, right);
        }
        sums.template add<left_part, right_part>(part, part + left_part::BYTES);
        half = 1 - half;
    }
    UNROLL
    for (int pass = 0; pass < sums_t::PASSES; pass++) {
        constexpr int GROUP = 64 / sizeof(wide);  // rows that are stored together
        wide *const out = (wide *)shared;
        __syncthreads();
        sums.template write<PITCH>(pass, out);
        __syncthreads();
        for (int cell = threadIdx.x; cell < sums_t::ROWS * TILE; cell += Plan::THREADS_OF_BLOCK) {
            const int line = Plan::OUT_ALONG
                ? cell / TILE : cell % GROUP + cell / (GROUP * TILE) * GROUP;
            const int side = Plan::OUT_ALONG ? cell % TILE : cell / GROUP % TILE;
            const index_t row = first_row + sums_t::row_of(pass, line);
            const index_t column = first_column + side;
            if (row >= rows || column >= columns) continue;
            const wide sum = out[line * PITCH + side];
            if (Plan::SPLIT) {
                partial[(int64_t)row * columns + column] = sum;
            } else {
                store(find_row(row), find_column(column), sum);
            }
        }
    }
    __syncthreads();
}
"""
"""Stands between the element types of a call and the kernels."""
