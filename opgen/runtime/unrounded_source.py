"""C functions for tensors of float32 in a call that computes with bfloat16.

Under autocast a cast stands before an op: a pass over memory of its own, and a new tensor. Kernels
that read what is not rounded yet, and round what they load, need neither; a gradient is likewise
rounded and stored in the type that is wanted. Every number is the one that the casts give.

The instruction that rounds takes subnormal numbers for zeros: vectors that have some go the long
way, as all do where there is no such instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opgen.runtime.lanes_source import columns

_NUMBERS: Final = r"""
typedef float unrounded;

/* Rounds to nearest, ties to even; a NaN stays one. */
FUNCTION float rounded(float value)
{
    union { float value; uint32_t bits; } number;
    number.value = value;
    const uint32_t upper = (number.bits + 0x7fff + (number.bits >> 16 & 1)) & 0xffff0000;
    number.bits = value != value ? 0x7fc00000 : upper;
    return number.value;
}
#define from_unrounded(cell) ((real)rounded(cell))
#define to_unrounded(value) rounded((float)(value))
FUNCTION wide_lanes rounded_lanes(wide_lanes values)
{
    const word_lanes bits = (word_lanes)values, is_nan = (word_lanes)(values != values);
    const word_lanes upper = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    return (wide_lanes)((upper & ~is_nan) | (0x7fc00000 & is_nan));
}
"""

_LANES: Final = r"""
#define rounded_lanes_alone(values) ((wide_lanes)(rounded_words_alone(values) & 0xffff0000))
#define lanes_from_unrounded_alone(place) rounded_lanes_alone(*(const wide_lanes *)(place))
#define lanes_past_unrounded(place, values) STORE_LINE(place, rounded_lanes_alone(values))
#define lanes_to_unrounded_alone(place, values) \
    (*(wide_lanes *)(place) = rounded_lanes_alone(values))
#define lanes_from_unrounded(place) rounded_lanes(*(const wide_lanes *)(place))
#define lanes_to_unrounded(place, values) (*(wide_lanes *)(place) = rounded_lanes(values))
FUNCTION wide_lanes lanes_apart_unrounded(const unrounded *place, int64_t step)
{
    wide_lanes out;
    for (int lane = 0; lane < LANES; lane++) out[lane] = from_unrounded(place[lane * step]);
    return out;
}
#define lanes_or_one_unrounded(place, step) \
    ((step) == 1 ? lanes_from_unrounded(place) : same_lanes(from_unrounded(*(place))))
FUNCTION wide_lanes lanes_within_unrounded(const unrounded *place, int first, int last)
{
#if defined __AVX512BW__ && defined __AVX512VL__ && !defined __clang__
    return rounded_lanes((wide_lanes)__builtin_ia32_loadups512_mask(
        place, (float_lanes){0}, LANE_MASK));
#else
    return lanes_from_unrounded(place);
#endif
}
FUNCTION void lanes_to_unrounded_within(unrounded *place, wide_lanes values, int first, int last)
{
#if defined __AVX512BW__ && defined __AVX512VL__ && !defined __clang__
    __builtin_ia32_storeups512_mask(place, (float_lanes)rounded_lanes(values), LANE_MASK);
#else
    lanes_to_unrounded(place, values);
#endif
}
FUNCTION wide_lanes every_second_unrounded(const unrounded *place)
{
    return lanes_apart_unrounded(place, 2);
}
FUNCTION wide_lanes every_second_within_unrounded(const unrounded *place, int first, int last)
{
    wide_lanes out = {0};
    for (int lane = first; lane <= last; lane++) out[lane] = from_unrounded(place[2 * lane]);
    return out;
}
FUNCTION wide_lanes each_twice_unrounded(const unrounded *place)
{
    wide_lanes out;
    for (int lane = 0; lane < LANES; lane++) out[lane] = from_unrounded(place[lane / 2]);
    return out;
}
FUNCTION wide_lanes each_twice_within_unrounded(const unrounded *place, int first, int last)
{
    return EACH_TWICE(lanes_within_unrounded(place, first / 2, last / 2));
}
"""

_PAIRS: Final = r"""
/* As pairs of bfloat16 in the same call: even places in the first one, odd ones in the second. */
#define EVEN_LANES(place) \
    SHUFFLE(*(const wide_lanes *)(place), *(const wide_lanes *)((place) + LANES), \
        0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODD_LANES(place) \
    SHUFFLE(*(const wide_lanes *)(place), *(const wide_lanes *)((place) + LANES), \
        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#define first_of_pair_unrounded(place) rounded_lanes(EVEN_LANES(place))
#define second_of_pair_unrounded(place) rounded_lanes(ODD_LANES(place))
#define first_of_pair_unrounded_alone(place) rounded_lanes_alone(EVEN_LANES(place))
#define second_of_pair_unrounded_alone(place) rounded_lanes_alone(ODD_LANES(place))
#define first_of_pair_or_one_unrounded(place, step) \
    ((step) == 1 ? first_of_pair_unrounded(place) : same_lanes(from_unrounded(*(place))))
#define second_of_pair_or_one_unrounded(place, step) \
    ((step) == 1 ? second_of_pair_unrounded(place) : same_lanes(from_unrounded(*(place))))
#if ROUNDS_AT_ONCE
/* The same for both; whether they are coarse, which those are that round to what is. */
FUNCTION int pair_if_coarse(const unrounded *place, wide_lanes *first, wide_lanes *second)
{
    const wide_lanes a = *(const wide_lanes *)place, b = *(const wide_lanes *)(place + LANES);
    const int are_coarse = ARE_COARSE(least_words(magnitudes(a), magnitudes(b)));
    if (__builtin_expect(are_coarse, 1)) {
        const word_lanes words = (word_lanes)ROUNDED_AT_ONCE(a, b);
        *first = (wide_lanes)(words << 16), *second = (wide_lanes)(words & 0xffff0000);
    } else {
        *first = first_of_pair_unrounded_alone(place);
        *second = second_of_pair_unrounded_alone(place);
    }
    return are_coarse;
}
#else
#define pair_if_coarse(place, first, second) (*(first) = first_of_pair_unrounded_alone(place), \
    *(second) = second_of_pair_unrounded_alone(place), 0)
#endif
FUNCTION void lanes_in_turn(unrounded *place, wide_lanes even, wide_lanes odd)
{
    *(wide_lanes *)place = SHUFFLE(even, odd,
        0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *(wide_lanes *)(place + LANES) = SHUFFLE(even, odd,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#define pair_to_unrounded(place, first, second) \
    lanes_in_turn(place, rounded_lanes(first), rounded_lanes(second))
#define pair_to_unrounded_alone(place, first, second) \
    lanes_in_turn(place, rounded_lanes_alone(first), rounded_lanes_alone(second))
FUNCTION void pair_past_unrounded(unrounded *place, wide_lanes first, wide_lanes second)
{
    wide_lanes both[2];
    lanes_in_turn((unrounded *)both, rounded_lanes_alone(first), rounded_lanes_alone(second));
    STORE_LINE(place, both[0]);
    STORE_LINE(place + LANES, both[1]);
}
"""

_STORED: Final = r"""
/* As many elements as `stored_lanes` holds, of the type of the call. */
FUNCTION stored_lanes stored_from_unrounded(const unrounded *place)
{
    const wide_lanes values = *(const wide_lanes *)place;
#if defined __AVX512BF16__ && !defined __clang__
    typedef int words __attribute__((vector_size(64)));
    const words bits = (words)values, exponent = (words){0} + 0x7f800000;
    const words mantissa = (words){0} + 0x007fffff;
    const uint16_t is_small = __builtin_ia32_ptestnmd512(bits, exponent, -1);
    if (__builtin_expect(!__builtin_ia32_ptestmd512(bits, mantissa, is_small), 1))
        return (stored_lanes)__builtin_ia32_cvtneps2bf16_v16sf(values);
#endif
    const word_lanes upper = (word_lanes)rounded_lanes(values) >> 16;
    return __builtin_convertvector(upper, stored_lanes);
}
#define unrounded_from_stored(place, values) (*(wide_lanes *)(place) \
    = (wide_lanes)(__builtin_convertvector(values, word_lanes) << 16))
"""


def unrounded() -> str:
    """The functions, to stand behind the bindings of a call whose T is bfloat16, wide float32."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "#ifdef LANE_BYTES"
    for part in (_NUMBERS, _LANES):
        yield from part.strip().split("\n")
    yield from columns("unrounded", "_unrounded")
    yield "#if PAIRED_LANES"
    yield from _PAIRS.strip().split("\n")
    yield "#endif"
    yield from _STORED.strip().split("\n")
    yield "#endif"
