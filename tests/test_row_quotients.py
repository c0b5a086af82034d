"""Terms of sums that the CPU multiplies by the inverse of what divides a row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import opgen
from guarded_memory import before_a_page
from opgen.compiler import check_source
from opgen.emit.c import c_source
from opgen.errors import Source
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.programs import along_rows

HEAD = "op f(x: float[N,D], t[N], s[D]) -> "


def has_inverses(spec: str) -> bool:
    """Whether its kernel finds inverses before loops."""
    (op,) = check_source(Source(spec, "<test>"))
    return "inverse_of(" in c_source(along_rows(op, schedule(op, gather(op))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD}y[N]\n  y[n] = sum(d) x[n,d] / t[n]", True),
        (f"{HEAD}y[N]\n  y[n] = sum(d) (3*x[n,d]*s[d] / sqrt(t[n]*t[n] + 1) - s[d]/t[n])", True),
        (f"{HEAD}y[D]\n  y[d] = sum(n) x[n,d] / t[n]", True),
        (f"{HEAD}y[N,D]\n  y[n,d] += x[n,d] / t[n]\n  y[n,d] += s[d]", True),
        (f"{HEAD}y[N]\n  y[n] = sum(d if d <= n) x[n,d] / t[n]", True),
        # Another one in each turn.
        (f"{HEAD}y[N]\n  y[n] = sum(d) x[n,d] / s[d]", False),
        (f"{HEAD}y[N]\n  y[n] = sum(d) x[n,d] / (s[d] + t[n])", False),
        # No sum rounds these further.
        (f"{HEAD}y[N,D]\n  y[n,d] = x[n,d] / t[n]", False),
        (f"{HEAD}y[N]\n  y[n] = max(d) x[n,d] / t[n]", False),
        (f"{HEAD}y[N]\n  y[n] = (sum(d) x[n,d]) / t[n]", False),
        # For the last bit these would be other numbers.
        (f"{HEAD}y[N]\n  y[n] = sum(d) floor(x[n,d] / t[n])", False),
        (f"{HEAD}y[N]\n  y[n] = sum(d) select(x[n,d] / t[n] >= 1, 1, 0)", False),
        # What divides is known, or has no inverse of its type.
        (f"{HEAD}y[N]\n  y[n] = sum(d) x[n,d] / D", False),
        ("op f(x: float[N,D], t: i64[N]) -> y[N]\n  y[n] = sum(d) x[n,d] / t[n]", False),
        # A choice may keep it from being there.
        (f"{HEAD}y[N]\n  y[n] = sum(d) x[n,d] / select(s[0 ?0] > 0, t[n], 1)", False),
    ],
)
def test_which_terms(text: str, expected: bool) -> None:
    assert has_inverses(f"{text}\n") == expected


EXTREMES = (
    *(1e-45, 3e-39, 1.2e-38, 2e-30, 1.0, -0.3, 7e28, 1e30, 2e37, 3.4e38),
    *(0.0, -0.0, math.inf, -math.inf, math.nan),
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 16, 37])
@pytest.mark.parametrize("way", ["sum(d) x[n,d] / t[n]", "sum(d) x[d,n] / t[n]"])
def test_extreme_divisors(dtype: str, count: int, way: str) -> None:
    """Each extreme by each, in rows where it is alone, and with all of them."""
    shape = "N,D" if "x[n,d]" in way else "D,N"
    ours = opgen.compile(f"op f(x: float[{shape}], t[N]) -> y[N]\n  y[n] = {way}\n").f
    kind = np.dtype(dtype)
    numbers = np.array(EXTREMES, kind)
    if dtype == "float64":
        with np.errstate(all="ignore"):
            numbers = np.sign(numbers) * np.abs(numbers) ** 8
    rows = []
    for number in numbers:
        row = np.zeros(count, kind)
        row[-1] = number
        rows.append(row)
    rows.append(np.resize(numbers, count))
    x = np.repeat(np.array(rows), len(numbers), 0)
    t = np.tile(numbers, len(rows))
    expected, size = np.zeros(len(t), kind), np.zeros(len(t), kind)
    with np.errstate(all="ignore"):
        for d in range(count):
            expected += x[:, d] / t
            size += np.abs(x[:, d] / t)
    given = torch.from_numpy(x if shape == "N,D" else x.T.copy())
    found = ours(given, torch.from_numpy(t)).numpy()
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    kinds = np.finfo(kind)
    assert finite.any()
    error = np.abs(found[finite] - expected[finite])
    assert (error <= (4 + count) * kinds.eps * size[finite] + kinds.tiny).all()


def test_what_divides_no_term_is_not_loaded() -> None:
    """Rows without a term have no cell of what divides: memory ends there."""
    ours = opgen.compile(
        "op f(x: float[N,D], t[M]) -> y[N]\n  y[n] = sum(d if d + n < M) x[n,d] / t[n] for n in N\n"
    ).f
    x, t = torch.randn(5000, 20), torch.rand(30) + 1
    guarded, memory = before_a_page(t)
    expected = torch.zeros(5000)
    for n in range(30):
        expected[n] = (x[n, : 30 - n] / t[n]).sum()
    torch.testing.assert_close(ours(x, guarded), expected)
    del guarded
    memory.close()
