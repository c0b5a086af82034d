"""C functions for vectors of the elements of one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opgen.runtime.chosen_lanes_source import chosen_lanes
from opgen.runtime.half_lanes import bf16_lanes, f16_lanes, two_lanes

_BYTES = 64
_SIZES = {"f32": 4, "f64": 8, "i64": 8}
_COLUMNS = 16


def columns(stored: str = "T", ending: str = "", lanes: int = _COLUMNS) -> Iterable[str]:
    """Functions that load and store consecutive elements of rows, with a vector for each column.

    Their names have an ending of their own for elements that are `stored` in another type.
    """
    place = f"{stored} *place, int64_t step"
    yield f"FUNCTION void load_columns{ending}(const {place}, wide_lanes *out)"
    yield "{"
    yield f"    for (int first = 0; first < {_COLUMNS}; first += LANES) {{"
    yield "        wide_lanes *const v = out + first;"
    yield "        for (int lane = 0; lane < LANES; lane++)"
    yield f"            v[lane] = lanes_from_{stored}(place + lane * step + first);"
    yield from _transposed(lanes)
    yield "    }"
    yield "}"
    yield f"FUNCTION void store_columns{ending}({place}, wide_lanes *columns)"
    yield "{"
    yield f"    for (int first = 0; first < {_COLUMNS}; first += LANES) {{"
    yield "        wide_lanes *const v = columns + first;"
    yield from _transposed(lanes)
    yield "        for (int lane = 0; lane < LANES; lane++)"
    yield f"            lanes_to_{stored}(place + lane * step + first, v[lane]);"
    yield "    }"
    yield "}"


def _transposed(lanes: int) -> Iterable[str]:
    """Statements that transpose as many vectors `v` as they have lanes."""
    size = 1
    while size < lanes:
        low = (at - size + lanes if at & size else at for at in range(lanes))
        high = (at + lanes if at & size else at + size for at in range(lanes))
        yield f"        PRAGMA(GCC unroll {lanes})"
        yield "        for (int at = 0; at < LANES; at++) {"
        yield f"            if (at & {size}) continue;"
        yield f"            const wide_lanes a = v[at], b = v[at + {size}];"
        yield f"            v[at] = SHUFFLE(a, b, {', '.join(map(str, low))});"
        yield f"            v[at + {size}] = SHUFFLE(a, b, {', '.join(map(str, high))});"
        yield "        }"
        size *= 2


def lanes(shared: str, wide: str) -> Iterable[str]:
    """Vectors of `wide`, and how elements of T become one."""
    if shared in _SIXTEEN:
        # GCC 12 copies floating-point numbers of 16 bits one by one where it shuffles integers.
        yield "typedef uint16_t stored_bits __attribute__((may_alias));"
        yield "#define stored_T(cell) (*(stored_bits *)&(cell))"
    else:
        yield "#define stored_T(cell) (cell)"
    yield "enum { LANES = LANE_BYTES / sizeof(wide) };"
    yield "#ifdef __AVX512F__"
    yield f"#define PAIRED_LANES {int(shared in _SIXTEEN and wide == 'f32')}"
    yield "#else"
    yield "#define PAIRED_LANES 0"
    yield "#endif"
    number = f"int{8 * _SIZES[wide]}_t"
    yield f"typedef {number} lane_numbers __attribute__((vector_size(LANE_BYTES)));"
    for name, element in (("wide_lanes", "wide"), ("T_lanes", _STORED.get(shared, "T"))):
        size = f"vector_size(LANE_BYTES / sizeof(wide) * sizeof({element}))"
        given = f"{size}, aligned(sizeof({element})), may_alias"
        yield f"typedef {element} {name} __attribute__(({given}));"
    yield "#define lanes_of(values) __builtin_convertvector(values, wide_lanes)"
    yield "#define lanes_from_wide(place) (*(const wide_lanes *)(place))"
    yield "#define lanes_to_wide(place, values) (*(wide_lanes *)(place) = (values))"
    if shared == "bf16":
        yield from bf16_lanes(wide)
    elif shared == "f16":
        yield from f16_lanes(wide)
    else:
        yield "#define lanes_from_T(place) lanes_of(*(const T_lanes *)(place))"
        stored = "(values) != 0" if shared == "bool" else "values"
        one = " & 1" if shared == "bool" else ""
        value = f"__builtin_convertvector({stored}, T_lanes){one}"
        yield f"#define lanes_to_T(place, values) (*(T_lanes *)(place) = {value})"
    if (shared, wide) != ("bf16", "f32"):
        yield "#define lanes_to_T_alone(place, values) lanes_to_T(place, values)"
        yield "#define two_to_T_alone(place, first, second) \\"
        yield "    (lanes_to_T(place, first), lanes_to_T((place) + LANES, second))"
        yield "#define ROUNDS_AT_ONCE 0"
        yield "#define ARE_COARSE(words) 0"
        yield "#define two_to_T_at_once(place, first, second, is_coarse) \\"
        yield "    two_to_T_alone(place, first, second)"
        is_line = shared == wide == "f32"
        store = "STORE_LINE" if is_line else "lanes_to_T"
        yield f"#define lanes_past_T(place, values) {store}(place, values)"
        yield "#define two_past_T(place, first, second, is_coarse) \\"
        yield "    (lanes_past_T(place, first), lanes_past_T((place) + LANES, second))"
    yield "FUNCTION wide_lanes same_lanes(wide value) { return value - (wide_lanes){0}; }"
    yield "FUNCTION wide_lanes lanes_apart(const T *place, int64_t step)"
    yield "{"
    yield "    wide_lanes out;"
    yield "    for (int lane = 0; lane < LANES; lane++) out[lane] = from_T(place[lane * step]);"
    yield "    return out;"
    yield "}"
    yield from columns(lanes=_BYTES // _SIZES[wide])
    yield "#define lanes_or_one(place, step) \\"
    yield "    ((step) == 1 ? lanes_from_T(place) : same_lanes(from_T(*(place))))"
    yield from _masked_lanes(shared, wide)
    yield from _planes(shared, wide)
    yield from _every_second(_BYTES // _SIZES[wide])
    yield from _each_twice(shared, wide)
    yield from _sums(_BYTES // _SIZES[wide])
    yield from chosen_lanes(wide)


def _every_second(lanes: int) -> Iterable[str]:
    """Vectors of every second element, of all lanes or up to a last one.

    The second vector that is loaded ends with the last element: behind it memory may end.
    """
    picked = (*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2))
    yield f"#define EVERY_SECOND(a, b) SHUFFLE(a, b, {', '.join(map(str, picked))})"
    yield "FUNCTION wide_lanes every_second(const T *place)"
    yield "{"
    yield "    const wide_lanes a = lanes_from_T(place), b = lanes_from_T(place + LANES - 1);"
    yield "    return EVERY_SECOND(a, b);"
    yield "}"
    yield "FUNCTION wide_lanes every_second_within(const T *place, int first, int last)"
    yield "{"
    yield "    const int begin = 2 * first, end = 2 * last;"
    yield "    wide_lanes a = {0}, b = {0};"
    yield "    if (begin < LANES) a = lanes_within(place, begin, end < LANES ? end : LANES - 1);"
    yield "    if (end >= LANES)"
    yield "        b = lanes_within("
    yield "            place + LANES - 1, begin < LANES ? 0 : begin - LANES + 1, end - LANES + 1);"
    yield "    return EVERY_SECOND(a, b);"
    yield "}"


def _each_twice(shared: str, wide: str) -> Iterable[str]:
    """Vectors of half as many elements, each in two lanes; sums of the even or the odd lanes.

    Half a vector is loaded as such: a load of a whole one of which half is masked out still waits
    for the line of memory behind it, which need not be in any cache.
    """
    lanes = _BYTES // _SIZES[wide]
    doubled = ", ".join(str(lane // 2) for lane in range(lanes))
    yield f"#define EACH_TWICE(values) SHUFFLE(values, values, {doubled})"
    element = "uint16_t" if shared in _SIXTEEN else _STORED.get(shared, "T")
    given = f"aligned(sizeof({element})), may_alias"
    yield "#if defined __clang__ || __GNUC__ >= 12"
    for name, count in (("half_T_lanes", lanes // 2), ("doubled_T_lanes", lanes)):
        size = f"vector_size({count} * sizeof({element}))"
        yield f"typedef {element} {name} __attribute__(({size}, {given}));"
    yield "FUNCTION wide_lanes each_twice(const T *place)"
    yield "{"
    yield "    const half_T_lanes half = *(const half_T_lanes *)place;"
    yield f"    const doubled_T_lanes both = __builtin_shufflevector(half, half, {doubled});"
    yield "    return lanes_from_T((const T *)&both);"
    yield "}"
    yield "#else"
    yield "FUNCTION wide_lanes each_twice(const T *place)"
    yield "{"
    yield "    wide_lanes out;"
    yield "    for (int lane = 0; lane < LANES; lane++) out[lane] = from_T(place[lane / 2]);"
    yield "    return out;"
    yield "}"
    yield "#endif"
    yield "FUNCTION wide_lanes each_twice_within(const T *place, int first, int last)"
    yield "{"
    yield "    return EACH_TWICE(lanes_within(place, first / 2, last / 2));"
    yield "}"
    yield "FUNCTION wide_lanes only_every_second(wide_lanes values, int first)"
    yield "{"
    yield "    for (int lane = 1 - first; lane < LANES; lane += 2) values[lane] = 0;"
    yield "    return values;"
    yield "}"


def _sums(lanes: int) -> Iterable[str]:
    """Sums of all lanes, and of the even or the odd ones.

    Halves are added to each other: lane after lane would be as many additions, each of which waits
    for the one before. Both gradients of eight images of 2048 channels of 8 by 8, with 8192 such
    sums, take 0.93 of the time in bfloat16 and 0.96 in float32.
    """
    for name, last, given, found in (
        ("sum_of_lanes", 1, "", "0"),
        ("sum_of_every_second", 2, ", int first", "first"),
    ):
        yield f"FUNCTION wide {name}(wide_lanes values{given})"
        yield "{"
        step = lanes // 2
        while step >= last:
            places = ", ".join(str(lane ^ step) for lane in range(lanes))
            yield f"    values += SHUFFLE(values, values, {places});"
            step //= 2
        yield f"    return values[{found}];"
        yield "}"


def _masked_lanes(shared: str, wide: str) -> Iterable[str]:
    """Vectors of which only some lanes do something, from a first to a last one.

    Compilers make no masked loads of plain C where they should, so those of AVX-512 are asked for;
    without it the functions are there, but `HAVE_MASKS` tells kernels not to be used.
    """
    half = "short", "dquhi256"
    kinds = {"f32": ("float", "ups512"), "bf16": half, "f16": half}
    element, instruction = kinds.get(shared, ("", ""))
    has_masks = bool(element) and wide == "f32"
    yield "#if defined __AVX512BW__ && defined __AVX512VL__ && !defined __clang__"
    yield f"enum {{ HAVE_MASKS = {int(has_masks)} }};"
    yield "#else"
    yield "enum { HAVE_MASKS = 0 };"
    yield "#endif"
    if not has_masks:
        yield from _ALL_LANES
        return
    yield "#if defined __AVX512BW__ && defined __AVX512VL__ && !defined __clang__"
    yield f"typedef {element} masked_lanes __attribute__((vector_size(LANES * sizeof(T))));"
    if shared != "bf16":
        yield "typedef float float_lanes __attribute__((vector_size(LANES * 4)));"
    yield "#define LANE_MASK ((2u << last) - (1u << first))"
    yield "FUNCTION wide_lanes lanes_within(const T *place, int first, int last)"
    yield "{"
    yield f"    const T_lanes found = (T_lanes)__builtin_ia32_load{instruction}_mask("
    yield f"        (const {element} *)place, (masked_lanes){{0}}, LANE_MASK);"
    yield "    return lanes_from_T((const T *)&found);"
    yield "}"
    yield "FUNCTION wide_lanes lanes_from_wide_within(const wide *place, int first, int last)"
    yield "{"
    yield "    return (wide_lanes)__builtin_ia32_loadups512_mask("
    yield "        (const float *)place, (float_lanes){0}, LANE_MASK);"
    yield "}"
    yield "FUNCTION void lanes_to_T_within(T *place, wide_lanes values, int first, int last)"
    yield "{"
    yield "    T_lanes stored;"
    yield "    lanes_to_T((T *)&stored, values);"
    yield f"    __builtin_ia32_store{instruction}_mask("
    yield f"        ({element} *)place, (masked_lanes)stored, LANE_MASK);"
    yield "}"
    yield "FUNCTION void lanes_to_wide_within(wide *place, wide_lanes values, int first, int last)"
    yield "{"
    yield "    __builtin_ia32_storeups512_mask((float *)place, (float_lanes)values, LANE_MASK);"
    yield "}"
    yield "FUNCTION wide_lanes lanes_only(wide_lanes values, int first, int last)"
    yield "{"
    yield "    return (wide_lanes)__builtin_ia32_movaps512_mask("
    yield "        (float_lanes)values, (float_lanes){0}, LANE_MASK);"
    yield "}"
    yield from _EXTREMES.strip("\n").split("\n")
    yield "#else"
    yield from _ALL_LANES
    yield "#endif"


_HALVES = ("f16", "bf16", "i16")
_WORDS = ("f32", "i32")


def _planes(shared: str, wide: str) -> Iterable[str]:
    """Whether 16 elements are picked out of two vectors in one instruction, and how.

    Elements of 32 bits that stay as they are gain a twentieth, where the caches hold what is read
    and written.
    """
    is_narrow = shared in _HALVES
    copied = {**dict.fromkeys(_HALVES, "uint16_t"), **dict.fromkeys(_WORDS, "uint32_t")}
    yield "#if defined __AVX512BW__ && defined __AVX512VL__ \\"
    yield "    && (defined __clang__ || __GNUC__ >= 12)"
    yield f"#define HAVE_PLANES {int(wide == 'f32')}"
    yield f"#define HAVE_NARROW_PLANES {int(wide == 'f32' and is_narrow)}"
    yield f"#define HAVE_PLANES_OF_T {int(shared in copied)}"
    yield "#else"
    yield "#define HAVE_PLANES 0"
    yield "#define HAVE_NARROW_PLANES 0"
    yield "#define HAVE_PLANES_OF_T 0"
    yield "#endif"
    yield "#if HAVE_PLANES"
    yield from two_lanes(shared)
    yield "#endif"
    if shared in copied:
        element = copied[shared]
        given = f"vector_size(16 * sizeof({element})), aligned(sizeof({element})), may_alias"
        yield f"typedef {element} stored_lanes __attribute__(({given}));"


_ALL_LANES = (
    "#define lanes_within(place, first, last) lanes_from_T(place)",
    "#define lanes_from_wide_within(place, first, last) lanes_from_wide(place)",
    "#define lanes_to_T_within(place, values, first, last) lanes_to_T(place, values)",
    "#define lanes_to_wide_within(place, values, first, last) lanes_to_wide(place, values)",
    "#define lanes_only(values, first, last) (values)",
    "#define EXTREME_OF_VECTORS(...)",
)

_EXTREMES: Final = r"""
#define max_lanes(a, b) \
    __builtin_ia32_maxps512_mask(a, b, (float_lanes){0}, (short)-1, 4)
#define min_lanes(a, b) \
    __builtin_ia32_minps512_mask(a, b, (float_lanes){0}, (short)-1, 4)
#define nan_lanes(a) __builtin_ia32_cmpps512_mask(a, a, 3, (short)-1, 4)
#define WITH_LANES(JOIN, values, step) \
    JOIN(values, __builtin_shuffle(values, ((lane_numbers){ \
        0 ^ step, 1 ^ step, 2 ^ step, 3 ^ step, 4 ^ step, 5 ^ step, 6 ^ step, 7 ^ step, \
        8 ^ step, 9 ^ step, 10 ^ step, 11 ^ step, 12 ^ step, 13 ^ step, 14 ^ step, 15 ^ step})))
/* The extreme of a row that has a vector of terms at least, joined with `total`: the last vector
   begins earlier, where it would not fit. A NaN is only noticed, as an instruction may lose it. */
#define EXTREME_OF_VECTORS(JOIN, SIGN, at, first, end, term, total, is_nan) \
    int64_t at = first; \
    float_lanes extreme = term; \
    int nans = nan_lanes(extreme); \
    for (at += LANES; at < end; at += LANES) { \
        if (at > end - LANES) at = end - LANES; \
        const float_lanes each = term; \
        extreme = JOIN(extreme, each); \
        nans |= nan_lanes(each); \
    } \
    extreme = WITH_LANES(JOIN, extreme, 8); \
    extreme = WITH_LANES(JOIN, extreme, 4); \
    extreme = WITH_LANES(JOIN, extreme, 2); \
    extreme = WITH_LANES(JOIN, extreme, 1); \
    total = extreme[0] SIGN total ? extreme[0] : total; \
    is_nan |= nans != 0;
"""
"""Rows of float32 by AVX-512."""

_SIXTEEN = frozenset({"bf16", "f16"})
"""Element types that are copied as integers."""

_STORED = {"bf16": "uint16_t", "bool": "b8"}
"""Element types of vectors where that is not the type of the elements."""
