"""C of `convolution_lanes_source`: gradients of weights."""

from __future__ import annotations

from opgen.runtime.convolution_lanes_source import LANES
from opgen.runtime.convolution_last_source import LAST_WEIGHT

_UNIT = r"""
enum { TAPS = 9, SUM_STEP = LANES };

/* Sums over the pixels of a strip, for a channel and some taps. Those behind the last tap are of
   the first one again, and are not kept. */
__attribute__((noinline)) static void add_taps(
    const Last *all, const float *pixels, const float *cotangent, __mmask16 there,
    const int64_t *taps, int64_t count, int64_t rows, float *sums)
{
    const Shared *shared = &all->shared;
    __m512 found[TAPS];
    int64_t steps[TAPS];
    UNROLLED
    for (int tap = 0; tap < TAPS; tap++) found[tap] = _mm512_setzero_ps();
    for (int tap = 0; tap < TAPS; tap++) steps[tap] = taps[tap < count ? tap : 0] * LANES;
    for (int64_t row = 0; row < rows; row++) {
        const float *from = pixels + row * shared->pitch * LANES;
        for (int64_t column = 0; column < shared->columns; column++, from += LANES) {
            const __m512 factor = _mm512_maskz_loadu_ps(there, cotangent);
            cotangent += all->result_pixel;
            UNROLLED
            for (int tap = 0; tap < TAPS; tap++)
                found[tap] = _mm512_fmadd_ps(
                    factor, _mm512_loadu_ps(from + steps[tap]), found[tap]);
        }
    }
    UNROLLED
    for (int tap = 0; tap < TAPS; tap++)
        if (tap < count) {
            float *const to = sums + tap * LANES;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), found[tap]));
        }
}

/* Sums are there for channels and taps. */
static void add_unit(
    const Last *all, const Strip *strip, const float *given, int64_t vector, int64_t top,
    int64_t rows, float *sums)
{
    const Shared *shared = &all->shared;
    const __mmask16 there = some_lanes(all->result_pixel - vector * LANES);
    const float *const cotangent =
        given + top * shared->columns * all->result_pixel + vector * LANES;
    for (int64_t channel = 0; channel < all->planes; channel++)
        for (int64_t tap = 0; tap < shared->taps; tap += TAPS)
            add_taps(all, strip->memory + channel * shared->plane * LANES, cotangent, there,
                     strip->taps + tap, shared->taps - tap, rows,
                     sums + (channel * shared->taps + tap) * LANES);
}

static int64_t unit_of(const Last *all, int64_t result)
{
    (void)all;
    return result / LANES;
}

static int64_t sum_of(const Last *all, int64_t result, int64_t channel)
{
    return channel * all->shared.taps * LANES + result % LANES;
}
"""

_ENTRY = r"""
/* gradient[o,c,k,l] = sum(n,i,j) cotangent[n,o,i,j] * image[n,c,i+k,j+l]: images and cotangents
   have neighbours for channels, and the gradient has the steps of a weight. Numbers of it that are
   not finite may be wrong: zeros around the image are multiplied all the same. */
int64_t opgen_lane_weight_tiles(
    const float *image, const float *cotangent, const float *none, float *gradient,
    const Tiled *about)
{
    (void)none;
    const Last all = lanes_of(about);
    return compute_gradient(
        &all, image, cotangent, gradient, about, about->channels * LANES, 0);
}
"""

WEIGHT = LANES + _UNIT + LAST_WEIGHT + _ENTRY
