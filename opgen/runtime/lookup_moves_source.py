"""The C side of tensors seen with other dims (`arrangement`): copies whose steps are given, views.

A move is a list of integers, see `lookup_moves`: how many dims, and of each its size, its step in
what is read and its step in what is written, those of the largest steps of the latter first. The
copy is another tensor, whose rank, sizes and strides follow; or it is a part of one that is there,
for `opgen_move`.

Rows of pixels that become one, a pixel of each in turn, have loops that compilers turn into vectors
where they are few (`lookup_moves.MOST_IN_TURN`).
"""

from __future__ import annotations

from opgen.runtime.lookup_moves import MOST_IN_TURN, VIEW

_SOURCE = r"""
enum { MOVED_AT_ONCE = 32768, FEW_MOVED = 1 << 18 };
typedef struct { int64_t size, from, to; } Dim;
typedef struct {
    const char *from;
    char *to;
    const Dim *dims;
    int64_t rank, bytes, outer, at_once, next;
} Move;

/* Rows of so many cells, `from` apart, as one. */
#define IN_TURN(TYPE, ROWS) \
    for (int64_t i = 0; i < cells; i++) \
        for (int64_t row = 0; row < ROWS; row++) \
            ((TYPE *)to)[i * ROWS + row] = ((const TYPE *)from)[row * apart + i];
#define IN_TURN_OF(TYPE) \
    static void TYPE##_in_turn(const void *restrict from, void *restrict to, int64_t cells, \
                               int64_t rows, int64_t apart) \
    { \
        WAYS \
    }
IN_TURN_OF(uint16_t)
IN_TURN_OF(uint32_t)

static int is_in_turn(const Dim *dims, int64_t rank, int64_t bytes)
{
    return rank == 2 && dims[0].from == 1 && dims[1].to == 1 && dims[0].to == dims[1].size
        && dims[1].size <= MOST_IN_TURN && (bytes == 2 || bytes == 4);
}

static void move_dims(const Dim *dims, int64_t rank, const char *from, char *to, int64_t bytes)
{
    if (rank == 0) {
        memcpy(to, from, (size_t)bytes);
    } else if (rank == 1 && dims->from == 1 && dims->to == 1) {
        memcpy(to, from, (size_t)(dims->size * bytes));
    } else if (is_in_turn(dims, rank, bytes)) {
        (bytes == 2 ? uint16_t_in_turn : uint32_t_in_turn)(
            from, to, dims[0].size, dims[1].size, dims[1].from);
    } else {
        for (int64_t i = 0; i < dims->size; i++)
            move_dims(dims + 1, rank - 1, from + i * dims->from * bytes, to + i * dims->to * bytes,
                      bytes);
    }
}

/* Points of the two outermost dims, as threads become free. */
static void take_points(void *data)
{
    Move *all = data;
    const int64_t outer = all->outer, bytes = all->bytes;
    const int64_t inner = outer > 1 ? all->dims[1].size : 1;
    const int64_t points = outer ? all->dims[0].size * inner : 1;
    for (;;) {
        const int64_t first = __atomic_fetch_add(&all->next, all->at_once, __ATOMIC_RELAXED);
        const int64_t left = points - first;
        if (left <= 0) return;
        for (int64_t at = first; at < first + (left < all->at_once ? left : all->at_once); at++) {
            int64_t from = 0, to = 0;
            for (int64_t i = 0; i < outer; i++) {
                const int64_t index = i ? at % inner : at / inner;
                from += index * all->dims[i].from, to += index * all->dims[i].to;
            }
            move_dims(all->dims + outer, all->rank - outer, all->from + from * bytes,
                      all->to + to * bytes, bytes);
        }
    }
}

/* Of what `is_new`, pages may have to be asked for. */
static void move(const void *from, void *to, const int64_t *about, int64_t bytes, int is_new)
{
    const int64_t rank = about[0], outer = rank > 3 ? 2 : rank > 1 ? 1 : 0;
    const Dim *dims = (const Dim *)(about + 1);
    int64_t cells = 1, each = 1;
    for (int64_t i = 0; i < rank; i++) cells *= dims[i].size;
    for (int64_t i = outer; i < rank; i++) each *= dims[i].size;
    Move all = {from, to, dims, rank, bytes, outer, 1 + MOVED_AT_ONCE / (each + 1), 0};
    if (is_new) is_mapped(to, cells * bytes, 1);
    take_all(take_points, &all, cells <= FEW_MOVED);
}

/* A move into a part of a tensor, of which new memory was expected to be written as a whole. */
void opgen_move(const void *from, void *to, const int64_t *about, int64_t bytes)
{
    move(from, to, about, bytes, 0);
}
void opgen_expect(void *memory, int64_t bytes) { is_mapped(memory, bytes, 1); }

/* A view whose rank, sizes and strides stand there; where the next move begins. */
static const int64_t *viewed(const int64_t *about, Tensor tensor, Tensor *made)
{
    const int64_t rank = *about, *shape = about + 1;
    return view_of(tensor, rank, shape, shape + rank, 0, made) ? NULL : shape + 2 * rank;
}

/* A tensor with other dims; where the next move begins, NULL if it cannot be made. In place of the
   number of dims, one below 0 leaves a tensor as it is, or stands before a view. */
static const int64_t *rearranged(const int64_t *about, Tensor tensor, int64_t bytes, Tensor *made)
{
    if (about[0] == VIEW) return viewed(about + 1, tensor, made);
    int64_t known[2 * MAX_RANK + 2], words = 0;
    const void *from;
    void *to;
    if (about[0] < 0) return about + 1;
    const int64_t *shape = about + 1 + 3 * about[0], rank = *shape++;
    if (!describe(tensor, known, &words)) return NULL;
    if (new_tensor(rank, shape, shape + rank, (int32_t)known[0], made)) return NULL;
    if (get_const_data(tensor, &from) || get_data(*made, &to)) return NULL;
    move(from, to, about, bytes, 1);
    return shape + 2 * rank;
}

/* Where the next move begins. */
static const int64_t *after_move(const int64_t *about)
{
    if (about[0] == VIEW) return about + 2 + 2 * about[1];
    if (about[0] < 0) return about + 1;
    const int64_t *shape = about + 1 + 3 * about[0];
    return shape + 1 + 2 * *shape;
}
"""


def source() -> str:
    """The text of `rearranged`; before it stands that of `lookup_repeats_source`."""
    ways = (f"if (rows == {rows}) IN_TURN(TYPE, {rows})" for rows in range(2, MOST_IN_TURN + 1))
    text = _SOURCE.replace("WAYS", " \\\n        else ".join(ways))
    return f"enum {{ MOST_IN_TURN = {MOST_IN_TURN}, VIEW = {VIEW} }};\n{text}"
