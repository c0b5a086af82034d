"""C of `convolution_lanes_source`: results, and gradients of images."""

from __future__ import annotations

from opgen.runtime.convolution_lanes_source import LANES
from opgen.runtime.convolution_last_source import LAST_RESULT

_UNIT = r"""
/* Sums of products for some pixels, in the order of channels and taps. Those are stored whose place
   is none below zero, `left` at most. */
__attribute__((noinline)) static void tile(
    const Last *all, const Strip *strip, int64_t pixel, const float *weights, __m512 bias,
    float *result, __mmask16 there, int64_t left)
{
    const Shared *shared = &all->shared;
    const float *from = strip->memory + pixel * LANES;
    __m512 sums[PIXELS];
    UNROLLED
    for (int at = 0; at < PIXELS; at++) sums[at] = bias;
    for (int64_t channel = 0; channel < shared->about->channels; channel++) {
        for (int64_t tap = 0; tap < shared->taps; tap++, weights += LANES) {
            const float *const pixels = from + strip->taps[tap] * LANES;
            const __m512 weight = _mm512_loadu_ps(weights);
            UNROLLED
            for (int at = 0; at < PIXELS; at++)
                sums[at] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(pixels + at * LANES), sums[at]);
        }
        from += shared->plane * LANES;
    }
    const int64_t *const places = strip->places + pixel;
    UNROLLED
    for (int at = 0; at < PIXELS; at++)
        if (at < left && places[at] >= 0)
            _mm512_mask_storeu_ps(result + places[at] * all->result_pixel, there, sums[at]);
}

static void compute_unit(
    const Last *all, const Strip *strip, int64_t vector, int64_t pixels, float *result)
{
    const Shared *shared = &all->shared;
    const float *const weights = shared->weights + vector * shared->group_weights;
    const __mmask16 there = some_lanes(all->result_pixel - vector * LANES);
    __m512 bias = _mm512_setzero_ps();
    if (shared->bias) bias = _mm512_maskz_loadu_ps(there, shared->bias + vector * LANES);
    for (int64_t pixel = 0; pixel < pixels; pixel += PIXELS)
        tile(all, strip, pixel, weights, bias, result + vector * LANES, there, pixels - pixel);
}

/* Zeros for results that are none. */
static void order_weight(const Last *all, const float *weight, float *to)
{
    const Tiled *about = all->shared.about;
    for (int64_t result = 0; result < all->units * LANES; result++) {
        const int64_t group = result / about->results, own = result % about->results;
        float *lane = to + result / LANES * all->shared.group_weights + result % LANES;
        for (int64_t channel = 0; channel < about->channels; channel++) {
            const float *const window = weight + place_in_weight(about, group, own, channel);
            for (int64_t row = 0; row < about->tap_rows; row++)
                for (int64_t column = 0; column < about->tap_columns; column++, lane += LANES)
                    *lane = group < about->groups
                        ? window[place_in_window(about, row, column)] : 0;
        }
    }
}
"""

_ENTRY = r"""
/* result[n,o,i,j] = bias[o] + sum(c,k,l) weight[o,c,k,l] * image[n,c,i+k,j+l], with zeros around
   the image, in groups of at most 4 channels and of 1, 2 or 4 results, at most 32 channels for 16
   results; images and result have neighbours for channels. 0 where there is no memory for it. */
int64_t opgen_lane_tiles(
    const float *image, const float *weight, const float *bias, float *result, const Tiled *about)
{
    Last all = lanes_of(about);
    return compute_results(&all, image, weight, bias, result, about, about->channels * LANES);
}
"""

RESULT = LANES + _UNIT + LAST_RESULT + _ENTRY
