// Checks of global memory: bounds, alignment, const, initialisation and races.
#pragma once
#include "findings.h"
#include "state.h"

namespace emu {

// What is known of a cell, as bits of `flags`. Marks hold the last reader and the last writer; what
// they hide is kept as bits. Only atomic writes can hide other writers that are not ordered.
constexpr uint8_t kLastWriteIsAtomic = 1;
constexpr uint8_t kWrittenPlainly = 2;
struct Hidden {
    uint8_t blocks;  // also accessed by a block before
    uint8_t warps;  // also by another warp of the last block, since its last barrier
    uint8_t lanes;  // also by another lane of the last warp, since its last __syncwarp
};
constexpr Hidden kReaders{4, 8, 16};
constexpr Hidden kWriters{32, 64, 128};

// The array that holds an access whole, or else its first byte; null if none does.
inline TrackedArray *array_at(uintptr_t address, int bytes) {
    TrackedArray *last = machine.last_array;
    if (last != nullptr && address - last->base < last->bytes
            && address - last->base + bytes <= last->bytes) {
        return last;
    }
    TrackedArray *found = nullptr;
    for (TrackedArray &array : machine.arrays) {
        if (address - array.base >= array.bytes) continue;
        found = &array;
        if (address - array.base + bytes <= array.bytes) break;
    }
    if (found != nullptr) machine.last_array = found;
    return found;
}

inline int number_of(const TrackedArray &array) { return int(&array - machine.arrays.data()); }

[[noreturn]] inline void refuse_global(
    Kind kind, uintptr_t pc, const char *what, const TrackedArray &array, uintptr_t address,
    int bytes, bool is_write) {
    Finding &finding = add_finding(kind, pc, "%s", what);
    about_access(
        finding, number_of(array), int64_t(address - array.base), bytes, is_write);
    abandon();
}

// An access outside every array is told relative to the nearest one.
[[noreturn]] inline void refuse_outside(
    uintptr_t address, int bytes, bool is_write, uintptr_t pc) {
    Finding &finding = add_finding(Kind::out_of_bounds, pc, "outside every array of the launch");
    about_access(finding, kNowhere, 0, bytes, is_write);
    uint64_t least = ~uint64_t(0);
    for (const TrackedArray &array : machine.arrays) {
        const uint64_t distance =
            address < array.base ? array.base - address : address - (array.base + array.bytes);
        if (distance >= least) continue;
        least = distance;
        finding.array = number_of(array);
        finding.offset = int64_t(address - array.base);
    }
    abandon();
}

inline void report_global_race(
    const TrackedArray &array, uintptr_t address, int bytes, bool is_write, uintptr_t pc,
    const char *what, const Mark *other, uint64_t other_pc) {
    Finding &finding = add_finding(Kind::global_race, pc, "%s", what);
    about_access(
        finding, number_of(array), int64_t(address - array.base), bytes, is_write);
    if (other == nullptr) return;
    const uint64_t thread = other->thread - 1, count = machine.thread_count;
    about_other(
        finding, thread_index(int(thread % count)), block_index(thread / count), other_pc);
}

inline Mark mark_of_current() {
    return {
        machine.block * machine.thread_count + machine.current + 1,
        machine.epoch,
        machine.warps[machine.current / kWarp].epoch,
    };
}

inline uint64_t block_of(const Mark &mark) { return (mark.thread - 1) / machine.thread_count; }

inline int warp_of(const Mark &mark) {
    return int((mark.thread - 1) % uint64_t(machine.thread_count)) / kWarp;
}

// Whether nothing orders two accesses. Blocks are never ordered within a launch.
inline bool is_unordered(const Mark &earlier, const Mark &mine) {
    if (earlier.thread == 0 || earlier.thread == mine.thread) return false;
    if (block_of(earlier) != machine.block) return true;
    if (earlier.epoch != mine.epoch) return false;
    return warp_of(earlier) != warp_of(mine) || earlier.warp_epoch == mine.warp_epoch;
}

// Makes this thread the last one of a kind, and remembers what that hides.
inline void note_last(Mark &last, uint8_t &flags, const Hidden &hidden, const Mark &mine) {
    const uint8_t in_block = hidden.warps | hidden.lanes;
    if (last.thread != 0 && block_of(last) != machine.block) {
        flags = uint8_t((flags | hidden.blocks) & ~in_block);
    } else if (last.epoch != mine.epoch) {
        flags &= uint8_t(~in_block);
    } else if (last.thread != 0 && warp_of(last) != warp_of(mine)) {
        flags = uint8_t((flags | hidden.warps) & ~hidden.lanes);
    } else if (is_unordered(last, mine)) {
        flags |= hidden.lanes;
    } else if (last.warp_epoch != mine.warp_epoch) {
        flags &= uint8_t(~hidden.lanes);
    }
    last = mine;
}

// Whether nothing orders this thread after one of those.
inline bool has_unordered(
    const Mark &last, uint8_t flags, const Hidden &hidden, const Mark &mine) {
    if ((flags & hidden.blocks) != 0 || is_unordered(last, mine)) return true;
    if (last.thread == 0 || last.epoch != mine.epoch) return false;
    return (flags & hidden.warps) != 0
        || ((flags & hidden.lanes) != 0 && last.warp_epoch == mine.warp_epoch);
}

inline bool races_with_writers(
    const Mark &last, uint8_t flags, const Mark &mine, bool is_atomic) {
    if (is_atomic && (flags & kLastWriteIsAtomic) != 0) {
        return (flags & kWrittenPlainly) != 0 && block_of(last) != machine.block;
    }
    return has_unordered(last, flags, kWriters, mine);
}

inline void note_global_writer(
    TrackedArray &array, uint64_t cell, const Mark &mine, uintptr_t pc, bool is_atomic) {
    Mark &last = array.writers[cell];
    uint8_t &flags = array.flags[cell];
    array.write_pcs[cell] = offset_in_module(pc);
    if (!is_atomic) {
        flags = uint8_t((flags & ~kLastWriteIsAtomic) | kWrittenPlainly);
        last = mine;
        return;
    }
    // A plain write of this thread stays one, if others cannot come between.
    const bool hides_plain = last.thread == mine.thread && last.epoch == mine.epoch
        && last.warp_epoch == mine.warp_epoch && (flags & kLastWriteIsAtomic) == 0;
    note_last(last, flags, kWriters, mine);
    if (!hides_plain) flags |= kLastWriteIsAtomic;
}

// One cell of an array that is written in this launch; false if it is part of a race.
inline bool check_cell(
    TrackedArray &array, uint64_t cell, uintptr_t address, int bytes, bool is_write,
    uintptr_t pc, bool is_atomic) {
    const Mark mine = mark_of_current(), writer = array.writers[cell];
    uint8_t &flags = array.flags[cell];
    if (races_with_writers(writer, flags, mine, is_atomic)) {
        const bool is_last = is_unordered(writer, mine);
        report_global_race(
            array, address, bytes, is_write, pc,
            is_write ? "two threads write one element" : "a read of what another thread writes",
            is_last ? &writer : nullptr, array.write_pcs[cell]);
        return false;
    }
    if (!is_write) {
        note_last(array.readers[cell], flags, kReaders, mine);
        return true;
    }
    const Mark &reader = array.readers[cell];
    if (has_unordered(reader, flags, kReaders, mine)) {
        report_global_race(
            array, address, bytes, is_write, pc, "a write to what another thread reads",
            is_unordered(reader, mine) ? &reader : nullptr, 0);
        return false;
    }
    note_global_writer(array, cell, mine, pc, is_atomic);
    return true;
}

inline void check_global(
    uintptr_t address, int bytes, bool is_write, uintptr_t pc, bool is_atomic) {
    TrackedArray *array = array_at(address, bytes);
    if (array == nullptr) {
        // Tables and __device__ variables of the kernel's own source; the compiler checks indices
        // into arrays of known size.
        if (address - machine.module_base < machine.module_bytes) return;
        refuse_outside(address, bytes, is_write, pc);
    }
    const uint64_t offset = address - array->base;
    if (offset + bytes > array->bytes) {
        refuse_global(
            Kind::out_of_bounds, pc, "across the end of the array", *array, address, bytes,
            is_write);
    }
    if ((address & (bytes - 1)) != 0) {
        refuse_global(
            Kind::misaligned, pc, "an address that is no multiple of the size", *array, address,
            bytes, is_write);
    }
    if (is_write && array->is_const) {
        refuse_global(
            Kind::const_write, pc, "a write to a const parameter", *array, address, bytes, true);
    }
    const uint64_t last = (offset + bytes - 1) >> array->cell_log2;
    for (uint64_t cell = offset >> array->cell_log2; cell <= last; cell++) {
        if (array->written != nullptr && !array->written[cell] && (!is_write || is_atomic)) {
            Finding &finding =
                add_finding(Kind::uninitialised_read, pc, "nothing was written there before");
            about_access(finding, number_of(*array), int64_t(offset), bytes, false);
        }
        if (array->is_const) continue;
        if (!check_cell(*array, cell, address, bytes, is_write, pc, is_atomic)) return;
        if (is_write && array->written != nullptr) array->written[cell] = 1;
    }
}

}  // namespace emu
