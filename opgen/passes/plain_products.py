"""Sums of products as sums of products of two tensors, where they can be: what is fast.

For the ops of a spec, before they are derived. Their gradients are sums of products of two tensors
then, too, and compute again what their op computes.
"""

from __future__ import annotations

from opgen.ir.notation import Op
from opgen.passes.absent_outside import with_absent_terms
from opgen.passes.cell_factors import with_cells_before
from opgen.passes.common_factors import with_factors_behind
from opgen.passes.continued_images import with_continued_images
from opgen.passes.contractions import with_contractions
from opgen.passes.early_functions import with_functions_early
from opgen.passes.gathered_factors import with_gathered_factors
from opgen.passes.new_temporaries import NewTemporaries
from opgen.passes.scattered_products import with_terms_before
from opgen.passes.separable_filters import with_separate_dims
from opgen.passes.small_factors import with_products_before
from opgen.passes.turned_filters import with_turned_filters


def with_plain_products(op: Op) -> Op:
    """The op with temporaries for sums that are added where a tensor says, for factors that are
    looked up, for sums without the factors that terms share, for functions of what is summed and of
    fewer iterators, for products of two of three factors and sums of these, for sums along one dim
    of an image, for images that go on beyond their ends, and for filters that are gone through
    backwards; with boundary modes for conditions that say no more.

    One with hand-written gradients stays as it is: these are of what is written.
    """
    if op.gradients:
        return op
    for parts_of in (
        with_absent_terms,
        with_terms_before,
        with_gathered_factors,
        with_factors_behind,
        with_cells_before,
        with_functions_early,
        with_products_before,
        with_separate_dims,
        with_contractions,
        with_continued_images,
        with_turned_filters,
    ):
        made = NewTemporaries.of(op)
        op = made.op_with([part for each in op.statements for part in parts_of(each, made)])
    return op
