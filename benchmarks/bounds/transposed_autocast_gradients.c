/* Both gradients of a depthwise transposed 2x2 convolution with stride 2 under autocast, planes one
   behind the other: y is bfloat16, the image and the filter are rounded to it here, and the
   gradients are rounded to it and written as float32. One instruction adds products of both numbers
   of words to float32: of cells side by side for a pixel, of two pixels for the filter. */
#include "bfloat16.h"

enum { GROUP = 8 };

/* Sums over one plane; `image` is its part of grad_x. */
static void plane(
    const uint16_t *restrict y, const float *restrict x, const float *restrict weight,
    float *restrict image, float *restrict sums, int64_t height, int64_t width)
{
    for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++) {
            const uint16_t *const cells = y + 4 * i * width + 2 * j;
            float total = 0;
            for (int64_t k = 0; k < 4; k++) {
                const float cell = wide(cells[k / 2 * 2 * width + k % 2]);
                total += rounded(weight[k]) * cell;
                sums[k] += rounded(x[i * width + j]) * cell;
            }
            image[i * width + j] = rounded(total);
        }
}

#ifdef HAS_LANES
/* The same of 8 by 8; `pairs` are the filter, two numbers a word. 0 where something is tiny. */
static inline int plane_of_8(
    const uint16_t *restrict y, const float *restrict x, const __m512i *pairs,
    float *restrict image, __m512 *restrict sums)
{
    uint16_t twice[32];
    for (int lane = 0; lane < 32; lane++) twice[lane] = (uint16_t)(2 * lane);
    const __m512i even = _mm512_loadu_si512(twice);
    const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
    struct least least = none_yet();
    for (int at = 0; at < 256; at += 32) least = least_halves(least, _mm512_loadu_si512(y + at));
    for (int at = 0; at < 64; at += 16) least = least_floats(least, _mm512_loadu_ps(x + at));
    if (!is_coarse(least)) return 0;
    for (int at = 0; at < 64; at += 32, y += 128) {
        const __m512i a = _mm512_loadu_si512(y), b = _mm512_loadu_si512(y + 32);
        const __m512i c = _mm512_loadu_si512(y + 64), d = _mm512_loadu_si512(y + 96);
        /* Words of two cells side by side, of sixteen pixels each. */
        const __m512i first[2] = {
            _mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee)};
        const __m512i second[2] = {
            _mm512_shuffle_i64x2(c, d, 0x44), _mm512_shuffle_i64x2(c, d, 0xee)};
        const __m512i pixels = halves_of(_mm512_loadu_ps(x + at), _mm512_loadu_ps(x + at + 16));
        __m512 these = _mm512_setzero_ps(), those = _mm512_setzero_ps();
        for (int row = 0; row < 2; row++) {
            these = add_products(these, first[row], pairs[row]);
            those = add_products(those, second[row], pairs[row]);
            sums[2 * row] = add_products(
                sums[2 * row], pixels, _mm512_permutex2var_epi16(first[row], even, second[row]));
            sums[2 * row + 1] = add_products(
                sums[2 * row + 1], pixels, _mm512_permutex2var_epi16(first[row], odd, second[row]));
        }
        const __m512i found = halves_of(these, those);
        _mm512_storeu_ps(image + at, picked(found, places(0, 2)));
        _mm512_storeu_ps(image + at + 16, picked(found, places(16, 2)));
    }
    return 1;
}

static void group_of_8(
    const uint16_t *y, const float *x, const float *weight, float *images, float *filters,
    int64_t batch, int64_t channels, int64_t first, int64_t last)
{
    __m512 sums[GROUP][4];
    __m512i pairs[GROUP][2];
    float rest[GROUP][4];
    int coarse[GROUP];
    for (int64_t c = 0; c < last - first; c++) {
        const __m512 filter = _mm512_broadcast_f32x4(_mm_loadu_ps(weight + 4 * (first + c)));
        const __m512i words = halves_of(filter, filter);
        coarse[c] = is_coarse(least_floats(none_yet(), filter));
        pairs[c][0] = _mm512_shuffle_epi32(words, 0x00);
        pairs[c][1] = _mm512_shuffle_epi32(words, 0x55);
        for (int k = 0; k < 4; k++) sums[c][k] = _mm512_setzero_ps(), rest[c][k] = 0;
    }
    for (int64_t n = 0; n < batch; n++)
        for (int64_t c = 0; c < last - first; c++) {
            const int64_t at = n * channels + first + c;
            const int64_t next = n + 1 < batch ? at + channels : last + c;
            for (int64_t i = 0; i < 256; i += 32) __builtin_prefetch(y + next * 256 + i);
            for (int64_t i = 0; i < 64; i += 16) __builtin_prefetch(x + next * 64 + i);
            if (!coarse[c]
                || !plane_of_8(y + at * 256, x + at * 64, pairs[c], images + at * 64, sums[c]))
                plane(y + at * 256, x + at * 64, weight + 4 * (first + c), images + at * 64,
                      rest[c], 8, 8);
        }
    for (int64_t c = 0; c < last - first; c++)
        for (int k = 0; k < 4; k++)
            filters[4 * (first + c) + k] = rounded(_mm512_reduce_add_ps(sums[c][k]) + rest[c][k]);
}
#endif

/* With w and v as the image and the filter rounded to bfloat16,
   grad_x[n, c, i, j] = bfloat16(sum(k,l) y[n, c, 2i+k, 2j+l] * w[c, k, l]) and
   grad_weight[c, k, l] = bfloat16(sum(n,i,j) y[n, c, 2i+k, 2j+l] * v[n, c, i, j]) */
void transposed_autocast_gradients(
    const uint16_t *restrict y, const float *restrict x, const float *restrict weight,
    float *restrict images, float *restrict filters, int64_t batch, int64_t channels,
    int64_t height, int64_t width)
{
#pragma omp parallel for
    for (int64_t first = 0; first < channels; first += GROUP) {
        const int64_t last = first + GROUP < channels ? first + GROUP : channels;
#ifdef HAS_LANES
        if (height == 8 && width == 8) {
            group_of_8(y, x, weight, images, filters, batch, channels, first, last);
            continue;
        }
#endif
        const int64_t size = height * width;
        for (int64_t c = first; c < last; c++) {
            float sums[4] = {0};
            for (int64_t n = 0; n < batch; n++) {
                const int64_t at = n * channels + c;
                plane(y + 4 * at * size, x + at * size, weight + 4 * c, images + at * size, sums,
                      height, width);
            }
            for (int64_t k = 0; k < 4; k++) filters[4 * c + k] = rounded(sums[k]);
        }
    }
}
