/* A depthwise transposed 2x2 convolution with stride 2, both images in channels-last format. Rows of
   results are written one after the other: each pixel is read four times and each filter again and
   again, from the nearer caches. To write all four cells of a pixel in turn was slower. */
#include <stdint.h>
#include <stdlib.h>

/* y[n, 2h+i, 2w+j, c] = x[n, h, w, c] * weight[c, i, j] */
void transposed_pixels(
    const float *restrict x, const float *restrict weight, float *restrict y, int64_t images,
    int64_t height, int64_t width, int64_t channels)
{
    float *const filters = malloc(4 * (size_t)channels * sizeof(float));
    if (!filters) abort();
    for (int64_t c = 0; c < channels; c++)
        for (int64_t k = 0; k < 4; k++) filters[k * channels + c] = weight[4 * c + k];
#pragma omp parallel for
    for (int64_t row = 0; row < images * 2 * height; row++)
        for (int64_t j = 0; j < 2 * width; j++) {
            const int64_t from = row / (2 * height) * height + row % (2 * height) / 2;
            const float *restrict pixel = x + (from * width + j / 2) * channels;
            const float *restrict filter = filters + (row % 2 * 2 + j % 2) * channels;
            float *restrict cell = y + (row * 2 * width + j) * channels;
            for (int64_t c = 0; c < channels; c++) cell[c] = pixel[c] * filter[c];
        }
    free(filters);
}
