"""C macros that convert vectors of 16-bit floating-point numbers.

GCC makes what `__builtin_convertvector` asks for of halves of a vector, or of single elements,
where the processor has one instruction for all: that is asked for by name.
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
/* Rounds to nearest, ties to even; a NaN stays one. */
FUNCTION void lanes_to_T(T *place, wide_lanes values)
{
    const float_lanes rounded = __builtin_convertvector(values, float_lanes);
    const word_lanes bits = (word_lanes)rounded, is_nan = (word_lanes)(rounded != rounded);
    const word_lanes upper = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    *(T_lanes *)place = __builtin_convertvector((upper & ~is_nan) | (0x7fc0 & is_nan), T_lanes);
}
"""


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
