// cp.async: the source is read when the copy is asked for, and the destination is written when the
// thread waits for its group. On a GPU it may be written any time between, so whoever accesses it
// then races with the copy.
#pragma once
#include <cstring>

#include "access.h"

namespace emu {

// Land the copies of a thread that are in groups before `group`.
inline void land_copies(int thread, int group) {
    std::vector<PendingCopy> &copies = machine.threads[thread].copies;
    size_t landed = 0;
    for (; landed < copies.size() && copies[landed].group < group; landed++) {
        const PendingCopy copy = copies[landed];
        if (machine.options.check) end_copy(uintptr_t(copy.destination), copy.bytes);
        access(uintptr_t(copy.destination), copy.bytes, true, copy.pc);
        memcpy(copy.destination, copy.source, copy.source_bytes);
        memset(copy.destination + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    }
    copies.erase(copies.begin(), copies.begin() + long(landed));
}

inline void report_unfinished_copies(int thread) {
    std::vector<PendingCopy> &copies = machine.threads[thread].copies;
    if (copies.empty()) return;
    add_finding(
        Kind::unfinished_copy, copies[0].pc, "the thread returned without waiting for the copy");
    copies.clear();
}

}  // namespace emu

// Copies source_bytes and fills up to `bytes` with zeros, as cp.async with a source size does.
EMU_EXPORT void emu_cp_async(void *destination, const void *source, int bytes, int source_bytes) {
    const auto pc = uintptr_t(__builtin_return_address(0));
    emu::Thread &thread = emu::machine.threads[emu::machine.current];
    if (bytes != 4 && bytes != 8 && bytes != 16) {
        emu::misuse(pc, "cp.async copies 4, 8 or 16 bytes");
    }
    if (source_bytes < 0 || source_bytes > bytes) {
        emu::misuse(pc, "cp.async reads more bytes than it copies");
    }
    if (uintptr_t(destination) - emu::machine.shared_base >= emu::machine.shared_bytes) {
        emu::misuse(pc, "cp.async copies to shared memory only");
    }
    if (((uintptr_t(destination) | uintptr_t(source)) & (bytes - 1)) != 0) {
        emu::add_finding(
            emu::Kind::misaligned, pc, "cp.async of %d bytes between %p and %p", bytes, source,
            destination);
        emu::abandon();
    }
    if (source_bytes > 0) emu::access_range(uintptr_t(source), source_bytes, false, pc);
    if (emu::machine.options.check) emu::begin_copy(uintptr_t(destination), bytes, pc);
    thread.copies.push_back({
        static_cast<char *>(destination), static_cast<const char *>(source), bytes, source_bytes,
        thread.group, pc,
    });
}

EMU_EXPORT void emu_cp_commit() { emu::machine.threads[emu::machine.current].group++; }

// Waits until at most `pending` groups are under way.
EMU_EXPORT void emu_cp_wait(int pending) {
    const int thread = emu::machine.current;
    emu::land_copies(thread, std::max(0, emu::machine.threads[thread].group - pending));
}
