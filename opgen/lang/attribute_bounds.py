"""Bounds of attributes that a proof needs and nobody stated, such as `where stride >= 1`.

An attribute may be negative, which is rarely meant. So where a claim fails for no attribute that is
at least 1, the claim is right and the bound is missing: that is what the message has to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import symbol
from opgen.errors import Edit
from opgen.ir.notation import AttributeType
from opgen.lang.environment import Environment
from opgen.lang.repairs import demanded

_BOUNDS: Final = (0, 1)  # the weaker one first: it refuses fewer calls
_MOST: Final = 8  # attributes tried


def above(names: list[str], least: int) -> tuple[Condition, ...]:
    """The conditions that each of these is at least so much."""
    return tuple(Condition(symbol(name) - least) for name in names)


def nonpositive(
    values: Mapping[str, int] | None, facts: Facts, environment: Environment
) -> list[str]:
    """The integer attributes that are below 1 in an example, or may be where there is none."""
    names = [
        name
        for attribute in environment.attributes.values()
        if attribute.type in (AttributeType.INT, AttributeType.SIZE)
        for name in attribute.symbols
    ]
    if values is None:
        return [name for name in names if facts.floors.get(name, 0) < 1]
    return [name for name in names if values.get(name, 1) < 1]


def missing_bound(
    values: Mapping[str, int] | None,
    facts: Facts,
    environment: Environment,
    proves: Callable[[tuple[Condition, ...]], bool],
) -> tuple[str, Edit | None] | None:
    """Words and an edit that bound attributes by a `where`; None if no bound proves the claim.

    `values` are those at which the claim fails, and `proves` whether it follows under conditions.
    """
    names = nonpositive(values, facts, environment)[:_MOST]
    groups = [[name] for name in names] + ([names] if len(names) > 1 else [])
    for group in groups:
        for least in _BOUNDS:
            fits = all(_default(name, environment, least) >= least for name in group)
            if fits and proves(above(group, least)):
                text = ", ".join(f"{name} >= {least}" for name in group)
                return f"state what every call meets, `where {text}`", demanded(text, environment)
    return None


def _default(name: str, environment: Environment, otherwise: int) -> int:
    """The default of an attribute or of an element of a tuple."""
    attribute = next(a for a in environment.attributes.values() if name in a.symbols)
    default = attribute.default
    if isinstance(default, tuple):
        return default[attribute.symbols.index(name)]
    return default if isinstance(default, int) else otherwise
