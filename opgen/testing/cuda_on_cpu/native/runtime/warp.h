// Operations of a warp: lanes of a mask meet, and each sees what all brought.
#pragma once
#include <cstring>

#include "schedule.h"
#include "state.h"

namespace emu {

constexpr int kSyncWarp = 0;  // kinds above are the warp operations of shim/warp.h

inline Rendezvous *meeting_of(Warp &warp, uint32_t mask) {
    for (Rendezvous &each : warp.rendezvous) {
        if ((each.arrived | each.unread) != 0 && each.mask == mask) return &each;
    }
    for (Rendezvous &each : warp.rendezvous) {
        if ((each.arrived | each.unread) == 0) {
            each.mask = mask;
            return &each;
        }
    }
    return nullptr;
}

[[noreturn]] inline void misuse(uintptr_t pc, const char *what) {
    add_finding(Kind::warp_operation, pc, "%s", what);
    abandon();
}

// The lanes of this warp that the block has, of those in a mask. A full mask is usual where the
// last warp is short; any other mask must name lanes that exist.
inline uint32_t existing_lanes(uint32_t mask, int warp, uintptr_t pc) {
    const bool is_whole = (warp + 1) * kWarp <= machine.thread_count;
    const uint32_t exist = is_whole ? ~0u : (1u << machine.thread_count % kWarp) - 1;
    if ((mask & ~exist) != 0 && mask != ~0u) {
        misuse(pc, "the mask names lanes that the block does not have");
    }
    return mask & exist;
}

inline const void *meet(uint32_t mask, int kind, const void *value, int bytes, uintptr_t pc) {
    const int lane = machine.current % kWarp, number = machine.current / kWarp;
    Warp &warp = machine.warps[number];
    const uint32_t me = 1u << lane;
    if ((mask & me) == 0) misuse(pc, "the calling lane is not in the mask");
    mask = existing_lanes(mask, number, pc);
    Rendezvous *meeting = meeting_of(warp, mask);
    if (meeting != nullptr && meeting->arrived == 0) {
        meeting->kind = kind;
        meeting->bytes = bytes;
        meeting->pc = pc;
    }
    if (meeting == nullptr || meeting->kind != kind || meeting->bytes != bytes
            || (meeting->arrived & me) != 0) {
        misuse(pc, "lanes of one mask meet in different warp operations");
    }
    if (bytes > 0) memcpy(meeting->values[lane], value, bytes);
    meeting->arrived |= me;
    machine.threads[machine.current].rendezvous = meeting;
    if (meeting->arrived == mask) {
        if (bytes > 0) memcpy(meeting->snapshot, meeting->values, sizeof meeting->values);
        for (uint32_t rest = mask & ~me; rest != 0; rest &= rest - 1) {
            wake(number * kWarp + __builtin_ctz(rest));
        }
        // Only __syncwarp orders memory; shuffles and votes exchange registers.
        if (kind == kSyncWarp) warp.epoch++;
        meeting->arrived = 0;
        meeting->unread = mask;
    } else {
        wait_as(ThreadState::at_warp_operation, pc);
    }
    meeting->unread &= ~me;
    return meeting->snapshot;
}

}  // namespace emu

// Waits for the lanes of the mask; returns their values, 32 bytes apart.
EMU_EXPORT const void *emu_meet(unsigned mask, int kind, const void *value, int bytes) {
    return emu::meet(mask, kind, value, bytes, uintptr_t(__builtin_return_address(0)));
}

EMU_EXPORT unsigned emu_lane() { return emu::machine.current % emu::kWarp; }

EMU_EXPORT void emu_trap(const char *what) {
    emu::add_finding(emu::Kind::trap, uintptr_t(__builtin_return_address(0)), "%s", what);
    emu::abandon();
}

EMU_EXPORT void emu_misuse(const char *what) {
    emu::misuse(uintptr_t(__builtin_return_address(0)), what);
}
