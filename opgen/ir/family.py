"""Ops together with the ops that compute their gradients: what a generated module holds."""

from __future__ import annotations

from dataclasses import dataclass

from opgen.ir.notation import Op

JOINT = ","
"""Between the names of inputs whose gradients one op computes, an output for each.

The runtime, which imports nothing of this, has the same constant in its `description`.
"""


@dataclass(frozen=True, slots=True)
class GradientLink:
    """The op `op` computes the gradient of `input`, or of several, joined by `JOINT`.

    `tensors` says what each of its inputs is for the op that is linked from: `x`, one of its
    inputs, or `grad y`, the gradient of one of its outputs.
    """

    input: str
    op: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """An op of a family. `path` is the op of the spec, then the input of each differentiation."""

    op: Op
    path: tuple[str, ...]
    links: tuple[GradientLink, ...]

    @property
    def is_public(self) -> bool:
        """Whether it is an op of the spec."""
        return len(self.path) == 1


@dataclass(frozen=True, slots=True)
class Keepable:
    """What gradients of an op may read beside its inputs.

    `totals` are temporaries of fewer dims than a tensor, whose cells are made of several others
    each, `positions` are those of extremes, and `telling` outputs that tell positions.
    """

    totals: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    telling: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinedDims:
    """Neighbouring dims that may be one: their sizes, slowest first, and where they begin in each
    tensor that has them, see `opgen.passes.joined_dims`."""

    sizes: tuple[str, ...]
    places: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a caller may know about an op besides its signature.

    `digest` tells ops apart by what they compute. Each of `parallel` names, for the tensors that
    have it, the axis of a dim along which the op works slice by slice. Each of `linear` is a set of
    inputs in which the op is linear together while all others are held fixed.
    """

    digest: str
    parallel: tuple[tuple[tuple[str, int], ...], ...]
    linear: tuple[tuple[str, ...], ...]
