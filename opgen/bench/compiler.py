"""torch.compile as a contender."""

from __future__ import annotations

import torch
from torch._functorch import config as _functorch

from opgen.bench.row import Function


def compiled(function: Function, device: torch.device) -> Function:
    """The function compiled for the shapes it is called with, with all of its own tuning.

    On a GPU its kernels are searched for by measuring (`max-autotune`); without CUDA graphs, whose
    memory the next call takes back, while results are still to be compared. Buffers that the
    forward pass kept are not given away: backward is timed again and again.
    """
    mode = "max-autotune-no-cudagraphs" if device.type == "cuda" else None
    torch._dynamo.reset()
    with _functorch.patch(donated_buffer=False):
        made = torch.compile(function, dynamic=False, mode=mode)

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        with _functorch.patch(donated_buffer=False):
            return made(*inputs)

    return call
