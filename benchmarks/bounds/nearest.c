/* Pixels each at two by two places of an image twice as large, both in channels-last format. A
   pixel is read once, and stays in the nearest cache while one cell after the other is written:
   rows in turn, all four cells at a time, and the C library's copy took up to a sixth longer. */
#include <stdint.h>

typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));
enum { LANES = sizeof(lanes) / sizeof(float) };

/* y[n, 2h+i, 2w+j, c] = x[n, h, w, c] */
void nearest(
    const float *restrict x, float *restrict y, int64_t images, int64_t height, int64_t width,
    int64_t channels)
{
#pragma omp parallel for
    for (int64_t row = 0; row < images * height; row++)
        for (int64_t w = 0; w < width; w++)
            for (int64_t k = 0; k < 4; k++) {
                const float *const pixel = x + (row * width + w) * channels;
                const int64_t cell = (2 * row + k / 2) * 2 * width + 2 * w + k % 2;
                int64_t c = 0;
                for (; c + LANES <= channels; c += LANES)
                    *(lanes *)(y + cell * channels + c) = *(const lanes *)(pixel + c);
                for (; c < channels; c++) y[cell * channels + c] = pixel[c];
            }
}
