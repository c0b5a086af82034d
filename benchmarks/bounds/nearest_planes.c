/* Pixels each at two by two places of an image twice as large: planes one behind the other. */
#include <stdint.h>

#ifdef __AVX512F__
#include <immintrin.h>
/* Two rows of eight pixels are a vector, of which each makes a line of memory, stored twice. */
static void two_rows(const float *x, float *y)
{
    const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const __m512 rows = _mm512_loadu_ps(x);
    const __m512 upper = _mm512_permutexvar_ps(first, rows);
    const __m512 lower = _mm512_permutexvar_ps(second, rows);
    _mm512_storeu_ps(y, upper);
    _mm512_storeu_ps(y + 16, upper);
    _mm512_storeu_ps(y + 32, lower);
    _mm512_storeu_ps(y + 48, lower);
}
#endif

/* y[p, 2h+i, 2w+j] = x[p, h, w] */
void nearest_planes(
    const float *restrict x, float *restrict y, int64_t planes, int64_t height, int64_t width)
{
#pragma omp parallel for
    for (int64_t p = 0; p < planes; p++) {
        int64_t h = 0;
#ifdef __AVX512F__
        if (width == 8)
            for (; h + 2 <= height; h += 2)
                two_rows(x + (p * height + h) * 8, y + (p * height + h) * 32);
#endif
        for (; h < height; h++)
            for (int64_t w = 0; w < width; w++) {
                float *const a = y + (p * height + h) * 4 * width + 2 * w, *const b = a + 2 * width;
                a[0] = a[1] = b[0] = b[1] = x[(p * height + h) * width + w];
            }
    }
}
