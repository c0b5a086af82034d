"""What PyTorch says the ops of specs/ are: its own op where it has one, else a composition.

Every function takes the parameters of the op by name. All are differentiable as often as PyTorch
allows; where one of its derivatives refuses a case, the case is computed in another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def _batched(function: Callable[[Tensor], Tensor], x: Tensor, kept: int) -> Tensor:
    """Apply a function of one batch dim to any number of leading dims."""
    lead, rest = x.shape[: x.dim() - kept], x.shape[x.dim() - kept :]
    y = function(x.reshape(math.prod(lead), *rest))
    return y.reshape(*lead, *y.shape[1:])


def shift_sum(x: Tensor, step: int, mask: Tensor | None = None) -> Tensor:
    B, C, H, W = x.shape
    x = x if mask is None else x * mask
    y = x.new_zeros(B, 1, H, W + (C - 1) * step)
    for c in range(C):
        y[..., c * step : c * step + W] += x[:, c : c + 1]
    return y


def shift_sum_pinv(y: Tensor, C: int, step: int, mask: Tensor | None = None) -> Tensor:
    W = y.shape[-1] - (C - 1) * step
    alpha = y.new_zeros(y.shape[-1])
    for c in range(C):
        alpha[c * step : c * step + W] += 1
    z = y / alpha.clamp(min=1)  # columns that no channel reaches are not read
    x = torch.cat([z[..., c * step : c * step + W] for c in range(C)], 1)
    return x if mask is None else x / mask


def depth_to_space(x: Tensor, r: int, mode: str) -> Tensor:
    # The gradient of F.pixel_shuffle refuses empty tensors.
    if mode == "CRD" and x.numel():
        return F.pixel_shuffle(x, r)
    N, depth, H, W = x.shape
    C = depth // (r * r)
    if mode == "CRD":
        blocks = x.reshape(N, C, r, r, H, W).permute(0, 1, 4, 2, 5, 3)
    else:
        blocks = x.reshape(N, r, r, C, H, W).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(N, C, H * r, W * r)


def space_to_depth(x: Tensor, r: int, mode: str) -> Tensor:
    # F.pixel_unshuffle returns an empty tensor in its old shape.
    if mode == "CRD" and x.numel():
        return F.pixel_unshuffle(x, r)
    N, C, H, W = x.shape
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    blocks = x.reshape(N, C, H // r, r, W // r, r).permute(order)
    return blocks.reshape(N, C * r * r, H // r, W // r)


def unfold(x: Tensor, **attributes: tuple[int, int]) -> Tensor:
    return _batched(lambda image: F.unfold(image, **attributes), x, 3)


def fold(x: Tensor, **attributes: tuple[int, int]) -> Tensor:
    return _batched(lambda columns: F.fold(columns, **attributes), x, 2)


def unfold_conv(
    x: Tensor,
    weight: Tensor,
    dilation: tuple[int, int],
    padding: tuple[int, int],
    stride: tuple[int, int],
) -> Tensor:
    columns = F.unfold(x, weight.shape[2:], dilation, padding, stride)
    size = [
        (x.shape[2 + a] + 2 * padding[a] - dilation[a] * (weight.shape[2 + a] - 1) - 1) // stride[a]
        + 1
        for a in range(2)
    ]
    return (weight.flatten(1) @ columns).reshape(x.shape[0], weight.shape[0], *size)


def conv_depth_to_space(
    x: Tensor, weight: Tensor, r: int, padding: tuple[int, int], bias: Tensor | None = None
) -> Tensor:
    return depth_to_space(F.conv2d(x, weight, bias, padding=padding), r, "CRD")


def involution(
    x: Tensor,
    weight: Tensor,
    dilation: tuple[int, int],
    padding: tuple[int, int],
    stride: tuple[int, int],
) -> Tensor:
    N, G, K, L, OH, OW = weight.shape
    columns = F.unfold(x, (K, L), dilation, padding, stride)
    columns = columns.reshape(N, G, x.shape[1] // G, K * L, OH, OW)
    return (weight.reshape(N, G, 1, K * L, OH, OW) * columns).sum(3).flatten(1, 2)


def nearest_size(x: Tensor, output_size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, output_size, mode="nearest")


def nearest_exact(x: Tensor, output_size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, output_size, mode="nearest-exact")


def bilinear_size(x: Tensor, output_size: tuple[int, int], align_corners: bool) -> Tensor:
    return F.interpolate(x, output_size, mode="bilinear", align_corners=align_corners)


def interpolate(mode: str) -> Callable[..., Tensor]:
    def equivalent(x: Tensor, scale_factor: int) -> Tensor:
        return F.interpolate(x, scale_factor=scale_factor, mode=mode)

    return equivalent


def max_pool2d(x: Tensor, **attributes: int) -> tuple[Tensor, Tensor]:
    y, index = F.max_pool2d(x, return_indices=True, **attributes)
    return y, index


def roll(x: Tensor, shifts: tuple[int, int]) -> Tensor:
    return torch.roll(x, shifts, (-2, -1))


def pad(mode: str) -> Callable[..., Tensor]:
    def equivalent(x: Tensor, padding: tuple[int, ...]) -> Tensor:
        if mode == "constant":
            return F.pad(x, padding)
        return _batched(lambda image: F.pad(image[:, None], padding, mode)[:, 0], x, 2)

    return equivalent


def correlation(f: Tensor, g: Tensor, radius: int, dilation: int) -> Tensor:
    room = radius * dilation
    wide = F.pad(g, (room,) * 4)
    reach = range(0, 2 * room + 1, dilation)
    H, W = f.shape[2:]
    products = [(f * wide[..., a : a + H, b : b + W]).mean(1) for a in reach for b in reach]
    return torch.stack(products, 1)


def local_attention(
    q: Tensor, k: Tensor, v: Tensor, radius: int, dilation: int, scale: float
) -> Tensor:
    position = torch.arange(q.shape[2])
    distance = position[None] - position[:, None]
    band = (distance % dilation == 0) & (distance.abs() <= radius * dilation)
    # The only back end with second derivatives.
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=band, scale=scale)


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    # The second derivative of F.embedding refuses empty tables.
    return F.embedding(indices, weight) if weight.numel() else weight[indices]


def shift_conv(x: Tensor, offset: Tensor, weight: Tensor) -> Tensor:
    H, W = x.shape[2:]
    room = 1 + int(offset.abs().max())
    wide = F.pad(x, (room,) * 4)
    shifted = []
    for c, (rows, columns) in enumerate(offset.tolist()):
        top, left = room + rows, room + columns
        shifted.append(wide[:, c, top : top + H, left : left + W])
    return torch.einsum("oc,nchw->nohw", weight, torch.stack(shifted, 1))


def _haar_kernels(x: Tensor, count: int) -> Tensor:
    low, high = x.new_tensor([1, 1]), x.new_tensor([1, -1])
    kernels = [torch.outer(rows, columns) / 2 for rows in (low, high) for columns in (low, high)]
    return torch.stack(kernels)[:, None].repeat(count, 1, 1, 1)


def haar(x: Tensor) -> Tensor:
    return F.conv2d(x, _haar_kernels(x, x.shape[1]), stride=2, groups=x.shape[1])


def haar_inverse(x: Tensor) -> Tensor:
    C = x.shape[1] // 4
    return F.conv_transpose2d(x, _haar_kernels(x, C), stride=2, groups=C)


def layer_norm(
    x: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    # Its tangent refuses a bias without a weight.
    if weight is None and bias is not None:
        weight = torch.ones_like(bias)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def group_norm(
    x: Tensor,
    num_groups: int,
    eps: float,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    # F.group_norm refuses a group of one value, torch.group_norm does not; its gradient refuses a
    # bias without a weight.
    if weight is None and bias is not None:
        weight = torch.ones_like(bias)
    return torch.group_norm(x, num_groups, weight, bias, eps)


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    return F.channel_shuffle(x, groups)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)
