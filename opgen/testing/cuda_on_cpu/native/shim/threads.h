// Where a thread is, and how the threads of a block wait for each other.
#pragma once

struct emu_position_t {
    uint3 thread, block, block_dim, grid_dim;
};
EMU_RUNTIME emu_position_t emu_position;

#define threadIdx (static_cast<const uint3 &>(emu_position.thread))
#define blockIdx (static_cast<const uint3 &>(emu_position.block))
#define blockDim (static_cast<const uint3 &>(emu_position.block_dim))
#define gridDim (static_cast<const uint3 &>(emu_position.grid_dim))
static constexpr int warpSize = 32;

EMU_RUNTIME void emu_syncthreads();
EMU_RUNTIME int emu_syncthreads_vote(int vote, int kind);
EMU_RUNTIME void emu_trap(const char *what);
EMU_RUNTIME void emu_misuse(const char *what);

// Macros: the return address is the barrier in the kernel.
#define __syncthreads() emu_syncthreads()
#define __syncthreads_count(vote) emu_syncthreads_vote((vote), 0)
#define __syncthreads_and(vote) emu_syncthreads_vote((vote), 1)
#define __syncthreads_or(vote) emu_syncthreads_vote((vote), 2)
#define __trap() emu_trap("__trap()")
#define assert(condition) ((condition) ? (void)0 : emu_trap("assert(" #condition ")"))

// Blocks run one after the other, so every fence holds already.
EMU_INLINE void __threadfence() {}
EMU_INLINE void __threadfence_block() {}
EMU_INLINE void __threadfence_system() {}
EMU_INLINE void __nanosleep(unsigned int) {}

EMU_RUNTIME int printf(const char *format, ...);
