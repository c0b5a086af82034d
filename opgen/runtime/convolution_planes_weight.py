"""C of `convolution_planes_source`: gradients of weights."""

from __future__ import annotations

from opgen.runtime.convolution_planes_source import PLANES

_WEIGHT = r"""
/* What is the same for all sums: the images of a group are in `parts`, each of which has sums of
   its own, so that their order does not depend on how many threads there are. */
typedef struct {
    Shared shared;
    const float *cotangent;
    float *sums;
    int64_t parts, size;  /* of the sums of a part */
} Gradient;

/* Sums over the pixels of a strip, for some results and taps of a channel. Lanes that are no pixels
   are zeros in the cotangent. */
KERNEL void add_taps(
    const float *pixels, const float *cotangent, int64_t plane, const int64_t *taps,
    int64_t vectors, float *sums, int64_t result_step, int64_t there, const int results,
    const int count)
{
    __m512 found[RESULTS][VECTORS];
    for (int at = 0; at < results; at++)
        for (int tap = 0; tap < count; tap++) found[at][tap] = _mm512_setzero_ps();
    for (int64_t cell = 0; cell < vectors * LANES; cell += LANES) {
        __m512 from[VECTORS];
        for (int tap = 0; tap < count; tap++)
            from[tap] = _mm512_loadu_ps(pixels + taps[tap] + cell);
        for (int at = 0; at < results; at++) {
            const __m512 factor = _mm512_loadu_ps(cotangent + at * plane + cell);
            for (int tap = 0; tap < count; tap++)
                found[at][tap] = _mm512_fmadd_ps(factor, from[tap], found[at][tap]);
        }
    }
    for (int at = 0; at < results && at < there; at++)
        for (int tap = 0; tap < count; tap++)
            sums[at * result_step + tap] += _mm512_reduce_add_ps(found[at][tap]);
}

typedef void (*taps_of)(
    const float *, const float *, int64_t, const int64_t *, int64_t, float *, int64_t, int64_t);
#define TAPS(results, count) \
    __attribute__((noinline)) static void taps_##results##_##count( \
        const float *pixels, const float *cotangent, int64_t plane, const int64_t *taps, \
        int64_t vectors, float *sums, int64_t result_step, int64_t there) \
    { \
        add_taps(pixels, cotangent, plane, taps, vectors, sums, result_step, there, \
                 results, count); \
    }
TAPS(2, 1) TAPS(2, 2) TAPS(2, 3)
TAPS(4, 1) TAPS(4, 2) TAPS(4, 3)
TAPS(8, 1) TAPS(8, 2) TAPS(8, 3)
static const taps_of SOME_TAPS[3][VECTORS] = {
    {taps_2_1, taps_2_2, taps_2_3}, {taps_4_1, taps_4_2, taps_4_3}, {taps_8_1, taps_8_2, taps_8_3}};

/* A strip of the cotangent, rows as far apart as those of the image, with zeros between them, and
   for results that are none. */
static void fill_cotangent(
    const Shared *all, const float *from, float *to, int64_t plane, int64_t rows)
{
    const int64_t columns = all->columns, whole = columns / LANES * LANES;
    const __mmask16 rest = first_lanes(columns - whole);
    const int64_t results = all->about->results;
    memset(to + results * plane, 0, (size_t)((padded(results) - results) * plane) * sizeof(float));
    for (int64_t result = 0; result < results; result++) {
        float *const first = to + result * plane;
        for (int64_t at = 0; at < rows; at++) {
            float *const row = first + at * all->pitch;
            const float *const source = from + (result * all->rows + at) * columns;
            for (int64_t w = 0; w < whole; w += LANES)
                _mm512_storeu_ps(row + w, _mm512_loadu_ps(source + w));
            _mm512_mask_storeu_ps(row + whole, rest, _mm512_maskz_loadu_ps(rest, source + whole));
            memset(row + columns, 0, (size_t)(all->pitch - columns) * sizeof(float));
        }
        const int64_t end = rows * all->pitch;
        memset(first + end, 0, (size_t)(plane - end) * sizeof(float));
    }
}

/* `place` counts groups of all images. */
static void add_strip(
    const Gradient *all, const Strip *strip, float *cotangent, int64_t plane, int64_t place,
    int64_t part, float *sums)
{
    const Shared *shared = &all->shared;
    const Tiled *about = shared->about;
    const int64_t top = part * shared->together, left = shared->rows - top;
    const int64_t rows = left < shared->together ? left : shared->together;
    const int64_t vectors = (rows * shared->pitch + LANES - 1) / LANES;
    const int64_t step = about->channels * shared->taps;
    const int64_t cells = shared->rows * shared->columns;
    fill(shared, strip, shared->image + place * about->channels * about->height * about->width,
         top, rows);
    fill_cotangent(shared, all->cotangent + place * about->results * cells
                   + top * shared->columns, cotangent, plane, rows);
    for (int64_t at = 0, count; at < about->results; at += count) {
        const int64_t there = about->results - at;
        count = results_of(there);
        for (int64_t channel = 0; channel < about->channels; channel++)
            for (int64_t tap = 0; tap < shared->taps; tap += VECTORS) {
                const int64_t taps = shared->taps - tap < VECTORS ? shared->taps - tap : VECTORS;
                SOME_TAPS[count / 4][taps - 1](
                    strip->memory + channel * shared->plane, cotangent + at * plane, plane,
                    strip->taps + tap, vectors, sums + at * step + channel * shared->taps + tap,
                    step, there);
            }
    }
}

static void take_parts(void *data)
{
    Gradient *const all = data;
    Shared *const shared = &all->shared;
    const Tiled *about = shared->about;
    const int64_t vectors = (shared->together * shared->pitch + LANES - 1) / LANES;
    const int64_t plane = vectors * LANES, cells = about->channels * shared->plane;
    const int64_t others = padded(about->results) * plane;
    const int64_t strips = about->images * shared->strips;
    char *const memory = strip_memory(
        shared,
        (cells + others) * (int64_t)sizeof(float) + shared->taps * (int64_t)sizeof(int64_t));
    if (!memory) return;
    float *const cotangent = (float *)memory + cells;
    const Strip strip = {(float *)memory, (int64_t *)(cotangent + others), NULL, NULL};
    find_taps(shared, strip.taps);
    for (int64_t point; (point = next_point(shared, all->parts * about->groups)) >= 0;) {
        const int64_t group = point / all->parts, part = point % all->parts;
        for (int64_t at = part * strips / all->parts; at < (part + 1) * strips / all->parts; at++) {
            const int64_t place = at / shared->strips * about->groups + group;
            add_strip(all, &strip, cotangent, plane, place, at % shared->strips,
                      all->sums + point * all->size);
        }
    }
}

/* gradient[o,c,k,l] = sum(n,i,j) cotangent[n,o,i,j] * image[n,c,i+k,j+l]: all of them contiguous.
   Numbers of it that are not finite may be wrong: lanes that are no pixels are zeros, which are
   multiplied all the same. */
int64_t opgen_plane_weight_tiles(
    const float *image, const float *cotangent, const float *none, float *gradient,
    const Tiled *about)
{
    (void)none;
    /* Long strips, as sums of lanes are added up for each, of which a cache holds both tensors. */
    const int64_t both = about->channels + about->results, held = WEIGHT_STRIP / both;
    const int64_t pixels = held < MOST_PIXELS ? held : MOST_PIXELS;
    const int64_t fewest = strips_for_sums(about, about->images * about->groups);
    Gradient all = {shared_of(image, about, pixels, fewest), cotangent};
    const Shared *shared = &all.shared;
    const int64_t strips = about->images * shared->strips;
    all.size = about->results * about->channels * shared->taps;
    all.parts = (PARTS_IN_ALL + about->groups - 1) / about->groups;
    if (all.parts > strips) all.parts = strips;
    all.sums = calloc((size_t)(all.parts * about->groups * all.size), sizeof(float));
    if (!all.sums) return 0;
    take_all(take_parts, &all, is_little(shared, all.size));
    for (int64_t group = 0; group < about->groups; group++)
        for (int64_t at = 0; at < all.size; at++) {
            const float *const from = all.sums + group * all.parts * all.size + at;
            float sum = from[0];
            for (int64_t part = 1; part < all.parts; part++) sum += from[part * all.size];
            gradient[group * all.size + at] = sum;
        }
    free(all.sums);
    return !shared->failed;
}
"""

WEIGHT = PLANES + _WEIGHT
