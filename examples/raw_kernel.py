"""Test a CUDA kernel of your own without a GPU: what the emulator says of a transposition.

The kernel moves tiles of 32 x 32 through shared memory. It is run as it should be, then with three
mistakes that are easy to make, and its memory traffic is looked at.
"""

from __future__ import annotations

import numpy as np

from opgen.testing.cuda_on_cpu import RawKernel, Report, aligned, empty
from opgen.testing.cuda_on_cpu.traffic import bank_conflicts, shortfalls

SOURCE = r"""
extern "C" __global__ void transpose(
    const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
    __shared__ float tile[32][33];
    int column = blockIdx.x*32 + threadIdx.x, row = blockIdx.y*32 + threadIdx.y;
    if (row < rows && column < columns)
        tile[threadIdx.y][threadIdx.x] = x[(long long)row*columns + column];
    __syncthreads();
    column = blockIdx.y*32 + threadIdx.x;
    row = blockIdx.x*32 + threadIdx.y;
    if (row < columns && column < rows)
        y[(long long)row*rows + column] = tile[threadIdx.x][threadIdx.y];
}
"""

MISTAKES = {
    "the barrier is missing": ("__syncthreads();", ""),
    "a bound is one too large": ("row < rows &&", "row <= rows &&"),
    "rows of the tile share a bank": ("tile[32][33]", "tile[32][32]"),
}


def launch(source: str, rows: int, columns: int, *, trace: bool = False) -> Report:
    """Transpose once, with the arguments that cupy.RawKernel takes."""
    x = aligned(np.random.default_rng(0).random((rows, columns), np.float32))
    y = empty((columns, rows), np.float32)
    kernel = RawKernel(source, "transpose")
    grid = (-(-columns // 32), -(-rows // 32))
    arguments = (x, y, np.int32(rows), np.int32(columns))
    report = kernel(grid, (32, 32), arguments, outs=("y",), trace=trace)
    if not report.findings:
        np.testing.assert_array_equal(y, x.T)
    return report


def main() -> None:
    """Findings, then traffic."""
    launch(SOURCE, 70, 90).raise_if_errors()
    print("70 x 90: right, and nothing found")
    for mistake, (old, new) in MISTAKES.items():
        report = launch(SOURCE.replace(old, new), 70, 90, trace=True)
        print(f"\nIf {mistake}:")
        for finding in report.findings:
            print(finding)
        if not report.findings:
            print(f"right, but a load takes {bank_conflicts(report):.0f} times its wavefronts")
    report = launch(SOURCE, 64, 96, trace=True)
    assert not shortfalls(report, ideal_bytes=2 * 64 * 96 * 4)
    print("\n64 x 96: every sector that is moved is needed, and there are no bank conflicts")


if __name__ == "__main__":
    main()
