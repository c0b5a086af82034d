"""C of `convolution_tiles_source` for images that have a plane for each channel."""

from __future__ import annotations

PLANES = r"""/* How many results the next tile has, where so many are left: 8, 4 or 2. */
static int64_t results_of(int64_t left)
{
    return left > 4 ? 8 : left > 2 ? 4 : 2;
}

/* The results of all tiles. */
static int64_t padded(int64_t results)
{
    int64_t sum = 0;
    for (int64_t at = 0, next; at < results; at += next) sum += next = results_of(results - at);
    return sum;
}

/* Rows of a channel that are no longer than a vector with their padding: lanes beside a row are
   zeros, and those behind it are written again by the next one. */
static void fill_short(
    const Shared *all, const float *image, int64_t top, int64_t held, float *row)
{
    const Tiled *about = all->about;
    const __mmask16 inner = (__mmask16)(first_lanes(about->width) << about->padding_columns);
    for (int64_t h = top; h < top + held; h++, row += all->pitch) {
        __m512 pixels = _mm512_setzero_ps();
        if (h >= 0 && h < about->height)
            pixels = _mm512_maskz_loadu_ps(
                inner, image + h * about->width - about->padding_columns);
        _mm512_storeu_ps(row, pixels);
    }
}

/* Rows of the image in a group, from that of the result's row `top` on. */
static void fill(
    const Shared *all, const Strip *strip, const float *image, int64_t top, int64_t rows)
{
    const Tiled *about = all->about;
    const int64_t width = about->width, whole = width / LANES * LANES;
    const int64_t held = rows + about->dilation_rows * (about->tap_rows - 1);
    const size_t padding = (size_t)about->padding_columns * sizeof(float);
    const __mmask16 rest = first_lanes(width - whole);
    for (int64_t channel = 0; channel < about->channels; channel++) {
        float *const behind = strip->memory + channel * all->plane + held * all->pitch;
        memset(behind, 0, (size_t)(all->plane - held * all->pitch) * sizeof(float));
        if (all->pitch <= LANES) {
            fill_short(all, image + channel * about->height * width, top - about->padding_rows,
                       held, strip->memory + channel * all->plane);
            continue;
        }
        for (int64_t at = 0; at < held; at++) {
            float *const row = strip->memory + channel * all->plane + at * all->pitch;
            float *const inner = row + about->padding_columns;
            const int64_t h = top + at - about->padding_rows;
            if (h < 0 || h >= about->height) {
                memset(row, 0, (size_t)all->pitch * sizeof(float));
                continue;
            }
            const float *const from = image + (channel * about->height + h) * width;
            memset(row, 0, padding);
            for (int64_t w = 0; w < whole; w += LANES)
                _mm512_storeu_ps(inner + w, _mm512_loadu_ps(from + w));
            _mm512_mask_storeu_ps(inner + whole, rest, _mm512_maskz_loadu_ps(rest, from + whole));
            memset(inner + width, 0, padding);
        }
    }
}
"""
