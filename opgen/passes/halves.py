"""Which tensors keep 32 bits between the stages of an op whose tensors have 16.

Within an op every temporary of reals has 32 bits. A library multiplies numbers of 16, so between
stages (`opgen.passes.stages`) these are rounded as tensors of the call are:

* factors of a product, as tensor cores take them;
* results of a product that nothing else which is computed is added to: what comes of them is as
  if they were inputs, `max(z + b, 0)` for one, or `z / s` with a sum `s`. The output is rounded
  as much again.

All others are wide. Of `xx[n] - 2*xy[n,m] + yy[m]` with three sums no digit might be left, nor of
the gradient of a softmax.

This is for bfloat16, which has the range of 32 bits. Beyond 65504 float16 has no numbers, and what
is between its statements may go there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opgen.ir.notation import Apply, Expr, Op, Reducer, Statement, reads
from opgen.ir.walk import all_reads

_KEEPS_DIGITS = frozenset({"mul", "div", "neg"})
"""What rounds the result by no more than it rounds its arguments."""


def wide_between(op: Op, products: Mapping[str, int]) -> frozenset[str]:
    """The temporaries that are wide; `products` are the tensors that products apart give."""
    computed = frozenset(each.name for each in op.temporaries if each.dtype.is_generic)
    halves = {each.name for each in op.outputs}
    writers: dict[str, list[Statement]] = {}
    for statement in op.statements:
        writers.setdefault(statement.target.tensor, []).append(statement)
        if statement.target.tensor in products:
            halves |= {access.tensor for access in all_reads(statement)}

    def ends_alone(name: str) -> bool:
        """Whether whatever is computed of a tensor has nothing else added that is computed."""
        return all(
            (target in halves or ends_alone(target)) and _is_alone(statements, name, computed)
            for target, statements in writers.items()
            if any(name in _read(each.body, computed) for each in statements)
        )

    alone = {name for name in products if name in computed and ends_alone(name)}
    return computed - halves - alone


def _is_alone(statements: Sequence[Statement], name: str, computed: frozenset[str]) -> bool:
    """Whether statements that write to one tensor add nothing to another that is computed."""
    if {name}.union(*(_read(each.body, computed) for each in statements)) == {name}:
        return True
    first, *others = statements
    is_only = not others and first.reducer is Reducer.ASSIGN
    return is_only and _is_scaled(first.body, name, computed)


def _is_scaled(expr: Expr, name: str, computed: frozenset[str]) -> bool:
    """Whether a tensor meets others that are computed in products and quotients alone."""
    read = _read(expr, computed)
    if name not in read or read == {name}:
        return True
    if not isinstance(expr, Apply) or expr.primitive not in _KEEPS_DIGITS:
        return False
    return all(_is_scaled(each, name, computed) for each in expr.arguments)


def _read(expr: Expr, computed: frozenset[str]) -> frozenset[str]:
    return frozenset(access.tensor for access in reads(expr)) & computed
