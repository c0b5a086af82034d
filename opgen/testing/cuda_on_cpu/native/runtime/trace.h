// Memory traffic: accesses of the lanes of a warp gathered into requests, as the hardware does.
//
// A request is what the lanes of a warp access by one instruction, each for the n-th time. That is
// exact for uniform control flow, and an approximation where lanes skip iterations of a loop.
#pragma once
#include <algorithm>
#include <cstring>

#include "state.h"

namespace emu {

constexpr int kBanks = 32;

inline TracedSite *site_of(uint32_t pc, int array, int bytes, bool is_write) {
    uint32_t number = machine.site_of_pc[pc];
    while (number != 0) {
        TracedSite *site = machine.sites[number - 1];
        const bool is_same = site->array == array && site->bytes == bytes
            && site->is_write == is_write && site->part == machine.part;
        if (is_same) return site;
        number = site->next;
    }
    auto *site = new TracedSite();
    site->pc = pc;
    site->array = array;
    site->bytes = bytes;
    site->is_write = is_write;
    site->part = machine.part;
    site->next = machine.site_of_pc[pc];
    machine.sites.push_back(site);
    machine.site_of_pc[pc] = uint32_t(machine.sites.size());
    return site;
}

inline void trace(uint64_t offset, int bytes, bool is_write, uintptr_t pc, int array) {
    TracedSite *site = site_of(offset_in_module(pc), array, bytes, is_write);
    const int thread = machine.current, lane = thread % kWarp;
    std::vector<Request> &requests = site->requests_of[thread / kWarp];
    const uint32_t execution = site->executions[thread]++;
    if (execution >= requests.size()) requests.resize(execution + 1);
    requests[execution].mask |= 1u << lane;
    requests[execution].offset[lane] = offset;
}

// Wavefronts of shared memory: the most words that one bank has to give. 8- and 16-byte accesses
// go by half and quarter warps.
inline void add_wavefronts(TracedSite &site, const Request &request) {
    const int lanes = site.bytes <= 4 ? 32 : site.bytes == 8 ? 16 : 8;
    for (int first = 0; first < kWarp; first += lanes) {
        uint64_t words[kWarp * 4];
        int word_count = 0, most = 0, of_bank[kBanks] = {};
        for (int lane = first; lane < first + lanes; lane++) {
            if ((request.mask >> lane & 1) == 0) continue;
            for (int byte = 0; byte < site.bytes; byte += 4) {
                const uint64_t word = (request.offset[lane] + byte) / 4;
                if (std::find(words, words + word_count, word) != words + word_count) continue;
                words[word_count++] = word;
                most = std::max(most, ++of_bank[word % kBanks]);
            }
        }
        site.moved += most;
        site.ideal += most > 0;
    }
}

inline void add_sectors(TracedSite &site, const Request &request) {
    TrackedArray &array = machine.arrays[site.array];
    const uint32_t stamp = uint32_t(machine.block) + 1;
    uint64_t sectors[kWarp * 2], distinct[kWarp];
    int sector_count = 0, distinct_count = 0;
    for (uint32_t rest = request.mask; rest != 0; rest &= rest - 1) {
        const uint64_t offset = request.offset[__builtin_ctz(rest)];
        if (std::find(distinct, distinct + distinct_count, offset) == distinct + distinct_count) {
            distinct[distinct_count++] = offset;
        }
        const uint64_t address = array.base % 32 + offset;
        for (uint64_t sector = address / 32; sector <= (address + site.bytes - 1) / 32; sector++) {
            if (std::find(sectors, sectors + sector_count, sector) == sectors + sector_count) {
                sectors[sector_count++] = sector;
            }
        }
    }
    site.moved += sector_count;
    site.ideal += (uint64_t(distinct_count) * site.bytes + 31) / 32;
    Traffic &traffic = array.traffic;
    uint32_t *stamps = site.is_write ? array.write_stamps : array.read_stamps;
    uint64_t in_block = 0, in_launch = 0;
    for (int index = 0; index < sector_count; index++) {
        uint32_t &last = stamps[sectors[index]];
        in_block += last != stamp;
        in_launch += last == 0;
        last = stamp;
    }
    const uint64_t asked = uint64_t(__builtin_popcount(request.mask)) * site.bytes;
    (site.is_write ? traffic.write_sectors : traffic.read_sectors) += sector_count;
    (site.is_write ? traffic.write_block_sectors : traffic.read_block_sectors) += in_block;
    (site.is_write ? traffic.write_unique_sectors : traffic.read_unique_sectors) += in_launch;
    (site.is_write ? traffic.write_lane_bytes : traffic.read_lane_bytes) += asked;
}

// Called after every block: its requests become counts.
inline void count_requests_of_block() {
    for (TracedSite *site : machine.sites) {
        for (int warp = 0; warp * kWarp < machine.thread_count; warp++) {
            for (const Request &request : site->requests_of[warp]) {
                site->requests++;
                site->lanes += __builtin_popcount(request.mask);
                if (site->array == kSharedMemory) add_wavefronts(*site, request);
                else add_sectors(*site, request);
            }
            site->requests_of[warp].clear();
        }
        memset(site->executions, 0, sizeof(uint32_t) * machine.thread_count);
    }
}

}  // namespace emu
