"""The C side of convolutions of LibTorch, for `lookup_table`: one call, or some images at a time.

Images that the library computes faster in channels-last format go through it some at a time
(`Case.images_at_once`). Copies of all of them would be new pages, which cost more than the copy,
and lie in memory by the time they are read; those of a few are written over and over.
Both gradients of a 3x3 filter for 256 images of 10 channels take 40 % of the time so.

The zeros of padding are no terms of the op, but the library multiplies with them, so that what
they meet must be finite. What is looked at for that stands in `lookup_checks_source`.
"""

from __future__ import annotations

from typing import NamedTuple

from opgen.runtime import (
    lookup_checks_source,
    lookup_images,
    lookup_moves_source,
    lookup_repeats_source,
)

PLAIN_CODE = """
#pragma GCC push_options
#pragma GCC optimize ("O1")
"""
"""What follows has no loops over numbers. Compiled like those, all the code of calls took a fifth
longer, which the first call of all has to wait for."""

AS_BEFORE = """
#pragma GCC pop_options
"""
"""After it there are loops again."""


OF_IMAGE = 1
OF_WEIGHT = 2
"""Gradients that are computed without the other one."""


class Convolved(NamedTuple):
    """The integers of an entry without a kernel, in this order; places are -1 for what is absent.

    Strides, paddings, dilations and output paddings follow, one of each for every spatial dim,
    and the pixel of the result, or of the gradient of the image, that shows whether the weight is
    finite, and the tap of the weight's gradient that shows it of the image and the cotangent.
    With tiles there are the integers of `convolution_tiles_source.Tiled` after these, for both
    gradients twice.
    Where dims are those of other tensors, there are after these the moves of `lookup_moves` for
    what is convolved, for the weight and the bias, as far as they are there, and for the result;
    and the rank, the sizes and the strides of what the library is to give. For both gradients they
    are views of the weight and of its gradient: rank, sizes and strides of each.
    """

    source: int
    """The place of what is convolved; with an image, of the cotangent of its convolution."""
    image: int
    """The place of an image: the gradients of it and of the weight are wanted."""
    weight: int
    bias: int
    is_transposed: int
    gradient: int
    """Which one is wanted alone: `OF_IMAGE`, `OF_WEIGHT`, or 0 for neither, or both."""
    groups: int
    spatial: int
    """How many spatial dims there are."""
    exponent: int
    """The bits that are all set in numbers that are not finite. The zeros of padding are no terms
    of the op, and must not meet such a number."""
    bytes: int
    """How large a number is."""
    elements: int
    """How many numbers the weight has,"""
    held: int
    """and how many of them memory has: fewer where it is expanded."""
    source_numbers: int
    """How many numbers of what is convolved must be finite, see `library.meets_neighbours`."""
    checks_weight: int
    """Whether the weight must be finite,"""
    checks_gradient: int
    """and whether its gradient must be."""
    shows_weight: int
    """Whether channels of the result have, at a pixel, terms of all the numbers of the weight."""
    shows_images: int
    """Whether its gradient has, at a tap, terms of all the numbers of image and cotangent, and a
    look at these few of it is worth it."""
    at_once: int
    """How many images go through channels-last format at a time, with gradients of weights in
    float32; 0 where all go as they are."""
    repeats: int
    """How many times each channel of the image is there."""
    is_moved: int
    """Whether dims are those of other tensors."""
    tiles: int
    """The address of the function that computes the result, or the gradient of the image, in place
    of the library (`convolution_tiles`); 0 for none."""
    weight_tiles: int
    """The same of the gradient of the weight, where both are wanted."""
    tiled: int
    """How many integers each of the two takes."""
    on_gpu: int
    """Whether it is the library of a GPU, of which no numbers are looked at."""


_SOURCE = r"""
typedef int32_t Convolution(
    Tensor, Tensor, const Tensor *, const int64_t *, int64_t, const int64_t *, int64_t,
    const int64_t *, int64_t, int32_t, const int64_t *, int64_t, int64_t, Tensor *);

typedef int32_t Gradients(
    Tensor, Tensor, Tensor, const int64_t **, int64_t, const int64_t *, int64_t, const int64_t *,
    int64_t, const int64_t *, int64_t, int32_t, const int64_t *, int64_t, int64_t, const int32_t *,
    int64_t, Tensor *, Tensor *, Tensor *);

/* Those of the library for the CPU, and for a GPU. */
static Convolution *convolution[2];
static Gradients *convolution_backward[2];

void opgen_connect_convolutions(void *forward, void *backward, int32_t on_gpu)
{
    memcpy(&convolution[on_gpu], &forward, sizeof(void *));
    memcpy(&convolution_backward[on_gpu], &backward, sizeof(void *));
}

CONVOLVED
/* Those of `convolution_tiles_source`. */
typedef int64_t Tiles(const void *, const void *, const void *, void *, const int64_t *);

LOOPS
static void add_numbers(float *restrict sum, const float *restrict terms, int64_t count)
{
    for (int64_t i = 0; i < count; i++) sum[i] += terms[i];
}
PLAIN_CODE

CHECKS
/* Whether a tensor is what these words say: type, rank, sizes, strides. */
static int is_as(const int64_t *expected, Tensor tensor)
{
    int64_t found[2 * MAX_RANK + 2], words = 0;
    return describe(tensor, found, &words) && words == 2 + 2 * expected[1]
        && !memcmp(found, expected, (size_t)words * sizeof *found);
}

static void drop(Tensor *tensor)
{
    if (*tensor) delete_tensor(*tensor);
    *tensor = NULL;
}

/* A tensor without values, as the entry promises it; where the next one is promised. */
static const int64_t *promised_tensor(const int64_t *promised, Tensor *made, void **data)
{
    const int64_t rank = promised[1], *sizes = promised + 2;
    if (new_tensor(rank, sizes, sizes + rank, (int32_t)promised[0], made)) return NULL;
    return get_data(*made, data) ? NULL : sizes + 2 * rank;
}

/* The result, or both gradients, without the library. */
static int by_tiles(const Entry *entry, const Tensor *inputs, Tensor *outputs)
{
    const Convolved *about = (const Convolved *)entry->integers;
    const int64_t *tiled = about->geometry + 6 * about->spatial, *next = entry->outputs;
    const void *from, *image, *weight, *bias = NULL;
    void *to;
    Tiles *tiles;
    if (get_const_data(inputs[about->source], &from)
        || get_const_data(inputs[about->weight], &weight)
        || (about->bias >= 0 && get_const_data(inputs[about->bias], &bias))
        || (about->image >= 0 && get_const_data(inputs[about->image], &image)))
        return 0;
    for (int at = 0; at <= (about->image >= 0); at++) outputs[at] = NULL;
    memcpy(&tiles, &about->tiles, sizeof tiles);
    next = promised_tensor(next, &outputs[0], &to);
    int is_found = next && tiles(from, weight, bias, to, tiled);
    if (is_found && about->image >= 0) {
        memcpy(&tiles, &about->weight_tiles, sizeof tiles);
        is_found = promised_tensor(next, &outputs[1], &to)
            && tiles(image, from, NULL, to, tiled + about->tiled);
    }
    for (int at = 0; at <= (about->image >= 0) && !is_found; at++) drop(&outputs[at]);
    return is_found;
}

/* What the library gives for an image, or the gradients of one and of the weight. */
static int compute(
    const Convolved *about, Tensor from, Tensor image, Tensor weight, const Tensor *bias,
    Tensor *outputs)
{
    const int64_t n = about->spatial, *geometry = about->geometry;
    const int32_t wanted[3] = {1, 1, 0};
    Tensor none = NULL;
    if (!convolution[about->on_gpu]) return 0;
    if (!image)
        return convolution[about->on_gpu](
            from, weight, bias, geometry, n, geometry + n, n, geometry + 2 * n, n,
            (int32_t)about->is_transposed, geometry + 3 * n, n, about->groups, outputs) == 0;
    if (convolution_backward[about->on_gpu](
            from, image, weight, NULL, 0, geometry, n, geometry + n, n, geometry + 2 * n, n, 0,
            geometry + 3 * n, n, about->groups, wanted, 3, &outputs[0], &outputs[1], &none))
        return 0;
    drop(&none);
    return 1;
}

/* The gradient of an image, or of a weight, alone. The library looks at the shape and the format of
   what it is the gradient of, which are those of the gradient: not at its numbers. */
static int one_gradient(const Entry *entry, const Tensor *inputs, Tensor *outputs)
{
    const Convolved *about = (const Convolved *)entry->integers;
    const int64_t n = about->spatial, *geometry = about->geometry;
    const int is_of_weight = about->gradient == OF_WEIGHT;
    const int32_t wanted[3] = {!is_of_weight, is_of_weight, 0};
    Tensor unread = NULL, found[3] = {NULL, NULL, NULL};
    void *data;
    if (!convolution_backward[about->on_gpu] || !promised_tensor(entry->outputs, &unread, &data)) {
        drop(&unread);
        return 0;
    }
    const int is_found = convolution_backward[about->on_gpu](
        inputs[about->source], is_of_weight ? inputs[about->image] : unread,
        is_of_weight ? unread : inputs[about->weight], NULL, 0, geometry, n, geometry + n, n,
        geometry + 2 * n, n, 0, geometry + 3 * n, n, about->groups, wanted, 3, &found[0],
        &found[1], &found[2]) == 0;
    drop(&unread);
    outputs[0] = found[is_of_weight];
    found[is_of_weight] = NULL;
    for (int i = 0; i < 3; i++) drop(&found[i]);
    return is_found;
}

static const Tensor *bias_of(const Convolved *about, const Tensor *inputs)
{
    return about->bias < 0 ? NULL : &inputs[about->bias];
}

/* Images from `first` on in channels-last format; a tensor of as many is written again. */
static int copied(Tensor images, int64_t first, int64_t count, int64_t bytes, Tensor *copy)
{
    int64_t about[2 * MAX_RANK + 2], words = 0, *sizes;
    const void *from;
    void *to;
    if (!describe(images, about, &words)) return 0;
    const int64_t channels = about[3], height = about[4], width = about[5];
    const int64_t image = channels * height * width;
    if (*copy && (get_sizes(*copy, &sizes) || sizes[0] != count)) drop(copy);
    if (!*copy) {
        const int64_t shape[4] = {count, channels, height, width};
        const int64_t strides[4] = {image, 1, width * channels, channels};
        if (new_tensor(4, shape, strides, (int32_t)about[0], copy)) return 0;
    }
    if (get_const_data(images, &from) || get_data(*copy, &to)) return 0;
    opgen_transpose((const char *)from + first * image * bytes, to, count, channels,
                    height * width, bytes);
    return 1;
}

/* The way back, into images with a plane for each channel; 0 if what was found is no channels-last
   images of their size. */
static int put(Tensor found, Tensor result, int64_t first, int64_t count, int64_t bytes)
{
    int64_t own[2 * MAX_RANK + 2], wanted[2 * MAX_RANK + 2], words = 0, more = 0;
    const void *from;
    void *to;
    if (!describe(found, own, &words) || !describe(result, wanted, &more)) return 0;
    const int64_t channels = wanted[3], width = wanted[5], image = channels * wanted[4] * width;
    const int64_t strides[4] = {image, 1, width * channels, channels};
    wanted[2] = count;
    if (memcmp(own, wanted, 6 * sizeof *own)) return 0;
    for (int i = 0; i < 4; i++)
        if (own[2 + i] > 1 && own[6 + i] != strides[i]) return 0;
    if (get_const_data(found, &from) || get_data(result, &to)) return 0;
    opgen_transpose(from, (char *)to + first * image * bytes, count, image / channels, channels,
                    bytes);
    return 1;
}

/* The gradient of a weight from more images; the first ones bring the tensor. */
static int add(const int64_t *promised, Tensor *sum, Tensor *more, const Convolved *about)
{
    const void *terms;
    void *data;
    if (!is_as(promised, *more)) {
        Tensor made = NULL;
        const int64_t rank = promised[1], *sizes = promised + 2;
        if (rank != 4 || new_tensor(4, sizes, sizes + 4, (int32_t)promised[0], &made))
            return 0;
        const int is_put = put(*more, made, 0, sizes[0], about->bytes);
        drop(more);
        *more = made;
        if (!is_put) return 0;
    }
    if (!*sum) {
        *sum = *more;
        *more = NULL;
        return 1;
    }
    if (get_data(*sum, &data) || get_const_data(*more, &terms)) return 0;
    add_numbers(data, terms, about->elements);
    return 1;
}

static int by_pieces(const Entry *entry, const Tensor *inputs, Tensor *outputs)
{
    const Convolved *about = (const Convolved *)entry->integers;
    const int64_t *promised = entry->outputs, bytes = about->bytes;
    const int64_t *after = promised + 2 + 2 * promised[1], images = promised[2];
    const Tensor from = inputs[about->source];
    const Tensor image = about->image < 0 ? NULL : inputs[about->image];
    Tensor copies[2] = {NULL, NULL}, found[2] = {NULL, NULL}, sum = NULL;
    const Tensor weight = inputs[about->weight], *bias = bias_of(about, inputs);
    int64_t first = 0;
    if (new_tensor(4, promised + 2, promised + 6, (int32_t)promised[0], &outputs[0]))
        return 0;
    while (first < images) {
        const int64_t left = images - first, count = left < about->at_once ? left : about->at_once;
        if (!copied(from, first, count, bytes, &copies[0])
            || (image && !copied(image, first, count, bytes, &copies[1]))
            || !compute(about, copies[0], copies[1], weight, bias, found)
            || !put(found[0], outputs[0], first, count, bytes)
            || (image && !add(after, &sum, &found[1], about)))
            break;
        for (int i = 0; i < 2; i++) drop(&found[i]);
        first += count;
    }
    for (int i = 0; i < 2; i++) drop(&copies[i]), drop(&found[i]);
    if (first < images) {
        drop(&outputs[0]), drop(&sum);
        return 0;
    }
    if (image) outputs[1] = sum;
    return 1;
}

/* With every channel of the image several times; its gradient is the sum of those of the copies. */
static int by_repeats(const Entry *entry, const Tensor *inputs, Tensor *outputs)
{
    const Convolved *about = (const Convolved *)entry->integers;
    const int64_t count = about->repeats, *promised = entry->outputs;
    const Tensor from = inputs[about->source];
    const Tensor image = about->image < 0 ? NULL : inputs[about->image];
    int64_t known[2 * MAX_RANK + 2], words = 0;
    const void *data;
    void *place;
    Tensor copy = NULL, sum = NULL;
    if (!describe(image ? image : from, known, &words) || known[1] != 4) return 0;
    const int64_t batch = known[2], channels = known[3], height = known[4], width = known[5];
    const int64_t cells = batch * channels * height * width, row = width * channels * count;
    const int64_t shape[4] = {batch, channels * count, height, width};
    const int64_t strides[4] = {height * row, 1, row, channels * count};
    if (new_tensor(4, shape, strides, (int32_t)known[0], &copy)) return 0;
    int is_found = !get_const_data(image ? image : from, &data) && !get_data(copy, &place);
    if (is_found) repeat(data, place, cells, count, about->bytes, 0);
    is_found = is_found
        && compute(about, image ? from : copy, image ? copy : NULL, inputs[about->weight],
                   bias_of(about, inputs), outputs);
    drop(&copy);
    if (!is_found || !image) return is_found;
    /* What was found is summed if it lies as the copy did. */
    words = 0;
    is_found = describe(outputs[0], known, &words) && known[1] == 4
        && !memcmp(known + 2, shape, sizeof shape);
    for (int i = 0; i < 4 && is_found; i++)
        is_found = known[2 + i] <= 1 || known[6 + i] == strides[i];
    is_found = is_found
        && !new_tensor(4, promised + 2, promised + 6, (int32_t)promised[0], &sum)
        && !get_const_data(outputs[0], &data) && !get_data(sum, &place);
    if (is_found) repeat(data, place, cells, count, about->bytes, 1);
    if (is_found) drop(&outputs[0]), outputs[0] = sum;
    else drop(&sum), drop(&outputs[0]), drop(&outputs[1]);
    return is_found;
}

/* A convolution of tensors with other dims: copies of some of them, and of the result. */
static int by_moves(const Entry *entry, const Tensor *inputs, Tensor *outputs)
{
    const Convolved *about = (const Convolved *)entry->integers;
    const int64_t *next = about->geometry + 6 * about->spatial;
    const int64_t places[3] = {about->source, about->weight, about->bias};
    int64_t known[2 * MAX_RANK + 2], words = 0;
    Tensor made[3] = {NULL, NULL, NULL}, given[3] = {NULL, NULL, NULL}, found = NULL, moved = NULL;
    for (int i = 0; i < 3 && next; i++) {
        if (places[i] < 0) continue;
        next = rearranged(next, inputs[places[i]], about->bytes, &made[i]);
        given[i] = made[i] ? made[i] : inputs[places[i]];
    }
    int is_found = next
        && compute(about, given[0], NULL, given[1], given[2] ? &given[2] : NULL, &found);
    for (int i = 0; i < 3; i++) drop(&made[i]);
    if (!is_found) return 0;
    const int64_t *to_be = after_move(next);
    is_found = describe(found, known, &words) && words == 2 + 2 * *to_be
        && !memcmp(known + 1, to_be, (size_t)(words - 1) * sizeof *known)
        && rearranged(next, found, about->bytes, &moved);
    if (is_found && !moved) outputs[0] = found, found = NULL;
    if (is_found && moved) outputs[0] = moved, moved = NULL;
    drop(&found), drop(&moved);
    return is_found;
}

static int is_contiguous(Tensor tensor)
{
    int64_t known[2 * MAX_RANK + 2], words = 0, count = 1;
    if (!describe(tensor, known, &words)) return 0;
    const int64_t rank = known[1], *sizes = known + 2, *strides = sizes + rank;
    for (int64_t i = rank - 1; i >= 0; count *= sizes[i--])
        if (sizes[i] != 1 && strides[i] != count) return 0;
    return 1;
}

/* Both gradients, of a weight with other dims: a view of it, and of its gradient. */
static int by_views(const Entry *entry, const Tensor *inputs, Tensor *outputs)
{
    const Convolved *about = (const Convolved *)entry->integers;
    const int64_t *words = about->geometry + 6 * about->spatial;
    Tensor weight = NULL, gradient = NULL;
    words = viewed(words, inputs[about->weight], &weight);
    const int is_found = words
        && compute(about, inputs[about->source], inputs[about->image], weight, NULL, outputs);
    drop(&weight);
    if (!is_found) return 0;
    const int is_viewed = is_contiguous(outputs[1]) && viewed(words, outputs[1], &gradient);
    drop(&outputs[1]);
    outputs[1] = gradient;
    if (!is_viewed) drop(&outputs[0]);
    return is_viewed;
}

/* Apart, so that calls of kernels do not pay for its variables. */
__attribute__((noinline)) static int convolve(
    Entry *entry, const Tensor *inputs, Tensor *outputs, int64_t count)
{
    const Convolved *about = (const Convolved *)entry->integers;
    if (__atomic_load_n(&entry->refused, __ATOMIC_RELAXED)) return 0;
    if (about->checks_weight && !about->shows_weight
        && !is_finite(inputs[about->weight], about->held, about))
        return 0;
    if (about->source_numbers && !is_finite(inputs[about->source], about->source_numbers, about))
        return 0;
    const Tensor image = about->image < 0 ? NULL : inputs[about->image];
    const int is_found = about->tiles ? by_tiles(entry, inputs, outputs)
        : about->gradient ? one_gradient(entry, inputs, outputs)
        : about->at_once ? by_pieces(entry, inputs, outputs)
        : about->repeats > 1 ? by_repeats(entry, inputs, outputs)
        : about->is_moved ? (image ? by_views : by_moves)(entry, inputs, outputs)
        : compute(about, inputs[about->source], image, inputs[about->weight],
                  bias_of(about, inputs), outputs);
    int is_promised = is_found;
    const int64_t *expected = entry->outputs;
    for (int64_t i = 0; i < count && is_promised; expected += 2 + 2 * expected[1], i++)
        is_promised = is_as(expected, outputs[i]);
    if (is_found && !is_promised) __atomic_store_n(&entry->refused, 1, __ATOMIC_RELAXED);
    if (is_promised && are_unspoiled(entry, about, inputs, outputs)) return 1;
    for (int64_t i = 0; i < count && is_found; i++) drop(&outputs[i]);
    return 0;
}
"""


def source() -> str:
    """The text of `convolve`; before it stand the functions of LibTorch and of the table."""
    more = (lookup_images, lookup_repeats_source, lookup_moves_source)
    parts = {
        "CONVOLVED": _convolved(),
        "LOOPS": lookup_checks_source.LOOPS,
        "PLAIN_CODE": PLAIN_CODE,
        "CHECKS": lookup_checks_source.SOURCE,
    }
    own = _SOURCE
    for name, text in parts.items():
        own = own.replace(f"{name}\n", text)
    return "".join(each.source() for each in more) + own + AS_BEFORE


def _convolved() -> str:
    """The type of the integers in C."""
    listed = "".join(f"    int64_t {name};\n" for name in (*Convolved._fields, "geometry[]"))
    either = f"enum {{ OF_IMAGE = {OF_IMAGE}, OF_WEIGHT = {OF_WEIGHT} }};\n"
    return (
        "/* What these are is said in Python. */\n"
        f"{either}typedef struct {{\n{listed}}} Convolved;\n\n"
    )
