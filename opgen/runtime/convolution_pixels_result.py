"""C of `convolution_pixels_source`: results, and gradients of images."""

from __future__ import annotations

from opgen.runtime.convolution_last_source import LAST_RESULT
from opgen.runtime.convolution_pixels_source import PIXELS, for_each_width

_TILE = r"""
/* Sums of products, in the order of blocks of channels, taps, and channels. Of a tile's pixels
   those are stored whose place is none below zero, `left` at most. */
__attribute__((noinline)) static void tile_WIDTH(
    const Last *all, const Strip *strip, const float *from, int64_t pixel, const float *weights,
    const float *bias, float *result, int64_t results, int64_t left)
{
    const int64_t taps = all->shared.taps, plane = all->shared.plane * LANES;
    const MASK there = (MASK)first_lanes(results < WIDTH ? results : WIDTH);
    VECTOR sums[PIXELS], first = MM_setzero_ps();
    if (bias) first = MM_maskz_loadu_ps(there, bias);
    UNROLLED
    for (int at = 0; at < PIXELS; at++) sums[at] = first;
    from += pixel * LANES;
    for (int64_t rest = all->shared.about->channels; rest > 0; rest -= LANES, from += plane) {
        const int64_t channels = least(rest, LANES);
        for (int64_t tap = 0; tap < taps; tap++) {
            const float *const pixels = from + strip->taps[tap] * LANES;
            for (int64_t channel = 0; channel < channels; channel++, weights += WIDTH) {
                const VECTOR weight = MM_loadu_ps(weights);
                UNROLLED
                for (int at = 0; at < PIXELS; at++) {
                    const VECTOR number = MM_set1_ps(pixels[at * LANES + channel]);
                    sums[at] = MM_fmadd_ps(weight, number, sums[at]);
                }
            }
        }
    }
    const int64_t *const places = strip->places + pixel;
    UNROLLED
    for (int at = 0; at < PIXELS; at++)
        if (at < left && places[at] >= 0)
            MM_mask_storeu_ps(result + places[at] * all->result_pixel, there, sums[at]);
}
"""

_UNIT = r"""
static void compute_unit(
    const Last *all, const Strip *strip, int64_t group, int64_t pixels, float *result)
{
    const Shared *shared = &all->shared;
    const Tiled *about = shared->about;
    const float *weights = shared->weights + group * shared->group_weights;
    for (int64_t at = 0; at < about->results; at += LANES) {
        const int64_t left = about->results - at, place = group * about->results + at;
        const float *const bias = shared->bias ? shared->bias + place : NULL;
        for (int64_t pixel = 0; pixel < pixels; pixel += PIXELS)
            (left > 8 ? tile_16 : tile_8)(
                all, strip, strip->memory, pixel, weights, bias, result + place, left,
                pixels - pixel);
        weights += (left > 8 ? LANES : 8) * about->channels * shared->taps;
    }
}

/* Zeros for results that are none. */
static void order_weight(const Last *all, const float *weight, float *to)
{
    const Tiled *about = all->shared.about;
    for (int64_t group = 0; group < about->groups; group++)
        for (int64_t at = 0; at < about->results; at += LANES) {
            const int64_t left = about->results - at, width = left > 8 ? LANES : 8;
            for (int64_t first = 0; first < about->channels; first += LANES) {
                const float *const block = weight + place_in_weight(about, group, at, first);
                const int64_t channels = least(about->channels - first, LANES);
                for (int64_t row = 0; row < about->tap_rows; row++)
                    for (int64_t column = 0; column < about->tap_columns; column++) {
                        const float *from = block + place_in_window(about, row, column);
                        for (int64_t each = 0; each < channels; each++, to += width) {
                            for (int64_t next = 0; next < width; next++)
                                to[next] = next < left ? from[next * about->result_step] : 0;
                            from += about->channel_step;
                        }
                    }
            }
        }
}
"""

_ENTRY = r"""
/* result[n,o,i,j] = bias[o] + sum(c,k,l) weight[o,c,k,l] * image[n,c,i+k,j+l], with zeros around
   the image, in groups; images and result have neighbours for channels. 0 where there is no memory
   for it. */
int64_t opgen_pixel_tiles(
    const float *image, const float *weight, const float *bias, float *result, const Tiled *about)
{
    Last all = pixels_of(about);
    const int64_t weights = padded(about->results) * about->channels;
    return compute_results(&all, image, weight, bias, result, about, weights);
}
"""

RESULT = PIXELS + for_each_width(_TILE) + _UNIT + LAST_RESULT + _ENTRY
