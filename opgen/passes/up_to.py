"""Sums of all terms up to a cell, or from it on, as statements."""

from __future__ import annotations

from dataclasses import dataclass

from opgen.algebra.condition import Condition, Relation
from opgen.ir.indices import extents_of
from opgen.ir.notation import Apply, Expr, Iterator, Statement
from opgen.ir.primitives import PRIMITIVES
from opgen.ir.walk import nodes, symbols_of


@dataclass(frozen=True, slots=True)
class UpTo:
    """The guard `moving <= cell + ...` of a statement, or `>=` where it is no prefix.

    `cell` is an iterator of the target, `moving` one that goes through terms.
    """

    guard: Condition
    cell: str
    moving: Iterator
    is_prefix: bool


def up_to(statement: Statement) -> UpTo | None:
    """The only guard of a statement, if it is of that form."""
    found = each_up_to(statement)
    return found[0] if len(found) == 1 else None


def each_up_to(statement: Statement) -> tuple[UpTo, ...]:
    """All guards of a statement, if they are of that form, each of iterators of its own."""
    fixed = frozenset(symbols_of(index.value for index in statement.target.indices))
    found = tuple(_of_guard(each, statement, fixed) for each in statement.guards)
    known = tuple(each for each in found if each is not None)
    names = [name for each in known for name in (each.cell, each.moving.name)]
    return known if known == found and len({*names}) == len(names) else ()


def has_functions(value: Expr) -> bool:
    """Whether a value takes longer than to join it to a total: apart from that it is vectors."""
    applied = (node for node in nodes(value) if isinstance(node, Apply))
    return any(PRIMITIVES[each.primitive].needs_float for each in applied)


def _of_guard(guard: Condition, statement: Statement, fixed: frozenset[str]) -> UpTo | None:
    bound = guard.value.symbols & extents_of(statement.iterators).keys()
    moving = [each for each in statement.iterators if each.name in bound - fixed]
    cells = sorted(bound & fixed)
    if guard.relation is not Relation.GE or len(moving) != 1 or len(cells) != 1:
        return None
    step = guard.value.step_in(moving[0].name)
    if step not in (1, -1) or guard.value.step_in(cells[0]) != -step:
        return None
    return UpTo(guard, cells[0], moving[0], step == -1)
