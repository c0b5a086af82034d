"""The library of `lookup_table` in this process: built, connected to LibTorch, and given new ops.

There is a copy of it for every block of ops. Where it cannot be built, calls go to the ops of
Python: slower, and with the same results.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from opgen.runtime import build, checks, kept_memory, lookup_launch_source
from opgen.runtime.lookup_table import (
    CONVOLUTIONS,
    CUDA_CONVOLUTIONS,
    FUNCTIONS,
    MAX_NUMBERS,
    MAX_TENSORS,
    PRODUCTS,
    SLOTS,
    source,
)
from opgen.runtime.record import record
from opgen.runtime.schema import Number

NAMESPACE = "opgen_eager"
_Result = TypeVar("_Result")
LOCK = threading.RLock()
"""Held while a twin is made: two threads must not be given one slot."""
# A child has only the thread that forked, and would wait for ever for another one to release it.
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


def elsewhere(function: Callable[[], _Result]) -> _Result:
    """What a function returns on a new thread, where no mode and no transform is active.

    A module may be loaded within `torch.func.grad`, `FakeTensorMode` or `torch.device`, which would
    make a tensor of their own kind.
    """
    results: list[_Result] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    (result,) = results
    return result


_ASK_PYTHON = elsewhere(lambda: torch.empty(0))
_ANSWER = "set_answer"
_ABI = 2 << 56 | 10 << 48  # the stable interface as of PyTorch 2.10
_LIBRARY = cast(Any, torch.library.Library)(NAMESPACE, "FRAGMENT")
_LOADED: list[ctypes.CDLL] = []
_suspended = False


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Within it, no call is looked up: every one runs in full."""
    before = _suspended
    _suspend(True)
    try:
        yield
    finally:
        _suspend(before)


def _suspend(value: bool) -> None:
    global _suspended
    _suspended = value
    for library in _LOADED:
        library.opgen_suspend(value)


def is_suspended() -> bool:
    """Whether every call is to run in full."""
    return _suspended


# ---------------------------------------------------------------------------- the library
@record
class _Library:
    """The connected library for the ops of one block."""

    loaded: ctypes.CDLL
    dtypes: dict[torch.dtype, int]
    has_convolutions: bool
    has_products: bool


@functools.cache
def _libtorch(name: str = "libtorch_cpu") -> ctypes.CDLL:
    suffix = {"darwin": "dylib"}.get(sys.platform, "so")
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"{name}.{suffix}"))


def _library(block: int) -> _Library | None:
    """The library for a block of ops; None where it cannot be had.

    It is asked for again where it was not compiled: there may be a compiler later, or another one.
    """
    with LOCK:
        try:
            return _connected(block)
        except build.BuildError:
            return None


_refused: set[tuple[int | str, ...]] = set()
"""Blocks, and the compilers and options that failed to make a library of them."""


_FAILURES = (OSError, AttributeError, build.BuildError)
_builders: list[threading.Thread] = []


def build_meanwhile() -> bool:
    """Build the first library on a thread of its own; False if that was done before.

    The first call of all waits for its kernels, and need not wait for the library before.
    """
    with LOCK:
        if _builders:
            return False
        _builders.append(threading.Thread(target=_build, name="opgen-build"))
        _builders[0].start()
        return True


def _build() -> None:
    with contextlib.suppress(*_FAILURES):  # who needs the library meets the same failure
        _built_unless_refused(0, _dtypes())


def _built(block: int, dtypes: Mapping[torch.dtype, int]) -> ctypes.CDLL:
    """The library. What has no loops over numbers says itself that it is compiled more quickly.

    The first call of an op waits for it, and it is compiled beside that op's kernels. `-O2` for all
    of it would save 0.2 s, but gcc makes no vectors then: calls under autocast with a cast took up
    to three times as long.
    """
    return build.library(source(block, __name__, dtypes[torch.uint8]))


def _built_unless_refused(block: int, dtypes: Mapping[torch.dtype, int]) -> ctypes.CDLL:
    """The library; the same compiler, which takes its time to fail, is asked but once."""
    asked: tuple[int | str, ...] = (block, *build.find_compiler(), *build.flags())
    if asked in _refused:
        raise build.BuildError("this compiler failed before")
    try:
        return _built(block, dtypes)
    except build.NoCompilerError:
        raise
    except build.BuildError:
        _refused.add(asked)
        raise


def _dtypes() -> dict[torch.dtype, int]:
    """The numbers of LibTorch for element types."""
    return {dtype: dtype_number(dtype) for dtype in checks.DTYPES}


@functools.cache
def _connected(block: int) -> _Library | None:
    """The same, remembered; BuildError, which is not, where it cannot be compiled."""
    for builder in _builders:
        builder.join()
    try:
        libtorch, dtypes = _libtorch(), _dtypes()
        addresses = [ctypes.cast(getattr(libtorch, each), ctypes.c_void_p) for each in FUNCTIONS]
        library = _built_unless_refused(block, dtypes)
    except build.BuildError:
        raise  # so that it is not remembered
    except _FAILURES:
        return None
    library.opgen_connect((ctypes.c_void_p * len(addresses))(*addresses))
    kept_memory.connect(library, libtorch, library if block == 0 else _of_first_block())
    if not library.opgen_claim():
        return None  # another copy of this runtime, of the same name, has its ops there
    has_convolutions = all(hasattr(libtorch, each) for each in CONVOLUTIONS)
    if has_convolutions:
        pointers = [ctypes.cast(getattr(libtorch, each), ctypes.c_void_p) for each in CONVOLUTIONS]
        library.opgen_connect_convolutions(*pointers, 0)
    has_products = all(hasattr(libtorch, each) for each in PRODUCTS)
    if has_products:
        pointers = [ctypes.cast(getattr(libtorch, each), ctypes.c_void_p) for each in PRODUCTS]
        library.opgen_connect_products((ctypes.c_void_p * len(pointers))(*pointers))
    library.opgen_enter.restype = ctypes.c_int64
    library.opgen_enter.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_void_p, ctypes.c_int64) * 4,
        ctypes.c_int64,
        *(ctypes.c_void_p, ctypes.c_int64),
        *(ctypes.c_char_p, ctypes.c_int64),
    ]
    library.opgen_find.restype = ctypes.c_void_p
    library.opgen_find.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    library.opgen_move.restype = None
    library.opgen_move.argtypes = [*(ctypes.c_void_p,) * 3, ctypes.c_int64]
    library.opgen_expect.restype = None
    library.opgen_expect.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.opgen_has_room.restype = ctypes.c_int32
    library.opgen_has_room.argtypes = [ctypes.c_void_p]
    library.opgen_new_table.restype = ctypes.c_void_p
    library.opgen_new_table.argtypes = []
    library.opgen_register.argtypes = [
        *(ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32),
    ]
    # More than one copy of this runtime may be in a process, each with its own answer.
    name = f"{_ANSWER}_{block}_{id(library):x}"
    _LIBRARY.define(f"{name}(Tensor answer) -> ()")
    library.opgen_register_answer.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
    if library.opgen_register_answer(NAMESPACE.encode(), name.encode(), _ABI) != 0:
        return None
    elsewhere(lambda: getattr(getattr(torch.ops, NAMESPACE), name)(ask_python()))
    library.opgen_connect_launches.restype = None
    library.opgen_connect_launches.argtypes = [ctypes.c_void_p]
    _LOADED.append(library)
    _connect_to_cuda(library)
    library.opgen_suspend(_suspended)
    return _Library(library, dtypes, has_convolutions, has_products)


def cuda_functions() -> list[ctypes.c_void_p]:
    """The functions that launch kernels; OSError or AttributeError where there are none."""
    names = {
        _libtorch(): lookup_launch_source.RUNTIME,
        _libtorch("libtorch_cuda"): lookup_launch_source.CUDA_RUNTIME,
        ctypes.CDLL("libcuda.so.1"): lookup_launch_source.DRIVER,
    }
    return [
        ctypes.cast(getattr(library, each), ctypes.c_void_p)
        for library, functions in names.items()
        for each in functions
    ]


def cuda_convolutions() -> list[ctypes.c_void_p]:
    """Those of cuDNN, and their gradients; OSError or AttributeError where there are none."""
    library = _libtorch("libtorch_cuda")
    return [ctypes.cast(getattr(library, each), ctypes.c_void_p) for each in CUDA_CONVOLUTIONS]


@record
class _OnGpu:
    """The functions for a GPU that there are: none of a kind, or all of it."""

    launches: list[ctypes.c_void_p]
    convolutions: list[ctypes.c_void_p]


_CUDA: list[_OnGpu] = []
"""These functions, once they were asked for."""


def launches() -> bool:
    """Whether calls can launch CUDA kernels; libraries are connected when that is asked first."""
    return bool(_on_gpu().launches)


def convolves_on_gpu() -> bool:
    """Whether calls can be those of PyTorch's library for a GPU."""
    return bool(_on_gpu().convolutions)


def _on_gpu() -> _OnGpu:
    with LOCK:
        if not _CUDA:
            _CUDA.append(_OnGpu(_if_there(cuda_functions), _if_there(cuda_convolutions)))
            for library in _LOADED:
                _connect_to_cuda(library)
        return _CUDA[0]


def _if_there(functions: Callable[[], list[ctypes.c_void_p]]) -> list[ctypes.c_void_p]:
    with contextlib.suppress(OSError, AttributeError):
        return functions()
    return []


def _connect_to_cuda(library: ctypes.CDLL) -> None:
    for found in _CUDA:
        if found.launches:
            functions = (ctypes.c_void_p * len(found.launches))(*found.launches)
            library.opgen_connect_launches(functions)
        if found.convolutions:
            library.opgen_connect_convolutions(*found.convolutions, 1)


def _of_first_block() -> ctypes.CDLL:
    first = _connected(0)
    assert first is not None, "the second block of ops comes after the first"
    return first.loaded


def ask_python() -> torch.Tensor:
    """What a twin returns for a call that it has not seen: always the same tensor."""
    return _ASK_PYTHON


def dtype_number(dtype: torch.dtype) -> int:
    """LibTorch's number of an element type."""
    return int(getattr(_libtorch(), f"aoti_torch_dtype_{str(dtype).split('.')[1]}")())


def device_type(device: torch.device) -> int:
    """LibTorch's number of a kind of device."""
    return int(getattr(_libtorch(), f"aoti_torch_device_type_{device.type}")())


def is_available() -> bool:
    """Whether calls can be looked up here."""
    return _library(0) is not None


def loaded() -> ctypes.CDLL | None:
    """The library itself, for functions of it that are no ops; None where it cannot be had."""
    library = _library(0)
    return None if library is None else library.loaded


# ---------------------------------------------------------------------------- tables and ops
@record
class Table:
    """Calls that were checked before, for ops that differ in fixed integers only."""

    library: _Library
    address: int

    @staticmethod
    def new() -> Table | None:
        """An empty one; None where there can be none."""
        library = _library(0)
        address = None if library is None else library.loaded.opgen_new_table()
        return Table(library, address) if library is not None and address else None

    def has_room(self) -> bool:
        """Whether one more call can be entered."""
        return bool(self.library.loaded.opgen_has_room(self.address))

    def enter(
        self,
        tensors: Sequence[torch.Tensor | None],
        numbers: Sequence[Number],
        outputs: Sequence[torch.Tensor],
        kernel: ctypes.c_void_p | None,
        integers: Sequence[int],
        addresses: Sequence[int] = (),
        workspace: int = 0,
        constants: bytes = b"",
        cast: Sequence[int] = (),
    ) -> None:
        """Let calls like one with these outputs be looked up.

        Without a kernel, integers say what is computed, see `lookup_table`; `cast`
        are those of a `lookup_casts_source.Cast`.
        """
        key = self._key(tensors, numbers)
        results = [word for x in outputs for word in self._described(x)]
        self.library.loaded.opgen_enter(
            self.address,
            kernel,
            *_array(key),
            *_array(integers),
            *_array(results),
            _array(addresses)[0],
            len(addresses) // 2,
            workspace,
            *_array(cast),
            constants,
            len(constants),
        )

    def find(self, tensors: Sequence[torch.Tensor | None], numbers: Sequence[Number]) -> int | None:
        """The address of what was entered for calls like one; None where nothing was."""
        found: int | None = self.library.loaded.opgen_find(
            self.address, *_array(self._key(tensors, numbers))
        )
        return found

    def _key(self, tensors: Sequence[torch.Tensor | None], numbers: Sequence[Number]) -> list[int]:
        key = [word for x in tensors for word in self._described(x, place_of)]
        return [*key, *(number for number in numbers if not isinstance(number, float))]

    def _described(
        self, tensor: torch.Tensor | None, place_of: Callable[[torch.Tensor], int] = lambda _: 0
    ) -> list[int]:
        if tensor is None:
            return [-1]
        dtype = self.library.dtypes[tensor.dtype] | place_of(tensor)
        return [dtype, tensor.dim(), *tensor.shape, *tensor.stride()]


def place_of(tensor: torch.Tensor) -> int:
    """What a key says of where a CUDA tensor lies, as in `lookup_launch_source`."""
    if not tensor.is_cuda:
        return 0
    rest = tensor.data_ptr() % lookup_launch_source.WIDEST_ACCESS
    return (tensor.get_device() + 1) << 8 | rest << 32


def _array(words: Sequence[int]) -> tuple[Any, int]:
    return (ctypes.c_int64 * len(words))(*words), len(words)


_slots = 0


def define(
    name: str,
    table: Table,
    kinds: Sequence[int],
    constants: Sequence[int],
    outputs: int,
    is_cast: bool = False,
) -> Callable[..., Any] | None:
    """A new op that looks calls up in a table; None where there can be none.

    `kinds` are those of its arguments, as in the source of the library. Autocast casts the tensors
    of public ops, whose twins then look nothing up: the library says so, since to go through Python
    there would take longer than all the rest of a call. Those of derived ones were cast on the way
    forward.
    """
    global _slots
    block, slot = divmod(_slots, SLOTS)
    library = _library(block)
    if library is None:
        return None
    _slots += 1
    room = MAX_TENSORS + MAX_NUMBERS
    words = [len(kinds), outputs]
    for each in (kinds, constants):
        words += [*each, *(0 for _ in range(room - len(each)))]
    types = {0: "Tensor", 1: "Tensor?", 2: "int", 3: "float"}
    listed = ", ".join(f"{types[kind]} v{at}" for at, kind in enumerate(kinds) if kind != 4)
    results = ", ".join(["Tensor"] * outputs)
    answer = ask_python()
    answers = answer if outputs == 1 else (answer,) * outputs
    try:
        _LIBRARY.define(f"{name}({listed}) -> " + (f"({results})" if "," in results else results))
    except RuntimeError:
        return None  # another copy of this runtime serves the op in this process
    for key in ("CompositeExplicitAutograd", *_UNSEEN):
        _LIBRARY.impl(name, lambda *_: answers, key)
    names = NAMESPACE.encode(), name.encode()
    on_cuda = torch.version.cuda is not None
    about = _array(words)[0], table.address, int(is_cast), int(on_cuda)
    if library.loaded.opgen_register(slot, *names, _ABI, *about) != 0:
        return None
    call: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default._op
    return call


_UNSEEN = ("Tracer", "AutogradNestedTensor", "Batched", "Functionalize")
"""Where a twin asks Python, besides on other devices: cheaper than to look before each call."""


def is_answered(result: Any) -> bool:
    """Whether a twin had seen the call."""
    first = result if isinstance(result, torch.Tensor) else result[0]
    return first is not ask_python()
