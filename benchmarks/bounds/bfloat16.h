/* Numbers of bfloat16: to float32, and back to the nearest one, ties to even; a NaN stays one. */
#include <stdint.h>
#include <string.h>

static inline float wide(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float rounded(float value) { return wide(half(value)); }

#if defined __AVX512F__ && defined __AVX512BW__ && defined __AVX512VNNI__ && defined __AVX512BF16__
#define HAS_LANES
#include <immintrin.h>

/* Both numbers of each word as float32: that in its lower half, and that in its upper one. */
static inline __m512 lower_of(__m512i words)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
static inline __m512 upper_of(__m512i words)
{
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff0000)));
}

/* The upper halves of words, in three instructions: see `half_lanes`. */
static inline __m512i upper_halves(__m512 values)
{
    const __m512i kept = _mm512_set1_epi32(0x00010033), last = _mm512_set1_epi32(0x010003ff);
    const __m512i bits = _mm512_castps_si512(_mm512_fixupimm_round_ps(values, values, kept, 0, 4));
    const __m512i bytes = _mm512_ternarylogic_epi32(bits, kept, last, 0xea);
    return _mm512_dpbusd_epi32(bits, bytes, _mm512_set1_epi32(0x01017f7f));
}

/* The instruction takes subnormal numbers for zeros: vectors that have any are rounded in turn. */
static inline __m256i rounded_lanes(const float *x)
{
    const __m512 values = _mm512_loadu_ps(x);
    const __m512i bits = _mm512_castps_si512(values);
    const __mmask16 small = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    if (__builtin_expect(!_mm512_mask_test_epi32_mask(small, bits, _mm512_set1_epi32(0x7fffff)), 1))
        return (__m256i)_mm512_cvtneps_pbh(values);
    uint16_t found[16];
    for (int lane = 0; lane < 16; lane++) found[lane] = half(x[lane]);
    return _mm256_loadu_si256((const void *)found);
}

/* What follows takes subnormal numbers for zeros too. So it is for what is coarse: zeros, and
   numbers not below 2**-50, of which no sum of products of two is subnormal. Of numbers that are
   looked at in turn the least is kept, twice its bits less one: a zero then is the largest. */
struct least { __m512i words, halves; };

static inline struct least none_yet(void)
{
    return (struct least){_mm512_set1_epi32(-1), _mm512_set1_epi32(-1)};
}
static inline struct least least_floats(struct least found, __m512 values)
{
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i twice = _mm512_sub_epi32(_mm512_add_epi32(bits, bits), _mm512_set1_epi32(1));
    return (struct least){_mm512_min_epu32(found.words, twice), found.halves};
}
static inline struct least least_halves(struct least found, __m512i bits)
{
    const __m512i twice = _mm512_sub_epi16(_mm512_add_epi16(bits, bits), _mm512_set1_epi16(1));
    return (struct least){found.words, _mm512_min_epu16(found.halves, twice)};
}
static inline int is_coarse(struct least found)
{
    const __m512i words = _mm512_set1_epi32((127 - 50) << 24);
    const __m512i halves = _mm512_set1_epi16((127 - 50) << 8);
    return !(_mm512_cmplt_epu32_mask(found.words, words)
        | _mm512_cmplt_epu16_mask(found.halves, halves));
}

/* Thirty-two numbers of two vectors. */
static inline __m512i halves_of(__m512 first, __m512 second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}
/* Products of both numbers of each word, added to a sum. */
static inline __m512 add_products(__m512 sums, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
}

/* As float32 the numbers of such places, of which every second one counts. */
static inline __m512 picked(__m512i numbers, __m512i places)
{
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, places, numbers));
}
/* From `first` on, each so many times. */
static inline __m512i places(int first, int times)
{
    uint16_t found[32];
    for (int lane = 0; lane < 32; lane++) found[lane] = (uint16_t)(first + lane / times);
    return _mm512_loadu_si512(found);
}
#endif
