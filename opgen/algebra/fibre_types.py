"""What the fibre solver takes and gives; see `opgen.algebra.fibre`."""

from __future__ import annotations

from dataclasses import dataclass

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, symbol


@dataclass(frozen=True, slots=True)
class TargetIndex:
    """One index of the target access.

    Cell u receives the points where `value` is u, or, with `clamp`, where `value` clamped to
    `[0, extent)` is u. Points whose value lies outside the extent reach no cell. `coordinate`
    replaces the bare coordinate symbol where u is known in another form, as `stride*U + phase`.
    """

    value: Poly
    extent: Poly
    clamp: bool = False
    coordinate: Poly | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A relation between the points of a box and the cells of a tensor.

    Iterators run over `[0, extent)` and are given in their order of iteration; extents depend on
    sizes and attributes only. `coordinates` names the cell, one symbol per target index.
    `reserved` are names that the solver must not invent, `sizes` those of the sizes of tensors;
    they only tell what is likely to be long (see `fibre_ranks`).
    """

    iterators: tuple[tuple[str, Poly], ...]
    guards: tuple[Condition, ...]
    target: tuple[TargetIndex, ...]
    coordinates: tuple[str, ...]
    reserved: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()

    @property
    def nonempty(self) -> tuple[Poly, ...]:
        """The extents that have to be at least 1, without those that plainly are."""
        extents = dict.fromkeys(extent for _, extent in self.iterators)
        return tuple(e for e in extents if not (e.is_constant and e.constant >= 1))

    @property
    def cells(self) -> tuple[Poly, ...]:
        """The coordinates of the cell, as polynomials."""
        return tuple(
            symbol(name) if index.coordinate is None else index.coordinate
            for name, index in zip(self.coordinates, self.target, strict=True)
        )

    @property
    def outer_symbols(self) -> frozenset[str]:
        """Every symbol in it that is no iterator: sizes, attributes and coordinates."""
        values = [extent for _, extent in self.iterators]
        values += [guard.value for guard in self.guards]
        values += [value for index in self.target for value in (index.value, index.extent)]
        values += self.cells
        used = frozenset[str]().union(*(value.symbols for value in values))
        return used.union(self.coordinates) - {name for name, _ in self.iterators}


@dataclass(frozen=True, slots=True)
class Definition:
    """`name = value`."""

    name: str
    value: Poly


@dataclass(frozen=True, slots=True)
class Loop:
    """`for name in max(lower) .. min(upper)`, both ends inclusive.

    `enumerated`: the solver found no inverse here and tries every value.
    """

    name: str
    lower: tuple[Poly, ...]
    upper: tuple[Poly, ...]
    enumerated: bool = False


Step = Definition | Loop | Condition


@dataclass(frozen=True, slots=True)
class Fibre:
    """The points of a relation that reach one cell, as a loop nest.

    `steps` are in nesting order: a definition or loop may use the names of everything before it,
    and a condition that fails cuts off everything after it at its loop level. `host` depends on
    sizes and attributes only. Where an extent in `nonempty` is below 1 there are no points and
    neither host nor steps may be evaluated. `solution` gives every iterator at the innermost level.
    `ordered`: the points are known to come in the order of iteration of the problem. `rules` tells
    how the fibre was derived, `fallback` why it was not.
    """

    coordinates: tuple[str, ...]
    nonempty: tuple[Poly, ...]
    host: tuple[Definition, ...]
    steps: tuple[Step, ...]
    solution: tuple[tuple[str, Poly], ...]
    rules: tuple[str, ...]
    ordered: bool = False
    fallback: str | None = None

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops, outermost first."""
        return tuple(step for step in self.steps if isinstance(step, Loop))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions, outermost first."""
        return tuple(step for step in self.steps if isinstance(step, Condition))

    @property
    def is_injective(self) -> bool:
        """Whether at most one point reaches each cell."""
        return not self.loops

    @property
    def is_bijective(self) -> bool:
        """Whether exactly one point reaches each cell."""
        return not self.loops and not self.conditions

    @property
    def is_enumerated(self) -> bool:
        """Whether some loop tries values blindly."""
        return any(loop.enumerated for loop in self.loops)

    def __str__(self) -> str:
        lines = [f"host {item.name} = {item.value}" for item in self.host]
        indent = ""
        for step in self.steps:
            match step:
                case Definition(name, value):
                    lines.append(f"{indent}{name} = {value}")
                case Loop(name, lower, upper, enumerated):
                    low = str(lower[0]) if len(lower) == 1 else f"max({', '.join(map(str, lower))})"
                    high = (
                        str(upper[0]) if len(upper) == 1 else f"min({', '.join(map(str, upper))})"
                    )
                    note = "  # every value" if enumerated else ""
                    lines.append(f"{indent}for {name} in {low} .. {high}{note}")
                    indent += "  "
                case Condition():
                    lines.append(f"{indent}if {step}")
        lines.append(indent + ", ".join(f"{name} = {value}" for name, value in self.solution))
        return "\n".join(lines)
