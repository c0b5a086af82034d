"""C functions that fill a tensor with zeros, before points add to its cells."""

from __future__ import annotations

from typing import Final

ZEROS: Final = r"""
enum { ZEROED = 1 << 16 };  /* bytes of a piece */

static void zero_pieces(int64_t begin, int64_t end, const struct call *call)
{
    const int64_t last = least(end * ZEROED, *call->integers);
    memset((char *)*call->tensors + begin * ZEROED, 0, last - begin * ZEROED);
}

/* Zeros in all cells of a tensor, in the order of memory; 0 where there is something between them:
   as many cells as there are places have no gaps, since no two of them are the same place. */
FUNCTION int zeros_made(
    void *place, int64_t size, int rank, const int64_t *sizes, const int64_t *steps)
{
    int64_t cells = 1, places = 1;
    for (int axis = 0; axis < rank; axis++) {
        if (sizes[axis] == 0) return 1;
        if (sizes[axis] > 1 && steps[axis] < 0) return 0;
        cells *= sizes[axis], places += (sizes[axis] - 1) * steps[axis];
    }
    if (cells != places) return 0;
    const int64_t bytes = cells * size;
    const struct call call = {&place, &bytes};
    in_parallel(zero_pieces, &call, (bytes + ZEROED - 1) / ZEROED, ZEROED / size);
    return 1;
}
"""
"""`zeros_made`, behind `SHARES`."""
