"""The C side of casts under autocast that kernels do not make themselves, for `lookup_table`.

An image is cast to bfloat16 some batch entries at a time, into memory that is written over and
over, and the kernels run on those before the next ones are cast: what they read is then still in
the caches. The cast of a whole image is a pass over memory, and so is reading it again. Nothing of
it is seen from Python, what takes another tenth of the time of a small call.

Where there are pieces for all threads, each of them casts and computes its own: threads that wait
for each other twice in every piece take a sixth longer (3 by 3 filters, 2048 channels of 16 by 16).
"""

from __future__ import annotations

from typing import NamedTuple


class Cast(NamedTuple):
    """The cast of an entry, in this order."""

    input: int
    """Which address is that of the numbers to be cast,"""
    output: int
    """and which that of the result."""
    pieces: int
    """How many pieces there are, one behind the other,"""
    numbers: int
    """how many numbers one has,"""
    bytes: int
    """and how many bytes of the result."""


SOURCE = r"""
/* Numbers to be cast, a part for each thread, which takes what others leave of theirs. */
enum { MOST_PARTS = 64, FEW_CAST = 16384 };
typedef struct {
    const uint32_t *from;
    uint16_t *to;
    int64_t numbers, parts;
    int is_taken[MOST_PARTS];
} Numbers_to_cast;

/* Rounds float32 to bfloat16, to nearest, ties to even; a NaN stays one. */
static void cast_numbers(const uint32_t *restrict from, uint16_t *restrict to, int64_t numbers)
{
    for (int64_t i = 0; i < numbers; i++) {
        const uint32_t bits = from[i], upper = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        to[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : upper);
    }
}

static void cast_parts(void *data)
{
    Numbers_to_cast *all = data;
    const int64_t own = omp_get_thread_num ? omp_get_thread_num() : 0;
    for (int64_t i = 0; i < all->parts; i++) {
        const int64_t part = (own + i) % all->parts;
        if (__atomic_exchange_n(&all->is_taken[part], 1, __ATOMIC_RELAXED)) continue;
        const int64_t begin = part * all->numbers / all->parts;
        const int64_t end = (part + 1) * all->numbers / all->parts;
        cast_numbers(all->from + begin, all->to + begin, end - begin);
    }
}

/* Pieces that a thread casts, and then computes by itself. Each has a share of them, and takes what
   others leave of theirs. */
typedef struct {
    const Entry *entry;
    void *const *addresses;
    const double *numbers;
    int64_t *fault, threads, next[MOST_PARTS];
    char *narrow;
    int failed;
} Pieces;

static void take_pieces(void *data)
{
    Pieces *all = data;
    const Entry *entry = all->entry;
    const Cast *cast = entry->cast;
    const int64_t own = omp_get_thread_num ? omp_get_thread_num() : 0;
    const uint32_t *from = all->addresses[cast->input];
    char *to = all->addresses[cast->output];
    void *addresses[4 * MAX_TENSORS];
    memcpy(addresses, all->addresses, (size_t)entry->addresses * sizeof *addresses);
    addresses[cast->input] = all->narrow + own * cast->numbers * (int64_t)sizeof(uint16_t);
    omp_set_num_threads(1);  /* for the kernels that this thread calls now */
    for (int64_t i = 0; i < all->threads; i++) {
        const int64_t share = (own + i) % all->threads;
        const int64_t end = (share + 1) * cast->pieces / all->threads;
        for (;;) {
            const int64_t piece = __atomic_fetch_add(&all->next[share], 1, __ATOMIC_RELAXED);
            if (piece >= end) break;
            cast_numbers(from + piece * cast->numbers, addresses[cast->input], cast->numbers);
            addresses[cast->output] = to + piece * cast->bytes;
            if (entry->kernel(addresses, entry->integers, all->numbers, all->fault) != 0)
                __atomic_store_n(&all->failed, 1, __ATOMIC_RELAXED);
        }
    }
}

/* Pieces that all threads cast, and then compute, together. */
static int run_together(const Pieces *all)
{
    const Cast *cast = all->entry->cast;
    const uint32_t *from = all->addresses[cast->input];
    char *to = all->addresses[cast->output];
    const int64_t parts = all->threads < MOST_PARTS ? all->threads : MOST_PARTS;
    void *addresses[4 * MAX_TENSORS];
    memcpy(addresses, all->addresses, (size_t)all->entry->addresses * sizeof *addresses);
    addresses[cast->input] = all->narrow;
    for (int64_t piece = 0; piece < cast->pieces; piece++) {
        Numbers_to_cast now = {
            from + piece * cast->numbers, addresses[cast->input], cast->numbers, parts, {0}};
        take_all(cast_parts, &now, cast->numbers <= FEW_CAST);
        addresses[cast->output] = to + piece * cast->bytes;
        if (all->entry->kernel(addresses, all->entry->integers, all->numbers, all->fault) != 0)
            return 0;
    }
    return 1;
}

/* Whether each thread has pieces of its own, and they have as many of them. */
static int are_shared_out(int64_t pieces, int64_t threads)
{
    if (threads <= 1 || threads > MOST_PARTS || is_child) return 0;
    if (!GOMP_parallel || !omp_set_num_threads) return 0;
    return pieces >= 4 * threads || (pieces >= threads && pieces % threads == 0);
}

static int run_pieces(
    const Entry *entry, void **addresses, const double *numbers, int64_t *fault)
{
    const int64_t count = entry->cast->pieces, one = 1;
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    const int is_shared = are_shared_out(count, threads);
    Pieces all = {entry, addresses, numbers, fault, threads, {0}, NULL, 0};
    Tensor narrow = NULL;
    const int64_t bytes =
        (is_shared ? threads : 1) * entry->cast->numbers * (int64_t)sizeof(uint16_t);
    int done = !new_tensor(1, &bytes, &one, bytes_type, &narrow)
        && !get_data(narrow, (void **)&all.narrow);
    if (done && is_shared) {
        for (int64_t i = 0; i < threads; i++) all.next[i] = i * count / threads;
        take_all(take_pieces, &all, 0);
        done = !all.failed;
    } else if (done) {
        done = run_together(&all);
    }
    if (narrow) delete_tensor(narrow);
    return done;
}
"""
"""It stands behind the table and the functions that share work among threads."""


def declaration() -> str:
    """The type of such words in C, which stands before the table."""
    listed = "".join(f"    int64_t {name};\n" for name in Cast._fields)
    return f"/* What these are is said in Python. */\ntypedef struct {{\n{listed}}} Cast;\n\n"
