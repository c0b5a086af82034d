"""One launch of a compiled kernel: its memory described to the run time, and the run itself."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from opgen.testing.cuda_on_cpu import abi, compiler
from opgen.testing.cuda_on_cpu.arguments import Bound, Memory, Role
from opgen.testing.cuda_on_cpu.compiler import SHARED_CAPACITY, EmulatorError
from opgen.testing.cuda_on_cpu.memory import virtual
from opgen.testing.cuda_on_cpu.report import Report
from opgen.testing.cuda_on_cpu.results import Raw, report_of

Order = Literal["forward", "reverse", "random"]
Size = tuple[int, int, int]

ORDERS: Final = {"forward": 0, "reverse": 1, "random": 2}
_WIDEST: Final = 16  # bytes of an access

_ONE_LAUNCH = threading.Lock()  # the run time has one state


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """How a launch runs; see `Kernel.__call__`. Arguments are told by position or by name."""

    outs: Collection[int | str] = ()
    written: Mapping[int | str, np.ndarray] = field(default_factory=dict)
    blocks: Sequence[int] | None = None
    order: Order = "forward"
    seed: int = 0
    trace: bool = False
    strict_exit: bool = True
    timeout: float = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Blocks, threads of a block, and bytes of dynamic shared memory."""

    grid: Size
    block: Size
    shared_mem: int


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """What is launched: a kernel of a library."""

    name: str
    source: str
    library: ctypes.CDLL
    entry: ctypes.c_void_p
    is_checked: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Tracked:
    """Memory that the launch may access, and the positions and names of the arguments for it.

    `cell`: bytes in which writes are told apart. `written`: which cells were, None if all. It is
    `demanded` that all be written by this launch.
    """

    memory: Memory
    cell: int
    is_const: bool
    names: frozenset[int | str]
    written: np.ndarray | None = None
    demanded: bool = False

    @property
    def cells(self) -> int:
        return -(-self.memory.extent // self.cell)

    def described(self) -> abi.Array:
        written = None if self.written is None else self.written.ctypes.data
        log2 = self.cell.bit_length() - 1
        return abi.Array(self.memory.low, self.memory.extent, written, log2, self.is_const)


# ---------------------------------------------------------------------------- the run
def launch(target: Target, shape: Shape, bound: Sequence[Bound], run: Run) -> Report:
    """Run a kernel on arguments that are bound, and report what was found.

    ValueError where `run` names arguments that there are not, EmulatorError without memory.
    """
    tracked = [_initialised(target.name, each, run) for each in _tracked(bound)]
    _refuse_unknown(target.name, bound, run)
    if run.blocks is None:
        for each in tracked:
            if each.demanded:
                ctypes.memset(each.memory.low, 0xFF, each.memory.extent)
    raw = Raw(len(tracked))
    with _ONE_LAUNCH:
        # Calling into the library makes its thread-local storage, which is its shared memory.
        target.library.emu_storage()
        request = _request(target, shape, bound, tracked, run)
        start = time.perf_counter()
        status = compiler.runtime().emu_launch(ctypes.byref(request), ctypes.byref(raw.outcome))
        seconds = time.perf_counter() - start
    if status != 0:
        size = sum(each.memory.extent for each in tracked)
        raise EmulatorError(
            f"{target.name}: the system has no room to remember what is done to {size} bytes"
        )
    demanded = {
        number: each.written
        for number, each in enumerate(tracked)
        if each.demanded and each.written is not None and run.blocks is None
    }
    report = report_of(
        raw, target.name, target.source, target.library._name,
        [each.memory for each in tracked], demanded, trace=run.trace,
    )  # fmt: skip
    return replace(report, seconds=seconds)


def _request(
    target: Target,
    shape: Shape,
    bound: Sequence[Bound],
    tracked: Sequence[_Tracked],
    run: Run,
) -> abi.Launch:
    """A launch as the run time takes it; it keeps alive what it points to."""
    addresses = [ctypes.addressof(each.value) for each in bound]
    blocks = run.blocks or ()
    return abi.Launch(
        entry=target.entry,
        arguments=(ctypes.c_void_p * max(1, len(addresses)))(*addresses),
        grid=(ctypes.c_uint32 * 3)(*shape.grid),
        block=(ctypes.c_uint32 * 3)(*shape.block),
        blocks=None if run.blocks is None else (ctypes.c_uint64 * max(1, len(blocks)))(*blocks),
        block_count=len(blocks),
        dynamic_shared=_dynamic_shared(target.library),
        dynamic_bytes=shape.shared_mem,
        dynamic_capacity=SHARED_CAPACITY,
        arrays=(abi.Array * max(1, len(tracked)))(*(each.described() for each in tracked)),
        array_count=len(tracked),
        options=abi.Options(
            check=target.is_checked,
            trace=run.trace,
            order=ORDERS[run.order],
            seed=run.seed & 0xFFFFFFFF,
            strict_exit=run.strict_exit,
            timeout_ms=max(1, int(run.timeout * 1000)),
        ),
    )


def _dynamic_shared(library: ctypes.CDLL) -> int | None:
    try:
        tell = library.emu_dynamic
    except AttributeError:  # the source has no `extern __shared__`
        return None
    tell.restype = ctypes.c_void_p
    found: int | None = tell()
    return found


# ---------------------------------------------------------------------------- memory
def _tracked(bound: Sequence[Bound]) -> list[_Tracked]:
    """Every distinct memory of the arguments that is not empty."""
    found: dict[tuple[int, int], _Tracked] = {}
    for position, each in enumerate(bound):
        memory, parameter = each.memory, each.parameter
        if memory is None or memory.extent == 0:
            continue
        pointee = parameter.bytes & -parameter.bytes or _WIDEST
        names: frozenset[int | str] = frozenset((position, parameter.name))
        new = _Tracked(
            memory,
            min(memory.cell, pointee, _WIDEST),
            parameter.role is Role.CONST_POINTER,
            names,
        )
        key = memory.low, memory.extent
        known = found.get(key, new)
        found[key] = replace(
            known,
            cell=min(known.cell, new.cell),
            is_const=known.is_const and new.is_const,
            names=known.names | names,
        )
    return list(found.values())


def _initialised(kernel: str, tracked: _Tracked, run: Run) -> _Tracked:
    """With what is known of its cells: by `written`, or as an output nothing."""
    given = [cells for named, cells in run.written.items() if named in tracked.names]
    demanded = not tracked.names.isdisjoint(run.outs)
    name = tracked.memory.name
    if demanded and tracked.is_const:
        raise ValueError(f"{kernel}: {name} is const, and no output")
    if given:
        (cells,) = given[:1]
        if cells.dtype != np.bool_ or cells.shape != (tracked.cells,):
            raise ValueError(
                f"{kernel}: `written` for {name} is {cells.dtype} of shape {cells.shape}, "
                f"expected bool of shape {(tracked.cells,)}"
            )
        return replace(tracked, written=cells, demanded=demanded)
    if demanded:
        return replace(tracked, written=virtual((tracked.cells,), np.bool_), demanded=True)
    return tracked


def _refuse_unknown(kernel: str, bound: Sequence[Bound], run: Run) -> None:
    known: set[int | str] = {*range(len(bound)), *(each.parameter.name for each in bound)}
    for named in (*run.outs, *run.written):
        if named not in known:
            raise ValueError(f"{kernel} has no argument {named!r}")
