// Stackful coroutines: the threads of a block on one thread of the host.
//
// Fifteen instructions switch in about 20 ns; swapcontext needs two system calls, and threads of
// the host a hundred times as long. One fiber runs thread after thread until one has to wait, so a
// kernel without barriers never switches.
#pragma once
#include <sys/mman.h>

#include "state.h"

#ifndef __x86_64__
#error "the emulator switches stacks by x86-64 instructions"
#endif

extern "C" void emu_switch_stack(void **from, void *to);
asm(R"(
    .text
    .globl emu_switch_stack
    .hidden emu_switch_stack
    .type emu_switch_stack, @function
emu_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emu_switch_stack, .-emu_switch_stack
)");

namespace emu {

constexpr size_t kStack = 256 << 10;
constexpr size_t kGuard = 4096;

inline bool is_on_stacks(uintptr_t address) {
    return address - uintptr_t(machine.stacks) < kStack * kMostThreads;
}

// Whether an address is in a page below a stack, which no thread may touch.
inline bool is_in_guard(uintptr_t address) {
    return is_on_stacks(address) && (address - uintptr_t(machine.stacks)) % kStack < kGuard;
}

inline void leave_fiber() {
    Fiber &fiber = machine.fibers[machine.threads[machine.current].fiber];
    emu_switch_stack(&fiber.stack_pointer, machine.main_stack_pointer);
}

inline void enter_fiber(int fiber) {
    machine.in_fiber = true;
    emu_switch_stack(&machine.main_stack_pointer, machine.fibers[fiber].stack_pointer);
    machine.in_fiber = false;
}

inline void make_current(int thread) {
    machine.current = thread;
    emu_position.thread = machine.threads[thread].id;
}

void run_threads();  // what a new fiber starts with; it never returns

inline int new_fiber() {
    const int index = int(machine.fibers.size());
    if (machine.stacks == nullptr) {
        void *memory = mmap(
            nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        machine.stacks = static_cast<char *>(memory);
    }
    char *bottom = machine.stacks + kStack * index;
    mprotect(bottom, kGuard, PROT_NONE);
    // Tops at different distances from a page, or all of them would share a few cache sets.
    char *top = bottom + kStack - size_t(index % 48) * 192;
    void **frame = reinterpret_cast<void **>(uintptr_t(top) & ~uintptr_t(15));
    *--frame = nullptr;  // the return address of run_threads, and the alignment of a call
    *--frame = reinterpret_cast<void *>(run_threads);
    for (int saved = 0; saved < 6; saved++) *--frame = nullptr;
    machine.fibers.push_back({frame});
    return index;
}

}  // namespace emu
