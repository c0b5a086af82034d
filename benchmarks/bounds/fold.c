/* Rows of windows of 3 by 3 added up into planes, zero padding of 1: float32, contiguous.

   A row of a plane is the sum of nine rows, each moved by the offset of its window: three of the
   windows that have it below, in the middle and above. The first and last row of a plane lack one
   of these threes, the first and last cell of a row lacks one of each three. */
#include <stdint.h>

/* `windows[k]` is where window row k begins that reaches this row, its three windows `cells` apart. */
__attribute__((always_inline)) static inline void add_row(
    float *restrict to, const float *const *windows, int count, int64_t cells, int64_t width)
{
    for (int64_t j = 1; j < width - 1; j++) {
        float sum = 0;
        for (int k = 0; k < count; k++)
            sum += windows[k][j + 1] + windows[k][cells + j] + windows[k][2 * cells + j - 1];
        to[j] = sum;
    }
    float first = 0, last = 0;
    for (int k = 0; k < count; k++) {
        first += windows[k][cells];
        if (width == 1) continue;
        first += windows[k][1];
        last += windows[k][cells + width - 1] + windows[k][2 * cells + width - 2];
    }
    to[0] = first;
    if (width > 1) to[width - 1] = last;
}

void fold(const float *restrict x, float *restrict y, int64_t planes, int64_t rows, int64_t width)
{
    const int64_t cells = rows * width;
#pragma omp parallel for
    for (int64_t plane = 0; plane < planes; plane++) {
        const float *const from = x + 9 * plane * cells;
        for (int64_t i = 0; i < rows; i++) {
            float *const to = y + plane * cells + i * width;
            const float *const windows[3] = {
                from + 3 * cells + i * width,
                i > 0 ? from + 6 * cells + (i - 1) * width : from + (i + 1) * width,
                from + (i + 1) * width,
            };
            if (i > 0 && i < rows - 1)
                add_row(to, windows, 3, cells, width);
            else if (rows > 1)
                add_row(to, windows, 2, cells, width);
            else
                add_row(to, windows, 1, cells, width);
        }
    }
}
