"""Building and calling at run time: gradients, the cache, strides, dtypes, batches, indices."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import opgen
from opgen.runtime import build, cuda
from opgen.testing.cuda_on_cpu.emulated import emulated

SPEC = """
op shift_sum(x[B,C,W]; step=1) -> y[B,V]
  where step >= 0
  let V = W + (C-1)*step
  y[b,v] = sum(c) x[b,c, v - c*step ?0]

op conv(x[N,(G C),H,W], w[(G O),C,K,L], b[(G O)] = 0; s=1, p=0, d=1, G=1) -> y[N,(G O),I,J]
  where s >= 1, p >= 0, d >= 1, G >= 1
  let I = (H + 2*p - d*(K-1) - 1)//s + 1, J = (W + 2*p - d*(L-1) - 1)//s + 1
  y[n,(g o),i,j] = b[(g o)]
                 + sum(c,k,l) x[n,(g c), i*s - p + k*d ?0, j*s - p + l*d ?0] * w[(g o),c,k,l]

op max_pool(x[N,H]; K=3, s=2, p=1) -> y[N,I], at: i64[N,I]
  where s >= 1, K >= 1, p >= 0, 2*p <= K
  let I = (H + 2*p - K)//s + 1
  y[n,i] = max(k in K) x[n, i*s - p + k ?0]
  at[n,i] = argmax(k in K; i*s - p + k) x[n, i*s - p + k ?0]

op blend(x: float[...,W], t[W] = 1; scale = 0.5, reflect = false) -> y[...,W]
  where W >= 2
  y[...,w] = scale * t[w] * exp(x[..., w - 1 ?reflect])  for w in W  if reflect
  y[...,w] = scale * t[w] * tanh(x[..., w - 1 ?clamp])  for w in W  if not reflect

op embed(t[V,E], id: int[N]) -> y[N,E]
  y[n,e] = t[id[n],e]

op histogram(id: int[N], weight[N]; V: size) -> y[V]
  y[id[n]] += weight[n]

op total(x[N]) -> y[]
  y[] = sum(n) x[n]

op nothing(x[N]) -> y[N]
  y[n] = x[n]
"""


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    return opgen.compile(SPEC)


def real(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


# ---------------------------------------------------------------------------- values and gradients
def test_shift_sum_by_hand(ops: ModuleType) -> None:
    x = torch.tensor([[[1, 1, 1], [2, 2, 2], [3, 3, 3]]])
    assert ops.shift_sum(x).tolist() == [[1, 3, 6, 5, 3]]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_gradients_of_shift_sum(ops: ModuleType, step: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return ops.shift_sum(x, step=step)

    x = real(2, 3, 4)
    assert gradcheck(function, (x,))
    assert gradgradcheck(function, (x,))


@pytest.mark.parametrize(
    ("s", "p", "d", "groups"),
    [
        (2, 1, 1, 2),
        pytest.param(1, 0, 1, 1, marks=pytest.mark.slow),
        pytest.param(2, 2, 3, 1, marks=pytest.mark.slow),
    ],
)
def test_convolution_and_its_gradients(
    ops: ModuleType, s: int, p: int, d: int, groups: int
) -> None:
    x, w, b = real(2, 2 * groups, 7, 6), real(2 * groups, 2, 3, 2, seed=1), real(2 * groups, seed=2)

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return ops.conv(*tensors, s=s, p=p, d=d, G=groups)

    wanted = F.conv2d(x, w, b, stride=s, padding=p, dilation=d, groups=groups)
    torch.testing.assert_close(function(x, w, b), wanted)
    torch.testing.assert_close(function(x, w), wanted - b[:, None, None])
    assert gradcheck(function, (x, w, b))
    assert gradgradcheck(function, (x, w, b))


def test_max_pool_and_its_gradients(ops: ModuleType) -> None:
    x = real(2, 9)
    y, at = ops.max_pool(x)
    wanted, wanted_at = F.max_pool1d(x, 3, 2, 1, return_indices=True)
    assert torch.equal(y, wanted)
    assert torch.equal(at, wanted_at)
    assert not at.requires_grad
    assert gradcheck(lambda x: ops.max_pool(x)[0], (x,))
    assert gradgradcheck(lambda x: ops.max_pool(x)[0], (x,))


@pytest.mark.parametrize("reflect", [False, True])
def test_modes_functions_and_batches(ops: ModuleType, reflect: bool) -> None:
    x, t = real(2, 3, 5), real(5, seed=1)
    pad = F.pad(x, (1, 0), mode="reflect" if reflect else "replicate")[..., :-1]
    function = torch.exp if reflect else torch.tanh
    got = ops.blend(x, t, scale=0.25, reflect=reflect)
    torch.testing.assert_close(got, 0.25 * t * function(pad))
    assert gradcheck(lambda *a: ops.blend(*a, reflect=reflect), (x, t))
    assert gradgradcheck(lambda *a: ops.blend(*a, reflect=reflect), (x, t))


@pytest.mark.parametrize("leading", [(), (3,), (2, 0), (2, 1, 3)])
def test_leading_dims_come_back(ops: ModuleType, leading: tuple[int, ...]) -> None:
    x = torch.randn(*leading, 4, requires_grad=True)
    y = ops.blend(x)
    assert y.shape == x.shape
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.shape == x.shape


def test_third_derivative(ops: ModuleType) -> None:
    x = real(4)
    got = wanted = None
    for function in (lambda x: ops.blend(x, scale=1.0, reflect=True), lambda x: x.exp().roll(1)):
        value = function(x).sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            value = gradient.sum()
        got, wanted = value, got
    # Reflection takes x[1] twice and x[3] never; the sums differ by just that.
    assert wanted is not None
    assert got is not None
    torch.testing.assert_close(wanted - got, x[1].exp() - x[3].exp())


def test_scatter_and_gather_by_an_index(ops: ModuleType) -> None:
    table, weight = real(4, 3), real(6, seed=1)
    index = torch.tensor([3, 0, 0, 1, 3, 3])
    assert torch.equal(ops.embed(table, index), table[index])
    assert torch.equal(ops.embed(table, index.int()), table[index])
    torch.testing.assert_close(
        ops.histogram(index, weight, V=4), torch.zeros(4).double().index_add(0, index, weight)
    )
    assert gradcheck(lambda t: ops.embed(t, index), (table,))
    assert gradgradcheck(lambda t: ops.embed(t, index), (table,))
    assert gradcheck(lambda w: ops.histogram(index, w, V=4), (weight,))


@pytest.mark.parametrize("value", [-1, 4])
@pytest.mark.parametrize("on_cuda_source", [False, True])
def test_an_index_outside_is_an_index_error(
    ops: ModuleType, value: int, on_cuda_source: bool
) -> None:
    index = torch.tensor([0, value])

    def calls() -> None:
        with pytest.raises(IndexError) as caught:
            ops.embed(torch.ones(4, 1), index)
        assert str(caught.value) == (
            f"embed: index {value} is outside of dimension 0 of 't', which has extent 4 "
            "(in t[id[n], e])"
        )
        with pytest.raises(IndexError, match=r"dimension 0 of 'y'.*in y\[id\[n\]\]"):
            ops.histogram(index, torch.ones(2), V=4)

    if on_cuda_source:
        with emulated():
            calls()
    else:
        calls()


# ---------------------------------------------------------------------------- layouts and dtypes
def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """The same values with other strides."""
    wide = torch.zeros(x.shape[0], x.shape[1], x.shape[2], 2 * x.shape[3], dtype=x.dtype)
    wide[..., ::2] = x
    return [
        x.contiguous(memory_format=torch.channels_last),
        x.transpose(1, 3).contiguous().transpose(1, 3),
        wide[..., ::2],
        torch.cat([x, x])[x.shape[0] :],
    ]


def test_any_strides(ops: ModuleType) -> None:
    x, w = real(2, 3, 5, 6).detach(), real(4, 3, 2, 2, seed=1).detach()
    wanted = ops.conv(x, w)
    for other in layouts(x):
        assert torch.equal(ops.conv(other, w), wanted)
    for other in layouts(w):
        assert torch.equal(ops.conv(x, other), wanted)


def test_expanded_inputs_and_gradients(ops: ModuleType) -> None:
    x = torch.tensor([[2.0]]).expand(3, 4)
    assert ops.max_pool(x)[0].tolist() == [[2.0, 2.0]] * 3
    leaf = torch.ones(3, requires_grad=True)
    ops.nothing(leaf).sum().backward()  # the incoming gradient is one element with stride 0
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8,
              torch.int16, torch.int32, torch.int64]
)  # fmt: skip
def test_dtypes(ops: ModuleType, dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(2, 3, 4).to(dtype)
    got = ops.shift_sum(x)
    assert got.dtype == dtype
    wanted = ops.shift_sum(x.to(torch.int64))
    assert torch.equal(got.double(), wanted.double())
    y, _ = ops.max_pool(x[0])
    assert torch.equal(y.double(), ops.max_pool(x[0].double())[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_add_up_in_thirty_two(ops: ModuleType, dtype: torch.dtype) -> None:
    ones = torch.ones(4096, dtype=dtype)
    assert ops.total(ones).item() == 4096  # in 16 bits the sum would stop at 2048 or 256
    index = torch.zeros(4096, dtype=torch.int64)
    assert ops.histogram(index, ones, V=1).item() == 4096


def test_integers_wrap_around(ops: ModuleType) -> None:
    assert ops.total(torch.tensor([127, 1], dtype=torch.int8)).item() == -128
    assert ops.total(torch.tensor([2**62] * 4)).item() == 0


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_tensors(ops: ModuleType, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, requires_grad=True)
    y = ops.shift_sum(x, step=0)
    assert y.shape == (shape[0], shape[2])
    assert not y.any()
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


def test_meta_tensors_give_shapes(ops: ModuleType) -> None:
    x = torch.empty(2, 3, 4, device="meta")
    assert ops.shift_sum(x, step=2).shape == (2, 8)


def test_negated_views(ops: ModuleType) -> None:
    """The imaginary part of a conjugate is a view with a pending sign."""
    x = torch.imag(torch.complex(torch.ones(3), torch.arange(3.0)).conj())
    assert x.is_neg()
    assert ops.nothing(x).tolist() == [0, -1, -2]


# ---------------------------------------------------------------------------- building
SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OPGEN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "opgen"


def test_the_cache_is_private_and_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.library(SOURCE).answer() == 42
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    (entry,) = cache.glob("*/*.so")
    monkeypatch.setattr(build, "_compile", None)  # a miss would fail
    assert build.library(SOURCE).answer() == 42
    assert list(cache.glob("*/*.so")) == [entry]


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_entry_is_built_again(cache: Path, damage: bytes | None) -> None:
    build.library(SOURCE)
    (entry,) = cache.glob("*/*.so")
    content = entry.read_bytes()
    entry.unlink()  # a new file: the old one is mapped into this process
    entry.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert build.library(SOURCE).answer() == 42
    assert entry.read_bytes() == content


def test_a_cache_that_others_may_write_is_made_private(cache: Path) -> None:
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    assert build.cache_directory() == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_without_a_writable_cache_a_directory_of_the_process_is_used(cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    assert build.library(SOURCE).answer() == 42
    assert build.cache_directory() != cache


@pytest.mark.slow
def test_processes_may_build_the_same_at_the_same_time(cache: Path) -> None:
    program = f"from opgen.runtime import build; print(build.library({SOURCE!r}).answer())"
    workers = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [worker.communicate()[0].strip() for worker in workers] == ["42"] * 2
    assert len(list(cache.glob("*/*.so"))) == 1


def test_the_compiler_may_be_chosen(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CC", "gcc -DANSWER=7")
    assert build.library("int answer(void) { return ANSWER; }\n").answer() == 7
    monkeypatch.setenv("OPGEN_CC", "no-such-compiler")
    with pytest.raises(build.BuildError, match="OPGEN_CC"):
        build.library(SOURCE)


def test_a_refused_source_shows_what_the_compiler_said(cache: Path) -> None:
    with pytest.raises(build.BuildError, match=r"(?s)failed:.*error:.*nonsense"):
        build.library("nonsense {\n")
    assert not list(cache.glob("*/*.so"))


def test_without_cupy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match=r"pip install 'opgen\[cuda13\]'"):
        cuda._cupy()
