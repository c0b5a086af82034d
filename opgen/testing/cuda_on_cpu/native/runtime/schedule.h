// Which thread runs next; barriers of a block.
#pragma once
#include <cstring>

#include "fibers.h"
#include "findings.h"
#include "state.h"

namespace emu {

void land_copies(int thread, int before_group);
void report_unfinished_copies(int thread);
void check_watchdog(uintptr_t pc);

inline bool has_ready() { return machine.ready_head < machine.ready.size(); }

inline int take_ready() {
    const int thread = machine.ready[machine.ready_head++];
    if (!has_ready()) {
        machine.ready.clear();
        machine.ready_head = 0;
    }
    return thread;
}

inline void wake(int thread) {
    machine.threads[thread].state = ThreadState::ready;
    machine.ready.push_back(thread);
}

// A fiber runs fresh threads one after the other, and goes idle when a waiting one may go on.
inline void run_threads() {
    int fiber = int(machine.fibers.size()) - 1;
    for (;;) {
        while (machine.next < machine.thread_count && !has_ready()) {
            const int index = machine.order[machine.next++];
            Thread &thread = machine.threads[index];
            thread.fiber = fiber;
            thread.state = ThreadState::ready;
            make_current(index);
            machine.entry(machine.arguments);
            fiber = thread.fiber;
            report_unfinished_copies(index);
            thread.state = ThreadState::done;
            machine.done++;
        }
        machine.idle_fibers.push_back(fiber);
        emu_switch_stack(&machine.fibers[fiber].stack_pointer, machine.main_stack_pointer);
    }
}

// Lets others run until this thread is woken.
inline void wait_as(ThreadState state, uintptr_t pc) {
    check_watchdog(pc);
    const int me = machine.current;
    Thread &thread = machine.threads[me];
    thread.state = state;
    thread.waiting_pc = pc;
    if (has_ready()) {
        const int other = take_ready();
        make_current(other);
        emu_switch_stack(
            &machine.fibers[thread.fiber].stack_pointer,
            machine.fibers[machine.threads[other].fiber].stack_pointer);
    } else {
        leave_fiber();
    }
    make_current(me);
}

inline int first_thread(ThreadState state) {
    for (int index = 0; index < machine.thread_count; index++) {
        if (machine.threads[index].state == state) return index;
    }
    return -1;
}

// Whether all threads that wait in a barrier wait in the same one, and none has returned.
inline bool is_uniform_barrier(int waiting) {
    const int first = first_thread(ThreadState::at_barrier);
    const uintptr_t pc = machine.threads[first].waiting_pc;
    for (int index = first; index < machine.thread_count; index++) {
        const Thread &other = machine.threads[index];
        if (other.state != ThreadState::at_barrier || other.waiting_pc == pc) continue;
        make_current(first);
        Finding &finding = add_finding(
            Kind::divergent_barrier, pc, "threads of one block wait at different barriers");
        about_other(
            finding, other.id, emu_position.block, offset_in_module(other.waiting_pc));
        return false;
    }
    if (waiting < machine.thread_count && machine.options.strict_exit) {
        make_current(first);
        Finding &finding = add_finding(
            Kind::divergent_barrier, pc, "%d of %d threads returned before this barrier",
            machine.thread_count - waiting, machine.thread_count);
        const int gone = first_thread(ThreadState::done);
        about_other(finding, thread_index(gone), emu_position.block, 0);
        return false;
    }
    return true;
}

inline void count_votes(int waiting) {
    const int kind = machine.threads[first_thread(ThreadState::at_barrier)].vote_kind;
    if (kind < 0) return;
    int yes = 0;
    for (int index = 0; index < machine.thread_count; index++) {
        const Thread &thread = machine.threads[index];
        yes += thread.state == ThreadState::at_barrier && thread.vote != 0;
    }
    const int result = kind == 0 ? yes : kind == 1 ? yes == waiting : yes > 0;
    for (int index = 0; index < machine.thread_count; index++) {
        machine.threads[index].vote_result = result;
    }
}

// Called when every thread of the block waits in a barrier or has returned.
inline void release_barrier() {
    const int waiting = machine.at_barrier;
    if (!is_uniform_barrier(waiting)) {
        machine.aborted = true;
        return;
    }
    count_votes(waiting);
    machine.epoch++;
    for (Warp &warp : machine.warps) warp.epoch = 0;
    machine.at_barrier = 0;
    for (int place = 0; place < machine.thread_count; place++) {
        const int index = machine.order[place];
        if (machine.threads[index].state == ThreadState::at_barrier) wake(index);
    }
}

// Called when nothing can run: a warp operation waits for lanes that will not come.
inline void report_deadlock() {
    machine.aborted = true;
    const int stuck = first_thread(ThreadState::at_warp_operation);
    const Rendezvous &meeting = *machine.threads[stuck].rendezvous;
    const uint32_t missing = meeting.mask & ~meeting.arrived;
    const Thread &absent =
        machine.threads[stuck / kWarp * kWarp + __builtin_ctz(missing)];
    const bool returned = absent.state == ThreadState::done;
    make_current(stuck);
    Finding &finding = add_finding(
        Kind::deadlock, meeting.pc, "a warp operation waits for the lanes 0x%08x, which %s",
        missing, returned ? "have returned" : "wait elsewhere");
    about_other(
        finding, absent.id, emu_position.block,
        returned ? 0 : offset_in_module(absent.waiting_pc));
}

// Runs the threads of a block until all have returned, or one finding stops the launch.
inline void run_block() {
    while (!machine.aborted) {
        if (has_ready()) {
            const int thread = take_ready();
            make_current(thread);
            enter_fiber(machine.threads[thread].fiber);
        } else if (machine.next < machine.thread_count) {
            int fiber;
            if (machine.idle_fibers.empty()) {
                fiber = new_fiber();
            } else {
                fiber = machine.idle_fibers.back();
                machine.idle_fibers.pop_back();
            }
            enter_fiber(fiber);
        } else if (machine.done == machine.thread_count) {
            return;
        } else if (machine.at_barrier + machine.done == machine.thread_count) {
            release_barrier();
        } else {
            report_deadlock();
        }
    }
}

}  // namespace emu

EMU_EXPORT void emu_syncthreads() {
    const auto pc = uintptr_t(__builtin_return_address(0));
    emu::machine.threads[emu::machine.current].vote_kind = -1;
    emu::machine.at_barrier++;
    emu::wait_as(emu::ThreadState::at_barrier, pc);
}

EMU_EXPORT int emu_syncthreads_vote(int vote, int kind) {
    const auto pc = uintptr_t(__builtin_return_address(0));
    emu::Thread &thread = emu::machine.threads[emu::machine.current];
    thread.vote = vote;
    thread.vote_kind = kind;
    emu::machine.at_barrier++;
    emu::wait_as(emu::ThreadState::at_barrier, pc);
    return thread.vote_result;
}
