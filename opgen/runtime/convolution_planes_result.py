"""C of `convolution_planes_source`: results, and gradients of images."""

from __future__ import annotations

from opgen.runtime.convolution_planes_source import PLANES

_RESULT = r"""
/* Sums of products, in the order of the channels and then of the taps. Of the results of a tile so
   many are there. */
KERNEL void tile(
    const Shared *all, const Strip *strip, int64_t vector, const float *weights, const float *bias,
    float *result, int64_t there, const int results, const int vectors)
{
    const float *from = strip->memory + vector * LANES;
    const int64_t cells = all->rows * all->columns;
    __m512 sums[RESULTS][VECTORS];
    for (int at = 0; at < results; at++)
        for (int v = 0; v < vectors; v++)
            sums[at][v] = _mm512_set1_ps(bias && at < there ? bias[at] : 0);
    for (int64_t channel = 0; channel < all->about->channels; channel++, from += all->plane)
        for (int64_t tap = 0; tap < all->taps; tap++, weights += results) {
            __m512 pixels[VECTORS];
            for (int v = 0; v < vectors; v++)
                pixels[v] = _mm512_loadu_ps(from + strip->taps[tap] + v * LANES);
            for (int at = 0; at < results; at++) {
                const __m512 weight = _mm512_set1_ps(weights[at]);
                for (int v = 0; v < vectors; v++)
                    sums[at][v] = _mm512_fmadd_ps(weight, pixels[v], sums[at][v]);
            }
        }
    for (int at = 0; at < results && at < there; at++)
        for (int v = 0; v < vectors; v++) {
            const __mmask16 pixels = strip->pixels[vector + v];
            float *const place = result + at * cells + strip->places[vector + v];
            if (pixels == 0xffff) {
                _mm512_storeu_ps(place, sums[at][v]);
            } else {
                const __m512 together = _mm512_maskz_compress_ps(pixels, sums[at][v]);
                const int count = __builtin_popcount(pixels);
                _mm512_mask_storeu_ps(place, first_lanes(count), together);
            }
        }
}

typedef void (*tile_of)(
    const Shared *, const Strip *, int64_t, const float *, const float *, float *, int64_t);
#define TILE(results, vectors) \
    __attribute__((noinline)) static void tile_##results##_##vectors( \
        const Shared *all, const Strip *strip, int64_t vector, const float *weights, \
        const float *bias, float *result, int64_t there) \
    { \
        tile(all, strip, vector, weights, bias, result, there, results, vectors); \
    }
TILE(2, 1) TILE(2, 2) TILE(2, 3)
TILE(4, 1) TILE(4, 2) TILE(4, 3)
TILE(8, 1) TILE(8, 2) TILE(8, 3)
static const tile_of TILES[3][VECTORS] = {
    {tile_2_1, tile_2_2, tile_2_3}, {tile_4_1, tile_4_2, tile_4_3}, {tile_8_1, tile_8_2, tile_8_3}};

/* Which lanes of vectors are pixels. */
static void find_pixels(
    const Shared *all, const Strip *strip, int64_t top, int64_t rows, int64_t vectors)
{
    int64_t row = 0, column = 0;
    for (int64_t vector = 0; vector < vectors; vector++) {
        const int64_t before = column < all->columns ? column : all->columns;
        unsigned pixels = 0;
        strip->places[vector] = (top + row) * all->columns + before;
        for (int lane = 0; lane < LANES; lane++) {
            if (row < rows && column < all->columns) pixels |= 1u << lane;
            if (++column == all->pitch) column = 0, row++;
        }
        strip->pixels[vector] = (__mmask16)pixels;
    }
}

/* A strip of a group in an image; `known` is the part of an image whose pixels were found last. */
static void compute_strip(const Shared *all, const Strip *strip, int64_t point, int64_t *known)
{
    const Tiled *about = all->about;
    const int64_t part = point % all->strips, group = point / all->strips % about->groups;
    const int64_t place = point / all->strips;  /* among groups of all images */
    const int64_t top = part * all->together, left = all->rows - top;
    const int64_t rows = left < all->together ? left : all->together;
    const int64_t cells = all->rows * all->columns;
    const float *weights = all->weights + group * all->group_weights;
    float *result = all->result + place * about->results * cells;
    fill(all, strip, all->image + place * about->channels * about->height * about->width,
         top, rows);
    const int64_t vectors = (rows * all->pitch + LANES - 1) / LANES;
    if (*known != part) find_pixels(all, strip, top, rows, vectors);
    *known = part;
    for (int64_t at = 0; at < about->results;) {
        const int64_t there = about->results - at, results = results_of(there);
        const float *const bias = all->bias ? all->bias + group * about->results + at : NULL;
        for (int64_t vector = 0; vector < vectors; vector += VECTORS) {
            const int64_t count = vectors - vector < VECTORS ? vectors - vector : VECTORS;
            TILES[results / 4][count - 1](
                all, strip, vector, weights, bias, result + at * cells, there);
        }
        weights += results * about->channels * all->taps;
        at += results;
    }
}

static void take_strips(void *data)
{
    Shared *const all = data;
    const Tiled *about = all->about;
    const int64_t vectors = (all->together * all->pitch + LANES - 1) / LANES;
    const int64_t cells = about->channels * all->plane;
    const int64_t points = about->images * about->groups * all->strips;
    char *const memory = strip_memory(
        all, cells * (int64_t)sizeof(float) + (all->taps + vectors) * (int64_t)sizeof(int64_t)
                 + vectors * (int64_t)sizeof(__mmask16));
    if (!memory) return;
    int64_t *const taps = (int64_t *)(memory + cells * (int64_t)sizeof(float));
    int64_t *const places = taps + all->taps;
    const Strip strip = {(float *)memory, taps, places, (__mmask16 *)(places + vectors)};
    find_taps(all, taps);
    int64_t known = -1;
    for (int64_t point; (point = next_point(all, points)) >= 0;)
        compute_strip(all, &strip, point, &known);
}

/* The weight in the order in which tiles take it: zeros for results that are none. */
static void order_weight(const Shared *all, const float *weight, float *to)
{
    const Tiled *about = all->about;
    for (int64_t group = 0; group < about->groups; group++)
        for (int64_t at = 0; at < about->results;) {
            const int64_t results = results_of(about->results - at);
            for (int64_t channel = 0; channel < about->channels; channel++) {
                const float *const window = weight + place_in_weight(about, group, 0, channel);
                for (int64_t row = 0; row < about->tap_rows; row++)
                    for (int64_t column = 0; column < about->tap_columns; column++) {
                        const float *const from = window + place_in_window(about, row, column);
                        for (int64_t next = at; next < at + results; next++)
                            *to++ = next < about->results ? from[next * about->result_step] : 0;
                    }
            }
            at += results;
        }
}

/* result[n,o,i,j] = bias[o] + sum(c,k,l) weight[o,c,k,l] * image[n,c,i+k,j+l], with zeros around
   the image, in groups; images and result are contiguous. 0 where there is no memory for it. */
int64_t opgen_plane_tiles(
    const float *image, const float *weight, const float *bias, float *result, const Tiled *about)
{
    const int64_t fewest = strips_for_threads(about->images * about->groups);
    Shared all = shared_of(image, about, STRIP / about->channels, fewest);
    all.group_weights = padded(about->results) * about->channels * all.taps;
    all.bias = bias;
    all.result = result;
    float *const ordered = malloc((size_t)(about->groups * all.group_weights) * sizeof(float));
    if (!ordered) return 0;
    order_weight(&all, weight, ordered);
    all.weights = ordered;
    take_all(take_strips, &all, is_little(&all, all.group_weights));
    free(ordered);
    return !all.failed;
}
"""

RESULT = PLANES + _RESULT
