"""The loops of an op: for the CPU, for the threads of a GPU, and for particular values.

This is the order of the passes over whole programs. Some are made of others, and have their order:
`passes.rows` of those that loops along rows go through, kernel by kernel, `passes.cuda_rows` of
those for a GPU, `passes.blocks` and `passes.padded` of those for kernels of known sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Final

from opgen.ir.context import facts_of
from opgen.ir.loops import Fault, Program
from opgen.ir.notation import Op
from opgen.passes.all_but_one import with_all_but_one
from opgen.passes.blocks import with_blocks
from opgen.passes.buckets import with_buckets
from opgen.passes.chosen_points import with_chosen_points
from opgen.passes.chosen_terms import with_chosen_terms
from opgen.passes.cuda_chains import with_chains
from opgen.passes.cuda_product import with_contractions
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.cuda_siblings import with_siblings
from opgen.passes.dims_apart import with_dims_apart
from opgen.passes.directions import with_directions_apart
from opgen.passes.factored_sums import with_factored_sums
from opgen.passes.factored_totals import with_factored_totals
from opgen.passes.functions_apart import with_functions_apart
from opgen.passes.gather import gather
from opgen.passes.guests import with_guests
from opgen.passes.invariants import with_invariants
from opgen.passes.margins import with_margins
from opgen.passes.masked_rows import with_masked_rows
from opgen.passes.narrow_positions import with_narrow_positions
from opgen.passes.one_pass import with_one_pass
from opgen.passes.own_targets import with_own_totals
from opgen.passes.padded import with_padding
from opgen.passes.partial_sums import with_partial_sums
from opgen.passes.plane_sums import with_plane_sums
from opgen.passes.planes import with_plane_kernels
from opgen.passes.products_between import with_products_between
from opgen.passes.relayout import (
    Orders,
    channels_last,
    of_images,
    relayout,
    with_columns,
    with_filters_of_groups,
    with_temporaries,
    with_workspaces,
)
from opgen.passes.rows import rows
from opgen.passes.scatters import with_scatters
from opgen.passes.schedule import schedule
from opgen.passes.separate import rejoined, separated
from opgen.passes.shared_rows import with_shared_rows
from opgen.passes.specialise import given_sizes, specialise, windows_of
from opgen.passes.strip_sums import with_strip_sums
from opgen.passes.sums_of_parts import with_sums_of_parts
from opgen.passes.sums_together import with_sums_together
from opgen.passes.thin_columns import thin_sizes, thin_tensors, with_thin_columns
from opgen.passes.unclamp import unclamped
from opgen.passes.whole_dims import with_whole_dims
from opgen.passes.wide_windows import has_wide_windows, with_wide_windows
from opgen.runtime.description import LARGEST_WINDOW

_TENSORS: Final = 3
"""Of so many and more a sum of products may be done in steps."""


def for_cpu(op: Op, is_derived: bool = False) -> Op:
    """The op as kernels of the CPU compute it: with temporaries that its spec does not have, and
    marks at sums that are computed point by point. Products of one that is derived may be
    multiplied in another order, and those of three and more tensors."""
    if is_derived:
        op = with_factored_totals(with_factored_sums(with_products_between(op)))
    else:
        op = with_factored_totals(op, fewest=_TENSORS)
    op = with_directions_apart(with_functions_apart(with_dims_apart(with_all_but_one(op))))
    op = with_thin_columns(with_whole_dims(with_margins(with_chosen_points(op))))
    op = with_partial_sums(with_invariants(op))
    op = with_strip_sums(op)
    return with_buckets(with_scatters(with_chosen_terms(op)))


def for_gpu(op: Op) -> Op:
    """The op as threads of a GPU compute it."""
    return with_own_totals(with_margins(op))


def scheduled(op: Op, faults: tuple[Fault, ...] = ()) -> Program:
    """The loops of an op as its statements say, a parallel point for each cell.

    `faults` are those of another form of the same op: they have the same numbers in both.
    Those of the last ops are kept: kernels for one call are several rewritten forms of the same
    loops.
    """
    # Ops are equal if their numbers are, but 2 and 2.0 make other loops, and so do 0.0 and -0.0.
    return _scheduled(op, repr(op), faults)


@functools.lru_cache(maxsize=16)
def _scheduled(op: Op, _key: str, faults: tuple[Fault, ...]) -> Program:
    return schedule(op, gather(op), faults)


def along_rows(op: Op, program: Program) -> Program:
    """The loops of an op for the CPU."""
    return with_sums_of_parts(with_guests(with_sums_together(_each_along_rows(op, program))))


def _each_along_rows(op: Op, program: Program) -> Program:
    """The same with each kernel by itself."""
    return rows(program, facts_of(op))


def threads(op: Op, program: Program) -> Program:
    """The loops of an op for the threads of a GPU."""
    facts = facts_of(op)
    found = with_siblings(with_contractions(cuda_rows(program, facts), program, op))
    return with_chains(found, program, facts)


# ---------------------------------------------------------------------------- particular values
def window_sizes(op: Op, public: Op) -> tuple[str, ...]:
    """The sizes of windows of an op that was derived from that one of the spec, and those of
    points."""
    found = (*windows_of(public), *thin_sizes(public), *given_sizes(op, public))
    return tuple(dict.fromkeys(found))


def for_values(
    op: Op,
    program: Program,
    values: Mapping[str, int],
    rewrite: Callable[[Op, Program], Program],
    prepare: Callable[[Op], Op] = lambda op: op,
    own: Collection[str] = (),
) -> Program:
    """The program for particular values, or the general one if it has not all operands and faults
    of it but its `own` temporaries."""
    special = prepare(specialise(op, values))
    found = rewrite(special, scheduled(special, program.faults))
    known = {*own, *(operand.name for operand in program.operands)}
    if any(operand.name not in known for operand in found.operands):
        return program
    if found.faults != program.faults:
        return program  # a message speaks of the values
    return found


def special_along_rows(
    op: Op, public: Op, values: Mapping[str, int], layout: int
) -> tuple[Program, Program, Orders]:
    """The program for particular values, the general one, and the orders of the dims of tensors.

    `public` is the op of the spec that the op was derived from. `layout` says which tensors are in
    channels-last format, see `passes.relayout`.
    """
    program = along_rows(op, scheduled(op))
    orders = with_temporaries(op, channels_last(op, layout), program)
    orders = with_filters_of_groups(specialise(op, values), orders)
    if (wide := _wide(op, program, of_images(orders), values)) is not None:
        return wide, program, of_images(orders)
    sizes = window_sizes(op, public)
    values = {n: v for n, v in values.items() if n not in sizes or v <= LARGEST_WINDOW}
    whole = relayout(op, orders)
    laid_out = with_strip_sums(whole, of_images(orders))
    thin = frozenset[str]() if orders else thin_tensors(op, thin_sizes(public))

    def prepare(special: Op) -> Op:
        return with_thin_columns(special, thin)

    known = prepare(specialise(laid_out, values))
    own = [each.name for each in known.temporaries[len(whole.temporaries) :]]
    special = for_values(laid_out, program, values, _each_along_rows, prepare, own)
    if special is program:
        return program, program, {}
    plain = scheduled(known, program.faults)
    special = with_one_pass(plain, _with_all_kernels(known, special))
    special = with_guests(with_sums_together(special))
    special = with_plane_sums(with_shared_rows(plain, special, facts_of(known)))
    special = with_narrow_positions(with_sums_of_parts(special))
    return special, program, with_workspaces(orders, special.workspaces)


def special_threads(
    op: Op, values: Mapping[str, int], layout: int
) -> tuple[Program, Program, Orders]:
    """The same for the threads of a GPU."""
    program = threads(op, scheduled(op))
    orders = with_temporaries(op, channels_last(op, layout), program)
    known = specialise(op, values)
    orders = with_columns(known, with_filters_of_groups(known, orders))
    special = for_values(relayout(op, orders), program, values, threads, unclamped)
    if special is program:
        return program, program, {}
    return special, program, with_workspaces(orders, special.workspaces)


def _wide(op: Op, program: Program, orders: Orders, values: Mapping[str, int]) -> Program | None:
    """The program for particular values with a kernel for wide windows, if it has one."""
    special = specialise(relayout(op, orders), values)
    plain = scheduled(special, program.faults)
    if not has_wide_windows(plain):
        return None
    others = for_values(relayout(op, orders), program, values, _each_along_rows)
    found = with_wide_windows(plain, others)
    return None if found is others else found


def _with_all_kernels(op: Op, program: Program) -> Program:
    """A program for known sizes with the kernels that these allow, output by output."""
    parts = separated(op)
    if len(parts) > 1:
        each = (_each_along_rows(part, scheduled(part, program.faults)) for part in parts)
        return rejoined(program, tuple(map(_with_all_kernels, parts, each)))
    plain = scheduled(op, program.faults)
    program = with_blocks(plain, with_padding(op, program))
    program = with_masked_rows(plain, program, facts_of(op))
    return with_plane_kernels(plain, program)
