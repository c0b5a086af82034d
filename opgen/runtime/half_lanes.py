"""C macros that convert vectors of 16-bit floating-point numbers.

GCC makes what `__builtin_convertvector` asks for of halves of a vector, or of single elements,
where the processor has one instruction for all: that is asked for by name.

To round to bfloat16 is to add 0x7fff to the bits, and 1 more where the last bit that stays is one,
which takes four instructions; to see to it that NaNs stay NaNs takes three more. Processors that
multiply bytes do it in three. One makes a known NaN of all of them, whose bits have room for what
is added. One puts that last bit between constant bytes, and one adds the products of these bytes
with others: 255 * 127 + 3 * 127 + 1 * 1 is 0x7fff, and the bit times 1 is what is missing. A vector
that is loaded, multiplied, rounded and stored takes 0.6 of the time so. (There is an instruction
that does nothing but round, and takes subnormal numbers for zeros. With others that look for these,
and a branch or a correction, it takes a fifth longer. Kernels that find out from what they load
that there are none use it: `opgen.emit.coarse`.)

These instructions have more constants, and results that come later. So they are for kernels that do
little else, as those of planes whose cells have few terms: transposed convolutions of 2 by 2 take
0.75 of the time, those with windows of 3 by 3 would take up to 1.3. Which NaN a NaN becomes depends
on the way it goes, as it does for PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_WHOLE: Final = "#if defined __AVX512F__ && !defined __clang__"
"""Where there are instructions for all lanes, and names for them."""

_TYPES: Final = (
    "typedef short half_lanes __attribute__((vector_size(32)));",
    "typedef int integer_lanes __attribute__((vector_size(64)));",
    "typedef float single_lanes __attribute__((vector_size(64)));",
)
_LOADED: Final = "(half_lanes)*(const T_lanes *)(place)"

_BF16_TO_LANES: Final = r"""
/* Rounds to nearest, ties to even; a NaN stays one. The number is the upper half of each word. */
FUNCTION word_lanes rounded_words(wide_lanes values)
{
    const float_lanes rounded = __builtin_convertvector(values, float_lanes);
    const word_lanes bits = (word_lanes)rounded, is_nan = (word_lanes)(rounded != rounded);
    return ((bits + 0x7fff + (bits >> 16 & 1)) & ~is_nan) | (0x7fc00000 & is_nan);
}
FUNCTION void lanes_to_T(T *place, wide_lanes values)
{
    *(T_lanes *)place = __builtin_convertvector(rounded_words(values) >> 16, T_lanes);
}
"""

_BF16_ALONE: Final = r"""
#if defined __AVX512VNNI__ && defined __AVX512BW__ && !defined __clang__ && __GNUC__ >= 12
#define AS_ROUNDED_NOW 4
#define FIRST_AND_SECOND_OR_THIRD 0xea
/* The last bit that stays, and what becomes of NaNs; those low bits of numbers do no harm. */
#define KEPT_OR_KNOWN 0x00010033
/* Rounds to nearest, ties to even; a NaN stays one. The number is the upper half of each word. */
FUNCTION word_lanes rounded_words_alone(wide_lanes values)
{
    const integer_lanes all = {0}, kept = all + KEPT_OR_KNOWN;
    const integer_lanes bits = (integer_lanes)__builtin_ia32_fixupimmps512_mask(
        values, values, kept, 0, -1, AS_ROUNDED_NOW);
    const integer_lanes bytes = __builtin_ia32_pternlogd512_mask(
        bits, kept, all + 0x010003ff, FIRST_AND_SECOND_OR_THIRD, -1);
    return (word_lanes)__builtin_ia32_vpdpbusd_v16si(bits, bytes, all + 0x01017f7f);
}
typedef uint16_t both_halves __attribute__((vector_size(64)));
#define upper_halves(words) __builtin_shufflevector((both_halves)(words), (both_halves)(words), \
    1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
FUNCTION void lanes_to_T_alone(T *place, wide_lanes values)
{
    *(T_lanes *)place = upper_halves(rounded_words_alone(values));
}
typedef uint16_t
    line_of_halves __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));
FUNCTION void two_to_T_alone(T *place, wide_lanes first, wide_lanes second)
{
    const both_halves a = (both_halves)rounded_words_alone(first);
    const both_halves b = (both_halves)rounded_words_alone(second);
    *(line_of_halves *)place = __builtin_shufflevector(a, b,
        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47,
        49, 51, 53, 55, 57, 59, 61, 63);
}
#else
#define rounded_words_alone(values) rounded_words(values)
#define lanes_to_T_alone(place, values) lanes_to_T(place, values)
#define two_to_T_alone(place, first, second) \
    (lanes_to_T(place, first), lanes_to_T((place) + LANES, second))
#endif
"""
"""The same in kernels that do little else."""

_BF16_AT_ONCE: Final = r"""
#if defined __AVX512BF16__ && defined upper_halves
#define ROUNDS_AT_ONCE 1
/* Twice what 2**-50 has for bits, as twice the bits of numbers less one are compared with: a zero
   then is the largest of all. */
#define LEAST_COARSE ((127 - 50) << 24)
#define magnitudes(values) ((word_lanes)(values) * 2 - 1)
#define least_words(a, b) ((word_lanes)__builtin_ia32_pminud512_mask( \
    (integer_lanes)(a), (integer_lanes)(b), (integer_lanes){0}, -1))
#define ARE_COARSE(words) (__builtin_ia32_ucmpd512_mask( \
    (integer_lanes)(words), (integer_lanes){0} + LEAST_COARSE, 1, -1) == 0)
#if __GNUC__ >= 13
#define ROUNDED_AT_ONCE(first, second) __builtin_ia32_cvtne2ps2bf16_v32bf(second, first)
#else
#define ROUNDED_AT_ONCE(first, second) __builtin_ia32_cvtne2ps2bf16_v32hi(second, first)
#endif
FUNCTION void two_to_T_at_once(T *place, wide_lanes first, wide_lanes second, int is_coarse)
{
    if (__builtin_expect(is_coarse, 1))
        *(line_of_halves *)place = (line_of_halves)ROUNDED_AT_ONCE(first, second);
    else
        two_to_T_alone(place, first, second);
}
#else
#define ROUNDS_AT_ONCE 0
#define ARE_COARSE(words) 0
#define two_to_T_at_once(place, first, second, is_coarse) two_to_T_alone(place, first, second)
#endif
#if defined upper_halves
FUNCTION void two_past_T(T *place, wide_lanes first, wide_lanes second, int is_coarse)
{
    line_of_halves both;
    two_to_T_at_once((T *)&both, first, second, is_coarse);
    STORE_LINE(place, both);
}
#else
#define two_past_T(place, first, second, is_coarse) \
    two_to_T_at_once(place, first, second, is_coarse)
#endif
#define lanes_past_T(place, values) lanes_to_T_alone(place, values)
"""
"""The same where it is known whether results may be subnormal."""

_BF16_PAIRS: Final = r"""
typedef uint32_t
    pair_lanes __attribute__((vector_size(LANES * 4), aligned(sizeof(T)), may_alias));
#define first_of_pair(place) ((wide_lanes)(*(const pair_lanes *)(place) << 16))
#define second_of_pair(place) ((wide_lanes)(*(const pair_lanes *)(place) & 0xffff0000))
FUNCTION void pair_to_T(T *place, wide_lanes first, wide_lanes second)
{
    const word_lanes upper = rounded_words(second) & 0xffff0000;
    *(pair_lanes *)place = rounded_words(first) >> 16 | upper;
}
#ifdef upper_halves
FUNCTION void pair_to_T_alone(T *place, wide_lanes first, wide_lanes second)
{
    const both_halves even = (both_halves)rounded_words_alone(first);
    const both_halves odd = (both_halves)rounded_words_alone(second);
    *(pair_lanes *)place = (pair_lanes)__builtin_shufflevector(even, odd,
        1, 33, 3, 35, 5, 37, 7, 39, 9, 41, 11, 43, 13, 45, 15, 47, 17, 49, 19, 51, 21, 53, 23, 55,
        25, 57, 27, 59, 29, 61, 31, 63);
}
#else
#define pair_to_T_alone(place, first, second) pair_to_T(place, first, second)
#endif
"""
"""Numbers with even places in one vector and those with odd ones in another: what is side by side
in memory is a word of 32 bits, of which either is one half. A line is loaded and stored whole, and
no number has to move to another lane."""

_BF16_PAIRS_AT_ONCE: Final = r"""
#if ROUNDS_AT_ONCE
FUNCTION void pair_to_T_at_once(T *place, wide_lanes first, wide_lanes second, int is_coarse)
{
    const both_halves halves = (both_halves)ROUNDED_AT_ONCE(first, second);
    if (__builtin_expect(is_coarse, 1))
        *(pair_lanes *)place = (pair_lanes)__builtin_shufflevector(halves, halves,
            0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27,
            12, 28, 13, 29, 14, 30, 15, 31);
    else
        pair_to_T_alone(place, first, second);
}
#else
#define pair_to_T_at_once(place, first, second, is_coarse) pair_to_T_alone(place, first, second)
#endif
"""

_F16_PAIRS: Final = r"""
#define first_of_pair(place) lanes_from_T(place)
#define second_of_pair(place) lanes_from_T((place) + LANES)
FUNCTION void pair_to_T(T *place, wide_lanes first, wide_lanes second)
{
    lanes_to_T(place, first);
    lanes_to_T(place + LANES, second);
}
#define pair_to_T_alone(place, first, second) pair_to_T(place, first, second)
#define pair_to_T_at_once(place, first, second, is_coarse) pair_to_T(place, first, second)
"""

_PAIRS_PAST: Final = r"""
/* The same, past the caches if it is to be. */
typedef uint32_t pair_line __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));
FUNCTION void pair_to_or_past_T(
    T *place, wide_lanes first, wide_lanes second, int is_coarse, int is_past)
{
    pair_line both;
    pair_to_T_at_once((T *)&both, first, second, is_coarse);
    if (is_past) STORE_LINE(place, both);
    else *(pair_line *)place = both;
}
"""

_PAIRS_OR_ONE: Final = (
    "#define first_of_pair_or_one(place, step) \\",
    "    ((step) == 1 ? first_of_pair(place) : same_lanes(from_T(*(place))))",
    "#define second_of_pair_or_one(place, step) \\",
    "    ((step) == 1 ? second_of_pair(place) : same_lanes(from_T(*(place))))",
)


def bf16_lanes(wide: str) -> Iterator[str]:
    """`lanes_from_T` and `lanes_to_T` where T is bfloat16 and vectors are of `wide`."""
    yield "typedef uint32_t word_lanes __attribute__((vector_size(LANES * 4)));"
    yield "typedef float float_lanes __attribute__((vector_size(LANES * 4)));"
    plain = "#define words_from_T(place) "
    plain += "__builtin_convertvector(*(const T_lanes *)(place), word_lanes)"
    if wide == "f32":
        yield _WHOLE
        yield from _TYPES
        yield "#define words_from_T(place) \\"
        yield "    ((word_lanes)__builtin_ia32_pmovzxwd512_mask( \\"
        yield f"        {_LOADED}, (integer_lanes){{0}}, -1))"
        yield "#else"
        yield plain
        yield "#endif"
    else:
        yield plain
    yield "#define lanes_from_T(place) lanes_of((float_lanes)(words_from_T(place) << 16))"
    yield from _BF16_TO_LANES.strip().split("\n")
    if wide == "f32":
        yield from _BF16_ALONE.strip().split("\n")
        yield from _BF16_AT_ONCE.strip().split("\n")
        yield from _pairs(_BF16_PAIRS + _BF16_PAIRS_AT_ONCE.lstrip())


def f16_lanes(wide: str) -> Iterator[str]:
    """The same where T is float16."""
    plain = (
        "#define lanes_from_T(place) lanes_of(*(const T_lanes *)(place))",
        "#define lanes_to_T(place, values) \\",
        "    (*(T_lanes *)(place) = __builtin_convertvector(values, T_lanes))",
    )
    if wide != "f32":
        yield from plain
        return
    yield _WHOLE
    yield from _TYPES
    yield "#define AS_ROUNDED_NOW 4"
    yield "#define lanes_from_T(place) \\"
    yield "    ((wide_lanes)__builtin_ia32_vcvtph2ps512_mask( \\"
    yield f"        {_LOADED}, (single_lanes){{0}}, -1, AS_ROUNDED_NOW))"
    yield "#define lanes_to_T(place, values) \\"
    yield "    (*(T_lanes *)(place) = (T_lanes)__builtin_ia32_vcvtps2ph512_mask( \\"
    yield "        (single_lanes)(values), AS_ROUNDED_NOW, (half_lanes){0}, -1))"
    yield "#else"
    yield from plain
    yield "#endif"
    yield from _pairs(_F16_PAIRS)


_BF16_TWO: Final = r"""
typedef word_lanes two_lanes;
typedef uint32_t few_words __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
#define two_lanes_from_T(a, b) __builtin_shufflevector( \
    *(const few_words *)(a), *(const few_words *)(b), \
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define even_of_two(two) ((wide_lanes)((two) << 16))
#define odd_of_two(two) ((wide_lanes)((two) & 0xffff0000))
"""

_ANY_TWO: Final = r"""
struct two_vectors { wide_lanes low, high; };
typedef struct two_vectors two_lanes;
#define two_lanes_from_T(a, b) ((two_lanes){lanes_from_T(a), lanes_from_T(b)})
#define even_of_two(two) SHUFFLE((two).low, (two).high, \
    0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define odd_of_two(two) SHUFFLE((two).low, (two).high, \
    1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
"""


def two_lanes(shared: str) -> Iterator[str]:
    """Every second element of two vectors, those with even and those with odd places.

    As `_pairs`, but for vectors that need not lie one behind the other, and have all elements of
    the first one in the first half of their lanes.
    """
    yield from (_BF16_TWO if shared == "bf16" else _ANY_TWO).strip().split("\n")


def _pairs(functions: str) -> Iterator[str]:
    """Two vectors from, and to, twice as many elements as a vector has lanes."""
    yield "#if PAIRED_LANES"
    yield from functions.strip().split("\n")
    yield from _PAIRS_PAST.strip().split("\n")
    yield from _PAIRS_OR_ONE
    yield "#endif"
