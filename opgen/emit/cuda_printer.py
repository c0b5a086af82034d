"""Expressions of CUDA kernels: indices of 32 or 64 bits, and conditions that a lane decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Kind, Poly, symbol, symbol_atom
from opgen.emit.cuda_quotients import Divisors, Quotient
from opgen.emit.cuda_runs import Access
from opgen.emit.expression import Printer, type_name
from opgen.emit.polynomial import Text
from opgen.ir import loops
from opgen.ir.loops import Operand
from opgen.ir.primitives import Level

INDEX = "index_t"
"""The type of indices: 32 bits where a launch proves that these are enough, else 64."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Values of an axis that are one thread's: `first + lane`, for `count` lanes from 0 on.

    The count is a macro, LANES or ROWS.
    """

    name: str
    extent: Poly
    lane: str
    count: str

    def hint(self, value: Poly) -> str | None:
        """A condition on the lane alone under which `value >= 0` for sure; None if there is none.

        Once a loop over lanes is written out it is a constant. From `0 <= first` and
        `first + LANES <= extent`:

            a*cell + c >= 0     if a*lane + c >= 0
            r - b*cell >= 0     if b*(lane - LANES + 1) <= r - b*(extent - 1)
        """
        found = self._linear(value)
        if found is None:
            return None
        factor, known = found
        if factor > 0:
            return f"{'' if factor == 1 else f'{factor} * '}{self.lane} >= {-known}"
        if factor == -1:
            return f"{self.lane} < {times(1, self.count, known)}"
        return f"{-factor} * ({self.lane} - {self.count} + 1) <= {known}"

    def ends(self, value: Poly) -> tuple[int, int] | None:
        """How many lanes at the beginning and at the end do not decide `value >= 0`, by `hint`."""
        found = self._linear(value)
        if found is None:
            return None
        factor, known = found
        undecided = max(0, -(known // abs(factor)))
        return (undecided, 0) if factor > 0 else (0, undecided)

    def lane_of_end(self, value: Poly) -> str | None:
        """The lane of the first cell, or the last one, if `value == 0` for that cell alone."""
        if value in (symbol(self.name), -symbol(self.name)):
            return "0"
        last = self.extent - 1 - symbol(self.name)
        return f"{self.count} - 1" if value in (last, -last) else None

    def _linear(self, value: Poly) -> tuple[int, int] | None:
        """The factor of the axis, and the value at its first cell, or its last if that is less."""
        linear = value.linear_in(symbol_atom(self.name))
        if linear is None or not linear[0].is_constant or self.name in linear[1].symbols:
            return None
        factor, rest = linear[0].constant, linear[1]
        least = rest if factor > 0 else rest + factor * (self.extent - 1)
        return (factor, least.constant) if factor != 0 and least.is_constant else None


@dataclass(frozen=True)
class CudaPrinter(Printer):
    """Prints expressions of a CUDA kernel; `wide` are the integers that may need 64 bits.

    `registers` says where the elements of runs are kept, `divisors` which functions divide terms.
    """

    wide: set[str] = field(default_factory=set)
    stretches: tuple[Stretch, ...] = ()
    registers: dict[Access, str] = field(default_factory=dict)
    divisors: Divisors = field(default_factory=dict)

    def scalar(self, value: loops.Scalar) -> Text:
        """A number. Integers are computed with in 64 bits, wherever they come from."""
        match value:
            case loops.Integer(value=number) if not number.is_constant:
                return Text(f"(int64_t){super().scalar(value).at(Level.UNARY)}", Level.UNARY)
            case Quotient(arguments=arguments, function=function):
                parts = ", ".join(self.scalar(each).text for each in arguments)
                return Text(f"{function}({parts})")
            case _:
                return super().scalar(value)

    def is_wide(self, value: Poly) -> bool:
        """Whether an integer was read from memory, where it may be anything."""
        return not self.wide.isdisjoint(value.symbols) or any(
            atom.kind is Kind.LOAD for atom in value.all_atoms()
        )

    def cell(self, name: str, indices: Sequence[Poly]) -> str:
        """The stored element at an index, as an lvalue."""
        return self.registers.get((name, tuple(indices))) or super().cell(name, indices)

    def condition(self, condition: Condition) -> Text:
        """A comparison, which costs nothing for the cells for which it holds anyway."""
        text = super().condition(condition)
        match condition.relation:
            case Relation.GE:
                return self._hinted(condition.value, text)
            case Relation.EQ:
                return self._at_end(condition.value, text)
            case _:
                return text

    def inside(self, index: Poly, extent: Poly) -> Text:
        """Whether an index is inside of its dim."""
        if not any(stretch.name in index.symbols for stretch in self.stretches):
            return super().inside(index, extent)
        both = [self.condition(Condition(value)) for value in (index, extent - 1 - index)]
        return Text(" && ".join(each.at(Level.EQUALITY) for each in both), Level.AND)

    def copied(self, value: loops.Scalar, target: Operand) -> str | None:
        """What is stored in a tensor where it is an element of the same type, or 0; else None."""
        match value:
            case loops.Load(tensor=name, indices=indices):
                found = self._tensor(name)
                if isinstance(found, Operand) and type_name(found) == type_name(target):
                    return self.cell(name, indices)
                if isinstance(found, Operand) and found.unrounded and type_name(target) == "T":
                    return f"to_T({self.cell(name, indices)})"
            case loops.Choose(test=test, then=then, otherwise=loops.Number(value=0)):
                element = self.copied(then, target)
                if element is not None:
                    zero = self.stored(target, Text("0"))
                    return f"{self.test(test).at(Level.OR)} ? {element} : {zero}"
            case _:
                pass
        return None

    def _at_end(self, value: Poly, text: Text) -> Text:
        """A comparison that holds for one cell of the row, which is that of a certain lane."""
        for stretch in self.stretches:
            lane = stretch.lane_of_end(value)
            if lane is not None:
                return Text(f"{stretch.lane} == {lane} && {text.at(Level.EQUALITY)}", Level.AND)
        return text

    def _hinted(self, value: Poly, text: Text) -> Text:
        for stretch in self.stretches:
            hint = stretch.hint(value)
            if hint is not None:
                return Text(f"{hint} || {text.at(Level.AND)}", Level.OR)
        return text


def times(step: int, count: str, more: int) -> str:
    """A multiple of a variable, and a few more."""
    return plus(count if step == 1 else f"{step} * {count}", more)


def plus(text: str, more: int) -> str:
    """A sum with a constant."""
    return text if more == 0 else f"{text} {'-' if more < 0 else '+'} {abs(more)}"
