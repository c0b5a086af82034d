"""Import the module that `opgen build specs/shift_sum.op` wrote, and use it.

Prints the toy of the shift-and-sum thread, its gradient, and a check against the loop of slices
that PyTorch users write.
"""

from __future__ import annotations

import importlib.util
import sys
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


def main() -> None:
    """Result, gradient, comparison."""
    if not MODULE.exists():
        sys.exit(f"{MODULE} is missing: run `opgen build specs/shift_sum.op` first")
    ops = imported(MODULE)

    x = torch.tensor([[1.0, 1, 1], [2, 2, 2], [3, 3, 3]]).reshape(1, 3, 1, 3).requires_grad_()
    y = ops.shift_sum(x)
    print("shift_sum of [[1,1,1],[2,2,2],[3,3,3]]:", y.flatten().tolist())

    (y * torch.arange(5.0)).sum().backward()
    assert x.grad is not None
    print("gradient of sum(y * [0,1,2,3,4]):      ", x.grad.reshape(3, 3).tolist())

    cube = torch.rand(2, 28, 64, 64, dtype=torch.float64, requires_grad=True)
    ours, theirs = ops.shift_sum(cube, step=2), slices(cube, 2)
    torch.testing.assert_close(ours, theirs)
    first, second = (torch.autograd.grad((v * v).sum(), cube)[0] for v in (ours, theirs))
    torch.testing.assert_close(first, second)
    print("a [2,28,64,64] cube, step 2: equal to the loop of slices, forward and backward")


if __name__ == "__main__":
    main()
