"""Calls of CUDA kernels that were seen before: launched by the table, with tensors of their own.

Without a GPU: the table is given a driver that runs kernels in the emulator.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import opgen
from opgen.bench.precision import tf32
from opgen.runtime import (
    autocast,
    cuda,
    cuda_grid,
    lookup_cuda_casts,
    lookup_launch,
    lookup_launch_source,
    lookup_library,
    lookup_table,
    registration,
    special,
)
from opgen.testing.cuda_on_cpu.emulated import Emulation, Products, emulated

SPEC = """
op scale(x: float[N,M]; factor = 2.0, twist = 3) -> y[N,M], total[N]
  y[n,m] = factor * twist * x[n,m]
  total[n] = sum(m) x[N-1-n,m]

op shift(x[...,C,W]; step = 1) -> y[...,W]
  where step >= 0
  y[...,w] = sum(c) x[...,c, w - c*step ?0]

op biased(x[N,M], bias[M] = 0.0) -> y[N,M]
  y[n,m] = 2*x[n,m] + bias[m]

op doubled(x[...,W]) -> y[...,W]
  y[...,w] = 2*x[...,w]

op biased_images(x[N,C,H,W], bias[C]) -> y[N,C,H,W]
  y[n,c,h,w] = 2*x[n,c,h,w] + bias[c]

op depthwise(x[N,C,H,W], weight[C,R,S], bias[C] = 0) -> y[N,C,H,W]
  y[n,c,h,w] = bias[c] + (sum(r,s) x[n,c, h+r-1 ?0, w+s-1 ?0] * weight[c,r,s])

op norm(x[N,M], z[K,N,M]) -> s[N], y[K,N,M]
  s[n] = sum(m) x[N-1-n,m]
  y[k,n,m] = z[k,n,m] * x[n,m]

op product(a[M,K], b[K,N]) -> c[M,N]
  c[m,n] = sum(k) a[m,k] * b[k,n]

op pick(x[N], id: int[K]) -> y[K]
  y[k] = x[id[k]]
"""

_Launch = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    *(ctypes.c_void_p, *(ctypes.c_uint32,) * 7),
    *(ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p),
)
_Make = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
_Delete = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_Ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32))
_Allocate = ctypes.CFUNCTYPE(
    *(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_uint32)
)
_STREAM, _GUARD = 1234, 77
_HELD: list[ctypes.Array[ctypes.c_char]] = []
"""Memory that the table keeps for the whole process."""


@dataclass
class Driver:
    """What takes the place of CUDA's driver and runtime: kernels run in the emulator."""

    emulation: Emulation
    launched: list[int] = field(default_factory=list)
    """Handles of the kernels that the table launched."""
    guards: list[int] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    fails_at: int = -1
    """The launch that fails."""
    waits: list[int] = field(default_factory=list)
    """How many kernels were launched before each time that the table waited."""
    is_captured: bool = False
    breaks: bool = False
    """Whether the device breaks while it is waited for."""
    functions: list[object] = field(default_factory=list)

    def addresses(self) -> list[ctypes.c_void_p]:
        """What the library is connected to."""
        libtorch = lookup_library._libtorch()
        own = [getattr(libtorch, each) for each in lookup_launch_source.RUNTIME]
        self.functions = [
            *own,
            _Make(self._guard),
            _Delete(self._release),
            _Make(self._stream),
            _Launch(self._launch),
            _Delete(self._wait),
            _Ask(self._is_captured),
            _Allocate(self._allocate),
        ]
        return [ctypes.cast(each, ctypes.c_void_p) for each in self.functions]  # type: ignore[arg-type]

    def _guard(self, index: int, found: ctypes._Pointer[ctypes.c_void_p]) -> int:
        self.guards.append(index)
        found[0] = _GUARD
        return 0

    def _release(self, guard: int) -> int:
        assert guard == _GUARD
        self.guards.append(-1)
        return 0

    def _stream(self, index: int, found: ctypes._Pointer[ctypes.c_void_p]) -> int:
        found[0] = _STREAM
        return 0

    def _wait(self, stream: int) -> int:
        assert stream == _STREAM
        self.waits.append(len(self.launched))
        return int(self.breaks)

    def _is_captured(self, stream: int, found: ctypes._Pointer[ctypes.c_int32]) -> int:
        assert stream == _STREAM
        found[0] = int(self.is_captured)
        return 0

    def _allocate(self, found: ctypes._Pointer[ctypes.c_void_p], size: int, flags: int) -> int:
        assert flags == 1, "for every context of the process"
        _HELD.append((ctypes.c_char * size)())
        found[0] = ctypes.addressof(_HELD[-1])
        return 0

    def _launch(self, handle: int, *rest: int) -> int:
        *sizes, shared, stream, pointers, extra = rest
        try:
            if len(self.launched) == self.fails_at:
                return 1
            assert (shared, stream, extra) == (0, _STREAM, None)
            function = self.emulation.functions[handle]
            count = len(function._kernel.parameters)
            given = [pointers[at] for at in range(count)]  # type: ignore[index]
            grid, block = (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5])
            function.launch(grid, block, given)
            self.launched.append(handle)
        except BaseException as error:
            self.errors.append(error)
            return 1
        return 0


@contextlib.contextmanager
def driven(products: Products = Products.CHOSEN) -> Iterator[Driver]:
    """CPU tensors run CUDA kernels in the emulator, launched by the table where it knows a call."""
    with emulated(products=products) as emulation:
        driver = Driver(emulation)
        with (
            mock.patch.object(lookup_library, "cuda_functions", driver.addresses),
            mock.patch.object(lookup_library, "_CUDA", []),
        ):
            lookup_library._suspend(False)
            yield driver
            lookup_library._suspend(True)
    assert not driver.errors, driver.errors


@pytest.fixture
def driver() -> Iterator[Driver]:
    with driven() as found:
        yield found


Ops = Callable[[str], Callable[..., torch.Tensor]]
_modules = itertools.count()


@pytest.fixture
def ops() -> Ops:
    """Ops of this test alone: what tables know of them is of no use to others."""
    suffix = f"_{next(_modules)}"
    module = opgen.compile(re.sub(r"^op (\w+)", rf"op \1{suffix}", SPEC, flags=re.MULTILINE))
    return lambda name: getattr(module, name + suffix)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 9, shape).float()


def known(driver: Driver, call: Callable[[], object]) -> int:
    """How many kernels the table launched for a call."""
    before = len(driver.launched)
    call()
    return len(driver.launched) - before


# ---------------------------------------------------------------------------- numbers
def test_outputs_and_numbers(driver: Driver, ops: Ops) -> None:
    """Two outputs, of other tensors and another float each time; an integer is another call."""
    scale = ops("scale")
    assert known(driver, lambda: scale(drawn(5, 6))) == 0
    for factor in (0.5, -3.0):
        x = drawn(5, 6)
        y, total = scale(x, factor=factor)
        assert y.equal(factor * 3 * x)
        assert total.equal(x.flip(0).sum(1))
    assert len(driver.launched) == 4
    assert known(driver, lambda: scale(drawn(5, 6), twist=4)) == 0
    assert driver.guards == [0, -1] * 2


def test_batches_and_rows_apart(driver: Driver, ops: Ops) -> None:
    """Dims of a batch, and rows with gaps; other strides are other calls."""
    shift = ops("shift")
    for _ in range(3):
        x = drawn(2, 3, 4, 16)[..., ::2]
        y = shift(x, step=1)
        wanted = sum(torch.nn.functional.pad(x[:, :, c], (c, 0))[..., :8] for c in range(4))
        assert y.equal(wanted)
    assert len(driver.launched) == 2
    assert known(driver, lambda: shift(drawn(2, 3, 4, 8), step=1)) == 0


def test_what_is_absent(driver: Driver, ops: Ops) -> None:
    """What stands for it stays where it is."""
    biased = ops("biased")
    for _ in range(3):
        x, bias = drawn(4, 8), drawn(8)
        assert biased(x).equal(2 * x)
        assert biased(x, bias).equal(2 * x + bias)
    assert len(driver.launched) == 4


def test_copies_of_filters(driver: Driver, ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images in channels-last format: a filter is copied in every call, in gradients too.

    What stands for a bias that is absent is copied once for all.
    """
    copied: list[str] = []
    program = lookup_launch.program

    def noting(*given: Any) -> Any:
        copied.extend(given[-1].copies)
        return program(*given)

    monkeypatch.setattr(lookup_launch, "program", noting)
    monkeypatch.setattr(special, "LARGE", 1)
    depthwise = ops("depthwise")
    for _ in range(4):
        x = drawn(2, 16, 12, 16).contiguous(memory_format=torch.channels_last).requires_grad_()
        weight = drawn(16, 3, 3).requires_grad_()
        y = depthwise(x, weight)
        wanted = torch.nn.functional.conv2d(x, weight[:, None], padding=1, groups=16)
        assert y.equal(wanted) and y.stride() == wanted.stride()
        flowing = drawn(*y.shape).contiguous(memory_format=torch.channels_last)
        ours = torch.autograd.grad(y, (x, weight), flowing)
        theirs = torch.autograd.grad(wanted, (x, weight), flowing)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.equal(other)
    assert {"weight", "bias"} <= set(copied)
    assert len(driver.launched) >= 3 + 2 * 2


# ---------------------------------------------------------------------------- autocast
@contextlib.contextmanager
def casting(dtype: torch.dtype) -> Iterator[None]:
    """What the table is asked for under autocast, where tensors on the CPU may be cast."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", dtype)
    torch.set_autocast_enabled("cuda", True)
    with mock.patch.object(autocast, "_is_eligible", lambda tensor, _: tensor.is_floating_point()):
        yield
    assert torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", before)


def casts(ops: Ops, name: str) -> Callable[..., Any]:
    """What calls of an op under autocast are made by, of its numbers and tensors."""
    lookup_library.build_meanwhile()  # of the first call of all nothing is entered
    known_as = ops(name).__name__
    found = [each for each in registration._OPERATIONS.values() if each.name == known_as]
    return lookup_cuda_casts.caller(found[-1])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_casts_are_copies(
    driver: Driver, ops: Ops, dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    """As if cast by hand, of what is not of the type yet; another type is another call."""
    call = casts(ops, "depthwise")
    for other in (dtype, torch.float16, dtype):
        for weight_dtype in (torch.float32, other):
            for _ in range(3):
                x = drawn(2, 16, 12, 16).contiguous(memory_format=memory_format)
                weight = drawn(16, 3, 3).to(weight_dtype)
                with casting(other):
                    y = call((), (x, weight, None))
                given = x.to(other).float(), weight[:, None].float()
                wanted = torch.nn.functional.conv2d(*given, padding=1, groups=16).to(other)
                assert y.dtype is other and y.stride() == wanted.stride()
                assert y.equal(wanted)
    first = 2 if dtype is torch.float16 else 4
    assert len(driver.launched) == 18 - first


def test_casts_of_modules_of_one_spec(driver: Driver, ops: Ops) -> None:
    """What one of them entered is known to the other."""
    biased = ops("biased")
    known_as = biased.__name__
    text = re.sub(r"^op (\w+)", rf"op {known_as}", SPEC.split("\n\n")[2], flags=re.MULTILINE)
    again = opgen.compile(text).FAMILY.operations[known_as]
    first = casts(ops, "biased")
    for call in (first, lookup_cuda_casts.caller(again)):
        for _ in range(2):
            x = drawn(4, 8)
            with casting(torch.bfloat16):
                assert call((), (x, None)).equal((2 * x).bfloat16())
    assert len(driver.launched) == 3


def test_casts_of_batches_that_do_not_merge(driver: Driver, ops: Ops) -> None:
    """They are copied before kernels run, and so they are cast as the table copies them."""
    call = casts(ops, "doubled")
    for _ in range(3):
        x = drawn(2, 6, 8)[:, :4]
        with casting(torch.float16):
            y = call((), (x,))
        assert y.equal((2 * x).half())
    assert len(driver.launched) == 2


def test_results_have_the_format_that_casts_give(driver: Driver, ops: Ops) -> None:
    call = casts(ops, "biased_images")
    for _ in range(3):
        x = drawn(1, 8, 4, 8).contiguous(memory_format=torch.channels_last).expand(3, 8, 4, 8)
        with casting(torch.float16):
            y = call((), (x, drawn(8)))
        assert y.stride() == ops("biased_images")(x.half(), torch.ones(8).half()).stride()


def test_casts_beside_numbers(driver: Driver, ops: Ops) -> None:
    """Several outputs, a float that is new each time, an integer that is another call."""
    call = casts(ops, "scale")
    for twist, times in ((3, 3), (4, 2)):
        for factor in (2.0, 0.5, -1.0)[:times]:
            x = drawn(5, 6) / 3
            with casting(torch.bfloat16):
                y, total = call((factor, twist), (x,))
            narrow = x.bfloat16()
            assert y.equal((factor * twist * narrow.float()).bfloat16())
            assert total.equal(narrow.flip(0).float().sum(1).bfloat16())
    assert len(driver.launched) == 2 * (2 + 1)


def test_what_is_cast_in_python(driver: Driver, ops: Ops) -> None:
    """Tensors that are recorded, those that nothing is to be cast of, and where none is looked up:
    Python is asked every time."""
    call = casts(ops, "biased")
    with casting(torch.bfloat16):
        for _ in range(3):
            assert call((), (drawn(4, 8).requires_grad_(), None)) is None
            assert call((), (drawn(4, 8).bfloat16(), None)) is None
        with lookup_library.suspended():
            assert call((), (drawn(4, 8), None)) is None
        with torch.no_grad():
            for _ in range(2):
                x = drawn(4, 8).requires_grad_()
                assert call((), (x, None)).equal((2 * x).bfloat16())
    assert len(driver.launched) == 1


@pytest.mark.parametrize("seen", [False, True])
def test_tensors_without_numbers_in_memory(driver: Driver, ops: Ops, seen: bool) -> None:
    """Those of other layouts, of zeros that nobody wrote, and samples of a batch that look like one
    tensor are cast from Python, and so are types that kernels do not have."""
    call = casts(ops, "biased")
    bias = drawn(8)
    given: list[Any] = [
        drawn(4, 8).to_sparse(),
        torch.nested.nested_tensor([drawn(3), drawn(4)]),
        torch._efficientzerotensor((4, 8), dtype=torch.bfloat16),
        torch._efficientzerotensor((4, 8), dtype=torch.float32),
        drawn(4, 8).to(torch.float8_e4m3fn),
    ]
    asked: list[Any] = []

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, *flowing: torch.Tensor) -> torch.Tensor:
            asked.append(call((), (flowing[0], bias)))
            return flowing[0]

    x = drawn(4, 8).requires_grad_()
    with casting(torch.bfloat16):
        for _ in range(2 * seen):
            call((), (drawn(4, 8), bias))
        launched = len(driver.launched)
        for each in given:
            assert call((), (each, bias)) is None
        y = Asking.apply(x)  # type: ignore[no-untyped-call]
        torch.autograd.grad(y, x, drawn(3, 4, 8), is_grads_batched=True)
    assert asked == [None]
    assert len(driver.launched) == launched == seen


def test_a_cast_that_a_launch_has_and_another_has_not(driver: Driver, ops: Ops) -> None:
    """A launch before the one that an input was copied for has the cast itself."""
    call = casts(ops, "norm")
    for _ in range(3):
        x, z = drawn(16, 8).t(), drawn(8, 8, 16)
        with casting(torch.float16):
            s, y = call((), (x, z))
        assert s.equal(x.flip(0).sum(1).half()) and y.equal((z * x).half())
    assert driver.launched


def test_a_copy_is_for_the_launch_that_reads_it(driver: Driver, ops: Ops) -> None:
    """One before it reads the input itself, with that one's strides."""
    norm = ops("norm")
    for _ in range(3):
        x, z = drawn(16, 8).t(), drawn(8, 8, 16)
        s, y = norm(x, z)
        assert s.equal(x.flip(0).sum(1)) and y.equal(z * x)
    assert driver.launched


def test_stand_ins_for_what_is_absent(
    driver: Driver, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One serves all calls that it is large enough for, and the next one is twice as large."""
    monkeypatch.setattr(lookup_launch, "_STAND_INS", {})
    biased = ops("biased")
    for rows in range(2, 12):
        for _ in range(2):
            x = drawn(rows, 8)
            assert biased(x).equal(2 * x)
    (made,) = lookup_launch._STAND_INS.values()
    assert len(made) <= 4
    assert all((each == 0).all() for each in made)
    assert len(driver.launched) == 10


def test_calls_in_a_capture_are_not_entered(
    driver: Driver, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands for an absent input would be filled when the graph is replayed."""
    biased = ops("biased")
    biased(drawn(16, 8))
    with monkeypatch.context() as patch:
        patch.setattr(cuda, "is_capturing", lambda: True)
        biased(drawn(32, 8))
    assert known(driver, lambda: biased(drawn(32, 8))) == 0
    assert known(driver, lambda: biased(drawn(32, 8))) == 1


def test_a_call_is_entered_once(driver: Driver, ops: Ops) -> None:
    """Also where the launches of its entry fail: there is room for others."""
    biased, bias = ops("biased"), drawn(2)
    driver.fails_at = 0
    for _ in range(lookup_table_entries() + 8):
        biased(drawn(1, 2), bias)
    driver.fails_at = -1
    biased(drawn(3, 2), bias)
    assert known(driver, lambda: biased(drawn(3, 2), bias)) == 1


def lookup_table_entries() -> int:
    """How many a table has room for."""
    (found,) = re.findall(r"MAX_ENTRIES = (\d+)", lookup_table.source(0, "test", 0))
    return int(found)


def test_nothing_to_compute(driver: Driver, ops: Ops) -> None:
    scale = ops("scale")
    for _ in range(2):
        y, total = scale(drawn(3, 0))
        assert y.shape == (3, 0)
        assert total.equal(torch.zeros(3))


def test_one_tensor_twice(driver: Driver, ops: Ops) -> None:
    """In the call that is entered both are one tensor, in the next one they are two."""
    depthwise = ops("depthwise")
    same = drawn(3, 3, 3)
    depthwise(same[None].contiguous(), same)
    x, weight = drawn(1, 3, 3, 3), drawn(3, 3, 3)
    wanted = torch.nn.functional.conv2d(x, weight[:, None], padding=1, groups=3)
    assert depthwise(x, weight).equal(wanted)
    assert driver.launched


# ---------------------------------------------------------------------------- constants
CALLS: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "parts of sums": (
        "shift_sum",
        lambda m, y, mask: m.shift_sum_pinv(y, mask, C=4, step=2),
        ((2, 1, 4, 22), (1, 1, 4, 16)),
    ),
    "a filter": (
        "conv",
        lambda m, x, w: m.conv2d(x, w, padding=1, groups=4),
        ((4, 4, 64, 64), (4, 1, 3, 3)),
    ),
    "a product": (
        "conv",
        lambda m, x, w: m.conv2d(x, w, padding=1),
        ((1, 64, 8, 8), (64, 64, 3, 3)),
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_constants_are_those_of_any_call_like_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No address is among them: what one call has in memory is elsewhere in another."""
    monkeypatch.setattr(cuda_grid, "_FEWEST_ROUNDS", 1)  # several blocks share a sum
    monkeypatch.setattr(cuda_grid, "_FEWEST_TERMS", 1)
    stem, call, shapes = CALLS[name]
    module = opgen.load(Path(__file__).parent.parent / "specs" / f"{stem}.op")
    kept: list[object] = []
    found = []
    for _ in range(2):
        launches: list[cuda.KernelLaunch] = []
        with emulated(products=Products.ALWAYS), noted(launches):
            tensors = [drawn(*shape).requires_grad_() for shape in shapes]
            result = call(module, *tensors)
            result.backward(torch.ones_like(result))
        kept += [tensors, result, launches]
        found.append([[each.kernel, *map(constant, each.arguments)] for each in launches])
    assert found[0] == found[1]
    given = [each for launch in launches for each in launch.arguments]
    assert any(isinstance(each, cuda.Memory) and not named(each) for each in given)


def named(memory: cuda.Memory) -> bool:
    """Whether it is an operand, or nothing at all."""
    return memory.name is not None or memory.tensor.numel() == 0


@contextlib.contextmanager
def noted(launches: list[cuda.KernelLaunch]) -> Iterator[None]:
    """Within it, what is launched is written down."""
    real = cuda.launch

    def noting(launched: cuda.Launched) -> None:
        launches.extend(launched.launches)
        real(launched)

    with mock.patch.object(cuda, "launch", noting):
        yield


def constant(argument: cuda.Argument) -> object:
    """An argument that a table has, or the name of what it has not."""
    match argument:
        case cuda.Memory(name=name) | cuda.Number(name=name):
            return name
    return argument


# ---------------------------------------------------------------------------- checked indices
def test_checked_indices(driver: Driver, ops: Ops) -> None:
    """The table waits for each call; one with an index outside is Python's, which says which."""
    pick = ops("pick")
    for at in range(4):
        x = drawn(5)
        assert pick(x, torch.tensor([at, 4])).equal(x[[at, 4]])
    assert len(driver.launched) == 3
    assert driver.waits == [1, 2, 3]
    for wrong in (5, -1):
        with pytest.raises(IndexError, match=f"index {wrong} is outside"):
            pick(drawn(5), torch.tensor([0, wrong]))
        x = drawn(5)
        assert pick(x, torch.tensor([2, 3])).equal(x[2:4]), "no fault is left of the last call"
    assert len(driver.launched) > 3


def test_checked_indices_of_gradients(driver: Driver, ops: Ops) -> None:
    pick = ops("pick")
    for _ in range(3):
        x = drawn(5).requires_grad_()
        (found,) = torch.autograd.grad(pick(x, torch.tensor([3, 3])).sum(), x)
        assert found.equal(torch.tensor([0.0, 0, 0, 2, 0]))
    assert driver.launched and driver.waits


def test_checked_indices_in_a_capture(driver: Driver, ops: Ops) -> None:
    """A graph cannot wait: Python is asked, which refuses where a GPU captures one."""
    pick = ops("pick")
    pick(drawn(5), torch.tensor([0, 4]))
    driver.is_captured = True
    assert known(driver, lambda: pick(drawn(5), torch.tensor([0, 4]))) == 0
    assert not driver.waits


def test_checked_indices_where_a_launch_or_the_device_fails(driver: Driver, ops: Ops) -> None:
    """Python makes the call again; of a device that is broken no memory is used again."""
    pick, index = ops("pick"), torch.tensor([0, 4])
    pick(drawn(5), index)
    driver.fails_at = 0
    assert pick(drawn(5), index).shape == (2,)
    assert set(driver.waits) == {0}
    driver.fails_at, driver.breaks = -1, True
    for _ in range(3):
        assert pick(drawn(5), index).shape == (2,)
    driver.breaks = False
    assert known(driver, lambda: pick(drawn(5), index)) == 1


# ---------------------------------------------------------------------------- what is not known
def test_products_in_tf32_are_asked_for_every_time(ops: Ops) -> None:
    """Where the next one like it may have to be exact."""
    product = ops("product")
    with driven(Products.ALWAYS) as driver:
        for allowed in (True, True, False, False):
            a, b = drawn(64, 32), drawn(32, 64)
            with tf32(allowed=allowed):
                assert product(a, b).equal(a @ b)
            assert len(driver.launched) == 0 or not allowed
        assert driver.launched


def test_a_launch_that_fails_is_made_again(driver: Driver, ops: Ops) -> None:
    """By Python, which says what is wrong; here nothing is."""
    scale = ops("scale")
    scale(drawn(2, 3))
    driver.fails_at = 1
    x = drawn(2, 3)
    y, total = scale(x)
    assert y.equal(6 * x) and total.equal(x.flip(0).sum(1))
    assert len(driver.launched) == 1
    assert driver.guards == [0, -1] * 2  # the op of the dispatcher tries the same once more


def test_tensors_of_two_places_have_two_keys() -> None:
    """How far a tensor is aligned decides which accesses a kernel has."""

    class Placed:
        is_cuda = True

        def __init__(self, device: int, address: int) -> None:
            self.device, self.address = device, address

        def get_device(self) -> int:
            return self.device

        def data_ptr(self) -> int:
            return self.address

    places = [(0, 0), (0, 4), (0, 8), (1, 0), (1, 4)]
    found = [lookup_library.place_of(Placed(*each)) for each in places]  # type: ignore[arg-type]
    assert len(set(found)) == len(places)
    assert found[0] == lookup_library.place_of(Placed(0, 4096))  # type: ignore[arg-type]
    assert all(each > max(range(256)) for each in found)


def test_more_arguments_than_there_is_room_for(
    driver: Driver, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_launch, "MAX_ARGUMENTS", 3)
    scale = ops("scale")
    for _ in range(3):
        scale(drawn(2, 2))
    assert not driver.launched
