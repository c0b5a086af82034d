"""What the primitives compute, on Python numbers.

Python raises where IEEE arithmetic gives infinity or NaN; these functions give IEEE's result for
floats, and are exact on integers and fractions wherever the result is rational.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

Number = int | float | Fraction
"""What a primitive computes with; truth values are the integers 0 and 1."""

Unary = Callable[[Number], Number]


def divide(a: Number, b: Number) -> Number:
    """a / b; exact, and without a value at b == 0, if either is a fraction."""
    if b != 0 or isinstance(a, Fraction) or isinstance(b, Fraction):
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1, b)


def power(a: Number, b: Number) -> Number:
    """a ** b; exact if a is rational and b a whole number."""
    if not isinstance(a, float) and math.isfinite(b) and b == math.floor(b):
        whole_exponent = math.floor(b)
        if isinstance(a, Fraction) or whole_exponent < 0:
            return Fraction(a) ** whole_exponent
        return int(a**whole_exponent)
    base, exponent = float(a), float(b)
    try:
        return math.pow(base, exponent)
    except OverflowError:
        negative = base < 0 and exponent % 2 != 0
    except ValueError:
        if base != 0:
            return math.nan  # negative base, broken exponent
        # A pole; C17 F.10.4.4: the sign of zero survives exactly for odd exponents.
        negative = math.copysign(1, base) < 0 and exponent % 2 == 1
    return -math.inf if negative else math.inf


def real(function: Callable[[float], float], pole: float | None = None) -> Unary:
    """A function of the C library: overflow is inf, the pole is -inf, outside its domain is NaN."""

    def total(a: Number) -> float:
        try:
            return function(float(a))
        except OverflowError:
            return math.inf
        except ValueError:
            return -math.inf if a == pole else math.nan

    return total


exponential: Final = real(math.exp)
square_root: Final = real(math.sqrt)


def whole(function: Callable[[Number], int]) -> Unary:
    """A function that rounds to integers; floats stay floats and keep the sign of zero."""

    def total(a: Number) -> Number:
        if not isinstance(a, float):
            return function(a)
        return math.copysign(function(a), a) if math.isfinite(a) else a

    return total


def minimum(a: Number, b: Number) -> Number:
    """The smaller; the first on ties; NaN if either is."""
    return a if a <= b or a != a else b


def maximum(a: Number, b: Number) -> Number:
    """The greater; the first on ties; NaN if either is."""
    return a if a >= b or a != a else b


def sign(a: Number) -> Number:
    """-1, 0 or 1 in the type of a; 0 for NaN."""
    return type(a)((a > 0) - (a < 0))


def relu(a: Number) -> Number:
    """a where it is not negative, else 0."""
    return type(a)(0) if a < 0 else a


def sigmoid(a: Number) -> Number:
    """1 / (1 + exp(-a))."""
    return divide(1.0, 1.0 + exponential(-a))


def gelu(a: Number) -> Number:
    """a times the standard normal distribution function."""
    return 0.5 * a * (1.0 + math.erf(math.sqrt(0.5) * a))


def silu(a: Number) -> Number:
    """a * sigmoid(a)."""
    return divide(float(a), 1.0 + exponential(-a))


def softplus(a: Number) -> Number:
    """log(1 + exp(a)) without overflow."""
    return maximum(float(a), 0.0) + math.log1p(exponential(-abs(float(a))))
