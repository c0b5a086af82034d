// Everything a launch is about. One launch runs at a time in a process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <pthread.h>
#include <vector>

#include "abi.h"

namespace emu {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / kWarp;
constexpr int kSharedMemory = -1;
constexpr int kNowhere = -2;

// What kernels see as threadIdx, blockIdx, blockDim and gridDim.
struct Position {
    Triple thread, block, block_dim, grid_dim;
};

enum class ThreadState : uint8_t { fresh, ready, at_barrier, at_warp_operation, done };

// A copy by cp.async: it lands when the thread that asked for it waits.
struct PendingCopy {
    char *destination;
    const char *source;
    int bytes, source_bytes, group;
    uintptr_t pc;
};

// Lanes of a warp that wait for each other. `snapshot` holds what the last complete meeting
// exchanged: a lane may come to the next one before all have read the last.
struct Rendezvous {
    uint32_t mask, arrived, unread;
    int kind, bytes;
    uintptr_t pc;
    char values[kWarp][32], snapshot[kWarp][32];
};

struct Warp {
    Rendezvous rendezvous[4];
    uint32_t epoch;  // how many __syncwarp there were since the last barrier of the block
};

struct Thread {
    ThreadState state;
    int fiber;
    uintptr_t waiting_pc;
    int vote, vote_result, vote_kind;  // of __syncthreads_count, _and, _or; kind -1: no vote
    Triple id;
    std::vector<PendingCopy> copies;
    int group;
    Rendezvous *rendezvous;
};

struct Fiber {
    void *stack_pointer;
};

// What is remembered of one byte of shared memory. Epochs grow with every barrier and every block,
// over launches too, so that nothing has to be cleared.
struct SharedCell {
    uint32_t write_epoch, read_epoch;
    uint32_t write_warp_epoch, read_warp_epoch;
    uint32_t write_pc, read_pc;
    uint32_t pending_epoch, pending_pc;  // when a copy to it began that has not landed
    uint16_t writer, reader;  // see `users` in shared_memory.h
    uint8_t is_atomic;
};

// Who touched a cell of global memory last; `thread` counts over the grid, from 1, 0 is nobody.
struct Mark {
    uint64_t thread;
    uint32_t epoch, warp_epoch;
};

struct TrackedArray : Array {
    uint8_t *flags;  // see global_memory.h
    Mark *writers, *readers;
    uint32_t *write_pcs;
    uint32_t *read_stamps, *write_stamps;  // for each sector the last block that touched it
    Traffic traffic;
    uint64_t cells() const { return (bytes + (uint64_t(1) << cell_log2) - 1) >> cell_log2; }
    uint64_t sectors() const { return bytes / 32 + 2; }
};

// The accesses that the lanes of a warp made by one instruction, the n-th time each.
struct Request {
    uint32_t mask;
    uint64_t offset[kWarp];
};

struct TracedSite : Site {
    int part;  // which part of a structure that is moved whole
    uint32_t next;  // the same instruction on another array; 0: none
    std::vector<Request> requests_of[kMostWarps];
    uint32_t executions[kMostThreads];
};

struct Machine {
    // the launch
    bool running;
    pthread_t host_thread;  // the one that runs it
    Options options;
    void (*entry)(void **);
    void **arguments;
    int thread_count;
    uint64_t block;  // number of the running block
    bool aborted;

    // fibers and the threads of the running block
    std::vector<Fiber> fibers;
    std::vector<int> idle_fibers;
    char *stacks;
    void *main_stack_pointer;
    volatile bool in_fiber;
    Thread threads[kMostThreads];
    Warp warps[kMostWarps];
    int order[kMostThreads];
    int next, done, at_barrier;  // threads started from `order`; finished; waiting in a barrier
    std::vector<int> ready;
    size_t ready_head;
    int current;

    // memory
    uint32_t epoch, block_epoch;
    uintptr_t shared_base, dynamic_base;
    size_t shared_bytes, dynamic_bytes, dynamic_capacity;
    SharedCell *shared_cells;
    size_t shared_cell_count;
    std::vector<TrackedArray> arrays;
    TrackedArray *last_array;
    uintptr_t module_base;
    size_t module_bytes;

    // what comes of it
    std::vector<Finding> findings;
    std::vector<TracedSite *> sites;
    std::vector<uint32_t> site_of_pc;  // 1 + position of the first site of an instruction
    uint64_t accesses;
    int part;  // of a structure that is being moved whole

    // the watchdog
    volatile uint64_t hooks;
    volatile int ticks;
    uint64_t hooks_at_tick;
};

static Machine machine;

inline uint32_t offset_in_module(uintptr_t pc) { return uint32_t(pc - machine.module_base); }

}  // namespace emu

EMU_EXPORT emu::Position emu_position;
emu::Position emu_position;
