"""What a GPU alone takes for calls: replays of CUDA graphs, which the processor only starts.

As called from Python, small ops take what the processor needs to launch them, and a backward pass
what it takes to come to another thread. Where that waits for nothing, as between large ops or in
graphs, the time of the device is what counts.
"""

from __future__ import annotations

import contextlib
import statistics
import warnings
from collections.abc import Collection, Mapping
from typing import Final

import torch

from opgen.bench import timing

_SHORT: Final = 1e-3
"""Calls of less than so many seconds are several in a graph, whose own start would count else."""
_CALLS: Final = 10


def stream(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A stream on which calls, and their gradients, can be captured; nothing on a CPU."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def device_times(
    calls: Mapping[str, timing.Call],
    seconds: Mapping[str, float],
    budget: float,
    references: Collection[str],
) -> dict[str, float]:
    """The medians of the calls that can be captured, measured in turn for about `budget` seconds.

    `seconds` are those of each call as it is made from Python. All must have been made before on
    the current stream. On the default one nothing can be captured.
    """
    if not _can_capture():
        return {}
    counts = {name: _CALLS if seconds[name] < _SHORT else 1 for name in calls}
    graphs = {}
    for name, call in calls.items():
        graph = _captured(call, counts[name])
        if graph is not None:
            graphs[name] = graph
    replays: dict[str, timing.Call] = {name: graph.replay for name, graph in graphs.items()}
    if not replays:
        return {}
    found = timing.in_turn(replays, timing.on_gpu, budget, references=references)
    return {name: statistics.median(found.seconds(name)) / counts[name] for name in replays}


def _can_capture() -> bool:
    return torch.cuda.current_stream() != torch.cuda.default_stream()


def _waits(call: timing.Call) -> bool:
    """Whether a call waits for the GPU: a capture of it would fail."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def _captured(call: timing.Call, count: int) -> torch.cuda.CUDAGraph | None:
    """So many calls as a graph; None where they do what cannot be captured, as waiting."""
    if _waits(call):
        return None
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        # A capture that fails leaves the generator of random numbers within it (PyTorch 2.11):
        # another one, of nothing, ends it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the graph is empty
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
                pass
        return None
    return graph
