"""Kernels for short rows of any length mean what those along rows mean, and read nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import opgen
from catalogue import SPECS
from guarded_memory import before_a_page
from opgen.compiler import check_source, read_source
from opgen.errors import Source
from opgen.ir.cells import to_array
from opgen.ir.context import facts_of
from opgen.ir.loops import If, Lanes, Node, Program, Short, walk
from opgen.ir.notation import Op
from opgen.ir.show_loops import show_program
from opgen.passes.gather import gather
from opgen.passes.masked_rows import LONGEST, with_masked_rows
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise
from opgen.runtime import special
from opgen.testing.run_loops import run

CONV = {op.name: op for op in check_source(read_source(SPECS / "conv.op"))}


def programs(op: Op, values: dict[str, int]) -> tuple[Program, Program]:
    """The program of cells, and the one with kernels for short rows."""
    known = specialise(op, values)
    plain, facts = schedule(known, gather(known)), facts_of(known)
    return plain, with_masked_rows(plain, rows(plain, facts), facts)


def has_short(program: Program) -> bool:
    return any(isinstance(kernel.only, Short) for kernel in program.kernels)


def geometry(window: int, padding: int, dilation: int = 1) -> dict[str, int]:
    names = {"stride": 1, "padding": padding, "dilation": dilation}
    values = {f"{name}[{at}]": value for name, value in names.items() for at in (0, 1)}
    return values | {"Ci": 1, "Co": 1, "K": window, "L": window}


GEOMETRIES = {
    "3": geometry(3, 1),
    "no padding": geometry(2, 0),
    "wide padding": geometry(3, 4),
    "dilation": geometry(3, 2, 3),
}


def result(program: Program, tensors: dict[str, np.ndarray], known: dict[str, int]) -> np.ndarray:
    integers = {name: known[name] for name in program.integers}
    cells, _ = run(program, tensors, integers)
    return to_array(cells["y"], np.dtype(np.float64))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_short_rows_give_what_cells_give(name: str) -> None:
    values = GEOMETRIES[name]
    plain, short = programs(CONV["conv2d"], values)
    assert has_short(short), show_program(short)
    random = np.random.default_rng(0)
    for width in (5, 16, 17, 35, LONGEST + 9):
        known = {**dict.fromkeys(plain.integers, 1), **values, "groups": 2, "H": 4, "W": width}
        reach = values["dilation[0]"] * (values["K"] - 1) - 2 * values["padding[0]"]
        known |= {"OH": max(4 - reach, 0), "OW": max(width - reach, 0)}
        tensors = {
            each.name: random.normal(size=[extent.evaluate(known) for extent in each.extents])
            for each in plain.operands
            if each.name != "y"
        }
        wanted = result(plain, tensors, known)
        np.testing.assert_allclose(result(short, tensors, known), wanted, rtol=1e-12, atol=1e-12)
        if known["OH"] and known["OW"] <= LONGEST:
            assert not np.allclose(result(without_a_pass(short), tensors, known), wanted)


def without_a_pass(program: Program) -> Program:
    """The kernel for short rows without the pass before its last one: a comparison sees that."""
    kernel = program.kernels[0]
    assert isinstance(kernel.only, Short) and kernel.only.holds
    terms = [node for node in walk(kernel.body) if isinstance(node, Lanes)]

    def change(node: Node) -> Node:
        if node is terms[len(terms) // 2]:
            return replace(node, body=())
        return replace(node, body=tuple(map(change, node.body))) if isinstance(node, If) else node

    body = tuple(map(change, kernel.body))
    return replace(program, kernels=(replace(kernel, body=body), *program.kernels[1:]))


NEAR_MISSES = {
    "a step": "y[n,w] = sum(k) x[n, 2*w + k ?0] * t[k]",
    "lanes apart": "y[n,w] = sum(k) x[w, n + k ?0] * t[k]",
    "a maximum": "y[n,w] = max(k in 3) x[n, w + k ?0] + t[0]",
    "a function": "y[n,w] = sum(k) exp(x[n, w + k ?0]) * t[k]",
    "a choice": "y[n,w] = sum(k) select(t[k] > 0, x[n, w + k ?0], 1.0) * t[k]",
    "numbers of the lane": "y[n,w] = sum(k) x[n, w + k ?0] * t[k] * w",
    "no sum": "y[n,w] = x[n, w + 1 ?0] * t[0]",
}


def spec(statement: str) -> Op:
    text = f"op near(x[N,W], t[K]) -> y[N,W]\n  {statement}\n"
    if "x[w," in statement:
        text = text.replace("y[N,W]", "y[W,N]")
    (op,) = check_source(Source(text, "near.op"))
    return op


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_have_no_kernels_for_short_rows(name: str) -> None:
    _, program = programs(spec(NEAR_MISSES[name]), {"K": 3})
    assert not has_short(program), show_program(program)


def test_the_sum_they_nearly_are_has_one() -> None:
    _, program = programs(spec("y[n,w] = sum(k) x[n, w + k ?0] * t[k]"), {"K": 3})
    assert has_short(program), show_program(program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_sums_may_be_stored_in_a_wider_type(dtype: torch.dtype) -> None:
    """Temporaries have 32 bits in calls in 16."""
    text = """
op near(x[N,W], t[K]) -> y[N,W]
  s[n,w] = sum(k) x[n, w + k ?0] * t[k] for w in W
  y[n,w] = s[n,w] * (sum(v in W) s[n,v])
"""
    (op,) = check_source(Source(text, "near.op"))
    plain, program = programs(op, {"K": 3})
    assert plain.operand("s").widened
    assert has_short(program), show_program(program)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2**11, 21, generator=generator).to(dtype)
    t = torch.tensor([0.5, 2.0, -1.0]).to(dtype)
    sums = F.conv1d(F.pad(x, (0, 2)).double()[:, None], t.double()[None, None])[:, 0]
    wanted = sums * sums.sum(1, keepdim=True)
    found = opgen.compile(text).near(x, t)
    assert found.dtype == dtype
    digits = {torch.bfloat16: 7, torch.float16: 10}.get(dtype, 20)
    assert (found.double() - wanted).abs().max() <= 2.0**-digits * wanted.abs().max()


# ---------------------------------------------------------------------------- compiled
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.bfloat16),
        *(pytest.param(each, marks=pytest.mark.slow) for each in (torch.float16, torch.float64)),
    ],
)
def test_compiled_kernels_give_what_pytorch_gives(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(special, "MOST_SIZES", 0)
    conv = opgen.compile((SPECS / "conv.op").read_text()).conv2d
    torch.manual_seed(0)
    for width in (1, 7, 16, 21, 48, 50):
        channels = -(-(2**15) // (9 * width))  # enough for a kernel of its own
        whole = torch.randn(channels, 9, width + 2, dtype=dtype)
        weight = torch.randn(channels, 1, 3, 3, dtype=dtype)
        bias = torch.randn(channels, dtype=dtype)
        for x in (whole[None, ..., 1:-1].contiguous(), whole[None, ..., 1:-1]):
            found = conv(x, weight, bias, padding=1, groups=channels)
            wanted = F.conv2d(
                x.double(), weight.double(), bias.double(), padding=1, groups=channels
            )
            eps = torch.finfo(dtype).eps
            assert (found.double() - wanted).abs().max() <= 8 * eps * wanted.abs().max()


def test_what_lies_outside_is_neither_read_nor_written_nor_multiplied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tensors end where memory does; a zero of the padding has no term beside infinity."""
    monkeypatch.setattr(special, "MOST_SIZES", 0)
    conv = opgen.compile((SPECS / "conv.op").read_text()).conv2d
    x, _keep = before_a_page(torch.ones(1, 1024, 5, 7))
    weight = torch.ones(1024, 1, 3, 3, requires_grad=True)
    y = conv(x, weight, padding=1, groups=1024)
    (gradient,) = torch.autograd.grad(y.sum(), weight)
    assert gradient[0, 0].tolist() == [[24, 28, 24], [30, 35, 30], [24, 28, 24]]
    weight = weight.detach()
    weight[:, :, 0, 0] = float("inf")
    y = conv(x, weight, padding=1, groups=1024)
    assert not y.isnan().any()
    assert y[:, :, 0].isfinite().all() and y[..., 0].isfinite().all()
    assert y[:, :, 1:, 1:].isinf().all()


@pytest.mark.parametrize("width", [1, 5, 16, 23])
def test_terms_that_are_not_there_are_not_multiplied(width: int) -> None:
    module = opgen.compile("op f(x[N,W], t[K]) -> y[N]\n  y[n] = sum(w) x[n,w] * t[0]\n")
    x = torch.ones(3, width)
    assert module.f(x, torch.tensor([2.0])).tolist() == [2.0 * width] * 3
    assert module.f(x, torch.tensor([float("inf")])).tolist() == [float("inf")] * 3
