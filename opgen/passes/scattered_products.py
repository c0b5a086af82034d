"""Sums of products are computed before they are added where a tensor says.

Before, what nodes get over the edges of a graph:

    y[dst[m],f] += s[m] * w[f,e] * h[m,e]

After:

    y_terms[m,f] = sum(e) s[m] * w[f,e] * h[m,e]
    y[dst[m],f] += y_terms[m,f]

The first statement is a product of matrices, which kernels and libraries are fast at, and so are
its gradients. Each term would be added to memory by itself otherwise. It is worth it where several
terms go to the same cell from one point, and what they are made of is multiplied again for others.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from opgen.algebra.poly import symbol
from opgen.ir.factors import factors_of
from opgen.ir.notation import Boundary, Read, Statement, reads
from opgen.passes.cells import (
    are_sizes,
    in_order_of,
    is_multiplied_again,
    is_plain_sum,
    moving,
    names_of,
    some_of,
)
from opgen.passes.gathered_factors import is_checked
from opgen.passes.new_temporaries import NewTemporaries


def with_terms_before(statement: Statement, made: NewTemporaries) -> tuple[Statement, ...]:
    """The statement as one that sums products, and one that adds these where they belong."""
    target, kept = statement.target, moving(statement.target, names_of(statement))
    loops = in_order_of(target, (each for each in statement.iterators if each.name in kept))
    if (
        not any(index.value.is_data_dependent for index in target.indices)
        or not is_plain_sum(statement, made)
        or not _has_product(statement)
        or not _has_all_terms(statement)
        or not are_sizes(loops, made)
    ):
        return (statement,)
    cells = [(each.extent, symbol(each.name)) for each in loops]
    terms = made.cells(target.tensor, "terms", cells, stored=True)
    inner = tuple(each for each in statement.iterators if each.name not in kept)
    return (
        replace(statement, target=terms, iterators=(*loops, *inner), is_exclusive=True),
        # Where there are no terms nothing is added, and no index is looked at.
        replace(statement, iterators=loops, guards=some_of(inner), body=Read(terms)),
    )


def _has_all_terms(statement: Statement) -> bool:
    """Whether terms may be computed that are written nowhere: no index is looked at for these."""
    is_dropped = any(index.boundary is Boundary.DROP for index in statement.target.indices)
    return not is_dropped or not any(map(is_checked, reads(statement.body)))


def _has_product(statement: Statement) -> bool:
    """Whether two of the factors are those of a product of matrices."""
    _, factors = factors_of(statement.body)
    above = (each.value for each in factors if not each.divides)
    accesses = [value.access for value in above if isinstance(value, Read)]
    return any(
        is_multiplied_again(*pair, statement) for pair in itertools.permutations(accesses, 2)
    )
