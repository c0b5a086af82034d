"""C for convolutions of few channels in float32, of which tiles stay in registers: what all have.

There are three kinds: for images that have planes for channels (`convolution_planes_source`), and
in channels-last format for those whose vectors have the results of one group
(`convolution_pixels_source`) or of several (`convolution_lanes_source`). What follows is said of
the first; the others differ in what neighbours in memory are.

A tile is some channels of the result by some vectors of its pixels. For every tap and channel of
the image it takes a vector of the image and a number of the weight a few times each, so that what
it loads is a fraction of what it multiplies: 24 products of vectors for 3 and 8 loads.

Rows of an image, with the zeros of padding at both ends, lie one behind the other in memory of the
thread, a strip of them that its cache holds. So a tap is the same distance from every pixel, and a
vector may begin in one row and end in the next: pixels that lie over the end of a row are computed
for nothing, and left out where the vector is stored.

That is the direct convolution of Zhang, Franchetti and Low, "High Performance Zero-Memory Overhead
Direct Convolutions" (2018), with rows in place of blocks of channels. PyTorch's library has blocks
of 16 channels, images and weights are brought into that order for every call, and what 10 channels
leave of a block is multiplied all the same.
"""

from __future__ import annotations

from typing import NamedTuple

from opgen.runtime.share_source import FORKS, PARTS

STRIP_NUMBERS = 2**16
"""The most of a strip: it shares the second cache with the weight."""

RESULTS, VECTORS = 8, 3
"""Channels and vectors of a tile: 24 sums, 3 vectors of the image and 1 number are in registers,
of which AVX512 has 32."""


class Tiled(NamedTuple):
    """The geometry of a call, in this order; channels and results are those of a group.

    Of the gradient of an image it is that of the convolution of the cotangent, which is the image
    here, with the window turned round: results are channels of what is the image elsewhere.

    Numbers of the weight are `weight_at` elements from its first one, and as many from each other
    as the steps say: negative ones turn a window round.
    """

    images: int
    groups: int
    channels: int
    results: int
    height: int
    width: int
    tap_rows: int
    tap_columns: int
    padding_rows: int
    padding_columns: int
    dilation_rows: int
    dilation_columns: int
    weight_at: int
    group_step: int
    result_step: int
    channel_step: int
    row_step: int
    column_step: int

    @property
    def taps(self) -> int:
        """Those of the window."""
        return self.tap_rows * self.tap_columns

    @property
    def work(self) -> int:
        """How many products there are, about."""
        cells = self.images * self.groups * self.height * self.width
        return cells * self.channels * self.results * self.taps


_COMMON = r"""#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined __AVX512F__ && defined __AVX512VL__
TILED
enum { LANES = 16, RESULTS = MOST_RESULTS, VECTORS = MOST_VECTORS, LINE = 64 };
enum { STRIP = STRIP_NUMBERS, WEIGHT_STRIP = 4 * STRIP, MOST_PIXELS = 4096, FEW_PIXELS = 1024 };
enum { PARTS_IN_ALL = 16 };  /* of the sums of a weight's gradient, about */
enum { LITTLE = 1 << 20 };  /* products that are not worth waking a thread */
#define KERNEL __attribute__((always_inline)) static inline

/* What is the same for all strips: `pitch` is a row with its padding, `plane` all rows of a channel
   in a strip, or the pixels of all rows, and `next` the strip that is to be taken. */
typedef struct {
    const Tiled *about;
    const float *image, *weights, *bias;
    float *result;
    int64_t rows, columns, taps, pitch, plane, together, strips, group_weights, next;
    int failed;
} Shared;

/* A strip: `memory` are its rows, `taps` how far each is from a pixel; and for every vector of
   pixels, which of its lanes are some, and where in a channel of the result the first of these is.
   In channels-last format `places` are those of pixels, see `find_places`. */
typedef struct {
    float *memory;
    int64_t *taps, *places;
    __mmask16 *pixels;
} Strip;

/* The first lanes. */
KERNEL __mmask16 first_lanes(int64_t count)
{
    return (__mmask16)((1u << count) - 1);
}

/* How far taps are from a pixel. */
static void find_taps(const Shared *all, int64_t *taps)
{
    const Tiled *about = all->about;
    for (int64_t tap = 0; tap < all->taps; tap++)
        taps[tap] = tap / about->tap_columns * about->dilation_rows * all->pitch
            + tap % about->tap_columns * about->dilation_columns;
}

/* The memory of a thread, for strips of all calls; it goes with the thread. */
static pthread_key_t own_key;
static int has_key;
__attribute__((constructor)) static void make_key(void)
{
    has_key = !pthread_key_create(&own_key, free);
}

static char *own_memory(size_t bytes)
{
    if (!has_key) return NULL;
    size_t *own = pthread_getspecific(own_key);
    if (own && *own >= bytes) return (char *)own + LINE;
    free(own);
    own = aligned_alloc(LINE, (bytes + 2 * LINE - 1) / LINE * LINE);
    if (pthread_setspecific(own_key, own)) {
        free(own);
        own = NULL;
        pthread_setspecific(own_key, NULL);
    }
    if (!own) return NULL;
    *own = bytes;
    return (char *)own + LINE;
}

/* That memory; without it the call has failed. */
static char *strip_memory(Shared *all, int64_t bytes)
{
    char *const memory = own_memory((size_t)bytes);
    if (!memory) __atomic_store_n(&all->failed, 1, __ATOMIC_RELAXED);
    return memory;
}

/* The next of so many points of a call; -1 if none is left, or the call has failed. */
static int64_t next_point(Shared *all, int64_t points)
{
    const int64_t point = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED);
    return point >= points || __atomic_load_n(&all->failed, __ATOMIC_RELAXED) ? -1 : point;
}

/* Where the window is in the weight, of a result and a channel of a group; */
KERNEL int64_t place_in_weight(
    const Tiled *about, int64_t group, int64_t result, int64_t channel)
{
    return about->weight_at + group * about->group_step + result * about->result_step
        + channel * about->channel_step;
}

/* and where a tap is in the window. */
KERNEL int64_t place_in_window(const Tiled *about, int64_t row, int64_t column)
{
    return row * about->row_step + column * about->column_step;
}

FORKS
PARTS
/* How many strips each of so many images of groups has at least: so many that threads seldom wait
   for the last one; */
static int64_t strips_for_threads(int64_t each)
{
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    return threads > 1 ? (4 * threads + each - 1) / each : 1;
}

/* and for sums, where few images are cut for threads, whose number must not change their order. */
static int64_t strips_for_sums(const Tiled *about, int64_t each)
{
    const int64_t wanted = (PARTS_IN_ALL + each - 1) / each;
    const int64_t most = (about->height * about->width + FEW_PIXELS - 1) / FEW_PIXELS;
    return wanted < most ? wanted : most;
}

/* What follows from the geometry. Strips have about so many pixels; an image has `fewest`. */
static Shared shared_of(const float *image, const Tiled *about, int64_t pixels, int64_t fewest)
{
    const int64_t reach = about->dilation_rows * (about->tap_rows - 1);
    const int64_t across = about->dilation_columns * (about->tap_columns - 1);
    Shared all = {about, image};
    all.taps = about->tap_rows * about->tap_columns;
    all.pitch = about->width + 2 * about->padding_columns;
    all.rows = about->height + 2 * about->padding_rows - reach;
    all.columns = all.pitch - across;
    int64_t most = pixels / all.pitch - reach;
    const int64_t fair = (all.rows + fewest - 1) / fewest;
    const int64_t enough = fair > 2 * reach ? fair : 2 * reach;
    if (most > enough) most = enough;
    if (most < 1) most = 1;
    if (most > all.rows) most = all.rows;
    all.strips = (all.rows + most - 1) / most;
    all.together = (all.rows + all.strips - 1) / all.strips;
    all.strips = (all.rows + all.together - 1) / all.together;
    /* The last pixel that is left out reads beyond its row, and so do lanes behind it. */
    all.plane = (all.together + reach) * all.pitch + across + LANES;
    all.plane = (all.plane + LANES - 1) / LANES * LANES;
    return all;
}

static int is_little(const Shared *all, int64_t weights)
{
    return all->about->images * all->about->groups * all->rows * all->columns * weights < LITTLE;
}
"""


def source(part: str) -> str:
    """The text of one of the functions; there is none where the compiler has no AVX512."""
    listed = "".join(f"    int64_t {name};\n" for name in Tiled._fields)
    struct = f"/* What these are is said in Python. */\ntypedef struct {{\n{listed}}} Tiled;\n"
    found = _COMMON.replace("TILED\n", struct).replace("FORKS\n", FORKS).replace("PARTS\n", PARTS)
    found = found.replace("MOST_RESULTS", str(RESULTS)).replace("MOST_VECTORS", str(VECTORS))
    return found.replace("STRIP_NUMBERS", str(STRIP_NUMBERS)) + part + "#endif\n"
