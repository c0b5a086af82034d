/* Sums of two by two pixels of bfloat16, rounded to bfloat16 and written as float32: both images in
   channels-last format. Channels side by side are halves of words. With `past`, for more than the
   caches hold, results go past them, and the cells of the next pixel are asked for, into the second
   cache: that took two thirds of the time. */
#include "bfloat16.h"

enum { LANES = 32 };

#ifdef HAS_LANES
/* 32 channels of a pixel; `order` are the places of the first 16 in the sums of lower halves and
   those of upper ones. */
static inline void sums_of_cells(
    const uint16_t *const cells[4], float *x, int64_t c, __m512i order, int past)
{
    const __m512i words = _mm512_loadu_si512(cells[0] + c);
    __m512 even = lower_of(words), odd = upper_of(words);
    for (int k = 1; k < 4; k++) {
        const __m512i others = _mm512_loadu_si512(cells[k] + c);
        even = _mm512_add_ps(even, lower_of(others)), odd = _mm512_add_ps(odd, upper_of(others));
    }
    const __m512i these = upper_halves(even), those = upper_halves(odd);
    const __m512i behind = _mm512_add_epi16(order, _mm512_set1_epi16(16));
    const __m512 first = _mm512_castsi512_ps(
        _mm512_maskz_permutex2var_epi16(0xaaaaaaaa, these, order, those));
    const __m512 second = _mm512_castsi512_ps(
        _mm512_maskz_permutex2var_epi16(0xaaaaaaaa, these, behind, those));
    if (past) _mm512_stream_ps(x + c, first), _mm512_stream_ps(x + c + 16, second);
    else _mm512_storeu_ps(x + c, first), _mm512_storeu_ps(x + c + 16, second);
}
#endif

/* x[n, h, w, c] = bfloat16(sum(i,j) y[n, 2h+i, 2w+j, c]) */
void nearest_autocast_gradient(
    const uint16_t *restrict y, float *restrict x, int64_t images, int64_t height, int64_t width,
    int64_t channels, int64_t past)
{
    (void)past;
#ifdef HAS_LANES
    const int streams = past && channels % LANES == 0;  /* whole lines of memory */
    uint16_t place[32];
    for (int lane = 0; lane < 32; lane++)
        place[lane] = (uint16_t)(lane / 4 * 2 + lane / 2 % 2 * 32 + 1);
    const __m512i order = _mm512_loadu_si512(place);
#endif
#pragma omp parallel for
    for (int64_t row = 0; row < images * height; row++)
        for (int64_t w = 0; w < width; w++) {
            float *const pixel = x + (row * width + w) * channels;
            const uint16_t *const a = y + (row * 4 * width + 2 * w) * channels;
            const uint16_t *const b = a + 2 * width * channels;
            const uint16_t *const cells[4] = {a, a + channels, b, b + channels};
            int64_t c = 0;
#ifdef HAS_LANES
            for (; c + LANES <= channels; c += LANES) {
                for (int k = 0; streams && k < 4; k++)
                    __builtin_prefetch(cells[k] + 2 * channels + c, 0, 2);
                sums_of_cells(cells, pixel, c, order, streams);
            }
#endif
            for (; c < channels; c++)
                pixel[c] = rounded(
                    wide(cells[0][c]) + wide(cells[1][c]) + wide(cells[2][c]) + wide(cells[3][c]));
        }
}
