"""Kernels whose points go together: which ones do, and that each row has temporaries of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.emit.streams import streams
from opgen.emit.together import Together, together
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.notation import Op
from opgen.on_demand import operation
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule


def groups(op: Op) -> list[tuple[int, int, int]]:
    """The first kernel, the end, and the shared axes of each run of kernels that go together."""
    program = rows(schedule(op, gather(op)), facts_of(op))
    return [(each.first, each.end, each.axes) for each in together(program)]


def of(spec: str) -> list[tuple[int, int, int]]:
    (op,) = check_source(Source(spec, "<test>"))
    return groups(op)


HEAD = "op f(x: float[N,C,D], z: float[C,N]) -> y[N,C,D]\n  t[n,c] = sum(d) x[n,c,d]\n"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("y[n,c,d] = x[n,c,d] / t[n,c]", [(0, 2, 2)]),
        ("y[n,c,d] = x[n,c,d] / t[n,c] * z[c,n]", [(0, 2, 2)]),  # an input may be read anyhow
        ("y[n,c,d] = x[n,c,d] / t[n, c-1 ?clamp]", [(0, 2, 1)]),  # of another channel
        ("y[n,c,d] = x[n,c,d] / t[n-1 ?clamp, c]", []),  # of another image
        ("y[n,c,d] = x[n,c,d] / (sum(e in N) t[e,c])", []),
        ("y[n,c,d] = sum(e in C) x[n,e,d] / t[n,e]", [(0, 2, 1)]),
    ],
)
def test_which_kernels_go_together(line: str, wanted: list[tuple[int, int, int]]) -> None:
    assert of(f"{HEAD}  {line}\n") == wanted


def test_axes_of_other_extents_do_not() -> None:
    spec = (
        "op f(x: float[N,D], z: float[M]) -> y[N,D], v[M]\n  v[m] = exp(z[m])\n"
        "  t[n] = sum(d) x[n,d]\n  y[n,d] = x[n,d] * t[n]\n"
    )
    assert of(spec) == [(1, 3, 1)]


def test_rows_that_a_tensor_chooses_do_not() -> None:
    spec = (
        "op f(x: float[N,D], k: i64[N]) -> y[N,D]\n  t[n,d] = exp(x[n,d])\n"
        "  y[n,d] = t[k[n] ?clamp, d]\n"
    )
    assert of(spec) == []


def test_kernels_of_specs() -> None:
    found = {}
    for spec in ("softmax", "norm", "local_attention"):
        for op in check_source(read_source(SPECS / f"{spec}.op")):
            found[op.name] = groups(op)
    assert found == {
        "softmax": [(0, 4, 1)],
        "layer_norm": [(0, 3, 1)],
        "group_norm": [(0, 3, 1)],
        "local_attention": [(0, 5, 3)],
    }


def test_what_is_read_again_has_an_order() -> None:
    """That of its first loads, in every process: texts are the same."""
    inputs = ", ".join(f"{name}[N,D]" for name in "abcdefgh")
    terms = " * ".join(f"{name}[n,d]" for name in "hcafbged")
    (op,) = check_source(
        Source(
            f"op f({inputs}) -> y[N,D]\n  t[n] = sum(d) {terms}\n  y[n,d] = t[n] * {terms}\n",
            "<test>",
        )
    )
    program = rows(schedule(op, gather(op)), facts_of(op))
    (group,) = together(program)
    assert [name for name, _ in group.read_again(program)] == list("hcafbged")


def test_what_others_see_stays_in_memory() -> None:
    """The sums of rows are written once, and read by a kernel of another shape as well."""
    spec = (
        "op f(x: float[N,D]) -> y[N,D], v[D]\n  t[n] = sum(d) x[n,d]\n"
        "  p[n,d] = exp(x[n,d] - t[n])\n  y[n,d] = p[n,d] * (sum(e in D) p[n,e])\n"
        "  v[d] = sum(n) t[n] * x[n,d]\n"
    )
    (op,) = check_source(Source(spec, "<test>"))
    program = rows(schedule(op, gather(op)), facts_of(op))
    (group,) = together(program)
    assert isinstance(group, Together)
    written = {name for name, _ in group.written(program)}
    own = {name for name, _ in group.own(program)}
    assert {"t", "y"} <= written - own
    assert "p" in own
    module = opgen.compile(spec)
    x = torch.randn(40, 30, dtype=torch.float64) / 10
    y, v = module.f(x)
    t = x.sum(1)
    p = (x - t[:, None]).exp()
    torch.testing.assert_close(y, p * p.sum(1, keepdim=True))
    torch.testing.assert_close(v, t @ x)


def test_a_temporary_that_nobody_reads_stays_in_memory() -> None:
    """It is stored past the caches. No spec has one: this was found by random ops."""
    (op,) = check_source(
        Source("op f(x[N,D]) -> y[N,D]\n  t[n,d] = x[n,d] + 1\n  y[n,d] = t[n,d]\n", "<test>")
    )
    first, last = op.statements
    op = replace(op, statements=(first, replace(last, body=first.body)))
    program = rows(schedule(op, gather(op)), facts_of(op))
    (group,) = together(program)
    assert list(group.own(program)) == []
    (kernel,) = (each for each in program.kernels if each.written == "t")
    assert streams(kernel, program)
    x = torch.randn(40, 300)
    (y,) = operation(op).apply((x,), ())
    assert torch.equal(y, x + 1)


def test_guests_stay_with_their_hosts() -> None:
    """The gradient of one input may run within that of the other, behind a kernel of its own."""
    module = opgen.compile(
        "op f(x: float[N,C,H], z: float[N]) -> y[N,C,H]\n  m[n,c] = sum(h) x[n,c,h] * z[n]\n"
        "  y[n,c,h] = tanh(x[n,c,h] + m[n,c])\n"
    )
    torch.manual_seed(0)
    for shape in ((3, 4, 5), (20, 30, 70)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        z = torch.randn(shape[0], dtype=torch.float64, requires_grad=True)
        got = module.f(x, z)
        wanted = torch.tanh(x + (x * z[:, None, None]).sum(2, keepdim=True))
        torch.testing.assert_close(got, wanted)
        cotangent = torch.randn_like(wanted)
        mine = torch.autograd.grad(got, (x, z), cotangent)
        theirs = torch.autograd.grad(wanted, (x, z), cotangent)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other)


softmax = opgen.load(SPECS / "softmax.op")
norm = opgen.load(SPECS / "norm.op")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "shape",
    [
        (64, 100),  # many rows at once
        (70, 9000),  # few: the last stretch of a task is shorter
        (9, 70000),  # one at a time
        (1, 70000),  # too few for all threads
        (5, 1),
        (0, 7),
        (3, 4, 50, 60),
    ],
)
def test_rows_in_stretches(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    close = (
        {"rtol": 0.02, "atol": 1e-4} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-7}
    )

    def check(given: Tensor) -> None:
        leaf = given.detach().requires_grad_()
        wide = given.detach().double().requires_grad_()
        got, wanted = softmax.softmax(leaf), torch.softmax(wide, -1)
        torch.testing.assert_close(got.double(), wanted, **close)
        cotangent = torch.randn(shape).to(dtype)
        (mine,) = torch.autograd.grad(got, leaf, cotangent)
        (theirs,) = torch.autograd.grad(wanted, wide, cotangent.double())
        torch.testing.assert_close(mine.double(), theirs, rtol=close["rtol"], atol=1e-4)

    check(x)
    check(x.flip(0))  # a call like an earlier one


@pytest.mark.sampled(4)
@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last])
def test_temporaries_of_images_in_any_format(format_: torch.memory_format) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 12, 40, 41).contiguous(memory_format=format_).requires_grad_()
    weight, bias = torch.randn(2, 12).requires_grad_()
    got = norm.group_norm(x, weight, bias, num_groups=3)
    wide = [each.detach().double().requires_grad_() for each in (x, weight, bias)]
    wanted = torch.nn.functional.group_norm(wide[0], 3, wide[1], wide[2])
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)
    cotangent = torch.randn_like(got)
    mine = torch.autograd.grad(got, (x, weight, bias), cotangent)
    theirs = torch.autograd.grad(wanted, wide, cotangent.double())
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)
