"""What runs within a call, as PyTorch's profiler sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from math import prod
from typing import Any, Final, TypeVar

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


COPY_OP: Final = "aten::copy_"
"""What PyTorch runs to move a tensor to another layout, among other things."""


def traced(call: Callable[[], Result], least: int = 0) -> tuple[Result, Counter[str]]:
    """What a call returns, and how often each op of PyTorch runs in it, ops within ops included.

    Copies of fewer elements than `least` do not count.
    """
    # The newer profiler writes to standard error whenever it starts and stops.
    with profiler_legacy.profile(record_shapes=True) as profile:  # type: ignore[no-untyped-call]
        result = call()
    events = profile.function_events or ()
    return result, Counter(
        each.name for each in events if each.name != COPY_OP or _copied(each) >= least
    )


def _copied(event: Any) -> int:
    """The elements of what is written."""
    return prod(event.input_shapes[0])


def runs_contraction(ops: Collection[str]) -> bool:
    """Whether a product of matrices or a convolution of PyTorch is among them."""
    return not CONTRACTIONS.isdisjoint(ops)
