/* Windows of 3 by 3 of every plane as rows, zero padding of 1: float32, contiguous.

   A row of the result is the plane moved by one window's offset. It is copied as one piece, in the
   order of memory, and the column whose numbers came from the row before or after is made zero
   while its lines are in the first cache. */
#include <stdint.h>
#include <string.h>

static int64_t within(int64_t value, int64_t least, int64_t greatest)
{
    return value < least ? least : value > greatest ? greatest : value;
}

void unfold(const float *restrict x, float *restrict y, int64_t planes, int64_t rows, int64_t width)
{
    const int64_t cells = rows * width;
#pragma omp parallel for
    for (int64_t plane = 0; plane < planes; plane++) {
        const float *const from = x + plane * cells;
        float *to = y + 9 * plane * cells;
        for (int64_t k = -1; k <= 1; k++)
            for (int64_t l = -1; l <= 1; l++, to += cells) {
                const int64_t offset = k * width + l;
                const int64_t begin = within(-offset, 0, cells);
                const int64_t end = within(cells - offset, begin, cells);
                memset(to, 0, (size_t)begin * sizeof *to);
                memcpy(to + begin, from + begin + offset, (size_t)(end - begin) * sizeof *to);
                memset(to + end, 0, (size_t)(cells - end) * sizeof *to);
                if (l != 0)
                    for (int64_t i = 0; i < rows; i++) to[i * width + (l < 0 ? 0 : width - 1)] = 0;
            }
    }
}
