"""C of `convolution_pixels_source`: gradients of weights."""

from __future__ import annotations

from opgen.runtime.convolution_last_source import LAST_WEIGHT
from opgen.runtime.convolution_pixels_source import PIXELS, for_each_width

_TAPS = r"""
/* Sums over the pixels of a strip, for a vector of results, some channels and some taps. */
KERNEL void add_taps_WIDTH(
    const Shared *all, const float *pixels, const float *cotangent, const int64_t *taps,
    int64_t rows, float *sums, int64_t step, const int count)
{
    VECTOR found[CHANNELS][TAPS];
    UNROLLED
    for (int channel = 0; channel < CHANNELS; channel++)
        UNROLLED
        for (int tap = 0; tap < count; tap++) found[channel][tap] = MM_setzero_ps();
    for (int64_t row = 0; row < rows; row++) {
        const float *from[TAPS];
        UNROLLED
        for (int tap = 0; tap < count; tap++)
            from[tap] = pixels + (row * all->pitch + taps[tap]) * LANES;
        for (int64_t column = 0; column < all->columns; column++, cotangent += LANES) {
            const VECTOR factor = MM_loadu_ps(cotangent);
            UNROLLED
            for (int channel = 0; channel < CHANNELS; channel++)
                UNROLLED
                for (int tap = 0; tap < count; tap++) {
                    const VECTOR number = MM_set1_ps(from[tap][channel]);
                    found[channel][tap] = MM_fmadd_ps(factor, number, found[channel][tap]);
                }
            UNROLLED
            for (int tap = 0; tap < count; tap++) from[tap] += LANES;
        }
    }
    UNROLLED
    for (int tap = 0; tap < count; tap++)
        UNROLLED
        for (int channel = 0; channel < CHANNELS; channel++) {
            float *const to = sums + tap * step + channel * LANES;
            MM_storeu_ps(to, MM_add_ps(MM_loadu_ps(to), found[channel][tap]));
        }
}

#define SOME_TAPS(count) \
    __attribute__((noinline)) static void taps_WIDTH_##count( \
        const Shared *all, const float *pixels, const float *cotangent, const int64_t *taps, \
        int64_t rows, float *sums, int64_t step) \
    { \
        add_taps_WIDTH(all, pixels, cotangent, taps, rows, sums, step, count); \
    }
SOME_TAPS(1) SOME_TAPS(2) SOME_TAPS(3)
#undef SOME_TAPS
"""

_UNIT = r"""
typedef void (*taps_of)(
    const Shared *, const float *, const float *, const int64_t *, int64_t, float *, int64_t);
static const taps_of ADD_TAPS[2][TAPS] = {
    {taps_8_1, taps_8_2, taps_8_3}, {taps_16_1, taps_16_2, taps_16_3}};

/* Sums are there for vectors of results, blocks of channels, taps, and 16 channels each. */
static void add_unit(
    const Last *all, const Strip *strip, const float *given, int64_t group, int64_t top,
    int64_t rows, float *sums)
{
    const Shared *shared = &all->shared;
    const Tiled *about = shared->about;
    const int64_t cells = shared->together * shared->columns, step = SUM_STEP;
    float *const cotangent = strip->memory + all->planes * shared->plane * LANES;
    for (int64_t at = 0; at < about->results; at += LANES) {
        const int64_t left = about->results - at;
        gather(given + group * about->results + at, all->result_pixel, least(left, LANES),
               shared->rows, shared->columns, top, rows, 0, shared->columns, cells, cotangent);
        for (int64_t first = 0; first < about->channels; first += LANES) {
            const float *const pixels = strip->memory + first * shared->plane;
            for (int64_t next = 0; next < least(about->channels - first, LANES); next += CHANNELS)
                for (int64_t tap = 0; tap < shared->taps; tap += TAPS)
                    ADD_TAPS[left > 8][least(shared->taps - tap, TAPS) - 1](
                        shared, pixels + next, cotangent, strip->taps + tap, rows,
                        sums + tap * step + next * LANES, step);
            sums += shared->taps * step;
        }
    }
}

static int64_t unit_of(const Last *all, int64_t result)
{
    return result / all->shared.about->results;
}

static int64_t sum_of(const Last *all, int64_t result, int64_t channel)
{
    const int64_t own = result % all->shared.about->results;
    const int64_t block = own / LANES * all->planes + channel / LANES;
    return (block * all->shared.taps * LANES + channel % LANES) * LANES + own % LANES;
}
"""

_ENTRY = r"""
/* gradient[o,c,k,l] = sum(n,i,j) cotangent[n,o,i,j] * image[n,c,i+k,j+l]: images and cotangents
   have neighbours for channels, and the gradient has the steps of a weight. Numbers of it that are
   not finite may be wrong: zeros around the image are multiplied all the same. */
int64_t opgen_pixel_weight_tiles(
    const float *image, const float *cotangent, const float *none, float *gradient,
    const Tiled *about)
{
    (void)none;
    const Last all = pixels_of(about);
    const int64_t numbers = vectors_of(about->results) * all.planes * LANES * LANES;
    return compute_gradient(&all, image, cotangent, gradient, about, numbers, 1);
}
"""

CHANNELS, TAPS = 8, 3
"""Of the sums that are in registers: each takes its factor from memory as it is multiplied."""

WEIGHT = (
    PIXELS
    + f"enum {{ CHANNELS = {CHANNELS}, TAPS = {TAPS}, SUM_STEP = LANES * LANES }};\n"
    + for_each_width(_TAPS)
    + _UNIT
    + LAST_WEIGHT
    + _ENTRY
)
