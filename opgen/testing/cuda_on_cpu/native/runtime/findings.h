// Writing down what is wrong, and leaving a kernel that cannot go on.
#pragma once
#include <cstdarg>
#include <cstdio>

#include "fibers.h"
#include "state.h"

namespace emu {

constexpr size_t kMostFindings = 64;

inline Triple thread_index(int thread) { return machine.threads[thread].id; }

inline Triple block_index(uint64_t block) {
    const Triple grid = emu_position.grid_dim;
    return {
        uint32_t(block % grid.x),
        uint32_t(block / grid.x % grid.y),
        uint32_t(block / grid.x / grid.y),
    };
}

// A finding of the current thread to fill in. The same kind at the same instruction is told once:
// the caller then fills in a scratch one.
inline Finding &add_finding(Kind kind, uintptr_t pc, const char *format, ...) {
    static Finding scratch;
    const uint64_t offset = pc - machine.module_base;
    Finding made{};
    made.kind = kind;
    made.array = kNowhere;
    made.pc = offset;
    made.thread = emu_position.thread;
    made.block = emu_position.block;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(made.detail, sizeof made.detail, format, arguments);
    va_end(arguments);
    bool is_new = machine.findings.size() < kMostFindings;
    for (const Finding &known : machine.findings) {
        is_new = is_new && !(known.kind == kind && known.pc == offset);
    }
    if (!is_new) {
        scratch = made;
        return scratch;
    }
    machine.findings.push_back(made);
    return machine.findings.back();
}

inline void about_access(Finding &finding, int array, int64_t offset, int bytes, bool is_write) {
    finding.array = array;
    finding.offset = offset;
    finding.bytes = bytes;
    finding.is_write = is_write;
}

inline void about_other(Finding &finding, Triple thread, Triple block, uint64_t pc) {
    finding.has_other = 1;
    finding.other_thread = thread;
    finding.other_block = block;
    finding.other_pc = pc;
}

// Leaves the kernel for good: its fibers are never resumed. Kernels have no destructors to run.
[[noreturn]] inline void abandon() {
    machine.aborted = true;
    leave_fiber();
    __builtin_unreachable();
}

}  // namespace emu
