/* A depthwise transposed 2x2 convolution with stride 2, planes one behind the other. With `past`
   results go past the caches: where these do not hold all of them, that took 0.75 of the time. */
#include <stdint.h>

#ifdef __AVX512F__
#include <immintrin.h>

static inline void store(float *y, __m512 values, int past)
{
    if (past) _mm512_stream_ps(y, values);
    else _mm512_storeu_ps(y, values);
}

/* A plane with rows of eight or sixteen pixels. Two rows, or one, are a vector, of which each half
   is doubled and makes parts of two rows of results. */
static void plane_of_vectors(
    const float *x, const float *weight, float *y, int64_t size, int64_t width, int past)
{
    const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const __m512 filter = _mm512_broadcast_f32x4(_mm_loadu_ps(weight));
    const __m512 upper = _mm512_permute_ps(filter, 0x44);
    const __m512 lower = _mm512_permute_ps(filter, 0xee);
    const int64_t below = 2 * width, behind = 48 - below;
    for (int64_t at = 0; at < size; at += 16, y += 64) {
        const __m512 pixels = _mm512_loadu_ps(x + at);
        const __m512 these = _mm512_permutexvar_ps(first, pixels);
        const __m512 those = _mm512_permutexvar_ps(second, pixels);
        store(y, _mm512_mul_ps(these, upper), past);
        store(y + below, _mm512_mul_ps(these, lower), past);
        store(y + behind, _mm512_mul_ps(those, upper), past);
        store(y + 48, _mm512_mul_ps(those, lower), past);
    }
}
#endif

/* y[n, c, 2i+k, 2j+l] = x[n, c, i, j] * weight[c, k, l] */
void transposed(
    const float *restrict x, const float *restrict weight, float *restrict y, int64_t batch,
    int64_t channels, int64_t height, int64_t width, int64_t past)
{
    const int64_t size = height * width;
    (void)past;
#pragma omp parallel for
    for (int64_t p = 0; p < batch * channels; p++) {
        const float *const w = weight + p % channels * 4;
#ifdef __AVX512F__
        if ((width == 8 && height % 2 == 0) || width == 16) {
            plane_of_vectors(x + p * size, w, y + 4 * p * size, size, width, past != 0);
            continue;
        }
#endif
        for (int64_t i = 0; i < 2 * height; i++)
            for (int64_t j = 0; j < 2 * width; j++)
                y[4 * p * size + i * 2 * width + j] =
                    x[p * size + i / 2 * width + j / 2] * w[i % 2 * 2 + j % 2];
    }
}
