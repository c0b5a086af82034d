/* Both gradients of a depthwise transposed 2x2 convolution with stride 2, a plane for each channel.
   Of some channels the sums for the filter stay in registers or the nearest cache, for all images;
   the same planes of the next image are asked for meanwhile, into the second cache: to ask for them
   into the first one took twice as long. With `past` the image's gradient goes past the caches. */
#include <stdint.h>

enum { GROUP = 16 };

/* Sums over one plane; `image` is its part of grad_x. */
static void plane(
    const float *restrict y, const float *restrict x, const float *restrict weight,
    float *restrict image, float *restrict sums, int64_t height, int64_t width)
{
    for (int64_t i = 0; i < height; i++)
        for (int64_t j = 0; j < width; j++) {
            const float *const cells = y + 4 * i * width + 2 * j;
            float total = 0;
            for (int64_t k = 0; k < 4; k++) {
                const float cell = cells[k / 2 * 2 * width + k % 2];
                total += weight[k] * cell;
                sums[k] += x[i * width + j] * cell;
            }
            image[i * width + j] = total;
        }
}

#ifdef __AVX512F__
#include <immintrin.h>

/* The same of rows of eight or sixteen pixels. Two rows, or one, are a vector; of what belongs to
   them, the even and odd cells of a row, or of two, are one each. */
static inline void plane_of_vectors(
    const float *restrict y, const float *restrict x, const __m512 *weight, float *restrict image,
    __m512 *sums, int64_t size, int64_t width, int past)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i even = _mm512_slli_epi32(lanes, 1);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const int64_t below = 2 * width, behind = 48 - below;
    for (int64_t at = 0; at < size; at += 16, y += 64) {
        const __m512 first = _mm512_loadu_ps(y), second = _mm512_loadu_ps(y + below);
        const __m512 third = _mm512_loadu_ps(y + behind), fourth = _mm512_loadu_ps(y + 48);
        const __m512 cells[4] = {
            _mm512_permutex2var_ps(first, even, third), _mm512_permutex2var_ps(first, odd, third),
            _mm512_permutex2var_ps(second, even, fourth),
            _mm512_permutex2var_ps(second, odd, fourth)};
        const __m512 pixels = _mm512_loadu_ps(x + at);
        __m512 total = _mm512_mul_ps(weight[0], cells[0]);
        for (int k = 1; k < 4; k++) total = _mm512_fmadd_ps(weight[k], cells[k], total);
        for (int k = 0; k < 4; k++) sums[k] = _mm512_fmadd_ps(pixels, cells[k], sums[k]);
        if (past) _mm512_stream_ps(image + at, total);
        else _mm512_storeu_ps(image + at, total);
    }
}

static inline void ask_for(const float *place, int64_t count)
{
    for (int64_t at = 0; at < count; at += 16) __builtin_prefetch(place + at, 0, 2);
}

static void group_of_vectors(
    const float *y, const float *x, const float *weight, float *images, float *filters,
    int64_t batch, int64_t channels, int64_t first, int64_t last, int64_t size, int64_t width,
    int past)
{
    __m512 sums[GROUP][4], filter[4];
    for (int64_t c = 0; c < last - first; c++)
        for (int k = 0; k < 4; k++) sums[c][k] = _mm512_setzero_ps();
    for (int64_t n = 0; n < batch; n++)
        for (int64_t c = first; c < last; c++) {
            const int64_t at = n * channels + c;
            const int64_t next = n + 1 < batch ? at + channels : last + c - first;
            ask_for(y + 4 * next * size, 4 * size);
            ask_for(x + next * size, size);
            for (int k = 0; k < 4; k++) filter[k] = _mm512_set1_ps(weight[4 * c + k]);
            plane_of_vectors(y + 4 * at * size, x + at * size, filter, images + at * size,
                             sums[c - first], size, width, past);
        }
    for (int64_t c = first; c < last; c++)
        for (int k = 0; k < 4; k++) filters[4 * c + k] = _mm512_reduce_add_ps(sums[c - first][k]);
}
#endif

/* grad_x[n, c, i, j] = sum(k,l) y[n, c, 2i+k, 2j+l] * weight[c, k, l] and
   grad_weight[c, k, l] = sum(n,i,j) y[n, c, 2i+k, 2j+l] * x[n, c, i, j] */
void transposed_gradients(
    const float *restrict y, const float *restrict x, const float *restrict weight,
    float *restrict images, float *restrict filters, int64_t batch, int64_t channels,
    int64_t height, int64_t width, int64_t past)
{
    const int64_t size = height * width;
    (void)past;
#pragma omp parallel for
    for (int64_t first = 0; first < channels; first += GROUP) {
        const int64_t last = first + GROUP < channels ? first + GROUP : channels;
#ifdef __AVX512F__
        if ((width == 8 && height % 2 == 0) || width == 16) {
            group_of_vectors(y, x, weight, images, filters, batch, channels, first, last, size,
                             width, past != 0);
            continue;
        }
#endif
        for (int64_t k = 4 * first; k < 4 * last; k++) filters[k] = 0;
        for (int64_t n = 0; n < batch; n++)
            for (int64_t c = first; c < last; c++) {
                const int64_t at = n * channels + c;
                plane(y + 4 * at * size, x + at * size, weight + 4 * c, images + at * size,
                      filters + 4 * c, height, width);
            }
    }
}
