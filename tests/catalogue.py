"""One entry for every op of specs/: cases to try, inputs for them, and what PyTorch says."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch.nn.functional as F
from hypothesis.strategies import SearchStrategy
from torch import Tensor

import catalogue_cases as cases
import catalogue_torch as equivalents
from catalogue_cases import AttributeValue, Case, Shape

__all__ = [
    "CATALOGUE",
    "LONG",
    "SPECS",
    "AttributeValue",
    "Case",
    "Entry",
    "each_but",
    "each_but_long",
    "entry",
    "load_reference",
]

LONG = ("local_attention", "conv1d", "conv3d", "conv_transpose1d", "group_norm")
"""They take a quarter of the time of all; those beside them in their specs go the same ways."""

SPECS = Path(__file__).resolve().parent.parent / "specs"


@dataclass(frozen=True)
class Entry:
    """One op, how to try it, and what is known about it."""

    spec: str
    """Stem of the spec file and of its reference."""
    op: str
    cases: SearchStrategy[Case]
    torch_equivalent: Callable[..., Tensor | tuple[Tensor, ...]] | None
    """Takes the op's parameters by name. None needs a `torch_missing`."""
    differentiable: tuple[str, ...]
    """Inputs that have a gradient."""
    linear_in: tuple[tuple[str, ...], ...] = ()
    """Groups of inputs in which the op is linear together, all others held fixed."""
    integers: Mapping[str, Callable[[Case], tuple[int, int]]] = field(default_factory=dict)
    """Inputs of an integer type, with the least and the greatest value a case allows."""
    nonzero: tuple[str, ...] = ()
    """Inputs that the op divides by."""
    integral: bool = True
    """Whether the op is defined on integer tensors."""
    rational: bool = True
    """Whether it maps rational numbers to rational numbers."""
    torch_missing: str = ""

    def __post_init__(self) -> None:
        assert (self.torch_equivalent is None) == bool(self.torch_missing), self.op

    def __repr__(self) -> str:
        return f"{self.spec}:{self.op}"

    @property
    def spec_path(self) -> Path:
        """The spec file."""
        return SPECS / f"{self.spec}.op"

    @property
    def reference(self) -> Callable[..., np.ndarray | tuple[np.ndarray, ...]]:
        """The plain loops; takes arrays and attributes by name."""
        function: Callable[..., np.ndarray | tuple[np.ndarray, ...]]
        function = getattr(load_reference(self.spec), self.op)
        return function

    def make_inputs(self, case: Case, seed: int, kind: str = "float") -> dict[str, np.ndarray]:
        """Inputs of a case. `kind` is "float" (float64, no two alike), "integer" or "fraction"."""
        generator = np.random.default_rng(seed)
        return {
            name: self._values(name, shape, case, generator, kind)
            for name, shape in case.shapes.items()
        }

    def _values(
        self, name: str, shape: Shape, case: Case, generator: np.random.Generator, kind: str
    ) -> np.ndarray:
        if name in self.integers:
            low, high = self.integers[name](case)
            return generator.integers(low, high, shape, np.int64, endpoint=True)
        match kind:
            case "float":
                values = generator.standard_normal(shape)
                return values + np.copysign(0.5, values) if name in self.nonzero else values
            case "integer" | "fraction":
                values = generator.integers(-4, 4, shape, np.int64, endpoint=True)
                if name in self.nonzero:
                    values[values == 0] = 3
                if kind == "integer":
                    return values
                fractions = np.empty(shape, object)
                for at in np.ndindex(shape):
                    fractions[at] = Fraction(int(values[at]), int(generator.integers(1, 4)))
                return fractions
            case _:
                raise ValueError(kind)


@cache
def load_reference(spec: str) -> ModuleType:
    """The module specs/references/`spec`.py; `references` is no package."""
    path = SPECS / "references" / f"{spec}.py"
    found = importlib.util.spec_from_file_location(f"reference_{spec}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------------- the catalogue
def _conv(op: str, dimensions: int, equivalent: Callable[..., Tensor]) -> Entry:
    return Entry(
        "conv",
        op,
        cases.conv_cases(dimensions),
        lambda x, **rest: equivalent(input=x, **rest),
        ("x", "weight", "bias"),
        (("x", "bias"), ("weight", "bias")),
    )


def _conv_transpose(op: str, dimensions: int, equivalent: Callable[..., Tensor]) -> Entry:
    return Entry(
        "conv_transpose",
        op,
        cases.conv_transpose_cases(dimensions),
        lambda x, **rest: equivalent(input=x, **rest),
        ("x", "weight", "bias"),
        (("x", "bias"), ("weight", "bias")),
    )


X = ("x",)
BILINEAR = ("x", "weight")

CATALOGUE: tuple[Entry, ...] = (
    Entry("shift_sum", "shift_sum", cases.shift_sum_cases(False), equivalents.shift_sum, X, (X,)),
    Entry(
        "shift_sum",
        "shift_sum_masked",
        cases.shift_sum_cases(True),
        equivalents.shift_sum,
        ("x", "mask"),
        (X, ("mask",)),
    ),
    Entry(
        "shift_sum",
        "shift_sum_pinv",
        cases.shift_sum_pinv_cases(),
        equivalents.shift_sum_pinv,
        ("y", "mask"),
        (("y",),),
        nonzero=("mask",),
        integral=False,
    ),
    Entry(
        "depth_to_space",
        "depth_to_space",
        cases.block_cases(True),
        equivalents.depth_to_space,
        X,
        (X,),
    ),
    Entry(
        "depth_to_space",
        "space_to_depth",
        cases.block_cases(False),
        equivalents.space_to_depth,
        X,
        (X,),
    ),
    _conv("conv1d", 1, F.conv1d),
    _conv("conv2d", 2, F.conv2d),
    _conv("conv3d", 3, F.conv3d),
    _conv_transpose("conv_transpose1d", 1, F.conv_transpose1d),
    _conv_transpose("conv_transpose2d", 2, F.conv_transpose2d),
    Entry("unfold", "unfold", cases.unfold_cases(False), equivalents.unfold, X, (X,)),
    Entry("unfold", "fold", cases.unfold_cases(True), equivalents.fold, X, (X,)),
    Entry(
        "unfold_conv",
        "unfold_conv",
        cases.unfold_conv_cases(),
        equivalents.unfold_conv,
        BILINEAR,
        (X, ("weight",)),
    ),
    Entry(
        "conv_depth_to_space",
        "conv_depth_to_space",
        cases.conv_depth_to_space_cases(),
        equivalents.conv_depth_to_space,
        ("x", "weight", "bias"),
        (("x", "bias"), ("weight", "bias")),
    ),
    Entry(
        "upsample_nearest",
        "upsample_nearest",
        cases.scale_cases(),
        equivalents.interpolate("nearest"),
        X,
        (X,),
    ),
    Entry(
        "upsample_nearest",
        "upsample_nearest_size",
        cases.resize_cases(False),
        equivalents.nearest_size,
        X,
        (X,),
    ),
    Entry(
        "upsample_nearest",
        "upsample_nearest_exact",
        cases.resize_cases(False),
        equivalents.nearest_exact,
        X,
        (X,),
    ),
    Entry(
        "upsample_bilinear",
        "upsample_bilinear",
        cases.scale_cases(),
        equivalents.interpolate("bilinear"),
        X,
        (X,),
        integral=False,
    ),
    Entry(
        "upsample_bilinear",
        "upsample_bilinear_size",
        cases.resize_cases(True),
        equivalents.bilinear_size,
        X,
        (X,),
        integral=False,
    ),
    Entry(
        "upsample_bicubic",
        "upsample_bicubic",
        cases.scale_cases(),
        equivalents.interpolate("bicubic"),
        X,
        (X,),
        integral=False,
    ),
    Entry(
        "pool",
        "avg_pool2d",
        cases.pool_cases(True),
        lambda x, **rest: F.avg_pool2d(x, **rest),
        X,
        (X,),
        integral=False,
    ),
    Entry("pool", "max_pool2d", cases.pool_cases(False), equivalents.max_pool2d, X),
    Entry("roll", "roll", cases.roll_cases(), equivalents.roll, X, (X,)),
    Entry("pad", "pad_zero", cases.pad_cases("constant"), equivalents.pad("constant"), X, (X,)),
    Entry("pad", "pad_reflect", cases.pad_cases("reflect"), equivalents.pad("reflect"), X, (X,)),
    Entry(
        "pad", "pad_replicate", cases.pad_cases("replicate"), equivalents.pad("replicate"), X, (X,)
    ),
    Entry("pad", "pad_circular", cases.pad_cases("circular"), equivalents.pad("circular"), X, (X,)),
    Entry(
        "channel_shuffle",
        "channel_shuffle",
        cases.channel_shuffle_cases(),
        equivalents.channel_shuffle,
        X,
        (X,),
    ),
    Entry(
        "correlation",
        "correlation",
        cases.correlation_cases(),
        equivalents.correlation,
        ("f", "g"),
        (("f",), ("g",)),
        integral=False,
    ),
    Entry(
        "local_attention",
        "local_attention",
        cases.local_attention_cases(),
        equivalents.local_attention,
        ("q", "k", "v"),
        (("v",),),
        integral=False,
        rational=False,
    ),
    Entry(
        "embedding",
        "embedding",
        cases.embedding_cases(),
        equivalents.embedding,
        ("weight",),
        (("weight",),),
        integers={"indices": lambda case: (0, case.shapes["weight"][0] - 1)},
    ),
    Entry(
        "shift_conv",
        "shift_conv",
        cases.shift_conv_cases(),
        equivalents.shift_conv,
        BILINEAR,
        (X, ("weight",)),
        # Beyond both edges too.
        integers={"offset": lambda case: (-max(case.shapes["x"][2:]) - 1, 7)},
    ),
    Entry(
        "involution",
        "involution",
        cases.involution_cases(),
        equivalents.involution,
        BILINEAR,
        (X, ("weight",)),
    ),
    Entry("haar", "haar", cases.haar_cases(False), equivalents.haar, X, (X,), integral=False),
    Entry(
        "haar",
        "haar_inverse",
        cases.haar_cases(True),
        equivalents.haar_inverse,
        X,
        (X,),
        integral=False,
    ),
    Entry(
        "softmax",
        "softmax",
        cases.softmax_cases(),
        equivalents.softmax,
        X,
        integral=False,
        rational=False,
    ),
    Entry(
        "norm",
        "layer_norm",
        cases.layer_norm_cases(),
        equivalents.layer_norm,
        ("x", "weight", "bias"),
        (("weight", "bias"),),
        integral=False,
        rational=False,
    ),
    Entry(
        "norm",
        "group_norm",
        cases.group_norm_cases(),
        equivalents.group_norm,
        ("x", "weight", "bias"),
        (("weight", "bias"),),
        integral=False,
        rational=False,
    ),
)


def entry(op: str) -> Entry:
    """The entry of an op."""
    (found,) = (candidate for candidate in CATALOGUE if candidate.op == op)
    return found


def each_but(left_out: Iterable[str], subjects: Iterable[Entry]) -> pytest.MarkDecorator:
    """A parameter `subject` of all these, of which some ops are left to the longer tiers."""
    return pytest.mark.parametrize(
        "subject",
        [
            pytest.param(subject, marks=[pytest.mark.slow] if subject.op in left_out else [])
            for subject in subjects
        ],
        ids=repr,
    )


each_but_long = functools.partial(each_but, LONG)
