/* Pixels of float32, rounded to bfloat16, each at two by two places of an image twice as large:
   planes one behind the other. */
#include "bfloat16.h"

#ifdef HAS_LANES
/* Two rows of eight pixels are a vector, of which each makes a line of memory: a row, twice. */
static void two_rows(const float *x, uint16_t *y)
{
    uint16_t places[32];
    for (int lane = 0; lane < 32; lane++) places[lane] = lane % 16 / 2;
    const __m512i first = _mm512_loadu_si512(places);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(8));
    const __m512i rows = _mm512_castsi256_si512(rounded_lanes(x));
    _mm512_storeu_si512(y, _mm512_permutexvar_epi16(first, rows));
    _mm512_storeu_si512(y + 32, _mm512_permutexvar_epi16(second, rows));
}
#endif

/* y[p, 2h+i, 2w+j] = bfloat16(x[p, h, w]) */
void nearest_planes_autocast(
    const float *restrict x, uint16_t *restrict y, int64_t planes, int64_t height, int64_t width)
{
#pragma omp parallel for
    for (int64_t p = 0; p < planes; p++) {
        int64_t h = 0;
#ifdef HAS_LANES
        if (width == 8)
            for (; h + 2 <= height; h += 2)
                two_rows(x + (p * height + h) * 8, y + (p * height + h) * 32);
#endif
        for (; h < height; h++)
            for (int64_t w = 0; w < width; w++) {
                uint16_t *const a = y + (p * height + h) * 4 * width + 2 * w;
                uint16_t *const b = a + 2 * width;
                a[0] = a[1] = b[0] = b[1] = half(x[(p * height + h) * width + w]);
            }
    }
}
