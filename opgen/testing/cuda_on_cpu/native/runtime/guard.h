// Kernels that hang or crash: the signal handler leaves the fiber, and the launch ends with a
// finding instead of the process with a core dump.
#pragma once
#include <csignal>
#include <sys/time.h>
#include <ucontext.h>

#include "findings.h"
#include "state.h"

namespace emu {

constexpr int kSignals[] = {SIGVTALRM, SIGSEGV, SIGBUS, SIGFPE};

inline bool is_in_kernel(uintptr_t pc) {
    return machine.in_fiber && pc - machine.module_base < machine.module_bytes;
}

// The first tick asks the next hook to give up. A kernel that calls none is left from here, but
// only while its own code runs: the run time may hold a lock of the allocator.
inline void on_tick(uintptr_t pc) {
    if (machine.ticks++ == 0) {
        machine.hooks_at_tick = machine.hooks;
        return;
    }
    const bool calls_hooks = machine.hooks != machine.hooks_at_tick;
    machine.hooks_at_tick = machine.hooks;
    if (calls_hooks || !is_in_kernel(pc)) return;
    add_finding(Kind::timeout, pc + 1, "the kernel does not finish");
    abandon();
}

inline void on_fault(int signal_number, uintptr_t address, uintptr_t pc) {
    if (!machine.in_fiber) {  // not ours: the same instruction faults again, without this handler
        signal(signal_number, SIG_DFL);
        return;
    }
    if (signal_number == SIGSEGV && is_in_guard(address)) {
        add_finding(
            Kind::stack_overflow, pc + 1, "more than %zu KB of local memory", kStack >> 10);
    } else if (signal_number == SIGFPE) {
        add_finding(Kind::fault, pc + 1, "an integer division by zero, or one that overflows");
    } else {
        add_finding(Kind::fault, pc + 1, "no memory at %p", reinterpret_cast<void *>(address));
    }
    abandon();
}

inline void on_signal(int signal_number, siginfo_t *about, void *context) {
    if (!pthread_equal(pthread_self(), machine.host_thread)) {
        // The timer may interrupt any thread of the process; a fault is then none of a kernel.
        if (signal_number == SIGVTALRM) pthread_kill(machine.host_thread, SIGVTALRM);
        else signal(signal_number, SIG_DFL);
        return;
    }
    const auto *registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
    const auto pc = uintptr_t(registers[REG_RIP]);
    if (signal_number == SIGVTALRM) on_tick(pc);
    else on_fault(signal_number, uintptr_t(about->si_addr), pc);
}

// Holds the handlers and the timer while a launch runs.
class Guard {
   public:
    explicit Guard(int timeout_ms) {
        static char stack[64 << 10];  // a fiber may have run out of its own
        stack_t alternate{};
        alternate.ss_sp = stack;
        alternate.ss_size = sizeof stack;
        sigaltstack(&alternate, &old_stack_);
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        for (int index = 0; index < kCount; index++) {
            sigaction(kSignals[index], &action, &old_actions_[index]);
        }
        set_timer(timeout_ms);
    }
    ~Guard() {
        set_timer(0);
        for (int index = 0; index < kCount; index++) {
            sigaction(kSignals[index], &old_actions_[index], nullptr);
        }
        sigaltstack(&old_stack_, nullptr);
    }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;

   private:
    static constexpr int kCount = sizeof kSignals / sizeof *kSignals;
    struct sigaction old_actions_[kCount];
    stack_t old_stack_;

    // Counts time in which this process computes, so a busy machine ends no launch.
    static void set_timer(int milliseconds) {
        itimerval timer{};
        timer.it_value = {milliseconds / 1000, milliseconds % 1000 * 1000};
        if (milliseconds > 0) timer.it_interval = {0, 50'000};
        setitimer(ITIMER_VIRTUAL, &timer, nullptr);
    }
};

}  // namespace emu
