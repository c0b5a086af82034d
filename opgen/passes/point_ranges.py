"""Points that numbers in tensors bound are a loop with these bounds: on the CPU.

The gradient of sums over segments, `y[r,d] = sum(p if p >= at[r] and p < at[r+1]) x[p,d]`, scatters
to the cells of each segment (`passes.scatters`):

    parallel r < R, p < P, d < D
      if p - at[r] >= 0 and at[r + 1] - p - 1 >= 0
        atomic grad_x[p, d] += grad_y[r, d]

Before, every pair of a segment and a cell is asked. After, a segment goes through its own cells:

    parallel r < R, d < D
      for p in max(0, at[r]) .. min(P - 1, at[r + 1] - 1)
        atomic grad_x[p, d] += grad_y[r, d]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import ZERO, Poly, symbol_atom
from opgen.ir.loops import Always, For, If, Kernel


def with_point_ranges(kernel: Kernel) -> Kernel:
    """The kernel with loops for the axes that conditions bound by what is read from tensors."""
    match kernel.body:
        case (If(conditions=conditions) as node,):
            pass
        case _:
            return kernel
    loops: list[For] = []
    for axis in kernel.axes:
        asked = list(range_of(axis.name, conditions))
        lower = tuple(bound for _, bound, is_lower in asked if is_lower)
        upper = tuple(bound for _, bound, is_lower in asked if not is_lower)
        around = {each.name for each in loops}
        if lower and upper and all(around.isdisjoint(each.symbols) for each in (*lower, *upper)):
            known = [condition for condition, _, _ in asked]
            conditions = tuple(each for each in conditions if each not in known)
            loops.append(For(axis.name, (ZERO, *lower), (axis.extent - 1, *upper), ()))
    if not loops:
        return kernel
    is_free = not conditions and node.test == Always()
    body = node.body if is_free else (replace(node, conditions=conditions),)
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    names = {loop.name for loop in loops}
    return replace(kernel, axes=tuple(e for e in kernel.axes if e.name not in names), body=body)


def range_of(name: str, conditions: Iterable[Condition]) -> Iterable[tuple[Condition, Poly, bool]]:
    """The conditions that bound an iterator by what is read from tensors: what each bounds it by,
    and whether that is the least value or the greatest."""
    for each in conditions:
        split = each.value.linear_in(symbol_atom(name))
        if each.relation is not Relation.GE or split is None:
            continue
        factor, rest = split
        if factor in (1, -1) and rest.is_data_dependent and name not in rest.symbols:
            yield each, -rest if factor == 1 else rest, factor == 1
