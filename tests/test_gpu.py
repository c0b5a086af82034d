"""Kernels on a GPU: `python -m pytest --require-gpu -m gpu`.

Numbers of every spec, forward and two orders of gradients, against PyTorch's own ops, and in every
type and layout against the interpreter; streams, CUDA graphs, all devices of the machine, and
compute-sanitizer over a sample. Where no GPU is, the same comparisons go through the emulator for a
few ops, and the rest is skipped; `--require-gpu` makes failures of skips.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import gpu_child
import opgen
from catalogue import CATALOGUE, Case, Entry
from opgen.runtime import cuda, lookup_library, registration
from opgen.testing.calls import Call
from opgen.testing.cuda_on_cpu.emulated import emulated
from test_emulator_specs import SETTINGS, Setting, check, chosen, spec_named
from test_spec_kernels import as_tuple, chain, leaves

gpu = pytest.mark.gpu
WITH_TORCH = [entry for entry in CATALOGUE if entry.torch_equivalent is not None]
IN_EMULATOR = ("conv:conv1d", "shift_sum:shift_sum", "depth_to_space:depth_to_space")
TYPES = ("float64", "float32", "float16", "bfloat16")
LAYOUTS = ("contiguous", "transposed", "sliced", "channels_last")


@contextlib.contextmanager
def on(device: str) -> Iterator[None]:
    """Ops run on a GPU, or for tensors of the CPU in the emulator."""
    with emulated() if device == "cpu" else contextlib.nullcontext():
        yield


def emulated_case(*values: str) -> object:
    """The values of a case, and the CPU: what takes time there is for the slow tiers."""
    slow = () if values[0] == "shift_sum:shift_sum" else (pytest.mark.slow,)
    return pytest.param(*values, "cpu", marks=slow, id="-".join((*values, "emulator")))


def gpu_case(*values: str) -> object:
    """The values of a case, and a GPU."""
    return pytest.param(*values, "cuda", marks=gpu, id="-".join((*values, "gpu")))


@cache
def module(path: str) -> ModuleType:
    return opgen.load(path)


def entry(name: str) -> Entry:
    return next(each for each in CATALOGUE if repr(each) == name)


# ---------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    ("name", "device"),
    [*(gpu_case(repr(each)) for each in WITH_TORCH), *map(emulated_case, IN_EMULATOR)],
)
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_against_pytorch(name: str, device: str, data: st.DataObject) -> None:
    """In double precision, forward, backward and twice backward.

    Then for other numbers: on a GPU the table launches what it has seen.
    """
    subject = entry(name)
    case = data.draw(subject.cases)
    first = data.draw(st.integers(0, 2**16))
    for seed in range(first, first + (3 if device == "cuda" else 1)):
        compare(subject, case, seed, device)


def compare(subject: Entry, case: Case, seed: int, device: str) -> None:
    """An op on a device with PyTorch's own ones on the CPU, gradients too."""
    assert subject.torch_equivalent is not None
    numbers = subject.make_inputs(case, seed)
    tensors = {key: torch.from_numpy(np.array(value)) for key, value in numbers.items()}
    inputs = leaves(subject, tensors)
    moved = {key: value.to(device) for key, value in tensors.items()}
    with on(device):
        got = as_tuple(
            getattr(module(str(subject.spec_path)), subject.op)(**moved, **case.attributes)
        )
        wanted = as_tuple(subject.torch_equivalent(**tensors, **case.attributes))
        here = tuple(value.cpu() for value in got)
        torch.testing.assert_close(here, wanted)
        # PyTorch's own double backward fails on some empty tensors.
        assume(all(value.numel() for value in (*wanted, *inputs)))
        chain(here, wanted, inputs)


@pytest.mark.parametrize(
    ("name", "dtype", "layout", "device"),
    [
        *(gpu_case(repr(e), *how) for e in CATALOGUE for how in itertools.product(TYPES, LAYOUTS)),
        *(emulated_case(name, "bfloat16", "sliced") for name in IN_EMULATOR),
    ],
)
def test_types_and_layouts(name: str, dtype: str, layout: str, device: str) -> None:
    """The op and its first gradients against the interpreter, within what rounding may do."""
    stem, op_name = name.split(":")
    spec = spec_named(stem)
    paths = [each.path for each in spec.members if each.path[0] == op_name and len(each.path) <= 2]
    for path in paths:
        op, operation = spec.at(path)
        setting = Setting(1, dtype, layout, SETTINGS[0].order)
        call = Call(chosen(op, setting), dtype, (layout,) * len(op.inputs), 1, device=device)
        with on(device):
            check(op, operation, call)


# ---------------------------------------------------------------------------- calls seen before
SEEN: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "shift": (lambda x: spec("shift_sum").shift_sum(x, step=2), ((2, 8, 24, 64),)),
    "shuffle": (lambda x: spec("depth_to_space").depth_to_space(x, r=2), ((2, 16, 24, 32),)),
    "depthwise": (
        lambda x, w: spec("conv").conv2d(x, w, padding=1, groups=16),
        ((4, 16, 24, 32), (16, 1, 3, 3)),
    ),
    "dense": (
        lambda x, w: spec("conv").conv2d(x, w, padding=1),
        ((2, 16, 12, 16), (24, 16, 3, 3)),
    ),
    "pool": (lambda x: spec("pool").avg_pool2d(x, kernel_size=3, stride=2), ((2, 6, 25, 31),)),
}


def spec(stem: str) -> ModuleType:
    return module(str(Path(__file__).parent.parent / "specs" / f"{stem}.op"))


def arranged(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
    """Numbers that all types have, in a layout."""
    given = torch.randint(-4, 5, shape, device="cuda").to(dtype)
    match layout:
        case "transposed":
            return given.transpose(-1, -2).contiguous().transpose(-1, -2)
        case "sliced":  # rows begin at no multiple of an access
            return torch.nn.functional.pad(given, (1, 2))[..., 1:-2]
        case "channels_last":
            return given.contiguous(memory_format=torch.channels_last)
    return given


@gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", SEEN)
def test_calls_seen_before(name: str, dtype: str, layout: str) -> None:
    """Bit by bit what Python launches, forward and backward, for other numbers each time."""
    op, shapes = SEEN[name]
    for _ in range(3):
        tensors = [arranged(shape, getattr(torch, dtype), layout) for shape in shapes]
        found = gradients(op, tensors)
        with lookup_library.suspended():
            wanted = gradients(op, tensors)
        for mine, other in zip(found, wanted, strict=True):
            assert mine.equal(other) and mine.stride() == other.stride()


def gradients(
    op: Callable[..., torch.Tensor], tensors: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The result of an op, and its gradients for a cotangent in the result's layout."""
    given = [tensor.detach().requires_grad_() for tensor in tensors]
    result = op(*given)
    flowing = torch.full_like(result, 2.0)
    return (result.detach(), *torch.autograd.grad(result, given, flowing))


@gpu
def test_that_they_are_looked_up() -> None:
    """Not on another device, nor for tensors that are aligned otherwise, until they were seen."""
    scale = ops().scale
    twin = registration.twin(ops()._scale.registered_name)
    assert twin is not None

    def is_known(x: torch.Tensor) -> bool:
        return lookup_library.is_answered(twin.call(x, 2.0))

    memory = torch.ones(4 * 64 + 4, device="cuda")
    whole, apart = memory[:256].view(4, 64), memory[1:257].view(4, 64)
    scale(whole)
    assert is_known(whole)
    assert not is_known(apart)
    scale(apart)
    assert is_known(apart)
    y, total = twin.call(torch.full_like(whole, 3.0), -1.0)
    assert (y == -3).all() and (total == 192).all()


@gpu
def test_autocast() -> None:
    """As casts by hand, each time; gradients come back in the type of their input."""
    x = torch.randint(-4, 5, (2, 16, 24, 32), device="cuda").float().requires_grad_()
    shuffle = spec("depth_to_space").depth_to_space
    for dtype in (torch.bfloat16, torch.float16):
        for _ in range(3):
            with torch.autocast("cuda", dtype):
                y = shuffle(x, r=2)
            assert y.dtype is dtype and y.equal(shuffle(x.detach().to(dtype), r=2))
            flowing = torch.randint_like(y, 5)
            (found,) = torch.autograd.grad(y, x, flowing)
            assert found.dtype is torch.float32
            assert found.equal(torch.nn.functional.pixel_unshuffle(flowing, 2).float())


# ---------------------------------------------------------------------------- launches
SPEC = """
op scale(x: float[N,M]; factor = 2.0) -> y[N,M], total[N]
  y[n,m] = factor * x[n,m]
  total[n] = sum(m) x[n,m]

op product(a: float[M,K], b[K,N]) -> c[M,N]
  c[m,n] = sum(k) a[m,k] * b[k,n]
"""


@cache
def ops() -> ModuleType:
    return opgen.compile(SPEC)


@gpu
def test_a_stream_of_its_own() -> None:
    """Kernels come after what their stream did before, and before what it does next."""
    x = torch.zeros(512, 4096, device="cuda")
    ops().scale(x)  # compiled before anything is in flight
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(3)
        y, total = ops().scale(x)
        x.fill_(7)
    stream.synchronize()
    assert (y == 6).all() and (total == 3 * 4096).all()


@gpu
def test_a_captured_graph() -> None:
    """Forward and backward, replayed for other numbers."""
    a = torch.randn(96, 64, device="cuda", requires_grad=True)
    b = torch.randn(64, 80, device="cuda", requires_grad=True)
    flowing = torch.randn(96, 80, device="cuda")

    def step() -> tuple[torch.Tensor, ...]:
        result = ops().product(a, b)
        return (result, *torch.autograd.grad(result, (a, b), flowing))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        for tensor in (a, b, flowing):
            tensor.normal_()
    graph.replay()
    for got, wanted in zip(found, (a @ b, flowing @ b.T, a.T @ flowing), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@gpu
def test_a_capture_of_what_was_never_called() -> None:
    fresh = opgen.compile("op thrice(x: float[N]) -> y[N]\n  y[n] = 3 * x[n]\n")
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(cuda.CudaError, match="once before the capture"), torch.cuda.graph(graph):
        fresh.thrice(x)
    assert (fresh.thrice(x) == 3).all()


@gpu
def test_every_device_of_the_machine() -> None:
    """Also from a thread whose current device is another one."""
    for index in range(torch.cuda.device_count()):
        a = torch.randn(70, 40, device=f"cuda:{index}", requires_grad=True)
        b = torch.randn(40, 90, device=f"cuda:{index}")
        with torch.cuda.device((index + 1) % torch.cuda.device_count()):
            result = ops().product(a, b)
            result.sum().backward()
        assert result.device == a.device
        assert a.grad is not None
        torch.testing.assert_close(result, a @ b, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(a.grad, b.sum(1).expand_as(a), rtol=1e-4, atol=1e-4)


@gpu
def test_no_synchronisation() -> None:
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    ops().scale(x)[0].sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ops().scale(x)[0].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---------------------------------------------------------------------------- the sanitizer
def sanitizer() -> str | None:
    """NVIDIA's checker: on the path, or of CUDA where that is installed."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return shutil.which("compute-sanitizer") or shutil.which(str(home / "bin/compute-sanitizer"))


@gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_sanitizer(tool: str) -> None:
    program = sanitizer()
    if program is None:
        pytest.skip("there is no compute-sanitizer on the path or in $CUDA_HOME/bin")
    result = subprocess.run(
        [
            *(program, "--tool", tool, "--error-exitcode", "9", "--kernel-name-exclude"),
            *("kernel_substring=at::", sys.executable, gpu_child.__file__, "cuda"),
        ],
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "results" in result.stdout


@pytest.mark.slow
def test_what_the_sanitizer_looks_at_runs() -> None:
    """In the emulator, which finds nothing; and products of matrices are among it."""
    with emulated() as launches:
        count = gpu_child.main("cpu")
    assert count == 10
    assert any(name.endswith("_product") for name in launches.kernels)
