"""Which tensors keep 32 bits between the stages of an op whose tensors have 16.

Within an op every temporary of reals has 32 bits. A library multiplies numbers of 16, so factors
are rounded to these before they are multiplied, as tensor cores take them. Between stages
(`opgen.passes.stages`) a tensor is one of 16 bits, as if the op ended there, where all that is done
with it is

* to multiply it in products apart, or in other sums: these are products, too;
* to compute each cell of an output from it cell by cell, of the type of the call, with numbers and
  elements of inputs beside it, each by itself: `max(z[n,o] + b[o], 0)`, or `z[n,o] / s[n]` where
  `s` is computed as well.

All others are wide: what is less another element of itself, or something else that is computed,
more exact inputs among them, might have no digit left, and an `argmax` would be another one. A
factor that is wide is rounded when it is multiplied.

This is for bfloat16, which has the range of 32 bits. Beyond 65504 float16 has no numbers, and what
is between its statements may go there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Expr,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    reads,
)
from opgen.ir.walk import all_reads

_KEEPS_DIGITS = frozenset({"mul", "div", "neg"})
"""What rounds the result by no more than it rounds its arguments."""


def wide_between(op: Op, products: Mapping[str, int]) -> frozenset[str]:
    """The temporaries that are wide; `products` are the tensors that products apart give."""
    writers: dict[str, list[Statement]] = {}
    for statement in op.statements:
        writers.setdefault(statement.target.tensor, []).append(statement)
    temporaries = frozenset(each.name for each in op.temporaries if each.dtype.is_generic)
    found = _Readers(op, writers, frozenset(products), temporaries)
    factors = {name for target in products for each in writers[target] for name in _tensors(each)}
    multiplied = temporaries & (factors | products.keys())
    return temporaries - {name for name in multiplied if found.may_round(name)}


@dataclass(frozen=True, slots=True)
class _Readers:
    """What statements do with the tensors that they read."""

    op: Op
    writers: Mapping[str, Sequence[Statement]]
    products: frozenset[str]
    temporaries: frozenset[str]
    known: dict[str, bool] = field(default_factory=dict)

    def may_round(self, name: str) -> bool:
        """Whether nothing that is computed of a tensor asks for more digits than it has itself."""
        if name not in self.known:
            self.known[name] = self._may_round(name)
        return self.known[name]

    def _may_round(self, name: str) -> bool:
        return all(
            target in self.products or self._is_for(name, target, statements)
            for target, statements in self.writers.items()
            if any(name in _tensors(each) for each in statements)
        )

    def _is_for(self, name: str, target: str, statements: Sequence[Statement]) -> bool:
        """The same of what is computed to one tensor."""
        if target == name or not self._is_generic(target):
            return False
        is_single = len(statements) == 1
        if is_single and _is_sum_of_multiples(statements[0], name):
            return True
        # What several statements write is a sum of it all.
        is_plain = all(self._is_cell_by_cell(e, name, is_scaled=is_single) for e in statements)
        return is_plain and (target not in self.temporaries or self.may_round(target))

    def _is_generic(self, name: str) -> bool:
        """Whether a tensor is one of the type of the call; a table is none."""
        tensor = self.op.tensor(name)
        return isinstance(tensor, Tensor) and tensor.dtype.is_generic

    def _is_cell_by_cell(self, statement: Statement, name: str, *, is_scaled: bool) -> bool:
        """Whether each cell comes of one cell of the tensor, if it is read, and of what may stand
        beside that."""
        if statement.reducer not in (Reducer.ASSIGN, Reducer.ADD) or statement.guards:
            return False
        if not _is_whole(statement.target, statement):
            return False
        own = {access for access in reads(statement.body) if access.tensor == name}
        if len(own) > 1 or not all(_is_whole(each, statement) for each in own):
            return False
        if not all(map(self._is_generic, _tensors(statement))):
            return False
        return self._is_beside(statement.body, name, is_scaled=is_scaled)

    def _is_beside(self, expr: Expr, name: str, *, is_scaled: bool) -> bool:
        """Whether an expression has nothing beside a tensor but numbers and single elements of
        inputs; if it only scales the tensor, also what is computed."""
        read = set(reads(expr))
        others = {access for access in read if access.tensor != name}
        if len(others) == len(read):
            inputs = {each.name for each in self.op.inputs}
            return is_scaled or (len(others) <= 1 and {e.tensor for e in others} <= inputs)
        if not isinstance(expr, Apply):
            return True
        is_scaled = is_scaled and expr.primitive in _KEEPS_DIGITS
        return all(self._is_beside(each, name, is_scaled=is_scaled) for each in expr.arguments)


def _is_sum_of_multiples(statement: Statement, name: str) -> bool:
    """Whether a statement sums up elements of a tensor times whatever else there is."""
    if statement.reducer is not Reducer.ADD or statement.guards:
        return False
    expr = statement.body
    while isinstance(expr, Apply) and expr.primitive in _KEEPS_DIGITS:
        holding = [each for each in expr.arguments if any(r.tensor == name for r in reads(each))]
        if len(holding) != 1:
            return False
        (expr,) = holding
    return isinstance(expr, Read) and expr.access.tensor == name


def _is_whole(access: Access, statement: Statement) -> bool:
    """Whether an access has another cell for each point of a statement."""
    names = [index.value.symbol for index in access.indices]
    is_plain = all(index.boundary is Boundary.NONE for index in access.indices)
    return is_plain and {each.name for each in statement.iterators} == set(names)


def _tensors(statement: Statement) -> set[str]:
    return {access.tensor for access in all_reads(statement)}
