"""Indices that are the same for all terms of a sum are asked about before it: on the CPU.

Before, in `y[b,p] = sum(d) x[b,i[p],d]*x[b,j[p],d]`:

    for d in 0 .. D - 1 in any order
      total add= (x[b, i[p], d] if 0 <= i[p] < N (else fault 1) else 0) * ...

After:

    if D - 1 >= 0
      if 0 <= i[p] < N (else fault 1) and 0 <= j[p] < N (else fault 2)
        for d in 0 .. D - 1 in any order
          total add= x[b, i[p], d] * x[b, j[p], d]

What is left are rows, of which vectors are added: a fifth of the time, and less. A call whose index
is outside is refused, so it does not matter that such a sum is empty. A pass over a row holds what
is asked of every lane by itself (`emit.held_indices`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opgen.algebra.condition import Condition
from opgen.ir.loops import (
    Accumulate,
    All,
    Always,
    Call,
    Choose,
    For,
    If,
    Inside,
    Kernel,
    Node,
    Number,
    Scalar,
    Test,
)
from opgen.ir.map_loops import test_symbols
from opgen.passes.lower import every


def with_checks_apart(kernel: Kernel) -> Kernel:
    """The kernel with checks before the innermost loops that they are the same in."""
    return replace(kernel, body=_nodes(kernel.body))


def _nodes(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(map(_node, nodes))


def _node(node: Node) -> Node:
    match node:
        case For(body=body) if all(isinstance(each, Accumulate) for each in body):
            return _apart(node)
        case For(body=body) | If(body=body):
            return replace(node, body=_nodes(body))
        case _:
            return node


def _apart(loop: For) -> Node:
    """A loop of terms behind the checks of all of them."""
    terms = [each for each in loop.body if isinstance(each, Accumulate)]
    always = [each for each in terms if each.present == Always()]
    asked = (test for each in always for test in _checks(each.value))
    checks = [test for test in asked if loop.name not in test_symbols(test)]
    if not checks:
        return loop

    def free(value: Scalar) -> Scalar:
        match value:
            case Choose(test=test, then=then) if test in checks:
                return free(then)
            case Call(arguments=arguments):
                return replace(value, arguments=tuple(map(free, arguments)))
            case _:
                return value

    body = tuple(replace(e, value=free(e.value)) if e in always else e for e in terms)
    some = tuple(Condition(high - low) for high in loop.upper for low in loop.lower)
    return If(some, (If((), (replace(loop, body=body),), every(checks)),))


def _checks(value: Scalar) -> Iterator[Test]:
    """The checks of indices that computing a value begins with, whatever they find: where one
    fails, a call does."""
    match value:
        case Choose(test=test, then=then, otherwise=Number(value=0)) if _is_check(test):
            yield test
            yield from _checks(then)
        case Call(arguments=arguments):
            for argument in arguments:
                yield from _checks(argument)
        case _:
            return


def _is_check(test: Test) -> bool:
    match test:
        case Inside(fault=number):
            return number is not None
        case All(tests=tests):
            return all(map(_is_check, tests))
        case _:
            return False
