"""What runs within a call, as PyTorch's profiler sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from torch.autograd import profiler_legacy

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


def ops(call: Callable[[], object]) -> Counter[str]:
    """How often each op of PyTorch runs in a call, ops within ops included."""
    # The newer profiler writes to standard error whenever it starts and stops.
    with profiler_legacy.profile() as profile:  # type: ignore[no-untyped-call]
        call()
    return Counter(event.name for event in profile.function_events or ())


def runs_contraction(call: Callable[[], object]) -> bool:
    """Whether a product of matrices or a convolution of PyTorch runs in it."""
    return not CONTRACTIONS.isdisjoint(ops(call))
