"""Convolutions are known by their index maps, whatever their dims are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import library_answers
import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.errors import Source
from opgen.ir.convolution import Convolution, Role
from opgen.passes.convolution import convolution
from opgen.passes.derive import derive
from opgen.runtime.arrangement import Arrangement

GROUPED = "op f(x[N,(g C),W], w[(g D),C,K]; g = 1, s = 1, p = 0) -> y[N,(g D),V]\n"
WHERE = "  where g >= 1, s >= 1, p >= 0\n  let V = (W + 2*p - K)//s + 1\n"
SUM = "  y[n,(i o),v] = sum(c,k) x[n,(i c), v*s + k - p ?0] * w[(i o),c,k]\n"


def found(spec: str) -> Convolution | None:
    (op,) = check_source(Source(spec, "<test>"))
    return convolution(op)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every convolution called: whether the library computed it."""
    return library_answers.heard(monkeypatch)


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


def test_gradients_of_shared_filters_between_statements_are_kernels(answers: list[bool]) -> None:
    """With the other image as its filter a library takes hundreds of times as long."""
    module = opgen.compile(
        "op f(x[B,C,H,W], f[3], g[3]) -> y[B,C,H,W]\n  k[i,j] = f[i]*g[j]\n"
        "  y[b,c,h,v] = sum(i,j) x[b,c,h+i-1 ?0,v+j-1 ?0]*k[i,j]\n"
    )
    torch.manual_seed(0)
    x, f, g = (torch.randn(s, requires_grad=True) for s in ((2, 32, 32, 32), (3,), (3,)))
    k = f[:, None] * g
    wanted = F.conv2d(x.flatten(0, 1)[:, None], k[None, None], padding=1).view(x.shape)
    got = module.f(x, f, g)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    mine, theirs = (torch.autograd.grad(y, (x, f, g), torch.ones_like(x)) for y in (got, wanted))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-2)
    assert answers == []
