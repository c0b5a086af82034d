"""What differs along a row alone, in tables: it is the same in every row.

With `x[.., 56*j // OW]` each cell of a row divides, and processors have no vectors of quotients of
64 bits: that takes most of the time of such a row. The quotients of a stretch are computed once and
stay for the stretches above and below it; what is left of the row are loads, a vector at a time. So
do numbers that are computed from such quotients, as the weights of a bilinear resizing.

Images of 56 by 56 pixels as 100 by 100, of the nearest ones, take a sixth of the time that they
took, and bilinear ones of 512 by 512 as 224 by 224 two thirds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from opgen.algebra.poly import Atom, Kind, Poly, of_atom
from opgen.ir.loop_parts import node_polys, node_scalars, node_tests
from opgen.ir.loops import (
    Argument,
    Blocks,
    Call,
    Choose,
    If,
    Integer,
    Kernel,
    Lanes,
    Load,
    Node,
    Number,
    Program,
    Result,
    Scalar,
    Short,
    walk,
)
from opgen.ir.map_loops import polynomials
from opgen.ir.primitives import PRIMITIVES

MOST: Final = 6
"""The most tables of a kernel: with 1024 cells of a row they take 48 KB of the stack."""

_COMPUTED: Final = {Kind.SYMBOL, Kind.FLOOR_DIV, Kind.MIN, Kind.MAX, Kind.SELECT_ZERO}


def lane_tables(kernel: Kernel, program: Program) -> tuple[Atom | Scalar, ...]:
    """The integers and numbers that go into tables, those that are used most first.

    They depend on a call and on the place in the row alone. There are none where lanes are vectors
    that the emitter makes, which begin at places of their own.
    """
    row = kernel.row
    has_vectors = isinstance(kernel.only, Blocks | Short) and kernel.only.holds
    if row is None or row.joined > 1 or has_vectors or kernel.plane or kernel.sums:
        return ()
    search = Search(row.axis.name, frozenset((*program.integers, row.axis.name)))
    lanes = (node for node in walk(kernel.body) if isinstance(node, Lanes))
    found = Counter(each for node in lanes for each in search.nodes(node.body))
    ordered = sorted(found, key=lambda each: (isinstance(each, Atom), -found[each], str(each)))
    return tuple(ordered[:MOST])


def tabled_lanes(
    kernel: Kernel, program: Program, tables: Collection[Atom | Scalar]
) -> tuple[Lanes, ...]:
    """The passes that look things up in the tables, if these are all that needs to be filled: none
    where a pass goes along all of a stretch, or where it begins is not known before."""
    assert kernel.row is not None
    row = kernel.row
    if not all(isinstance(each, Atom) for each in tables):
        return ()  # numbers may be parts of others
    lanes = [node for node in walk(kernel.body) if isinstance(node, Lanes)]
    found = [node for node in lanes if not _atoms_in(node).isdisjoint(tables)]
    known = {*program.integers, row.first, row.last}
    are_parts = all(
        bounds and all(each.symbols <= known and not each.is_data_dependent for each in bounds)
        for bounds in ((*node.lower, *node.upper) for node in found)
    )
    return tuple(found) if are_parts else ()


def _atoms_in(node: Lanes) -> set[Atom]:
    """All of them, also those within others."""
    return {atom for value in polynomials(*node.body) for atom in value.all_atoms()}


@dataclass(frozen=True, slots=True)
class Search:
    """Looks for what depends on `known` symbols alone, and differs from lane to lane."""

    lane: str
    known: frozenset[str]

    def nodes(self, nodes: tuple[Node, ...]) -> Iterator[Atom | Scalar]:
        for node in walk(nodes):
            for value in node_scalars(node):
                yield from self.numbers(value)
            for test in node_tests(node):
                yield from self.all_integers(polynomials(If((), (), test)))
            yield from self.all_integers(node_polys(node))

    def numbers(self, value: Scalar) -> Iterator[Atom | Scalar]:
        """The outermost calls with a division, and the integers of what is none."""
        match value:
            case Call(arguments=arguments):
                if self.is_number(value):
                    yield value
                    return
                for argument in arguments:
                    yield from self.numbers(argument)
            case Choose(test=test, then=then, otherwise=otherwise):
                yield from self.all_integers(polynomials(If((), (), test)))
                yield from self.numbers(then)
                yield from self.numbers(otherwise)
            case Integer(value=number):
                yield from self.integers(number)
            case Load(indices=indices):
                yield from self.all_integers(indices)
            case Number() | Argument() | Result():
                pass
            case unexpected:
                assert_never(unexpected)

    def is_number(self, value: Scalar) -> bool:
        """Whether a call is to be in a table: it has a function or a division in it."""
        parts = list(parts_of(value))
        integers = [each.value for each in parts if isinstance(each, Integer)]
        calls = [each for each in parts if isinstance(each, Call)]
        return (
            all(isinstance(each, Call | Integer | Number | Argument) for each in parts)
            and all(self.is_known(number) for number in integers)
            and any(self.lane in number.symbols for number in integers)
            and any(PRIMITIVES[each.primitive].needs_float for each in calls)
        )

    def is_known(self, value: Poly) -> bool:
        """Whether an integer is the same in every row."""
        kinds = {atom.kind for atom in value.all_atoms()}
        return value.symbols <= self.known and kinds <= _COMPUTED

    def all_integers(self, values: Iterable[Poly]) -> Iterator[Atom]:
        for value in values:
            yield from self.integers(value)

    def integers(self, value: Poly) -> Iterator[Atom]:
        """The outermost atoms with a division."""
        for atom in value.atoms():
            if self.lane not in atom.symbols or atom.kind is Kind.SYMBOL:
                continue
            if not self.is_known(of_atom(atom)):
                yield from self.all_integers(atom.args)
            elif any(self.is_division(each) for each in of_atom(atom).all_atoms()):
                yield atom

    def is_division(self, atom: Atom) -> bool:
        """Whether lanes differ in a division that is more than a shift."""
        if atom.kind is not Kind.FLOOR_DIV or self.lane not in atom.symbols:
            return False
        divisor = atom.args[1]
        return not (divisor.is_constant and divisor.constant.bit_count() == 1)


def parts_of(value: Scalar) -> Iterator[Scalar]:
    """A number and all that calls in it are given."""
    yield value
    if isinstance(value, Call):
        for argument in value.arguments:
            yield from parts_of(argument)
