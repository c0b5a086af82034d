"""Specs whose calls go to PyTorch's libraries on a GPU, and settings of these."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen
from opgen.runtime import cuda, evaluation, library_call, library_cuda
from opgen.runtime.library_cuda import Settings

PLAIN, LAST = torch.contiguous_format, torch.channels_last
FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
IEEE, TF32, ALL_TF32 = (
    Settings(True, False, False),
    Settings(True, True, False),
    Settings(True, True, True),
)
PRODUCTS_ONLY = Settings(True, False, True)

# Other names than those of the specs: nothing of these is looked up from other tests.
CONVOLUTION = """
op conv_on_gpu(x[N,(g C),H,W], w[(g O),C,K,L], bias[(g O)] = 0;
               g = 1, s = 1, p: int[2] = 0, d = 1) -> y[N,(g O),V,U]
  where g >= 1, s >= 1, d >= 1, p[0] >= 0, p[1] >= 0
  let V = (H + 2*p[0] - d*(K-1) - 1)//s + 1
  let U = (W + 2*p[1] - d*(L-1) - 1)//s + 1
  y[n,(i o),v,u] = bias[(i o)] + sum(c,k,l) w[(i o),c,k,l]
                   * x[n,(i c), v*s + k*d - p[0] ?0, u*s + l*d - p[1] ?0]
"""
BLOCKS = """
op blocks_on_gpu(x[N,C,H,W], w[(O 2 2),C,K,L]) -> y[N,O,(V 2),(U 2)]
  let V = H - K + 1, U = W - L + 1
  y[n,o,(v a),(u b)] = sum(c,k,l) w[(o a b),c,k,l] * x[n,c, v + k, u + l]
"""
LINE = """
op line_on_gpu(x[N,C,W], w[O,C,K]; p = 1) -> y[N,O,V]
  where p >= 0
  let V = W + 2*p - K + 1
  y[n,o,v] = sum(c,k) w[o,c,k] * x[n,c, v + k - p ?0]
"""
PRODUCT = """
op product_on_gpu(a[B,M,K], b[B,K,N], c[N] = 0) -> y[B,M,N]
  y[i,m,n] = c[n] + sum(k) a[i,m,k] * b[i,k,n]
"""


@cache
def ops(text: str) -> ModuleType:
    return opgen.compile(text)


def whole_numbers(*shape: int, dtype: torch.dtype = FLOAT, format_: Any = PLAIN) -> Tensor:
    """Sums of products of these are exact, in any order."""
    found = torch.randint(-2, 3, shape).to(dtype)
    return found.contiguous(memory_format=format_) if len(shape) == 4 else found


def take_the_way_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls on CPU tensors take the way of a GPU up to PyTorch's own ops, with TF32 set.

    In place of CUDA kernels those in C run. No number may be looked at.
    """

    def looked_at(_: Tensor) -> bool:
        raise AssertionError("a number was looked at")

    monkeypatch.setattr(cuda, "computes", lambda _: True)
    monkeypatch.setattr(evaluation, "run_on_cuda", _computed_on_cpu)
    monkeypatch.setattr(library_cuda, "settings", lambda: TF32)
    monkeypatch.setattr(library_call, "_is_finite", looked_at)


def _computed_on_cpu(call: evaluation.Call, operands: dict[str, Tensor]) -> cuda.Launched:
    """By C kernels, with temporaries of theirs, in a call that is not looked up next time."""
    outputs = [operands[each.name] for each in call.operation.outputs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "computes", lambda _: False)
        evaluation.run_on_cpu(call, evaluation.operands_of(call, outputs))
    return cuda.Launched((), call.device, (), {}, lasting=False)
