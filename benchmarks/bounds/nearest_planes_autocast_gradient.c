/* Sums of two by two pixels of bfloat16, rounded to bfloat16 and written as float32: planes one
   behind the other. */
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

/* To the nearest even in three instructions, and a NaN stays one: see `half_lanes`. */
static inline __m512 all_rounded(__m512 values)
{
    const __m512i kept = _mm512_set1_epi32(0x00010033);
    const __m512i bits = _mm512_castps_si512(_mm512_fixupimm_round_ps(values, values, kept, 0, 4));
    const __m512i last = _mm512_set1_epi32(0x010003ff);
    const __m512i bytes = _mm512_ternarylogic_epi32(bits, kept, last, 0xea);
    const __m512i words = _mm512_dpbusd_epi32(bits, bytes, _mm512_set1_epi32(0x01017f7f));
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff0000)));
}

/* Sixteen words of two pixels each, eight of a row and eight of another one. */
static inline __m512i words_of(const uint16_t *upper, const uint16_t *lower)
{
    const __m512i words = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)upper));
    return _mm512_inserti64x4(words, _mm256_loadu_si256((const void *)lower), 1);
}
static inline __m512 left_of(__m512i words)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
static inline __m512 right_of(__m512i words)
{
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff0000)));
}

/* Four rows of sixteen pixels, which make two of eight: pixels side by side are halves of words, so
   that none has to be picked. To convert rows, and then to pick, took up to a sixth longer. */
static void four_rows(const uint16_t *y, float *x)
{
    const __m512i upper = words_of(y, y + 32), lower = words_of(y + 16, y + 48);
    __m512 sum = _mm512_add_ps(left_of(upper), right_of(upper));
    sum = _mm512_add_ps(_mm512_add_ps(sum, left_of(lower)), right_of(lower));
    _mm512_storeu_ps(x, all_rounded(sum));
}
#endif

/* x[p, h, w] = bfloat16(sum(i,j) y[p, 2h+i, 2w+j]) */
void nearest_planes_autocast_gradient(
    const uint16_t *restrict y, float *restrict x, int64_t planes, int64_t height, int64_t width)
{
#pragma omp parallel for
    for (int64_t p = 0; p < planes; p++) {
        int64_t h = 0;
#if defined __AVX512VNNI__ && defined __AVX512F__
        if (width == 8)
            for (; h + 2 <= height; h += 2)
                four_rows(y + (p * height + h) * 32, x + (p * height + h) * 8);
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
