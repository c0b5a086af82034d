"""The op at the end of a path, which begins with the name of an op in a spec.

A path is how ops that are made while a program runs are named, so that what belongs to one can be
made again, and kept on disk: `("conv2d", "x")` is the gradient for the input x. Its steps are

* the name of an input, or of several, joined: a gradient, or those as one op;
* a stage, some temporaries that are kept, or that are read from what was kept: see
  `opgen.runtime.description` for how these are told from names.

Behind the first name may stand how many leading dims all tensors have that are as many as one
likes: `pad_zero...2`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from opgen.errors import Source
from opgen.ir.family import JOINT
from opgen.ir.notation import BATCH, Op
from opgen.lang.read import read
from opgen.passes.differentiate import derivative
from opgen.passes.kept import keeping, with_kept
from opgen.passes.leading_dims import with_leading_dims
from opgen.passes.plain_products import with_plain_products
from opgen.passes.stages import stages
from opgen.runtime.description import KEEPING, KEPT, STAGE

_HALVES = ":halves"


class WholeError(Exception):
    """The leading dims of an op are one."""


@functools.lru_cache(maxsize=64)
def checked(text: str, name: str) -> dict[str, Op]:
    """The ops of a spec by name, as they are computed; raises OpgenError with every fault."""
    return {op.name: with_plain_products(op) for op in read(Source(text, name))}


def begin(path: tuple[str, ...]) -> tuple[str, int | None]:
    """The op of the spec that a path begins with, and how many leading dims all ops have, if that
    stands behind its name: `pad_zero...2`."""
    first, _, count = path[0].partition(BATCH)
    return first, int(count) if count else None


def is_derived(path: tuple[str, ...]) -> bool:
    """Whether an op at the end of a path is a gradient, and not one that a spec says."""
    return any(not step.startswith((STAGE, KEEPING, KEPT)) for step in path[1:])


def op_of(text: str, name: str, path: tuple[str, ...]) -> Op:
    """The op at the end of a path, with the leading dims that it says.

    WholeError if it needs them as one, or has none.
    """
    ops = checked(text, name)
    first, count = begin(path)
    op = ops[first]
    for at, step in enumerate(path[1:], start=1):
        if step.startswith(STAGE):
            op = _stage(op, step, origin_of(text, name, (first, *path[1:at])))
        elif step.startswith(KEEPING):
            op = keeping(op, step.removeprefix(KEEPING).split(JOINT))
        elif step.startswith(KEPT):
            before = first, *path[1:at]
            op, _ = of_kept(text, name, before, step.removeprefix(KEPT).split(JOINT))
        else:
            op = derivative(op, step, ops).op
    if count is None:
        return op
    found = with_leading_dims(op, count)
    if found is None:
        raise WholeError
    return found


def origin_of(text: str, name: str, path: tuple[str, ...]) -> Op | None:
    """The op of the spec that the op at the end of a path is derived from, with its leading dims;
    None if it is not derived."""
    if not is_derived(path):
        return None
    try:
        return op_of(text, name, path[:1])
    except WholeError:
        return None  # it has no op in these dims


def of_kept(
    text: str, name: str, path: tuple[str, ...], names: Sequence[str]
) -> tuple[Op, tuple[str, ...]]:
    """The op at the end of a path with temporaries of the op before it as inputs, and which."""
    return with_kept(op_of(text, name, path), op_of(text, name, path[:-1]), names)


def stage_step(number: int, apart: tuple[int, ...], are_halves: bool = False) -> str:
    """The step from an op to one of its stages, or to one for calls in bfloat16."""
    return f"{STAGE}{number}:{','.join(map(str, apart))}{_HALVES if are_halves else ''}"


def _stage(op: Op, step: str, origin: Op | None) -> Op:
    """The op at the end of such a step, from an op that is derived from `origin` if that is one."""
    number, _, apart = step.removeprefix(STAGE).removesuffix(_HALVES).partition(":")
    positions, are_halves = tuple(map(int, apart.split(","))), step.endswith(_HALVES)
    return stages(op, positions, are_halves=are_halves, origin=origin)[int(number)].op
