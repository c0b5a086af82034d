"""Memory of large results: when it is used again, and that nothing else changes."""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import forks
import opgen
from catalogue import SPECS
from opgen.runtime import kept_memory, library_strips, lookup_library

UP = opgen.compile("""
op up(x[B,C,H,W]) -> y[B,C,2*H,2*W]
  y[b,c,h,w] = x[b,c,h//2,w//2]
""").up
MEGABYTE = 1 << 20
pytestmark = pytest.mark.skipif(
    not hasattr(lookup_library._libtorch(), "torch_from_blob"),
    reason="PyTorch before 2.11 makes all results",
)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Every test begins and ends with no memory kept."""
    kept_memory.release()
    yield
    gc.collect()
    kept_memory.release()


@pytest.fixture(autouse=True, scope="module")
def few_to_look_at() -> None:
    """Garbage is collected in almost every test here, from among what other files left too."""
    gc.collect()
    gc.freeze()


def image(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def seen(x: Tensor) -> Tensor:
    """The result of a call that was seen before."""
    UP(x)
    gc.collect()
    return UP(x)


def expected(x: Tensor) -> Tensor:
    return F.interpolate(x.detach(), scale_factor=2.0)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
def test_freed_memory_is_used_again(dtype: torch.dtype, format_: torch.memory_format) -> None:
    x = image(2, 64, 48, 48, dtype=dtype).contiguous(memory_format=format_)
    first = seen(x)
    place = first.data_ptr()
    assert torch.equal(first, expected(x))
    held = UP(x)
    assert held.data_ptr() != place
    del first
    second = UP(2 * x)
    assert second.data_ptr() == place
    assert torch.equal(second, expected(2 * x)) and torch.equal(held, expected(x))
    assert second.is_contiguous(memory_format=format_) and second.device == x.device
    assert place % 64 == 0
    assert second.untyped_storage().nbytes() == second.numel() * dtype.itemsize


def test_small_results_are_made_by_pytorch() -> None:
    y = seen(image(1, 1, 16, 16))
    assert y.nbytes < MEGABYTE
    del y
    assert kept_memory.release() == 0


def test_tensors_without_elements() -> None:
    assert seen(image(0, 64, 48, 48)).shape == (0, 64, 96, 96)


def test_a_little_less_fits_and_much_less_does_not() -> None:
    y = seen(image(1, 64, 80, 64))
    place, size = y.data_ptr(), y.nbytes
    del y
    for height in (80, 76, 72, 64):
        x = image(1, 64, height, 64)
        UP(x)  # Python runs it, and PyTorch makes the result
        y = UP(x)
        fits = size <= y.nbytes + y.nbytes // 8
        assert (y.data_ptr() == place) is fits, height
        assert torch.equal(y, expected(x))
        del y
        if fits:
            assert kept_memory.release() == size
            y = seen(image(1, 64, 80, 64))
            place = y.data_ptr()
            del y


def test_views_and_arrays_hold_memory() -> None:
    x = image(2, 64, 48, 48)
    view = seen(x)[1, 3:5]
    array = UP(x).numpy()[0]
    for _ in range(4):
        UP(torch.zeros_like(x))
    assert torch.equal(view, expected(x)[1, 3:5])
    assert (array == expected(x)[0].numpy()).all()
    del view, array
    gc.collect()
    assert kept_memory.release() > 0


def test_results_that_are_held_are_apart() -> None:
    generator = random.Random(0)
    held: list[tuple[Tensor, Tensor]] = []
    inputs = [image(1, 64, 32 + 4 * at, 40) for at in range(6)]
    for _ in range(200):
        x = generator.choice(inputs)
        held.append((x, UP(x)))
        if len(held) > 8:
            held.pop(generator.randrange(len(held)))
    for x, y in held:
        assert torch.equal(y, expected(x))
    places = sorted((y.data_ptr(), y.nbytes) for _, y in held)
    for (place, size), (following, _) in itertools.pairwise(places):
        assert place + size <= following


def test_threads() -> None:
    faults: list[str] = []

    def work(seed: int) -> None:
        x = torch.full((1, 64, 40, 40), float(seed))
        held = []
        for _ in range(60):
            held.append(UP(x))
            if len(held) == 4:
                faults.extend(str(seed) for y in held if not bool((y == seed).all()))
                held.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_gradients_of_any_order() -> None:
    x = image(2, 64, 48, 48).requires_grad_()
    for _ in range(3):
        x.grad = None
        y = UP(x)
        y.square().sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, 8 * x.detach())
        cotangent = torch.ones_like(y).requires_grad_()
        (gradient,) = torch.autograd.grad(UP(x), x, cotangent, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), cotangent)
        torch.testing.assert_close(second, torch.full_like(second, 8.0))
        y = y.mul_(2)  # in place, of what autograd made
        assert torch.equal(y, 2 * expected(x))


def test_modes() -> None:
    x = image(2, 64, 48, 48)
    seen(x)
    with torch.inference_mode():
        assert UP(x).is_inference()
    assert not UP(x).is_inference()
    with torch.no_grad():
        assert not UP(x.requires_grad_()).requires_grad
    assert not UP(x.detach())._is_view()


def test_copies_and_other_processes() -> None:
    x = image(2, 64, 48, 48)
    y = seen(x)
    for other in (copy.deepcopy(y), pickle.loads(pickle.dumps(y)), y.clone()):
        assert torch.equal(other, expected(x))
    assert torch.equal(y.share_memory_(), expected(x))
    assert torch.equal(UP(x), expected(x))


def test_resizing_is_an_error_of_pytorch() -> None:
    y = seen(image(2, 64, 48, 48))
    with pytest.raises(RuntimeError, match="not resizable"):
        y.resize_(4, 64, 96, 96)
    assert y.resize_(1, 64, 96, 96).shape == (1, 64, 96, 96)


def test_strips_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    make = kept_memory.empty_strided

    def counted(*arguments: object) -> Tensor:
        taken.append(make(*arguments))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(library_strips.kept_memory, "empty_strided", counted)
    conv = opgen.load(SPECS / "conv.op").conv2d
    x, weight = image(1, 64, 180, 320), image(192, 64, 3, 3)
    y = conv(x, weight, padding=1)
    assert len(taken) == 1, "a result of 44 MB is computed in strips"
    place = y.data_ptr()
    torch.testing.assert_close(y, F.conv2d(x, weight, padding=1), atol=1e-3, rtol=1e-3)
    assert not y._is_view()
    taken.clear()
    del y
    y = conv(x, weight, padding=1)
    assert y.data_ptr() == place
    torch.testing.assert_close(y, F.conv2d(x, weight, padding=1), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("shape", [(3, 0, 5), (2, 3), (300, 1000), (4, 256, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_made_in_python(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    like = torch.empty(shape, dtype=dtype).transpose(0, 1)
    made = kept_memory.empty_strided(like.shape, like.stride(), dtype)
    assert made.shape == like.shape and made.stride() == like.stride() and made.dtype == dtype
    is_large = made.nbytes >= MEGABYTE
    made.fill_(3)
    row = made[-1:]
    del made
    assert kept_memory.release() == 0 and bool((row == 3).all())
    del row
    assert (kept_memory.release() > 0) is is_large


CASTS = [
    image(4, 64, 48, 48),
    image(4, 64, 48, 48).contiguous(memory_format=torch.channels_last),
    image(4, 64, 48, 96)[..., ::2],
    image(4, 64, 48, 48).transpose(1, 2),
    image(64, 1, 96, 96).expand(64, 3, 96, 96),
    image(2, 3, 4),
    image(0, 3, 4),
]


@pytest.mark.parametrize("x", CASTS, ids=lambda x: f"{tuple(x.shape)}, {x.stride()}")
def test_casts_are_those_of_pytorch(x: Tensor) -> None:
    wanted = x.to(torch.bfloat16)
    made = kept_memory.cast(x, torch.bfloat16)
    assert made.stride() == wanted.stride() and torch.equal(made, wanted)
    assert kept_memory.cast(x, torch.float32) is x


def test_casts_of_autocast_are_kept_and_differentiated() -> None:
    conv = opgen.load(SPECS / "conv.op").conv2d
    x, weight = image(2, 64, 96, 96), image(64, 1, 3, 3)
    arguments = {"padding": 1, "groups": 64}

    def results() -> list[Tensor]:
        with torch.autocast("cpu"):
            still = conv(x, weight, **arguments)
            leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            y = conv(*leaves, **arguments)
        (first,) = torch.autograd.grad(y, leaves[0], torch.ones_like(y), retain_graph=True)
        both = torch.autograd.grad(y.float().square().sum(), leaves, create_graph=True)
        (second,) = torch.autograd.grad(both[0].square().sum(), leaves[0])
        return [still, y.detach(), first, *(each.detach() for each in both), second]

    wanted = results()
    kept_memory.release()
    for _ in range(2):
        for got, expected_ in zip(results(), wanted, strict=True):
            torch.testing.assert_close(got, expected_)
    gc.collect()
    kept_memory.release()
    with torch.autocast("cpu"):
        y = conv(x, weight, **arguments)
    assert 0 < kept_memory.release() <= 2 * x.numel(), "what the image is cast to is kept"
    reference = F.conv2d(x.bfloat16(), weight.bfloat16(), **arguments)  # type: ignore[arg-type]
    torch.testing.assert_close(y, reference, atol=0.05, rtol=0.05)


HEAD = """
import os, sys, gc, torch, opgen
from opgen.runtime import kept_memory
torch.set_num_threads(1)
assert not kept_memory._first  # nothing is kept yet, nor is it known how much will be
up = opgen.compile("op up(x[B,C,H,W]) -> y[B,C,2*H,2*W]\\n  y[b,c,h,w] = x[b,c,h//2,w//2]\\n").up
x = torch.ones(1, 64, 64, 64)
"""


def started(program: str) -> subprocess.Popen[str]:
    """A process with the op of this file, and a program in it."""
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def in_process(program: str, **environment: str) -> str:
    """What a program prints in a process of its own, where nothing was kept before."""
    return forks.run(HEAD + program, **environment).stdout


HOLD = "up(x); held = [up(x) for _ in range(5)]; held.clear(); print(kept_memory.release())"


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        ({"OPGEN_KEPT_MEMORY": "9"}, 2),
        ({"OPGEN_KEPT_MEMORY": "0"}, 0),
        pytest.param({}, 5, marks=pytest.mark.slow),
        pytest.param({"OPGEN_KEPT_MEMORY": str(2**44)}, 5, marks=pytest.mark.slow),
    ],
    ids=["9", "0", "nothing", "all"],
)
def test_how_much_is_kept_is_chosen(chosen: dict[str, str], kept: int) -> None:
    assert in_process(HOLD, **chosen).split() == [str(kept * 4 * MEGABYTE)]


def test_how_much_is_kept_is_a_number() -> None:
    wrong = in_process(HOLD, OPGEN_KEPT_MEMORY="much")
    assert "RuntimeError: $OPGEN_KEPT_MEMORY must be a number of megabytes, got 'much'" in wrong


def test_a_container_has_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPGEN_KEPT_MEMORY", raising=False)
    limits = (tmp_path / "none", tmp_path / "first", tmp_path / "second")
    monkeypatch.setattr(kept_memory, "_LIMITS", limits)
    limits[1].write_text("max\n")
    whole = kept_memory._most()
    limits[2].write_text(f"{8 * MEGABYTE}\n")
    assert kept_memory._most() == MEGABYTE < whole


def test_what_is_too_large_to_be_kept_leaves_the_rest() -> None:
    program = """
up(x); y = up(x); del y
large = torch.ones(1, 64, 128, 128)
up(large); y = up(large); del y
print(kept_memory.release())
"""
    assert in_process(program, OPGEN_KEPT_MEMORY="9").split() == [str(4 * MEGABYTE)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are those of Linux")
def test_what_is_kept_goes_before_memory_runs_out() -> None:
    program = """
import resource
up(x); large = torch.ones(1, 256, 128, 128); up(large)  # a result of 64 MB
held = [up(torch.cat([x] * 12)) for _ in range(6)]; held.clear()  # 48 MB each
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + (16 << 20), -1))
print(bool((up(large) == 1).all()), kept_memory.release() >> 20)
"""
    assert in_process(program).split() == ["True", "64"]


def test_a_tensor_that_cannot_be_made() -> None:
    program = """
import ctypes
from opgen.runtime import lookup_library
up(x); y = up(x); del y
first = lookup_library.loaded()
deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
integers = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
types = [ctypes.c_void_p, *integers, *[ctypes.c_int32] * 3, ctypes.c_void_p, ctypes.c_int32]
types += [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
def fail(memory, *others):
    first.opgen_give(memory, others[-1])
    return 1
failing = ctypes.CFUNCTYPE(ctypes.c_int32, *types)(fail)
libtorch = lookup_library._libtorch()
size = libtorch.aoti_torch_dtype_element_size
all_ = (failing, size, first.opgen_take, first.opgen_give)
addresses = [ctypes.cast(each, ctypes.c_void_p) for each in all_]
first.opgen_connect_memory((ctypes.c_void_p * 4)(*addresses))
print(bool((up(x) == 1).all()), kept_memory.release())
"""
    assert in_process(program).split() == ["True", str(4 * MEGABYTE)]


def test_deleters_without_a_context_are_found() -> None:
    """As those of `torch_from_blob` in builds before the release of 2.11."""
    libtorch = lookup_library._libtorch()

    class Before:
        aoti_torch_dtype_uint8 = libtorch.aoti_torch_dtype_uint8

        @staticmethod
        def torch_from_blob(*arguments: Any) -> int:
            other = ctypes.c_int64()
            arguments[-2](ctypes.addressof(arguments[1]), ctypes.addressof(other))
            return 1

    assert kept_memory._has_context(libtorch)
    assert not kept_memory._has_context(Before())  # type: ignore[arg-type]


def test_a_child_has_its_own() -> None:
    program = """
up(x); held = up(x); freed = up(x); del freed
child = os.fork()
y = up(x * (2 if child else 3))
good = bool((y == (2 if child else 3)).all()) and bool((held == 1).all())
if not child:
    os._exit(0 if good else 1)
print(good, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert in_process(program).split() == ["True", "0"]


FORGETS = """
up(x); y = up(x); del y
import time
time.sleep(12)
small = torch.ones(1, 64, 40, 40)
up(small); y = up(small); del y
print(kept_memory.release())
"""


@pytest.fixture(scope="module", autouse=True)
def forgetful() -> Iterator[subprocess.Popen[str]]:
    """It waits while other tests run."""
    process = started(FORGETS)
    yield process
    process.kill()
    process.communicate()


def test_what_nobody_asks_for_goes(forgetful: subprocess.Popen[str]) -> None:
    assert forgetful.communicate()[0].split() == [str(64 * 80 * 80 * 4)]


def test_the_end_of_a_program() -> None:
    program = """
up(x); y = up(x); z = up(x); del z
import atexit
atexit.register(lambda: print(float(y.sum()), float(up(x).sum())))
"""
    total = str(float(64 * 128 * 128))
    assert in_process(program).split() == [total, total]
