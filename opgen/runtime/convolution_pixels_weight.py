"""C of `convolution_pixels_source`: gradients of weights."""

from __future__ import annotations

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

_WEIGHT = r"""
typedef void (*taps_of)(
    const Shared *, const float *, const float *, const int64_t *, int64_t, float *, int64_t);
static const taps_of ADD_TAPS[2][TAPS] = {
    {taps_8_1, taps_8_2, taps_8_3}, {taps_16_1, taps_16_2, taps_16_3}};

/* The images of a cluster are in `parts`, each of which has sums of its own, so that their order
   does not depend on how many threads there are. */
typedef struct {
    Pixels pixels;
    const float *cotangent;
    float *sums;
    int64_t parts, size;  /* of the sums of a group in a part */
} Gradient;

/* Sums are there for vectors of results, blocks of channels, taps, and 16 channels each. */
static void add_group(
    const Gradient *all, const Strip *strip, const float *cotangent, int64_t rows, float *sums)
{
    const Shared *shared = &all->pixels.shared;
    const Tiled *about = shared->about;
    const int64_t cells = shared->together * shared->columns * LANES, step = LANES * LANES;
    for (int64_t at = 0; at < about->results; at += LANES, cotangent += cells) {
        const int is_wide = about->results - at > 8;
        for (int64_t first = 0; first < about->channels; first += LANES) {
            const float *const pixels = strip->memory + first * shared->plane;
            for (int64_t next = 0; next < least(about->channels - first, LANES); next += CHANNELS)
                for (int64_t tap = 0; tap < shared->taps; tap += TAPS)
                    ADD_TAPS[is_wide][least(shared->taps - tap, TAPS) - 1](
                        shared, pixels + next, cotangent, strip->taps + tap, rows,
                        sums + tap * step + next * LANES, step);
            sums += shared->taps * step;
        }
    }
}

/* A strip of all groups of a cluster, of which `first` is the first one. */
static void add_strip(
    const Gradient *all, const Strip *strip, float *cotangent, int64_t image, int64_t part,
    int64_t first, float *sums)
{
    const Pixels *pixels = &all->pixels;
    const Shared *shared = &pixels->shared;
    const Tiled *about = shared->about;
    const int64_t top = part * shared->together;
    const int64_t rows = least(shared->rows - top, shared->together);
    const int64_t cells = shared->together * shared->columns;
    const float *const from =
        shared->image + image * about->height * about->width * pixels->image_pixel;
    const float *const given =
        all->cotangent + image * shared->rows * shared->columns * pixels->result_pixel;
    for (int64_t group = first; group < least(first + pixels->near, about->groups); group++) {
        gather_strip(pixels, from + group * about->channels, top, rows, strip->memory);
        for (int64_t at = 0; at < about->results; at += LANES)
            gather(given + group * about->results + at, pixels->result_pixel,
                   least(about->results - at, LANES), shared->rows, shared->columns, top, rows, 0,
                   shared->columns, cells, cotangent + at * cells);
        add_group(all, strip, cotangent, rows, sums + (group - first) * all->size);
    }
}

static void take_parts(void *data)
{
    Gradient *const all = data;
    const Pixels *pixels = &all->pixels;
    Shared *const shared = &all->pixels.shared;
    const int64_t cells = pixels->blocks * shared->plane * LANES;
    const int64_t others =
        vectors_of(shared->about->results) * shared->together * shared->columns * LANES;
    const int64_t strips = shared->about->images * shared->strips;
    char *const memory = own_memory(
        (size_t)((cells + others) * (int64_t)sizeof(float)
                 + shared->taps * (int64_t)sizeof(int64_t)));
    if (!memory) {
        __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *const cotangent = (float *)memory + cells;
    const Strip strip = {(float *)memory, (int64_t *)(cotangent + others), NULL, NULL};
    find_taps(shared, strip.taps);
    for (;;) {
        const int64_t point = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED);
        if (point >= all->parts * pixels->clusters) return;
        if (__atomic_load_n(&shared->failed, __ATOMIC_RELAXED)) return;
        const int64_t cluster = point / all->parts, part = point % all->parts;
        for (int64_t at = part * strips / all->parts; at < (part + 1) * strips / all->parts; at++)
            add_strip(all, &strip, cotangent, at / shared->strips, at % shared->strips,
                      cluster * pixels->near, all->sums + point * pixels->near * all->size);
    }
}

/* The sums of all parts, where the weight has them. */
static void add_parts(const Gradient *all, float *gradient)
{
    const Pixels *pixels = &all->pixels;
    const Tiled *about = pixels->shared.about;
    const int64_t taps = pixels->shared.taps, next_part = pixels->near * all->size;
    for (int64_t group = 0; group < about->groups; group++) {
        const float *const own = all->sums + group % pixels->near * all->size
            + group / pixels->near * all->parts * next_part;
        for (int64_t result = 0; result < about->results; result++)
            for (int64_t channel = 0; channel < about->channels; channel++)
                for (int64_t tap = 0; tap < taps; tap++) {
                    const int64_t block = result / LANES * pixels->blocks + channel / LANES;
                    const float *const from = own + result % LANES
                        + ((block * taps + tap) * LANES + channel % LANES) * LANES;
                    float sum = from[0];
                    for (int64_t part = 1; part < all->parts; part++)
                        sum += from[part * next_part];
                    gradient[group * about->group_step + result * about->result_step
                             + channel * about->channel_step
                             + tap / about->tap_columns * about->row_step
                             + tap % about->tap_columns * about->column_step] = sum;
                }
    }
}

/* gradient[o,c,k,l] = sum(n,i,j) cotangent[n,o,i,j] * image[n,c,i+k,j+l]: images and cotangents
   have neighbours for channels, and the gradient has the steps of a weight. Numbers of it that are
   not finite may be wrong: zeros around the image are multiplied all the same. */
int64_t opgen_pixel_weight_tiles(
    const float *image, const float *cotangent, const float *none, float *gradient,
    const Tiled *about)
{
    (void)none;
    Gradient all = {pixels_of(about), cotangent};
    Shared *const shared = &all.pixels.shared;
    const int64_t numbers = (all.pixels.blocks + vectors_of(about->results)) * LANES;
    /* Few images are cut for threads, whose number must not change the order of sums. */
    const int64_t each = about->images * all.pixels.clusters;
    const int64_t wanted = (PARTS_IN_ALL + each - 1) / each;
    const int64_t most = (about->height * about->width + FEW_PIXELS - 1) / FEW_PIXELS;
    *shared = shared_of(image, about, 2 * PIXEL_STRIP / numbers, wanted < most ? wanted : most);
    const int64_t strips = about->images * shared->strips;
    all.size = vectors_of(about->results) * all.pixels.blocks * shared->taps * LANES * LANES;
    all.parts = least((PARTS_IN_ALL + all.pixels.clusters - 1) / all.pixels.clusters, strips);
    all.sums = calloc(
        (size_t)(all.parts * all.pixels.clusters * all.pixels.near * all.size), sizeof(float));
    if (!all.sums) return 0;
    take_all(take_parts, &all, is_little(shared, about->results * about->channels * shared->taps));
    if (!shared->failed) add_parts(&all, gradient);
    free(all.sums);
    return !shared->failed;
}
"""

CHANNELS, TAPS = 8, 3
"""Of the sums that are in registers: each takes its factor from memory as it is multiplied."""

WEIGHT = (
    PIXELS + f"enum {{ CHANNELS = {CHANNELS}, TAPS = {TAPS} }};\n" + for_each_width(_TAPS) + _WEIGHT
)
