"""The loops of an op for particular purposes."""

from __future__ import annotations

import pytest

from derivatives import read_op
from opgen.programs import scheduled


@pytest.mark.parametrize(("one", "other"), [("2", "2.0"), ("1.0", "1"), ("0.0", "-0.0")])
def test_loops_of_equal_ops_with_other_literals(one: str, other: str) -> None:
    """Equal numbers, but 2 is an integer and 2.0 is none, and -0.0 has a sign."""
    header = "op f(x: float[N]) -> y[N]"
    ops = [read_op(f"{header}\n  y[n] = max(x[n], {text})") for text in (one, other)]
    assert ops[0] == ops[1]
    found = [repr(scheduled(op)) for op in ops]
    assert found[0] != found[1]
    assert [repr(scheduled(op)) for op in ops] == found


def test_loops_are_found_once() -> None:
    ops = [read_op("op f(x[N]) -> y[N]\n  y[n] = 3*x[n]") for _ in range(2)]
    assert scheduled(ops[0]) is scheduled(ops[1])
