"""Eager calls at the speed of PyTorch's own ops: what was checked once is looked up.

Each op has a twin in the dispatcher that knows nothing of autograd or transforms and runs calls
that the C library of `lookup_table` has seen. `caller` gives the function behind a public op: where
nothing but plain tensors and autograd is in play it goes to the twin, everywhere else to the op.
Where the library cannot be built, calls go to the op: slower, and with the same results.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from opgen.runtime import autocast, build, checks, compat, lookup_convolution
from opgen.runtime.evaluation import Call, compiled
from opgen.runtime.lookup_table import (
    CONVOLUTIONS,
    FUNCTIONS,
    MAX_NUMBERS,
    MAX_RANK,
    MAX_TENSORS,
    SLOTS,
    source,
)
from opgen.runtime.schema import Number, flatten

if TYPE_CHECKING:
    from opgen.runtime.library_call import Plan
    from opgen.runtime.operation import Operation

NAMESPACE = "opgen_eager"
_Result = TypeVar("_Result")
LOCK = threading.RLock()
"""Held while a twin is made: two threads must not be given one slot."""


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
@dataclass(frozen=True, slots=True)
class _Library:
    """The connected library for the ops of one block."""

    loaded: ctypes.CDLL
    dtypes: dict[torch.dtype, int]
    has_convolutions: bool


@functools.cache
def _libtorch() -> ctypes.CDLL:
    suffix = {"darwin": "dylib"}.get(sys.platform, "so")
    name = "libtorch_cpu"
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"{name}.{suffix}"))


def _library(block: int) -> _Library | None:
    """The library for a block of ops; None where it cannot be had."""
    with LOCK:
        return _connected(block)


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
        build.library(source(0, _dtypes()[torch.uint8]))


def _dtypes() -> dict[torch.dtype, int]:
    """The numbers of LibTorch for element types."""
    return {
        dtype: int(getattr(_libtorch(), f"aoti_torch_dtype_{str(dtype).split('.')[1]}")())
        for dtype in checks.DTYPES
    }


@functools.cache
def _connected(block: int) -> _Library | None:
    for builder in _builders:
        builder.join()
    try:
        libtorch, dtypes = _libtorch(), _dtypes()
        addresses = [ctypes.cast(getattr(libtorch, each), ctypes.c_void_p) for each in FUNCTIONS]
        library = build.library(source(block, dtypes[torch.uint8]))
    except _FAILURES:
        return None
    library.opgen_connect((ctypes.c_void_p * len(addresses))(*addresses))
    has_convolutions = all(hasattr(libtorch, each) for each in CONVOLUTIONS)
    if has_convolutions:
        pointers = [ctypes.cast(getattr(libtorch, each), ctypes.c_void_p) for each in CONVOLUTIONS]
        library.opgen_connect_convolutions(*pointers)
    library.opgen_enter.restype = ctypes.c_int64
    library.opgen_enter.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p),
        *(ctypes.c_void_p, ctypes.c_int64) * 4,
        ctypes.c_int64,
        *(ctypes.c_char_p, ctypes.c_int64),
    ]
    library.opgen_new_table.restype = ctypes.c_void_p
    library.opgen_new_table.argtypes = []
    library.opgen_register.argtypes = [
        *(ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64),
        *(ctypes.c_void_p, ctypes.c_void_p),
    ]
    # More than one copy of this runtime may be in a process, each with its own answer.
    name = f"{_ANSWER}_{block}_{id(library):x}"
    _LIBRARY.define(f"{name}(Tensor answer) -> ()")
    library.opgen_register_answer.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
    if library.opgen_register_answer(NAMESPACE.encode(), name.encode(), _ABI) != 0:
        return None
    elsewhere(lambda: getattr(getattr(torch.ops, NAMESPACE), name)(ask_python()))
    _LOADED.append(library)
    library.opgen_suspend(_suspended)
    return _Library(library, dtypes, has_convolutions)


def ask_python() -> torch.Tensor:
    """What a twin returns for a call that it has not seen: always the same tensor."""
    return _ASK_PYTHON


def is_available() -> bool:
    """Whether calls can be looked up here."""
    return _library(0) is not None


@dataclass(frozen=True, slots=True)
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
    ) -> None:
        """Let calls like one with these outputs be looked up.

        Without a kernel, integers say which convolution it is, see `lookup_convolution`.
        """
        key = [word for x in tensors for word in self._described(x)]
        key += [number for number in numbers if not isinstance(number, float)]
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
            constants,
            len(constants),
        )

    def _described(self, tensor: torch.Tensor | None) -> list[int]:
        if tensor is None:
            return [-1]
        shape, strides = tensor.shape, tensor.stride()
        return [self.library.dtypes[tensor.dtype], tensor.dim(), *shape, *strides]


# ---------------------------------------------------------------------------- twins
@dataclass(frozen=True, slots=True)
class Twin:
    """The op of the dispatcher that runs calls that were seen before."""

    operation: Operation
    name: str
    table: Table
    call: Callable[..., Any]
    fixed: dict[tuple[int, ...], Callable[..., Any]]

    def for_integers(self, integers: tuple[int, ...]) -> Callable[..., Any] | None:
        """The same for some values of the integers, of tensors and floats alone.

        The first ones are ops of their own, since fewer arguments are faster to hand over; for
        others the integers are handed over from here. None where there are too many of both.
        """
        with LOCK:
            return self._for_integers(integers)

    def _for_integers(self, integers: tuple[int, ...]) -> Callable[..., Any] | None:
        if integers not in self.fixed:
            if not integers:
                self.fixed[integers] = self.call
            elif len(self.fixed) >= _MOST_KNOWN:
                return None
            elif len(self.fixed) >= _MOST_FIXED:
                self.fixed[integers] = self._with(integers)
            else:
                name = f"{self.name}_{len(self.fixed)}"
                made = _define(self.operation, name, self.table, integers)
                if made is None:
                    return None
                self.fixed[integers] = made
        return self.fixed[integers]

    def _with(self, integers: tuple[int, ...]) -> Callable[..., Any]:
        """The general op with these integers put where its attributes are."""
        count, general, left = len(self.operation.inputs), self.call, iter(integers)
        numbers: list[int | None] = []
        for attribute in self.operation.attributes:
            for _ in range(attribute.length or 1):
                numbers.append(None if attribute.type == "float" else next(left))
        if None not in numbers:
            return lambda *tensors: general(*tensors, *integers)

        def call(*given: Any) -> Any:
            floats = iter(given[count:])
            every = [next(floats) if number is None else number for number in numbers]
            return general(*given[:count], *every)

        return call

    def enter(
        self, call: Call, outputs: Sequence[torch.Tensor], operands: dict[str, torch.Tensor]
    ) -> None:
        """Let the next call like this one be looked up, if it is of a kind that can be."""
        ranks = [x.dim() for x in (*call.tensors, *outputs) if x is not None]
        if max(ranks, default=0) > MAX_RANK or len(operands) > 4 * MAX_TENSORS:
            return
        layout = _layout(call, outputs, operands)
        if layout is None:
            return
        addresses, workspace, constants = layout
        integers = [*call.shapes.integers.values()]
        for operand in operands.values():
            integers.extend(operand.stride())
        kernel = ctypes.cast(compiled(call, operands).function, ctypes.c_void_p)
        numbers = flatten(call.values)
        memory = addresses, workspace, constants
        self.table.enter(call.tensors, numbers, outputs, kernel, integers, *memory)

    def enter_convolution(self, call: Call, plan: Plan, output: torch.Tensor) -> None:
        """The same for a call that PyTorch's library computed, with this output."""
        integers = lookup_convolution.forward(plan, call.tensors)
        if integers is not None and self.table.library.has_convolutions:
            self.table.enter(call.tensors, flatten(call.values), (output,), None, integers)


def _array(words: Sequence[int]) -> tuple[Any, int]:
    return (ctypes.c_int64 * len(words))(*words), len(words)


def _layout(
    call: Call, outputs: Sequence[torch.Tensor], operands: dict[str, torch.Tensor]
) -> tuple[list[int], int, bytes] | None:
    """Where the addresses of operands come from, the bytes of the workspace, and constants.

    None if an input was copied, which the table does not do.
    """
    operation = call.operation
    addresses: list[int] = []
    constants = b""
    for at, (declared, tensor) in enumerate(zip(operation.inputs, call.tensors, strict=True)):
        operand = operands[declared.name]
        if tensor is None:
            addresses += [3, len(constants)]
            element = operand.as_strided((1,), (1,)).view(torch.uint8)
            constants += bytes(element.tolist()).ljust(8, b"\0")
        elif operand.data_ptr() != tensor.data_ptr():
            return None
        else:
            addresses += [0, at]
    for at in range(len(outputs)):
        addresses += [1, at]
    names = [output.name for output in operation.outputs]
    workspace = 0
    for temporary in operation.temporaries:
        operand = operands[temporary.name]
        shared = [at for at, name in enumerate(names) if operands[name] is operand]
        if shared:
            addresses += [1, shared[0]]
        else:
            addresses += [2, workspace]
            size = operand.numel() * operand.element_size()
            workspace += -(-size // 64) * 64
    return addresses, workspace, constants


_MOST_FIXED = 16
"""For how many values of its integers an op has a twin: as many as most nets have."""

_MOST_KNOWN = 1024
"""For how many values a call is looked up at all."""

_slots = 0


def twin(operation: Operation, name: str) -> Twin | None:
    """A new twin of an op, under the same name in a namespace of its own; None if it has none."""
    numbers = sum(attribute.length or 1 for attribute in operation.attributes)
    tensors = max(len(operation.inputs), len(operation.outputs))
    if numbers > MAX_NUMBERS or tensors > MAX_TENSORS:
        return None
    if all(declared.default is not None for declared in operation.inputs):
        return None  # a call may have no tensor to be dispatched on
    table = Table.new()
    call = None if table is None else _define(operation, name, table, None)
    return None if table is None or call is None else Twin(operation, name, table, call, {})


def _define(
    operation: Operation, name: str, table: Table, integers: tuple[int, ...] | None
) -> Callable[..., Any] | None:
    """A new twin; with `integers`, they are no arguments."""
    kinds = [0 if declared.default is None else 1 for declared in operation.inputs]
    whole = 2 if integers is None else 4
    for attribute in operation.attributes:
        kinds += [3 if attribute.type == "float" else whole] * (attribute.length or 1)
    left = iter(integers or ())
    constants = [next(left) if kind == 4 else 0 for kind in kinds]
    return define(name, table, kinds, constants, len(operation.outputs), operation.is_public)


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
    of some, which are then not asked.
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
    casts = _CASTS if is_cast else ()
    for key in ("CompositeExplicitAutograd", *_UNSEEN, *casts):
        _LIBRARY.impl(name, lambda *_: answers, key)
    register = library.loaded.opgen_register
    if (
        register(slot, NAMESPACE.encode(), name.encode(), _ABI, _array(words)[0], table.address)
        != 0
    ):
        return None
    call: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default._op
    return call


_UNSEEN = ("Tracer", "AutogradNestedTensor")
"""Where a twin asks Python, besides on other devices: cheaper than to look before each call."""

_CASTS = ("AutocastCPU", "AutocastCUDA")
"""Where that of a public op does so too: tensors of derived ops were cast on the way forward."""


def is_answered(result: Any) -> bool:
    """Whether a twin had seen the call."""
    first = result if isinstance(result, torch.Tensor) else result[0]
    return first is not ask_python()


# ---------------------------------------------------------------------------- calls
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})


def is_plain() -> bool:
    """Whether nothing but plain tensors and autograd can be in play."""
    return not (
        _suspended
        or compat.transforms_are_active()
        or compat.dispatch_modes()
        or compat.function_modes_are_active()
        or compat.forward_ad._current_level >= 0
    )


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways to run an op, from the most general one to the fastest.

    `in_full` checks the arguments of a caller and runs the op on them; `overload` is the op of the
    dispatcher; `record` runs the twin and records the call for autograd; `library` gives what
    PyTorch's library computes for tensors and numbers that it knows, else None.
    """

    in_full: Callable[..., Any]
    overload: Callable[..., Any]
    record: Callable[..., Any]
    twin: Callable[[], Twin | None]
    library: Callable[[Sequence[Any], tuple[Number, ...]], Any] | None


def derived_caller(ways: Ways, is_public: bool) -> Callable[[Sequence[Any], Sequence[Number]], Any]:
    """The function behind an op for tensors and numbers that are known to fit it.

    Autocast is for public ops: tensors of derived ones were cast on the way forward.
    """
    overload, record, twin_of, answer = ways.overload, ways.record, ways.twin, ask_python()
    library = ways.library
    is_grad_enabled, any_requires_grad = torch.is_grad_enabled, compat.any_requires_grad
    is_compiling = torch.compiler.is_compiling

    def call(tensors: Sequence[Any], numbers: Sequence[Number]) -> Any:
        if is_compiling() or not is_plain():
            return overload(*tensors, *numbers)
        for tensor in tensors:
            if type(tensor) not in _PLAIN:
                return overload(*tensors, *numbers)
        if is_grad_enabled() and any_requires_grad(*tensors):
            if compat.autocast_is_active() or compat.is_jit_tracing():
                return overload(*tensors, *numbers)
            return record(None, tuple(numbers), *tensors)
        found = twin_of()
        if found is not None:
            result = found.call(*tensors, *numbers)
            if result is not answer and not (type(result) is tuple and result[0] is answer):
                return result
        is_cast = is_public and compat.autocast_is_active()
        if library is not None and not is_cast and not compat.is_jit_tracing():
            result = library(tensors, tuple(numbers))
            if result is not None:
                return result
        return overload(*tensors, *numbers)

    return call


def public_caller(operation: Operation, ways: Ways) -> Callable[..., Any]:
    """The function behind a public op: tensors and then attributes, in declared order.

    It is written out for the op's signature, as `dataclasses` does it: a loop over the arguments
    would take longer than PyTorch's own ops do. No text of a spec is in it.
    """
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(_caller_source(operation), namespace)
    make: Callable[..., Callable[..., Any]] = namespace["make"]
    choices = [
        {word: at for at, word in enumerate(attribute.choices)}
        for attribute in operation.attributes
    ]
    return make(
        ways,
        ask_python(),
        choices,
        torch.compiler.is_compiling,
        compat,
        torch.is_grad_enabled,
        torch.Tensor,
        torch.nn.Parameter,
        is_suspended,
        torch.is_autocast_enabled,
        functools.partial(autocast.eager, operation),
    )


_CALLER = """
def make(ways, answer, choices, is_compiling, compat, is_grad_enabled, Tensor,
         Parameter, suspended, cpu_autocast, cast):
    in_full, overload, record, find_twin = ways.in_full, ways.overload, ways.record, ways.twin
    transforms, modes = compat.transforms_are_active, compat.dispatch_modes
    function_modes, forward_ad = compat.function_modes_are_active, compat.forward_ad
    any_requires_grad = compat.any_requires_grad
    twins = {{}}

    autocast, tracing = compat.autocast_is_active, compat.is_jit_tracing
    library = ways.library

    def aside({parameters}):
        if tracing() or suspended() or not cpu_autocast("cpu"):
            return in_full({parameters})
        for tensor in ({listed}):
            if tensor is not None and not tensor.is_cpu:
                return in_full({parameters})
        return under_autocast({parameters})

    def first(integers, {parameters}):
        result = in_full({parameters})
        found = find_twin()
        if found is not None:
            twin = found.for_integers(integers)
            if twin is not None:
                twins[integers] = twin
        return result

    def call({parameters}):
        if is_compiling():
            return in_full({parameters})
{prepare}
        if ({plain}
            not transforms() and not modes() and not function_modes()
            and forward_ad._current_level < 0
        ):
            twin = twins.get(({integers}))
            if twin is None:
                return first(({integers}), {parameters})
            if is_grad_enabled() and {wanted}:
                if autocast() or tracing():
                    return aside({parameters})
                return record(twin, ({numbers}), {tensors})
            result = twin({fewer})
            if {first} is not answer:
                return result
            if autocast() or tracing():
                return aside({parameters}){library}
        return in_full({parameters})

    under_autocast = cast(call)
    return call
"""

_LIBRARY_CALL = """
            if not suspended():
                result = library(({listed}), ({numbers}))
                if result is not None:
                    return result"""


def _caller_source(operation: Operation) -> str:
    """The text of a function that checks types and calls the twin of an op."""
    tensors = [f"t{at}" for at in range(len(operation.inputs))]
    values = [f"a{at}" for at in range(len(operation.attributes))]
    plain: list[str] = []
    prepare: list[str] = []
    numbers: list[str] = []
    floats: list[str] = []
    integers: list[str] = []
    for name, declared in zip(tensors, operation.inputs, strict=True):
        absent = "" if declared.default is None else f"{name} is None or "
        plain.append(f"({absent}type({name}) is Tensor or type({name}) is Parameter) and")
    for at, (name, attribute) in enumerate(zip(values, operation.attributes, strict=True)):
        if attribute.length is not None:
            alike = ", ".join([name] * attribute.length)
            prepare.append(f"        n{at} = ({alike},) if type({name}) is int else {name}")
            name = f"n{at}"
            items = [f"{name}[{k}]" for k in range(attribute.length)]
            plain.append(f"type({name}) is tuple and len({name}) == {attribute.length} and")
            plain += [f"type({item}) is int and" for item in items]
            integers += items
            numbers += items
        elif attribute.type == "choice":
            plain.append(f"type({name}) is str and {name} in choices[{at}] and")
            integers.append(f"choices[{at}][{name}]")
            numbers.append(integers[-1])
        else:
            # A float that equals an integer, or the other way round, is checked in full.
            kind = "int" if attribute.type == "size" else attribute.type
            plain.append(f"type({name}) is {kind} and")
            (floats if kind == "float" else integers).append(name)
            numbers.append(name)
    few = [f"{name}.requires_grad" for name in tensors]
    is_short = 0 < len(few) <= 2 and all(each.default is None for each in operation.inputs)
    all_tensors, all_numbers = ", ".join(tensors), "".join(f"{each}, " for each in numbers)
    listed = "".join(f"{each}, " for each in tensors)
    library = _LIBRARY_CALL.format(listed=listed, numbers=all_numbers)
    return _CALLER.format(
        parameters=", ".join((*tensors, *values)),
        prepare="\n".join(prepare),
        plain="\n            ".join(plain),
        wanted=f"({' or '.join(few)})" if few and is_short else f"any_requires_grad({all_tensors})",
        tensors=all_tensors,
        listed=listed,
        numbers=all_numbers,
        library="" if operation.convolution is None else library,
        fewer=", ".join((*tensors, *floats)),
        integers="".join(f"{each}, " for each in integers),
        first="result" if len(operation.outputs) == 1 else "result[0]",
    )
