"""The order of terms that are written out: those that load the same stand together.

Sixteen cells with nine terms each, tap by tap, load every pixel nine times. Pixel by pixel they
load it once, and what then has to stay in registers is the accumulators and the taps.

For a window of 7 by 7 these are too many. Column by column of the window only the seven taps of one
have to stay: ten rows of cells load sixteen pixels for its seventy products, where tap by tap they
load seventy. The terms of a cell then come in another order, as a sum's may.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, For, If, Lanes, Load, Node
from opgen.passes.merge import Body

MOST_OTHERS: Final = 10
"""The most other loads that terms may have: they stay in registers."""


def by_load(body: Body) -> Body:
    """The nodes with runs of terms in the order of what they load. A cell's terms keep their order.

    A run stays as it is where its terms do not each load one element of one tensor, or where no
    order was found that has fewer loads and in which all cells take their terms in their own order.
    """
    out: list[Node] = []
    for are_terms, group in itertools.groupby(body, lambda node: isinstance(node, Accumulate)):
        nodes = list(group)
        if are_terms:
            terms = [node for node in nodes if isinstance(node, Accumulate)]
            out += _ordered(terms)
        else:
            out += nodes
    return tuple(out)


def by_column(body: Body, tensor: str) -> Body:
    """The nodes with runs of terms in the order of the last index at which they load a tensor.

    Those that load the same stand together; the terms of a cell may change their order. A run stays
    as it is where not all of its terms load one element of that tensor.
    """
    out: list[Node] = []
    for are_terms, group in itertools.groupby(body, lambda node: isinstance(node, Accumulate)):
        for_columns = list(group)
        if are_terms:
            terms = [node for node in for_columns if isinstance(node, Accumulate)]
            keys = _places(terms, tensor)
            out += terms if keys is None else _sorted(terms, keys, lambda key: key[::-1])
            continue
        for node in for_columns:
            if isinstance(node, Lanes | For | If):
                node = replace(node, body=by_column(node.body, tensor))
            out.append(node)
    return tuple(out)


def _ordered(terms: Sequence[Accumulate]) -> Sequence[Accumulate]:
    loads = [loads_of((term,)) for term in terms]
    distinct: dict[str, dict[Load, None]] = {}
    for load in itertools.chain.from_iterable(loads):
        distinct.setdefault(load.tensor, {})[load] = None
    if not distinct:
        return terms
    tensor = max(distinct, key=lambda name: len(distinct[name]))
    others = sum(len(found) for name, found in distinct.items() if name != tensor)
    keys = _places(terms, tensor)
    if others > MOST_OTHERS or keys is None:
        return terms
    found = _sorted(terms, keys, lambda key: key)
    if _orders(found) != _orders(terms):
        found = _sorted(terms, keys, lambda key: tuple(-each for each in key))
    if _orders(found) == _orders(terms):
        return found
    places = _ready(terms, keys)
    fewer = _runs([keys[place] for place in places]) < _runs(keys)
    return [terms[place] for place in places] if fewer else terms


Key = tuple[int, ...]


def _places(terms: Sequence[Accumulate], tensor: str) -> list[Key] | None:
    """Where each term loads its one element of a tensor, beside the first one; None if nowhere."""
    own = [[load for load in loads_of((each,)) if load.tensor == tensor] for each in terms]
    if any(len(each) != 1 for each in own):
        return None
    moved = {tuple(index - index.constant for index in each[0].indices) for each in own}
    if len(moved) != 1:
        return None
    return [tuple(index.constant for index in each[0].indices) for each in own]


def _sorted(
    terms: Sequence[Accumulate], keys: Sequence[Key], of: Callable[[Key], Key]
) -> list[Accumulate]:
    pairs = sorted(zip(keys, terms, strict=True), key=lambda pair: of(pair[0]))
    return [term for _, term in pairs]


def _ready(terms: Sequence[Accumulate], keys: Sequence[Key]) -> list[int]:
    """The places of terms load by load, each as soon as it is the next one of all cells with it.

    Where cells wait for each other, what some of them load next comes first, and again later.
    """
    waiting: dict[str, deque[int]] = {}
    for place, term in enumerate(terms):
        waiting.setdefault(term.accumulator, deque()).append(place)
    left = Counter(keys)
    found: list[int] = []
    while len(found) < len(terms):
        heads: Counter[Key] = Counter()
        for queue in waiting.values():
            if queue:
                key, group = next(itertools.groupby(queue, lambda place: keys[place]))
                heads[key] += len(tuple(group))
        whole = [key for key in heads if heads[key] == left[key]]
        chosen = min(whole) if whole else max(heads, key=lambda key: (heads[key], key))
        for queue in waiting.values():
            while queue and keys[queue[0]] == chosen:
                found.append(queue.popleft())
        left[chosen] -= heads[chosen]
    return found


def _runs(keys: Sequence[Key]) -> int:
    """How many times something is loaded, if it stays while the next terms load the same."""
    return sum(1 for _ in itertools.groupby(keys))


def _orders(terms: Sequence[Accumulate]) -> dict[str, list[Accumulate]]:
    """The terms of every cell, in order."""
    found: dict[str, list[Accumulate]] = {}
    for term in terms:
        found.setdefault(term.accumulator, []).append(term)
    return found
