"""A call that does not fit its op; the ops and tensors that such calls are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

import opgen

SPECS = Path(__file__).parent.parent / "specs"

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
STRIDED = """op strided(x[N]; s = 1) -> y[M]
  let M = N // s
  y[m] = x[m*s]
"""
BACKWARDS = """op backwards(x[N]; s = 1) -> y[N]
  let M = N // s
  y[i] = M * x[min(i, i*s)]
"""
LEADING = """op leading(x[N]; s = 1) -> y[N]
  y[i] = x[i]  if i // s == 0
"""
RANGED = """op ranged(x[N]; s = 1) -> y[]
  y[] += x[min(i, N - 1)] for i in N//s if s >= 1 and N >= 1
"""
FOLLOWED = """op followed(x[N]; s = 1) -> y[N]
  y[i] += x[i] for i in N, k in N//s, j in s
"""
FILTERED = """op filtered(x[N]; s = 1) -> y[N]
  y[i] = x[i]  if i // s >= 0 and s >= 1
"""
COUNTED = """op counted(x[N]; s = 1) -> y[N]
  y[i] += x[i] for i in N, j in s if i // s >= 0
"""
REPEAT = "op repeat(x[N]; r: int) -> y[N]\n  y[n] = x[n//r]\n"
CYCLE = "op cycle(x[N], w[K]) -> y[N]\n  y[n] = x[n] * w[n%K]\n"
DOT = "op dot(x[(C K)], w[K]) -> y[C]\n  y[c] = sum(k) x[(c k)] * w[k]\n"
TAIL = "op tail(x[A + B], w[A]) -> y[B]\n  y[b] = x[A + b]\n"
BEYOND = """op beyond(x[N], b[Z,N-k] = 0; k: int, Z: size) -> y[]
  where k >= 1
  y[] = x[k-1] + (sum(i,j) b[i,j])
"""
KEPT = """op kept(x[N]; k: int) -> y[]
  tmp t[N-k]
  t[i] = exp(x[0]) + i
  y[] = (sum(i) t[i]) + (sum(i) t[i]*t[i])
"""
STRETCH = "op stretch(x[N]; s: int) -> y[M*s]\n  let M = N\n  y[i] = x[0]\n"
DIGITS = "op digits(x[N]; n = 1, s = 1) -> y[(n s)]\n  y[(a b)] = x[0]\n"
SUMMED = """op summed(x[n*s]; n = 1, s = 1) -> y[]
  y[] += x[a*s+b] for a in n, b in s
"""
COVERED = """op covered(x[N]; n = 1, s = 1, J: size) -> y[J]
  where J == n*s, n <= 8
  tmp t[J]
  t[a*s+b] = 5.0 for a in n, b in s
  y[j] = t[j] * x[0]
"""
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
