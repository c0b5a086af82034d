"""What is known about the ops of a module: proved for all sizes, left to a call, or only tried."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Accesses:
    """How many accesses of an op there are of each kind.

    `proved` stay inside their tensor in every call; `bounded` say by a boundary mode such as `?0`
    what they mean outside; `checked` have an index that is read from a tensor, and are checked one
    by one when a kernel runs.
    """

    proved: int = 0
    bounded: int = 0
    checked: int = 0


@dataclass(frozen=True, slots=True)
class Proofs:
    """What the checker proved of an op of the spec, for all sizes.

    `written_once` are the tensors that `=` writes: no statement meets a cell twice but within a
    reduction on its right, and no two statements meet. `written_first` are the temporaries: every
    cell that is read was written before. `launch_checks` are what the proofs leave to the start of
    a call, beside the `where` clauses of the spec.
    """

    op: str
    reads: Accesses
    writes: Accesses
    written_once: tuple[str, ...]
    written_first: tuple[str, ...]
    launch_checks: tuple[str, ...]


class Form(Enum):
    """How a derived op finds the terms of a cell."""

    GATHER = "gather"  # loops enumerate exactly the terms: no atomics, no search
    ENUMERATED = "enumerated"  # no atomics, but some loop tries terms of other cells
    ATOMICS = "atomics"  # terms are scattered; on a GPU they are added atomically
    STATED = "stated"  # the spec names an op for it


@dataclass(frozen=True, slots=True)
class DerivedForm:
    """The form of the derivative at the end of a path: an op, then inputs."""

    path: tuple[str, ...]
    op: str
    form: Form


@dataclass(frozen=True, slots=True)
class Trial:
    """Calls of one op in which a property held, and what the results were compared with."""

    op: str
    against: str
    property: str
    calls: int


@dataclass(frozen=True, slots=True)
class Trials:
    """A run of the property tests, all of which passed."""

    seed: int
    device: str
    results: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Everything that is stamped into a module; `trials` is None where nothing was run."""

    proofs: tuple[Proofs, ...]
    derivatives: tuple[DerivedForm, ...]
    trials: Trials | None = None
