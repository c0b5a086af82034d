/* Both gradients of shift_sum_pinv with a step of 2, in one pass over the image. What is divided by
   does not depend on the channel: inverses of some rows of the mask are found once, so that a pixel
   is multiplied twice and never divided. Eight channels of a row are added up together, each moved
   within registers, before a sum is stored. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STEP = 2, LANES = 16, ROWS = 16 };

/* Rows of all that belongs to a row of pixels: the first two are `columns` apart, the others
   `width`. */
struct rows { int64_t count, columns, width; float *z, *sums, *inverse, *masks; };

static void channel(const struct rows *rows, const float *restrict image, int64_t shift)
{
    for (int64_t h = 0; h < rows->count; h++)
        for (int64_t w = 0; w < rows->width; w++) {
            const int64_t pixel = h * rows->width + w, column = h * rows->columns + shift + w;
            rows->sums[column] += image[pixel] * rows->inverse[pixel];
            rows->masks[pixel] += image[pixel] * rows->z[column];
        }
}

#ifdef __AVX512F__
#include <immintrin.h>

/* The vector that begins `by` lanes behind the first one of two. */
#define between(first, second, by) _mm512_castsi512_ps(_mm512_alignr_epi32( \
    _mm512_castps_si512(second), _mm512_castps_si512(first), by))

__attribute__((always_inline)) static inline void some_channels(
    const int count, const struct rows *rows, const float *restrict image, int64_t plane,
    int64_t shift)
{
    for (int64_t h = 0; h < rows->count; h++) {
        const float *const pixels = image + h * rows->width;
        const float *const inverse = rows->inverse + h * rows->width;
        const float *const z = rows->z + h * rows->columns + shift;
        float *const sums = rows->sums + h * rows->columns + shift;
        float *const masks = rows->masks + h * rows->width;
        __m512 before[8] = {_mm512_setzero_ps()}, from = _mm512_loadu_ps(z);
        for (int k = 1; k < count; k++) before[k] = before[0];
        for (int64_t w = 0; w < rows->width; w += LANES) {
            const __m512 factor = _mm512_loadu_ps(inverse + w);
            const __m512 to = _mm512_loadu_ps(z + w + LANES), first = _mm512_loadu_ps(pixels + w);
            __m512 sum = _mm512_fmadd_ps(first, factor, _mm512_loadu_ps(sums + w));
            __m512 mask = _mm512_fmadd_ps(first, from, _mm512_loadu_ps(masks + w));
#pragma GCC unroll 8
            for (int k = 1; k < count; k++) {
                const __m512 some = _mm512_loadu_ps(pixels + k * plane + w);
                const __m512 product = _mm512_mul_ps(some, factor);
                sum = _mm512_add_ps(sum, between(before[k], product, LANES - STEP * k));
                before[k] = product;
                mask = _mm512_fmadd_ps(some, between(from, to, STEP * k), mask);
            }
            _mm512_storeu_ps(sums + w, sum);
            _mm512_storeu_ps(masks + w, mask);
            from = to;
        }
        __m512 sum = _mm512_loadu_ps(sums + rows->width);
#pragma GCC unroll 8
        for (int k = 1; k < count; k++)
            sum = _mm512_add_ps(sum, between(before[k], _mm512_setzero_ps(), LANES - STEP * k));
        _mm512_storeu_ps(sums + rows->width, sum);
    }
}
#endif

static void all_channels(
    const struct rows *rows, const float *restrict image, int64_t channels, int64_t plane)
{
    int64_t c = 0;
#ifdef __AVX512F__
    if (rows->width % LANES == 0) {
        for (; c + 8 <= channels; c += 8)
            some_channels(8, rows, image + c * plane, plane, c * STEP);
        for (; c + 4 <= channels; c += 4)
            some_channels(4, rows, image + c * plane, plane, c * STEP);
    }
#endif
    for (; c < channels; c++) channel(rows, image + c * plane, c * STEP);
}

/* grad_y[b, h, v] = sum(c) image[b, c, h, v - 2c] / mask[h, v - 2c] / alpha[v], and
   grad_mask[h, w] = -sum(b,c) image[b, c, h, w] * y[b, h, w + 2c] / alpha[w + 2c] / mask[h, w]^2,
   where alpha[v] is how many channels reach a column */
void shift_sum_pinv_gradients(
    const float *restrict image, const float *restrict y, const float *restrict mask,
    float *restrict grad_y, float *restrict grad_mask, int64_t batch, int64_t channels,
    int64_t height, int64_t width)
{
    const int64_t columns = width + (channels - 1) * STEP, plane = height * width;
    const int64_t padded = (columns + 2 * LANES) / LANES * LANES;  /* lines of memory */
    const size_t bytes = (size_t)((2 * ROWS + 1) * padded + 2 * ROWS * width) * sizeof(float);
#pragma omp parallel for
    for (int64_t first = 0; first < height; first += ROWS) {
        float *const all = aligned_alloc(64, bytes);
        if (!all) abort();
        memset(all, 0, bytes);
        float *const alpha = all + 2 * ROWS * padded, *const inverse = alpha + padded;
        const struct rows rows = {
            height - first < ROWS ? height - first : ROWS, padded, width,
            all, all + ROWS * padded, inverse, inverse + ROWS * width};
        for (int64_t c = 0; c < channels; c++)
            for (int64_t w = 0; w < width; w++) alpha[w + c * STEP]++;
        for (int64_t at = 0; at < rows.count * width; at++)
            inverse[at] = 1 / mask[first * width + at];
        for (int64_t b = 0; b < batch; b++) {
            for (int64_t h = 0; h < rows.count; h++) {
                const float *const from = y + (b * height + first + h) * columns;
                for (int64_t v = 0; v < columns; v++) rows.z[h * padded + v] = from[v] / alpha[v];
                memset(rows.sums + h * padded, 0, (size_t)padded * sizeof(float));
            }
            all_channels(&rows, image + b * channels * plane + first * width, channels, plane);
            for (int64_t h = 0; h < rows.count; h++) {
                float *const to = grad_y + (b * height + first + h) * columns;
                for (int64_t v = 0; v < columns; v++) to[v] = rows.sums[h * padded + v] / alpha[v];
            }
        }
        for (int64_t at = 0; at < rows.count * width; at++)
            grad_mask[first * width + at] = -rows.masks[at] * inverse[at] * inverse[at];
        free(all);
    }
}
