/* Sums of two by two pixels of bfloat16, rounded to bfloat16 and written as float32: planes one
   behind the other. With `past` results go past the caches: where these do not hold all that is
   read and written, that took three quarters of the time. */
#include "bfloat16.h"

#ifdef HAS_LANES
/* Sixteen words of two pixels each, eight of a row and eight of another one. */
static inline __m512i words_of(const uint16_t *upper, const uint16_t *lower)
{
    const __m512i words = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)upper));
    return _mm512_inserti64x4(words, _mm256_loadu_si256((const void *)lower), 1);
}

/* Four rows of sixteen pixels, which make two of eight, or two rows of thirty-two: pixels side by
   side are halves of words, so that none has to be picked. To convert rows, and then to pick, took
   up to a sixth longer. */
static void some_rows(const uint16_t *y, float *x, int64_t width, int past)
{
    const int64_t below = 2 * width, behind = 48 - below;
    const __m512i upper = words_of(y, y + behind), lower = words_of(y + below, y + 48);
    __m512 sum = _mm512_add_ps(lower_of(upper), upper_of(upper));
    sum = _mm512_add_ps(_mm512_add_ps(sum, lower_of(lower)), upper_of(lower));
    sum = upper_of(upper_halves(sum));
    if (past) _mm512_stream_ps(x, sum);
    else _mm512_storeu_ps(x, sum);
}
#endif

/* x[p, h, w] = bfloat16(sum(i,j) y[p, 2h+i, 2w+j]) */
void nearest_planes_autocast_gradient(
    const uint16_t *restrict y, float *restrict x, int64_t planes, int64_t height, int64_t width,
    int64_t past)
{
    (void)past;
#ifdef HAS_LANES
    const int streams = past && height * width % 16 == 0;  /* whole lines of memory */
#endif
#pragma omp parallel for
    for (int64_t p = 0; p < planes; p++) {
        int64_t h = 0;
#ifdef HAS_LANES
        const int64_t rows = 16 / width;
        if (width == 8 || width == 16)
            for (; h + rows <= height; h += rows) {
                const int64_t at = (p * height + h) * width;
                some_rows(y + 4 * at, x + at, width, streams);
            }
#endif
        for (; h < height; h++)
            for (int64_t w = 0; w < width; w++) {
                const uint16_t *const a = y + (p * height + h) * 4 * width + 2 * w;
                const uint16_t *const b = a + 2 * width;
                const float sum = wide(a[0]) + wide(a[1]) + wide(b[0]) + wide(b[1]);
                x[(p * height + h) * width + w] = rounded(sum);
            }
    }
}
