"""Cells that stand alone mean what cells mean, and stand alone only where blocks share little."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.ir.cells import to_array
from opgen.ir.loops import Blocks, For, If, Kernel, Lanes, Program, walk
from opgen.passes.differentiate import adjoint
from opgen.passes.lone_cells import WIDTH
from opgen.testing.run_loops import run
from test_blocks import CONV, geometry, programs, spoiled

UPSAMPLE = check_source(read_source(SPECS / "upsample_bilinear.op"))[0]
(AVERAGE,) = (op for op in check_source(read_source(SPECS / "pool.op")) if op.name == "avg_pool2d")


def lone(program: Program) -> Kernel | None:
    """The kernel whose points have one cell of each axis but the row, if there is one."""
    for kernel in program.kernels:
        if isinstance(kernel.only, Blocks) and kernel.only.holds and kernel.row is not None:
            return kernel if kernel.row.width == WIDTH else None
    return None


def pooling(stride: int, height: int, width: int) -> dict[str, int]:
    windows = {"kernel_size": 3, "stride": stride, "padding": 1}
    values = {f"{name}[{at}]": value for name, value in windows.items() for at in (0, 1)}
    return values | {"ceil_mode": 0, "count_include_pad": 1, "H": height, "W": width}


@pytest.mark.parametrize(
    ("height", "width", "bodies"),
    [
        pytest.param(16, 16, 9, marks=pytest.mark.slow),
        (2, 14, 3),
        pytest.param(4, 17, 6, marks=pytest.mark.slow),
        (3, 15, 6),
    ],
)
def test_lone_cells_give_what_cells_give(height: int, width: int, bodies: int) -> None:
    """Cells at the borders have bodies of their own, but two with as many terms share one."""
    values = {"scale_factor": 2, "H": height, "W": width}
    plain, program = programs(adjoint(UPSAMPLE, "x").op, values, 3)
    kernel = lone(program)
    assert kernel is not None
    nodes = tuple(walk(kernel.body))
    assert not any(isinstance(node, For) for node in nodes)
    assert sum(isinstance(node, Lanes) for node in nodes) == bodies
    assert any(isinstance(node, If) for node in nodes)
    random = np.random.default_rng(0)
    tensors = {"grad_y": random.normal(size=(1, 2 * height, 2 * width, 16))}
    integers = {name: {"N": 1, "C": 16, **values}[name] for name in plain.integers}
    written = plain.kernels[-1].written
    wanted, found = (run(each, tensors, integers)[0][written] for each in (plain, program))
    pair = [to_array(each, np.dtype(np.float64)) for each in (wanted, found)]
    np.testing.assert_allclose(pair[1], pair[0], rtol=1e-12, atol=1e-12)
    assert spoiled(program, tensors, integers, written, pair[0])


def test_cells_stand_alone_only_where_a_block_shares_little() -> None:
    """Windows that overlap, and filters that all cells load, are for blocks."""
    assert lone(programs(AVERAGE, pooling(2, 16, 16), 3)[1]) is not None
    assert lone(programs(AVERAGE, pooling(1, 16, 16), 3)[1]) is None
    assert lone(programs(CONV["conv2d"], geometry(3, 20, 20, 1, 2), 9)[1]) is None


RESIZED = [
    (torch.float32, 16, 16, 4200),  # stretches of 2048 and 2152
    (torch.float32, 2, 15, 17),  # one vector, and one that begins earlier
    pytest.param((torch.float64, 3, 14, 2048), marks=pytest.mark.slow),
    (torch.bfloat16, 14, 20, 40),
    pytest.param((torch.float16, 5, 16, 2100), marks=pytest.mark.slow),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("call", RESIZED, ids=str)
def test_compiled_gradients_of_resizes_give_what_torch_gives(
    call: tuple[torch.dtype, int, int, int],
) -> None:
    dtype, height, width, channels = call
    resize = opgen.load(SPECS / "upsample_bilinear.op").upsample_bilinear
    torch.manual_seed(0)
    x = torch.randn(2, channels, height, width, dtype=dtype)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    seed = torch.randn(2, channels, 2 * height, 2 * width, dtype=dtype)
    seed = seed.to(memory_format=torch.channels_last)
    wide = x.detach().double().requires_grad_()
    y = F.interpolate(wide, scale_factor=2, mode="bilinear")
    (exact,) = torch.autograd.grad(y, [wide], seed.double())
    limit = 16 * torch.finfo(dtype).eps * exact.abs().max()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            (found,) = torch.autograd.grad(resize(x), [x], seed)
            assert found.is_contiguous(memory_format=torch.channels_last)
            assert (found.double() - exact).abs().max() <= limit
        # Pixels that lie apart, and channels that are not neighbours.
        apart = torch.randn(2, 2 * height, 2 * width, channels + 3, dtype=dtype)[..., :channels]
        for other in (apart.permute(0, 3, 1, 2), seed.contiguous()):
            y = F.interpolate(wide, scale_factor=2, mode="bilinear")
            (exact,) = torch.autograd.grad(y, [wide], other.double())
            (found,) = torch.autograd.grad(resize(x), [x], other)
            limit = 16 * torch.finfo(dtype).eps * exact.abs().max()
            assert (found.double() - exact).abs().max() <= limit
    finally:
        torch.set_num_threads(before)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 40, 16, 31), (1, 2100, 9, 16), (0, 2100, 16, 16)])
def test_compiled_means_give_what_torch_gives(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    mean = opgen.load(SPECS / "pool.op").avg_pool2d
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype).to(memory_format=torch.channels_last)
    found = mean(x, kernel_size=[3, 3], stride=[2, 2], padding=[1, 1])
    wanted = F.avg_pool2d(x.double(), 3, 2, 1)
    assert found.shape == wanted.shape
    if found.numel():
        error = (found.double() - wanted).abs().max()
        assert error <= 4 * torch.finfo(dtype).eps * wanted.abs().max()
