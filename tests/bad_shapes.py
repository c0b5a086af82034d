"""Calls with shapes that do not fit their op, or sizes that break its conditions."""

from __future__ import annotations

import torch

from bad_calls import (
    BACKWARDS,
    BEYOND,
    COVERED,
    CYCLE,
    DIAGONAL,
    DIGITS,
    DOT,
    FILTERED,
    FIRST,
    FOLLOWED,
    HOLD,
    IMAGE,
    KEPT,
    KERNEL,
    LEADING,
    MATMUL,
    PICK,
    PLAIN,
    RANGED,
    REPEAT,
    SCALE,
    SCATTER,
    STRETCH,
    STRIDED,
    SUMMED,
    TAIL,
    WIDE,
    Bad,
    W,
    X,
    conv1d,
    conv2d,
    embedding,
    inline,
    softmax,
    spec,
    zeros,
)

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
        "dim of an absent input negative",
        lambda: inline(BEYOND).beyond(zeros(3), k=4, Z=0),
        ValueError,
        "beyond: b.shape[1] = N - k = -1 is negative (k=4, N=3 from x.shape[0])",
    ),
    Bad(
        "dim of a temporary negative",
        lambda: inline(KEPT).kept(zeros(3), k=5),
        ValueError,
        "kept: t.shape[0] = N - k = -2 is negative (k=5, N=3 from x.shape[0])",
    ),
    Bad(
        "dim of an output negative through an attribute beside a let",
        lambda: inline(STRETCH).stretch(zeros(3), s=-2),
        ValueError,
        "stretch: y.shape[0] = M*s = -6 is negative (s=-2, M=3)",
    ),
    Bad(
        "launch check of a negative attribute",
        lambda: inline(PICK).pick(zeros(2, 2), s=-1),
        ValueError,
        "pick: index s of dim 1 of x must lie inside its extent C, but s=-1",
    ),
    Bad(
        "extents of digits negative",
        lambda: inline(DIGITS).digits(zeros(1), n=-6, s=-6),
        ValueError,
        "digits: the extent n must not be negative, but n=-6",
    ),
    Bad(
        "extents of digits that are read negative",
        lambda: inline(SUMMED).summed(zeros(6), n=-2, s=-3),
        ValueError,
        "summed: the extent n must not be negative, but n=-2",
    ),
    Bad(
        "extents of the digits of a temporary negative",
        lambda: inline(COVERED).covered(zeros(1), n=-2, s=-3, J=6),
        ValueError,
        "covered: the extent n must not be negative, but n=-2",
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
        "divisor in an extent zero",
        lambda: inline(STRIDED).strided(zeros(5), s=0),
        ValueError,
        "strided: the divisor s must be positive, but s=0",
    ),
    Bad(
        "divisor in a let negative",
        lambda: inline(BACKWARDS).backwards(zeros(5), s=-1),
        ValueError,
        "backwards: the divisor s must be positive, but s=-1",
    ),
    Bad(
        "divisor in a condition zero",
        lambda: inline(LEADING).leading(zeros(5), s=0),
        ValueError,
        "leading: the divisor s must be positive, but s=0",
    ),
    Bad(
        "divisor in a range zero, where a condition says otherwise",
        lambda: inline(RANGED).ranged(zeros(5), s=0),
        ValueError,
        "ranged: the divisor s must be positive, but s=0",
    ),
    Bad(
        "divisor in a range zero, where a range after it says otherwise",
        lambda: inline(FOLLOWED).followed(zeros(5), s=0),
        ValueError,
        "followed: the divisor s must be positive, but s=0",
    ),
    Bad(
        "divisor in a condition zero, where another condition says otherwise",
        lambda: inline(FILTERED).filtered(zeros(5), s=0),
        ValueError,
        "filtered: the divisor s must be positive, but s=0",
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
