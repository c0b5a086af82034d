"""C functions for vectors that choose: extremes, where they are, and what is added where an integer
is a number.

A term takes the place of the best one so far if it is greater, or less, or NaN; but what comes
behind NaN takes no place. So there are the lanes beside them that had no NaN yet. An instruction of
AVX-512 compares for "not less or equal" in these lanes, another one chooses, and the lanes are
found beside that: what one term waits for of the one before it are two instructions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MASKS: Final = {
    "f32": ("short", "float", "int", "cmpps512", "movaps512", "movdqa32_512"),
    "f64": ("char", "double", "long long", "cmppd512", "movapd512", "movdqa64_512"),
}
"""The types of GCC for vectors of a type, and for the lanes of one; the names of instructions."""


def chosen_lanes(wide: str) -> Iterable[str]:
    """The functions for vectors of `wide`."""
    yield "#define IS_ONE(step) (__builtin_constant_p(step) && (step) == 1)"
    yield f"typedef {'int32_t' if wide == 'f32' else 'int64_t'} lane_number;"
    yield "#define IS_LANE_NUMBER(number) ((lane_number)(number) == (int64_t)(number))"
    if wide in _MASKS:
        yield "#if defined __AVX512F__ && !defined __clang__"
        yield from _with_masks(*_MASKS[wide])
        yield "#else"
    yield from _lines(_OF_VECTORS)
    if wide in _MASKS:
        yield "#endif"
    yield from _lines(_JOINED)
    yield from _turns(16 if wide == "f32" else 8)


def _turns(lanes: int) -> Iterable[str]:
    """A function that stores the lanes of two vectors by turns, those from `first` to `last`."""
    both = [place for lane in range(lanes) for place in (lane, lanes + lane)]
    low, high = (", ".join(map(str, each)) for each in (both[:lanes], both[lanes:]))
    yield "FUNCTION void turns_to_T(T *place, wide_lanes even, wide_lanes odd, int first, int last)"
    yield "{"
    yield "    const int begin = 2 * first, end = 2 * last + 1;"
    yield "    if (begin < LANES)"
    yield f"        lanes_to_T_within(place, SHUFFLE(even, odd, {low}),"
    yield "            begin, end < LANES ? end : LANES - 1);"
    yield "    if (end >= LANES)"
    yield f"        lanes_to_T_within(place + LANES, SHUFFLE(even, odd, {high}),"
    yield "            begin < LANES ? 0 : begin - LANES, end - LANES);"
    yield "}"


def _with_masks(
    mask: str, number: str, integer: str, compare: str, choose: str, choose_integers: str
) -> Iterable[str]:
    vector = "__attribute__((vector_size(LANE_BYTES)))"
    yield f"typedef {mask} lane_choice;"
    yield f"typedef {number} number_lanes {vector};"
    yield f"typedef {integer} choice_lanes {vector};"
    yield f"#define COMPARE_LANES __builtin_ia32_{compare}_mask"
    yield f"#define CHOOSE_LANES __builtin_ia32_{choose}_mask"
    yield f"#define CHOOSE_NUMBERS __builtin_ia32_{choose_integers}_mask"
    yield from _lines(_OF_MASKS)


def _lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")


_OF_MASKS: Final = r"""
#define ALL_KNOWN -1
enum { UNORDERED = 3, ORDERED = 7, NOT_LESS_OR_EQUAL = 22, NOT_GREATER_OR_EQUAL = 25 };
FUNCTION lane_choice still_known(wide_lanes term, lane_choice known)
{
    return COMPARE_LANES(term, term, ORDERED, known, 4);
}
FUNCTION lane_choice is_greater(wide_lanes term, wide_lanes best, lane_choice known)
{
    return COMPARE_LANES(term, best, NOT_LESS_OR_EQUAL, known, 4);
}
FUNCTION lane_choice is_less(wide_lanes term, wide_lanes best, lane_choice known)
{
    return COMPARE_LANES(term, best, NOT_GREATER_OR_EQUAL, known, 4);
}
FUNCTION wide_lanes chosen_lanes(lane_choice better, wide_lanes term, wide_lanes best)
{
    return (wide_lanes)CHOOSE_LANES((number_lanes)term, (number_lanes)best, better);
}
FUNCTION lane_numbers chosen_numbers(lane_choice better, lane_numbers number, lane_numbers best)
{
    return (lane_numbers)CHOOSE_NUMBERS((choice_lanes)number, (choice_lanes)best, better);
}
/* What follows loads and stores nothing outside of the lanes from `first` to `last`. */
#define FROM_TO(first, last) ((2u << (last)) - (1u << (first)))
#define NONE_FOUND 0
FUNCTION lane_choice known_within(wide_lanes best, int first, int last)
{
    return still_known(best, FROM_TO(first, last));
}
typedef long long place_lanes __attribute__((vector_size(64), aligned(8), may_alias));
FUNCTION unsigned are_equal(const int64_t *place, int64_t number, unsigned lanes)
{
    const place_lanes same = number - (place_lanes){0};
    unsigned chosen = 0;
    for (int half = 0; half < LANES / 8; half++) {
        const char in_half = lanes >> 8 * half;
        const place_lanes found = __builtin_ia32_loaddqudi512_mask(
            (const place_lanes *)(place + 8 * half), (place_lanes){0}, in_half);
        const uint8_t equal = __builtin_ia32_pcmpeqq512_mask(found, same, in_half);
        chosen |= (unsigned)equal << 8 * half;
    }
    return chosen;
}
#if defined __AVX512BW__ && defined __AVX512VL__
typedef short narrow_lanes __attribute__((vector_size(32), aligned(2), may_alias));
FUNCTION unsigned are_equal_narrow(const int16_t *place, int64_t number, unsigned lanes)
{
    if (number != (short)number) return 0;
    const uint16_t in_all = lanes & FROM_TO(0, LANES - 1);
    const narrow_lanes found = __builtin_ia32_loaddquhi256_mask(
        (const narrow_lanes *)place, (narrow_lanes){0}, in_all);
    return (uint16_t)__builtin_ia32_pcmpeqw256_mask(
        found, (short)number - (narrow_lanes){0}, in_all);
}
#else
FUNCTION unsigned are_equal_narrow(const int16_t *place, int64_t number, unsigned lanes)
{
    unsigned chosen = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (lanes >> lane & 1) chosen |= (unsigned)(place[lane] == number) << lane;
    return chosen;
}
#endif
#define LANES_WHERE(name, element, are_same) \
    FUNCTION wide_lanes name##_within( \
        const element *place, int64_t number, wide_lanes values, int first, int last) \
    { \
        const lane_choice chosen = are_same(place, number, FROM_TO(first, last)); \
        return chosen_lanes(chosen, values, (wide_lanes){0}); \
    } \
    FUNCTION wide_lanes name(const element *place, int64_t number, wide_lanes values) \
    { \
        return name##_within(place, number, values, 0, LANES - 1); \
    }
LANES_WHERE(lanes_where, int64_t, are_equal)
LANES_WHERE(lanes_where_narrow, int16_t, are_equal_narrow)
/* Terms that join arrays: the best ones, whether there are any, and their positions, which are
   `step` apart. What is loaded again soon is stored whole: it would wait for what is in parts. */
#define JOIN_ARRAYS(name, is_better) \
    FUNCTION void name(wide_lanes term, int64_t *total, wide *best, int64_t *found, \
        int64_t position, int64_t step, int first, int last) \
    { \
        const unsigned lanes = FROM_TO(first, last); \
        const wide_lanes before = lanes_from_wide(best); \
        const unsigned is_new = are_equal(found, 0, lanes); \
        const unsigned better = is_better(term, before, still_known(before, lanes)); \
        const unsigned joined = is_new | (better & lanes); \
        const place_lanes apart = {0, 1, 2, 3, 4, 5, 6, 7}; \
        lanes_to_wide(best, chosen_lanes(joined, term, before)); \
        for (int half = 0; half < LANES / 8; half++) { \
            const char in_half = joined >> 8 * half; \
            place_lanes *const at = (place_lanes *)(total + 8 * half); \
            __builtin_ia32_storedqudi512_mask( \
                at, position + step * (8 * half + apart), in_half); \
            place_lanes *const any = (place_lanes *)(found + 8 * half); \
            *any = __builtin_ia32_movdqa64_512_mask(1 - (place_lanes){0}, *any, in_half); \
        } \
    }
JOIN_ARRAYS(greatest_in_arrays, is_greater)
JOIN_ARRAYS(least_in_arrays, is_less)
FUNCTION lane_choice are_nan(wide_lanes term, lane_choice lanes)
{
    return COMPARE_LANES(term, term, UNORDERED, lanes, 4);
}
/* Terms of some lanes only, and beside a position the lanes that have had one. */
#define JOIN_WITHIN(name, is_better) \
    FUNCTION wide_lanes name##_within(wide_lanes term, wide_lanes best, lane_choice *known, \
        int first, int last) \
    { \
        const lane_choice all = FROM_TO(first, last); \
        const lane_choice better = is_better(term, best, *known & all); \
        *known &= ~are_nan(term, all); \
        return chosen_lanes(better, term, best); \
    } \
    FUNCTION wide_lanes name##_at_within(wide_lanes term, wide_lanes best, lane_choice *known, \
        lane_number number, lane_numbers *numbers, lane_choice *found, int first, int last) \
    { \
        const lane_choice all = FROM_TO(first, last); \
        const lane_choice better = is_better(term, best, *known & all) | (all & ~*found); \
        *known &= ~are_nan(term, all); \
        *found |= all; \
        *numbers = chosen_numbers(better, number - (lane_numbers){0}, *numbers); \
        return chosen_lanes(better, term, best); \
    }
JOIN_WITHIN(greatest_lanes, is_greater)
JOIN_WITHIN(least_lanes, is_less)
/* Positions as by `positions_to`, and -1 in lanes that had no term. */
FUNCTION void found_positions_to_narrow(int16_t *place, lane_numbers numbers, lane_choice found,
    int64_t origin, int64_t step, int first, int last)
{
    for (int lane = first; lane <= last; lane++)
        place[lane] = found >> lane & 1 ? origin + lane * step + numbers[lane] : -1;
}
typedef lane_number half_numbers __attribute__((vector_size(8 * sizeof(lane_number))));
FUNCTION void found_positions_to(int64_t *place, lane_numbers numbers, lane_choice found,
    int64_t origin, int64_t step, int first, int last)
{
    const unsigned lanes = FROM_TO(first, last);
    const place_lanes apart = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int half = 0; half < LANES / 8; half++) {
        const char in_half = lanes >> 8 * half, found_in_half = found >> 8 * half;
        half_numbers given;
        memcpy(&given, (const char *)&numbers + half * sizeof given, sizeof given);
        const place_lanes all = origin + step * (8 * half + apart)
            + __builtin_convertvector(given, place_lanes);
        __builtin_ia32_storedqudi512_mask((place_lanes *)(place + 8 * half),
            __builtin_ia32_movdqa64_512_mask(all, -1 - (place_lanes){0}, found_in_half), in_half);
    }
}
"""

_OF_VECTORS: Final = r"""
typedef lane_numbers lane_choice;
#define ALL_KNOWN (-1 - (lane_numbers){0})
FUNCTION lane_choice still_known(wide_lanes term, lane_choice known)
{
    return known & (term == term);
}
FUNCTION lane_choice is_greater(wide_lanes term, wide_lanes best, lane_choice known)
{
    return known & ~(term <= best);
}
FUNCTION lane_choice is_less(wide_lanes term, wide_lanes best, lane_choice known)
{
    return known & ~(term >= best);
}
FUNCTION lane_numbers chosen_numbers(lane_choice better, lane_numbers number, lane_numbers best)
{
    return (number & better) | (best & ~better);
}
FUNCTION wide_lanes chosen_lanes(lane_choice better, wide_lanes term, wide_lanes best)
{
    return (wide_lanes)chosen_numbers(better, (lane_numbers)term, (lane_numbers)best);
}
#define LANES_WHERE(name, element) \
    FUNCTION wide_lanes name(const element *place, int64_t number, wide_lanes values) \
    { \
        lane_numbers chosen; \
        for (int lane = 0; lane < LANES; lane++) chosen[lane] = -(place[lane] == number); \
        return (wide_lanes)((lane_numbers)values & chosen); \
    }
LANES_WHERE(lanes_where, int64_t)
LANES_WHERE(lanes_where_narrow, int16_t)
/* Never called: passes over part of the lanes need masks. */
#define lanes_where_within(...) (__builtin_trap(), (wide_lanes){0})
#define lanes_where_narrow_within(...) (__builtin_trap(), (wide_lanes){0})
#define known_within(...) (__builtin_trap(), ALL_KNOWN)
#define greatest_in_arrays(...) __builtin_trap()
#define least_in_arrays(...) __builtin_trap()
#define NONE_FOUND ALL_KNOWN
#define greatest_lanes_within(...) (__builtin_trap(), (wide_lanes){0})
#define least_lanes_within(...) (__builtin_trap(), (wide_lanes){0})
#define greatest_lanes_at_within(...) (__builtin_trap(), (wide_lanes){0})
#define least_lanes_at_within(...) (__builtin_trap(), (wide_lanes){0})
#define found_positions_to(...) __builtin_trap()
#define found_positions_to_narrow(...) __builtin_trap()
"""

_JOINED: Final = r"""
#define JOIN_LANES(name, is_better) \
    FUNCTION wide_lanes name(wide_lanes term, wide_lanes best, lane_choice *known) \
    { \
        const lane_choice better = is_better(term, best, *known); \
        *known = still_known(term, *known); \
        return chosen_lanes(better, term, best); \
    } \
    FUNCTION wide_lanes name##_at(wide_lanes term, wide_lanes best, lane_choice *known, \
        lane_number number, lane_numbers *numbers) \
    { \
        const lane_choice better = is_better(term, best, *known); \
        *known = still_known(term, *known); \
        *numbers = chosen_numbers(better, number - (lane_numbers){0}, *numbers); \
        return chosen_lanes(better, term, best); \
    }
JOIN_LANES(greatest_lanes, is_greater)
JOIN_LANES(least_lanes, is_less)
/* The positions that numbers count from are `origin` in the first lane, and `step` apart. */
#define POSITIONS_TO(name, element) \
    FUNCTION void name##_within(element *place, lane_numbers numbers, int64_t origin, \
        int64_t step, int first, int last) \
    { \
        for (int lane = first; lane <= last; lane++) \
            place[lane] = origin + lane * step + numbers[lane]; \
    } \
    FUNCTION void name(element *place, lane_numbers numbers, int64_t origin, int64_t step) \
    { \
        name##_within(place, numbers, origin, step, 0, LANES - 1); \
    }
POSITIONS_TO(positions_to, int64_t)
POSITIONS_TO(positions_to_narrow, int16_t)
"""
