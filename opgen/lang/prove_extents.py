"""Iterators that are the digits of one number run over as many values as it has.

`a*s + b` for `a in n, b in s` takes `n*s` values, and proofs and passes rest on that. It is false
where both extents are negative: their product is positive, and yet no iterator takes a value.
"""

from __future__ import annotations

from collections.abc import Iterator

from opgen.algebra.condition import Condition
from opgen.algebra.poly import ZERO, Poly
from opgen.algebra.prove import implies
from opgen.ir.indices import digits, extents_of
from opgen.ir.notation import Statement, reads
from opgen.lang.obligations import Obligations


def not_negative(obligations: Obligations, statement: Statement) -> None:
    """Leaves it to launch checks that extents are at least 0 where several may be less together.

    One alone does no harm: the number then has a negative extent, which a call refuses, or none.
    """
    for factors in _products(obligations, statement):
        wanted = [Condition(factor) for factor in factors]
        signed = [each for each in wanted if not implies(obligations.facts, each)]
        if len(signed) < 2:
            continue
        for condition in signed:
            if obligations.is_launch_condition(condition):
                text = f"the extent {condition.value} must not be negative"
                obligations.launch_check(condition, text)


def _products(obligations: Obligations, statement: Statement) -> Iterator[tuple[Poly, ...]]:
    """The extents of digits, for every index that is made of several, wherever it begins.

    What is read counts as well: its gradient is written there.
    """
    extents = extents_of(statement.iterators)
    expanded = {
        name: obligations.environment.expand_lets(extent) for name, extent in extents.items()
    }
    for access in (statement.target, *reads(statement.body)):
        for index in access.indices:
            if len(index.value.symbols & extents.keys()) < 2:
                continue
            start = index.value.substitute(dict.fromkeys(extents, ZERO))
            value = index.value - start
            found = digits(value, extents)
            if found is None:
                found = digits(obligations.environment.expand_lets(value), expanded)
            if found is not None:
                yield tuple(extents[name] for name in found)
