"""Where an expression stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly
from opgen.ir.notation import Expr
from opgen.lang import syntax
from opgen.lang.environment import Environment, Place


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: the op's names, and the iterators in scope with their extents."""

    environment: Environment
    iterators: Mapping[str, Poly] = field(default_factory=dict)
    guards: tuple[Condition, ...] = ()
    guard: bool = False  # inside a condition: only the words of a message depend on it
    place: Place = Place.BODY  # of the divisors in it
    # The notation of a reduction inside a value: lowering turns it into a temporary.
    reduce: Callable[[syntax.Reduction, Scope], Expr] | None = None

    def inside(self, iterators: Mapping[str, Poly]) -> Scope:
        """The scope of a reduction's body."""
        return replace(self, iterators={**self.iterators, **iterators})

    def guarded(self, guards: tuple[Condition, ...]) -> Scope:
        """The scope under further guards."""
        return replace(self, guards=(*self.guards, *guards))
