"""The C side of what is looked at around convolutions of LibTorch: whether numbers are finite.

Where places of a result have terms of all the numbers of a tensor (`convolution_witness`), it is
enough to look at these places afterwards. If they are not finite, the weight is looked at as a
whole, since sums may have overflowed. Not so its gradient, of which these places are a part.
"""

from __future__ import annotations

LOOPS = r"""
/* Numbers to be looked at, some at a time as threads become free. Between two layers a filter lies
   in no near cache: two threads fetch it in half the time, and lines that are asked for ahead come
   in two thirds of it. */
enum { LOOKED_AT = 65536, FEW_NUMBERS = 262144, LINE = 64, LINES_AHEAD = 128, LINES = 16 };
typedef struct {
    const char *data;
    int64_t size, bytes, exponent, next;
    int found;
} Numbers;

/* Whether one of them is not finite. */
#define FIND(TYPE) \
    static int TYPE##_found(const char *data, int64_t size, TYPE mask) \
    { \
        int found = 0; \
        for (int64_t at = 0; at < size; at += LINES * LINE) { \
            const TYPE *bits = (const TYPE *)(data + at); \
            const int64_t left = size - at, here = left < LINES * LINE ? left : LINES * LINE; \
            for (int64_t line = 0; line < LINES; line++) \
                __builtin_prefetch(data + at + (LINES_AHEAD + line) * LINE); \
            for (int64_t i = 0; i < here / (int64_t)sizeof(TYPE); i++) \
                found |= (bits[i] & mask) == mask; \
        } \
        return found; \
    }
FIND(uint16_t)
FIND(uint32_t)
"""
"""The loops over numbers; before them stands `Convolved`."""

SOURCE = r"""
static void look_at_numbers(void *data)
{
    Numbers *all = data;
    for (;;) {
        const int64_t at = __atomic_fetch_add(&all->next, LOOKED_AT, __ATOMIC_RELAXED);
        const int64_t left = all->size - at, size = left < LOOKED_AT ? left : LOOKED_AT;
        if (size <= 0) return;
        if (all->bytes == 4 ? uint32_t_found(all->data + at, size, (uint32_t)all->exponent)
                            : uint16_t_found(all->data + at, size, (uint16_t)all->exponent))
            __atomic_store_n(&all->found, 1, __ATOMIC_RELAXED);
    }
}

static int is_finite(Tensor tensor, int64_t count, const Convolved *about)
{
    const void *data;
    if (get_const_data(tensor, &data)) return 0;
    Numbers all = {data, count * about->bytes, about->bytes, about->exponent, 0, 0};
    take_all(look_at_numbers, &all, all.size <= FEW_NUMBERS);
    return !all.found;
}

/* Whether a tensor that is as promised is finite at a pixel, or a tap, for all indices of its first
   or second dim; with the second one, for one index of the first. */
static int is_finite_at(
    const int64_t *expected, Tensor tensor, const int64_t *place, int64_t dim, int64_t index,
    const Convolved *about)
{
    const int64_t *sizes = expected + 2, *strides = sizes + expected[1];
    const void *data;
    if (get_const_data(tensor, &data)) return 0;
    const char *start = (const char *)data + index * strides[0] * about->bytes;
    for (int64_t i = 0; i < about->spatial; i++)
        start += place[i] * strides[2 + i] * about->bytes;
    int found = 0;
    for (int64_t i = 0; i < sizes[dim]; i++) {
        const char *at = start + i * strides[dim] * about->bytes;
        const uint32_t bits = about->bytes == 4 ? *(const uint32_t *)at : *(const uint16_t *)at;
        found |= (bits & about->exponent) == about->exponent;
    }
    return !found;
}

/* Whether the gradient of a weight is finite at a tap: for each channel of the result with the
   first of the image in its group, and for each of the image with the first of the result. */
static int is_finite_at_tap(
    const int64_t *expected, Tensor gradient, const int64_t *tap, const Convolved *about)
{
    const int64_t results = expected[2];
    int is_so = is_finite_at(expected, gradient, tap, 0, 0, about);
    for (int64_t first = 0; first < results && is_so; first += results / about->groups)
        is_so = is_finite_at(expected, gradient, tap, 1, first, about);
    return is_so;
}

/* Whether nothing that is not finite met a zero of the padding, as results that are as promised
   show, or all numbers of the weight and of its gradient. */
static int are_unspoiled(
    const Entry *entry, const Convolved *about, const Tensor *inputs, const Tensor *outputs)
{
    const int64_t *pixel = about->geometry + 4 * about->spatial, *tap = pixel + about->spatial;
    const int is_alone = about->gradient == OF_WEIGHT;
    const int64_t *promised = entry->outputs, *after = promised + 2 + 2 * promised[1];
    if (about->checks_weight && about->shows_weight
        && !is_finite_at(promised, outputs[0], pixel, 1, 0, about)
        && !is_finite(inputs[about->weight], about->held, about))
        return 0;
    if (!about->checks_gradient) return 1;
    const Tensor gradient = outputs[is_alone ? 0 : 1];
    return about->shows_images ? is_finite_at_tap(is_alone ? promised : after, gradient, tap, about)
                               : is_finite(gradient, about->elements, about);
}
"""
"""The rest, which has none that are long."""
