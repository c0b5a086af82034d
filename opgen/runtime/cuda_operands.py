"""The tensors of a call as CUDA kernels take them.

Dims stand in the order of memory where kernels were made for it. A thread computes several
neighbouring cells where these lie side by side in everything that it walks along: a small tensor
that does not, such as the filters of an image in channels-last format or an absent bias, would
narrow the accesses to large ones, and is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch

from opgen.runtime import cuda_grid

SMALL = 1 / 5
"""What part of the largest tensor a copied one has at most. Filters of 2 groups of 128 channels are
1/5.4 of images of [8,256,28,28], whose gradient reads them once for every few pixels."""


def laid_out(
    operands: Mapping[str, torch.Tensor],
    orders: Mapping[str, tuple[int, ...]],
    own: Collection[str] = (),
) -> dict[str, torch.Tensor]:
    """The operands with their dims in these orders; those that are one tensor, in one, stay one.

    What the kernels have of their `own` is one piece of memory with nothing in it yet: it is
    contiguous in the new order.
    """
    found = dict(operands)
    seen: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
    others = {id(tensor) for name, tensor in operands.items() if name not in own}
    for name, order in orders.items():
        tensor = operands[name]
        ordered = tensor.permute(order)
        if id(tensor) not in others:
            ordered = _contiguous(tensor, ordered.shape)
        found[name] = seen.setdefault((id(tensor), order), ordered)
    return found


def _contiguous(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The memory of a tensor without gaps as a contiguous one of this shape."""
    return tensor.as_strided(shape, torch.empty(shape, device="meta").stride())


def copies(
    operands: Mapping[str, torch.Tensor],
    inputs: Iterable[str],
    axes: Sequence[int],
    walked: Mapping[str, int],
) -> dict[str, torch.Tensor]:
    """Copies of those inputs that alone keep a thread from several cells of the last axis."""
    apart = [
        name
        for name in inputs
        if name in walked and operands[name].stride(-1) != 1 < operands[name].size(-1)
    ]
    if apart:
        most = SMALL * max(tensor.numel() for tensor in operands.values())
        apart = [name for name in apart if operands[name].numel() <= most]
    others = [(operands[name], step) for name, step in walked.items() if name not in apart]
    if not apart or cuda_grid.lanes(axes, others) == 1:
        return {}
    return {name: operands[name].contiguous() for name in apart}
