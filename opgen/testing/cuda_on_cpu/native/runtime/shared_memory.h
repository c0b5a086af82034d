// Checks of shared memory: bounds, alignment, initialisation and races.
//
// Races are decided by epochs, not by the order in which threads happened to run: two accesses of
// different threads, one of them a write, need a barrier between them, or a __syncwarp if they are
// of one warp. So one run in one order finds them.
#pragma once
#include "findings.h"
#include "state.h"

namespace emu {

// Who read a byte, or added to it atomically, since the last barrier: one thread, several lanes of
// one warp between two __syncwarp, or several warps.
namespace users {
constexpr uint16_t first_warp = kMostThreads;  // first_warp + w: several lanes of warp w
constexpr uint16_t several_warps = 0xffff;

inline bool is_thread(uint16_t code) { return code < first_warp; }
inline int warp(uint16_t code) { return is_thread(code) ? code / kWarp : code - first_warp; }
}  // namespace users

inline void report_shared_race(
    uintptr_t pc, const SharedCell &cell, int64_t offset, int bytes, bool is_write,
    bool with_writer) {
    const char *what = !with_writer ? "a write after a read"
        : is_write                  ? "two writes"
                                    : "a read after a write";
    Finding &finding =
        add_finding(Kind::shared_race, pc, "%s of other threads with no barrier between", what);
    about_access(finding, kSharedMemory, offset, bytes, is_write);
    const uint16_t other = with_writer ? cell.writer : cell.reader;
    if (other == users::several_warps) return;
    const int thread = users::is_thread(other) ? other : users::warp(other) * kWarp;
    about_other(
        finding, thread_index(thread), emu_position.block,
        with_writer ? cell.write_pc : cell.read_pc);
}

// Whether one of the users of a byte in this epoch is another thread that nothing orders before
// this one.
inline bool is_unordered_with(uint16_t code, uint32_t warp_epoch) {
    const int me = machine.current, mine = me / kWarp;
    if (code == me) return false;
    return code == users::several_warps || users::warp(code) != mine
        || warp_epoch == machine.warps[mine].epoch;
}

inline bool races_with_writer(const SharedCell &cell, bool is_atomic) {
    if (cell.write_epoch != machine.epoch || (is_atomic && cell.is_atomic)) return false;
    return is_unordered_with(cell.writer, cell.write_warp_epoch);
}

inline bool races_with_reader(const SharedCell &cell) {
    return cell.read_epoch == machine.epoch
        && is_unordered_with(cell.reader, cell.read_warp_epoch);
}

// This thread together with the users of a byte before it.
inline uint16_t joined(uint16_t code, uint32_t epoch, uint32_t warp_epoch) {
    const int me = machine.current, warp = me / kWarp;
    if (epoch != machine.epoch || code == me) return uint16_t(me);
    if (code == users::several_warps || users::warp(code) != warp) return users::several_warps;
    const bool is_now = warp_epoch == machine.warps[warp].epoch;
    return uint16_t(is_now ? users::first_warp + warp : me);
}

inline void note_reader(SharedCell &cell, uint32_t pc) {
    cell.reader = joined(cell.reader, cell.read_epoch, cell.read_warp_epoch);
    cell.read_epoch = machine.epoch;
    cell.read_warp_epoch = machine.warps[machine.current / kWarp].epoch;
    cell.read_pc = pc;
}

inline void note_writer(SharedCell &cell, uint32_t pc, bool is_atomic) {
    const int me = machine.current;
    const uint32_t warp_epoch = machine.warps[me / kWarp].epoch;
    // A plain write of this thread stays one, if others cannot come between.
    const bool hides_plain = !cell.is_atomic && cell.write_epoch == machine.epoch
        && cell.writer == me && cell.write_warp_epoch == warp_epoch;
    cell.writer = is_atomic ? joined(cell.writer, cell.write_epoch, cell.write_warp_epoch)
                            : uint16_t(me);
    cell.write_epoch = machine.epoch;
    cell.write_warp_epoch = warp_epoch;
    cell.write_pc = pc;
    cell.is_atomic = is_atomic && !hides_plain;
}

[[noreturn]] inline void refuse_shared(
    Kind kind, uintptr_t pc, const char *what, int64_t offset, int bytes, bool is_write) {
    about_access(add_finding(kind, pc, "%s", what), kSharedMemory, offset, bytes, is_write);
    abandon();
}

// `extern __shared__` arrays start where the dynamic part does; a launch uses the front of it.
inline void check_shared_bounds(uintptr_t address, int bytes, bool is_write, uintptr_t pc) {
    const uintptr_t end = address + bytes;
    const uintptr_t dynamic_end = machine.dynamic_base + machine.dynamic_bytes;
    const int64_t offset = int64_t(address - machine.shared_base);
    const bool is_dynamic = machine.dynamic_capacity > 0 && end > machine.dynamic_base
        && address < machine.dynamic_base + machine.dynamic_capacity;
    if (is_dynamic && end > dynamic_end) {
        char what[96];
        snprintf(
            what, sizeof what, "dynamic shared memory has %zu bytes in this launch",
            machine.dynamic_bytes);
        refuse_shared(
            Kind::out_of_bounds, pc, what, int64_t(address - machine.dynamic_base), bytes,
            is_write);
    }
    if (end > machine.shared_base + machine.shared_bytes) {
        refuse_shared(
            Kind::out_of_bounds, pc, "outside shared memory", offset, bytes, is_write);
    }
    if ((address & (bytes - 1)) != 0) {
        refuse_shared(
            Kind::misaligned, pc, "an address in shared memory that is no multiple of the size",
            offset, bytes, is_write);
    }
}

inline bool is_copied_to(const SharedCell &cell) {
    return cell.pending_epoch >= machine.block_epoch;
}

inline void report_pending_copy(
    uintptr_t pc, const SharedCell &cell, int64_t offset, int bytes, bool is_write) {
    Finding &finding =
        add_finding(Kind::shared_race, pc, "an asynchronous copy to it is under way");
    about_access(finding, kSharedMemory, offset, bytes, is_write);
    about_other(finding, emu_position.thread, emu_position.block, cell.pending_pc);
}

// A copy may write at any time from here on, so it must come after the accesses of other threads.
inline void begin_copy(uintptr_t address, int bytes, uintptr_t pc) {
    check_shared_bounds(address, bytes, true, pc);
    const uint32_t offset = uint32_t(address - machine.shared_base);
    for (int byte = 0; byte < bytes; byte++) {
        SharedCell &cell = machine.shared_cells[offset + byte];
        if (is_copied_to(cell)) {
            report_pending_copy(pc, cell, offset + byte, bytes, true);
        } else if (races_with_writer(cell, false) || races_with_reader(cell)) {
            const bool with_writer = races_with_writer(cell, false);
            report_shared_race(pc, cell, offset + byte, bytes, true, with_writer);
        }
        cell.pending_epoch = machine.epoch;
        cell.pending_pc = offset_in_module(pc);
    }
}

inline void end_copy(uintptr_t address, int bytes) {
    const uint32_t offset = uint32_t(address - machine.shared_base);
    for (int byte = 0; byte < bytes; byte++) machine.shared_cells[offset + byte].pending_epoch = 0;
}

inline void check_shared(
    uintptr_t address, int bytes, bool is_write, uintptr_t pc, bool is_atomic) {
    check_shared_bounds(address, bytes, is_write, pc);
    const uint32_t offset = uint32_t(address - machine.shared_base);
    const uint32_t module_pc = offset_in_module(pc);
    for (int byte = 0; byte < bytes; byte++) {
        SharedCell &cell = machine.shared_cells[offset + byte];
        if (is_copied_to(cell)) {
            report_pending_copy(pc, cell, offset + byte, bytes, is_write);
            return;
        }
        const bool is_written = cell.write_epoch >= machine.block_epoch;
        if (!is_written && (!is_write || is_atomic)) {
            Finding &finding =
                add_finding(Kind::uninitialised_read, pc, "nothing was written there before");
            about_access(finding, kSharedMemory, offset + byte, bytes, false);
        }
        if (races_with_writer(cell, is_atomic)) {
            report_shared_race(pc, cell, offset + byte, bytes, is_write, true);
            return;
        }
        if (!is_write) {
            note_reader(cell, module_pc);
            continue;
        }
        if (races_with_reader(cell)) {
            report_shared_race(pc, cell, offset + byte, bytes, is_write, false);
            return;
        }
        note_writer(cell, module_pc, is_atomic);
    }
}

}  // namespace emu
