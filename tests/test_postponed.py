"""Statements that wait for the next one into their tensor, so that one kernel adds up all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.passes.differentiate import joint_adjoint
from opgen.passes.gather import gather
from opgen.passes.rows import LEAST_WIDTH, WIDTH
from opgen.passes.schedule import schedule
from opgen.programs import along_rows


def op_of(text: str) -> Op:
    (op,) = check_source(Source(text, "<test>"))
    return op


def written(op: Op) -> list[str]:
    """The tensors that kernels write, in order."""
    return [kernel.written for kernel in schedule(op, gather(op)).kernels]


HEAD = "op f(x: f32[N], z: f32[N], at: i64[N]) -> y: f32[N], v: f32[N]\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("y[n] += x[n]", "v[n] = z[n]", "y[n] += 2*z[n]"), ["v", "y"]),
        (("y[n] += x[n]", "v[n] += z[n]", "y[n] += z[n]", "v[n] += x[n]"), ["y", "v"]),
        # What knows its cells comes last: nobody has to make these zero before.
        (("y[at[n]] += x[n]", "v[n] = z[n]", "y[n] += z[n]"), ["v", "y", "y"]),
        (
            ("y[at[n]] += x[n]", "v[at[n]] += x[n]", "v[n] += z[n]", "y[n] += z[n]"),
            ["v", "v", "y", "y"],
        ),
        (("y[n] += z[n]", "v[n] = z[n]", "y[at[n]] += x[n]"), ["v", "y", "y"]),
        # One alone has its kernel for that.
        (("y[at[n]] += x[n]", "v[n] = z[n]"), ["y", "y", "v"]),
    ],
)
def test_order_of_kernels(lines: tuple[str, ...], expected: list[str]) -> None:
    assert written(op_of(HEAD + "".join(f"  {line}\n" for line in lines))) == expected


def test_what_knows_its_cells_is_added_to_what_cells_found() -> None:
    text = f"{HEAD}  y[at[n]] += x[n]\n  v[n] = z[n]\n  y[n] += 2*z[n]\n"
    torch.manual_seed(0)
    x, z, at = torch.randn(70), torch.randn(70), torch.randint(70, (70,))
    y, v = opgen.compile(text).f(x, z, at)
    assert torch.equal(v, z)
    torch.testing.assert_close(y, (2 * z).index_add(0, at, x), rtol=1e-6, atol=1e-6)
    with pytest.raises(IndexError):
        opgen.compile(text).f(x, z, at + 1000)


def test_what_others_need_does_not_wait() -> None:
    """As no spec says it: statements between that read the sum so far, or change its terms."""
    op = op_of(f"{HEAD}  t[n] = x[n]\n  y[n] += t[n]\n  y[n] += z[n]\n  v[n] = y[n] + at[n]\n")
    assert written(op) == ["y", "v"]
    temporary, first, second, reader = op.statements
    assert written(replace(op, statements=(temporary, first, reader, second)))[-3:] == [
        "y",
        "v",
        "y",
    ]
    changed = replace(op, statements=(temporary, first, temporary, second, reader))
    assert written(changed) == ["t", "y", "t", "y", "v"]


def test_gradient_of_group_norm_is_written_once() -> None:
    """Three statements add to it, between sums over groups."""
    ops = check_source(read_source(SPECS / "norm.op"))
    (op,) = (each for each in ops if each.name == "group_norm")
    both = joint_adjoint(op, ("x", "weight", "bias")).op
    assert written(both).count("grad_x") == 1
    assert not schedule(both, gather(both)).workspaces


@pytest.mark.parametrize("length", [100, 1500])
def test_sums_of_columns_are_of_several_threads(length: int) -> None:
    """The gradient of a weight is one row of sums: its stretches are short."""
    op = op_of("op f(x[N,D], z[N,D]) -> y[D]\n  y[d] = sum(n) x[n,d]*z[n,d]\n")
    (kernel,) = along_rows(op, schedule(op, gather(op))).kernels
    assert kernel.row is not None
    assert kernel.row.width == LEAST_WIDTH < WIDTH
    ours = opgen.compile("op f(x[N,D], z[N,D]) -> y[D]\n  y[d] = sum(n) x[n,d]*z[n,d]\n").f
    x, z = torch.randn(2, 30, length, dtype=torch.float64)
    torch.testing.assert_close(ours(x, z), (x * z).sum(0))
