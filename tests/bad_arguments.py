"""Calls with arguments of wrong kinds: tensors, attributes, or their number."""

from __future__ import annotations

import numpy as np
import torch

from bad_calls import (
    ANY_FLOAT,
    ANY_NUMBER,
    FILLED,
    IMAGE,
    KERNEL,
    MASKED,
    SINGLE,
    Bad,
    W,
    X,
    conv1d,
    conv2d,
    embedding,
    inline,
    nested,
    quantized,
    roll,
    softmax,
    spec,
    zeros,
)

TENSORS = (
    Bad(
        "dtype bool",
        lambda: conv1d(X.bool(), W.bool()),
        TypeError,
        f"conv1d: x must be {ANY_NUMBER}, got bool",
    ),
    Bad(
        "dtype complex",
        lambda: conv1d(X, W.to(torch.complex64)),
        TypeError,
        f"conv1d: weight must be {ANY_NUMBER}, got complex64",
    ),
    Bad(
        "dtype unsigned",
        lambda: roll(zeros(3, 3).to(torch.uint16), shifts=1),
        TypeError,
        f"roll: x must be {ANY_NUMBER}, got uint16",
    ),
    Bad(
        "dtype integer for a float op",
        lambda: softmax(torch.arange(3)),
        TypeError,
        f"softmax: x must be {ANY_FLOAT}, got int64",
    ),
    Bad(
        "dtype of a declared tensor",
        lambda: inline(SINGLE).single(zeros(3).double()),
        TypeError,
        "single: x must be float32, got float64",
    ),
    Bad(
        "dtype of a mask",
        lambda: inline(MASKED).masked(zeros(3), zeros(3)),
        TypeError,
        "masked: m must be bool, got float32",
    ),
    Bad(
        "dtype of an index",
        lambda: embedding(zeros(3), zeros(4, 2)),
        TypeError,
        "embedding: indices must be int32 or int64, got float32",
    ),
    Bad(
        "dtypes mixed",
        lambda: conv1d(X, W.double()),
        TypeError,
        "conv1d: weight is float64 but x is float32; tensors declared without a dtype share one",
    ),
    Bad(
        "dtypes mixed, third input",
        lambda: conv1d(X, W, torch.zeros(4, dtype=torch.int64)),
        TypeError,
        "conv1d: bias is int64 but x is float32; tensors declared without a dtype share one",
    ),
    Bad(
        "devices mixed",
        lambda: conv1d(X, W.to("meta")),
        ValueError,
        "conv1d: weight is on meta but x is on cpu; all tensors of a call must be on one device",
    ),
    Bad(
        "list",
        lambda: softmax([1.0, 2.0]),
        TypeError,
        "softmax: x must be a tensor, got list",
    ),
    Bad(
        "array",
        lambda: softmax(np.zeros(3)),
        TypeError,
        "softmax: x must be a tensor, got numpy.ndarray",
    ),
    Bad(
        "number",
        lambda: conv1d(X, 1.0),
        TypeError,
        "conv1d: weight must be a tensor, got float",
    ),
    Bad(
        "None",
        lambda: conv1d(X, None),
        TypeError,
        "conv1d: weight must be a tensor, got None",
    ),
    Bad(
        "sparse",
        lambda: roll(zeros(3, 3).to_sparse(), shifts=1),
        TypeError,
        "roll: x must be a dense strided tensor, got a sparse_coo one",
    ),
    Bad(
        "quantized",
        lambda: roll(quantized(), shifts=1),
        TypeError,
        "roll: x must be a dense strided tensor, got a quantized one",
    ),
    Bad(
        "nested",
        lambda: softmax(nested()),
        TypeError,
        "softmax: x must be a dense strided tensor, got a nested one",
    ),
    Bad(
        "slices of a wrong rank",
        lambda: torch.vmap(lambda x: conv1d(x, W))(zeros(3, 2, 9)),
        ValueError,
        "conv1d: x must be 3-d [N, groups*Ci, W], got shape (2, 9)",
    ),
    Bad(
        "a size that does not fit, under a transform",
        lambda: torch.func.grad(lambda x: conv1d(x, W).sum())(zeros(1, 3, 9)),  # type: ignore[attr-defined]
        ValueError,
        "conv1d: weight.shape[1] = 2 but the spec needs Ci = 3 (Ci=3 from x.shape[1])",
    ),
)

SIGNATURES = (
    Bad(
        "input missing",
        lambda: conv1d(X),
        TypeError,
        "conv1d() missing 1 required positional argument: 'weight'",
    ),
    Bad(
        "too many inputs",
        lambda: conv1d(X, W, zeros(4), zeros(4)),
        TypeError,
        "conv1d() takes from 2 to 3 positional arguments but 4 were given",
    ),
    Bad(
        "attribute by position",
        lambda: spec("roll").roll(zeros(3, 3), 1),
        TypeError,
        "roll() takes 1 positional argument but 2 were given",
    ),
    Bad(
        "attribute in the place of an optional input",
        lambda: conv1d(X, W, 2),
        TypeError,
        "conv1d: bias must be a tensor, got int",
    ),
    Bad(
        "keyword unknown",
        lambda: conv1d(X, W, border="zeros"),
        TypeError,
        "conv1d() got an unexpected keyword argument 'border'",
    ),
    Bad(
        "input twice",
        lambda: conv1d(X, W, x=X),
        TypeError,
        "conv1d() got multiple values for argument 'x'",
    ),
    Bad(
        "class: attribute unknown",
        lambda: spec("conv").Conv1d(border="zeros"),
        TypeError,
        "Conv1d.__init__() got an unexpected keyword argument 'border'",
    ),
    Bad(
        "class: attribute by position",
        lambda: spec("conv").Conv1d(2),
        TypeError,
        "Conv1d.__init__() takes 1 positional argument but 2 were given",
    ),
    Bad(
        "class: input missing",
        lambda: spec("conv").Conv1d()(X),
        TypeError,
        "Conv1d.forward() missing 1 required positional argument: 'weight'",
    ),
    Bad(
        "class: attribute of a wrong type",
        lambda: spec("conv").Conv1d(stride=0.5)(X, W),
        TypeError,
        "conv1d: attribute 'stride' must be an int, got 0.5 (float)",
    ),
)

ATTRIBUTES = (
    Bad(
        "missing",
        lambda: spec("pad").pad_zero(zeros(3, 3)),
        TypeError,
        "pad_zero: attribute 'padding' has no default and was not given",
    ),
    Bad(
        "size missing",
        lambda: spec("shift_sum").shift_sum_pinv(zeros(1, 1, 3, 3)),
        TypeError,
        "shift_sum_pinv: attribute 'C' has no default and was not given",
    ),
    Bad(
        "None despite a default",
        lambda: conv1d(X, W, stride=None),
        TypeError,
        "conv1d: attribute 'stride' must be an int, got None",
    ),
    Bad(
        "float for int",
        lambda: conv1d(X, W, stride=2.0),
        TypeError,
        "conv1d: attribute 'stride' must be an int, got 2.0 (float)",
    ),
    Bad(
        "bool for int",
        lambda: conv1d(X, W, stride=True),
        TypeError,
        "conv1d: attribute 'stride' must be an int, got True (bool)",
    ),
    Bad(
        "str for int",
        lambda: conv1d(X, W, stride="2"),
        TypeError,
        "conv1d: attribute 'stride' must be an int, got '2' (str)",
    ),
    Bad(
        "tensor for int",
        lambda: conv1d(X, W, stride=torch.tensor(2)),
        TypeError,
        "conv1d: attribute 'stride' must be an int, got a tensor of shape ()",
    ),
    Bad(
        "NumPy integer for int",
        lambda: conv1d(X, W, stride=np.int64(2)),
        TypeError,
        "conv1d: attribute 'stride' must be an int, got np.int64(2) (numpy.int64)",
    ),
    Bad(
        "tuple for int",
        lambda: conv1d(X, W, stride=(1,)),
        TypeError,
        "conv1d: attribute 'stride' must be an int, got (1,) (tuple)",
    ),
    Bad(
        "int beyond 64 bits",
        lambda: roll(zeros(3, 3), shifts=2**70),
        ValueError,
        "roll: attribute 'shifts' must lie between -2**62 and 2**62, got 1180591620717411303424",
    ),
    Bad(
        "str for float",
        lambda: spec("norm").layer_norm(zeros(2, 3), eps="small"),
        TypeError,
        "layer_norm: attribute 'eps' must be a number, got 'small' (str)",
    ),
    Bad(
        "tensor for float",
        lambda: spec("norm").layer_norm(zeros(2, 3), eps=zeros(40, 40)),
        TypeError,
        "layer_norm: attribute 'eps' must be a number, got a tensor of shape (40, 40)",
    ),
    Bad(
        "int beyond a float",
        lambda: spec("norm").layer_norm(zeros(2, 3), eps=10**400),
        ValueError,
        "layer_norm: attribute 'eps' is too large for a float",
    ),
    Bad(
        "int for bool",
        lambda: spec("pool").max_pool2d(zeros(1, 1, 4, 4), kernel_size=2, stride=2, ceil_mode=1),
        TypeError,
        "max_pool2d: attribute 'ceil_mode' must be True or False, got 1 (int)",
    ),
    Bad(
        "choice",
        lambda: spec("depth_to_space").depth_to_space(zeros(1, 4, 2, 2), mode="crd"),
        ValueError,
        "depth_to_space: attribute 'mode' must be 'CRD' or 'DCR', got 'crd'",
    ),
    Bad(
        "tuple too long",
        lambda: conv2d(IMAGE, KERNEL, stride=(1, 1, 1), groups=2),
        ValueError,
        "conv2d: attribute 'stride' must be an int or 2 of them, got (1, 1, 1)",
    ),
    Bad(
        "float in a tuple",
        lambda: conv2d(IMAGE, KERNEL, stride=(1, 2.0), groups=2),
        TypeError,
        "conv2d: attribute 'stride[1]' must be an int, got 2.0 (float)",
    ),
    Bad(
        "set for a tuple",
        lambda: conv2d(IMAGE, KERNEL, stride={1, 2}, groups=2),
        TypeError,
        "conv2d: attribute 'stride' must be an int or 2 of them, got {1, 2} (set)",
    ),
    Bad(
        "size negative",
        lambda: inline(FILLED).filled(N=-1),
        ValueError,
        "filled: attribute 'N' is a size and cannot be negative, got -1",
    ),
    Bad(
        "size negative in a tuple",
        lambda: spec("upsample_nearest").upsample_nearest_size(
            zeros(1, 1, 4, 4), output_size=(2, -1)
        ),
        ValueError,
        "upsample_nearest_size: attribute 'output_size[1]' is a size and cannot be negative, "
        "got -1",
    ),
)
