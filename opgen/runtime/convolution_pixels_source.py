"""C for convolutions of few channels in float32 whose images are in channels-last format.

What `convolution_tiles_source` says of tiles holds here, but the neighbours of a number in memory
are other channels of its pixel. So a vector has the results of a group, a tile is 16 pixels of
them, and for every tap and channel of the image it takes one vector of the weight and a number of
each pixel, which the product spreads over the lanes itself. Rows of pixels are gathered first,
where a group's channels lie apart from those of others: in blocks of 16 channels, a line of memory
each, with the zeros of padding around them.
"""

from __future__ import annotations

from typing import Final

from opgen.runtime.convolution_last_source import LAST

_WIDTHS: Final = (
    ("8", "__m256", "_mm256_", "__mmask8"),
    ("16", "__m512", "_mm512_", "__mmask16"),
)
"""Lanes of a vector, and its names in C."""

PIXELS: Final = (
    LAST
    + r"""
/* How many vectors hold so many numbers. */
static int64_t vectors_of(int64_t numbers)
{
    return (numbers + LANES - 1) / LANES;
}

/* The results of all vectors, of which the last one may be one of 8. */
static int64_t padded(int64_t results)
{
    return results / LANES * LANES + (results % LANES > 8 ? LANES : results % LANES > 0 ? 8 : 0);
}

/* Units are groups. */
static Last pixels_of(const Tiled *about)
{
    const int64_t numbers = least(about->channels, about->results);
    return last_of(about, about->groups, numbers, vectors_of(about->channels));
}

/* Some channels of pixels, which lie `step` apart, and zeros for other lanes. Loads with a mask may
   take twice as long. */
static void gather_row(const float *from, int64_t step, int64_t channels, int64_t width, float *to)
{
    const __mmask16 lanes = first_lanes(channels);
    if (channels == LANES)
        for (int64_t w = 0; w < width; w++)
            _mm512_storeu_ps(to + w * LANES, _mm512_loadu_ps(from + w * step));
    else if (channels == 8)
        for (int64_t w = 0; w < width; w++)
            _mm512_storeu_ps(
                to + w * LANES, _mm512_zextps256_ps512(_mm256_loadu_ps(from + w * step)));
    else
        for (int64_t w = 0; w < width; w++)
            _mm512_storeu_ps(to + w * LANES, _mm512_maskz_loadu_ps(lanes, from + w * step));
}

/* Rows of them, with zeros before and behind, where there are none, and up to `plane` pixels. */
static void gather(
    const float *image, int64_t step, int64_t channels, int64_t height, int64_t width, int64_t top,
    int64_t rows, int64_t before, int64_t pitch, int64_t plane, float *to)
{
    const size_t pixel = LANES * sizeof(float);
    for (int64_t h = top; h < top + rows; h++, to += pitch * LANES) {
        if (h < 0 || h >= height) {
            memset(to, 0, (size_t)pitch * pixel);
            continue;
        }
        const float *const from = image + h * width * step;
        float *const inner = to + before * LANES;
        memset(to, 0, (size_t)before * pixel);
        gather_row(from, step, channels, width, inner);
        memset(inner + width * LANES, 0, (size_t)(pitch - before - width) * pixel);
    }
    memset(to, 0, (size_t)(plane - rows * pitch) * pixel);
}

/* The rows of an image in a group that a strip needs, block by block. */
static void fill_unit(
    const Last *all, const float *image, int64_t group, int64_t top, int64_t rows, float *to)
{
    const Tiled *about = all->shared.about;
    image += group * about->channels;
    const int64_t held = rows + about->dilation_rows * (about->tap_rows - 1);
    for (int64_t at = 0; at < about->channels; at += LANES, to += all->shared.plane * LANES)
        gather(image + at, all->image_pixel, least(about->channels - at, LANES), about->height,
               about->width, top - about->padding_rows, held, about->padding_columns,
               all->shared.pitch, all->shared.plane, to);
}
"""
)
"""What results and gradients of weights have."""


def for_each_width(text: str) -> str:
    """The text with vectors of 8 and with vectors of 16 numbers."""
    found = []
    for width, vector, prefix, mask in _WIDTHS:
        mine = text.replace("WIDTH", width).replace("VECTOR", vector).replace("MASK", mask)
        found.append(mine.replace("MM_", prefix))
    return "".join(found)
