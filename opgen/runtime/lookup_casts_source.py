"""The C side of casts under autocast that kernels do not make themselves, for `lookup_table`.

An image is cast to bfloat16 some batch entries at a time, into memory that is written over and
over, and the kernels run on those before the next ones are cast: what they read is then still in
the caches. The cast of a whole image is a pass over memory, and so is reading it again. Nothing of
it is seen from Python, what takes another tenth of the time of a small call.
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

static int run_pieces(
    const Entry *entry, void **addresses, const double *numbers, int64_t *fault)
{
    const Cast *cast = entry->cast;
    const int64_t bytes = cast->numbers * (int64_t)sizeof(uint16_t), one = 1;
    const uint32_t *from = addresses[cast->input];
    char *to = addresses[cast->output];
    Tensor narrow = NULL;
    int done = !new_tensor(1, &bytes, &one, bytes_type, &narrow)
        && !get_data(narrow, &addresses[cast->input]);
    for (int64_t piece = 0; piece < cast->pieces && done; piece++) {
        const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
        Numbers_to_cast all = {from + piece * cast->numbers, addresses[cast->input], cast->numbers,
                               threads < MOST_PARTS ? threads : MOST_PARTS, {0}};
        take_all(cast_parts, &all, cast->numbers <= FEW_CAST);
        addresses[cast->output] = to + piece * cast->bytes;
        done = entry->kernel(addresses, entry->integers, numbers, fault) == 0;
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
