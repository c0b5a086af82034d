// What g++ calls from a kernel compiled with -fsanitize=thread and parts of -fsanitize=undefined.
// Neither library is linked: these functions stand in their place, so that every load and store
// arrives here with its size and its instruction.
#pragma once
#include <cstring>

#include "access.h"

#define EMU_PC uintptr_t(__builtin_return_address(0))

#define EMU_ACCESS_HOOKS(bytes)                                       \
    EMU_EXPORT void __tsan_read##bytes(void *place) {                 \
        emu::access(uintptr_t(place), bytes, false, EMU_PC);          \
    }                                                                 \
    EMU_EXPORT void __tsan_write##bytes(void *place) {                \
        emu::access(uintptr_t(place), bytes, true, EMU_PC);           \
    }                                                                 \
    EMU_EXPORT void __tsan_unaligned_read##bytes(void *place) {       \
        emu::access(uintptr_t(place), bytes, false, EMU_PC);          \
    }                                                                 \
    EMU_EXPORT void __tsan_unaligned_write##bytes(void *place) {      \
        emu::access(uintptr_t(place), bytes, true, EMU_PC);           \
    }                                                                 \
    EMU_EXPORT void __tsan_volatile_read##bytes(void *place) {        \
        emu::access(uintptr_t(place), bytes, false, EMU_PC);          \
    }                                                                 \
    EMU_EXPORT void __tsan_volatile_write##bytes(void *place) {       \
        emu::access(uintptr_t(place), bytes, true, EMU_PC);           \
    }
EMU_ACCESS_HOOKS(1)
EMU_ACCESS_HOOKS(2)
EMU_ACCESS_HOOKS(4)
EMU_ACCESS_HOOKS(8)
EMU_ACCESS_HOOKS(16)

EMU_EXPORT void __tsan_read_range(void *place, unsigned long bytes) {
    emu::access_range(uintptr_t(place), bytes, false, EMU_PC);
}
EMU_EXPORT void __tsan_write_range(void *place, unsigned long bytes) {
    emu::access_range(uintptr_t(place), bytes, true, EMU_PC);
}
EMU_EXPORT void __tsan_init() {}
EMU_EXPORT void __tsan_func_entry(void *) {}
EMU_EXPORT void __tsan_func_exit() {}
EMU_EXPORT void __tsan_vptr_update(void **, void *) {}
EMU_EXPORT void __tsan_vptr_read(void **) {}

// Calls of memcpy and memset are not instrumented: the shim renames them to these.
EMU_EXPORT void *emu_memcpy(void *destination, const void *source, unsigned long bytes) {
    emu::access_range(uintptr_t(source), bytes, false, EMU_PC);
    emu::access_range(uintptr_t(destination), bytes, true, EMU_PC);
    return memcpy(destination, source, bytes);
}
EMU_EXPORT void *emu_memset(void *destination, int value, unsigned long bytes) {
    emu::access_range(uintptr_t(destination), bytes, true, EMU_PC);
    return memset(destination, value, bytes);
}

namespace emu {

// Launch stubs run outside a kernel and may not report.
inline void undefined(uintptr_t pc, const char *what) {
    if (machine.running) add_finding(Kind::undefined_behaviour, pc, "%s", what);
}

}  // namespace emu

#define EMU_UNDEFINED_HOOK(name, what, ...) \
    EMU_EXPORT void __ubsan_handle_##name(__VA_ARGS__) { emu::undefined(EMU_PC, what); }
EMU_UNDEFINED_HOOK(add_overflow, "signed integer overflow in an addition", void *, void *, void *)
EMU_UNDEFINED_HOOK(sub_overflow, "signed integer overflow in a subtraction", void *, void *, void *)
EMU_UNDEFINED_HOOK(mul_overflow, "signed integer overflow in a product", void *, void *, void *)
EMU_UNDEFINED_HOOK(negate_overflow, "signed integer overflow in a negation", void *, void *)
EMU_UNDEFINED_HOOK(
    shift_out_of_bounds, "a shift by a negative number or by all bits", void *, void *, void *)
EMU_UNDEFINED_HOOK(out_of_bounds, "an index outside an array of fixed size", void *, void *)

// x86 traps at a division by zero and at the least integer divided by -1, so the kernel ends here.
EMU_EXPORT void __ubsan_handle_divrem_overflow(void *, void *, void *) {
    emu::undefined(EMU_PC, "an integer division by zero, or one that overflows");
    if (emu::machine.running) emu::abandon();
}
