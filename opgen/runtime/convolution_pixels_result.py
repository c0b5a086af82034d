"""C of `convolution_pixels_source`: results, and gradients of images."""

from __future__ import annotations

from opgen.runtime.convolution_pixels_source import PIXELS, for_each_width
from opgen.runtime.convolution_tiles_source import PLACES

_TILE = r"""
/* Sums of products, in the order of blocks of channels, taps, and channels. Of a tile's pixels
   those are stored whose place is none below zero, `left` at most. */
__attribute__((noinline)) static void tile_WIDTH(
    const Pixels *all, const Strip *strip, const float *from, int64_t pixel, const float *weights,
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

_RESULT = r"""
/* The results of a group. */
static void compute_group(
    const Pixels *all, const Strip *strip, int64_t group, int64_t pixels, float *result)
{
    const Shared *shared = &all->shared;
    const Tiled *about = shared->about;
    const float *weights = shared->weights + group * shared->group_weights;
    for (int64_t at = 0; at < about->results; at += LANES) {
        const int64_t left = about->results - at;
        const float *const bias = shared->bias ? shared->bias + group * about->results + at : NULL;
        for (int64_t pixel = 0; pixel < pixels; pixel += PIXELS)
            (left > 8 ? tile_16 : tile_8)(
                all, strip, strip->memory, pixel, weights, bias, result + at, left,
                pixels - pixel);
        weights += (left > 8 ? LANES : 8) * about->channels * shared->taps;
    }
}

static void compute_strip(const Pixels *all, const Strip *strip, int64_t point)
{
    const Shared *shared = &all->shared;
    const Tiled *about = shared->about;
    const int64_t first = point % all->clusters * all->near;
    const int64_t part = point / all->clusters % shared->strips;
    const int64_t image = point / all->clusters / shared->strips;
    const int64_t top = part * shared->together;
    const int64_t rows = least(shared->rows - top, shared->together);
    const int64_t pixels = about->height * about->width;
    const float *const from = shared->image + image * pixels * all->image_pixel;
    float *const result = shared->result
        + (image * shared->rows + top) * shared->columns * all->result_pixel;
    for (int64_t group = first; group < least(first + all->near, about->groups); group++) {
        gather_strip(all, from + group * about->channels, top, rows, strip->memory);
        compute_group(all, strip, group, rows * shared->pitch, result + group * about->results);
    }
}

static void take_strips(void *data)
{
    Pixels *const all = data;
    Shared *const shared = &all->shared;
    const int64_t cells = all->blocks * shared->plane * LANES;
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
static void order_weight(const Shared *all, const float *weight, float *to)
{
    const Tiled *about = all->about;
    for (int64_t group = 0; group < about->groups; group++)
        for (int64_t at = 0; at < about->results; at += LANES) {
            const int64_t left = about->results - at, width = left > 8 ? LANES : 8;
            for (int64_t first = 0; first < about->channels; first += LANES)
                for (int64_t tap = 0; tap < all->taps; tap++)
                    for (int64_t each = first; each < least(first + LANES, about->channels);
                         each++, to += width) {
                        const float *const from = weight + about->weight_at
                            + group * about->group_step + at * about->result_step
                            + each * about->channel_step
                            + tap / about->tap_columns * about->row_step
                            + tap % about->tap_columns * about->column_step;
                        for (int64_t next = 0; next < width; next++)
                            to[next] = next < left ? from[next * about->result_step] : 0;
                    }
        }
}

/* result[n,o,i,j] = bias[o] + sum(c,k,l) weight[o,c,k,l] * image[n,c,i+k,j+l], with zeros around
   the image, in groups; images and result have neighbours for channels. 0 where there is no memory
   for it. */
int64_t opgen_pixel_tiles(
    const float *image, const float *weight, const float *bias, float *result, const Tiled *about)
{
    Pixels all = pixels_of(about);
    Shared *const shared = &all.shared;
    /* So many strips that threads seldom wait for the last one. */
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    const int64_t each = about->images * all.clusters;
    const int64_t fewest = threads > 1 ? (4 * threads + each - 1) / each : 1;
    *shared = shared_of(image, about, PIXEL_STRIP / (all.blocks * LANES), fewest);
    shared->group_weights = padded(about->results) * about->channels * shared->taps;
    shared->bias = bias;
    shared->result = result;
    const int64_t numbers = about->groups * shared->group_weights;
    float *const ordered = aligned_alloc(LINE, (size_t)(vectors_of(numbers) * LINE));
    if (!ordered) return 0;
    order_weight(shared, weight, ordered);
    shared->weights = ordered;
    take_all(take_strips, &all, is_little(shared, shared->group_weights));
    free(ordered);
    return !shared->failed;
}
"""

RESULT = PIXELS + for_each_width(_TILE) + PLACES + _RESULT
