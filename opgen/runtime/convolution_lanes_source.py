"""C for convolutions in float32 whose groups have so few channels that a vector has several groups.

Images are in channels-last format. Lanes of a vector are 16 results beside each other, of 4 to 16
groups, and a lane has products with channels of its own group. So rows of pixels are spread first:
for each channel of a group there is a vector in which every lane has that channel of its own group,
with zeros around the image. Then products are those of vectors, tap by tap and channel by channel.
"""

from __future__ import annotations

from typing import Final

from opgen.runtime.convolution_last_source import LAST

LANES: Final = (
    LAST
    + r"""
/* As many of the first lanes as there are. */
static __mmask16 some_lanes(int64_t count)
{
    return first_lanes(count < 0 ? 0 : least(count, LANES));
}

/* How many channels of the image belong to a vector of results. */
static int64_t span_of(const Tiled *about)
{
    return LANES / about->results * about->channels;
}

/* Units are vectors of results. */
static Last lanes_of(const Tiled *about)
{
    const int64_t vectors = (about->groups * about->results + LANES - 1) / LANES;
    Last all = last_of(about, vectors, span_of(about), about->channels);
    for (int channel = 0; channel < about->channels; channel++) {
        int32_t places[LANES];
        for (int lane = 0; lane < LANES; lane++)
            places[lane] = lane / (int)about->results * (int)about->channels + channel;
        all.places[channel] = _mm512_loadu_si512(places);
    }
    return all;
}

/* Pixels of a row, of which `left` channels are there: `to` is a plane for each of a group's. */
static void spread_row(const Last *all, const float *from, int64_t left, float *to)
{
    const Tiled *about = all->shared.about;
    const int64_t plane = all->shared.plane * LANES;
    const __mmask16 first = some_lanes(left), second = some_lanes(left - LANES);
    for (int64_t w = 0; w < about->width; w++, from += all->image_pixel, to += LANES) {
        const __m512 low = first == 0xffff ? _mm512_loadu_ps(from)
            : first == 0xff ? _mm512_castps256_ps512(_mm256_loadu_ps(from))
            : _mm512_maskz_loadu_ps(first, from);
        const __m512 high = second == 0 ? low : second == 0xffff ? _mm512_loadu_ps(from + LANES)
            : _mm512_maskz_loadu_ps(second, from + LANES);
        for (int64_t channel = 0; channel < about->channels; channel++)
            _mm512_storeu_ps(
                to + channel * plane, _mm512_permutex2var_ps(low, all->places[channel], high));
    }
}

/* The rows of an image that a strip needs for a vector of results, with zeros around the image and
   behind the last row. */
static void fill_unit(
    const Last *all, const float *image, int64_t vector, int64_t top, int64_t rows, float *to)
{
    const Shared *shared = &all->shared;
    const Tiled *about = shared->about;
    const int64_t held = rows + about->dilation_rows * (about->tap_rows - 1);
    const int64_t span = span_of(about), first = vector * span;
    const int64_t left = least(all->image_pixel - first, span);
    const int64_t before = about->padding_columns * LANES, pitch = shared->pitch * LANES;
    const int64_t inner = about->width * LANES, number = (int64_t)sizeof(float);
    for (int64_t channel = 0; channel < about->channels; channel++) {
        float *row = to + channel * shared->plane * LANES;
        for (int64_t at = 0; at < held; at++, row += pitch) {
            const int64_t h = top + at - about->padding_rows;
            const int is_there = h >= 0 && h < about->height;
            memset(row, 0, (size_t)((is_there ? before : pitch) * number));
            if (is_there) memset(row + before + inner, 0, (size_t)(before * number));
        }
        memset(row, 0, (size_t)((shared->plane * LANES - held * pitch) * number));
    }
    for (int64_t at = 0; at < held; at++) {
        const int64_t h = top + at - about->padding_rows;
        if (h >= 0 && h < about->height)
            spread_row(all, image + h * about->width * all->image_pixel + first, left,
                       to + at * pitch + before);
    }
}
"""
)
"""What results and gradients of weights have."""
