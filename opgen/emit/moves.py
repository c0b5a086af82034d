"""Copies between tensors whose neighbours are not the same: by blocks, planned in each call.

A loop along one axis is the best copy where that axis is long. In an image in channels-last format
with few channels it is not, nor in a window of few pixels. What is best there depends on sizes and
strides, so it is found when the call is made: `make_move` in C takes axes that follow each other in
both tensors as one, and then fills the target from its first cell to its last, by blocks that are

    runs        consecutive in both tensors, each moved by whole vectors, or
    shuffled    a vector of cells whose sources lie within a few vectors, picked out of these.

Both write a whole vector where a block has less: the next block overwrites the rest. So blocks go
to a buffer in the innermost cache first, which is then copied to its place, or streamed there.
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
/* Copies along several axes at a time, whose steps are in elements: `to` and `from` of the first
   cell, and axes in any order. */
enum {{ MOST_AXES = {MOST_AXES} }};
struct move_axis {{ int64_t extent, to, from; }};
struct move {{
    T *to;
    const T *from;
    int rank;
    struct move_axis axes[MOST_AXES];
    struct move_plan *plan;
}};

/* Vectors of elements as numbers, of which nothing but their size is of interest. */
typedef __typeof__(__builtin_choose_expr(sizeof(T) == 1, (int8_t)0,
    __builtin_choose_expr(sizeof(T) == 2, (int16_t)0,
    __builtin_choose_expr(sizeof(T) == 4, (int32_t)0, (int64_t)0)))) moved;
typedef moved move_lanes __attribute__((vector_size(LANE_BYTES)));
typedef moved near_lanes __attribute__((vector_size(LANE_BYTES), aligned(1), may_alias));
#if !defined __clang__ && defined __AVX512BW__
#define PICK(a, b, places) __builtin_shuffle(a, b, places)
#ifdef __AVX512VBMI__
enum {{ CAN_PICK = 1 }};
#else
enum {{ CAN_PICK = sizeof(T) > 1 }};
#endif
#else
#define PICK(a, b, places) (a)
enum {{ CAN_PICK = 0 }};
#endif

enum {{
    IN_VECTOR = LANE_BYTES / sizeof(T),
    IN_BUFFER = 8192 / sizeof(T),
    LONGEST_RUN = 2048 / sizeof(T),
    MOST_WINDOWS = 4
}};

/* The outer axes count blocks, each of `block` elements but for the last one along the last axis,
   which has `rest`. A shuffled block has its sources in vectors that begin at `windows`: those at
   `places` of the first two, or, where `later`, at `later_places` of the next two. */
struct move_plan {{
    const T *first, *end;  /* what may be read */
    int64_t block, rest, blocks, window_count, windows[MOST_WINDOWS], least, greatest;
    int64_t sources[IN_VECTOR];  /* of each element of a shuffled block */
    move_lanes places, later_places, later;
}};

/* Axes with one value left out, slowest first, and those as one that follow each other. 0 where no
   order is the one in which the target is filled from its first cell to its last. */
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
    plan->block = plan->rest = size * count;
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
    plan->window_count = 0;
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
    plan->least = plan->windows[0], plan->greatest = plan->windows[plan->window_count - 1];
    for (int64_t number = plan->window_count; number < MOST_WINDOWS; number++)
        plan->windows[number] = plan->windows[0];
    move->rank = axis + 1;
    if (count > 1) {{
        const int64_t extent = axes[axis].extent;
        axes[axis].extent = (extent + count - 1) / count;
        axes[axis].to *= count, axes[axis].from *= count;
        plan->rest = (extent - (axes[axis].extent - 1) * count) * size;
    }}
    return 1;
}}

/* How a copy is made; 0 where loops are better. */
static int plan_move(struct move *move, struct move_plan *plan)
{{
    struct move_axis *last;
    int64_t low = 0, high = 0;
    for (int axis = 0; axis < move->rank; axis++) {{
        const int64_t distance = (move->axes[axis].extent - 1) * move->axes[axis].from;
        if (distance < 0) low += distance;
        else high += distance;
    }}
    plan->first = move->from + low, plan->end = move->from + high + 1;
    plan->window_count = 0;
    if (!in_order(move)) return 0;
    last = move->axes + move->rank - 1;
    if (last->from == 1) {{
        if (last->extent > LONGEST_RUN) return 0;
        plan->block = plan->rest = last->extent;
        move->rank--;
    }} else if (!CAN_PICK || !plan_shuffled(move, plan)) {{
        return 0;
    }}
    plan->blocks = 1;
    for (int axis = 0; axis < move->rank; axis++) plan->blocks *= move->axes[axis].extent;
    return move->axes[move->rank - 1].to == plan->block;
}}

/* Runs, `step` elements apart; whole vectors of them. */
FUNCTION void move_runs(
    const struct move_plan *plan, T *out, const T *from, int64_t step, int64_t count)
{{
    const int64_t run = plan->block, whole = (run + IN_VECTOR - 1) / IN_VECTOR * IN_VECTOR;
    for (int64_t block = 0; block < count; block++, out += run, from += step) {{
        if (plan->end - from < whole) {{
            memcpy(out, from, run * sizeof(T));
            continue;
        }}
        for (int64_t at = 0; at < whole; at += IN_VECTOR)
            *(near_lanes *)(out + at) = *(const near_lanes *)(from + at);
    }}
}}

/* One of the blocks of `size` elements that `count` of them are, element by element. */
FUNCTION void move_each(const struct move_plan *plan, T *out, const T *from, int64_t size)
{{
    for (int64_t lane = 0; lane < size; lane++) out[lane] = from[plan->sources[lane]];
}}

/* Vectors, each picked out of two or four. */
FUNCTION void move_shuffled(
    const struct move_plan *plan, T *out, const T *from, int64_t step, int64_t count)
{{
    const move_lanes places = plan->places, later_places = plan->later_places, later = plan->later;
    const int64_t *const at = plan->windows;
    for (int64_t block = 0; block < count; block++, out += plan->block, from += step) {{
        move_lanes found;
        if (from + plan->least < plan->first
            || plan->end - from < plan->greatest + (int64_t)IN_VECTOR) {{
            move_each(plan, out, from, plan->block);
            continue;
        }}
        found = PICK(*(const near_lanes *)(from + at[0]), *(const near_lanes *)(from + at[1]), places);
        if (plan->window_count > 2) {{
            const move_lanes more = PICK(*(const near_lanes *)(from + at[2]),
                                         *(const near_lanes *)(from + at[3]), later_places);
            found = (found & ~later) | (more & later);
        }}
        *(near_lanes *)out = found;
    }}
}}

/* A buffer to its place. */
FUNCTION void move_out(T *to, const T *from, int64_t bytes, int streams)
{{
    if (streams && is_of_lines(to, bytes)) stream(to, from, bytes);
    else memcpy(to, from, bytes);
}}

static void move_task(int64_t begin, int64_t end, const struct call *call)
{{
    const struct move *const move = call->move;
    const struct move_plan *const plan = move->plan;
    const int inner = move->rank - 1;
    const int64_t step = move->axes[inner].from, extent = move->axes[inner].extent;
    int64_t place[MOST_AXES], rest = begin, filled = 0;
    T buffer[IN_BUFFER + 2 * IN_VECTOR] __attribute__((aligned(LANE_BYTES)));
    T *to = move->to, *target = to;
    const T *from = move->from;
    for (int axis = inner; axis >= 0; axis--) {{
        place[axis] = rest % move->axes[axis].extent;
        rest /= move->axes[axis].extent;
        to += place[axis] * move->axes[axis].to, from += place[axis] * move->axes[axis].from;
    }}
    while (begin < end) {{
        int64_t count = least(end - begin, extent - place[inner]);
        const int64_t room = (IN_BUFFER - filled) / plan->block;
        int64_t whole;
        if (target + filled != to || room == 0) {{
            move_out(target, buffer, filled * sizeof(T), call->streams);
            target = to, filled = 0;
            continue;
        }}
        count = least(count, room);
        whole = count - (place[inner] + count == extent && plan->rest < plan->block);
        if (plan->window_count > 0) {{
            move_shuffled(plan, buffer + filled, from, step, whole);
            if (whole < count)
                move_each(plan, buffer + filled + whole * plan->block, from + whole * step, plan->rest);
        }} else {{
            move_runs(plan, buffer + filled, from, step, whole);
        }}
        filled += whole * plan->block + (whole < count ? plan->rest : 0);
        to += count * move->axes[inner].to, from += count * step;
        begin += count, place[inner] += count;
        for (int axis = inner; axis > 0 && place[axis] == move->axes[axis].extent; axis--) {{
            const struct move_axis *const own = move->axes + axis, *const next = own - 1;
            place[axis] = 0, place[axis - 1]++;
            to += next->to - own->extent * own->to, from += next->from - own->extent * own->from;
        }}
    }}
    move_out(target, buffer, filled * sizeof(T), call->streams);
}}

/* A copy by blocks; 0 where it was not made. */
static int make_move(struct move *move, struct call *call)
{{
    struct move_plan plan;
    if (!plan_move(move, &plan)) return 0;
    move->plan = &plan;
    call->move = move;
    in_parallel(move_task, call, plan.blocks, plan.block);
    return 1;
}}
"""
"""Printed behind the element types of a call, where some kernel has a move."""
