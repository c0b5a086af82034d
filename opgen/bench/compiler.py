"""torch.compile as a contender."""

from __future__ import annotations

import torch
from torch._functorch import config as _functorch

from opgen.bench.row import Function


def compiled(function: Function) -> Function:
    """The function compiled for the shapes it is called with, with all of its own tuning.

    Buffers that the forward pass kept are not given away: backward is timed again and again.
    """
    torch._dynamo.reset()
    with _functorch.patch(donated_buffer=False):
        made = torch.compile(function, dynamic=False)

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        with _functorch.patch(donated_buffer=False):
            return made(*inputs)

    return call
