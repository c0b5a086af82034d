"""The C side of products of matrices of LibTorch, for `lookup_table`."""

from __future__ import annotations

from typing import NamedTuple

PRODUCT = -1
"""The first integer of such an entry: no convolution has a source there."""


class Multiplied(NamedTuple):
    """The integers of such an entry, in this order; places are -1 for what is absent.

    The moves of `lookup_moves` for left, right and bias follow, as far as they are there, and the
    one of what the library gives to the result; then the rank, the sizes and the strides of what
    the library gives.
    """

    kind: int
    left: int
    right: int
    bias: int
    bytes: int
    """How large a number is."""


_SOURCE = r"""
static int32_t (*mm_out)(Tensor, Tensor, Tensor);
static int32_t (*bmm_out)(Tensor, Tensor, Tensor);
static int32_t (*addmm_out)(Tensor, Tensor, Tensor, Tensor, double, double);
static int32_t (*baddbmm_out)(Tensor, Tensor, Tensor, Tensor, double, double);

void opgen_connect_products(void *const *functions)
{
    memcpy(&mm_out, functions + 0, sizeof(void *));
    memcpy(&bmm_out, functions + 1, sizeof(void *));
    memcpy(&addmm_out, functions + 2, sizeof(void *));
    memcpy(&baddbmm_out, functions + 3, sizeof(void *));
}

MULTIPLIED

static int32_t product(Tensor out, Tensor left, Tensor right, Tensor bias, int is_batched)
{
    if (!bias) return (is_batched ? bmm_out : mm_out)(out, left, right);
    return (is_batched ? baddbmm_out : addmm_out)(out, bias, left, right, 1.0, 1.0);
}

/* Apart, so that calls of kernels do not pay for its variables. */
__attribute__((noinline)) static int multiply(
    Entry *entry, const Tensor *inputs, Tensor *outputs)
{
    if (__atomic_load_n(&entry->refused, __ATOMIC_RELAXED)) return 0;
    const Multiplied *about = (const Multiplied *)entry->integers;
    const int64_t places[3] = {about->left, about->right, about->bias}, *next = about->moves;
    Tensor made[3] = {NULL, NULL, NULL}, given[3] = {NULL, NULL, NULL}, found = NULL, moved = NULL;
    for (int i = 0; i < 3 && next; i++) {
        if (places[i] < 0) continue;
        next = rearranged(next, inputs[places[i]], about->bytes, &made[i]);
        given[i] = made[i] ? made[i] : inputs[places[i]];
    }
    const int64_t *shape = next ? after_move(next) : NULL, rank = shape ? *shape++ : 0;
    const int is_found = next
        && !new_tensor(rank, shape, shape + rank, (int32_t)*entry->outputs, &found)
        && !product(found, given[0], given[1], given[2], rank == 3)
        && rearranged(next, found, about->bytes, &moved);
    for (int i = 0; i < 3; i++) drop(&made[i]);
    const int is_promised = is_found && is_as(entry->outputs, moved ? moved : found);
    if (is_found && !is_promised) __atomic_store_n(&entry->refused, 1, __ATOMIC_RELAXED);
    if (is_promised && !moved) outputs[0] = found, found = NULL;
    if (is_promised && moved) outputs[0] = moved, moved = NULL;
    drop(&found), drop(&moved);
    return is_promised;
}
"""


def source() -> str:
    """The text of `multiply`; before it stands that of `lookup_convolution_source`."""
    listed = "".join(f"    int64_t {name};\n" for name in (*Multiplied._fields, "moves[]"))
    about = f"/* What these are is said in Python. */\ntypedef struct {{\n{listed}}} Multiplied;"
    constants = f"enum {{ PRODUCT = {PRODUCT} }};\n"
    return constants + _SOURCE.replace("MULTIPLIED", about)
