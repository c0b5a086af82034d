"""Long sums of rows of cells that go through the same loops as one kernel, with the sums of both.

Before: the gradients of a layer norm for its weight and its bias are kernels of their own, each of
which goes through all rows and reads the gradient of the result. After: one goes through them.

Loops are the same where all that they are is: their names and bounds, the conditions around them,
and how cells are shared out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.ir.loop_parts import accumulators_of
from opgen.ir.loops import Accumulate, For, If, Kernel, Lanes, Node, Start, Store, walk
from opgen.ir.map_loops import renamed
from opgen.ir.names import fresh_name
from opgen.ir.sums import serial_sum


@dataclass(frozen=True, slots=True)
class Together:
    """The kernel of both sums, and what of its body comes from the second one."""

    kernel: Kernel
    added: tuple[Node, ...]


def together(sums: Kernel, other: Kernel, integers: Sequence[str]) -> Together | None:
    """Two serial sums as one kernel; None where one is none, or they differ in more than terms."""
    one, two = (serial_sum(each, integers) for each in (sums, other))
    if one is None or two is None or not _are_alike(sums, other):
        return None
    taken = set(accumulators_of(*sums.body))
    names = {old: fresh_name(old, taken) for old in sorted(accumulators_of(*other.body))}
    added = renamed(other.body, names.__getitem__)
    if len(sums.body) != 3 or len(added) != 3:  # how they begin, the loop, what is stored
        return None
    body: list[Node] = []
    for own, more in zip(sums.body, added, strict=True):
        nodes = _merged((own,), (more,))
        if nodes is None:
            return None
        body += nodes
    kernel = replace(
        sums,
        name=f"{sums.name}_and_{other.written}",
        also=(*sums.also, *other.all_written),
        spec=(*sums.spec, *other.spec),
        body=tuple(body),
    )
    return Together(kernel, added) if serial_sum(kernel, integers) is not None else None


def _are_alike(sums: Kernel, other: Kernel) -> bool:
    """Whether kernels differ in what they write and how, and in nothing else."""
    same = replace(sums, name=other.name, written=other.written, also=other.also, body=other.body)
    return same == other and {*sums.all_written}.isdisjoint(other.all_written)


def _merged(one: tuple[Node, ...], two: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """What both do at the same points; None where their loops are not the same."""
    match one, two:
        case (For() | Lanes() | If() as outer,), (For() | Lanes() | If() as other,):
            if replace(outer, body=()) != replace(other, body=()):
                return None
            inner = _merged(outer.body, other.body)
            return None if inner is None else (replace(outer, body=inner),)
        case _:
            is_simple = all(isinstance(e, Start | Accumulate | Store) for e in walk((*one, *two)))
            return (*one, *two) if is_simple else None
