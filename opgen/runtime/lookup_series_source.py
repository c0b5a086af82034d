"""The C side of calls that are several others, one after the other, for `lookup_table`."""

from __future__ import annotations

SERIES = -3
"""The first integer of such an entry, see `lookup_product_source.PRODUCT`.

Then come the numbers of inputs, of all tensors and of steps. For each step follow the address of
its entry, and four lists, each behind its length: tensors that it reads, those that it makes, the
floats of the call that are its own, and the tensors that nobody reads after it. At last which
tensors are the outputs.
"""

MAX_HELD = 64
"""How many tensors such a call may have in all."""

_SOURCE = r"""
static int serve(Entry *, Tensor *, Tensor *, int64_t, const double *);

/* Apart, so that calls of kernels do not pay for its variables. */
__attribute__((noinline)) static int run_series(
    const Entry *entry, const Tensor *inputs, Tensor *outputs, int64_t count,
    const double *numbers)
{
    const int64_t given = entry->integers[1], all = entry->integers[2], *next = entry->integers + 4;
    Tensor held[MAX_HELD], from[MAX_TENSORS], made[MAX_TENSORS];
    double floats[MAX_NUMBERS];
    int is_done = 1;
    for (int64_t i = 0; i < all; i++) held[i] = i < given ? inputs[i] : NULL;
    for (int64_t step = 0; step < entry->integers[3] && is_done; step++) {
        const int64_t *sources = next + 1, *results = sources + 1 + *sources;
        const int64_t *places = results + 1 + *results, *spent = places + 1 + *places;
        Entry *own;
        memcpy(&own, next, sizeof own);
        for (int64_t i = 0; i < *sources; i++) from[i] = held[sources[1 + i]];
        for (int64_t i = 0; i < *places; i++) floats[i] = numbers[places[1 + i]];
        is_done = serve(own, from, made, *results, floats);
        for (int64_t i = 0; i < *results && is_done; i++) {
            drop(&held[results[1 + i]]); /* what an earlier step made under that name */
            held[results[1 + i]] = made[i];
        }
        for (int64_t i = 0; i < *spent; i++) drop(&held[spent[1 + i]]);
        next = spent + 1 + *spent;
    }
    for (int64_t i = 0; i < count && is_done; i++) {
        outputs[i] = held[next[i]];
        held[next[i]] = NULL;
    }
    for (int64_t i = given; i < all; i++) drop(&held[i]);
    return is_done;
}
"""


def source() -> str:
    """The text of `run_series`; before it stands that of `lookup_convolution_source`."""
    return f"enum {{ SERIES = {SERIES}, MAX_HELD = {MAX_HELD} }};\n{_SOURCE}"
