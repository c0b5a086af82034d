"""What every printer of statements has: names, lines, and the scope that it is in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from opgen.algebra.poly import Atom, Poly
from opgen.emit.c_layout import broken
from opgen.emit.expression import Printer
from opgen.emit.names import CNames
from opgen.emit.types import Type
from opgen.ir.loops import Kernel, Load, Node, Scalar

if TYPE_CHECKING:
    from opgen.emit.coarse import Coarse
    from opgen.emit.held_choices import HeldPass
    from opgen.emit.held_sums import SummedPass
    from opgen.emit.rows_ahead import Piece, Share


@dataclass(frozen=True, slots=True)
class Argument:
    """The variables of an accumulator of argmax or argmin beside its position."""

    best: str
    found: str
    first: tuple[str, ...]


@dataclass
class ScopeEmitter(ABC):
    """Appends lines to a function, one scope of C at a time."""

    printer: Printer
    scope: CNames
    kernel: Kernel
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    kinds: dict[str, Type] = field(default_factory=dict)
    states: dict[str, Argument] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)  # accumulators that are arrays over the lanes
    vectors: dict[str, str] = field(default_factory=dict)  # vectors of partial sums,
    nans: dict[str, str] = field(default_factory=dict)  # whether a term of lanes' extremes is NaN
    pairs: dict[str, tuple[str, str]] = field(default_factory=dict)  # who share one,
    waiting: dict[str, str] = field(default_factory=dict)  # and for whom it is there already
    around: str | None = None  # the innermost loop around, if it may be long,
    in_turn: bool = False  # and whether all rows of the group have their turn in each round of it
    blocks: bool = False  # whether numbers are vectors of several lanes,
    whole: bool = True  # whether all cells of the row have a lane,
    named: bool = False  # and whether what terms load has names
    members: dict[str, str] = field(default_factory=dict)  # of stretched axes: their names,
    parts: dict[str, str] = field(default_factory=dict)  # and the names of the stretches
    joined: str = ""  # how many of the row's are one, if there may be several
    tabled: str = ""  # the variable with the first cell of the stretch that tables are for,
    of_row: Mapping[Atom | Scalar, tuple[str, Poly]] = field(default_factory=dict)  # and these
    streams: str = ""  # the parameter that says whether results go past the caches
    guest: str = ""  # the parameter for the call of a guest, 0 where none runs within
    coarse: Coarse | None = None  # what is to be coarse where numbers are rounded at once,
    is_coarse: str = ""  # and the variable that says whether all of it is, seen from here
    ahead: Piece | None = None  # the piece of memory of which points ask for the next one,
    asked: str = ""  # and the parameter that says how many bytes of it
    share: Share | None = None  # what is left of that for the blocks of lanes to ask for
    places: dict[tuple[str, tuple[Poly, ...]], str] = field(default_factory=dict)  # cells of lines
    halves: dict[tuple[str, tuple[Poly, ...]], str] = field(default_factory=dict)  # of pairs
    copied: dict[Load, str] = field(default_factory=dict)  # names of vectors as they are stored
    held: HeldPass | SummedPass | None = None  # what joins terms, where a vector is held,
    beside_held: bool = False  # and whether what is printed is for where none can be

    @property
    def lane(self) -> str:
        """The name of the lane."""
        assert self.kernel.row is not None
        return self.members[self.kernel.row.axis.name]

    def write(self, line: str) -> None:
        self.lines += broken("    " * self.depth + line)

    def text(self, value: Poly) -> str:
        return self.printer.poly(value).text

    def bound(self, value: Poly) -> str:
        """An integer that bounds a loop."""
        return self.printer.bound(value).text

    def block(self, head: str, nodes: Sequence[Node]) -> None:
        """`head { nodes }`, in a scope of its own."""
        self.write(f"{head} {{")
        self.inner().nodes(nodes)
        self.write("}")

    def inner(self) -> Self:
        """The emitter of a nested scope; it appends to the same lines."""
        names = self.printer.names
        inner_names = replace(
            names, symbols=dict(names.symbols), accumulators=dict(names.accumulators)
        )
        printer = replace(
            self.printer,
            names=inner_names,
            bounded=set(self.printer.bounded),
            columns=dict(self.printer.columns),
        )
        return replace(
            self,
            printer=printer,
            scope=self.scope.inner(),
            depth=self.depth + 1,
            copied=dict(self.copied),
        )

    def integer_type(self, *values: Poly) -> str:
        """The type of a variable for an integer that is, or lies between, these."""
        del values
        return "int64_t"

    @abstractmethod
    def node(self, node: Node) -> None:
        """Print a node in this scope."""

    @abstractmethod
    def nodes(self, nodes: Sequence[Node]) -> None:
        """Print nodes in this scope."""


def extreme(function: str, texts: Sequence[str]) -> str:
    """The least or greatest of several integers; those that are literals are compared here."""
    known = [int(text) for text in texts if text.lstrip("-").isdigit()]
    others = [text for text in texts if not text.lstrip("-").isdigit()]
    if known:
        others.insert(0, str(max(known) if function == "greatest" else min(known)))
    out, *others = others
    for text in others:
        out = f"{function}({out}, {text})"
    return out
