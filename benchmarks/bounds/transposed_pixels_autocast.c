/* A depthwise transposed 2x2 convolution with stride 2 of float32, rounded to bfloat16, both images
   in channels-last format. The filter of half of the channels stays in the nearest cache for a row
   of pixels. */
#include "bfloat16.h"
#include <stdlib.h>

enum { PART = 1024, LANES = 32 };

/* Some channels of a cell. */
static void cell(const float *x, const float *filter, uint16_t *y, int64_t some)
{
    for (int64_t c = 0; c < some; c++) y[c] = half(rounded(x[c]) * filter[c]);
}

#ifdef HAS_LANES
/* 32 channels of the four cells of a pixel, whose rows are `below` apart; they, and the parts
   of the filter, are `next` apart. 0 where something is tiny, and nothing is written. */
static inline int four_cells(
    const float *x, const float *filter, uint16_t *y, int64_t next, int64_t below)
{
    const __m512 first = _mm512_loadu_ps(x), second = _mm512_loadu_ps(x + 16);
    const __m512i pixels = halves_of(first, second);
    const __m512 low = picked(pixels, places(0, 2)), high = picked(pixels, places(16, 2));
    if (!is_coarse(least_floats(least_floats(none_yet(), first), second))) return 0;
#pragma GCC unroll 4
    for (int64_t k = 0; k < 4; k++) {
        const __m512 these = _mm512_mul_ps(low, _mm512_loadu_ps(filter + k * next));
        const __m512 those = _mm512_mul_ps(high, _mm512_loadu_ps(filter + k * next + 16));
        _mm512_storeu_si512(y + k / 2 * below + k % 2 * next, halves_of(these, those));
    }
    return 1;
}
#endif

/* y[n, 2h+i, 2w+j, c] = bfloat16(bfloat16(x[n, h, w, c]) * bfloat16(weight[c, i, j])) */
void transposed_pixels_autocast(
    const float *restrict x, const float *restrict weight, uint16_t *restrict y, int64_t images,
    int64_t height, int64_t width, int64_t channels)
{
    const int64_t below = 2 * width * channels;
    float *const filters = malloc(4 * (size_t)channels * sizeof(float));
    if (!filters) abort();
    int coarse = 1;
    for (int64_t k = 0; k < 4; k++)
        for (int64_t c = 0; c < channels; c++) {
            const float w = filters[k * channels + c] = rounded(weight[4 * c + k]);
            coarse &= w == 0 || !(w < 0x1p-50f && w > -0x1p-50f);
        }
#pragma omp parallel for
    for (int64_t row = 0; row < images * height; row++)
        for (int64_t first = 0; first < channels; first += PART)
            for (int64_t w = 0; w < width; w++) {
                const int64_t last = first + PART < channels ? first + PART : channels;
                const float *const pixel = x + (row * width + w) * channels;
                uint16_t *const cells = y + row * 2 * below + 2 * w * channels;
                for (int64_t c = first; c < last; c += LANES) {
                    __builtin_prefetch(pixel + channels + c, 0, 2);
                    __builtin_prefetch(pixel + channels + c + 16, 0, 2);
#ifdef HAS_LANES
                    if (coarse && c + LANES <= last
                        && four_cells(pixel + c, filters + c, cells + c, channels, below))
                        continue;
#endif
                    const int64_t some = c + LANES < last ? LANES : last - c;
                    for (int64_t k = 0; k < 4; k++)
                        cell(pixel + c, filters + k * channels + c,
                             cells + k / 2 * below + k % 2 * channels + c, some);
                }
            }
    free(filters);
}
