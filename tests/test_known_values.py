"""Expressions that are read where a temporary holds their value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opgen.errors import Source
from opgen.ir.notation import Op, Read
from opgen.ir.show import show
from opgen.lang.read import read
from opgen.passes.differentiate import adjoint
from opgen.passes.known_values import with_known_values


def op_of(text: str) -> Op:
    (op,) = read(Source(text, "<test>"))
    return op


def last_line(text: str) -> str:
    return show(with_known_values(op_of(text))).strip().splitlines()[-1].strip()


HEAD = "op f(x: float[N,D], z[N]) -> y[N,D]\n  p[n,d] = exp(x[n,d] - z[n])\n"
READERS = "  s[n] = sum(d) p[n,d]\n  t[n] = max(d) p[n,d]\n"


def test_a_value_in_memory_is_read() -> None:
    text = f"{HEAD}{READERS}  y[n,d] = exp(x[n,d] - z[n]) * s[n] + t[n]\n"
    assert last_line(text) == "y[n,d] = p[n,d] * s[n] + t[n]"


def test_one_that_may_never_be_there_is_not() -> None:
    text = f"{HEAD}  s[n] = sum(d) p[n,d]\n  y[n,d] = exp(x[n,d] - z[n]) * s[n]\n"
    assert "exp" in last_line(text)


def test_sums_and_products_are_computed_again() -> None:
    text = f"{HEAD}{READERS}".replace("exp(x[n,d] - z[n])", "x[n,d] - z[n]")
    assert "x[n,d] - z[n]" in last_line(f"{text}  y[n,d] = (x[n,d] - z[n]) * s[n] + t[n]\n")


@pytest.mark.parametrize(
    ("written", "read_as", "expected"),
    [
        ("p[n,d] = exp(x[n,d] - z[n])", "exp(x[n,d] - z[n])", True),
        ("p[n,d] = exp(x[n,d] - z[n])", "exp(x[n,d] - z[n]) if d >= 1", True),
        # At other points, or under fewer conditions, it may be 0.
        ("p[n,d] = exp(x[n,d] - z[n]) if d >= 1", "exp(x[n,d] - z[n]) if d >= 1", True),
        ("p[n,d] = exp(x[n,d] - z[n]) if d >= 1", "exp(x[n,d] - z[n])", False),
        ("p[n,d] = exp(x[n,d] - z[n]) for d in D-1", "exp(x[n,d] - z[n])", False),
        # What is absent would be an element.
        ("p[n,d] = exp(x[n, d+1 ?0]) for d in D", "exp(x[n, d+1 ?0]) for d in D", False),
        ("p[n,d] = exp(x[n, d+1 ?clamp]) for d in D", "exp(x[n, d+1 ?clamp]) for d in D", True),
    ],
)
def test_where(written: str, read_as: str, expected: bool) -> None:
    """As statements of a derived op may be: those of a spec have to read what was written."""
    head = "op f(x: float[N,D], z[N]) -> y[N,D]\n  where D >= 1\n"
    readers = "  s[n] = sum(d) p[n,d]\n  t[n] = max(d) p[n,d]\n"
    whole = op_of(f"{head}  p[n,d] = exp(x[n,d] - z[n])\n{readers}  y[n,d] = s[n] + t[n]\n")
    writer = op_of(f"{head}  {written.replace('p[n,d] =', 'y[n,d] =')}\n").statements[0]
    last = op_of(f"{head}  y[n,d] = {read_as}\n").statements[0]
    writer = replace(writer, target=replace(writer.target, tensor="p"))
    op = replace(whole, statements=(writer, *whole.statements[1:-1], last))
    changed = with_known_values(op).statements[-1]
    assert (changed.body == Read(writer.target)) == expected
    assert expected or changed == last


def test_numbers_are_told_apart() -> None:
    """0.0 is equal to -0.0, and their inverses are not."""
    text = f"{HEAD}{READERS}".replace("exp(x[n,d] - z[n])", "1 / (0.0*x[n,d])")
    assert last_line(f"{text}  y[n,d] = 1 / (-0.0*x[n,d]) + s[n] + t[n]\n").count("x[") == 1
    assert "x[" not in last_line(f"{text}  y[n,d] = 1 / (0.0*x[n,d]) + s[n] + t[n]\n")


def test_gradient_of_a_softmax_has_one_exponential() -> None:
    op = op_of(
        "op softmax(x: float[N,D]) -> y[N,D]\n"
        "  where D >= 1\n"
        "  peak[n] = max(d) x[n,d]\n"
        "  p[n,d] = exp(x[n,d] - peak[n])\n"
        "  y[n,d] = p[n,d] / (sum(k) p[n,k])\n"
    )
    assert show(adjoint(op, "x").op).count("exp(") == 1
