"""Depthwise convolution on CUDA as people write it by hand: the kernels of pyinn.

The structure is that of `conv2d_depthwise.py` of github.com/szagoruyko/pyinn, which an answer of
the seed "depthwise separable convolution" names: raw kernels of CuPy with all sizes as constants of
the source, one thread for one cell of the result, and for the gradient of the filter a buffer of
every product, which PyTorch sums. Only cells beyond 32 bits are counted otherwise than there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from string import Template
from typing import Any

import torch
from torch import Tensor

Launch = Callable[[str, str, int, tuple[Tensor, ...]], None]
"""Runs a kernel, given its source, its name, the number of its cells and its tensors."""

THREADS = 1024

_NARROW = 2**30
"""The fewest cells that 32 bits are not counted on for: an index goes a whole grid past its cell.

The products of 31x31 taps of [8,1024,20,20] are 3.1e9; pyinn counts them with `int`, which then are
negative, and its kernel ends in an illegal access.
"""

_LOOP = """
extern "C" __global__ void $name($parameters)
{
    for ($index index = blockIdx.x * ($index)blockDim.x + threadIdx.x; index < $cells;
         index += blockDim.x * ($index)gridDim.x) {
$body
    }
}
"""

_FORWARD = """
        const int n = index / $channels / $oh / $ow;
        const int c = index / $oh / $ow % $channels;
        const int h = index / $ow % $oh, w = index % $ow;
        const float *weight = filter + c * $k * $k;
        float value = 0;
        for (int kh = 0; kh < $k; kh++)
            for (int kw = 0; kw < $k; kw++, weight++) {
                const int ih = h + kh - $pad, iw = w + kw - $pad;
                if (ih >= 0 && ih < $ih && iw >= 0 && iw < $iw)
                    value += *weight * image[((n * $channels + c) * $ih + ih) * $iw + iw];
            }
        result[index] = value;"""

_IMAGE = """
        const int n = index / $channels / $ih / $iw;
        const int c = index / $ih / $iw % $channels;
        const int h = index / $iw % $ih, w = index % $iw;
        const float *weight = filter + c * $k * $k;
        float value = 0;
        for (int kh = 0; kh < $k; kh++)
            for (int kw = 0; kw < $k; kw++, weight++) {
                const int oh = h + $pad - kh, ow = w + $pad - kw;
                if (oh >= 0 && oh < $oh && ow >= 0 && ow < $ow)
                    value += *weight * cotangent[((n * $channels + c) * $oh + oh) * $ow + ow];
            }
        gradient[index] = value;"""

_FILTER = """
        const int h = index / $ow % $oh, w = index % $ow;
        const int n = index / $ow / $oh % $batch;
        const int kw = index / $ow / $oh / $batch % $k;
        const int kh = index / $ow / $oh / $batch / $k % $k;
        const int c = index / $ow / $oh / $batch / $k / $k;
        const int ih = h + kh - $pad, iw = w + kw - $pad;
        products[index] = ih >= 0 && ih < $ih && iw >= 0 && iw < $iw
            ? image[((n * $channels + c) * $ih + ih) * $iw + iw]
                * cotangent[((n * $channels + c) * $oh + h) * $ow + w]
            : 0.0f;"""


def _source(name: str, parameters: str, cells: int, body: str, **sizes: int) -> str:
    text = Template(body).substitute(sizes).lstrip("\n")
    index = "int" if cells < _NARROW else "long long"
    return Template(_LOOP).substitute(
        name=name, parameters=parameters, cells=cells, index=index, body=text
    )


@functools.lru_cache(maxsize=64)
def _compiled(source: str, name: str) -> Any:
    import cupy  # an optional package, and slow to load

    return cupy.RawKernel(source, name)


def launch(source: str, name: str, cells: int, tensors: tuple[Tensor, ...]) -> None:
    """Run a kernel on PyTorch's current stream, compiled once by CuPy."""
    import cupy

    device = tensors[0].device
    stream = torch.cuda.current_stream(device).cuda_stream
    with cupy.cuda.Device(device.index), cupy.cuda.ExternalStream(stream):
        blocks = -(-cells // THREADS)
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        _compiled(source, name)((blocks,), (THREADS,), addresses)


def depthwise(x: Tensor, weight: Tensor, *, padding: int, run: Launch = launch) -> Tensor:
    """`conv2d` of float32 [N,C,H,W] with a square filter [C,1,K,K] for each channel."""
    result: Tensor = _Depthwise.apply(x, weight, padding, run)  # type: ignore[no-untyped-call]
    return result


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int, run: Launch) -> Tensor:
        ctx.save_for_backward(x, weight)
        (batch, channels, ih, iw), k = x.shape, weight.shape[-1]
        oh, ow = ih + 2 * padding - k + 1, iw + 2 * padding - k + 1
        ctx.run, images = run, {"batch": batch, "channels": channels, "ih": ih, "iw": iw}
        ctx.sizes = {**images, "oh": oh, "ow": ow, "k": k, "pad": padding}
        y = x.new_empty(batch, channels, oh, ow)
        parameters = "const float *image, const float *filter, float *result"
        source = _source("forward", parameters, y.numel(), _FORWARD, **ctx.sizes)
        run(source, "forward", y.numel(), (x, weight, y))
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        cotangent, sizes = cotangent.contiguous(), ctx.sizes
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x)
            parameters = "const float *cotangent, const float *filter, float *gradient"
            source = _source("to_image", parameters, x.numel(), _IMAGE, **sizes)
            ctx.run(source, "to_image", x.numel(), (cotangent, weight, grad_x))
        if ctx.needs_input_grad[1]:
            products = x.new_empty(*weight.shape, cotangent.numel() // cotangent.shape[1])
            parameters = "const float *image, const float *cotangent, float *products"
            source = _source("to_filter", parameters, products.numel(), _FILTER, **sizes)
            ctx.run(source, "to_filter", products.numel(), (x, cotangent, products))
            grad_weight = products.sum(-1)
        return grad_x, grad_weight, None, None
