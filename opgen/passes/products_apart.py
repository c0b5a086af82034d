"""Long products as several, which do not wait for each other.

Before: `y[n] = prod(k) x[n,k]` multiplies one factor after the other, and each waits for the
product so far, which takes a processor four steps.

    for k in 0 .. K - 1
      total multiply= x[n, k]

After: eight products at a time, of every eighth factor each.

    if K//8 - 1 >= 0
      for k_block in 0 .. K//8 - 1
        total multiply= x[n, 8*k_block]
        total_1 multiply= x[n, 8*k_block + 1]
        ...
      total multiply= total_4
      ...
      total multiply= total_1
    for k in 8*(K//8) .. K - 1
      total multiply= x[n, k]

Factors may be multiplied in any order, as terms of a sum may be added; what is too large or too
small for a float on the way may be another one. Sums in order have no need of it, see
`emit.vectors`, nor have rows of cells, which are vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.ir.loop_parts import accumulators_of, integer_names, results_of
from opgen.ir.loops import (
    Accumulate,
    Always,
    For,
    If,
    Kernel,
    Node,
    Result,
    Start,
    walk,
)
from opgen.ir.map_loops import map_nodes, renamed, with_instead
from opgen.ir.names import fresh_name
from opgen.ir.notation import Reducer

AT_A_TIME: Final = 8
"""How many products."""


def products_apart(kernel: Kernel, known: Iterable[str]) -> Kernel:
    """The kernel with several products for the factors of each long loop; itself if it has none.

    `known` are the names of sizes and attributes.
    """
    accumulators = set(accumulators_of(*kernel.body))
    integers = integer_names(kernel, known=known)
    starts = {node.accumulator: node for node in kernel.body if isinstance(node, Start)}
    body: list[Node] = []
    for node in kernel.body:
        loops = [each for each in walk((node,)) if isinstance(each, For) and _is_product(each)]
        own = _joined((node,))
        if len(loops) != 1 or own != _joined(loops) or not starts.keys() >= own:
            body.append(node)
            continue
        (name,), (loop,) = own, loops
        more = [fresh_name(f"{name}_{at}", accumulators) for at in range(1, AT_A_TIME)]
        names = [name, *more]
        own_starts = [Start(each, starts[name].tensor, Reducer.MULTIPLY) for each in more]
        body += with_instead(node, loop, _in_blocks(loop, names, own_starts, integers))
    return kernel if tuple(body) == kernel.body else replace(kernel, body=tuple(body))


def _is_product(loop: For) -> bool:
    """Whether a loop multiplies factors that are all there, and may have many of them."""
    match loop:
        case For(lower=(first,), upper=(last,), body=(Accumulate() as factor,)):
            count = last - first + 1
            is_long = not count.is_constant or count.constant >= 2 * AT_A_TIME
            is_plain = factor.present == Always() and not results_of((factor,))
            return factor.reducer is Reducer.MULTIPLY and is_plain and is_long
        case _:
            return False


def _joined(nodes: Sequence[Node]) -> set[str]:
    return {node.accumulator for node in walk(tuple(nodes)) if isinstance(node, Accumulate)}


def _in_blocks(
    loop: For, names: Sequence[str], starts: Sequence[Start], taken: set[str]
) -> tuple[Node, ...]:
    """The loop with one factor for each of some accumulators at a time, where there are so many,
    and one for the rest. All but the first accumulator begin and end here."""
    (first,), (last,) = loop.lower, loop.upper
    blocks = (last - first + 1) // AT_A_TIME
    block = fresh_name(f"{loop.name}_block", taken)
    begin = first + symbol(block) * AT_A_TIME
    factors = [_moved(loop, begin + at, name) for at, name in enumerate(names)]
    joins: list[Node] = []
    left = list(names)
    while len(left) > 1:
        half = len(left) // 2
        pairs = zip(left[:half], left[half:], strict=True)
        joins += (Accumulate(one, Reducer.MULTIPLY, Result(other)) for one, other in pairs)
        del left[half:]
    many = For(block, (ZERO,), (blocks - 1,), tuple(itertools.chain(*factors)))
    return (
        If((Condition(blocks - 1),), (*starts, many, *joins)),
        replace(loop, lower=(first, first + blocks * AT_A_TIME)),
    )


def _moved(loop: For, at: Poly, name: str) -> tuple[Node, ...]:
    """The factor of a loop at one value, for another accumulator."""
    body = map_nodes(loop.body, lambda value: value.substitute({loop.name: at}))
    return renamed(body, lambda _: name)
