// What Python and the run time hand each other. `abi.py` mirrors these structures field by field.
#pragma once
#include <cstdint>

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

namespace emu {

struct Triple {
    uint32_t x, y, z;
};

// Numbered as `FindingKind` in report.py.
enum class Kind : int32_t {
    out_of_bounds = 1,
    misaligned = 2,
    uninitialised_read = 3,
    shared_race = 4,
    global_race = 5,
    const_write = 6,
    divergent_barrier = 7,
    deadlock = 8,
    warp_operation = 9,
    undefined_behaviour = 10,
    stack_overflow = 11,
    trap = 12,
    unfinished_copy = 13,
    timeout = 14,
    fault = 15,
};

struct Finding {
    Kind kind;
    int32_t array;  // position in the array descriptions; -1 shared memory, -2 nowhere
    int32_t bytes;  // of the access; 0 if the finding is about none
    int32_t is_write;
    int32_t has_other;  // whether the other_ fields name a second thread
    int32_t padding;
    uint64_t pc;  // return address of the instruction, from the start of the kernel's library
    int64_t offset;  // in bytes from the start of the array, or of shared memory
    uint64_t other_pc;  // 0 if not known
    Triple thread, block, other_thread, other_block;
    char detail[128];
};

struct Array {
    uint64_t base, bytes;
    uint8_t *written;  // a byte for each cell, 0 where nothing was written yet; null: all is
    int32_t cell_log2;  // races and writes are tracked in cells of so many bytes
    int32_t is_const;
};

// One static access to one array, in warp-wide requests.
struct Site {
    uint64_t pc;
    int32_t array;  // -1: shared memory
    int32_t is_write;
    int32_t bytes;  // of one thread
    int32_t padding;
    uint64_t requests, lanes;
    uint64_t moved;  // 32-byte sectors of global memory, wavefronts of shared memory
    uint64_t ideal;  // as few as could move the same bytes
};

// Sectors of one array over a launch: of every request, unique in a block, unique in the launch.
struct Traffic {
    uint64_t read_sectors, read_block_sectors, read_unique_sectors, read_lane_bytes;
    uint64_t write_sectors, write_block_sectors, write_unique_sectors, write_lane_bytes;
};

struct Options {
    int32_t check, trace;
    int32_t order;  // 0 forward, 1 reverse, 2 random: of the threads of a block and of the blocks
    uint32_t seed;
    int32_t strict_exit, timeout_ms;
};

struct Launch {
    void (*entry)(void **);
    void **arguments;
    uint32_t grid[3], block[3];
    const uint64_t *blocks;  // numbers of the blocks to run; null: all
    uint64_t block_count;
    char *dynamic_shared;
    uint64_t dynamic_bytes, dynamic_capacity;
    const Array *arrays;
    int32_t array_count;
    Options options;
};

struct Outcome {
    Finding *findings;
    int32_t finding_capacity, finding_count;
    Site *sites;
    int32_t site_capacity, site_count;
    Traffic *traffic;  // one for each array
    uint64_t static_shared, accesses;
    int32_t aborted, sites_left_out;
};

}  // namespace emu
