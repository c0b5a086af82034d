"""The comments of `opgen grad` speak of the ops that stand below them."""

from __future__ import annotations

import pytest

from catalogue import CATALOGUE, Entry
from derivatives import read_ops
from opgen.derivation import gradient_text
from opgen.passes.gather import known_names
from opgen.passes.gathered_form import gathered_forms
from spec_calls import checked, gradient


def comments(text: str) -> list[str]:
    """What stands between the title and the op of the first gradient."""
    ops = read_ops(text)
    lines = gradient_text(ops, ops).splitlines()
    return lines[1 : next(k for k, line in enumerate(lines) if line.startswith("## "))]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "op f(x[N], w[K]) -> y[M]\n  let M = N - K + 1\n  y[m] = sum(k) x[m + k] * w[k]",
            [
                "# grad_x[n]: every cell gathers its terms by loops with exact bounds",
                "#   eliminate: m = n - k",
            ],
        ),
        (  # The name of the iterator h goes to the coordinate.
            "op f(x[H,W], nograd a[H]; d: size = 4) -> y[D,H,W]\n  let D = 2*d + 1\n"
            "  y[p,h,w] = a[h] * x[h + p - d ?0, w]",
            [
                "# grad_x[h,w]: every cell gathers its terms by loops with exact bounds",
                "#   eliminate: h_ = d + h - p",
            ],
        ),
        (
            "op f(x[C,W]; step=1) -> y[V]\n  where step >= 0\n  let V = W + (C-1)*step\n"
            "  y[v] = sum(c) x[c, v - c*step ?0]",
            ["# grad_x[c,w]: every cell receives exactly one term", "#   unit: v = c*step + w"],
        ),
        (
            "op f(x[...,(C r),N]; r=2, k=1) -> y[...,C,N,r]\n  where r >= 1\n"
            "  y[...,c,n,i] = x[...,(c i), n + k ?0]",
            ["# grad_x[...,(c i),n]: every cell receives at most one term", "#   unit: n_ = n - k"],
        ),
    ],
)
def test_comments_have_the_names_of_the_op(text: str, wanted: list[str]) -> None:
    assert comments(text) == wanted


def test_a_window_is_summed_over_where_a_condition_has_to_be_said() -> None:
    (op,) = read_ops(
        "op f(x[H], w[K]; r = 2) -> y[(M r)]\n  where r >= 1\n  let M = H - K + 1\n"
        "  y[(m a)] = sum(k) x[m + k] * w[k]"
    )
    line = gradient_text([op], [op]).split("\n\n")[0].splitlines()[-1].strip()
    assert line == "grad_x[h] = sum(k, a in r if h >= k and h < M + k) w[k] * grad_y[h*r + a - k*r]"


@pytest.mark.parametrize("subject", [e for e in CATALOGUE if e.differentiable], ids=repr)
def test_what_went_away_is_told_by_what_is_left(subject: Entry) -> None:
    for name in subject.differentiable:
        derived = gradient(checked(subject), name).op
        for form in gathered_forms(derived):
            left = {iterator.name for iterator in form.statement.iterators}
            for gone, value in form.solved:
                assert gone not in left
                assert value.symbols <= left.union(known_names(derived))
