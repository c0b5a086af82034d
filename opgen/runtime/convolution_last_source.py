"""C for tiles of images in channels-last format: what both kinds of them have.

What goes through a strip at a time is a unit: a group, or a vector of results of several groups.
Each kind says how units and planes of the strip follow from the geometry, and has functions for a
unit, which stand between the parts here:

* `fill_unit(all, image, unit, top, rows, to)` brings what a strip needs of an image into order;
* `compute_unit(all, strip, unit, pixels, result)` computes the results of a strip, and
  `order_weight(all, weight, to)` what these take of the weight, for all units;
* `add_unit(all, strip, cotangent, unit, top, rows, sums)` adds the products of a strip to sums.
  Those for a result are of the unit `unit_of(all, result)`; for the first tap of a channel the
  number is `sum_of(all, result, channel)`, and `SUM_STEP` more for each of the next.
"""

from __future__ import annotations

from typing import Final

TILE_PIXELS: Final = 16
"""Sums in registers, enough to hide how long a product takes."""

LAST: Final = r"""
enum { PIXELS = TILE_PIXELS, LAST_STRIP = STRIP / 4, MOST_CHANNELS = 4 };
/* Sums are in registers only if each loop over them is unrolled. */
#define UNROLLED _Pragma("GCC unroll TILE_PIXELS")

/* A cluster are `near` units that fill a line of memory together, and go through a strip one after
   the other. A strip has `planes`, of as many vectors as pixels. For units of several groups,
   `places` are those of channels in what is loaded for them. */
typedef struct {
    Shared shared;
    int64_t units, near, clusters, planes, image_pixel, result_pixel;
    __m512i places[MOST_CHANNELS];
} Last;

static int64_t least(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* Units have so many numbers in a pixel, of the image or of the result. */
static Last last_of(const Tiled *about, int64_t units, int64_t numbers, int64_t planes)
{
    Last all = {.units = units, .planes = planes};
    all.near = least(numbers < LANES ? LANES / numbers : 1, units);
    all.clusters = (units + all.near - 1) / all.near;
    all.image_pixel = about->groups * about->channels;
    all.result_pixel = about->groups * about->results;
    return all;
}
""".replace("TILE_PIXELS", str(TILE_PIXELS))
"""Before the functions of a kind."""

LAST_RESULT: Final = r"""
/* Where pixels of a strip are in the result, from its first one on; -1 for those that are none. */
static void find_places(const Shared *all, int64_t *places, int64_t count)
{
    int64_t row = 0, column = 0;
    for (int64_t pixel = 0; pixel < count; pixel++) {
        places[pixel] = column < all->columns ? row * all->columns + column : -1;
        if (++column == all->pitch) column = 0, row++;
    }
}

static void compute_strip(const Last *all, const Strip *strip, int64_t point)
{
    const Shared *shared = &all->shared;
    const Tiled *about = shared->about;
    const int64_t first = point % all->clusters * all->near;
    const int64_t part = point / all->clusters % shared->strips;
    const int64_t image = point / all->clusters / shared->strips;
    const int64_t top = part * shared->together;
    const int64_t rows = least(shared->rows - top, shared->together);
    const float *const from =
        shared->image + image * about->height * about->width * all->image_pixel;
    float *const result = shared->result
        + (image * shared->rows + top) * shared->columns * all->result_pixel;
    for (int64_t unit = first; unit < least(first + all->near, all->units); unit++) {
        fill_unit(all, from, unit, top, rows, strip->memory);
        compute_unit(all, strip, unit, rows * shared->pitch, result);
    }
}

static void take_strips(void *data)
{
    Last *const all = data;
    Shared *const shared = &all->shared;
    const int64_t cells = all->planes * shared->plane * LANES;
    const int64_t pixels = shared->together * shared->pitch + PIXELS;
    const int64_t points = shared->about->images * all->clusters * shared->strips;
    char *const memory = strip_memory(
        shared, cells * (int64_t)sizeof(float)
                    + (shared->taps + pixels) * (int64_t)sizeof(int64_t));
    if (!memory) return;
    int64_t *const taps = (int64_t *)(memory + cells * (int64_t)sizeof(float));
    const Strip strip = {(float *)memory, taps, taps + shared->taps, NULL};
    find_taps(shared, taps);
    find_places(shared, strip.places, pixels);
    for (int64_t point; (point = next_point(shared, points)) >= 0;)
        compute_strip(all, &strip, point);
}

/* All results; so many numbers of the weight, in the order of tiles, belong to a unit. */
static int64_t compute_results(
    Last *all, const float *image, const float *weight, const float *bias, float *result,
    const Tiled *about, int64_t weights)
{
    Shared *const shared = &all->shared;
    const int64_t fewest = strips_for_threads(about->images * all->clusters);
    *shared = shared_of(image, about, LAST_STRIP / (all->planes * LANES), fewest);
    shared->group_weights = weights * shared->taps;
    shared->bias = bias;
    shared->result = result;
    const int64_t lines = (all->units * shared->group_weights + LANES - 1) / LANES;
    float *const ordered = aligned_alloc(LINE, (size_t)(lines * LINE));
    if (!ordered) return 0;
    order_weight(all, weight, ordered);
    shared->weights = ordered;
    take_all(take_strips, all, is_little(shared, about->results * about->channels * shared->taps));
    free(ordered);
    return !shared->failed;
}
"""
"""Behind those for results."""

LAST_WEIGHT: Final = r"""
/* The images of a cluster are in `parts`, each of which has sums of its own, so that their order
   does not depend on how many threads there are. */
typedef struct {
    Last last;
    const float *cotangent;
    float *sums;
    int64_t parts, size;  /* of the sums of a unit in a part */
    int64_t spare;  /* planes for the cotangent, behind those of the strip */
} Gradient;

/* A strip of all units of a cluster, of which `first` is the first one. */
static void add_strip(
    const Gradient *all, const Strip *strip, int64_t image, int64_t part, int64_t first,
    float *sums)
{
    const Last *last = &all->last;
    const Shared *shared = &last->shared;
    const Tiled *about = shared->about;
    const int64_t top = part * shared->together;
    const int64_t rows = least(shared->rows - top, shared->together);
    const float *const from =
        shared->image + image * about->height * about->width * last->image_pixel;
    const float *const given =
        all->cotangent + image * shared->rows * shared->columns * last->result_pixel;
    for (int64_t unit = first; unit < least(first + last->near, last->units); unit++) {
        fill_unit(last, from, unit, top, rows, strip->memory);
        add_unit(last, strip, given, unit, top, rows, sums + (unit - first) * all->size);
    }
}

static void take_parts(void *data)
{
    Gradient *const all = data;
    const Last *last = &all->last;
    Shared *const shared = &all->last.shared;
    const int64_t cells = (last->planes * shared->plane
                           + all->spare * shared->together * shared->columns) * LANES;
    const int64_t strips = shared->about->images * shared->strips;
    char *const memory = strip_memory(
        shared, cells * (int64_t)sizeof(float) + shared->taps * (int64_t)sizeof(int64_t));
    if (!memory) return;
    const Strip strip = {
        (float *)memory, (int64_t *)(memory + cells * (int64_t)sizeof(float)), NULL, NULL};
    find_taps(shared, strip.taps);
    for (int64_t point; (point = next_point(shared, all->parts * last->clusters)) >= 0;) {
        const int64_t cluster = point / all->parts, part = point % all->parts;
        for (int64_t at = part * strips / all->parts; at < (part + 1) * strips / all->parts; at++)
            add_strip(all, &strip, at / shared->strips, at % shared->strips,
                      cluster * last->near, all->sums + point * last->near * all->size);
    }
}

/* The sums of all parts, where the weight has them. */
static void add_parts(const Gradient *all, float *gradient)
{
    const Last *last = &all->last;
    const Tiled *about = last->shared.about;
    const int64_t next_part = last->near * all->size;
    for (int64_t result = 0; result < last->result_pixel; result++) {
        const int64_t unit = unit_of(last, result);
        const float *const own = all->sums + unit % last->near * all->size
            + unit / last->near * all->parts * next_part;
        const int64_t group = result / about->results, in_group = result % about->results;
        for (int64_t channel = 0; channel < about->channels; channel++) {
            float *const window = gradient + place_in_weight(about, group, in_group, channel);
            const float *from = own + sum_of(last, result, channel);
            for (int64_t row = 0; row < about->tap_rows; row++)
                for (int64_t column = 0; column < about->tap_columns; column++, from += SUM_STEP) {
                    float sum = from[0];
                    for (int64_t part = 1; part < all->parts; part++) sum += from[part * next_part];
                    window[place_in_window(about, row, column)] = sum;
                }
        }
    }
}

/* The whole gradient; so many numbers are the sums of a unit for a tap. */
static int64_t compute_gradient(
    const Last *last, const float *image, const float *cotangent, float *gradient,
    const Tiled *about, int64_t numbers, int64_t spare)
{
    Gradient all = {*last, cotangent, .spare = spare};
    Shared *const shared = &all.last.shared;
    /* A cache holds the cotangent beside the strip. */
    const int64_t held = (spare ? 2 : 1) * LAST_STRIP / ((last->planes + spare) * LANES);
    const int64_t fewest = strips_for_sums(about, about->images * last->clusters);
    *shared = shared_of(image, about, held, fewest);
    all.size = numbers * shared->taps;
    all.parts = least((PARTS_IN_ALL + last->clusters - 1) / last->clusters,
                      about->images * shared->strips);
    all.sums = calloc((size_t)(all.parts * last->clusters * last->near * all.size), sizeof(float));
    if (!all.sums) return 0;
    take_all(take_parts, &all, is_little(shared, about->results * about->channels * shared->taps));
    if (!shared->failed) add_parts(&all, gradient);
    free(all.sums);
    return !shared->failed;
}
"""
"""Behind those for gradients of weights."""
