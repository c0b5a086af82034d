"""Convolutions are known by their index maps, and only they go to PyTorch's library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.errors import Source
from opgen.ir.convolution import Convolution, Role
from opgen.passes.convolution import convolution
from opgen.passes.derive import derive
from opgen.runtime import (
    compat,
    convolution_tiles,
    library_call,
    library_gradients,
    lookup_convolution,
)
from opgen.runtime.arrangement import Arrangement
from opgen.runtime.library_plan import Plan, Tensors

GROUPED = "op f(x[N,(g C),W], w[(g D),C,K]; g = 1, s = 1, p = 0) -> y[N,(g D),V]\n"
WHERE = "  where g >= 1, s >= 1, p >= 0\n  let V = (W + 2*p - K)//s + 1\n"
SUM = "  y[n,(i o),v] = sum(c,k) x[n,(i c), v*s + k - p ?0] * w[(i o),c,k]\n"


def found(spec: str) -> Convolution | None:
    (op,) = check_source(Source(spec, "<test>"))
    return convolution(op)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is entered where it would be looked up without Python."""
    monkeypatch.setattr(lookup_convolution, "forward", lambda *_: None)
    monkeypatch.setattr(lookup_convolution, "gradients", lambda *_: None)


@pytest.fixture
def answers(in_python: None, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every convolution called: whether the library computed it."""
    heard: list[bool] = []
    convolve = library_call.computed

    def listening(plan: Plan, tensors: Tensors) -> Tensor | None:
        out = convolve(plan, tensors)
        heard.append(out is not None)
        return out

    both = library_call._both

    def listening_to_both(*arguments: Any) -> library_call.Pair | None:
        out = both(*arguments)
        if out is not None:
            heard.extend((True, True))
        return out

    monkeypatch.setattr(library_call, "computed", listening)
    monkeypatch.setattr(library_call, "_both", listening_to_both)
    return heard


# ---------------------------------------------------------------------------- what is found
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_convolutions_of_the_specs(rank: int) -> None:
    ops = {op.name: op for op in check_source(read_source(SPECS / "conv.op"))}
    members = derive((ops[f"conv{rank}d"],), 1)
    roles = {member.path[1:]: convolution(member.op) for member in members}
    assert [each and each.target for each in roles.values()] == [
        *(Role.RESULT, Role.IMAGE, Role.WEIGHT),
        None,
    ]
    forward = roles[()]
    assert forward is not None
    assert (forward.result, forward.image, forward.weight, forward.bias) == (
        *("y", "x", "weight"),
        "bias",
    )
    assert len(forward.stride) == len(forward.padding) == len(forward.dilation) == rank


def test_a_transposed_convolution_is_one_solved_for_its_image() -> None:
    ops = {op.name: op for op in check_source(read_source(SPECS / "conv_transpose.op"))}
    members = derive((ops["conv_transpose2d"],), 1)
    targets = {member.path[1:]: convolution(member.op) for member in members}
    assert [each and each.target for each in targets.values()] == [
        *(Role.IMAGE, Role.RESULT, Role.WEIGHT),
        None,
    ]


def test_names_do_not_matter() -> None:
    spec = (
        "op mix(a[B,P,Q], f[R,P,S]) -> z[B,R,T]\n  let T = Q - S + 1\n"
        "  z[u,e,t] = sum(m,d) f[e,m,d] * a[u,m, t + d]\n"
    )
    assert found(GROUPED + WHERE + SUM) is not None
    match found(spec):
        case Convolution(target=Role.RESULT, image="a", weight="f", result="z", bias=None):
            pass
        case other:
            raise AssertionError(other)


NEAR_MISSES = {
    "a third factor": SUM.replace("w[(i o),c,k]", "w[(i o),c,k] * 2"),
    "a maximum": SUM.replace("sum", "max").replace(" ?0", " ?clamp"),
    "edges repeated": SUM.replace("?0", "?clamp"),
    "edges of another value": SUM.replace("?0", "?(1)"),
    "channels shared by groups": SUM.replace("x[n,(i c)", "x[n, i + c"),
    "a flipped filter": SUM.replace("sum(c,k)", "sum(c, k in K)").replace(",c,k]", ",c, K-1-k]"),
    "a sum": SUM.replace("x[n", "(x[n").replace("* w[(i o),c,k]", "+ w[(i o),c,k])"),
    "a guard": SUM.replace("sum(c,k)", "sum(c,k if k < 2)"),
    "a square": SUM.replace("w[(i o),c,k]", "x[n,(i c), v*s + k - p ?0]").replace(
        "c,k)", "c, k in K)"
    ),
    "a step that grows": SUM.replace("v*s + k - p", "v*s + k*c - p"),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str) -> None:
    assert found(GROUPED + WHERE + NEAR_MISSES[name]) is None


@pytest.mark.parametrize(
    "spec",
    [
        # All pixels of a block are the same.
        "op f(x[N,C,W], w[D,C,K]) -> y[N,D,(V 2)]\n  let V = W - K + 1\n"
        "  y[n,d,(v a)] += x[n,c, v + k] * w[d,c,k]\n",
        # Only a part of a block is written.
        "op f(x[N,C,W], w[(D 2),C,K]) -> y[N,D,(V 3)]\n  let V = W - K + 1\n"
        "  y[n,d, 3*v + a] += x[n,c, v + k] * w[(d a),c,k]  for v in V\n",
        # What is handed on is used twice.
        "op f(x[N,C,W], w[D,C,K]) -> y[N,D,V]\n  let V = W - K + 1\n  tmp t[N,D,V]\n"
        "  t[n,o,v] = sum(c,k) x[n,c, v + k] * w[o,c,k]\n  y[n,o,v] = t[n,o,v] + t[n,o,v]\n",
        # What is handed on comes back mirrored.
        "op f(x[N,C,W], w[D,C,K]) -> y[N,D,V]\n  let V = W - K + 1\n  tmp t[N,D,V]\n"
        "  t[n,o,v] = sum(c,k) x[n,c, v + k] * w[o,c,k]\n  y[n,o,v] = t[n,o, V - 1 - v]\n",
        # Columns of another tensor are copied over some of them.
        "op f(x[N,C,W], w[D,C,K]) -> y[N,D,V]\n  let V = W - K + 1\n  tmp t[N,(C K),V]\n"
        "  t[n,(c k),v] = 1\n  y[n,o,v] = sum(c,k) w[o,c,k] * t[n,(c k),v]\n",
        # A filter for each image.
        "op f(x[N,C,W], w[N,C,K]) -> y[N,N,V]\n  let V = W - K + 1\n"
        "  y[n,o,v] = sum(c,k) x[n,c, v + k] * w[n,c,k]  for o in N\n",
        # The bias belongs to a column.
        "op f(x[N,C,W], w[D,C,K], b[V]) -> y[N,D,V]\n  where V == W - K + 1\n"
        "  y[n,o,v] = b[v] + sum(c,k) x[n,c, v + k] * w[o,c,k]\n",
        # The bias is added to some channels.
        "op f(x[N,C,W], w[D,C,K], b[E]) -> y[N,D,V]\n  where E <= D\n  let V = W - K + 1\n"
        "  y[n,o,v] += x[n,c, v + k] * w[o,c,k]\n  y[n,e,v] += b[e]  for v in V, e in E\n",
        # A type of its own.
        "op f(x: f32[N,C,W], w[D,C,K]) -> y[N,D,V]\n  let V = W - K + 1\n"
        "  y[n,o,v] = sum(c,k) x[n,c, v + k] * w[o,c,k]\n",
        # Only a part of the channels.
        "op f(x[N,C,W], w[D,E,K]) -> y[N,D,V]\n  where E <= C\n  let V = W - K + 1\n"
        "  y[n,o,v] = sum(c in E,k) x[n,c, v + k] * w[o,c,k]\n",
    ],
)
def test_near_misses_of_whole_ops(spec: str) -> None:
    assert found(spec) is None


# ---------------------------------------------------------------------------- other dims
def reference_blocks(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Loops over the taps; blocks of 2 by 3 pixels for channels, taken apart by slices."""
    out, _, rows, columns = w.shape
    height, width = x.shape[2] - rows + 3, x.shape[3] - columns + 3
    wide = x.new_zeros(*x.shape[:2], x.shape[2] + 2, x.shape[3] + 2)
    wide[:, :, 1:-1, 1:-1] = x
    full = x.new_zeros(x.shape[0], out, height, width)
    for k in range(rows):
        for m in range(columns):
            part = wide[:, :, k : k + height, m : m + width]
            full = full + torch.einsum("nchw,oc->nohw", part, w[:, :, k, m])
    if bias is not None:
        full = full + bias[:, None, None]
    y = x.new_zeros(x.shape[0], out // 6, 2 * height, 3 * width)
    for a in range(2):
        for b in range(3):
            y[:, :, a::2, b::3] = full[:, 3 * a + b :: 6]
    return y


BLOCKS = (
    "op blocks(x[N,C,H,W], w[(D 2 3),C,K,L], bias[(D 2 3)] = 0) -> y[N,D,(OH 2),(OW 3)]\n"
    "  let OH = H - K + 3, OW = W - L + 3\n"
    "  y[n,d,(i a),(j b)] = bias[(d a b)]"
    " + sum(c,k,l) x[n,c, i + k - 1 ?0, j + l - 1 ?0] * w[(d a b),c,k,l]\n"
)
"""A convolution whose channels are written as blocks of pixels."""


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("with_bias", [False, True])
def test_channels_may_be_blocks_of_pixels(
    layout: torch.memory_format, with_bias: bool, answers: list[bool]
) -> None:
    module = opgen.compile(BLOCKS)
    torch.manual_seed(0)
    x = torch.randn(2, 8, 5, 6).contiguous(memory_format=layout).requires_grad_()
    w, bias = torch.randn(12, 8, 3, 3, requires_grad=True), torch.randn(12, requires_grad=True)
    inputs = (x, w, bias) if with_bias else (x, w)
    got, wanted = module.blocks(*inputs), reference_blocks(*inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert got.is_contiguous(memory_format=layout)
    cotangent = torch.randn_like(wanted).contiguous(memory_format=layout)
    mine = torch.autograd.grad(got, inputs, cotangent)
    theirs = torch.autograd.grad(wanted, inputs, cotangent)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert answers == [True, True, True]


GROUPED_BLOCKS = (
    "op blocks(x[N,(g C),H,W], w[(g D 2 2),C,K,L]; g = 1) -> y[N,(g D),(OH 2),(OW 2)]\n"
    "  where g >= 1\n  let OH = H - K + 3, OW = W - L + 3\n"
    "  y[n,(f d),(i a),(j b)]"
    " = sum(c,k,l) x[n,(f c), i + k - 1 ?0, j + l - 1 ?0] * w[(f d a b),c,k,l]\n"
)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_pixels_of_groups(groups: int, dtype: torch.dtype, answers: list[bool]) -> None:
    """In channels-last format the channels of each group are computed in another order."""
    module = opgen.compile(GROUPED_BLOCKS)
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (2, 16, 5, 6)).to(dtype).contiguous(memory_format=torch.channels_last)
    w = torch.randint(-1, 2, (24, 16 // groups, 3, 3)).to(dtype)
    for each in (x, w):
        each.requires_grad_()
    wanted = F.pixel_shuffle(F.conv2d(x.double(), w.double(), padding=1, groups=groups), 2)
    seed = torch.randint(-1, 2, wanted.shape).contiguous(memory_format=torch.channels_last)
    theirs = torch.autograd.grad(wanted, (x, w), seed.double())
    for _ in range(2):
        got = module.blocks(x, w, g=groups)
        mine = torch.autograd.grad(got, (x, w), seed.to(dtype))
        assert got.is_contiguous(memory_format=torch.channels_last)
        for one, other in zip((got, *mine), (wanted, *theirs), strict=True):
            torch.testing.assert_close(one, other.to(dtype), rtol=0, atol=0)
    assert answers == [True] * 6


def test_channels_as_stored() -> None:
    """[n,(o a b),i,j] of y[n,o,(i a),(j b)]: o comes last in memory, within each group."""
    order = (0,), (1, 3, 5), (2,), (4,)
    arrangement = Arrangement(((2,), (3,), (5, 4), (7, 6)), order)
    found = arrangement.with_channels_as_stored(1)
    assert found is not None
    assert found[0].order == ((0,), (3, 5, 1), (2,), (4,))
    assert found[1].of((72, 8)).order == ((1, 2, 0), (3,))
    # Nothing changes where o is the group, nor where no parts make up as many groups.
    assert arrangement.with_channels_as_stored(3) is None
    assert arrangement.with_channels_as_stored(2) is None
    weight = torch.randn(72, 8)
    moved = found[1].of(weight.shape).arranged(weight, torch.contiguous_format)
    for o in range(3):
        for a in range(4):
            for b in range(6):
                assert torch.equal(moved[(a * 6 + b) * 3 + o], weight[(o * 4 + a) * 6 + b])


ORDERS = {
    "groups behind channels": SUM.replace("x[n,(i c)", "x[n, c*g + i"),
    "images behind channels": SUM.replace("x[n,(i c)", "x[(i c),n").replace(
        "y[n,(i o),v]", "y[(i o),v,n]"
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_dims_may_stand_in_any_order(name: str, answers: list[bool]) -> None:
    head = GROUPED
    if name == "images behind channels":
        head = head.replace("x[N,(g C),W]", "x[(g C),N,W]").replace("y[N,(g D),V]", "y[(g D),V,N]")
    module = opgen.compile(head + WHERE + ORDERS[name])
    torch.manual_seed(0)
    x, w = torch.randn(3, 16, 9), torch.randn(32, 8, 3)
    wanted = F.conv1d(x, w, stride=2, padding=1, groups=2)
    if name == "groups behind channels":
        given = x.view(3, 2, 8, 9).transpose(1, 2).reshape(3, 16, 9)
        got = module.f(given, w, g=2, s=2, p=1)
    else:
        got = module.f(x.transpose(0, 1), w, g=2, s=2, p=1).permute(2, 0, 1)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert answers == [True]


def test_a_filter_with_its_dims_in_another_order(answers: list[bool]) -> None:
    module = opgen.compile(
        "op f(x[N,C,W], w[C,D,K]) -> y[N,D,V]\n  let V = W - K + 1\n"
        "  y[n,o,v] = sum(c,k) x[n,c, v + k] * w[c,o,k]\n"
    )
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 9), torch.randn(8, 16, 3)
    wanted = F.conv1d(x, w.transpose(0, 1))
    torch.testing.assert_close(module.f(x, w), wanted, rtol=1e-4, atol=1e-4)
    assert answers == [True]


unfold_conv = opgen.load(SPECS / "unfold_conv.op")


def test_columns_between_image_and_filter_need_not_exist(answers: list[bool]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 9, 10, requires_grad=True)
    w = torch.randn(16, 8, 3, 2, requires_grad=True)
    attributes = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    got, wanted = unfold_conv.unfold_conv(x, w, **attributes), F.conv2d(x, w, **attributes)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    cotangent = torch.randn_like(wanted)
    mine = torch.autograd.grad(got, (x, w), cotangent)
    theirs = torch.autograd.grad(wanted, (x, w), cotangent)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert answers == [True, True, True]


# ---------------------------------------------------------------------------- who computes
conv = opgen.load(SPECS / "conv.op")
transpose = opgen.load(SPECS / "conv_transpose.op")
GEOMETRIES = (
    {"padding": 1},
    {"padding": (0, 2), "stride": (2, 1)},
    {"padding": 2, "dilation": 2, "groups": 2},
    {"stride": 3},
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_the_library_gives_what_pytorch_gives(
    name: str, with_bias: bool, geometry: dict[str, int], channels_last: bool, answers: list[bool]
) -> None:
    module = conv if name == "conv2d" else transpose
    torch.manual_seed(0)
    x, w = torch.randn(2, 32, 12, 13), torch.randn(32, 32 // geometry.get("groups", 1), 3, 3)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    bias = torch.randn(32) if with_bias else None
    leaves = [x.requires_grad_(), w.requires_grad_()]
    got = getattr(module, name)(x, w, bias, **geometry)
    wanted = getattr(F, name)(x, w, bias, **geometry)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert got.stride() == wanted.stride()
    cotangent = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, cotangent),
        torch.autograd.grad(wanted, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    assert answers == [True, True, True]


def test_16_bits() -> None:
    x, w = torch.randn(2, 8, 9, 9).bfloat16(), torch.randn(8, 8, 3, 3).bfloat16()
    got = conv.conv2d(x, w, padding=1)
    wanted = F.conv2d(x.double(), w.double(), padding=1)
    torch.testing.assert_close(got.double(), wanted, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize(
    ("shape", "weight", "geometry"),
    [
        ((2, 32, 9, 9), (32, 1, 3, 3), {"groups": 32}),  # few channels
        ((0, 32, 9, 9), (32, 32, 3, 3), {}),
        ((2, 32, 9, 9), (32, 32, 0, 3), {}),
    ],
)
def test_what_generated_kernels_compute(
    shape: tuple[int, ...], weight: tuple[int, ...], geometry: dict[str, int], answers: list[bool]
) -> None:
    x, w = torch.randn(shape), torch.randn(weight)
    got = conv.conv2d(x, w, **geometry)
    assert answers == []
    if 0 not in weight:
        torch.testing.assert_close(got, F.conv2d(x, w, **geometry), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "groups", "geometry", "format_", "dtype", "asked"),
    [
        ((4, 8), 4, {"padding": 1}, torch.channels_last, torch.float32, 3),  # two for each
        ((4, 8), 4, {"padding": 1}, torch.contiguous_format, torch.float32, 0),
        ((4, 4), 4, {"padding": 1}, torch.channels_last, torch.float32, 0),
        ((4, 8), 4, {"stride": 2}, torch.channels_last, torch.float32, 1),  # the filter's gradient
        ((4, 4), 2, {"stride": 2}, torch.channels_last, torch.float32, 3),
        ((4, 4), 4, {"padding": 1}, torch.channels_last, torch.bfloat16, 0),
        ((4, 4), 2, {"padding": 1}, torch.channels_last, torch.bfloat16, 3),
        ((4, 4), 4, {"stride": 2}, torch.channels_last, torch.bfloat16, 0),
        pytest.param(
            *((1024, 1024), 1024, {}, torch.channels_last, torch.float32, 0), marks=pytest.mark.slow
        ),
        ((1024, 1024), 1024, {"stride": 2}, torch.channels_last, torch.float32, 0),
        ((4, 4), 4, {"padding": 1}, torch.contiguous_format, torch.bfloat16, 0),
        ((6, 6), 6, {"padding": 1}, torch.channels_last, torch.float32, 3),
        ((15, 15), 15, {"stride": 2}, torch.channels_last, torch.float32, 3),
        ((6, 6), 6, {"padding": 1}, torch.channels_last, torch.bfloat16, 3),
        ((6, 6), 6, {"padding": 1}, torch.contiguous_format, torch.float32, 0),
        ((6, 6), 6, {"dilation": 2}, torch.channels_last, torch.float32, 0),
        ((16, 16), 16, {"padding": 1}, torch.channels_last, torch.float32, 0),
    ],
)
@pytest.mark.sampled(6)
def test_fewer_channels_in_channels_last_format(
    channels: tuple[int, int],
    groups: int,
    geometry: dict[str, int],
    format_: torch.memory_format,
    dtype: torch.dtype,
    asked: int,
    answers: list[bool],
) -> None:
    """Forward, and both gradients: how many of the three the library computes."""
    inside, out = channels
    x = torch.randn(2, inside, 7, 7).to(dtype).contiguous(memory_format=format_)
    w = torch.randn(out, inside // groups, 3, 3).to(dtype)
    leaves = [x.requires_grad_(), w.requires_grad_()]
    got = conv.conv2d(x, w, groups=groups, **geometry)
    x64, w64 = (each.detach().double().requires_grad_() for each in leaves)
    wanted = F.conv2d(x64, w64, groups=groups, **geometry)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.1}
    torch.testing.assert_close(got.double(), wanted, **close)
    cotangent = torch.randn_like(got)
    mine = torch.autograd.grad(got, leaves, cotangent)
    theirs = torch.autograd.grad(wanted, (x64, w64), cotangent.double())
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, **close)
    assert answers == [True] * asked


@pytest.mark.parametrize(("width", "asked"), [(64, 0), (65, 3)])
def test_long_rows_of_single_channels_of_16_bits(
    width: int, asked: int, answers: list[bool]
) -> None:
    """For rows of known length there are kernels."""
    shape = (1, 16, 3, width)
    x = torch.randn(shape).bfloat16().contiguous(memory_format=torch.channels_last)
    leaves = [x.requires_grad_(), torch.randn(16, 1, 3, 3).bfloat16().requires_grad_()]
    y = conv.conv2d(*leaves, groups=16, padding=1)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    wanted = F.conv2d(*wide, groups=16, padding=1)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, leaves, cotangent))
    exact = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.02, atol=0.1)
    assert answers == [True] * asked


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("channels", "size", "asked"), [(1, 128, 0), (2, 80, 0), (2, 90, 3), (3, 72, 3), (5, 20, 0)]
)
def test_large_images_of_few_single_channels(
    channels: int, size: int, asked: int, answers: list[bool]
) -> None:
    """As those of pictures: a vector is neither a row nor a pixel of them."""
    torch.manual_seed(0)
    x = torch.randn(2, channels, size, size).contiguous(memory_format=torch.channels_last)
    leaves = [x.requires_grad_(), torch.randn(channels, 1, 3, 3).requires_grad_()]
    y = conv.conv2d(*leaves, groups=channels, padding=1)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    wanted = F.conv2d(*wide, groups=channels, padding=1)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, leaves, cotangent))
    exact = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-2)
    assert answers == [True] * asked


LAST = torch.channels_last


@pytest.mark.parametrize(
    ("shape", "window", "more", "format_", "dtype", "asked"),
    [
        ((8, 48, 64, 56), (3, 3), {}, LAST, torch.bfloat16, True),
        ((64, 128, 12, 12), (3, 3), {}, LAST, torch.bfloat16, True),
        ((8, 16, 320, 28), (3, 3), {"padding": 0}, LAST, torch.bfloat16, True),
        ((64, 128, 12, 11), (3, 3), {}, LAST, torch.bfloat16, False),
        pytest.param(
            *((32, 128, 16, 16), (3, 3), {}, LAST, torch.bfloat16, False), marks=pytest.mark.slow
        ),
        ((32, 128, 16, 17), (3, 3), {}, LAST, torch.bfloat16, True),
        ((8, 48, 48, 56), (3, 3), {}, LAST, torch.bfloat16, False),  # fewer cells
        ((24, 15, 64, 56), (3, 3), {}, LAST, torch.bfloat16, True),  # too few for a vector
        ((24, 15, 32, 28), (3, 3), {"dilation": 2}, LAST, torch.bfloat16, False),
        ((8, 48, 64, 56), (3, 2), {}, LAST, torch.bfloat16, False),
        pytest.param(
            *((8, 48, 64, 56), (3, 3), {"dilation": 2, "padding": 2}, LAST, torch.bfloat16, False),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *((8, 150, 64, 60), (3, 3), {"stride": 2}, LAST, torch.bfloat16, False),
            marks=pytest.mark.slow,
        ),
        ((8, 48, 64, 56), (3, 3), {}, LAST, torch.float16, False),
        ((8, 48, 64, 56), (3, 3), {}, LAST, torch.float32, False),
        ((8, 48, 64, 56), (3, 3), {}, torch.contiguous_format, torch.bfloat16, False),
    ],
)
@pytest.mark.sampled(6)
def test_single_channels_of_bfloat16_through_small_windows(
    shape: tuple[int, ...],
    window: tuple[int, int],
    more: dict[str, int],
    format_: torch.memory_format,
    dtype: torch.dtype,
    asked: bool,
    answers: list[bool],
) -> None:
    """Many cells in rows whose kernels have no pairs of vectors go to the library."""
    channels = shape[1]
    geometry = {"padding": 1, "groups": channels, **more}
    x = torch.randn(shape).to(dtype).contiguous(memory_format=format_)
    w = torch.randn(channels, 1, *window).to(dtype)
    got = conv.conv2d(x, w, **geometry)
    wanted = F.conv2d(x.float(), w.float(), **geometry)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.01, "atol": 0.02}
    torch.testing.assert_close(got.float(), wanted, **close)
    assert answers == [True] * asked


@pytest.mark.parametrize(("width", "asked"), [(64, 0), (70, 1)])
def test_steps_of_single_channels_of_16_bits(width: int, asked: int, answers: list[bool]) -> None:
    """The result of long rows: the library takes ten times as long as kernels for gradients."""
    x = torch.randn(1, 16, 6, width).bfloat16().contiguous(memory_format=LAST).requires_grad_()
    w = torch.randn(16, 1, 5, 5).bfloat16().requires_grad_()
    y = conv.conv2d(x, w, padding=2, stride=2, groups=16)
    wide = [each.detach().double().requires_grad_() for each in (x, w)]
    wanted = F.conv2d(*wide, padding=2, stride=2, groups=16)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, (x, w), cotangent))
    exact = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.02, atol=0.2)
    assert answers == [True] * asked


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("image", "weight", "stride", "padding", "asked"),
    [
        ((2, 3, 8, 1), (4, 3, 5, 3), 3, 2, False),  # the first and the last column of the filter
        ((2, 3, 2, 1), (4, 3, 3, 3), 2, 1, False),
        ((1, 3, 8, 2), (4, 3, 5, 3), 3, 2, False),
        ((2, 3, 8, 3), (4, 3, 3, 3), 1, 1, True),
        ((2, 8, 8, 5), (4, 8, 5, 5), 2, 2, True),
    ],
)
def test_taps_that_meet_no_pixel_have_no_gradient(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int,
    padding: int,
    asked: bool,
    answers: list[bool],
) -> None:
    """In 16 bits the library leaves theirs as memory was."""
    torch.manual_seed(0)
    x = torch.randn(image).bfloat16().contiguous(memory_format=LAST)
    w = torch.randn(weight).bfloat16().requires_grad_()
    y = conv.conv2d(x, w, stride=stride, padding=padding)
    cotangent = torch.randn_like(y)
    wide = w.detach().double().requires_grad_()
    wanted = F.conv2d(x.double(), wide, stride=stride, padding=padding)
    (exact,) = torch.autograd.grad(wanted, wide, cotangent.double())
    answers.clear()
    for _ in range(10):
        memory = [torch.full((1 << size,), 1e30) for size in range(4, 12)]
        del memory
        (found,) = torch.autograd.grad(y, w, cotangent, retain_graph=True)
        torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.1)
    assert bool(answers) == asked


def test_filters_of_single_channels_that_are_not_finite_stay_here(answers: list[bool]) -> None:
    """The zeros of padding are no terms, and meet no infinity."""
    x = torch.randn(8, 48, 64, 56).bfloat16().contiguous(memory_format=LAST)
    w = torch.randn(48, 1, 3, 3).bfloat16()
    w[5, 0, 0, 0] = torch.inf
    y = conv.conv2d(x, w, padding=1, groups=48)
    assert answers and not any(answers)
    assert y[:, 5, 0].isfinite().all()
    assert y[:, 5, 1:, 1:].isinf().all()


@pytest.mark.parametrize(
    ("channels", "width", "stride", "asked"),
    [
        (16, 65, 1, True),
        (16, 64, 1, False),  # kernels are made for rows of this length
        (15, 65, 1, True),  # too few for a vector
        (1, 65, 1, False),
        (16, 65, 2, True),
        (16, 65, 3, False),
    ],
)
def test_filters_of_long_rows_of_single_channels(
    channels: int, width: int, stride: int, asked: bool, answers: list[bool]
) -> None:
    x = torch.randn(1, channels, 3, width).contiguous(memory_format=torch.channels_last)
    w = torch.randn(channels, 1, 3, 3, requires_grad=True)
    y = conv.conv2d(x, w, groups=channels, padding=1, stride=stride)
    w64 = w.detach().double().requires_grad_()
    wanted = F.conv2d(x.double(), w64, groups=channels, padding=1, stride=stride)
    cotangent = torch.randn_like(y)
    (own,) = torch.autograd.grad(y, w, cotangent)
    (exact,) = torch.autograd.grad(wanted, w64, cotangent.double())
    torch.testing.assert_close(own.double(), exact, rtol=1e-4, atol=1e-4)
    assert answers == [True, True] * asked  # the result and the filter


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("channels", "width", "geometry", "format_", "asked"),
    [
        (16, 65, {}, torch.channels_last, 2),
        (16, 70, {"stride": 2}, torch.channels_last, 2),
        (16, 64, {}, torch.channels_last, 0),
        (15, 65, {}, torch.channels_last, 3),  # too few for a vector: the filter's as well
        (15, 65, {"dilation": 2}, torch.channels_last, 0),
        (16, 65, {"stride": 3}, torch.channels_last, 0),
        (16, 65, {"dilation": 2}, torch.channels_last, 0),
        (16, 65, {}, torch.contiguous_format, 0),
    ],
)
def test_long_rows_of_single_channels(
    channels: int,
    width: int,
    geometry: dict[str, int],
    format_: torch.memory_format,
    asked: int,
    answers: list[bool],
) -> None:
    """Result and image, through windows of 5 by 5."""
    x = torch.randn(2, channels, 9, width).contiguous(memory_format=format_).requires_grad_()
    w = torch.randn(channels, 1, 5, 5, requires_grad=True)
    y = conv.conv2d(x, w, groups=channels, padding=2, **geometry)
    wide = [each.detach().double().requires_grad_() for each in (x, w)]
    wanted = F.conv2d(*wide, groups=channels, padding=2, **geometry)
    cotangent = torch.randn_like(y)
    found = (y, *torch.autograd.grad(y, (x, w), cotangent))
    exact = (wanted, *torch.autograd.grad(wanted, wide, cotangent.double()))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    assert answers == [True] * asked


@pytest.mark.sampled(8)
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("channels", "window", "stride", "asked"),
    [(16, 10, 1, 2), (16, 9, 1, 0), (15, 10, 1, 0), (16, 10, 2, 0)],  # all but the filter's
)
def test_wide_windows_of_single_channels(
    channels: int,
    window: int,
    stride: int,
    asked: int,
    format_: torch.memory_format,
    answers: list[bool],
) -> None:
    if channels < 16 and format_ == LAST:
        asked = 3  # too few for a vector
    x = torch.randn(2, channels, 12, 13).contiguous(memory_format=format_)
    w = torch.randn(channels, 1, window, window) / window
    leaves = [x.requires_grad_(), w.requires_grad_()]
    geometry = {"padding": 5, "groups": channels, "stride": stride}
    got, wanted = (each(x, w, **geometry) for each in (conv.conv2d, F.conv2d))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert got.is_contiguous(memory_format=format_)
    cotangent = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, cotangent),
        torch.autograd.grad(wanted, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    assert answers == [True] * asked


@pytest.mark.parametrize("has_kernels", [False, True])
def test_float16_only_where_the_library_has_kernels_for_it(
    has_kernels: bool, answers: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "library_has_float16", lambda: has_kernels)
    size = 9 + has_kernels  # calls like an earlier one are known
    x, w = torch.randn(2, 8, size, size).half(), torch.randn(8, 8, 3, 3).half()
    got = conv.conv2d(x, w, padding=1)
    torch.testing.assert_close(
        got.double(), F.conv2d(x.double(), w.double(), padding=1), rtol=2**-9, atol=2**-6
    )
    assert answers == [True] * has_kernels


def test_double_precision_is_not_the_library_s(answers: list[bool]) -> None:
    x, w = torch.randn(1, 16, 5, 5).double(), torch.randn(16, 16, 3, 3).double()
    torch.testing.assert_close(conv.conv2d(x, w), F.conv2d(x, w))
    assert answers == []


def test_sizes_that_the_library_would_find_otherwise(answers: list[bool]) -> None:
    """One column more than a convolution has: it sees padding alone."""
    module = opgen.compile((GROUPED + WHERE + SUM).replace("//s + 1", "//s + 2"))
    x, w = torch.randn(1, 16, 9), torch.randn(16, 16, 3)
    got = module.f(x, w)
    assert answers == []
    torch.testing.assert_close(got, F.conv1d(F.pad(x, (0, 1)), w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels_last", [False, True])
def test_windows_in_the_padding_alone_are_not_the_library_s(
    channels_last: bool, answers: list[bool]
) -> None:
    """For the one in channels-last format PyTorch 2.13 ends the process."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(1, 32, 6, 1, generator=generator)
    weight, bias = (torch.randn(size, generator=generator) for size in ((16, 16, 1, 1), (16,)))
    given = (x, weight, bias)
    if channels_last:
        given = (x.contiguous(memory_format=torch.channels_last), weight, bias)
    call: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
    wanted = F.conv2d(x.double(), weight.double(), bias.double(), **call)
    torch.testing.assert_close(conv.conv2d(*given, **call).double(), wanted, rtol=1e-4, atol=1e-4)
    assert answers == []


def test_padding_has_no_terms_even_beside_infinity(answers: list[bool]) -> None:
    x, w = torch.ones(1, 16, 4, 5), torch.ones(16, 16, 3, 3)  # a shape that no other test looks up
    w[0, 0, 0, 0] = float("inf")
    got = conv.conv2d(x, w, padding=1)
    assert answers == [False]
    assert not got.isnan().any()
    assert not conv.conv2d(x, w).isnan().any()
    assert answers == [False, True]
    x.requires_grad_()
    cotangent = torch.ones_like(got)
    cotangent[0, 0, 0, 0] = float("inf")
    w = torch.ones(16, 16, 3, 3, requires_grad=True)
    conv.conv2d(x, w, padding=1).backward(cotangent)
    # The first tap never meets the first cell: it lies beside the padding there.
    assert w.grad is not None
    assert w.grad[0, :, 0, 0].isfinite().all()
    assert not w.grad[0, :, 1, 1].isfinite().any()
    assert answers[2:] == [True, True, False]


# ---------------------------------------------------------------------------- calls that are known
def test_calls_like_an_earlier_one_are_known(answers: list[bool]) -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x, weight = torch.randn(2, 64, 7, 6), torch.randn(64, 64, 3, 3)
    spoiled = weight.clone()
    spoiled[0, 0, 0, 0] = float("inf")
    images = (x, x.contiguous(memory_format=torch.channels_last), x.flip(0), x.double().float())
    for image in images:
        for padding in (1, (2, 0), 1):
            torch.testing.assert_close(
                conv(image, weight, padding=padding),
                F.conv2d(image, weight, padding=padding),
                rtol=1e-4,
                atol=1e-4,
            )
    assert answers == [True] * 12
    known = conv(x, spoiled, padding=1)
    assert answers[12:] == [False, False], "asked as a known call, and as a new one"
    assert not known.isnan().any(), "a zero of the padding has no term"


@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["conv", "conv_transpose", "unfold_conv"])
def test_both_gradients_of_a_known_call_are_one(
    name: str, format_: torch.memory_format, in_python: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, bool]] = []
    gradients = library_call.gradients

    def listening(*arguments: Any) -> library_call.Pair:
        asked.append(arguments[-1])
        return gradients(*arguments)

    monkeypatch.setattr(library_call, "gradients", listening)
    ops = opgen.load(SPECS / f"{name}.op")
    own = ops.unfold_conv if name == "unfold_conv" else getattr(ops, f"{name}2d")
    torchs = F.conv_transpose2d if name == "conv_transpose" else F.conv2d
    torch.manual_seed(0)
    x = torch.randn(2, 64, 5, 6).to(memory_format=format_).requires_grad_()
    weight = torch.randn(64, 64, 3, 3).to(memory_format=format_).requires_grad_()
    cotangent = torch.randn(2, 64, 5, 6).to(memory_format=format_)
    for known in (False, True, True):
        asked.clear()
        got = torch.autograd.grad(own(x, weight, padding=1), (x, weight), cotangent)
        expected = torch.autograd.grad(torchs(x, weight, padding=1), (x, weight), cotangent)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
            assert one.stride() == other.stride()
        # The gradient of the image of a transposed convolution is a convolution forward.
        alone = [(False, True)] if name == "conv_transpose" else [(True, False), (False, True)]
        assert asked == ([(True, True)] if known and name != "conv_transpose" else alone)
    asked.clear()
    (alone,) = torch.autograd.grad(own(x.detach(), weight, padding=1), weight, cotangent)
    assert asked == [(False, True)]
    torch.testing.assert_close(alone, expected[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("inside", "out", "window", "stride", "is_copied"),
    [
        (10, 15, 3, 1, True),
        (24, 40, 3, 1, True),
        (16, 15, 3, 1, False),  # these fill blocks
        (8, 15, 3, 1, False),
        (25, 15, 3, 1, False),
        (10, 41, 3, 1, False),
        (10, 15, 2, 1, False),
        (10, 15, 3, 2, False),
    ],
)
def test_both_gradients_of_few_channels_go_through_channels_last(
    inside: int,
    out: int,
    window: int,
    stride: int,
    is_copied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[torch.Tensor, torch.Tensor]] = []
    gradients = library_call.gradients

    def listening(*arguments: Any) -> library_call.Pair:
        asked.append(arguments[1:3])
        return gradients(*arguments)

    monkeypatch.setattr(convolution_tiles, "tiles_of", lambda case, call: None)
    own = opgen.load(SPECS / "conv.op").conv2d
    torch.manual_seed(0)
    x = torch.randn(2, inside, 6, 7).requires_grad_()
    weight = torch.randn(out, inside, window, window).requires_grad_()
    expected = F.conv2d(x, weight, padding=1, stride=stride)
    cotangent = torch.randn_like(expected)
    torch.autograd.grad(own(x, weight, padding=1, stride=stride), (x, weight), cotangent)
    for module in (library_call, library_gradients):
        monkeypatch.setattr(module, "gradients", listening)
    result = own(x, weight, padding=1, stride=stride)
    for got, wanted in zip(
        torch.autograd.grad(result, (x, weight), cotangent),
        torch.autograd.grad(expected, (x, weight), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)
        assert got.is_contiguous(), "as the op promises"
    (images,) = asked
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in images) is (
        is_copied
    )


def test_both_gradients_are_computed_apart_beside_infinity() -> None:
    """The library would multiply it with the zeros of the padding."""
    conv = opgen.load(SPECS / "conv.op").conv2d
    x = torch.ones(1, 64, 4, 4, requires_grad=True)
    weight = torch.ones(64, 64, 3, 3)
    spoiled = weight.clone()
    spoiled[0, 0, 0, 0] = float("inf")
    plain = torch.ones(1, 64, 4, 4)
    other = plain.clone()
    other[0, 0, 0, 0] = float("inf")
    for filter_, cotangent in [(weight, plain)] * 2 + [(spoiled, plain), (weight, other)]:
        w = filter_.clone().requires_grad_()
        got = torch.autograd.grad(conv(x, w, padding=1), (x, w), cotangent)
        assert not any(each.isnan().any() for each in got)
    assert got[1][0, :, 0, 0].isfinite().all(), "this tap never meets the first cell"
    assert not got[1][0, :, 1, 1].isfinite().any()


def test_what_differs_in_anything_is_another_call() -> None:
    x, weight = torch.randn(2, 64, 5, 6), torch.randn(64, 64, 3, 3)
    key, numbers = library_call.key_of, (1, 1, 1, 1, 1, 1, 1)
    others = [
        key((x, weight, torch.zeros(64)), numbers),
        key((x.double(), weight, None), numbers),
        key((x[:1], weight, None), numbers),
        key((x.mT, weight, None), numbers),
        key((x.to(memory_format=torch.channels_last), weight, None), numbers),
        key((x.to("meta"), weight, None), numbers),
        key((x, weight, None), (1, 1, 0, 0, 1, 1, 1)),
    ]
    own = key((x, weight, None), numbers)
    assert own == key((x + 1, weight + 1, None), numbers)
    assert len({own, *others}) == 8


@pytest.mark.parametrize("block", [2, 4])
@pytest.mark.parametrize("channels", [3, 16])
def test_short_inner_dims_are_copied_slice_by_slice(block: int, channels: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, 3 * block, 5 * block).to(memory_format=torch.channels_last)
    parts = (2,), (channels,), (3, block), (5, block)
    order = ((0,), (1, 3, 5), (2,), (4,))
    arrangement = Arrangement(parts, order)
    found = arrangement.arranged(x, torch.channels_last)
    assert torch.equal(found, F.pixel_unshuffle(x, block))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(arrangement.restored(found, torch.channels_last), x)
