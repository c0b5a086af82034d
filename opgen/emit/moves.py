"""Copies between tensors whose neighbours are not the same: by blocks, planned in each call.

A loop along one axis is the best copy where that axis is long. In an image in channels-last format
with few channels it is not, nor in a window of few pixels. What is best there depends on sizes and
strides, so it is found when the call is made: `make_move` in C takes axes that follow each other in
both tensors as one, and then moves blocks that are

    runs        consecutive in both tensors, each moved by whole vectors, or
    shuffled    a vector of cells whose sources lie within a few vectors, picked out of these.

Blocks are taken in the order of the target, but that short axes along which the source goes in
smaller steps are innermost: what was loaded is still in the innermost cache for all blocks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from opgen.algebra.poly import Poly, poly
from opgen.emit.polynomial import Text
from opgen.ir.loops import Kernel, Move
from opgen.ir.primitives import Level
from opgen.passes.moves import step_of

LONGEST_ROW: Final = 64
"""Loops along rows of more cells are not beaten, or not by much."""

MOST_AXES: Final = 12
"""The most axes of a move; kernels with more are loops alone."""


def has_moves(kernel: Kernel) -> bool:
    """Whether a call of the kernel may be a move."""
    return (
        kernel.move is not None and len(kernel.move.axes) <= MOST_AXES and not _is_long(kernel)
    )


def _is_long(kernel: Kernel) -> bool:
    """Whether its row is known to be too long."""
    if kernel.row is None or not kernel.row.axis.extent.is_constant:
        return False
    return kernel.row.axis.extent.constant > LONGEST_ROW


def sizes(kernel: Kernel) -> Iterator[Poly]:
    """The formulas that `declaration` and `condition` print."""
    assert kernel.move is not None
    for index in (*kernel.move.store.indices, *kernel.move.load.indices):
        yield index.substitute(dict.fromkeys((axis.name for axis in kernel.move.axes), poly(0)))
    for axis in kernel.move.axes:
        yield axis.extent
        for index in (*kernel.move.store.indices, *kernel.move.load.indices):
            yield step_of(index, axis)
    if kernel.row is not None:
        yield kernel.row.axis.extent


def condition(kernel: Kernel, text: Callable[[Poly], Text]) -> str | None:
    """When a move is tried; None for always."""
    if kernel.row is None or kernel.row.axis.extent.is_constant:
        return None
    return f"{text(kernel.row.axis.extent).at(Level.RELATIONAL)} <= {LONGEST_ROW}"


def declaration(
    name: str,
    move: Move,
    text: Callable[[Poly], Text],
    address: Callable[[str], str],
    stride: Callable[[str, int], str],
) -> str:
    """A `struct move` of that name; `address` and `stride` print those of tensors."""
    start = {axis.name: poly(0) for axis in move.axes}

    def offset(tensor: str, steps: list[Poly]) -> str:
        parts = []
        for axis, step in enumerate(steps):
            if step == 0:
                continue
            factor = "" if step == 1 else f"{text(step).at(Level.MULTIPLICATIVE)} * "
            parts.append(factor + stride(tensor, axis))
        return " + ".join(parts) or "0"

    sides = ((move.store.tensor, move.store.indices), (move.load.tensor, move.load.indices))
    firsts = []
    for tensor, indices in sides:
        first = offset(tensor, [index.substitute(start) for index in indices])
        kind = "(T *)" if tensor == move.store.tensor else "(const T *)"
        place = f"{kind}{address(tensor)}"
        firsts.append(place if first == "0" else f"{place} + {first}")
    axes = []
    for axis in move.axes:
        steps = (offset(tensor, [step_of(i, axis) for i in indices]) for tensor, indices in sides)
        axes.append(f"{{{', '.join((text(axis.extent).text, *steps))}}}")
    return f"struct move {name} = {{{', '.join(firsts)}, {len(axes)}, {{{', '.join(axes)}}}}};"


HELPERS: Final = rf"""
/* A copy along several axes, whose steps are in elements: `to` and `from` of the first cell, and
   axes in any order. A step of an axis of blocks takes `count` of its `size` values; the last one
   begins earlier where it would not fit. */
enum {{ MOST_AXES = {MOST_AXES} }};
struct move_axis {{ int64_t extent, to, from, size, count; }};
struct move {{
    T *to;
    const T *from;
    int rank;
    struct move_axis axes[MOST_AXES + 1];
    const struct move_plan *plan;
}};

/* Vectors of elements as numbers, of which nothing but their size is of interest. */
typedef __typeof__(__builtin_choose_expr(sizeof(T) == 1, (int8_t)0,
    __builtin_choose_expr(sizeof(T) == 2, (int16_t)0,
    __builtin_choose_expr(sizeof(T) == 4, (int32_t)0, (int64_t)0)))) moved;
typedef moved move_lanes __attribute__((vector_size(LANE_BYTES)));
typedef moved near_lanes __attribute__((vector_size(LANE_BYTES), aligned(1), may_alias));
enum {{
    IN_VECTOR = LANE_BYTES / sizeof(T),
    LONGEST_RUN = 2048 / sizeof(T),  /* the library's copy of one is not beaten */
    MOST_WINDOWS = 4,
    SHORT_AXIS = 16,
    MOST_TOGETHER = 64
}};
#if !defined __clang__ && defined __AVX512BW__
#define PICK(a, b, places) __builtin_shuffle(a, b, places)
#ifdef __AVX512VBMI__
enum {{ CAN_PICK = 1 }};
#else
enum {{ CAN_PICK = sizeof(T) > 1 }};
#endif
typedef char byte_lanes __attribute__((vector_size(LANE_BYTES)));
typedef short half_lanes __attribute__((vector_size(LANE_BYTES)));
typedef int single_lanes __attribute__((vector_size(LANE_BYTES)));
typedef long long double_lanes __attribute__((vector_size(LANE_BYTES)));
/* The first elements of a vector. */
FUNCTION void store_first(T *out, move_lanes found, int64_t count)
{{
    const uint64_t mask = count < 64 ? ((uint64_t)1 << count) - 1 : ~(uint64_t)0;
    void *const place = out;
    switch (sizeof(T)) {{
    case 1: __builtin_ia32_storedquqi512_mask(place, (byte_lanes)found, mask); break;
    case 2: __builtin_ia32_storedquhi512_mask(place, (half_lanes)found, mask); break;
    case 4: __builtin_ia32_storedqusi512_mask(place, (single_lanes)found, mask); break;
    default: __builtin_ia32_storedqudi512_mask(place, (double_lanes)found, mask);
    }}
}}
#else
#define PICK(a, b, places) (a)
enum {{ CAN_PICK = 0 }};
FUNCTION void store_first(T *out, move_lanes found, int64_t count)
{{
    memcpy(out, &found, count * sizeof(T));
}}
#endif

/* Axes count points; at each there are blocks of `block` elements, `together` of them. A shuffled block has its sources in vectors that
   begin at `windows`: those at `places` of the first two, or, where `later`, at `later_places` of
   the next two. */
struct move_plan {{
    const T *end;  /* of what may be read */
    int streams;
    int64_t block, points, together, to[MOST_TOGETHER], from[MOST_TOGETHER];
    int64_t window_count, windows[MOST_WINDOWS];
    int64_t sources[IN_VECTOR];  /* of each element of a shuffled block */
    move_lanes places, later_places, later;
}};

/* Axes of more than one value in the order of the target, slowest first, those as one that follow
   each other in both tensors. Whether that leaves something to do. */
static int in_order(struct move *move)
{{
    struct move_axis *const axes = move->axes;
    int rank = 0;
    for (int at = 0; at < move->rank; at++) {{
        struct move_axis axis = axes[at];
        int place = rank;
        if (axis.extent == 1) continue;
        if (axis.extent < 1 || axis.to < 1) return 0;
        while (place > 0 && axes[place - 1].to < axis.to) axes[place] = axes[place - 1], place--;
        axes[place] = axis;
        rank++;
    }}
    move->rank = 0;
    for (int at = 0; at < rank; at++) {{
        struct move_axis axis = axes[at], *const outer = axes + move->rank - 1;
        if (move->rank > 0 && outer->to == axis.extent * axis.to
            && outer->from == axis.extent * axis.from) {{
            axis.extent *= outer->extent;
            *outer = axis;
        }} else {{
            axes[move->rank++] = axis;
        }}
    }}
    for (int at = 0; at < move->rank; at++) axes[at].size = axes[at].extent, axes[at].count = 1;
    return move->rank > 1 && axes[move->rank - 1].to == 1;
}}

/* Blocks of one vector; 0 where their sources are further apart than a few of them. */
static int plan_shuffled(struct move *move, struct move_plan *plan)
{{
    struct move_axis *const axes = move->axes;
    int64_t size = 1, count = 1, covered = 0;
    int axis = move->rank - 1;
    while (axis >= 0 && axes[axis].to == size && size * axes[axis].extent <= IN_VECTOR)
        size *= axes[axis--].extent;
    if (axis < 0) return 0;
    if (axes[axis].to == size) count = IN_VECTOR / size;
    plan->block = size * count;
    if (2 * plan->block < IN_VECTOR) return 0;
    for (int64_t lane = 0; lane < plan->block; lane++) {{
        int64_t number = lane, source = 0;
        for (int inner = move->rank - 1; inner > axis; inner--) {{
            source += number % axes[inner].extent * axes[inner].from;
            number /= axes[inner].extent;
        }}
        plan->sources[lane] = source + number * axes[axis].from;
    }}
    plan->places = plan->later_places = plan->later = (move_lanes){{0}};
    while (covered < plan->block) {{
        /* The first source behind those that the windows before have. */
        int64_t begin = INT64_MAX;
        const int64_t number = plan->window_count++;
        if (number == MOST_WINDOWS) return 0;
        for (int64_t lane = 0; lane < plan->block; lane++) {{
            const int64_t source = plan->sources[lane];
            if (number == 0 || source >= plan->windows[number - 1] + IN_VECTOR)
                begin = least(begin, source);
        }}
        plan->windows[number] = begin;
        for (int64_t lane = 0; lane < plan->block; lane++) {{
            const int64_t place = plan->sources[lane] - begin;
            if (place < 0 || place >= IN_VECTOR) continue;
            if (number < 2) plan->places[lane] = place + number * IN_VECTOR;
            else plan->later_places[lane] = place + (number - 2) * IN_VECTOR, plan->later[lane] = -1;
            covered++;
        }}
    }}
    for (int64_t number = plan->window_count; number < MOST_WINDOWS; number++)
        plan->windows[number] = plan->windows[0];
    axes[axis].count = count;
    axes[axis].extent = (axes[axis].size + count - 1) / count;
    move->rank = axis + 1;
    return 1;
}}

/* The blocks of short innermost axes belong to one point. */
static void take_together(struct move *move, struct move_plan *plan)
{{
    struct move_axis *const axes = move->axes;
    plan->together = 1, plan->to[0] = plan->from[0] = 0;
    while (move->rank > 1 && axes[move->rank - 1].extent <= SHORT_AXIS
           && plan->together * axes[move->rank - 1].extent <= MOST_TOGETHER) {{
        const struct move_axis axis = axes[--move->rank];
        const int64_t before = plan->together;
        for (int64_t at = before; at < before * axis.extent; at++) {{
            const int64_t place = least(at / before * axis.count, axis.size - axis.count);
            plan->to[at] = plan->to[at % before] + place * axis.to;
            plan->from[at] = plan->from[at % before] + place * axis.from;
        }}
        plan->together *= axis.extent;
    }}
    plan->points = 1;
    for (int axis = 0; axis < move->rank; axis++) plan->points *= axes[axis].extent;
}}

/* How a copy is made; 0 where loops are better. */
static int plan_move(struct move *move, struct move_plan *plan)
{{
    struct move_axis *const axes = move->axes, *last;
    int64_t high = 0;
    plan->window_count = 0;
    if (!in_order(move)) return 0;
    for (int axis = 0; axis < move->rank; axis++)
        high += greatest((axes[axis].extent - 1) * axes[axis].from, 0);
    plan->end = move->from + high + 1;
    last = axes + move->rank - 1;
    if (last->from == 1) {{
        if (last->extent > LONGEST_RUN) return 0;
        plan->block = last->extent;
        move->rank--;
    }} else if (!CAN_PICK || !plan_shuffled(move, plan)) {{
        return 0;
    }}
    plan->streams = (uintptr_t)move->to % LINE == 0 && plan->block * sizeof(T) % LINE == 0;
    for (int at = 0; at < move->rank; at++) {{
        const struct move_axis axis = axes[at];
        int place = at;
        plan->streams &= axis.to * sizeof(T) % LINE == 0 || axis.to == plan->block / axis.count;
        plan->streams &= axis.size % axis.count == 0;
        while (place > 0 && axes[place - 1].extent <= SHORT_AXIS && axes[place - 1].from < axis.from
               && axes[place - 1].extent < axis.extent)
            axes[place] = axes[place - 1], place--;
        axes[place] = axis;
    }}
    take_together(move, plan);
    return 1;
}}

/* A run of that many elements in chunks of one type, the last one at its end. */
#define MOVE_RUN(chunk) \
    do {{ \
        const int64_t bytes = plan->block * sizeof(T), size = sizeof(chunk); \
        for (int64_t at = 0; at + size <= bytes; at += size) MOVE_CHUNK(chunk, at); \
        if (bytes % size) MOVE_CHUNK(chunk, bytes - size); \
    }} while (0)
#define MOVE_CHUNK(chunk, at) \
    do {{ \
        chunk part; \
        memcpy(&part, (const char *)from + (at), sizeof part); \
        memcpy((char *)to + (at), &part, sizeof part); \
    }} while (0)
FUNCTION void move_run(const struct move_plan *plan, T *to, const T *from)
{{
    const int64_t bytes = plan->block * sizeof(T);
    typedef int64_t two __attribute__((vector_size(16)));
    typedef int64_t four __attribute__((vector_size(32)));
    if (bytes >= LANE_BYTES) MOVE_RUN(move_lanes);
    else if (bytes >= 32) MOVE_RUN(four);
    else if (bytes >= 16) MOVE_RUN(two);
    else if (bytes >= 8) MOVE_RUN(int64_t);
    else if (bytes >= 4) MOVE_RUN(int32_t);
    else MOVE_RUN(moved);
}}

/* One vector, picked out of two or four. */
FUNCTION void move_shuffled(const struct move_plan *plan, T *to, const T *from, int streams)
{{
    const int64_t *const at = plan->windows;
    move_lanes found;
    if (plan->end - from < at[plan->window_count - 1] + (int64_t)IN_VECTOR) {{
        for (int64_t lane = 0; lane < plan->block; lane++) to[lane] = from[plan->sources[lane]];
        return;
    }}
    found = PICK(*(const near_lanes *)(from + at[0]), *(const near_lanes *)(from + at[1]),
                 plan->places);
    if (plan->window_count > 2) {{
        const move_lanes more = PICK(*(const near_lanes *)(from + at[2]),
                                     *(const near_lanes *)(from + at[3]), plan->later_places);
        found = (found & ~plan->later) | (more & plan->later);
    }}
    if (streams) stream(to, &found, sizeof found);
    else if (plan->block == IN_VECTOR) *(near_lanes *)to = found;
    else store_first(to, found, plan->block);
}}

/* The blocks of all points from the one at `place` along the last axis on, `count` of them. */
#define MOVE_BLOCKS(move_block) \
    for (int64_t i = place[inner]; i < place[inner] + count; i++) {{ \
        const int64_t value = least(i * last.count, last.size - last.count); \
        for (int64_t block = 0; block < plan->together; block++) {{ \
            T *const to = target + value * last.to + plan->to[block]; \
            const T *const from = source + value * last.from + plan->from[block]; \
            move_block; \
        }} \
    }}

static void move_task(int64_t begin, int64_t end, const struct call *call)
{{
    const struct move *const move = call->move;
    const struct move_plan own = *move->plan, *const plan = &own;
    const int inner = move->rank - 1;
    const struct move_axis *const axes = move->axes, last = axes[inner];
    const int streams = call->streams && plan->streams;
    int64_t place[MOST_AXES], rest = begin;
    for (int axis = inner; axis >= 0; axis--) {{
        place[axis] = rest % axes[axis].extent;
        rest /= axes[axis].extent;
    }}
    while (begin < end) {{
        const int64_t count = least(last.extent - place[inner], end - begin);
        T *target = move->to;
        const T *source = move->from;
        for (int axis = 0; axis < inner; axis++) {{
            const struct move_axis *const here = axes + axis;
            const int64_t value = least(place[axis] * here->count, here->size - here->count);
            target += value * here->to, source += value * here->from;
        }}
        if (plan->window_count > 0 && streams) MOVE_BLOCKS(move_shuffled(plan, to, from, 1))
        else if (plan->window_count > 0) MOVE_BLOCKS(move_shuffled(plan, to, from, 0))
        else if (streams) MOVE_BLOCKS(stream(to, from, plan->block * sizeof(T)))
        else MOVE_BLOCKS(move_run(plan, to, from))
        begin += count, place[inner] += count;
        for (int axis = inner; axis > 0 && place[axis] == axes[axis].extent; axis--)
            place[axis] = 0, place[axis - 1]++;
    }}
}}

/* A copy by blocks; 0 where it was not made. */
static int make_move(struct move *move, struct call *call)
{{
    struct move_plan plan;
    if (!plan_move(move, &plan)) return 0;
    move->plan = &plan;
    call->move = move;
    in_parallel(move_task, call, plan.points, plan.block * plan.together);
    return 1;
}}
"""
"""Printed behind the element types of a call, where some kernel has a move."""
