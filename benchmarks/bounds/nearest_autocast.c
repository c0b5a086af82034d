/* Pixels of float32, rounded to bfloat16, each at two by two places of an image twice as large: both
   images in channels-last format. */
#include <stdint.h>
#include <string.h>

static inline uint16_t rounded(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#ifdef __AVX512BF16__
#include <immintrin.h>
enum { LANES = 16 };

/* The instruction flushes subnormal numbers: vectors that have any are rounded one by one. */
static inline __m256i all_rounded(const float *x)
{
    const __m512 values = _mm512_loadu_ps(x);
    const __m512i bits = _mm512_castps_si512(values);
    const __mmask16 small = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    if (__builtin_expect(!_mm512_mask_test_epi32_mask(small, bits, _mm512_set1_epi32(0x7fffff)), 1))
        return (__m256i)_mm512_cvtneps_pbh(values);
    uint16_t found[LANES];
    for (int lane = 0; lane < LANES; lane++) found[lane] = rounded(x[lane]);
    return _mm256_loadu_si256((const void *)found);
}
#endif

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
#ifdef __AVX512BF16__
            for (; k + LANES <= channels; k += LANES) {
                const __m256i values = all_rounded(pixel + k);
                _mm256_storeu_si256((void *)(a + k), values);
                _mm256_storeu_si256((void *)(b + k), values);
                _mm256_storeu_si256((void *)(c + k), values);
                _mm256_storeu_si256((void *)(d + k), values);
            }
#endif
            for (; k < channels; k++) a[k] = b[k] = c[k] = d[k] = rounded(pixel[k]);
        }
}
