/* Both gradients of a depthwise transposed 2x2 convolution with stride 2, images in channels-last
   format. Of some channels the sums for the filter stay in the nearest cache, for all pixels, and
   two pixels share their loads and stores; more pixels at a time, or fewer channels, were slower. */
#include <stdint.h>
#include <string.h>

enum { PART = 1024 };

/* Of a pixel or two; `a` to `d` are their cells, `next` elements apart. */
static inline __attribute__((always_inline)) void pixels(
    int count, const float *restrict a, const float *restrict b, const float *restrict c,
    const float *restrict d, const float *restrict x, const float filters[restrict 4][PART],
    float *restrict image, float sums[restrict 4][PART], int64_t some, int64_t next)
{
    for (int64_t k = 0; k < some; k++) {
        float p = 0, q = 0, r = 0, s = 0;
        for (int at = 0; at < count; at++) {
            const int64_t cell = k + 2 * at * next, pixel = k + at * next;
            p += a[cell] * x[pixel], q += b[cell] * x[pixel];
            r += c[cell] * x[pixel], s += d[cell] * x[pixel];
            image[pixel] = filters[0][k] * a[cell] + filters[1][k] * b[cell]
                + filters[2][k] * c[cell] + filters[3][k] * d[cell];
        }
        sums[0][k] += p, sums[1][k] += q, sums[2][k] += r, sums[3][k] += s;
    }
}

/* grad_x[n, h, w, c] = sum(i,j) y[n, 2h+i, 2w+j, c] * weight[c, i, j] and
   grad_weight[c, i, j] = sum(n,h,w) y[n, 2h+i, 2w+j, c] * x[n, h, w, c] */
void transposed_pixels_gradients(
    const float *restrict y, const float *restrict x, const float *restrict weight,
    float *restrict image, float *restrict gradient, int64_t images, int64_t height, int64_t width,
    int64_t channels)
{
#pragma omp parallel for
    for (int64_t first = 0; first < channels; first += PART) {
        const int64_t some = channels - first < PART ? channels - first : PART;
        float filters[4][PART], sums[4][PART];
        memset(sums, 0, sizeof sums);
        for (int64_t k = 0; k < 4; k++)
            for (int64_t c = 0; c < some; c++) filters[k][c] = weight[4 * (first + c) + k];
        for (int64_t row = 0; row < images * height; row++)
            for (int64_t w = 0; w < width; w += 2) {
                const int64_t at = (row * width + w) * channels + first;
                const float *const a = y + (row * 4 * width + 2 * w) * channels + first;
                const float *const b = a + channels, *const c = a + 2 * width * channels;
                const float *const d = c + channels;
                if (w + 1 < width)
                    pixels(2, a, b, c, d, x + at, filters, image + at, sums, some, channels);
                else
                    pixels(1, a, b, c, d, x + at, filters, image + at, sums, some, channels);
            }
        for (int64_t k = 0; k < 4; k++)
            for (int64_t c = 0; c < some; c++) gradient[4 * (first + c) + k] = sums[k][c];
    }
}
