"""What came of a launch: findings, and the memory traffic if it was traced."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from opgen.testing.cuda_on_cpu.lines import Place

Triple = tuple[int, int, int]


class FindingKind(enum.Enum):
    """What is wrong; numbered as in native/runtime/abi.h."""

    OUT_OF_BOUNDS = 1
    MISALIGNED = 2
    UNINITIALISED_READ = 3
    SHARED_RACE = 4
    GLOBAL_RACE = 5
    CONST_WRITE = 6
    DIVERGENT_BARRIER = 7
    DEADLOCK = 8
    WARP_OPERATION = 9
    UNDEFINED_BEHAVIOUR = 10
    STACK_OVERFLOW = 11
    TRAP = 12
    UNFINISHED_COPY = 13
    TIMEOUT = 14
    FAULT = 15
    UNWRITTEN = 16


_TEXTS = {
    FindingKind.OUT_OF_BOUNDS: (
        "out-of-bounds access",
        "test the index against the size before this access, or launch fewer threads",
    ),
    FindingKind.MISALIGNED: (
        "misaligned access",
        "use a narrower access where rows or views do not start at a multiple of its size",
    ),
    FindingKind.UNINITIALISED_READ: (
        "uninitialised read",
        "write it first, in every thread that must, and wait for the threads that write it",
    ),
    FindingKind.SHARED_RACE: (
        "race in shared memory",
        "put __syncthreads() between the two, or __syncwarp() if they are of one warp",
    ),
    FindingKind.GLOBAL_RACE: (
        "race in global memory",
        "let one thread write each element, use an atomic operation, or split the launch",
    ),
    FindingKind.CONST_WRITE: (
        "write to const",
        "declare the parameter without const, or write elsewhere",
    ),
    FindingKind.DIVERGENT_BARRIER: (
        "divergent barrier",
        "let all threads of the block reach the same __syncthreads(): no return before it, and no "
        "condition around it on which threads differ",
    ),
    FindingKind.DEADLOCK: (
        "deadlock",
        "let every lane of the mask reach this operation, or name only those that do",
    ),
    FindingKind.WARP_OPERATION: (
        "wrong warp operation",
        "make mask, lane and operation agree in all lanes that take part",
    ),
    FindingKind.UNDEFINED_BEHAVIOUR: (
        "undefined behaviour",
        "use wider integers (long long) for offsets, and test divisors and indices",
    ),
    FindingKind.STACK_OVERFLOW: (
        "local memory overflow",
        "make the arrays of a thread smaller, or recurse less",
    ),
    FindingKind.TRAP: ("trap", "see why the condition of the kernel's own check fails"),
    FindingKind.UNFINISHED_COPY: (
        "unfinished asynchronous copy",
        "commit and wait for the copy (cp.async.wait_group) before its data are used",
    ),
    FindingKind.TIMEOUT: (
        "timeout",
        "look for a loop that does not end, or a wait for another block; a long launch needs a "
        "larger timeout",
    ),
    FindingKind.FAULT: ("fault", "run it in mode 'check', which says more"),
    FindingKind.UNWRITTEN: (
        "output not written",
        "launch enough threads, and let each element be written whatever the sizes",
    ),
}


@dataclass(frozen=True, slots=True)
class Access:
    """The access a finding is about: `element` counts in elements of the array."""

    array: str
    is_write: bool
    bytes: int
    offset: int
    """In bytes from the start of the array."""
    itemsize: int
    extent: int
    """Bytes of the array; 0 for shared memory."""

    def __str__(self) -> str:
        what = f"{self.bytes}-byte {'store to' if self.is_write else 'load from'} {self.array}"
        if self.extent == 0:
            return f"{what} at byte {self.offset}"
        element, rest = divmod(self.offset, self.itemsize)
        inside = f" and {rest} bytes" if rest else ""
        count = self.extent // self.itemsize
        return f"{what} at element {element}{inside}; it has elements 0 to {count - 1}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, the first time it was met at its place."""

    kind: FindingKind
    place: Place
    source: str
    """The text of the line."""
    detail: str
    thread: Triple
    block: Triple
    access: Access | None = None
    other_thread: Triple | None = None
    other_block: Triple | None = None
    other_place: Place | None = None

    @property
    def title(self) -> str:
        """What kind of thing it is, in words."""
        return _TEXTS[self.kind][0]

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _TEXTS[self.kind][1]

    def __str__(self) -> str:
        if self.kind is FindingKind.UNWRITTEN:
            return f"{self.title}: {self.detail}\n  to do: {self.advice}"
        lines = [f"{self.place}: {self.title}: {self.detail}"]
        if self.source:
            lines.append(f"      {self.source}")
        if self.access is not None:
            lines.append(f"  {self.access}")
        lines.append(f"  by thread {_told(self.thread)} of block {_told(self.block)}")
        if self.other_thread is not None:
            at = "" if self.other_place is None else f" at {self.other_place}"
            block = self.other_block or self.block
            lines.append(f"  against thread {_told(self.other_thread)} of block {_told(block)}{at}")
        lines.append(f"  to do: {self.advice}")
        return "\n".join(lines)


def _told(triple: Triple) -> str:
    return f"({triple[0]},{triple[1]},{triple[2]})"


@dataclass(frozen=True, slots=True)
class Traffic:
    """32-byte sectors of one array: over all requests, unique in each block, in the launch."""

    read_sectors: int
    read_block_sectors: int
    read_unique_sectors: int
    read_lane_bytes: int
    write_sectors: int
    write_block_sectors: int
    write_unique_sectors: int
    write_lane_bytes: int


@dataclass(frozen=True, slots=True)
class Site:
    """One access of the source to one array, over the whole launch.

    A request is what the lanes of a warp ask for together. It moves sectors of 32 bytes of global
    memory, or takes wavefronts of shared memory, of which more than one is a bank conflict.
    """

    place: Place
    array: str
    """The parameter's name, or "shared"."""
    is_write: bool
    bytes: int
    """Of one thread: the width of the access."""
    requests: int
    lanes: int
    moved: int
    ideal: int

    @property
    def is_shared(self) -> bool:
        """Whether it is an access to shared memory."""
        return self.array == "shared"

    @property
    def per_request(self) -> float:
        """Sectors or wavefronts of a request."""
        return self.moved / self.requests

    @property
    def efficiency(self) -> float:
        """Which part of what is moved would do."""
        return self.ideal / self.moved


class KernelError(AssertionError):
    """A kernel did what no kernel may do; the text holds every finding."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of one launch."""

    kernel: str
    findings: tuple[Finding, ...]
    aborted: bool
    """Whether a finding ended the launch before all threads were done."""
    accesses: int
    """Loads and stores of shared and global memory; counted in mode "check" only."""
    static_shared: int
    """Bytes of `__shared__` arrays of fixed size in the source, all kernels together."""
    seconds: float
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    """By parameter; empty without `trace`."""
    sites: tuple[Site, ...] = ()
    """In the order of the source; empty without `trace`."""

    def raise_if_errors(self) -> Report:
        """This report; KernelError with every finding if there is one."""
        if self.findings:
            raise KernelError(f"{self.kernel}:\n" + "\n".join(map(str, self.findings)))
        return self

    @property
    def kinds(self) -> frozenset[FindingKind]:
        """What kinds of findings there are."""
        return frozenset(finding.kind for finding in self.findings)
