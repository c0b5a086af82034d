"""Ops of opgen beside PyTorch's on the CPU: `python benchmarks/cpu.py [--threads N] [--only NAME]`.

Both run in one process, call by call in turn; a row gives medians in milliseconds and the median of
the ratios of neighbouring calls. Outputs come from PyTorch's allocator, inside the timing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import opgen

SPECS = Path(__file__).parent.parent / "specs"
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Row:
    """An op, what PyTorch has for it, and the inputs; gradients are for all inputs."""

    name: str
    ours: Function
    theirs: Function
    inputs: tuple[Tensor, ...]


def slices(x: Tensor, mask: Tensor) -> Tensor:
    """Shift every channel by two columns more and sum: the fastest eager form."""
    batch, channels, height, width = x.shape
    y = x.new_zeros(batch, 1, height, width + (channels - 1) * 2)
    for channel in range(channels):
        y[..., channel * 2 : channel * 2 + width].addcmul_(x[:, channel : channel + 1], mask)
    return y


def rows() -> Iterator[Row]:
    """The workloads."""
    shift, shuffle, conv, up, nearest, transpose, unfold = (
        opgen.load(SPECS / f"{name}.op")
        for name in (
            *("shift_sum", "depth_to_space", "conv", "upsample_bilinear", "upsample_nearest"),
            *("conv_transpose", "unfold"),
        )
    )
    torch.manual_seed(0)
    yield Row(
        "shift_sum [16,28,256,256] step 2, mask",
        lambda x, m: shift.shift_sum_masked(x, m, step=2),
        slices,
        (torch.randn(16, 28, 256, 256), torch.rand(1, 1, 256, 256)),
    )
    image = torch.randn(8, 64, 180, 320)
    for r in (2, 4):
        yield Row(
            f"depth_to_space [8,64,180,320] r={r}",
            lambda x, r=r: shuffle.depth_to_space(x, r=r),
            lambda x, r=r: F.pixel_shuffle(x, r),
            (image,),
        )
    for x in (torch.randn(8, 2048, 8, 8), torch.randn(8, 2048, 16, 16)):
        shape = str(list(x.shape)).replace(" ", "")
        yield Row(
            f"nearest {shape} x2",
            lambda x: nearest.upsample_nearest(x, scale_factor=2),
            lambda x: F.interpolate(x, scale_factor=2),
            (x,),
        )
        yield Row(
            f"bilinear {shape} x2",
            lambda x: up.upsample_bilinear(x, scale_factor=2),
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            (x,),
        )
        yield Row(
            f"depthwise transposed 2x2 {shape}",
            lambda x, w: transpose.conv_transpose2d(x, w, stride=2, groups=2048),
            lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2048),
            (x, torch.randn(2048, 1, 2, 2)),
        )
    for groups in (256, 32, 4):
        yield Row(
            f"conv 3x3 [8,256,56,56] groups {groups}",
            lambda x, w, g=groups: conv.conv2d(x, w, padding=1, groups=g),
            lambda x, w, g=groups: F.conv2d(x, w, padding=1, groups=g),
            (torch.randn(8, 256, 56, 56), torch.randn(256, 256 // groups, 3, 3)),
        )
    yield Row(
        "unfold 3x3 [64,10,50,50]",
        lambda x: unfold.unfold(x, kernel_size=3, padding=1),
        lambda x: F.unfold(x, 3, padding=1),
        (torch.randn(64, 10, 50, 50),),
    )


def compare(name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
    """Print one line."""
    times: tuple[list[float], list[float]] = ([], [])
    for call in (ours, theirs):
        call()
    for _ in range(9):
        for call, taken in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            call()
            taken.append((time.perf_counter() - start) * 1e3)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    mine, other = map(statistics.median, times)
    print(f"{name:52} opgen {mine:9.2f}   PyTorch {other:9.2f}   {ratio:6.2f}x", flush=True)


def main() -> None:
    """Every row, forward and backward."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"PyTorch {torch.__version__}, {options.threads} threads; milliseconds, PyTorch/opgen")
    for row in rows():
        if options.only not in row.name:
            continue
        measure(row)


def measure(row: Row) -> None:
    """One row, forward and backward."""
    with torch.no_grad():
        compare(row.name, lambda: row.ours(*row.inputs), lambda: row.theirs(*row.inputs))
    inputs = [x.clone().requires_grad_() for x in row.inputs]
    ours, theirs = row.ours(*inputs), row.theirs(*inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    cotangent = torch.randn_like(ours)

    def backward(y: Tensor) -> object:
        return torch.autograd.grad(y, inputs, cotangent, retain_graph=True)

    compare(f"{row.name}, backward", lambda: backward(ours), lambda: backward(theirs))


if __name__ == "__main__":
    main()
