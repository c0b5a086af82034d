"""Short sums that are rounded where they are stored, as vectors of lanes.

A loop along a row is made of vectors by the compiler, which rounds them in more instructions than
`opgen.runtime.unrounded_source` does, and lines of its results pass through a buffer on their way
past the caches. Vectors of lanes are lines themselves, where the row has whole lines only. For the
gradient of an image of [8,2048,16,16] in channels-last format that was enlarged two times such a
kernel takes 0.8 of the time; in memory that the caches hold 0.9.

Longer sums do little else than to add, which compilers do as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from opgen.ir.loops import Accumulate, Blocks, Kernel, Lanes, Program, Row, Short, Start, Store
from opgen.ir.names import fresh_name
from opgen.passes.block_tensors import walked

_MOST_TERMS: Final = 4
"""The most terms of a sum that is short."""


def with_rounded_sums(program: Program, names: Collection[str]) -> Program:
    """The program with vectors for sums whose results, which `names` has, are rounded."""
    if any(kernel.guest is not None for kernel in program.kernels):
        return program
    vectors: dict[str, Kernel] = {}
    for kernel in program.kernels:
        beside = [each for each in program.kernels if each.written == kernel.written]
        found = _in_vectors(kernel, program) if kernel.written in names else None
        if found is not None and all(each is kernel or _is_short(each) for each in beside):
            vectors[kernel.written] = found
    kernels: list[Kernel] = []
    taken = {kernel.name for kernel in program.kernels}
    for kernel in program.kernels:
        found = vectors.get(kernel.written)
        if found is None or not isinstance(found.only, Blocks):
            kernels.append(kernel)
            continue
        if not _is_short(kernel):
            kernels.append(replace(found, name=fresh_name(f"{kernel.name}_blocks", taken)))
        kernels.append(replace(kernel, unless=found.only))
    return replace(program, kernels=tuple(kernels))


def _is_short(kernel: Kernel) -> bool:
    """Whether it is the kernel for short rows that stands beside another one."""
    return isinstance(kernel.only, Short) and kernel.only.holds


def _in_vectors(kernel: Kernel, program: Program) -> Kernel | None:
    """The kernel with vectors; None where it does something else, or its lanes lie apart."""
    row = kernel.row
    if row is None or row.within or row.joined > 1 or kernel.group is not None:
        return None
    if kernel.only is not None and not isinstance(kernel.only, Short):
        return None
    if _is_short(kernel) or kernel.unless is not None or kernel.also or kernel.local:
        return None
    if kernel.plane is not None or kernel.sums is not None or kernel.contraction is not None:
        return None
    match kernel.body:
        case (Lanes(lower=(), upper=(), body=body),):
            pass
        case _:
            return None
    if not all(isinstance(each, Start | Accumulate | Store) for each in body):
        return None
    terms = sum(isinstance(each, Accumulate) for each in body)
    stores = sum(isinstance(each, Store) for each in body)
    if stores != 1 or not 1 < terms <= _MOST_TERMS:
        return None
    tensors = walked(replace(kernel, body=body), row.axis.name, program)
    if tensors is None or kernel.written not in tensors:
        return None
    return replace(
        kernel,
        row=Row(row.axis, row.first, row.last, row.width, least=row.width),
        only=Blocks(row.axis.extent, tensors, True, is_cached=True),
    )
