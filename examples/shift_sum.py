"""Import the module that `opgen build specs/shift_sum.op` wrote, and use it.

Prints the toy of the shift-and-sum thread, its gradient, and how fast it is beside the loop of
slices that PyTorch users write, and its gradient by hand, on cubes of 28 x 256 x 256.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

MODULE = Path("generated/shift_sum.py")


def imported(path: Path) -> ModuleType:
    """A generated module, imported from its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def slices(x: torch.Tensor, step: int) -> torch.Tensor:
    """What PyTorch users write today."""
    batch, channels, height, width = x.shape
    y = x.new_zeros(batch, 1, height, width + (channels - 1) * step)
    for channel in range(channels):
        y[..., channel * step : channel * step + width] += x[:, channel : channel + 1]
    return y


def slices_gradient(gradient: torch.Tensor, channels: int, width: int, step: int) -> torch.Tensor:
    """Its gradient written by hand: autograd's own is many times slower."""
    starts = range(0, channels * step, step)
    return torch.stack([gradient[:, 0, :, start : start + width] for start in starts], dim=1)


def main() -> None:
    """Result, gradient, comparison."""
    parser = argparse.ArgumentParser(description="Use the module of specs/shift_sum.op.")
    parser.add_argument("--cubes", type=int, default=16, help="how many make a batch")
    cubes = parser.parse_args().cubes
    if not MODULE.exists():
        sys.exit(f"{MODULE} is missing: run `opgen build specs/shift_sum.op` first")
    ops = imported(MODULE)

    x = torch.tensor([[1.0, 1, 1], [2, 2, 2], [3, 3, 3]]).reshape(1, 3, 1, 3).requires_grad_()
    y = ops.shift_sum(x)
    print("shift_sum of [[1,1,1],[2,2,2],[3,3,3]]:", y.flatten().tolist())

    (y * torch.arange(5.0)).sum().backward()
    assert x.grad is not None
    print("gradient of sum(y * [0,1,2,3,4]):      ", x.grad.reshape(3, 3).tolist())

    cube = torch.rand(cubes, 28, 256, 256, requires_grad=True)
    ours, theirs = ops.shift_sum(cube, step=2), slices(cube, 2)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.rand_like(theirs)

    def backward(y: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, cube, cotangent, retain_graph=True)[0]

    def by_hand() -> torch.Tensor:
        return slices_gradient(cotangent, 28, 256, 2)

    torch.testing.assert_close(backward(ours), backward(theirs))
    torch.testing.assert_close(backward(ours), by_hand())
    print(f"[{cubes},28,256,256], step 2: equal to the loop of slices, forward and backward")
    pixels = cube.detach()
    compare("forward ", lambda: ops.shift_sum(pixels, step=2), lambda: slices(pixels, 2))
    compare("backward", lambda: backward(ours), lambda: backward(theirs))
    compare("backward", lambda: backward(ours), by_hand, "written by hand")


def compare(
    what: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    form: str = "loop of slices",
) -> None:
    """Medians of alternating calls."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(7):
        for call, taken in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    ours_ms, theirs_ms = (statistics.median(taken) * 1e3 for taken in times)
    ratio = theirs_ms / ours_ms
    print(f"{what}: {ours_ms:.1f} ms, {form} {theirs_ms:.1f} ms: {ratio:.1f}x")


if __name__ == "__main__":
    main()
