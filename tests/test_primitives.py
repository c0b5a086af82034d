"""The primitive table: functions and derivatives against PyTorch, spellings against the functions.

The torch functions below are named independently of the table; the chain rule that composes
partials to higher derivatives is written out here.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from opgen.emit.source import helper_lines
from opgen.emit.types import Type
from opgen.ir import build
from opgen.ir.notation import Access, Apply, Constant, Expr, Read
from opgen.ir.primitives import PRIMITIVES, Absence, Kind, Level, Precedence, Primitive
from opgen.runtime import prelude

TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.true_divide,
    "neg": torch.neg,
    "pow": torch.pow,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "select": lambda c, a, b: torch.where(c.bool(), a, b),
    "min": torch.minimum,
    "max": torch.maximum,
    "relu": torch.relu,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "softplus": lambda a: torch.logaddexp(a, torch.zeros_like(a)),
}
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.0, 800.0, -800.0)
ROWS = list(PRIMITIVES.values())
SMOOTH = [row for row in ROWS if row.differentiable]


def points(arity: int, seed: int) -> list[tuple[float, ...]]:
    numbers = random.Random(seed)
    special = itertools.product(SPECIAL, repeat=arity) if arity < 3 else ()
    return [
        *special,
        *(tuple(numbers.uniform(-3, 3) for _ in range(arity)) for _ in range(40)),
    ]


def torch_value(name: str, point: Sequence[float]) -> float:
    arguments = [torch.tensor(number, dtype=torch.float64) for number in point]
    return float(TORCH[name](*arguments))


def same(actual: float, expected: float, tolerance: float = 1e-13) -> bool:
    if math.isnan(expected):
        return math.isnan(actual)
    return actual == expected or math.isclose(
        actual, expected, rel_tol=tolerance, abs_tol=tolerance
    )


def test_every_row_has_an_independent_reference() -> None:
    assert list(TORCH) == list(PRIMITIVES)


# ---------------------------------------------------------------------------- functions
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_function_is_that_of_torch(row) -> None:
    for point in points(row.arity, seed=1):
        actual, expected = row.function(*point), torch_value(row.name, point)
        assert same(actual, expected), (row.name, point, actual, expected)


@pytest.mark.parametrize("name", ["neg", "ceil", "floor", "round", "mul", "div", "sqrt", "tan"])
def test_sign_of_zero_is_that_of_torch(name: str) -> None:
    row = PRIMITIVES[name]
    for point in points(row.arity, seed=2):
        actual, expected = row.function(*point), torch_value(name, point)
        if expected == 0:
            assert math.copysign(1, actual) == math.copysign(1, expected), point


def test_pow_keeps_the_signs_of_the_c_library() -> None:
    values = (0.0, -0.0, 2.0, -2.0, 1e200, -1e200, 1e-200, -1e-200, math.inf, -math.inf)
    for base, exponent in itertools.product(values, (-3.0, -2.0, -0.5, 0.0, 0.5, 2.0, 3.0)):
        actual, expected = (
            PRIMITIVES["pow"].function(base, exponent),
            torch_value("pow", (base, exponent)),
        )
        assert same(actual, expected), (base, exponent, actual, expected)
        if expected == expected:
            assert math.copysign(1, actual) == math.copysign(1, expected), (base, exponent)


EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "min": min,
    "max": max,
    "relu": lambda a: max(a, 0),
    "abs": lambda a: a if a > 0 else -a,
    "sign": lambda a: 1 if a > 0 else -1 if a < 0 else 0,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "select": lambda c, a, b: a if c != 0 else b,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_on_integers_and_fractions(name: str) -> None:
    row = PRIMITIVES[name]
    integers = (0, 1, -1, 5, 2**53 + 1, -(2**53) - 1)  # beyond what a double holds
    fractions = (Fraction(0), Fraction(1, 3), Fraction(-7, 2), Fraction(5, 2), Fraction(10**20, 3))
    for numbers in (integers, fractions):
        for point in itertools.product(numbers, repeat=row.arity):
            actual = row.function(*point)
            assert not isinstance(actual, float), (name, point)
            assert actual == EXACT[name](*point), (name, point)


def test_quotients_and_whole_powers_of_fractions_are_exact() -> None:
    assert PRIMITIVES["div"].function(Fraction(1), Fraction(3)) == Fraction(1, 3)
    assert PRIMITIVES["pow"].function(Fraction(2, 3), Fraction(-3)) == Fraction(27, 8)
    assert PRIMITIVES["pow"].function(3, 40) == 3**40
    with pytest.raises(ZeroDivisionError):
        PRIMITIVES["div"].function(Fraction(1), Fraction(0))


# ---------------------------------------------------------------------------- derivatives
def argument(position: int) -> Read:
    return Read(Access(f"x{position}", ()))


def value_of(expr: Expr, point: Sequence[float]) -> float:
    match expr:
        case Constant(value=number):
            return float(number)
        case Read(access=access):
            return point[int(access.tensor[1:])]
        case Apply(primitive="select", arguments=(condition, a, b)):
            return value_of(a if value_of(condition, point) else b, point)
        case Apply(primitive=name, arguments=arguments):
            return float(PRIMITIVES[name].function(*(value_of(a, point) for a in arguments)))
        case _:
            raise AssertionError(expr)


def chain(inner: Expr, partial: Expr) -> Expr:
    """The product; a 0/1 mask selects instead, so that 0 * NaN does not spread."""
    match partial:
        case Apply(primitive="select", arguments=(condition, Constant(0), Constant(1))):
            return build.select(condition, build.ZERO, inner)
        case Apply(primitive="select", arguments=(condition, Constant(1), Constant(0))):
            return build.select(condition, inner, build.ZERO)
        case _:
            return build.mul(inner, partial)


def derivative(expr: Expr, position: int) -> Expr:
    """The chain rule, written out over the partials of the table."""
    match expr:
        case Read() if expr == argument(position):
            return build.ONE
        case Apply(primitive=name, arguments=arguments):
            partials = PRIMITIVES[name].partials
            total: Expr = build.ZERO
            for inner, partial in zip(
                arguments, partials(*arguments) if partials else (), strict=False
            ):
                if partial is not None:
                    total = build.add(total, chain(derivative(inner, position), partial))
            return total
        case _:
            return build.ZERO


def torch_derivative(name: str, point: Sequence[float], positions: Sequence[int]) -> float:
    arguments = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in point]
    result = TORCH[name](*arguments)
    for position in positions:
        if not result.requires_grad:
            return 0.0
        (result,) = torch.autograd.grad(
            result, arguments[position], create_graph=True, materialize_grads=True
        )
    return float(result.detach())


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.name)
def test_partials_of_every_order_are_those_of_autograd(row, order: int) -> None:
    numbers = random.Random(order)
    expression = Apply(row.name, tuple(argument(i) for i in range(row.arity)))
    for positions in itertools.combinations_with_replacement(range(row.arity), order):
        partial: Expr = expression
        for position in positions:
            partial = derivative(partial, position)
        for _ in range(10):
            point = tuple(numbers.uniform(-2.5, 2.5) for _ in range(row.arity))
            actual = value_of(partial, point)
            expected = torch_derivative(row.name, point, positions)
            assert same(actual, expected, 1e-9), (row.name, positions, point, actual, expected)


def test_a_wrong_partial_is_noticed() -> None:
    expression = Apply("tanh", (argument(0),))
    wrong = build.sub(build.ONE, expression)
    assert not same(value_of(wrong, (0.7,)), torch_derivative("tanh", (0.7,), (0,)), 1e-9)


@pytest.mark.parametrize("name", ["relu", "abs", "sqrt", "rsqrt", "log", "log1p", "sigmoid"])
def test_partials_at_singular_points_are_those_of_autograd(name: str) -> None:
    partial = derivative(Apply(name, (argument(0),)), 0)
    for number in (0.0, -0.0, math.inf, -math.inf, math.nan, -1.0):
        actual, expected = value_of(partial, (number,)), torch_derivative(name, (number,), (0,))
        if name == "sigmoid" and math.isinf(number):
            assert actual == 0  # the same; torch agrees, and a naive e/(1+e)^2 would be NaN
        assert same(actual, expected), (name, number, actual, expected)


def test_derivatives_of_pow_at_base_zero_are_the_limits() -> None:
    """Where PyTorch differentiates twice it gets 0 * inf for some of these."""
    for exponent in (0, 1, 2, 3, 0.5, 2.5, -1):
        point, factor = (0.0, float(exponent)), 1.0
        by_literal: Expr = Apply("pow", (argument(0), Constant(exponent)))
        by_general: Expr = Apply("pow", (argument(0), argument(1)))
        for order in (1, 2, 3):
            factor *= exponent - order + 1
            expected = factor * torch_value("pow", (0.0, exponent - order)) if factor else 0.0
            by_literal, by_general = derivative(by_literal, 0), derivative(by_general, 0)
            assert same(value_of(by_literal, point), expected), (exponent, order)
            assert same(value_of(by_general, point), expected), (exponent, order)
        by_exponent = derivative(Apply("pow", (argument(0), argument(1))), 1)
        expected = torch_derivative("pow", point, (1,))
        assert same(value_of(by_exponent, point), expected), exponent


def test_ties_of_min_and_max_send_the_gradient_to_the_first() -> None:
    for name in ("min", "max"):
        expression = Apply(name, (argument(0), argument(1)))
        gradient = [value_of(derivative(expression, i), (1.5, 1.5)) for i in (0, 1)]
        assert gradient == [1, 0], name


def test_partials_stay_inside_the_table() -> None:
    def names(expr: Expr) -> set[str]:
        if isinstance(expr, Apply):
            return {expr.primitive}.union(*map(names, expr.arguments))
        return set()

    for row in SMOOTH:
        arguments = tuple(argument(i) for i in range(row.arity))
        partials = row.partials(*arguments)
        assert len(partials) == row.arity
        for partial in partials:
            assert partial is None or names(partial) <= PRIMITIVES.keys()


# ---------------------------------------------------------------------------- building
def test_constructors_fold_zeros_and_ones_only() -> None:
    x, y = argument(0), argument(1)
    zero, one, minus = Constant(0), Constant(1.0), Constant(-1)
    assert build.add(zero, x) == x == build.add(x, Constant(0.0))
    assert build.sub(x, zero) == x
    assert build.sub(zero, x) == build.neg(x) == Apply("neg", (x,))
    assert build.neg(build.neg(x)) == x
    assert build.neg(Constant(2)) == Constant(-2)
    assert build.mul(zero, x) == build.mul(x, zero) == build.ZERO
    assert build.mul(one, x) == build.mul(x, one) == x
    assert build.mul(minus, x) == Apply("neg", (x,))
    assert build.div(zero, x) == zero
    assert build.div(x, one) == x
    assert build.power(x, zero) == build.ONE
    assert build.power(x, one) == x
    assert build.select(x, y, y) == y
    for make, name in ((build.add, "add"), (build.mul, "mul"), (build.div, "div")):
        assert make(x, y) == Apply(name, (x, y))


# ---------------------------------------------------------------------------- rows
def test_rows_are_consistent() -> None:
    arity_of_absence = {Absence.ALL: 2, Absence.NUMERATOR: 2, Absence.PASS: 1, Absence.BRANCH: 3}
    for row in ROWS:
        assert (
            row.precedence is Precedence.PRIMARY
            or not row.symbol.isidentifier()
            or (row.name in ("and", "or", "not"))
        )
        assert arity_of_absence.get(row.absence, row.arity) == row.arity
        assert row.kind is Kind.NUMBER or row.partials is None
        for spelling in (row.c, row.cuda):
            assert len(spelling.arguments) == row.arity
            called = spelling.level is Level.PRIMARY
            assert not called or set(spelling.arguments) <= {Level.ARGUMENT}


class Numbers(NamedTuple):
    """What a kernel computes with: a type of the source, and what a call makes of its names."""

    kind: Type
    shared: str
    real: str
    python: type[ctypes.c_float] | type[ctypes.c_double] | type[ctypes.c_int64]
    tolerance: float


NUMBERS = {
    "float": Numbers(Type.REAL, "f32", "f32", ctypes.c_float, 1e-5),
    "double": Numbers(Type.REAL, "f64", "f64", ctypes.c_double, 1e-13),
    "integer": Numbers(Type.INTEGER, "f32", "f32", ctypes.c_int64, 0),
    "integers of tensors": Numbers(Type.WIDE, "i64", "f32", ctypes.c_int64, 0),
}


def spelled(kind: Type) -> list[Primitive]:
    """The rows that are computed in that type."""
    return [row for row in ROWS if kind is Type.REAL or not row.needs_float]


@pytest.mark.parametrize("name", NUMBERS)
def test_c_spelling_computes_the_function(name: str, tmp_path: Path) -> None:
    """Every row as a C function, with the helpers and the prelude of kernels."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("OPGEN_CC", "cc"), "gcc"))), "")
    if not compiler:
        pytest.skip("no C compiler found: set OPGEN_CC")
    kind, shared, real, c_type, tolerance = NUMBERS[name]
    rows = spelled(kind)
    helpers = helper_lines((row.name, kind) for row in rows if row.helper is not None)
    lines = [prelude.C + prelude.bindings(shared, real, {}), *helpers]
    for row in rows:
        parameters = ", ".join(f"{kind.value} {letter}" for letter in "abc"[: row.arity])
        body = row.c.render(kind.tag, *"abc"[: row.arity])
        lines.append(f"{kind.value} row_{row.name}({parameters}) {{ return {body}; }}")
    (tmp_path / "rows.c").write_text("\n".join(lines) + "\n")
    command = [compiler, "-O1", "-shared", "-fPIC", "-pthread", "rows.c", "-o", "rows.so"]
    subprocess.run([*command, "-lm"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "rows.so"))
    for row in rows:
        function = getattr(library, f"row_{row.name}")
        function.argtypes, function.restype = [c_type] * row.arity, c_type
        for point in points(row.arity, seed=3):
            if c_type is ctypes.c_int64:
                if not all(map(math.isfinite, point)):
                    continue
                point = tuple(map(round, point))
            arguments = [c_type(number).value for number in point]
            actual, expected = function(*arguments), row.function(*arguments)
            if c_type is ctypes.c_float:
                expected = ctypes.c_float(expected).value  # overflows to infinity
            assert same(actual, expected, tolerance), (row.name, point, actual, expected)


def test_helpers_stand_in_the_order_of_the_table() -> None:
    wanted = [("silu", Type.REAL), ("relu", Type.WIDE), ("max", Type.REAL), ("relu", Type.INTEGER)]
    assert [line.split("(")[0] for line in helper_lines(wanted)] == [
        "FUNCTION real opgen_max_real",
        "FUNCTION int64_t opgen_relu_i64",
        "FUNCTION wide opgen_relu_wide",
        "FUNCTION real opgen_silu_real",
    ]


def test_render_uses_the_target_s_own_form() -> None:
    rsqrt = PRIMITIVES["rsqrt"]
    assert rsqrt.c.render("real", "x") == "1 / sqrt(x)"
    assert rsqrt.cuda.render("real", "x") == "rsqrt(x)"
    assert PRIMITIVES["abs"].c.render("i64", "x") == "llabs(x)"
    assert PRIMITIVES["max"].c.render("wide", "x", "y") == "opgen_max_wide(x, y)"


def test_functions_of_c_are_those_of_the_type() -> None:
    """A compiler knows them without a header too, but then as those of double."""
    texts = [f"{row.c.text} {row.c.integer} {row.helper}" for row in PRIMITIVES.values()]
    called = set(re.findall(r"\b(\w+)\(", " ".join(texts)))
    assert {"exp", "floor", "pow", "tanh"} <= called
    macros = set(re.findall(r"# *define (\w+)\(", prelude.C))
    functions = set(re.findall(r"^FUNCTION [^(]*?(\w+)\(", prelude.C, re.MULTILINE))
    assert called - macros - functions == {
        "llabs"
    }  # of whole numbers, and there is one type of them
