"""C of `convolution_lanes_source`: results, and gradients of images."""

from __future__ import annotations

from opgen.runtime.convolution_lanes_source import SOURCE
from opgen.runtime.convolution_tiles_source import PLACES

RESULT = (
    SOURCE
    + PLACES
    + r"""
/* Sums of products for some pixels, in the order of channels and taps. Those are stored whose place
   is none below zero, `left` at most. */
__attribute__((noinline)) static void tile(
    const Lanes *all, const Strip *strip, int64_t pixel, const float *weights, __m512 bias,
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

static void compute_strip(const Lanes *all, const Strip *strip, int64_t point)
{
    const Shared *shared = &all->shared;
    const Tiled *about = shared->about;
    const int64_t first = point % all->clusters * all->near;
    const int64_t part = point / all->clusters % shared->strips;
    const int64_t image = point / all->clusters / shared->strips;
    const int64_t top = part * shared->together;
    const int64_t rows = least(shared->rows - top, shared->together);
    const int64_t pixels = rows * shared->pitch;
    const float *const from =
        shared->image + image * about->height * about->width * all->image_pixel;
    float *const result = shared->result
        + (image * shared->rows + top) * shared->columns * all->result_pixel;
    for (int64_t at = first; at < least(first + all->near, all->vectors); at++) {
        const __mmask16 there = some_lanes(all->result_pixel - at * LANES);
        __m512 bias = _mm512_setzero_ps();
        if (shared->bias) bias = _mm512_maskz_loadu_ps(there, shared->bias + at * LANES);
        spread(all, from, at, top, rows, strip->memory);
        for (int64_t pixel = 0; pixel < pixels; pixel += PIXELS)
            tile(all, strip, pixel, shared->weights + at * shared->group_weights, bias,
                 result + at * LANES, there, pixels - pixel);
    }
}

static void take_strips(void *data)
{
    Lanes *const all = data;
    Shared *const shared = &all->shared;
    const int64_t cells = shared->about->channels * shared->plane * LANES;
    const int64_t pixels = shared->together * shared->pitch + PIXELS;
    const int64_t points = shared->about->images * all->clusters * shared->strips;
    char *const memory = own_memory(
        (size_t)(cells * (int64_t)sizeof(float)
                 + (shared->taps + pixels) * (int64_t)sizeof(int64_t)));
    if (!memory) {
        __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    int64_t *const taps = (int64_t *)(memory + cells * (int64_t)sizeof(float));
    const Strip strip = {(float *)memory, taps, taps + shared->taps, NULL};
    find_taps(shared, taps);
    find_places(shared, strip.places, pixels);
    for (;;) {
        const int64_t point = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED);
        if (point >= points || __atomic_load_n(&shared->failed, __ATOMIC_RELAXED)) return;
        compute_strip(all, &strip, point);
    }
}

/* The weight in the order in which tiles take it: zeros for results that are none. */
static void order_weight(const Lanes *all, const float *weight, float *to)
{
    const Tiled *about = all->shared.about;
    for (int64_t vector = 0; vector < all->vectors; vector++)
        for (int64_t channel = 0; channel < about->channels; channel++)
            for (int64_t tap = 0; tap < all->shared.taps; tap++)
                for (int64_t lane = 0; lane < LANES; lane++) {
                    const int64_t at = vector * LANES + lane;
                    *to++ = at >= all->result_pixel ? 0
                        : weight[about->weight_at + at / about->results * about->group_step
                                 + at % about->results * about->result_step
                                 + channel * about->channel_step
                                 + tap / about->tap_columns * about->row_step
                                 + tap % about->tap_columns * about->column_step];
                }
}

/* result[n,o,i,j] = bias[o] + sum(c,k,l) weight[o,c,k,l] * image[n,c,i+k,j+l], with zeros around
   the image, in groups of at most 4 channels and of 1, 2 or 4 results, at most 32 channels for 16
   results; images and result have neighbours for channels. 0 where there is no memory for it. */
int64_t opgen_lane_tiles(
    const float *image, const float *weight, const float *bias, float *result, const Tiled *about)
{
    Lanes all = lanes_of(about);
    Shared *const shared = &all.shared;
    /* So many strips that threads seldom wait for the last one. */
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    const int64_t each = about->images * all.clusters;
    const int64_t fewest = threads > 1 ? (4 * threads + each - 1) / each : 1;
    *shared = shared_of(image, about, LANE_STRIP / (about->channels * LANES), fewest);
    shared->group_weights = about->channels * shared->taps * LANES;
    shared->bias = bias;
    shared->result = result;
    float *const ordered =
        aligned_alloc(LINE, (size_t)(all.vectors * shared->group_weights) * sizeof(float));
    if (!ordered) return 0;
    order_weight(&all, weight, ordered);
    shared->weights = ordered;
    take_all(take_strips, &all,
             is_little(shared, about->results * about->channels * shared->taps));
    free(ordered);
    return !shared->failed;
}
"""
)
