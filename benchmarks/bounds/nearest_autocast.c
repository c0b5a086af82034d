/* Pixels of float32, rounded to bfloat16, each at two by two places of an image twice as large,
   both in channels-last format. */
#include "bfloat16.h"

enum { LANES = 16 };

/* y[n, 2h+i, 2w+j, c] = bfloat16(x[n, h, w, c]) */
void nearest_autocast(
    const float *restrict x, uint16_t *restrict y, int64_t images, int64_t height, int64_t width,
    int64_t channels)
{
#pragma omp parallel for
    for (int64_t row = 0; row < images * height; row++)
        for (int64_t w = 0; w < width; w++) {
            const float *const pixel = x + (row * width + w) * channels;
            uint16_t *const a = y + (row * 4 * width + 2 * w) * channels, *const b = a + channels;
            uint16_t *const c = a + 2 * width * channels, *const d = c + channels;
            int64_t k = 0;
#ifdef HAS_LANES
            for (; k + LANES <= channels; k += LANES) {
                const __m256i values = rounded_lanes(pixel + k);
                _mm256_storeu_si256((void *)(a + k), values);
                _mm256_storeu_si256((void *)(b + k), values);
                _mm256_storeu_si256((void *)(c + k), values);
                _mm256_storeu_si256((void *)(d + k), values);
            }
#endif
            for (; k < channels; k++) a[k] = b[k] = c[k] = d[k] = half(pixel[k]);
        }
}
