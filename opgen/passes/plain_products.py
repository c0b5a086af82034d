"""Sums of products as sums of products of two tensors, where they can be: what is fast.

For the ops of a spec, before they are derived. Their gradients are sums of products of two tensors
then, too, and compute again what their op computes.
"""

from __future__ import annotations

from opgen.ir.notation import Op
from opgen.passes.cell_factors import with_cell_factors
from opgen.passes.common_factors import with_common_factors
from opgen.passes.small_factors import with_small_factors


def with_plain_products(op: Op) -> Op:
    """The op with temporaries for sums without the factors that terms share, for functions of what
    is summed, and for products of two of three factors."""
    return with_small_factors(with_cell_factors(with_common_factors(op)))
