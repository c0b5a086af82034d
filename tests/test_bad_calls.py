"""Calls that do not fit their op: the whole message of each is pinned, with its type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import opgen
from opgen.errors import OpgenError
from opgen.runtime import eager

SPECS = Path(__file__).parent.parent / "specs"
REFUSALS = (TypeError, ValueError, IndexError, RuntimeError)

zeros = torch.zeros
Call = Callable[[], object]


@cache
def spec(name: str) -> ModuleType:
    return opgen.load(SPECS / f"{name}.op")


@cache
def inline(text: str) -> ModuleType:
    return opgen.compile(text)


FIRST = "op first(x[B,C]) -> y[B]\n  y[b] = x[b,0]\n"
PICK = "op pick(x[B,C]; s: int) -> y[B]\n  y[b] = x[b,s]\n"
HOLD = "op hold(x[N]; p = 1) -> y[M]\n  let M = N + 1\n  y[m] = x[m - p ?clamp]\n"
REPEAT = "op repeat(x[N]; r: int) -> y[N]\n  y[n] = x[n//r]\n"
CYCLE = "op cycle(x[N], w[K]) -> y[N]\n  y[n] = x[n] * w[n%K]\n"
DOT = "op dot(x[(C K)], w[K]) -> y[C]\n  y[c] = sum(k) x[(c k)] * w[k]\n"
TAIL = "op tail(x[A + B], w[A]) -> y[B]\n  y[b] = x[A + b]\n"
SCALE = "op scale(x[N], a[]) -> y[N]\n  y[n] = x[n] * a[]\n"
DIAGONAL = "op diagonal(x[N,N]) -> y[N]\n  y[n] = x[n,n]\n"
MASKED = "op masked(x[N], m: bool[N]) -> y[N]\n  y[n] = select(m[n], x[n], 0)\n"
SINGLE = "op single(x: f32[N]) -> y: f32[N]\n  y[n] = x[n]\n"
SCATTER = "op scatter(x[N], i: int[N]; M: size) -> y[M]\n  y[i[n]] += x[n]\n"
MATMUL = (
    "op matmul(a[...,N,K], b[...,K,M]) -> y[...,N,M]\n  y[...,n,m] = sum(k) a[...,n,k]*b[...,k,m]\n"
)
PLAIN = (
    'op plain(x[N]; mode = "a" | "b", flag = false) -> y[N]\n'
    '  where mode == "a"\n  where not flag\n  y[n] = x[n]\n'
)
WIDE = "op wide(x[N]; s: int) -> y[N,(s s)]\n  where s >= 1\n  y[n,(i j)] = x[n]\n"
FILLED = "op filled(; N: size) -> y: f32[N]\n  y[n] = n\n"


@dataclass(frozen=True, slots=True)
class Bad:
    """A call, and how it is refused."""

    name: str
    call: Call
    kind: type[Exception]
    message: str

    def __repr__(self) -> str:
        return self.name.replace(" ", "-")


def conv1d(*tensors: object, **attributes: object) -> object:
    return spec("conv").conv1d(*tensors, **attributes)


def conv2d(*tensors: object, **attributes: object) -> object:
    return spec("conv").conv2d(*tensors, **attributes)


def softmax(x: object) -> object:
    return spec("softmax").softmax(x)


def roll(x: object, **attributes: object) -> object:
    return spec("roll").roll(x, **attributes)


def embedding(*tensors: object) -> object:
    return spec("embedding").embedding(*tensors)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(zeros(3, 3), 1.0, 0, torch.qint8)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([zeros(2), zeros(3)])


X, W = zeros(1, 2, 9), zeros(4, 2, 3)
IMAGE, KERNEL = zeros(1, 4, 9, 9), zeros(6, 2, 3, 3)
ANY_NUMBER = "float16, bfloat16, float32, float64, uint8, int8, int16, int32 or int64"
ANY_FLOAT = "float16, bfloat16, float32 or float64"

SHAPES = (
    Bad(
        "rank",
        lambda: conv1d(zeros(2, 9), W),
        ValueError,
        "conv1d: x must be 3-d [N, groups*Ci, W], got shape (2, 9)",
    ),
    Bad(
        "rank of an optional input",
        lambda: conv1d(X, W, torch.tensor(1.0)),
        ValueError,
        "conv1d: bias must be 1-d [groups*Co], got shape ()",
    ),
    Bad(
        "rank with batch dims",
        lambda: spec("unfold").unfold(zeros(3, 4), kernel_size=2),
        ValueError,
        "unfold: x must be at least 3-d [..., C, H, W], got shape (3, 4)",
    ),
    Bad(
        "zero-dim tensor",
        lambda: softmax(torch.tensor(1.0)),
        ValueError,
        "softmax: x must be at least 1-d [..., D], got shape ()",
    ),
    Bad(
        "zero-dim tensor expected",
        lambda: inline(SCALE).scale(zeros(3), zeros(1)),
        ValueError,
        "scale: a must be 0-d [], got shape (1,)",
    ),
    Bad(
        "not divisible by an attribute",
        lambda: spec("depth_to_space").depth_to_space(zeros(1, 10, 2, 2), r=3),
        ValueError,
        "depth_to_space: x.shape[1] = 10 must be C*r*r; with r=3 that needs 10 to be a multiple of "
        "9 (remainder 1)",
    ),
    Bad(
        "not divisible by a constant",
        lambda: spec("haar").haar(zeros(1, 1, 4, 5)),
        ValueError,
        "haar: x.shape[3] = 5 must be W*2; that needs 5 to be a multiple of 2 (remainder 1)",
    ),
    Bad(
        "not divisible by a size",
        lambda: inline(DOT).dot(zeros(5), zeros(2)),
        ValueError,
        "dot: x.shape[0] = 5 must be C*K; with K=2 from w.shape[0] that needs 5 to be a multiple "
        "of 2 (remainder 1)",
    ),
    Bad(
        "not divisible by lets",
        lambda: spec("unfold").fold(zeros(1, 5, 4), output_size=(3, 3), kernel_size=2),
        ValueError,
        "fold: x.shape[-2] = 5 must be C*K*L; with K=2, L=2 that needs 5 to be a multiple of 4 "
        "(remainder 1)",
    ),
    Bad(
        "not determined",
        lambda: inline(DOT).dot(zeros(0), zeros(0)),
        ValueError,
        "dot: x.shape[0] = 0 must be C*K, which with K=0 from w.shape[0] does not determine C",
    ),
    Bad(
        "solution negative",
        lambda: inline(TAIL).tail(zeros(2), zeros(3)),
        ValueError,
        "tail: x.shape[0] = 2 must be A + B; B would be negative with A=3 from w.shape[0]",
    ),
    Bad(
        "two inputs disagree",
        lambda: spec("correlation").correlation(zeros(1, 2, 3, 4), zeros(1, 2, 3, 5)),
        ValueError,
        "correlation: g.shape[3] = 5 but the spec needs W = 4 (W=4 from f.shape[3])",
    ),
    Bad(
        "one input disagrees with itself",
        lambda: inline(DIAGONAL).diagonal(zeros(2, 3)),
        ValueError,
        "diagonal: x.shape[1] = 3 but the spec needs N = 2 (N=2 from x.shape[0])",
    ),
    Bad(
        "two inputs disagree through a composite dim",
        lambda: conv2d(IMAGE, zeros(6, 3, 3, 3), groups=2),
        ValueError,
        "conv2d: weight.shape[1] = 3 but the spec needs Ci = 2 (Ci=2 from x.shape[1])",
    ),
    Bad(
        "size against a composite dim",
        lambda: conv2d(IMAGE, KERNEL, zeros(5), groups=2),
        ValueError,
        "conv2d: bias.shape[0] = 5 but the spec needs groups*Co = 6 "
        "(groups=2; Co=3 from weight.shape[0])",
    ),
    Bad(
        "size against a constant",
        lambda: spec("shift_conv").shift_conv(
            zeros(1, 2, 3, 3), torch.zeros(2, 3, dtype=torch.int64), zeros(1, 2)
        ),
        ValueError,
        "shift_conv: offset.shape[1] = 3 but the spec needs 2",
    ),
    Bad(
        "size against a let",
        lambda: spec("involution").involution(zeros(1, 2, 4, 4), zeros(1, 1, 3, 3, 1, 2)),
        ValueError,
        "involution: weight.shape[4] = 1 but the spec needs OH = 2 "
        "(OH=2 from OH = (H + 2*padding[0] - dilation[0]*(K-1) - 1)//stride[0] + 1)",
    ),
    Bad(
        "size against a product of lets",
        lambda: spec("unfold").fold(zeros(1, 4, 7), output_size=(3, 3), kernel_size=2),
        ValueError,
        "fold: x.shape[-1] = 7 but the spec needs OH*OW = 4 "
        "(OH=2 from OH = (H + 2*padding[0] - dilation[0]*(K-1) - 1)//stride[0] + 1; "
        "OW=2 from OW = (W + 2*padding[1] - dilation[1]*(L-1) - 1)//stride[1] + 1)",
    ),
    Bad(
        "size of an optional input",
        lambda: spec("norm").layer_norm(zeros(2, 3), zeros(4)),
        ValueError,
        "layer_norm: weight.shape[0] = 4 but the spec needs D = 3 (D=3 from x.shape[-1])",
    ),
    Bad(
        "batch dims disagree",
        lambda: inline(MATMUL).matmul(zeros(2, 3, 4), zeros(3, 4, 5)),
        ValueError,
        "matmul: b has the batch dims (3,) but a has (2,); all inputs with ... need the same",
    ),
    Bad(
        "batch dims are not broadcast",
        lambda: inline(MATMUL).matmul(zeros(2, 3, 4), zeros(4, 5)),
        ValueError,
        "matmul: b has the batch dims () but a has (2,); all inputs with ... need the same",
    ),
    Bad(
        "output negative",
        lambda: conv2d(zeros(1, 1, 2, 2), zeros(1, 1, 5, 5)),
        ValueError,
        "conv2d: OH = (H + 2*padding[0] - dilation[0]*(K-1) - 1)//stride[0] + 1 = -2 is negative "
        "(stride[0]=1, padding[0]=0, dilation[0]=1, H=2 from x.shape[2], K=5 from weight.shape[2])",
    ),
    Bad(
        "output negative through min",
        lambda: spec("pool").avg_pool2d(zeros(1, 1, 2, 2), kernel_size=5, stride=1),
        ValueError,
        "avg_pool2d: OH = min((H + 2*padding[0] - K + ceil_mode*(stride[0]-1))//stride[0] + 1, "
        "(H + padding[0] - 1)//stride[0] + 1) = -2 is negative "
        "(stride[0]=1, padding[0]=0, ceil_mode=False, H=2 from x.shape[2], K=5)",
    ),
    Bad(
        "output negative through an attribute",
        lambda: spec("shift_sum").shift_sum_pinv(zeros(1, 1, 3, 3), C=9),
        ValueError,
        "shift_sum_pinv: W = V - (C-1)*step = -5 is negative (C=9, step=1, V=3 from y.shape[3])",
    ),
    Bad(
        "extent beyond 64 bits",
        lambda: conv1d(X, W, padding=2**62),
        ValueError,
        "conv1d: OW = 9223372036854775815 must lie between -2**62 and 2**62",
    ),
    Bad(
        "output beyond 64 bits",
        lambda: inline(WIDE).wide(zeros(3), s=2**40),
        ValueError,
        "wide: y would get the shape (3, 1208925819614629174706176), which is too large",
    ),
)

CONDITIONS = (
    Bad(
        "where",
        lambda: conv1d(X, W, stride=0),
        ValueError,
        "conv1d: stride >= 1 does not hold (stride=0)",
    ),
    Bad(
        "where on an element",
        lambda: conv2d(IMAGE, KERNEL, stride=(1, 0), groups=2),
        ValueError,
        "conv2d: stride[1] >= 1 does not hold (stride[1]=0)",
    ),
    Bad(
        "where, chained",
        lambda: spec("pad").pad_reflect(zeros(1, 4, 4), padding=(1, 4, 0, 0)),
        ValueError,
        "pad_reflect: 0 <= padding[1] < W does not hold (padding[1]=4, W=4 from x.shape[-1])",
    ),
    Bad(
        "where on two attributes",
        lambda: spec("pool").avg_pool2d(zeros(1, 1, 4, 4), kernel_size=2, stride=1, padding=2),
        ValueError,
        "avg_pool2d: 2*padding[0] <= kernel_size[0] does not hold (kernel_size[0]=2, padding[0]=2)",
    ),
    Bad(
        "where on a size",
        lambda: spec("upsample_nearest").upsample_nearest_size(zeros(1, 1, 0, 4), output_size=2),
        ValueError,
        "upsample_nearest_size: H >= 1 does not hold (H=0 from x.shape[2])",
    ),
    Bad(
        "where on a choice",
        lambda: inline(PLAIN).plain(zeros(3), mode="b"),
        ValueError,
        "plain: mode == \"a\" does not hold (mode='b')",
    ),
    Bad(
        "where on a flag",
        lambda: inline(PLAIN).plain(zeros(3), flag=True),
        ValueError,
        "plain: not flag does not hold (flag=True)",
    ),
    Bad(
        "launch check of a size",
        lambda: inline(FIRST).first(zeros(2, 0)),
        ValueError,
        "first: index 0 of dim 1 of x must lie inside its extent C, but C=0 from x.shape[1]",
    ),
    Bad(
        "launch check of an attribute",
        lambda: inline(PICK).pick(zeros(2, 2), s=5),
        ValueError,
        "pick: index s of dim 1 of x must lie inside its extent C, but s=5, C=2 from x.shape[1]",
    ),
    Bad(
        "launch check of a negative attribute",
        lambda: inline(PICK).pick(zeros(2, 2), s=-1),
        ValueError,
        "pick: index s of dim 1 of x must lie inside its extent C, but s=-1",
    ),
    Bad(
        "launch check of a boundary",
        lambda: inline(HOLD).hold(zeros(0)),
        ValueError,
        "hold: `?clamp` needs a cell to move to: dim 0 of x must not be empty, "
        "but N=0 from x.shape[0]",
    ),
    Bad(
        "divisor zero",
        lambda: inline(REPEAT).repeat(zeros(5), r=0),
        ValueError,
        "repeat: the divisor r must be positive, but r=0",
    ),
    Bad(
        "divisor an empty dim",
        lambda: inline(CYCLE).cycle(zeros(5), zeros(0)),
        ValueError,
        "cycle: the divisor K must be positive, but K=0 from w.shape[0]",
    ),
    Bad(
        "index past the end",
        lambda: embedding(torch.tensor([0, 7]), zeros(4, 2)),
        IndexError,
        "embedding: index 7 is outside of dimension 0 of 'weight', which has extent 4 "
        "(in weight[indices[...], e])",
    ),
    Bad(
        "index negative",
        lambda: embedding(torch.tensor([-1, 1]), zeros(4, 2)),
        IndexError,
        "embedding: index -1 is outside of dimension 0 of 'weight', which has extent 4 "
        "(in weight[indices[...], e])",
    ),
    Bad(
        "index written to",
        lambda: inline(SCATTER).scatter(zeros(3), torch.tensor([0, 9, 1]), M=4),
        IndexError,
        "scatter: index 9 is outside of dimension 0 of 'y', which has extent 4 (in y[i[n]])",
    ),
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

BAD_CALLS = (*SHAPES, *CONDITIONS, *TENSORS, *SIGNATURES, *ATTRIBUTES)


def outcome(call: Call) -> tuple[type[Exception], str] | None:
    """The type and the message of what a call raises, if it does."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None


def refusal(call: Call) -> tuple[type[Exception], str]:
    """The type and the message of what a call raises, which it must."""
    found = outcome(call)
    assert found is not None, "the call was accepted"
    return found


# ---------------------------------------------------------------------------- pinned messages
# Torch warns about quantized and nested tensors.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("bad", BAD_CALLS, ids=repr)
def test_the_whole_message_is_as_pinned(bad: Bad) -> None:
    assert refusal(bad.call) == (bad.kind, bad.message)


def test_many_different_calls_are_pinned() -> None:
    assert len({bad.message for bad in BAD_CALLS}) >= 90
    assert len({bad.name for bad in BAD_CALLS}) == len(BAD_CALLS)


RIGHT = "conv1d: stride >= 1 does not hold (stride=0)"


@pytest.mark.parametrize(
    "wrong",
    [
        Bad("accepted", lambda: conv1d(X, W), ValueError, RIGHT),
        Bad("other value", lambda: conv1d(X, W, stride=-1), ValueError, RIGHT),
        Bad("wider type", lambda: conv1d(X, W, stride=0), Exception, RIGHT),
        Bad("part of the message", lambda: conv1d(X, W, stride=0), ValueError, RIGHT[:-1]),
    ],
    ids=repr,
)
def test_the_harness_notices(wrong: Bad) -> None:
    with pytest.raises(AssertionError):
        test_the_whole_message_is_as_pinned(wrong)


# ---------------------------------------------------------------------------- around them
def test_an_op_works_after_refused_calls() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(5, 3, generator=generator, requires_grad=True)
    indices = torch.tensor([4, 0])
    for _ in range(2):
        assert refusal(lambda: embedding(torch.tensor([0, 5]), table))[0] is IndexError
        assert refusal(lambda: embedding(indices, [1.0]))[0] is TypeError
        assert refusal(lambda: embedding(indices, table[0]))[0] is ValueError
        rows = embedding(indices, table)
        assert isinstance(rows, torch.Tensor)
        assert torch.equal(rows, table[indices])
        (gradient,) = torch.autograd.grad(rows.sum(), table)
        assert gradient[:, 0].tolist() == [1, 0, 0, 0, 1]


def test_integer_outputs_ask_for_no_gradient() -> None:
    x = zeros(1, 1, 4, 4, requires_grad=True)
    y, index = spec("pool").max_pool2d(x, kernel_size=2, stride=2)
    assert y.requires_grad
    assert not index.requires_grad
    rows = torch.arange(4).reshape(2, 2)
    with torch.enable_grad():
        rolled = roll(rows, shifts=1)
    assert isinstance(rolled, torch.Tensor)
    assert not rolled.requires_grad


def test_a_size_that_an_absent_input_would_leave_open_is_refused_in_the_spec() -> None:
    with pytest.raises(OpgenError, match="'M' does not follow from the shapes of the inputs"):
        opgen.compile("op f(x[N], w[M] = 1) -> y[N]\n  y[n] = x[n] * w[0]\n")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CC", "no-such-compiler")
    fresh = opgen.compile("op negated(x[N]) -> y[N]\n  y[n] = -x[n]\n")
    eager.warn_once.cache_clear()
    with pytest.warns(RuntimeWarning) as caught:
        assert fresh.negated(torch.ones(2)).tolist() == [-1, -1]
    assert str(caught[0].message) == (
        "$OPGEN_CC is 'no-such-compiler', but there is no such program. Without one ops of opgen "
        "run on the CPU as plain PyTorch operations, which gives the same results much more slowly."
    )


# ---------------------------------------------------------------------------- anything at all
def on_meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")


GOOD: tuple[tuple[str, str, dict[str, object]], ...] = (
    (
        "conv",
        "conv2d",
        {
            "x": on_meta(2, 4, 7, 7),
            "weight": on_meta(6, 2, 3, 3),
            "bias": on_meta(6),
            "stride": 2,
            "padding": (1, 0),
            "groups": 2,
        },
    ),
    (
        "unfold",
        "fold",
        {"x": on_meta(2, 8, 9), "output_size": (4, 4), "kernel_size": 2, "stride": 1},
    ),
    (
        "pool",
        "avg_pool2d",
        {"x": on_meta(1, 2, 6, 6), "kernel_size": 2, "stride": 2, "ceil_mode": True},
    ),
    (
        "depth_to_space",
        "depth_to_space",
        {"x": on_meta(1, 8, 3, 3), "r": 2, "mode": "DCR"},
    ),
    (
        "norm",
        "group_norm",
        {"x": on_meta(2, 6, 2, 2), "weight": on_meta(6), "num_groups": 3, "eps": 1e-3},
    ),
    (
        "embedding",
        "embedding",
        {"indices": on_meta(3, dtype=torch.int64), "weight": on_meta(5, 2)},
    ),
    ("shift_sum", "shift_sum_pinv", {"y": on_meta(1, 1, 3, 9), "C": 3, "step": 1}),
)
SUBSTITUTES: tuple[object, ...] = (
    *(None, True, -1, 0, 1, 3, 2**40, 2**61, 2**70, 2.5, float("nan"), 10**400, 10**5000),
    *("", "CRD", b"x", [], [1, 2], (0, 0), (-1, 1), (1, 2, 3), {}, {2}, object, np.int64(2)),
    *(on_meta(), on_meta(0), on_meta(6), on_meta(1, 2, 3, 4), on_meta(0, 0, 0, 0)),
    *(on_meta(3, 3, 3, 3, dtype=torch.complex64), on_meta(6, dtype=torch.bool), zeros(6)),
)


def substituted() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Good calls with one argument replaced by anything, or left out."""
    for file, op, arguments in GOOD:
        for name in arguments:
            rest = {other: value for other, value in arguments.items() if other != name}
            yield file, op, rest
            for value in SUBSTITUTES:
                yield file, op, {**arguments, name: value}


def test_the_calls_that_are_disturbed_are_good() -> None:
    for file, op, arguments in GOOD:
        assert isinstance(getattr(spec(file), op)(**arguments), torch.Tensor)


def test_any_argument_gives_a_result_or_one_sentence_that_names_the_op() -> None:
    refused = 0
    for file, op, arguments in substituted():
        found = outcome(partial(getattr(spec(file), op), **arguments))
        if found is None:
            continue
        refused += 1
        kind, message = found
        assert kind in REFUSALS
        assert message.startswith((f"{op}: ", f"{op}() ")), message
        assert "\n" not in message
        assert len(message) < 400
    assert refused > 400
