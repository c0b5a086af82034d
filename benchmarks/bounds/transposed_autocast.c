/* A depthwise transposed 2x2 convolution with stride 2 of float32, rounded to bfloat16, planes one
   behind the other. Pixels are doubled as they become float32 again, so that two rows of results,
   rounded, are a line of memory as they should be. */
#include "bfloat16.h"

#ifdef HAS_LANES
/* A plane of 8 by 8; 0 where it has tiny numbers, and nothing is written. */
static int plane_of_8(const float *x, const float *weight, uint16_t *y)
{
    const __m512i pair = _mm512_set1_epi64(0x0001000100000000);
    const __m512 filter = _mm512_broadcast_f32x4(_mm_loadu_ps(weight));
    const __m512i filters = halves_of(filter, filter);
    const __m512 upper = picked(filters, pair);
    const __m512 lower = picked(filters, _mm512_add_epi16(pair, _mm512_set1_epi16(2)));
    struct least least = least_floats(none_yet(), filter);
    for (int at = 0; at < 64; at += 16) least = least_floats(least, _mm512_loadu_ps(x + at));
    if (!is_coarse(least)) return 0;
    for (int at = 0; at < 64; at += 32) {
        const __m512i pixels = halves_of(_mm512_loadu_ps(x + at), _mm512_loadu_ps(x + at + 16));
        for (int row = 0; row < 32; row += 8) {
            const __m512 these = picked(pixels, places(row, 4));
            const __m512 first = _mm512_mul_ps(these, upper), second = _mm512_mul_ps(these, lower);
            _mm512_storeu_si512(y + 4 * (at + row), halves_of(first, second));
        }
    }
    return 1;
}
#endif

/* y[n, c, 2i+k, 2j+l] = bfloat16(bfloat16(x[n, c, i, j]) * bfloat16(weight[c, k, l])) */
void transposed_autocast(
    const float *restrict x, const float *restrict weight, uint16_t *restrict y, int64_t batch,
    int64_t channels, int64_t height, int64_t width)
{
    const int64_t size = height * width;
#pragma omp parallel for
    for (int64_t p = 0; p < batch * channels; p++) {
        const float *const w = weight + p % channels * 4;
#ifdef HAS_LANES
        if (height == 8 && width == 8 && plane_of_8(x + p * size, w, y + 4 * p * size)) continue;
#endif
        for (int64_t i = 0; i < 2 * height; i++)
            for (int64_t j = 0; j < 2 * width; j++) {
                const float pixel = rounded(x[p * size + i / 2 * width + j / 2]);
                y[4 * p * size + i * 2 * width + j] = half(pixel * rounded(w[i % 2 * 2 + j % 2]));
            }
    }
}
