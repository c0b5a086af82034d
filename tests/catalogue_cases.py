"""Strategies for the shapes and attributes on which the ops of specs/ are tried.

Cases are small on purpose (extents of 0 to about 6, ones and primes among them) and use every
attribute. Extents of 0 occur where both PyTorch and the op allow them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis.strategies import DrawFn

Shape = tuple[int, ...]
AttributeValue = int | float | bool | str | tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """Shapes of the inputs that are given (an optional one may be missing) and all attributes."""

    shapes: dict[str, Shape]
    attributes: dict[str, AttributeValue]


# ---------------------------------------------------------------------------- pieces of cases
batches = st.sampled_from((1, 2, 3, 1, 2, 0))
channels = st.integers(1, 3)
extents = st.integers(0, 6)
positive = st.integers(1, 6)
flags = st.booleans()
leading = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@dataclass(frozen=True)
class Window:
    """A sliding window along one dimension; at least one fits."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """Cells from its first tap to its last."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def count(self) -> int:
        """How many windows there are."""
        return (self.size + 2 * self.padding - self.reach) // self.stride + 1


@st.composite
def windows(draw: DrawFn, dimensions: int = 2) -> tuple[Window, ...]:
    """One window for each dimension."""
    result = []
    for _ in range(dimensions):
        kernel, stride, dilation = draw(st.tuples(*[st.integers(1, 3)] * 3))
        padding = draw(st.integers(0, 3))
        least = max(1, dilation * (kernel - 1) + 1 - 2 * padding)
        result.append(
            Window(draw(st.integers(least, least + 4)), kernel, stride, padding, dilation)
        )
    return tuple(result)


def _all(windows: tuple[Window, ...], name: str) -> tuple[int, ...]:
    return tuple(getattr(window, name) for window in windows)


def _optional(draw: DrawFn, name: str, shape: Shape) -> dict[str, Shape]:
    return {name: shape} if draw(flags) else {}


# ---------------------------------------------------------------------------- cases
@st.composite
def shift_sum_cases(draw: DrawFn, masked: bool) -> Case:
    B, C, H, W = draw(st.tuples(batches, st.integers(1, 5), extents, extents))
    shapes: dict[str, Shape] = {"x": (B, C, H, W)}
    if masked:
        shapes["mask"] = (1, 1, H, W)
    return Case(shapes, {"step": draw(st.integers(0, 3))})


@st.composite
def shift_sum_pinv_cases(draw: DrawFn) -> Case:
    B, C, H, W = draw(st.tuples(batches, st.integers(1, 5), extents, extents))
    step = draw(st.integers(0, 3))
    y = (B, 1, H, W + (C - 1) * step)
    return Case({"y": y} | _optional(draw, "mask", (1, 1, H, W)), {"C": C, "step": step})


@st.composite
def block_cases(draw: DrawFn, deep: bool) -> Case:
    N, C, H, W, r = draw(st.tuples(batches, channels, extents, extents, st.integers(1, 3)))
    shape = (N, C * r * r, H, W) if deep else (N, C, H * r, W * r)
    return Case({"x": shape}, {"r": r, "mode": draw(st.sampled_from(["CRD", "DCR"]))})


@st.composite
def conv_cases(draw: DrawFn, dimensions: int) -> Case:
    sliding = draw(windows(dimensions))
    N, groups, inputs, outputs = draw(st.tuples(batches, channels, channels, channels))
    shapes = {
        "x": (N, groups * inputs, *_all(sliding, "size")),
        "weight": (groups * outputs, inputs, *_all(sliding, "kernel")),
    } | _optional(draw, "bias", (groups * outputs,))
    names = ("stride", "padding", "dilation")
    attributes: dict[str, AttributeValue] = {"groups": groups}
    for name in names:
        values = _all(sliding, name)
        attributes[name] = values[0] if dimensions == 1 else values
    return Case(shapes, attributes)


@st.composite
def conv_transpose_cases(draw: DrawFn, dimensions: int) -> Case:
    N, groups, inputs, outputs = draw(st.tuples(batches, channels, channels, channels))
    sizes, names = [], ("kernel", "stride", "dilation", "padding", "output_padding")
    settings: dict[str, list[int]] = {name: [] for name in names}
    for _ in range(dimensions):
        kernel, stride, dilation = draw(st.tuples(*[st.integers(1, 3)] * 3))
        padding = draw(st.integers(0, 2))
        extra = draw(st.integers(0, max(stride, dilation) - 1))
        # The least size whose output is not empty.
        missing = 2 * padding - dilation * (kernel - 1) - extra
        least = 1 + max(0, -(-missing // stride))
        sizes.append(draw(st.integers(least, least + 3)))
        for name, value in zip(names, (kernel, stride, dilation, padding, extra), strict=True):
            settings[name].append(value)
    kernel_size = tuple(settings.pop("kernel"))
    shapes = {
        "x": (N, groups * inputs, *sizes),
        "weight": (groups * inputs, outputs, *kernel_size),
    } | _optional(draw, "bias", (groups * outputs,))
    attributes: dict[str, AttributeValue] = {"groups": groups}
    for name, values in settings.items():
        attributes[name] = values[0] if dimensions == 1 else tuple(values)
    return Case(shapes, attributes)


@st.composite
def unfold_cases(draw: DrawFn, columns: bool) -> Case:
    sliding, C = draw(st.tuples(windows(), channels))
    attributes: dict[str, AttributeValue] = {
        "kernel_size": _all(sliding, "kernel"),
        "dilation": _all(sliding, "dilation"),
        "padding": _all(sliding, "padding"),
        "stride": _all(sliding, "stride"),
    }
    shape: Shape = (C, *_all(sliding, "size"))
    if columns:
        attributes["output_size"] = _all(sliding, "size")
        taps, count = math.prod(_all(sliding, "kernel")), math.prod(_all(sliding, "count"))
        shape = (C * taps, count)
    return Case({"x": (*draw(leading), *shape)}, attributes)


@st.composite
def unfold_conv_cases(draw: DrawFn) -> Case:
    sliding, (N, C, O) = draw(st.tuples(windows(), st.tuples(batches, channels, channels)))
    shapes = {"x": (N, C, *_all(sliding, "size")), "weight": (O, C, *_all(sliding, "kernel"))}
    names = ("dilation", "padding", "stride")
    return Case(shapes, {name: _all(sliding, name) for name in names})


@st.composite
def involution_cases(draw: DrawFn) -> Case:
    sliding, (N, G, C) = draw(st.tuples(windows(), st.tuples(batches, channels, channels)))
    weight = (N, G, *_all(sliding, "kernel"), *_all(sliding, "count"))
    shapes = {"x": (N, G * C, *_all(sliding, "size")), "weight": weight}
    names = ("dilation", "padding", "stride")
    return Case(shapes, {name: _all(sliding, name) for name in names})


@st.composite
def conv_depth_to_space_cases(draw: DrawFn) -> Case:
    N, C, O, r = draw(st.tuples(batches, channels, st.integers(1, 2), st.integers(1, 3)))
    kernel, padding = draw(st.tuples(*[st.tuples(st.integers(1, 3), st.integers(1, 3))] * 2))
    padding = (padding[0] - 1, padding[1] - 1)
    least = [max(1, k - 2 * p) for k, p in zip(kernel, padding, strict=True)]
    size = [draw(st.integers(n, n + 3)) for n in least]
    shapes = {"x": (N, C, *size), "weight": (O * r * r, C, *kernel)}
    shapes |= _optional(draw, "bias", (O * r * r,))
    return Case(shapes, {"r": r, "padding": padding})


@st.composite
def scale_cases(draw: DrawFn) -> Case:
    shape = draw(st.tuples(batches, channels, positive, positive))
    return Case({"x": shape}, {"scale_factor": draw(st.integers(1, 4))})


@st.composite
def resize_cases(draw: DrawFn, corners: bool) -> Case:
    shape, size = draw(
        st.tuples(st.tuples(batches, channels, positive, positive), st.tuples(positive, positive))
    )
    attributes: dict[str, AttributeValue] = {"output_size": size}
    if corners:
        attributes["align_corners"] = draw(flags)
    return Case({"x": shape}, attributes)


@st.composite
def pool_cases(draw: DrawFn, mean: bool) -> Case:
    N, C = draw(st.tuples(batches, channels))
    sliding = []
    for _ in range(2):
        kernel, stride = draw(st.tuples(*[st.integers(1, 3)] * 2))
        dilation = 1 if mean else draw(st.integers(1, 3))
        reach = dilation * (kernel - 1) + 1
        padding = draw(st.integers(0, kernel // 2))
        # PyTorch's index of a window all of whose taps fall into padding is undefined; a size of
        # at least `dilation` has no such window.
        least = max(1, reach - 2 * padding, dilation)
        size = draw(st.integers(least, least + 4))
        sliding.append(Window(size, kernel, stride, padding, dilation))
    both = tuple(sliding)
    attributes: dict[str, AttributeValue] = {
        "kernel_size": _all(both, "kernel"),
        "stride": _all(both, "stride"),
        "padding": _all(both, "padding"),
        "ceil_mode": draw(flags),
    }
    if mean:
        attributes["count_include_pad"] = draw(flags)
    else:
        attributes["dilation"] = _all(both, "dilation")
    return Case({"x": (N, C, *_all(both, "size"))}, attributes)


@st.composite
def roll_cases(draw: DrawFn) -> Case:
    shifts = draw(st.tuples(*[st.integers(-8, 8)] * 2))
    return Case({"x": (*draw(leading), *draw(st.tuples(extents, extents)))}, {"shifts": shifts})


@st.composite
def pad_cases(draw: DrawFn, mode: str) -> Case:
    H, W = draw(st.tuples(positive, positive))
    padding = []
    for size in (W, W, H, H):
        match mode:
            case "constant":  # also crops, at most all of the image
                padding.append(draw(st.integers(-(size // 2), 4)))
            case "reflect":
                padding.append(draw(st.integers(0, size - 1)))
            case "circular":  # PyTorch goes round at most once
                padding.append(draw(st.integers(0, size)))
            case _:
                padding.append(draw(st.integers(0, 4)))
    return Case({"x": (*draw(leading), H, W)}, {"padding": tuple(padding)})


@st.composite
def channel_shuffle_cases(draw: DrawFn) -> Case:
    N, groups, C, H, W = draw(st.tuples(batches, st.integers(1, 4), channels, positive, positive))
    return Case({"x": (N, groups * C, H, W)}, {"groups": groups})


@st.composite
def correlation_cases(draw: DrawFn) -> Case:
    shape = draw(st.tuples(batches, channels, extents, extents))
    radius, dilation = draw(st.tuples(st.integers(0, 2), st.integers(1, 2)))
    return Case({"f": shape, "g": shape}, {"radius": radius, "dilation": dilation})


@st.composite
def local_attention_cases(draw: DrawFn) -> Case:
    B, A, T, E, V = draw(st.tuples(batches, channels, st.integers(1, 7), channels, channels))
    attributes: dict[str, AttributeValue] = {
        "radius": draw(st.integers(0, 3)),
        "dilation": draw(st.integers(1, 3)),
        "scale": draw(st.sampled_from([1.0, 0.5, -2.0])),
    }
    return Case({"q": (B, A, T, E), "k": (B, A, T, E), "v": (B, A, T, V)}, attributes)


@st.composite
def embedding_cases(draw: DrawFn) -> Case:
    table = draw(st.tuples(positive, extents))
    return Case({"indices": draw(leading), "weight": table}, {})


@st.composite
def shift_conv_cases(draw: DrawFn) -> Case:
    N, C, O, H, W = draw(st.tuples(batches, channels, channels, extents, extents))
    return Case({"x": (N, C, H, W), "offset": (C, 2), "weight": (O, C)}, {})


@st.composite
def haar_cases(draw: DrawFn, inverse: bool) -> Case:
    N, C, H, W = draw(st.tuples(batches, channels, st.integers(1, 3), st.integers(1, 3)))
    return Case({"x": (N, 4 * C, H, W) if inverse else (N, C, 2 * H, 2 * W)}, {})


@st.composite
def softmax_cases(draw: DrawFn) -> Case:
    return Case({"x": (*draw(leading), draw(extents))}, {})


epsilons = st.sampled_from([1e-5, 1e-3, 0.5])


@st.composite
def layer_norm_cases(draw: DrawFn) -> Case:
    D = draw(positive)
    affine = _optional(draw, "weight", (D,)) | _optional(draw, "bias", (D,))
    return Case({"x": (*draw(leading), D)} | affine, {"eps": draw(epsilons)})


@st.composite
def group_norm_cases(draw: DrawFn) -> Case:
    # PyTorch has no gradient for an empty batch.
    N, groups, C = draw(st.tuples(channels, channels, channels))
    H, W = draw(st.tuples(positive, positive))
    affine = _optional(draw, "weight", (groups * C,)) | _optional(draw, "bias", (groups * C,))
    shapes = {"x": (N, groups * C, H, W)} | affine
    return Case(shapes, {"num_groups": groups, "eps": draw(epsilons)})
