"""C functions for the memory of a call: where its results go, and what it asks for ahead.

What is best depends on whether the pages are there already. The allocator has just got new ones
from the system: each is mapped when it is first written, which takes several times longer than
writing it, so large pages are asked for. Memory that is used again is there: a result larger than
the caches is then written past them, which saves reading each line before it is written (1.4 to
2.2 times as fast from 30 MB on, a following read of the result included; a loss on new pages).

A virtual machine may give memory that is free back to its host, large pages first. One that the
host has to find again takes 5 ms in place of 0.1 ms, and a result of 944 MB 2.3 s in place of 0.1;
by small pages 0.45 s at best, and 2 s in the same state. How quick the first page is does not tell.
"""

from __future__ import annotations

from typing import Final

PAGES: Final = r"""
/* Whether memory has its pages at so many places, as far as that is known. If one is new, large
   ones are asked for: to map small ones takes several times longer than to write them. */
static int is_mapped(void *memory, int64_t bytes, uintptr_t places)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t large = (uintptr_t)2 << 20, small = 4096, first = (uintptr_t)memory;
    const uintptr_t begin = (first + large - 1) & ~(large - 1);
    const uintptr_t end = (first + (uintptr_t)bytes) & ~(large - 1);
    if (begin >= end) return 0;
    for (uintptr_t place = 0; place < places; place++) {
        const uintptr_t page = (begin + (end - begin - small) / places * place) & ~(small - 1);
        unsigned char resident = 0;
        if (mincore((void *)page, 1, &resident) != 0) return 0;
        if (!(resident & 1)) {
            madvise((void *)begin, end - begin, MADV_HUGEPAGE);
            return 0;
        }
    }
    return 1;
#else
    (void)memory, (void)bytes, (void)places;
    return 0;
#endif
}
"""
"""Pages of memory that is to be written, for C that includes <sys/mman.h> and <stdint.h>."""

STREAMS: Final = r"""
/* The sizes of the first cache and of the largest one. Where they are not known the first is as
   small, and the largest as large, as can be. */
static int64_t first_cache = 0, largest_cache = INT64_MAX;
FUNCTION void find_cache(const char *path, int64_t *size)
{
    FILE *file = fopen(path, "r");
    int kibibytes = 0;
    if (file == NULL) return;
    if (fscanf(file, "%dK", &kibibytes) == 1 && kibibytes > 0) *size = (int64_t)kibibytes << 10;
    fclose(file);
}
__attribute__((constructor)) static void find_caches(void)
{
    find_cache("/sys/devices/system/cpu/cpu0/cache/index0/size", &first_cache);
    find_cache("/sys/devices/system/cpu/cpu0/cache/index3/size", &largest_cache);
}

/* Lines of memory that are written whole, and not read before. */
#define LINE 64
#if defined __clang__
typedef float line_part __attribute__((vector_size(16)));
#define STORE_PART(to, part) __builtin_nontemporal_store(part, to)
#elif defined __AVX512F__
typedef float line_part __attribute__((vector_size(64)));
#define STORE_PART(to, part) __builtin_ia32_movntps512((float *)(to), part)
#elif defined __AVX__
typedef float line_part __attribute__((vector_size(32)));
#define STORE_PART(to, part) __builtin_ia32_movntps256((float *)(to), part)
#elif defined __SSE__
typedef float line_part __attribute__((vector_size(16)));
#define STORE_PART(to, part) __builtin_ia32_movntps((float *)(to), part)
#endif
/* A vector of a whole line, past the caches where there is an instruction for it. */
#if defined __clang__ || defined __AVX512F__
#define STORES_LINES 1
#else
#define STORES_LINES 0
#endif
#if defined __clang__
#define STORE_LINE(place, values) \
    __builtin_nontemporal_store(values, (__typeof__(values) *)(place))
#elif defined __AVX512F__
#define STORE_LINE(place, values) STORE_PART(place, (line_part)(values))
#else
#define STORE_LINE(place, values) (*(__typeof__(values) *)(place) = (values))
#endif
#if defined __SSE__
#define FENCE() __builtin_ia32_sfence()
#else
#define FENCE() __sync_synchronize()
#endif

/* Whether a stretch of memory is worth writing past the caches: it is some whole lines, or so long
   that its ends do not matter. Lines that are written in two parts, one of them past the caches,
   take several times longer. */
FUNCTION int is_of_lines(const void *memory, int64_t bytes)
{
    const int whole = (uintptr_t)memory % LINE == 0 && bytes % LINE == 0;
    return bytes >= (whole ? 2 : 12) * LINE;
}

/* A copy of at least one line that goes past the caches, but for the ends that are not whole. */
FUNCTION void stream(void *to, const void *from, int64_t bytes)
{
#ifdef STORE_PART
    const int64_t head = -(uintptr_t)to % LINE, end = bytes - (bytes - head) % LINE;
    char *const target = to;
    const char *const source = from;
    memcpy(target, source, head);
    for (int64_t at = head; at < end; at += sizeof(line_part)) {
        line_part part;
        memcpy(&part, source + at, sizeof part);
        STORE_PART((line_part *)(target + at), part);
    }
    memcpy(target + end, source + end, bytes - end);
#else
    memcpy(to, from, bytes);
#endif
}

/* Whether a result has its pages. The next calls take it that memory which had them still does,
   where the caches hold it: to ask the system takes up to a tenth of what such a call takes. */
FUNCTION int is_ready(void *memory, int64_t bytes)
{
    enum { PLACES = 8, CALLS = 15 };
    static __thread struct { void *memory; int64_t bytes, calls; } found[PLACES];
    const uintptr_t large_page = (uintptr_t)2 << 20;
    const int at = (uintptr_t)memory / large_page % PLACES;
    const int is_found = found[at].memory == memory && found[at].bytes == bytes;
    if (is_found && found[at].calls-- > 0) return 1;
    const int is_there = is_mapped(memory, bytes, 4);
    found[at].memory = is_there && bytes < largest_cache ? memory : NULL;
    found[at].bytes = bytes, found[at].calls = CALLS;
    return is_there;
}

/* Makes memory ready for a result of which vectors are stored as they are computed; whether past
   the caches: where these do not hold it, nor all that is read and written. */
FUNCTION int will_be_stored(void *memory, int64_t bytes, int64_t all_bytes)
{
    const int64_t two_large_pages = (int64_t)4 << 20, rest = all_bytes - largest_cache;
    const int is_there = bytes >= two_large_pages && is_ready(memory, bytes);
#ifdef STORE_PART
    return is_there && (bytes >= largest_cache || rest >= largest_cache / 4);
#else
    (void)is_there, (void)rest;
    return 0;
#endif
}

/* The same for a result whose lines are copied from a buffer. */
static int will_be_written(void *memory, int64_t bytes)
{
    return will_be_stored(memory, bytes, 0);
}

/* The bytes of the largest pieces of which points ask for what others read later, all at once or in
   turn with what they compute: larger ones are gone from the second cache until then. */
enum { MOST_AT_ONCE = 96 << 10, MOST_IN_TURN = 512 << 10 };

/* How many bytes each of some points asks for of the next piece of a tensor, which as many read
   together. None where the caches hold the tensor, nor where one does not hold a piece of it. */
FUNCTION int64_t asked_ahead(int64_t bytes, int64_t piece, int64_t most, int64_t points)
{
    return bytes < largest_cache || piece > most || points < 1 ? 0 : (piece + points - 1) / points;
}

/* How many rows of so many bytes are asked for before they are read, of `rows` that take turns: as
   many as have 3 to 6 KB, 6 for powers of two. A division in every pass would take a tenth. */
FUNCTION int64_t rows_ahead(int64_t bytes, int64_t rows)
{
    const int power = 64 - __builtin_clzll((uint64_t)greatest(bytes, 2) - 1);
    return least(greatest(((int64_t)6 << 10) >> power, 1), rows);
}
"""
"""Before a call's kernels run `will_be_written`, `will_be_stored` and `asked_ahead`, within them
`stream` and `STORE_LINE`.

See `opgen.emit.streams` and `opgen.emit.rows_ahead`. `PAGES` stand before it."""
