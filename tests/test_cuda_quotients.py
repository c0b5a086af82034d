"""Terms that are multiplied by an inverse in place of divided, and what cells need not look at."""

from __future__ import annotations

import itertools
import math
import random
import re

import numpy as np
import pytest
import torch

import opgen
from catalogue import SPECS
from opgen import compiler
from opgen.emit.cuda import cuda_source
from opgen.emit.cuda_interior import interior
from opgen.emit.cuda_printer import Stretch
from opgen.emit.cuda_quotients import KEPT, MOVING
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.loops import Define, If, Kernel, Lanes, Node, Program, walk
from opgen.ir.notation import Op
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.derive import differentiable
from opgen.passes.differentiate import joint_adjoint
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.testing.cuda_on_cpu.emulated import emulated
from test_gpu import gpu_case, on

EXTREMES = (
    *(1e-45, 3e-39, 1.2e-38, 2e-30, 1.0, -0.3, 7e28, 1e30, 2e37, 3.4e38),
    *(0.0, -0.0, math.inf, -math.inf, math.nan),
)


def threads(op: Op) -> Program:
    """The loops of threads."""
    return cuda_rows(schedule(op, gather(op)), facts_of(op))


def read(text: str) -> Op:
    (op,) = compiler.check_source(Source(text, "test.op"))
    return op


def functions(program: Program) -> set[str]:
    """How kernels divide by elements, beside by divisions."""
    return set(re.findall(r"\bby_\w*inverse\b", cuda_source(program)))


# ---------------------------------------------------------------------------- which
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The loop over m goes on, and d stays.
        ("op f(x[M,N], d[N]) -> y[N]\n  y[n] = sum(m) x[m,n] / d[n]", {KEPT}),
        # Each term has one of its own.
        ("op f(x[M,N], d[M,N]) -> y[N]\n  y[n] = sum(m) x[m,n] / d[m,n]", set()),
        # Another row of the same thread has the same one.
        ("op f(x[B,M,N], d[M,N]) -> y[B,N]\n  y[b,n] = sum(m) x[b,m,n] / d[m,n]", {MOVING}),
        # No sum rounds these further.
        ("op f(x[B,N], d[N]) -> y[B,N]\n  y[b,n] = x[b,n] / d[n]", set()),
        ("op f(x[M,N], d[N]) -> y[N]\n  y[n] = max(m) x[m,n] / d[n]", set()),
        # What divides is no element, or one that has no inverse of its type.
        ("op f(x[M,N], d[N]) -> y[N]\n  y[n] = sum(m) x[m,n] / (1 + d[n])", set()),
        ("op f(x[M,N], d: i64[N]) -> y[N]\n  y[n] = sum(m) x[m,n] / d[n]", set()),
        ("op f(x[M,N]) -> y[N]\n  const d = [1, 2, 4]\n  y[n] = sum(m) x[m,n] / d[n%3]", set()),
        # For the last bit of a quotient these would be other numbers.
        ("op f(x[M,N], d[N]) -> y[N]\n  y[n] = sum(m) floor(x[m,n] / d[n])", set()),
        ("op f(x[M,N], d[N]) -> y[N]\n  y[n] = sum(m) select(x[m,n] / d[n] >= 1, 1, 0)", set()),
        # A condition keeps an inverse in the loop, where it takes as long as a division.
        ("op f(x[M,N], d[N]) -> y[N]\n  y[n] = sum(m if m <= n) x[m,n] / d[n]", set()),
        # Sums and products of quotients are as smooth as these.
        ("op f(x[M,N], d[N]) -> y[N]\n  y[n] = sum(m) (2 - 3 * x[m,n] / d[n])", {KEPT}),
    ],
)
def test_elements_that_more_than_one_term_is_divided_by(text: str, expected: set[str]) -> None:
    assert functions(threads(read(text))) == expected


def test_gradients_of_the_pseudo_inverse() -> None:
    ops = compiler.check_source(compiler.read_source(SPECS / "shift_sum.op"))
    (op,) = (each for each in ops if each.name == "shift_sum_pinv")
    both = joint_adjoint(op, [tensor.name for tensor in differentiable(op)]).op
    assert functions(threads(both)) == {KEPT, MOVING}


# ---------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("floor(x[m,n] / d[n])", ("float32", "float32")),
        ("select(x[m,n] / d[n] >= 1, 1, 0)", ("float32", "float32")),
        # The wider of two types, whichever is divided.
        ("x[m,n] / d[n]", ("float64", "float32")),
        ("x[m,n] / d[n]", ("float32", "float64")),
    ],
)
def test_quotients_that_a_bit_decides(text: str, types: tuple[str, str]) -> None:
    """Whole numbers times a divisor, by it: three times the same."""
    names = [{"float32": "f32", "float64": "f64"}[each] for each in types]
    wide = "f64" if "f64" in names else "f32"
    spec = opgen.compile(
        f"op f(x: {names[0]}[M,N], d: {names[1]}[N]) -> y: {wide}[N]\n  y[n] = sum(m) {text}",
        "bits.op",
    )
    x_type, d_type = (getattr(torch, each) for each in types)
    d = torch.arange(1, 65).to(d_type) / (1 if wide == "f32" else 7)
    x = torch.stack([d.double() * factor for factor in (1, 2, 5)]).to(x_type)
    quotients = x / d
    terms = {"f": quotients.floor(), "s": (quotients >= 1).to(quotients.dtype), "x": quotients}
    with emulated():
        found = spec.f(x, d)
    options = {"rtol": 1e-14 if wide == "f64" else 0, "atol": 0}
    torch.testing.assert_close(found, terms[text[0]].sum(0), **options)


def test_only_terms_of_sums_are_products() -> None:
    """What is divided after the sum is rounded once."""
    op = read("op f(x[M,N], d[N]) -> y[N]\n  y[n] = (sum(m) x[m,n] / d[n]) / d[n]")
    text = cuda_source(threads(op))
    assert "by_inverse(" in text
    assert re.search(r"y_out\[lane\] = to_T\(total\w*\[lane\] / ", text)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("dtype", "device"),
    [("float32", "cpu"), ("float64", "cpu"), gpu_case("float32"), gpu_case("float64")],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_extreme_divisors(dtype: str, channels: int, device: str) -> None:
    """Both gradients of shift_sum_pinv beside divisions one by one."""
    spec = opgen.load(SPECS / "shift_sum.op")
    width, step = len(EXTREMES), 2
    columns = width + (channels - 1) * step
    source = random.Random(channels)
    kind = np.dtype(dtype)
    mask = np.array([EXTREMES, *(source.sample(EXTREMES, width) for _ in range(2))], kind)
    if dtype == "float64":
        with np.errstate(all="ignore"):
            mask = np.sign(mask) * np.abs(mask) ** 8  # from 0 to infinity in this type, too
    height = len(mask)
    y = np.array([source.gauss(0, 1) for _ in range(2 * height * columns)], kind)
    image = np.array(
        [source.choice((*EXTREMES, 1.5, -2.5)) for _ in range(2 * channels * height * width)], kind
    )
    y, image = y.reshape(2, 1, height, columns), image.reshape(2, channels, height, width)

    grad_y, grad_mask = np.zeros_like(y), np.zeros_like(mask)
    sizes = np.zeros_like(y), np.zeros_like(mask)  # the sums of what the terms have without sign
    reached = np.zeros(columns, kind)
    for c in range(channels):
        reached[c * step : c * step + width] += 1
    with np.errstate(all="ignore"):
        for b, c, h, w in itertools.product(range(2), range(channels), range(height), range(width)):
            quotient = image[b, c, h, w] / mask[h, w]
            z = y[b, 0, h, w + c * step] / reached[w + c * step]
            grad_y[b, 0, h, w + c * step] += quotient
            grad_mask[h, w] += -(z / mask[h, w] * quotient)
            sizes[0][b, 0, h, w + c * step] += abs(quotient)
            sizes[1][h, w] += abs(z / mask[h, w] * quotient)
        grad_y /= reached

    with on(device):
        given, masks = (
            torch.tensor(each, device=device).requires_grad_() for each in (y, mask[None, None])
        )
        result = spec.shift_sum_pinv(given, masks, C=channels, step=step)
        cotangent = torch.tensor(image, device=device)
        found = torch.autograd.grad(result, (given, masks), cotangent)
    kinds = torch.finfo(getattr(torch, dtype))
    for one, expected, size in zip(found, (grad_y, grad_mask), sizes, strict=True):
        given, wanted = one.cpu().numpy().reshape(expected.shape), expected
        finite = np.isfinite(wanted)
        assert finite.any()
        assert np.array_equal(given[~finite], wanted[~finite], equal_nan=True)
        error = np.abs(given[finite] - wanted[finite])
        assert (error <= 16 * kinds.eps * size[finite] + kinds.tiny).all()


# ---------------------------------------------------------------------------- what need not be
def lanes_of(nodes: tuple[Node, ...]) -> list[Lanes]:
    return [each for each in walk(nodes) if isinstance(each, Lanes)]


def stretches(kernel: Kernel) -> tuple[Stretch, ...]:
    names = {kernel.row: "LANES", kernel.group: "ROWS"}
    return tuple(
        Stretch(row.axis.name, row.axis.extent, row.axis.name, names[row])
        for row in kernel.stretched
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stem", ["shift_sum", "conv", "pool", "pad", "upsample_nearest"])
def test_cells_are_left_alone_only_where_none_does_anything(stem: str) -> None:
    """Conditions of all cells, at numbers by chance, beside what is asked once for a thread."""
    source = random.Random(0)
    looked_at = skipped = 0
    ops = compiler.check_source(compiler.read_source(SPECS / f"{stem}.op"))
    joint = [joint_adjoint(op, [each.name for each in differentiable(op)]).op for op in ops]
    for kernel in itertools.chain.from_iterable(threads(op).kernels for op in (*ops, *joint)):
        for node in lanes_of(kernel.body):
            found = interior(node, stretches(kernel), kernel.stretched)
            if found is None or not found.possible:
                continue
            tests = [each for each in node.body if not isinstance(each, Define)]
            (test,) = tests
            assert isinstance(test, If)
            conditions = (*test.conditions, *found.possible, *found.conditions)
            names = frozenset[str]().union(*(each.value.symbols for each in conditions))
            for _ in range(400):
                values = {name: source.randint(0, 9) for name in sorted(names)}
                cells = [values]
                for row in kernel.stretched:
                    first, count = values.get(row.first, 0), source.choice((1, 2, 4))
                    values |= {row.first: first, row.last: first + count - 1}
                    cells = [
                        {**cell, row.axis.name: first + at} for cell in cells for at in range(count)
                    ]
                try:
                    may = all(each.holds(values) for each in found.possible)
                    holds = [
                        all(each.holds(values | cell) for each in test.conditions) for cell in cells
                    ]
                except (KeyError, ZeroDivisionError):
                    continue
                looked_at += 1
                skipped += not may
                assert may or not any(holds)
    assert looked_at > 100
    assert 0 < skipped < looked_at


def test_only_what_all_of_it_is_asked_for() -> None:
    """Nothing is left out where other cells, or their other halves, have terms of their own."""
    program = threads(
        read(
            "op f(x[C,N,M]; s = 1, o = 0, V: size) -> y[N,V]\n"
            "  y[n,v] = sum(c if 2*v + 3*n >= c*s + o) x[c,n, v//2 ?0]"
        )
    )
    found = [
        interior(node, stretches(kernel), kernel.stretched)
        for kernel in program.kernels
        for node in lanes_of(kernel.body)
    ]
    assert any(each is not None for each in found)
    assert not any(each.possible for each in found if each is not None)
