"""Sums whose terms are a box: which kernels are such sums, and what they are made of.

    total = 0, for every cell
    for n < N, i < H, j < W in any order
        total += term, where some conditions hold
    cell = total

Terms of a box can be shared out in any way, stretches of neighbouring ones among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opgen.algebra.poly import ZERO, Kind
from opgen.ir.loops import Axis, For, Kernel, Node, Start, Store, walk


@dataclass(frozen=True, slots=True)
class BoxSum:
    """A kernel that starts accumulators, adds up terms at every point of a box, stores them."""

    starts: tuple[Start, ...]
    box: tuple[Axis, ...]
    terms: tuple[Node, ...]
    stores: tuple[Store, ...]


def box_sum(kernel: Kernel, integers: Iterable[str]) -> BoxSum | None:
    """The sum that a kernel is, None if it is none; `integers` are known at a launch."""
    starts = tuple(node for node in kernel.body if isinstance(node, Start))
    stores = tuple(node for node in kernel.body if isinstance(node, Store))
    inner = kernel.body[len(starts) : len(kernel.body) - len(stores)]
    if kernel.row is not None or any(start.value is not None for start in starts):
        return None
    known = frozenset(integers)
    box: list[Axis] = []
    while True:
        match inner:
            case (For(name=name, lower=(low,), upper=(last,), body=body, any_order=True),):
                loads = any(atom.kind is Kind.LOAD for atom in last.all_atoms())
                if low != ZERO or loads or not last.symbols <= known:
                    return None
                box.append(Axis(name, last + 1))
                inner = body
            case _:
                break
    if not box or not stores or any(isinstance(n, For | Start | Store) for n in walk(inner)):
        return None
    return BoxSum(starts, tuple(box), inner, stores)
