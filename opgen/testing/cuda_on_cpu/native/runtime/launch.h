// One launch: memory described, blocks run one after the other, what was found handed back.
#pragma once
#include <algorithm>
#include <cstring>
#include <link.h>
#include <numeric>
#include <sys/mman.h>

#include "guard.h"
#include "schedule.h"
#include "trace.h"

namespace emu {

// Zeroed memory that takes room only where it is touched, since arrays may be virtual.
template <class T>
T *map_zeros(uint64_t count) {
    void *memory = mmap(
        nullptr, (count + 1) * sizeof(T), PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<T *>(memory);
}

template <class T>
void unmap(T *memory, uint64_t count) {
    if (memory != nullptr) munmap(static_cast<void *>(memory), (count + 1) * sizeof(T));
}

// Where the kernel's library lies, and the thread-local storage that is its shared memory.
struct Library {
    uintptr_t inside, low, high;
    void *storage;
    size_t storage_bytes;
};

inline int look_at_library(dl_phdr_info *info, size_t, void *data) {
    auto *library = static_cast<Library *>(data);
    uintptr_t low = ~uintptr_t(0), high = 0;
    size_t storage_bytes = 0;
    for (int index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) &header = info->dlpi_phdr[index];
        if (header.p_type == PT_TLS) storage_bytes = header.p_memsz;
        if (header.p_type != PT_LOAD) continue;
        low = std::min(low, uintptr_t(info->dlpi_addr + header.p_vaddr));
        high = std::max(high, uintptr_t(info->dlpi_addr + header.p_vaddr + header.p_memsz));
    }
    if (library->inside < low || library->inside >= high) return 0;
    library->low = low;
    library->high = high;
    library->storage = info->dlpi_tls_data;
    library->storage_bytes = storage_bytes;
    return 1;
}

inline void set_up_shared_memory(const Launch &launch, const Library &library) {
    machine.shared_base = uintptr_t(library.storage);
    machine.shared_bytes = library.storage == nullptr ? 0 : library.storage_bytes;
    machine.dynamic_base = uintptr_t(launch.dynamic_shared);
    machine.dynamic_bytes = launch.dynamic_bytes;
    machine.dynamic_capacity = launch.dynamic_shared == nullptr ? 0 : launch.dynamic_capacity;
    // Epochs are never used again, so what launches before left behind means nothing.
    const bool is_small = machine.shared_cell_count < machine.shared_bytes;
    if (is_small || machine.epoch > (1u << 31)) {
        unmap(machine.shared_cells, machine.shared_cell_count);
        machine.shared_cell_count = std::max(machine.shared_bytes, machine.shared_cell_count);
        machine.shared_cells = map_zeros<SharedCell>(machine.shared_cell_count);
        machine.epoch = 1;
    }
}

// All bits set: not a number, and an index far outside.
inline void poison_shared_memory() {
    char *first = reinterpret_cast<char *>(machine.shared_base);
    char *end = first + machine.shared_bytes;
    if (machine.dynamic_capacity == 0) {
        memset(first, 0xff, machine.shared_bytes);
        return;
    }
    char *dynamic = reinterpret_cast<char *>(machine.dynamic_base);
    char *after = dynamic + machine.dynamic_capacity;
    memset(first, 0xff, dynamic - first);
    memset(dynamic, 0xff, machine.dynamic_bytes);
    memset(after, 0xff, end - after);
}

// False if the system has no room for what must be remembered of the arrays.
inline bool set_up_arrays(const Launch &launch) {
    machine.arrays.clear();
    machine.last_array = nullptr;
    bool has_room = true;
    for (int index = 0; index < launch.array_count; index++) {
        TrackedArray array{};
        static_cast<Array &>(array) = launch.arrays[index];
        if (launch.options.check && !array.is_const) {
            array.flags = map_zeros<uint8_t>(array.cells());
            array.writers = map_zeros<Mark>(array.cells());
            array.readers = map_zeros<Mark>(array.cells());
            array.write_pcs = map_zeros<uint32_t>(array.cells());
            has_room = has_room && array.flags && array.writers && array.readers
                && array.write_pcs;
        }
        if (launch.options.trace) {
            array.read_stamps = map_zeros<uint32_t>(array.sectors());
            array.write_stamps = map_zeros<uint32_t>(array.sectors());
            has_room = has_room && array.read_stamps && array.write_stamps;
        }
        machine.arrays.push_back(array);
    }
    return has_room;
}

inline void release_arrays() {
    for (TrackedArray &array : machine.arrays) {
        unmap(array.flags, array.cells());
        unmap(array.writers, array.cells());
        unmap(array.readers, array.cells());
        unmap(array.write_pcs, array.cells());
        unmap(array.read_stamps, array.sectors());
        unmap(array.write_stamps, array.sectors());
    }
    machine.arrays.clear();
    machine.last_array = nullptr;
}

inline void set_up_machine(const Launch &launch) {
    machine.host_thread = pthread_self();
    machine.options = launch.options;
    machine.entry = launch.entry;
    machine.arguments = launch.arguments;
    machine.thread_count = int(launch.block[0] * launch.block[1] * launch.block[2]);
    machine.aborted = false;
    machine.findings.clear();
    machine.accesses = 0;
    machine.ticks = 0;
    emu_position.block_dim = {launch.block[0], launch.block[1], launch.block[2]};
    emu_position.grid_dim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    Library library{uintptr_t(launch.entry), 0, 0, nullptr, 0};
    dl_iterate_phdr(look_at_library, &library);
    machine.module_base = library.low;
    machine.module_bytes = library.high - library.low;
    set_up_shared_memory(launch, library);
    for (TracedSite *site : machine.sites) delete site;
    machine.sites.clear();
    machine.site_of_pc.assign(launch.options.trace ? machine.module_bytes : 0, 0);
    int index = 0;
    for (uint32_t z = 0; z < launch.block[2]; z++) {
        for (uint32_t y = 0; y < launch.block[1]; y++) {
            for (uint32_t x = 0; x < launch.block[0]; x++) machine.threads[index++].id = {x, y, z};
        }
    }
    for (int place = 0; place < machine.thread_count; place++) {
        machine.order[place] = launch.options.order == 1 ? machine.thread_count - 1 - place : place;
    }
}

inline uint32_t next_random(uint32_t &state) {  // xorshift32
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

inline void begin_block(uint64_t block, uint32_t &random) {
    machine.block = block;
    emu_position.block = block_index(block);
    if (machine.options.order == 2) {
        for (int place = machine.thread_count - 1; place > 0; place--) {
            std::swap(machine.order[place], machine.order[next_random(random) % (place + 1)]);
        }
    }
    for (int index = 0; index < machine.thread_count; index++) {
        machine.threads[index].state = ThreadState::fresh;
        machine.threads[index].group = 0;
        machine.threads[index].copies.clear();
    }
    for (Warp &warp : machine.warps) {
        warp.epoch = 0;
        for (Rendezvous &each : warp.rendezvous) each.arrived = each.unread = 0;
    }
    machine.next = machine.done = machine.at_barrier = 0;
    machine.ready.clear();
    machine.ready_head = 0;
    machine.block_epoch = ++machine.epoch;
    poison_shared_memory();
}

// The order in which blocks run: no kernel may depend on it.
class BlockOrder {
   public:
    BlockOrder(const Launch &launch, uint64_t count) : launch_(launch), count_(count) {
        if (launch.options.order != 2 || count < 2) return;
        step_ = count / 2 + launch.options.seed % count;
        while (std::gcd(step_, count) != 1) step_++;
    }
    uint64_t at(uint64_t place) const {
        if (launch_.options.order == 1) place = count_ - 1 - place;
        if (step_ != 1) place = uint64_t((unsigned __int128)place * step_ % count_);
        return launch_.blocks == nullptr ? place : launch_.blocks[place];
    }

   private:
    const Launch &launch_;
    uint64_t count_, step_ = 1;
};

inline void run_blocks(const Launch &launch) {
    const uint64_t total = uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2];
    const uint64_t count = launch.blocks == nullptr ? total : launch.block_count;
    uint32_t random = launch.options.seed * 2654435761u + 1;
    if (random == 0) random = 1;
    const BlockOrder order(launch, count);
    const Guard guard(launch.options.timeout_ms);
    machine.running = true;
    for (uint64_t place = 0; place < count && !machine.aborted; place++) {
        begin_block(order.at(place), random);
        run_block();
        if (launch.options.trace) count_requests_of_block();
    }
    machine.running = false;
}

inline void hand_back(Outcome &outcome) {
    outcome.static_shared = machine.shared_bytes - machine.dynamic_capacity;
    outcome.accesses = machine.accesses;
    outcome.aborted = machine.aborted;
    outcome.finding_count = 0;
    for (const Finding &finding : machine.findings) {
        if (outcome.finding_count == outcome.finding_capacity) break;
        outcome.findings[outcome.finding_count++] = finding;
    }
    outcome.site_count = 0;
    for (const TracedSite *site : machine.sites) {
        if (outcome.site_count == outcome.site_capacity) outcome.sites_left_out++;
        else outcome.sites[outcome.site_count++] = *site;
    }
    for (size_t index = 0; index < machine.arrays.size(); index++) {
        outcome.traffic[index] = machine.arrays[index].traffic;
    }
}

}  // namespace emu

// Runs a launch; -1 if there is no room to remember what is checked.
EMU_EXPORT int emu_launch(const emu::Launch *launch, emu::Outcome *outcome) {
    emu::set_up_machine(*launch);
    const bool has_room = emu::set_up_arrays(*launch);
    if (has_room) emu::run_blocks(*launch);
    emu::hand_back(*outcome);
    emu::release_arrays();
    if (emu::machine.aborted) {  // their fibers are in the middle of threads
        emu::machine.fibers.clear();
        emu::machine.idle_fibers.clear();
    }
    return has_room ? 0 : -1;
}
