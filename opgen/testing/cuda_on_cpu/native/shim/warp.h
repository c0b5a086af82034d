// Shuffles, votes and reductions of a warp. A kind tells apart what lanes meet for: lanes that meet
// in different operations are an error.
#pragma once

// Waits for the lanes of the mask; returns what they brought, 32 bytes apart.
EMU_RUNTIME const void *emu_meet(unsigned int mask, int kind, const void *value, int bytes);
EMU_RUNTIME unsigned int emu_lane();

enum { emu_sync, emu_shfl, emu_shfl_up, emu_shfl_down, emu_shfl_xor, emu_ballot, emu_reduce_kind,
       emu_matrix_a, emu_matrix_b, emu_matrix, emu_rows };

EMU_INLINE void __syncwarp(unsigned int mask = 0xffffffffu) { emu_meet(mask, emu_sync, nullptr, 0); }

template <class T>
EMU_UNCHECKED T emu_value_of(const void *all, int lane) {
    T value;
    __builtin_memcpy(&value, static_cast<const char *>(all) + 32 * lane, sizeof value);
    return value;
}

template <class T>
EMU_INLINE T emu_shuffle(unsigned int mask, int kind, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    const void *all = emu_meet(mask, kind, &value, int(sizeof(T)));
    if (source < 0 || source > 31 || !(mask >> source & 1)) {
        emu_misuse("a shuffle reads a lane outside its mask");
    }
    return emu_value_of<T>(all, source);
}

template <class T>
EMU_INLINE T __shfl_sync(unsigned int mask, T value, int source, int width = 32) {
    const int lane = int(emu_lane());
    return emu_shuffle(mask, emu_shfl, value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <class T>
EMU_INLINE T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
    const int lane = int(emu_lane()), source = lane - int(delta);
    return emu_shuffle(mask, emu_shfl_up, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T>
EMU_INLINE T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
    const int lane = int(emu_lane()), source = lane + int(delta);
    return emu_shuffle(mask, emu_shfl_down, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T>
EMU_INLINE T __shfl_xor_sync(unsigned int mask, T value, int bits, int width = 32) {
    const int lane = int(emu_lane()), source = lane ^ bits;
    return emu_shuffle(mask, emu_shfl_xor, value, source > (lane | (width - 1)) ? lane : source);
}

EMU_INLINE unsigned int __ballot_sync(unsigned int mask, int vote) {
    const void *all = emu_meet(mask, emu_ballot, &vote, int(sizeof vote));
    unsigned int votes = 0;
    for (int lane = 0; lane < 32; lane++) {
        if ((mask >> lane & 1) && emu_value_of<int>(all, lane)) votes |= 1u << lane;
    }
    return votes;
}
EMU_INLINE int __any_sync(unsigned int mask, int vote) { return __ballot_sync(mask, vote) != 0; }
EMU_INLINE int __all_sync(unsigned int mask, int vote) { return __ballot_sync(mask, vote) == mask; }

template <class T, class Join>
EMU_INLINE T emu_reduce(unsigned int mask, T value, Join join) {
    const void *all = emu_meet(mask, emu_reduce_kind, &value, int(sizeof(T)));
    T total = value;
    bool is_first = true;
    for (int lane = 0; lane < 32; lane++) {
        if (!(mask >> lane & 1)) continue;
        const T other = emu_value_of<T>(all, lane);
        total = is_first ? other : join(total, other);
        is_first = false;
    }
    return total;
}
template <class T>
EMU_INLINE T __reduce_add_sync(unsigned int mask, T value) {
    return emu_reduce(mask, value, [](T a, T b) { return T(a + b); });
}
template <class T>
EMU_INLINE T __reduce_max_sync(unsigned int mask, T value) {
    return emu_reduce(mask, value, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
EMU_INLINE T __reduce_min_sync(unsigned int mask, T value) {
    return emu_reduce(mask, value, [](T a, T b) { return a < b ? a : b; });
}
