"""C of `convolution_lanes_source`: gradients of weights."""

from __future__ import annotations

from opgen.runtime.convolution_lanes_source import SOURCE

WEIGHT = (
    SOURCE
    + r"""
enum { TAPS = 9 };

/* The vectors of a cluster are in `parts`, each of which has sums of its own, so that their order
   does not depend on how many threads there are. */
typedef struct {
    Lanes lanes;
    const float *cotangent;
    float *sums;
    int64_t parts, size;  /* of the sums of a vector in a part */
} Gradient;

/* Sums over the pixels of a strip, for a channel and some taps. Those behind the last tap are of
   the first one again, and are not kept. */
__attribute__((noinline)) static void add_taps(
    const Lanes *all, const float *pixels, const float *cotangent, __mmask16 there,
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

static void add_strip(
    const Gradient *all, const Strip *strip, int64_t image, int64_t part, int64_t first,
    float *sums)
{
    const Lanes *lanes = &all->lanes;
    const Shared *shared = &lanes->shared;
    const Tiled *about = shared->about;
    const int64_t top = part * shared->together;
    const int64_t rows = least(shared->rows - top, shared->together);
    const float *const from =
        shared->image + image * about->height * about->width * lanes->image_pixel;
    const float *const given = all->cotangent
        + (image * shared->rows + top) * shared->columns * lanes->result_pixel;
    for (int64_t at = first; at < least(first + lanes->near, lanes->vectors); at++) {
        const __mmask16 there = some_lanes(lanes->result_pixel - at * LANES);
        spread(lanes, from, at, top, rows, strip->memory);
        for (int64_t channel = 0; channel < about->channels; channel++)
            for (int64_t tap = 0; tap < shared->taps; tap += TAPS)
                add_taps(lanes, strip->memory + channel * shared->plane * LANES,
                         given + at * LANES, there, strip->taps + tap, shared->taps - tap, rows,
                         sums + (at - first) * all->size + (channel * shared->taps + tap) * LANES);
    }
}

static void take_parts(void *data)
{
    Gradient *const all = data;
    const Lanes *lanes = &all->lanes;
    Shared *const shared = &all->lanes.shared;
    const int64_t cells = shared->about->channels * shared->plane * LANES;
    const int64_t strips = shared->about->images * shared->strips;
    char *const memory = own_memory(
        (size_t)(cells * (int64_t)sizeof(float) + shared->taps * (int64_t)sizeof(int64_t)));
    if (!memory) {
        __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const Strip strip = {
        (float *)memory, (int64_t *)(memory + cells * (int64_t)sizeof(float)), NULL, NULL};
    find_taps(shared, strip.taps);
    for (;;) {
        const int64_t point = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED);
        if (point >= all->parts * lanes->clusters) return;
        if (__atomic_load_n(&shared->failed, __ATOMIC_RELAXED)) return;
        const int64_t cluster = point / all->parts, part = point % all->parts;
        for (int64_t at = part * strips / all->parts; at < (part + 1) * strips / all->parts; at++)
            add_strip(all, &strip, at / shared->strips, at % shared->strips,
                      cluster * lanes->near, all->sums + point * lanes->near * all->size);
    }
}

/* The sums of all parts, where the weight has them. */
static void add_parts(const Gradient *all, float *gradient)
{
    const Lanes *lanes = &all->lanes;
    const Tiled *about = lanes->shared.about;
    const int64_t taps = lanes->shared.taps, next_part = lanes->near * all->size;
    for (int64_t at = 0; at < lanes->result_pixel; at++) {
        const int64_t vector = at / LANES;
        const float *const own = all->sums + vector % lanes->near * all->size
            + vector / lanes->near * all->parts * next_part + at % LANES;
        float *const to = gradient + at / about->results * about->group_step
            + at % about->results * about->result_step;
        for (int64_t channel = 0; channel < about->channels; channel++)
            for (int64_t tap = 0; tap < taps; tap++) {
                const float *const from = own + (channel * taps + tap) * LANES;
                float sum = from[0];
                for (int64_t part = 1; part < all->parts; part++) sum += from[part * next_part];
                to[channel * about->channel_step + tap / about->tap_columns * about->row_step
                   + tap % about->tap_columns * about->column_step] = sum;
            }
    }
}

/* gradient[o,c,k,l] = sum(n,i,j) cotangent[n,o,i,j] * image[n,c,i+k,j+l]: images and cotangents
   have neighbours for channels, and the gradient has the steps of a weight. Numbers of it that are
   not finite may be wrong: zeros around the image are multiplied all the same. */
int64_t opgen_lane_weight_tiles(
    const float *image, const float *cotangent, const float *none, float *gradient,
    const Tiled *about)
{
    (void)none;
    Gradient all = {lanes_of(about), cotangent};
    Shared *const shared = &all.lanes.shared;
    /* Few images are cut for threads, whose number must not change the order of sums. */
    const int64_t each = about->images * all.lanes.clusters;
    const int64_t wanted = (PARTS_IN_ALL + each - 1) / each;
    const int64_t most = (about->height * about->width + FEW_PIXELS - 1) / FEW_PIXELS;
    *shared = shared_of(image, about, LANE_STRIP / (about->channels * LANES),
                        wanted < most ? wanted : most);
    const int64_t strips = about->images * shared->strips;
    all.size = about->channels * shared->taps * LANES;
    all.parts = least((PARTS_IN_ALL + all.lanes.clusters - 1) / all.lanes.clusters, strips);
    all.sums = calloc(
        (size_t)(all.parts * all.lanes.clusters * all.lanes.near * all.size), sizeof(float));
    if (!all.sums) return 0;
    take_all(take_parts, &all, is_little(shared, about->results * about->channels * shared->taps));
    if (!shared->failed) add_parts(&all, gradient);
    free(all.sums);
    return !shared->failed;
}
"""
)
