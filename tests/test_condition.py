"""Conditions of which some are decided."""

from __future__ import annotations

import pytest

from opgen.algebra.condition import Condition, Relation, undecided
from opgen.algebra.poly import poly, symbol

H = symbol("h")


@pytest.mark.parametrize(
    ("constant", "relation", "is_true"),
    [
        (0, Relation.GE, True),
        (-1, Relation.GE, False),
        (0, Relation.EQ, True),
        (1, Relation.EQ, False),
        (1, Relation.NE, True),
        (0, Relation.NE, False),
    ],
)
def test_conditions_on_constants_are_decided(
    constant: int, relation: Relation, is_true: bool
) -> None:
    open_ = (Condition(H), Condition(H - 3, Relation.NE))
    decided = Condition(poly(constant), relation)
    expected = open_ if is_true else None
    assert undecided((open_[0], decided, open_[1])) == expected


def test_no_conditions_leave_none_open() -> None:
    assert undecided(()) == ()
