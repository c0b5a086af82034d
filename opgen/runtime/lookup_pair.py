"""Both gradients of a convolution in one call of PyTorch's library, without Python in between.

Each has an op and a twin of its own. Where both are wanted, an op that belongs to neither looks up
the two calls together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opgen.runtime import library_call, lookup_convolution, lookup_library
from opgen.runtime.library_call import Pair
from opgen.runtime.library_plan import Key, Tensors
from opgen.runtime.lookup_table import MAX_ENTRIES, MAX_NUMBERS
from opgen.runtime.schema import Number

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

Numbers = tuple[Number, ...]
Both = Callable[[Tensors, Numbers, Tensors, Numbers], Pair | None]

_TENSOR, _INTEGER = 0, 2

_OPS: dict[tuple[str, str], tuple[lookup_library.Table, Callable[..., Any]] | None] = {}


def both_gradients(first: Operation, second: Operation) -> Both | None:
    """The function of `library_call.both_gradients`, which is asked for new calls only."""
    in_python = library_call.both_gradients(first, second)
    if in_python is None:
        return None
    names = first.convolution
    assert names is not None
    is_first = names.target == names.image
    for_image, for_weight = (first, second) if is_first else (second, first)
    found = _op(for_image, for_weight)
    if found is None:
        return in_python
    table, op = found
    cotangent, _, weight = _places(for_image)
    also, image, _ = _places(for_weight)
    answer = lookup_library.ask_python()
    entered: set[Key] = set()

    def call(one: Tensors, ones: Numbers, other: Tensors, others: Numbers) -> Pair | None:
        if not is_first:
            one, ones, other, others = other, others, one, ones
        given = (one[cotangent], other[image], one[weight])
        flowing = one[cotangent]
        if lookup_library.is_suspended() or flowing is not other[also]:
            pair = in_order(one, ones, other, others)
        else:
            pair = op(*given, *ones, *others)
            if pair[0] is answer:
                pair = in_order(one, ones, other, others)
                if pair is not None:
                    enter(given, (one, ones), (other, others), pair)
        return pair if is_first or pair is None else pair[::-1]

    def in_order(one: Tensors, ones: Numbers, other: Tensors, others: Numbers) -> Pair | None:
        if is_first:
            return in_python(one, ones, other, others)
        pair = in_python(other, others, one, ones)
        return None if pair is None else pair[::-1]

    def enter(
        given: Tensors, one: tuple[Tensors, Numbers], other: tuple[Tensors, Numbers], pair: Pair
    ) -> None:
        places = [0 if each is None else lookup_library.place_of(each) for each in given]
        key = *library_call.key_of(given, (*one[1], *other[1])), *places
        if key in entered or given[2] is None or len(entered) >= MAX_ENTRIES:
            return
        entered.add(key)
        plans = (library_call.plan_of(for_image, *one), library_call.plan_of(for_weight, *other))
        if plans[0] is not None and plans[1] is not None:
            integers = lookup_convolution.gradients(plans[0], plans[1], given)
            if integers is not None:
                table.enter(given, (*one[1], *other[1]), pair, None, integers)

    return call


def _op(
    for_image: Operation, for_weight: Operation
) -> tuple[lookup_library.Table, Callable[..., Any]] | None:
    """The table and the op of two gradients; None where there can be none."""
    names = (for_image.registered_name, for_weight.registered_name)
    with lookup_library.LOCK:
        if names not in _OPS:
            table = lookup_library.Table.new()
            attributes = (*for_image.attributes, *for_weight.attributes)
            numbers = sum(attribute.length or 1 for attribute in attributes)
            is_whole = all(attribute.type != "float" for attribute in attributes)
            kinds = [_TENSOR] * 3 + [_INTEGER] * numbers
            op = None
            is_whole = is_whole and numbers <= MAX_NUMBERS
            if table is not None and is_whole and table.library.has_convolutions:
                name = f"{names[0]}_and_{names[1]}"
                op = lookup_library.define(name, table, kinds, [0] * len(kinds), outputs=2)
            _OPS[names] = None if table is None or op is None else (table, op)
    return _OPS[names]


def _places(operation: Operation) -> list[int]:
    """The positions of result, image and weight among the inputs; that of the output is -1."""
    names = operation.convolution
    assert names is not None
    places = {each.name: at for at, each in enumerate(operation.inputs)}
    return [places.get(name, -1) for name in (names.result, names.image, names.weight)]
