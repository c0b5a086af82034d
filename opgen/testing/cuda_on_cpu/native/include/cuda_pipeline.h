// The pipeline primitives of CUDA on cp.async.
#pragma once

EMU_INLINE void __pipeline_memcpy_async(
    void *destination, const void *source, size_t bytes, size_t zero_filled = 0) {
    emu_cp_async(destination, source, int(bytes), int(bytes - zero_filled));
}
EMU_INLINE void __pipeline_commit() { emu_cp_commit(); }
EMU_INLINE void __pipeline_wait_prior(size_t pending) { emu_cp_wait(int(pending)); }
