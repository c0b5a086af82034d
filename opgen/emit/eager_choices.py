"""Choices of which both sides are computed.

    y = test ? 0 : opgen_max_real(a, b) * c
    y = opgen_select_real(test, 0, opgen_max_real(a, b) * c)

A conditional expression computes one side, and where that is an extreme, which is two conditional
expressions itself, GCC 12 makes no vectors of a loop. With both sides before the choice it does:
the gradients of the overlaps of 512 by 512 boxes took 14.5 ms in place of 1.0 on one thread.

So it is with powers, which are many choices: the gradient of a mean of powers of the larger of two
numbers took 10 times as long. Other functions beside one are computed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, assert_never

from opgen.algebra.poly import Kind, Poly
from opgen.ir.loops import (
    All,
    Always,
    Any,
    Argument,
    Call,
    Choose,
    Either,
    Inside,
    Integer,
    Load,
    Nonzero,
    Number,
    Result,
    Scalar,
    Test,
)

_EXTREMES: Final = frozenset({"min", "max"})
_QUICK: Final = _EXTREMES | {
    *("add", "sub", "mul", "div", "neg", "abs", "sign", "relu"),
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"),
}
"""Primitives of a few instructions, none of which can fail. Integers are not divided by `div`."""

_POWERS: Final = frozenset({"pow"})
_FUNCTIONS: Final = _POWERS | {
    *("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "erf"),
    *("sigmoid", "silu", "gelu", "softplus"),
}
_BESIDE_POWERS: Final = _QUICK | _FUNCTIONS | {"sqrt", "rsqrt"}
"""Primitives that become vectors, none of which can fail."""


def is_eager(value: Choose, is_inside: Callable[[Load], bool]) -> bool:
    """Whether a choice is between values of which one has an extreme, and both are quick and may be
    computed whatever the test says; or of which one has a power, and both become vectors.

    A test that speaks of indices may be what keeps an element inside of its tensor, unless it
    `is_inside` anyway.
    """
    sides = (value.then, value.otherwise)
    if not isinstance(value.test, Nonzero):
        return False
    speaks = any(isinstance(each, Integer) for each in parts(value.test.value))
    loads = (each for side in sides for each in parts(side) if isinstance(each, Load))
    if speaks and not all(map(is_inside, loads)):
        return False
    if any(_has(side, _POWERS) for side in sides):
        return all(_is_safe(side, _BESIDE_POWERS) for side in sides)
    return any(_has(side, _EXTREMES) for side in sides) and all(map(_is_safe, sides))


def becomes_vectors(value: Scalar, is_inside: Callable[[Load], bool]) -> bool:
    """Whether a value has a function of the C library, and may be computed where it is not asked
    for, a vector at a time."""
    found = list(parts(value))
    return (
        any(isinstance(each, Call) and each.primitive in _FUNCTIONS for each in found)
        and all(is_inside(each) for each in found if isinstance(each, Load))
        and _is_safe(value, _BESIDE_POWERS)
    )


def parts(value: Scalar) -> Iterator[Scalar]:
    """A value and all that it is made of, tests aside."""
    yield value
    match value:
        case Call(arguments=arguments):
            for argument in arguments:
                yield from parts(argument)
        case Choose(then=then, otherwise=otherwise):
            yield from parts(then)
            yield from parts(otherwise)
        case _:
            return


def _is_safe(value: Scalar, known: frozenset[str] = _QUICK) -> bool:
    """Whether a value takes `known` primitives, and none may fail or read from elsewhere."""
    match value:
        case Number() | Argument() | Result():
            return True
        case Integer(value=number):
            return _is_plain(number)
        case Load(indices=indices):
            return all(map(_is_plain, indices))
        case Call(primitive=name, arguments=arguments):
            return name in known and all(_is_safe(each, known) for each in arguments)
        case Choose(test=test, then=then, otherwise=otherwise):
            sides = (then, otherwise)
            return _is_of_numbers(test) and all(_is_safe(each, known) for each in sides)
        case unexpected:
            assert_never(unexpected)


def _is_of_numbers(test: Test) -> bool:
    """Whether a test asks about values alone, not whether a cell is there."""
    match test:
        case Nonzero(value=value):
            return _is_safe(value)
        case Always():
            return True
        case All(tests=tests) | Any(tests=tests):
            return all(map(_is_of_numbers, tests))
        case Either(condition=condition, then=then, otherwise=otherwise):
            return all(map(_is_of_numbers, (condition, then, otherwise)))
        case Inside():
            return False
        case unexpected:
            assert_never(unexpected)


def _is_plain(value: Poly) -> bool:
    """Whether an integer reads nothing and divides by nothing."""
    return all(atom.kind in (Kind.SYMBOL, Kind.MIN, Kind.MAX) for atom in value.all_atoms())


def _has(value: Scalar, names: frozenset[str]) -> bool:
    """Whether one of these primitives is part of a value."""
    match value:
        case Call(primitive=name, arguments=arguments):
            return name in names or any(_has(each, names) for each in arguments)
        case Choose(then=then, otherwise=otherwise):
            return _has(then, names) or _has(otherwise, names)
        case _:
            return False
