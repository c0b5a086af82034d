// Every load and store of a kernel comes through here.
#pragma once
#include "global_memory.h"
#include "shared_memory.h"
#include "trace.h"

namespace emu {

inline void check_watchdog(uintptr_t pc) {
    machine.hooks = machine.hooks + 1;
    if (__builtin_expect(machine.ticks != 0, 0) && machine.running) {
        add_finding(Kind::timeout, pc, "the kernel does not finish");
        abandon();
    }
}

inline void access(
    uintptr_t address, int bytes, bool is_write, uintptr_t pc, bool is_atomic = false) {
    if (!machine.running) return;
    check_watchdog(pc);
    // threadIdx and the like, and variables of a thread, are registers of a GPU.
    if (address - uintptr_t(&emu_position) < sizeof emu_position) return;
    if (is_on_stacks(address)) return;
    machine.accesses++;
    if (address - machine.shared_base < machine.shared_bytes) {
        if (machine.options.check) check_shared(address, bytes, is_write, pc, is_atomic);
        if (machine.options.trace) {
            trace(address - machine.shared_base, bytes, is_write, pc, kSharedMemory);
        }
        return;
    }
    if (machine.options.check) check_global(address, bytes, is_write, pc, is_atomic);
    if (!machine.options.trace) return;
    const TrackedArray *array = array_at(address, bytes);
    if (array == nullptr) return;
    trace(address - array->base, bytes, is_write, pc, number_of(*array));
}

// Structures that the compiler moves whole, split as NVIDIA's compiler does: by their alignment.
inline void access_range(uintptr_t address, uint64_t bytes, bool is_write, uintptr_t pc) {
    uint64_t chunk = 16;
    while (chunk > 1 && ((address | bytes) & (chunk - 1)) != 0) chunk /= 2;
    for (uint64_t at = 0; at < bytes; at += chunk) {
        machine.part = int(at / chunk);  // an instruction of its own in traces
        access(address + at, int(chunk), is_write, pc);
    }
    machine.part = 0;
}

}  // namespace emu

EMU_EXPORT void emu_atomic(void *cell, int bytes) {
    emu::access(uintptr_t(cell), bytes, true, uintptr_t(__builtin_return_address(0)), true);
}
