"""Records mean what frozen dataclasses with slots do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from opgen.runtime.record import record, replaced


@record
class Point:
    """Two numbers and a label."""

    x: int
    y: float = 2.0
    labels: tuple[str, ...] = field(default_factory=tuple)

    @property
    def sum(self) -> float:
        """Of the numbers."""
        return self.x + self.y


@record
class Single:
    """One value only."""

    value: Any


@record
class Other:
    """Has the fields of `Single`, and is none."""

    value: Any


@dataclass(frozen=True, slots=True)
class Usual:
    """What `Point` is compared with."""

    x: int
    y: float = 2.0
    labels: tuple[str, ...] = field(default_factory=tuple)


ARGUMENTS = ((1,), (1, 2.5), (1, 2.0, ("a",)), (2, 2.0, ()))


@pytest.mark.parametrize("one", ARGUMENTS)
@pytest.mark.parametrize("other", ARGUMENTS)
def test_what_is_equal_and_how_it_prints(one: Any, other: Any) -> None:
    records, usual = (Point(*one), Point(*other)), (Usual(*one), Usual(*other))
    assert (records[0] == records[1]) == (usual[0] == usual[1])
    assert len(set(records)) == len(set(usual))
    assert repr(records[0]) == repr(usual[0]).replace("Usual", "Point")


def test_records_of_different_classes_are_never_equal() -> None:
    assert Single(1) == Single(1) != Other(1)
    assert Single(1) != 1 and Single((1, 2)) != (1, 2)


def test_a_value_is_equal_to_itself_as_in_tuples() -> None:
    same = float("nan")
    assert Single(same) == Single(same) != Single(float("nan"))
    assert Point(1, same) == Point(1, same)


def test_one_value_that_has_no_hash() -> None:
    assert Single([1]) == Single([1])
    with pytest.raises(TypeError, match="unhashable"):
        hash(Single([1]))


@pytest.mark.parametrize("change", [lambda p: setattr(p, "x", 3), lambda p: delattr(p, "x")])
def test_nothing_can_be_changed(change: Callable[[Point], None]) -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        change(point)
    assert point.x == 1


def test_no_field_can_be_added() -> None:
    assert not hasattr(Point(1), "__dict__")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_copies_are_equal(copied: Callable[[Point], Point]) -> None:
    point = Point(1, 3.0, ("a",))
    assert copied(point) == point


def test_one_field_is_replaced() -> None:
    assert replaced(Point(1, 3.0), x=2) == Point(2, 3.0)
    assert Point(1, 3.0).sum == 4.0
    with pytest.raises(TypeError, match="unexpected"):
        replaced(Point(1), z=2)
