"""Conditions on integer polynomials: the guards, launch checks and facts of everything above."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from opgen.algebra.poly import Poly


class Relation(Enum):
    """Relation of a polynomial to zero."""

    GE = ">="
    EQ = "=="
    NE = "!="


@dataclass(frozen=True, slots=True)
class Condition:
    """`value relation 0`."""

    value: Poly
    relation: Relation = Relation.GE

    def __str__(self) -> str:
        return f"{self.value} {self.relation.value} 0"

    def substitute(self, values: Mapping[str, Poly]) -> Condition:
        """The condition with symbols replaced."""
        return Condition(self.value.substitute(values), self.relation)

    def holds(
        self,
        values: Mapping[str, int],
        load: Callable[[str, tuple[int, ...]], int] | None = None,
    ) -> bool:
        """Whether it is true at these values."""
        number = self.value.evaluate(values, load)
        match self.relation:
            case Relation.GE:
                return number >= 0
            case Relation.EQ:
                return number == 0
            case Relation.NE:
                return number != 0
            case unexpected:
                assert_never(unexpected)


def undecided(conditions: Iterable[Condition]) -> tuple[Condition, ...] | None:
    """Those that depend on symbols; None where one of the others is false."""
    given = tuple(conditions)
    if not all(each.holds({}) for each in given if each.value.is_constant):
        return None
    return tuple(each for each in given if not each.value.is_constant)
