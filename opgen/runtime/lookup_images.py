"""Images between one plane for each channel and channels-last format, as C for `lookup_table`.

PyTorch's library computes some convolutions faster in channels-last format than in that of their
images, copies included, if the copies are. A copy is a transposition of [channels, pixels] for each
image. Tiles of as many rows and columns as a vector has lanes are transposed in registers, by
exchanging blocks of 1, 2, 4 ... cells between pairs of vectors; the library's copy goes cell by
cell, at a sixth of the speed for 1024 channels of 20 by 20.

Where there are fewer rows than lanes, a vector is written over the beginning of the next one, which
is written after it; where there are fewer columns, it is read so. Else the last tile overlaps the
one before.
"""

from __future__ import annotations

from collections.abc import Sequence

from opgen.runtime.share_source import FORKS, PARTS

_LANES = {"defined __AVX512F__": 16, "defined __AVX__": 8, "1": 4}
"""How many lanes a vector is taken to have, by the instructions there are."""

_TYPES = ("uint16_t", "uint32_t")

_HEAD = r"""
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (__typeof__(a)){__VA_ARGS__})
#endif

/* Matrices, all transposed: chunks of rows and columns, taken as threads become free; a few are not
   worth waking a thread. */
enum { CHUNK_ROWS = 512, CHUNK_COLUMNS = 64, GRAIN = 65536 };
typedef struct {
    const void *from;
    void *to;
    int64_t bytes, matrices, rows, columns, row_chunks, column_chunks, next;
} Matrices;
"""

_TILES = r"""
typedef TYPE TYPE_lanes __attribute__((vector_size(LANES * sizeof(TYPE))));

/* Once, and not in every loop around it: it takes long to compile. */
static __attribute__((noinline)) void TYPE_exchange(TYPE_lanes *row)
{
    TYPE_lanes other[LANES];
    EXCHANGES
}

/* A tile of m rows and n columns. */
static void TYPE_tile(
    const TYPE *from, const TYPE *from_end, int64_t columns, TYPE *to, const TYPE *to_end,
    int64_t rows, int64_t m, int64_t n)
{
    TYPE_lanes row[LANES];
    for (int64_t a = 0; a < m; a++) {
        const TYPE *at = from + a * columns;
        if (from_end - at >= LANES) memcpy(&row[a], at, sizeof *row);
        else memcpy(&row[a], at, (size_t)n * sizeof(TYPE));
    }
    TYPE_exchange(row);
    for (int64_t b = 0; b < n; b++) {
        TYPE *at = to + b * rows;
        if (to_end - at >= LANES) memcpy(at, &row[b], sizeof *row);
        else memcpy(at, &row[b], (size_t)m * sizeof(TYPE));
    }
}

static void TYPE_chunk(const Matrices *all, int64_t number)
{
    const int64_t rows = all->rows, columns = all->columns;
    const int64_t chunk = number % all->column_chunks, rest = number / all->column_chunks;
    const int64_t band = rest % all->row_chunks, matrix = rest / all->row_chunks;
    const int64_t j0 = columns * chunk / all->column_chunks;
    const int64_t j1 = columns * (chunk + 1) / all->column_chunks;
    const int64_t i0 = rows * band / all->row_chunks, i1 = rows * (band + 1) / all->row_chunks;
    const TYPE *from = (const TYPE *)all->from + matrix * rows * columns;
    const TYPE *from_end = (const TYPE *)all->from + all->matrices * rows * columns;
    TYPE *to = (TYPE *)all->to + matrix * rows * columns, *to_end = to + j1 * rows;
    const int64_t m = i1 - i0 < LANES ? i1 - i0 : LANES, n = j1 - j0 < LANES ? j1 - j0 : LANES;
    for (int64_t next_j = j0; next_j < j1; next_j += n) {
        const int64_t j = next_j + n > j1 ? j1 - n : next_j;
        for (int64_t next_i = i0; next_i < i1; next_i += m) {
            const int64_t i = next_i + m > i1 ? i1 - m : next_i;
            TYPE_tile(from + i * columns + j, from_end, columns, to + j * rows + i, to_end, rows, m,
                      n);
        }
    }
}
"""

_TAIL = r"""
static void take_chunks(void *data)
{
    Matrices *all = data;
    const int64_t chunks = all->matrices * all->row_chunks * all->column_chunks;
    for (;;) {
        const int64_t at = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED);
        if (at >= chunks) return;
        if (all->bytes == 2) uint16_t_chunk(all, at);
        else uint32_t_chunk(all, at);
    }
}

static int64_t chunks_of(int64_t cells, int64_t chunk) { return cells < chunk ? 1 : cells / chunk; }

/* matrices[rows][columns] as matrices[columns][rows], of cells of 2 or 4 bytes. */
void opgen_transpose(
    const void *from, void *to, int64_t matrices, int64_t rows, int64_t columns, int64_t bytes)
{
    Matrices all = {from, to, bytes, matrices, rows, columns,
                    chunks_of(rows, CHUNK_ROWS), chunks_of(columns, CHUNK_COLUMNS), 0};
    if (rows == 0 || columns == 0) return;
    take_all(take_chunks, &all, matrices * rows * columns <= GRAIN);
}
"""


def source() -> str:
    """The text of `opgen_transpose`; before it stand <stdint.h>, <string.h> and <pthread.h>."""
    exchanges = "#el".join(
        _exchanges(instructions, lanes) for instructions, lanes in _LANES.items()
    )
    tiles = "".join(_TILES.replace("TYPE", type_) for type_ in _TYPES)
    return f"{FORKS}{PARTS}{_HEAD}#{exchanges}#endif\n{tiles}{_TAIL}"


def _exchanges(instructions: str, lanes: int) -> str:
    """The macro that transposes `row`, of vectors of so many lanes.

    In a step of size `step` the lanes whose number has that bit, of a vector whose number lacks it,
    change places with those that lack it, of the vector so much further down.
    """
    lines = [f"if {instructions}", f"enum {{ LANES = {lanes} }};", "#define EXCHANGES \\"]
    source, target, step = "row", "other", 1
    while step < lanes:
        upper = [lanes + (lane ^ step) if lane & step else lane for lane in range(lanes)]
        lower = [lanes + lane if lane & step else lane ^ step for lane in range(lanes)]
        for at in (each for each in range(lanes) if not each & step):
            pair = f"{source}[{at}], {source}[{at + step}]"
            for to, picked in ((at, upper), (at + step, lower)):
                lines.append(f"    {target}[{to}] = PICK({pair}, {_listed(picked)}); \\")
        source, target, step = target, source, 2 * step
    copy = "" if source == "row" else f"    memcpy(row, {source}, sizeof other);"
    return "\n".join((*lines, copy, ""))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
