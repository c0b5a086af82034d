"""The shape function of a generated module with symbolic integers, as torch.compile calls it."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

import opgen
from catalogue import SPECS


def symbolic(*shape: int) -> torch.Tensor:
    """A fake tensor of symbolic sizes with these values as hints."""
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(shape))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(
        torch.empty(shape), symbolic_context=dynamic, source=ConstantSource("x")
    )


def test_sizes_stay_symbolic() -> None:
    ops = opgen.load(SPECS / "depth_to_space.op")
    shape = symbolic(2, 12, 3, 5).shape
    (output,) = ops._depth_to_space_shapes(shape, 2, 0).outputs
    assert [type(extent) for extent in output] == [torch.SymInt] * 4
    assert [int(extent) for extent in output] == [2, 3, 6, 10]


def test_lets_with_floor_division_stay_symbolic() -> None:
    ops = opgen.load(SPECS / "pool.op")
    shape = symbolic(1, 2, 9, 7).shape
    found = ops._max_pool2d_shapes(shape, (3, 3), (2, 2), (1, 1), (1, 1), 0)
    assert [int(extent) for extent in found.outputs[0]] == [1, 2, 5, 4]
    assert isinstance(found.outputs[0][2], torch.SymInt)


def test_a_symbolic_shape_that_does_not_divide_is_refused() -> None:
    ops = opgen.load(SPECS / "depth_to_space.op")
    with pytest.raises(ValueError, match="multiple of 9"):
        ops._depth_to_space_shapes(symbolic(2, 12, 3, 5).shape, 3, 0)
