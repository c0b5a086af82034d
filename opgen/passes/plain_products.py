"""Sums of products as sums of products of two tensors, where they can be: what is fast.

For the ops of a spec, before they are derived. Their gradients are sums of products of two tensors
then, too, and compute again what their op computes.
"""

from __future__ import annotations

from opgen.ir.notation import Op
from opgen.passes.cell_factors import with_cells_before
from opgen.passes.common_factors import with_factors_behind
from opgen.passes.new_temporaries import NewTemporaries
from opgen.passes.small_factors import with_products_before


def with_plain_products(op: Op) -> Op:
    """The op with temporaries for sums without the factors that terms share, for functions of what
    is summed, and for products of two of three factors.

    One with hand-written gradients stays as it is: these are of what is written.
    """
    if op.gradients:
        return op
    for parts_of in (with_factors_behind, with_cells_before, with_products_before):
        made = NewTemporaries.of(op)
        op = made.op_with([part for each in op.statements for part in parts_of(each, made)])
    return op
