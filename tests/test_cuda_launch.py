"""What reaches CuPy, and what is said where it is missing or broken: without a GPU, by stand-ins.

Ops on CPU tensors are sent through the launch of CUDA kernels; a module in the place of CuPy writes
down what it is asked for, or fails as the real one does.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import forks
import opgen
from opgen.runtime import cuda, evaluation, lookup_library

SPEC = """
op scale(x: float[N,M]; factor = 2.0) -> y[N,M], total[N]
  y[n,m] = factor * x[n,m]
  total[n] = sum(m) x[N-1-n,m]

op pick(x[N], id: int[K]) -> y[K]
  y[k] = x[id[k]]
"""


@dataclass
class Recorder:
    """What a stand-in for CuPy was asked for."""

    modules: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    launches: list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[object, ...], int]] = field(
        default_factory=list
    )
    loaded: list[bytes] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    fault: str = ""
    captures: bool = False
    current: int = 3

    def module(self) -> ModuleType:
        recorder = self

        class RawModule:
            def __init__(self, *, path: str) -> None:
                recorder.loaded.append(Path(path).read_bytes())

            def get_function(self, name: str) -> object:
                if recorder.fault:
                    raise OSError(recorder.fault)

                def launch(
                    grid: tuple[int, ...],
                    block: tuple[int, ...],
                    arguments: tuple[object, ...],
                    *,
                    stream: cuda._Stream,
                ) -> None:
                    recorder.launches.append((name, grid, block, arguments, stream.ptr))

                return launch

        def compile_using_nvrtc(
            source: str, options: tuple[str, ...], arch: str, filename: str
        ) -> tuple[bytes, None]:
            recorder.modules.append((source, options))
            return f"{len(source)} for {arch}".encode(), None

        found = ModuleType("cupy")
        compiler = SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc)
        nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
        found.RawModule = RawModule  # type: ignore[attr-defined]
        found.cuda = SimpleNamespace(compiler=compiler, nvrtc=nvrtc)  # type: ignore[attr-defined]
        return found


class Stream:
    cuda_stream = 1234


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Recorder]:
    """CPU tensors take the way of CUDA tensors, up to a stand-in for CuPy."""
    found = Recorder()
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(cuda, "is_capturing", lambda: found.captures)

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        found.devices.append(index)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: found.current)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream())
    monkeypatch.setattr(evaluation, "run_on_cpu", evaluation.run_on_cuda)
    monkeypatch.setitem(sys.modules, "cupy", found.module())
    cuda._kernel.cache_clear()
    cuda._module.cache_clear()
    cuda._capability.cache_clear()
    with lookup_library.suspended():
        yield found
    cuda._kernel.cache_clear()
    cuda._module.cache_clear()
    cuda._capability.cache_clear()


@pytest.fixture
def ops() -> ModuleType:
    return opgen.compile(SPEC)


# ---------------------------------------------------------------------------- launches
def test_what_is_launched(recorder: Recorder, ops: ModuleType) -> None:
    x = torch.ones(100, 6)[:, ::2]
    y, total = ops.scale(x, factor=0.5)
    assert recorder.devices == [3]
    ((code, options),) = recorder.modules
    assert options == cuda.OPTIONS
    assert 'extern "C" __global__ void __launch_bounds__(THREADS, 1) scale_y(' in code
    assert "#define index_t int32_t" in code
    assert "typedef f32 T;" in code
    first, second = recorder.launches
    assert first[:3] == ("scale_y", (1, 2, 1), (3, 85, 1))  # columns along x, rows along y
    assert first[4] == 1234
    assert first[3] == (x.data_ptr(), 6, 2, y.data_ptr(), 3, 1, 100, 3, 0.5)
    assert second[:3] == ("scale_total", (2, 1, 1), (2, 1, 64))  # two threads a sum of three terms
    assert [type(argument) for argument in first[3]] == [int] * 8 + [float]
    assert total.data_ptr() in second[3]


def test_a_source_is_compiled_once(recorder: Recorder, ops: ModuleType) -> None:
    for size in (1, 5):
        ops.scale(torch.ones(size, 2))
    assert len(recorder.modules) == 1
    ops.scale(torch.ones(1, 2).double())
    assert len(recorder.modules) == 2


def test_machine_code_is_kept_on_disk(recorder: Recorder, ops: ModuleType) -> None:
    ops.scale(torch.ones(3, 2))
    cuda._kernel.cache_clear()
    cuda._module.cache_clear()  # as in another process
    ops.scale(torch.ones(3, 2))
    assert len(recorder.modules) == 1
    assert len(recorder.loaded) == 2
    assert recorder.loaded[0] == recorder.loaded[1]
    assert recorder.loaded[0].endswith(b" for 90")


def test_damaged_machine_code_is_made_again(
    recorder: Recorder, ops: ModuleType, tmp_path: Path
) -> None:
    ops.scale(torch.ones(3, 2))
    (entry,) = (tmp_path / "cache").glob("*/*.cubin")
    entry.write_bytes(b"cut short")
    cuda._kernel.cache_clear()
    cuda._module.cache_clear()
    ops.scale(torch.ones(3, 2))
    assert len(recorder.modules) == 2
    assert recorder.loaded[0] == recorder.loaded[1]


def test_no_option_loses_small_numbers(recorder: Recorder, ops: ModuleType) -> None:
    ops.scale(torch.ones(3, 2))
    ((_, options),) = recorder.modules
    assert options == ("-std=c++17", "--fmad=false")


def test_nothing_is_launched_for_no_points(recorder: Recorder, ops: ModuleType) -> None:
    _, total = ops.scale(torch.ones(4, 0))
    assert total.shape == (4,)
    assert [name for name, *_ in recorder.launches] == ["scale_total"]


def test_a_kernel_that_checks_indices_can_say_so(recorder: Recorder, ops: ModuleType) -> None:
    ops.pick(torch.ones(4), torch.tensor([0, 1]))
    ((_, _, _, arguments, _),) = recorder.launches
    assert isinstance(arguments[-1], int)  # where a fault is written


def test_a_call_does_not_put_its_source_together_again(
    recorder: Recorder, ops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are the same objects in every call, but for macros: their hashes are kept."""
    sources = []
    run = cuda.launch

    def noting(launched: cuda.Launched) -> None:
        sources.append(launched.source)
        run(launched)

    monkeypatch.setattr(cuda, "launch", noting)
    for size in (3, 4):
        ops.scale(torch.ones(size, 2))
    first, second = sources
    assert first == second
    kept = [a is b for a, b in zip(first, second, strict=True) if len(a) > 100]
    assert len(kept) == 3 and all(kept)


# ---------------------------------------------------------------------------- graphs
def test_a_capture_launches_what_was_compiled_before(recorder: Recorder, ops: ModuleType) -> None:
    x = torch.ones(3, 2)
    ops.scale(x)
    recorder.captures = True
    ops.scale(x)
    assert len(recorder.launches) == 4
    assert len(recorder.modules) == 1


def test_a_capture_does_not_compile(recorder: Recorder, ops: ModuleType) -> None:
    recorder.captures = True
    assert message(ops) == (
        "scale: the kernel scale_y is not compiled yet for CUDA device 3, which cannot be done "
        "while a CUDA graph is captured; make the same call, with the same shapes, types and "
        "memory formats, once before the capture"
    )
    assert not recorder.modules and not recorder.launches
    recorder.captures = False  # the warm-up; nothing of the refusal stays
    ops.scale(torch.ones(2, 2))
    recorder.captures = True
    ops.scale(torch.ones(2, 2))
    assert len(recorder.launches) == 4


def test_a_capture_does_not_wait_for_checks_of_indices(recorder: Recorder, ops: ModuleType) -> None:
    index = torch.tensor([0, 1])
    ops.pick(torch.ones(4), index)
    recorder.captures = True
    with pytest.raises(cuda.CudaError, match=r"^pick: what its indices are is checked after"):
        ops.pick(torch.ones(4), index)
    assert len(recorder.launches) == 1


# ---------------------------------------------------------------------------- devices
def test_every_device_has_a_module_of_its_own(recorder: Recorder, ops: ModuleType) -> None:
    """Of the same machine code, where the devices are alike."""
    x = torch.ones(3, 2)
    for recorder.current in (0, 1, 0):
        ops.scale(x)
    assert recorder.devices == [0, 1, 0]
    assert len(recorder.loaded) == 2
    assert len(recorder.modules) == 1


def test_devices_of_two_kinds(
    recorder: Recorder, ops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8 + index, 0))
    for recorder.current in (0, 1):
        ops.scale(torch.ones(3, 2))
    assert [code.rpartition(b" ")[2] for code in recorder.loaded] == [b"80", b"90"]


# ---------------------------------------------------------------------------- what is missing
def message(ops: ModuleType) -> str:
    with pytest.raises(cuda.CudaError) as caught:
        ops.scale(torch.ones(2, 2))
    return str(caught.value)


@pytest.mark.parametrize(
    ("version", "extra"), [(None, "cuda13"), ("13.0", "cuda13"), ("12.8", "cuda12")]
)
def test_without_cupy(
    recorder: Recorder,
    ops: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(torch.version, "cuda", version)
    assert message(ops) == (
        "scale: CUDA kernels are compiled and launched by CuPy, which cannot be imported (import "
        f"of cupy halted; None in sys.modules); install it with: pip install 'opgen[{extra}]'"
    )


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "AttributeError"])
def test_a_cupy_that_cannot_be_imported(
    recorder: Recorder,
    ops: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: str,
) -> None:
    (tmp_path / "cupy.py").write_text(f"raise {error}('libcuda.so.1: cannot open\\n')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cupy")
    assert message(ops).startswith("scale: CUDA kernels are compiled and launched by CuPy, which ")
    assert "(libcuda.so.1: cannot open); install it" in message(ops)


def test_a_cupy_that_cannot_compile(recorder: Recorder, ops: ModuleType) -> None:
    recorder.fault = "libnvrtc.so.13: cannot open shared object file"
    assert message(ops) == (
        "scale: CuPy cannot compile and load the kernel scale_y for CUDA device 3: OSError: "
        "libnvrtc.so.13: cannot open shared object file"
    )
    recorder.fault = ""  # repaired: nothing of the failure stays
    ops.scale(torch.ones(2, 2))
    assert len(recorder.launches) == 2


def test_a_source_that_is_refused(
    recorder: Recorder, ops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise ValueError("kernels.cu(1): error")

    compiler = SimpleNamespace(compile_using_nvrtc=refuse)
    monkeypatch.setattr(sys.modules["cupy"].cuda, "compiler", compiler)
    assert message(ops) == (
        "scale: CuPy cannot compile and load the kernel scale_y for CUDA device 3: ValueError: "
        "kernels.cu(1): error"
    )


def test_gradients_say_which_op(
    recorder: Recorder, ops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    y, _ = ops.scale(x)
    monkeypatch.setitem(sys.modules, "cupy", None)
    cuda._module.cache_clear()
    cuda._kernel.cache_clear()
    with pytest.raises(cuda.CudaError, match=r"^scale_grad_x: .*CuPy"):
        y.sum().backward()


# ---------------------------------------------------------------------------- the CPU
PROGRAM = """
import sys, torch, opgen
ops = opgen.compile("op square(x[N]) -> y[N]\\n  y[n] = x[n]*x[n]\\n")
x = torch.arange(3.0, requires_grad=True)
ops.square(x).sum().backward()
print(x.grad.tolist(), "cupy" in sys.modules)
"""


def test_the_cpu_needs_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise RuntimeError('broken')\n")
    cache = str(tmp_path / "cache")
    said = forks.printed(forks.within(tmp_path, PROGRAM), OPGEN_CACHE=cache)
    assert said == "[0.0, 2.0, 4.0] False\n"
