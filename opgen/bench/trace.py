"""What runs within a call, as PyTorch's profiler sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from torch.autograd import profiler_legacy

Result = TypeVar("Result")

CONTRACTIONS: Final = frozenset(
    {
        "aten::convolution",
        "aten::convolution_backward",
        "aten::mkldnn_convolution",
        "aten::cudnn_convolution",
        "aten::mm",
        "aten::bmm",
        "aten::addmm",
        "aten::baddbmm",
        "aten::mkldnn_linear",
    }
)
"""Where PyTorch calls oneDNN, cuDNN, cuBLAS and the like."""


def traced(call: Callable[[], Result]) -> tuple[Result, Counter[str]]:
    """What a call returns, and how often each op of PyTorch runs in it, ops within ops included."""
    # The newer profiler writes to standard error whenever it starts and stops.
    with profiler_legacy.profile() as profile:  # type: ignore[no-untyped-call]
        result = call()
    return result, Counter(event.name for event in profile.function_events or ())


def runs_contraction(ops: Collection[str]) -> bool:
    """Whether a product of matrices or a convolution of PyTorch is among them."""
    return not CONTRACTIONS.isdisjoint(ops)
