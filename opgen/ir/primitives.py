"""The table of primitives: the mathematics and the spellings of every function, one row each.

A row says how a primitive is written in a spec and in C, what it computes, how it treats absent
arguments and what its partial derivatives are. Partials are built from rows of this table, so a
derivative of any order stays inside it. Adding a function to the language is adding a row, and one
to `runtime.eager.terms`, which cannot import this one.

Conventions at singular points are PyTorch's unless noted at the row: the derivative of `relu` and
`abs` at 0 is 0, `round` is half to even, `min` and `max` are NaN if an argument is NaN. On ties
`min` and `max` send the whole gradient to the first argument (PyTorch: half to each).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from opgen.ir import functions
from opgen.ir.build import ONE, ZERO, add, apply, div, literal, mask, mul, neg, power, select, sub
from opgen.ir.functions import Number
from opgen.ir.notation import Constant, Expr


# ---------------------------------------------------------------------------- what a row is
class Kind(Enum):
    """What the result of a primitive is."""

    NUMBER = "number"
    BOOLEAN = "boolean"  # 0 or 1


class Absence(Enum):
    """When a result is absent; an absent argument of a present result counts as the value 0."""

    ANY = "any"  # if any argument is
    ALL = "all"  # if all arguments are
    NUMERATOR = "numerator"  # if the first argument is
    PASS = "pass"  # if the only argument is
    BRANCH = "branch"  # if the chosen branch is; the other is not evaluated
    NEVER = "never"


class Precedence(IntEnum):
    """How tightly a form of the language binds; a function call is PRIMARY."""

    OR = 1
    AND = 2
    NOT = 3
    COMPARISON = 4  # chained in the language, so never nested without parentheses
    ADDITIVE = 5
    MULTIPLICATIVE = 6
    UNARY = 7
    POWER = 8  # right associative
    PRIMARY = 9


class Level(IntEnum):
    """How tightly a form of C binds."""

    ARGUMENT = 0  # a whole function argument: anything may stand here
    CONDITIONAL = 1
    OR = 2
    AND = 3
    EQUALITY = 4
    RELATIONAL = 5
    ADDITIVE = 6
    MULTIPLICATIVE = 7
    UNARY = 8
    PRIMARY = 9


INTEGER_TAG: Final = "i64"
"""The tag of the type of integers, see `opgen.emit.types`."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """A C form. `{0}`, `{1}`.. are arguments, `{t}` the tag of the type that it computes in.

    Functions have no suffix: what chooses the one for the type are overloads in CUDA, and macros in
    C, of which a new function needs one, see `MATHEMATICS` in `runtime.numbers_source`.
    `level` is that of the whole; argument i must be parenthesised if its level is below
    `arguments[i]`. `integer` is the form for integers if it differs.
    """

    text: str
    level: Level
    arguments: tuple[Level, ...]
    integer: str | None = None

    def render(self, tag: str, *arguments: str) -> str:
        """The text with arguments, which are parenthesised already where they need to be."""
        form = self.text if tag != INTEGER_TAG or self.integer is None else self.integer
        return form.format(*arguments, t=tag)


Function = Callable[..., Number]
Partials = Callable[..., tuple[Expr | None, ...]]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One row.

    `symbol` is the operator or function name in a spec. `needs_float` says that the result is not
    an integer even for integers; such a row has no spelling for integers. `helper` is the body of
    the small C function `opgen_NAME_TAG(a, b)` that the spelling calls, if it calls one. `partials`
    maps argument expressions to the derivative with respect to each argument; None stands for an
    argument through which no gradient passes, and in place of the function for a row without any.
    """

    name: str
    arity: int
    symbol: str
    precedence: Precedence
    c: Spelling
    cuda: Spelling
    function: Function
    partials: Partials | None
    absence: Absence = Absence.NEVER
    kind: Kind = Kind.NUMBER
    needs_float: bool = False
    helper: str | None = None

    @property
    def differentiable(self) -> bool:
        """Whether a gradient passes through it at all."""
        return self.partials is not None


# ---------------------------------------------------------------------------- longer partials
def _unless(*conditions: Expr) -> tuple[Expr, ...]:
    """For each condition 0 where it holds, 1 elsewhere."""
    return tuple(select(each, ZERO, ONE) for each in conditions)


def _partials_of_pow(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    # Both have a removable 0 * inf at a == 0: the first where b == 0, the second where b >= 0.
    at_zero = apply("eq", a, ZERO)
    by_exponent = mul(power(a, b), apply("log", a))
    exponent = literal(b)
    if exponent is None:
        settled = apply("and", at_zero, apply("ge", b, ZERO))
        flat = apply("and", at_zero, apply("eq", b, ZERO))
        by_base = mul(b, power(a, sub(b, ONE)))
        return select(flat, ZERO, by_base), select(settled, ZERO, by_exponent)
    by_base = mul(b, power(a, Constant(exponent - 1)))
    return by_base, select(at_zero, ZERO, by_exponent) if exponent >= 0 else by_exponent


def _partial_of_gelu(a: Expr) -> tuple[Expr]:
    root_half, root_two_pi = Constant(math.sqrt(0.5)), Constant(1 / math.sqrt(2 * math.pi))
    distribution = mul(Constant(0.5), add(ONE, apply("erf", mul(root_half, a))))
    density = mul(root_two_pi, apply("exp", mul(Constant(-0.5), mul(a, a))))
    return (add(distribution, mul(a, density)),)


def _partial_of_sigmoid(a: Expr) -> tuple[Expr]:
    sigmoid = apply("sigmoid", a)
    return (mul(sigmoid, sub(ONE, sigmoid)),)


def _partial_of_silu(a: Expr) -> tuple[Expr]:
    sigmoid = apply("sigmoid", a)
    return (mul(sigmoid, add(ONE, mul(a, sub(ONE, sigmoid)))),)


def _square(a: Expr) -> Expr:
    return mul(a, a)


def _cube(a: Expr) -> Expr:
    return mul(a, mul(a, a))


# ---------------------------------------------------------------------------- makers of rows
def _infix(
    name: str,
    symbol: str,
    precedence: Precedence,
    level: Level,
    function: Function,
    partials: Partials | None,
    absence: Absence = Absence.NEVER,
    kind: Kind = Kind.NUMBER,
    needs_float: bool = False,
    c_symbol: str | None = None,
) -> Primitive:
    """A binary operator, left associative in C."""
    c = Spelling(f"{{0}} {c_symbol or symbol} {{1}}", level, (level, Level(level + 1)))
    return Primitive(
        name, 2, symbol, precedence, c, c, function, partials, absence, kind, needs_float
    )


def _prefix(
    name: str,
    symbol: str,
    precedence: Precedence,
    c_symbol: str,
    function: Function,
    partials: Partials | None,
    absence: Absence = Absence.NEVER,
    kind: Kind = Kind.NUMBER,
) -> Primitive:
    """A unary operator. Its argument stands one level higher: - -x must not be printed as --x."""
    c = Spelling(f"{c_symbol}{{0}}", Level.UNARY, (Level.PRIMARY,))
    return Primitive(name, 1, symbol, precedence, c, c, function, partials, absence, kind)


def _comparison(name: str, symbol: str, level: Level, function: Function) -> Primitive:
    return _infix(name, symbol, Precedence.COMPARISON, level, function, None, kind=Kind.BOOLEAN)


def _call(name: str, arity: int = 1, integer: str | None = None) -> Spelling:
    arguments = ", ".join(f"{{{i}}}" for i in range(arity))
    return Spelling(f"{name}({arguments})", Level.PRIMARY, (Level.ARGUMENT,) * arity, integer)


def _library(
    name: str, function: Function, partials: Partials | None, c: Spelling | None = None
) -> Primitive:
    """A real function that exists under the same name in CUDA and, without `c`, in C."""
    cuda = _call(name)
    return Primitive(
        name, 1, name, Precedence.PRIMARY, c or cuda, cuda, function, partials, needs_float=True
    )


def _exact(name: str, c: Spelling, function: Function, partials: Partials | None) -> Primitive:
    """A unary function that maps integers to integers."""
    return Primitive(name, 1, name, Precedence.PRIMARY, c, c, function, partials)


def _helped(
    name: str,
    arity: int,
    function: Function,
    partials: Partials | None,
    helper: str,
    needs_float: bool = False,
) -> Primitive:
    """A function that C lacks: a call of a small helper, so that arguments are evaluated once."""
    c = _call(f"opgen_{name}_{{t}}", arity)
    return Primitive(
        name,
        arity,
        name,
        Precedence.PRIMARY,
        c,
        c,
        function,
        partials,
        needs_float=needs_float,
        helper=helper,
    )


_P = Precedence
_L = Level
_POW = _call("pow", 2)
_FABS = _call("fabs", integer="llabs({0})")
_RSQRT = Spelling("1 / sqrt({0})", Level.MULTIPLICATIVE, (Level.ARGUMENT,))
_SELECT = Spelling("{0} ? {1} : {2}", _L.CONDITIONAL, (_L.OR, _L.ARGUMENT, _L.CONDITIONAL))


def _select_row() -> Primitive:
    return Primitive(
        "select",
        3,
        "select",
        Precedence.PRIMARY,
        _SELECT,
        _SELECT,
        lambda condition, a, b: a if condition else b,
        lambda condition, a, b: (None, *mask(condition)),
        Absence.BRANCH,
    )


# ---------------------------------------------------------------------------- the table
# fmt: off
_ROWS: Final = (
    # ring and field
    _infix("add", "+", _P.ADDITIVE, _L.ADDITIVE, lambda a, b: a + b,
           lambda a, b: (ONE, ONE), Absence.ALL),
    _infix("sub", "-", _P.ADDITIVE, _L.ADDITIVE, lambda a, b: a - b,
           lambda a, b: (ONE, Constant(-1)), Absence.ALL),
    _infix("mul", "*", _P.MULTIPLICATIVE, _L.MULTIPLICATIVE, lambda a, b: a * b,
           lambda a, b: (b, a), Absence.ANY),
    # -(a / b) * (1 / b): a / b / b overflows for b below 1e-19, which no cotangent of 0 survives
    _infix("div", "/", _P.MULTIPLICATIVE, _L.MULTIPLICATIVE, functions.divide,
           lambda a, b: (div(ONE, b), mul(neg(div(a, b)), div(ONE, b))), Absence.NUMERATOR,
           needs_float=True),
    _prefix("neg", "-", _P.UNARY, "-", lambda a: -a, lambda a: (Constant(-1),), Absence.PASS),
    Primitive("pow", 2, "**", _P.POWER, _POW, _POW, functions.power, _partials_of_pow,
              needs_float=True),
    # truth
    _comparison("lt", "<", _L.RELATIONAL, lambda a, b: int(a < b)),
    _comparison("le", "<=", _L.RELATIONAL, lambda a, b: int(a <= b)),
    _comparison("gt", ">", _L.RELATIONAL, lambda a, b: int(a > b)),
    _comparison("ge", ">=", _L.RELATIONAL, lambda a, b: int(a >= b)),
    _comparison("eq", "==", _L.EQUALITY, lambda a, b: int(a == b)),
    _comparison("ne", "!=", _L.EQUALITY, lambda a, b: int(a != b)),
    _infix("and", "and", _P.AND, _L.AND, lambda a, b: int(bool(a) and bool(b)), None,
           kind=Kind.BOOLEAN, c_symbol="&&"),
    _infix("or", "or", _P.OR, _L.OR, lambda a, b: int(bool(a) or bool(b)), None,
           kind=Kind.BOOLEAN, c_symbol="||"),
    _prefix("not", "not", _P.NOT, "!", lambda a: int(not a), None, kind=Kind.BOOLEAN),
    _select_row(),
    # piecewise linear and piecewise constant; `a + b` is reached by NaN only
    # Not `select(a <= b, 1, 0)`: at NaN the gradient passes, to both.
    _helped("min", 2, functions.minimum, lambda a, b: _unless(apply("gt", a, b), apply("le", a, b)),
            "a <= b ? a : a > b ? b : a + b"),
    _helped("max", 2, functions.maximum, lambda a, b: _unless(apply("lt", a, b), apply("ge", a, b)),
            "a >= b ? a : a < b ? b : a + b"),
    _helped("relu", 1, functions.relu, lambda a: (select(apply("le", a, ZERO), ZERO, ONE),),
            "a < 0 ? 0 : a"),
    _exact("abs", _FABS, abs, lambda a: (apply("sign", a),)),
    _helped("sign", 1, functions.sign, None, "(a > 0) - (a < 0)"),
    _exact("floor", _call("floor", integer="({0})"), functions.whole(math.floor), None),
    _exact("ceil", _call("ceil", integer="({0})"), functions.whole(math.ceil), None),
    _exact("round", _call("rint", integer="({0})"), functions.whole(round), None),
    # smooth
    _library("exp", functions.exponential, lambda a: (apply("exp", a),)),
    _library("expm1", functions.real(math.expm1), lambda a: (apply("exp", a),)),
    _library("log", functions.real(math.log, pole=0), lambda a: (div(ONE, a),)),
    _library("log1p", functions.real(math.log1p, pole=-1), lambda a: (div(ONE, add(ONE, a)),)),
    _library("sqrt", functions.square_root, lambda a: (mul(Constant(0.5), apply("rsqrt", a)),)),
    _library("rsqrt", lambda a: functions.divide(1.0, functions.square_root(a)),
             lambda a: (mul(Constant(-0.5), _cube(apply("rsqrt", a))),), c=_RSQRT),
    _library("sin", functions.real(math.sin), lambda a: (apply("cos", a),)),
    _library("cos", functions.real(math.cos), lambda a: (neg(apply("sin", a)),)),
    _library("tan", functions.real(math.tan), lambda a: (add(ONE, _square(apply("tan", a))),)),
    _library("tanh", functions.real(math.tanh), lambda a: (sub(ONE, _square(apply("tanh", a))),)),
    _library("erf", functions.real(math.erf),
             lambda a: (mul(Constant(2 / math.sqrt(math.pi)), apply("exp", neg(_square(a)))),)),
    _helped("sigmoid", 1, functions.sigmoid, _partial_of_sigmoid,
            "1 / (1 + exp(-a))", needs_float=True),
    _helped("gelu", 1, functions.gelu, _partial_of_gelu,
            f"(real)0.5 * a * erfc((real){-math.sqrt(0.5)!r} * a)", needs_float=True),
    _helped("silu", 1, functions.silu, _partial_of_silu,
            "a / (1 + exp(-a))", needs_float=True),
    # The exact function; PyTorch's is the identity above its threshold of 20.
    _helped("softplus", 1, functions.softplus, lambda a: (apply("sigmoid", a),),
            "(a < 0 ? 0 : a) + log1p(exp(-fabs(a)))", needs_float=True),
)
# fmt: on

PRIMITIVES: Final = {row.name: row for row in _ROWS}
"""Every primitive by name, in the order of the table."""

VECTOR_OPERATORS: Final = frozenset({"add", "sub", "mul", "div", "neg"})
"""Primitives that GNU C spells for vectors as for numbers."""
