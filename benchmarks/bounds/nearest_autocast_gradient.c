/* Sums of two by two pixels of bfloat16, rounded to bfloat16 and written as float32: both images in
   channels-last format. */
#include <stdint.h>
#include <string.h>

static inline float wide(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float rounded(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value == value) bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

#if defined __AVX512VNNI__ && defined __AVX512F__
#include <immintrin.h>
enum { LANES = 16 };

static inline __m512 all_wide(const uint16_t *y)
{
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)y));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

/* To the nearest even in three instructions, and a NaN stays one: see `half_lanes`. */
static inline __m512 all_rounded(__m512 values)
{
    const __m512i kept = _mm512_set1_epi32(0x00010033);
    const __m512i bits = _mm512_castps_si512(_mm512_fixupimm_round_ps(values, values, kept, 0, 4));
    const __m512i bytes = _mm512_ternarylogic_epi32(bits, kept, _mm512_set1_epi32(0x010003ff), 0xea);
    const __m512i words = _mm512_dpbusd_epi32(bits, bytes, _mm512_set1_epi32(0x01017f7f));
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff0000)));
}
#endif

/* x[n, h, w, c] = bfloat16(sum(i,j) y[n, 2h+i, 2w+j, c]) */
void nearest_autocast_gradient(
    const uint16_t *restrict y, float *restrict x, int64_t images, int64_t height, int64_t width,
    int64_t channels)
{
#pragma omp parallel for
    for (int64_t row = 0; row < images * height; row++)
        for (int64_t w = 0; w < width; w++) {
            float *const pixel = x + (row * width + w) * channels;
            const uint16_t *const a = y + (row * 4 * width + 2 * w) * channels;
            const uint16_t *const b = a + channels, *const c = a + 2 * width * channels;
            const uint16_t *const d = c + channels;
            int64_t k = 0;
#if defined __AVX512VNNI__ && defined __AVX512F__
            for (; k + LANES <= channels; k += LANES) {
                __m512 sum = _mm512_add_ps(all_wide(a + k), all_wide(b + k));
                sum = _mm512_add_ps(_mm512_add_ps(sum, all_wide(c + k)), all_wide(d + k));
                _mm512_storeu_ps(pixel + k, all_rounded(sum));
            }
#endif
            for (; k < channels; k++)
                pixel[k] = rounded(wide(a[k]) + wide(b[k]) + wide(c[k]) + wide(d[k]));
        }
}
