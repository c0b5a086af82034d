"""Frozen dataclasses that are quick to make.

Importing a module makes 40 classes, which was two fifths of the time it takes. `dataclasses` writes
and compiles the source of six functions for each, a tenth of a millisecond for every function.
What need not differ from class to class is defined once here, and means the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, cast, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(kind: type[T]) -> type[T]:
    """`dataclass(frozen=True, slots=True)`; objects are equal if they are of one class and all
    their fields are.
    """
    made: Any = dataclasses.dataclass(slots=True, repr=False, eq=False)(kind)
    made.__setattr__, made.__delattr__ = _set_once, _keep
    names = [each.name for each in dataclasses.fields(made)]
    assert names, "there is nothing to compare"
    values = attrgetter(*(names if len(names) > 1 else 2 * names))  # a tuple also of one
    made.__eq__, made.__hash__, made.__repr__ = _equality(values), _hash(values), _repr
    return cast(type[T], made)


def replaced(before: T, **changes: Any) -> T:
    """`dataclasses.replace` of a record."""
    return cast(T, dataclasses.replace(cast(Any, before), **changes))


def _set_once(self: object, name: str, value: object) -> None:
    """What is set by `__init__`, or `copy` and `pickle`, is never set again."""
    if hasattr(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _keep(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r} of {type(self).__name__}")


def _equality(values: Callable[[object], Any]) -> Callable[[object, object], Any]:
    def equals(self: object, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equals


def _hash(values: Callable[[object], Any]) -> Callable[[Any], int]:
    def hashed(self: Any) -> int:
        return hash(values(self))

    return hashed


def _repr(self: Any) -> str:
    fields = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self))
    return f"{self.__class__.__qualname__}({', '.join(fields)})"
