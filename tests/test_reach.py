"""What integer arithmetic comes to at most, and calls whose indices might leave 64 bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import opgen
from catalogue import CATALOGUE, Entry
from opgen import library
from opgen.algebra.poly import Kind, Poly
from opgen.emit.reach import index_reach, reach
from opgen.errors import Source
from opgen.ir import loops
from opgen.ir.binding import bind
from opgen.lang.read import read
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.programs import along_rows
from opgen.testing import run_loops
from opgen.testing.cuda_on_cpu.emulated import emulated
from opgen.testing.sizes import flattened
from spec_calls import checked, sizes_of
from test_library import alone


def parts(value: Poly, values: run_loops.Environment) -> int:
    """The sum of the magnitudes of the terms of a polynomial, or of one within it, if larger."""
    terms = (Poly({monomial: n}).evaluate(values) for monomial, n in value.terms.items())
    within = (parts(arg, values) for atom in value.atoms() for arg in atom.args)
    return max(sum(map(abs, terms)), *within, 0)


@pytest.mark.parametrize("subject", CATALOGUE, ids=repr)
@settings(max_examples=2)
@given(data=st.data())
@pytest.mark.sampled(6)
def test_nothing_goes_further_than_the_reach(subject: Entry, data: st.DataObject) -> None:
    op = checked(subject)
    program = schedule(op, gather(op))
    case = data.draw(subject.cases)
    inputs = subject.make_inputs(case, 0)
    flat = {name: array.reshape(flattened(op, name, array.shape)) for name, array in inputs.items()}
    binding = bind(op, sizes_of(op, case), flat, case.attributes)
    for tensor in op.inputs:
        if tensor.name not in flat:
            shape = tuple(dim.extent.evaluate(binding.symbols) for dim in tensor.dims)
            flat[tensor.name] = np.full(shape, tensor.default, binding.storage[tensor.name])
    every, indices = [0], [0]
    evaluate, scalar = run_loops._Runner.integer, run_loops._Runner.scalar

    def record(self: run_loops._Runner, value: Poly, values: run_loops.Environment) -> int:
        if not any(atom.kind is Kind.LOAD for atom in value.all_atoms()):
            found = parts(value, values)
            every[0], indices[0] = max(every[0], found), max(indices[0], found)
        return evaluate(self, value, values)

    def record_number(
        self: run_loops._Runner, value: loops.Scalar, values: run_loops.Environment
    ) -> object:
        if not isinstance(value, loops.Integer):
            return scalar(self, value, values)
        before = indices[0]
        found = scalar(self, value, values)
        indices[0] = before
        return found

    runner = run_loops._Runner
    for each in (program, along_rows(op, program)):
        every[0] = indices[0] = 0
        with (
            mock.patch.object(runner, "integer", record),
            mock.patch.object(runner, "scalar", record_number),
        ):
            run_loops.run(each, flat, binding.symbols, dict(binding.parameters), binding.storage)
        magnitudes = {name: max(1, abs(value)) for name, value in binding.symbols.items()}
        assert every[0] <= max(reach(kernel).evaluate(magnitudes) for kernel in each.kernels)
        assert indices[0] <= index_reach((each,)).evaluate(magnitudes)


def reach_of(text: str, **integers: int) -> int:
    op = read(Source(text))[-1]
    return index_reach((schedule(op, gather(op)),)).evaluate(integers)


def test_the_reach_grows_with_what_is_multiplied() -> None:
    op = read(Source("op f(x[N]; step=1) -> y[N]\n  y[n] = x[n*step*step ?0]"))[-1]
    (kernel,) = schedule(op, gather(op)).kernels
    assert reach(kernel).evaluate({"N": 10, "step": 2**20}) >= 10 * 2**40


def test_remainders_reach_no_further_than_what_they_are_of() -> None:
    text = "op f(x[N]; s=1) -> y[N]\n  where s >= 1\n  y[n] = x[n*s % N]\n"
    assert reach_of(text, N=2**20, s=2**32) < 2**60


# ---------------------------------------------------------------------------- calls
STEPS = "op steps(x[N]; s=1) -> y[N]\n  where s >= 0\n  y[i] = x[min(i*s, N-1)]\n"
FAR = "op far(a[A,B], x[N]) -> y[N]\n  y[i] = x[min(i*A*B, N-1)]\n"
WINDOW = "op window(x[N]; s=1, t=1) -> y[N]\n  y[i] = x[i + s*t ?0]\n"
WHERE = "op chosen(x[N]; s=1) -> y[N]\n  y[i] = x[i]  if i*s >= 0 and s >= 1\n"
RANGE = (
    "op turns(x[N]; s=1) -> y[]\n  where s >= 0, N >= 1\n  y[] += x[min(i,N-1)] for i in s*s*N\n"
)


def test_steps_that_wrap_are_refused() -> None:
    ops, x = opgen.compile(STEPS), torch.arange(5.0)
    assert ops.steps(x, s=2).tolist() == [0, 2, 4, 4, 4]
    assert ops.steps(x, s=2**57).tolist() == [0, 4, 4, 4, 4]
    for s in (2**60, 2**62 - 1, 2**62):
        with pytest.raises(ValueError, match=rf"steps: too large together: N = 5, s = {s};"):
            ops.steps(x, s=s)
        with pytest.raises(ValueError, match="kernels compute indices in 64 bits"):
            ops.steps(x.requires_grad_(), s=s)


def test_gradients_are_right_or_refused() -> None:
    """Their own indices reach further than those of the op."""
    ops, x = opgen.compile(STEPS), torch.arange(5.0, requires_grad=True)
    refusals = set()
    for s in range(2**54, 2**58, 2**54):
        if refused(functools.partial(ops.steps, x, s=s)) is not None:
            break
        y = ops.steps(x, s=s).sum()
        refusal = refused(functools.partial(torch.autograd.grad, y, x, retain_graph=True))
        refusals.add(refusal is not None)
        if refusal is None:
            (gradient,) = torch.autograd.grad(y, x)
            assert gradient.tolist() == [1, 0, 0, 0, 4]
    assert refusals == {False, True}


def refused(call: Callable[[], object]) -> str | None:
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def test_sizes_of_an_expanded_tensor_that_wrap_are_refused() -> None:
    ops, x = opgen.compile(FAR), torch.arange(5.0)
    assert ops.far(torch.ones(1, 1).expand(2**20, 2**20), x).tolist() == [0, 4, 4, 4, 4]
    with pytest.raises(
        ValueError, match=r"far: too large together: A = 2147483648, B = 2147483648, N = 5;"
    ):
        ops.far(torch.ones(1, 1).expand(2**31, 2**31), x)


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        (WINDOW, {"s": 2**32, "t": 2**32}),
        (WINDOW, {"s": -(2**32), "t": 2**32}),
        (WHERE, {"s": 2**62}),
        (RANGE, {"s": 2**31}),
    ],
)
def test_offsets_conditions_and_ranges_that_wrap(text: str, attributes: dict[str, int]) -> None:
    (name,) = (op.name for op in read(Source(text)))
    with pytest.raises(ValueError, match=f"{name}: too large together"):
        getattr(opgen.compile(text), name)(torch.ones(5), **attributes)


def test_numbers_may_wrap() -> None:
    ops = opgen.compile("op f(x: i64[N]; s=1) -> y: i64[N]\n  y[i] = x[i] * (i*s)\n")
    x = torch.arange(5)
    assert ops.f(x, s=2**62).tolist() == [0, 2**62, 0, 2**62, 0]


def test_products_of_which_remainders_are_taken() -> None:
    ops = opgen.compile("op f(x[N]; s=1) -> y[N]\n  where s >= 1\n  y[i] = x[i*s % N]\n")
    x, s = torch.arange(1000.0), 2654435761
    assert torch.equal(ops.f(x, s=s), x[torch.arange(1000) * s % 1000])


def test_threads_of_a_gpu_are_asked_for_no_more() -> None:
    ops = opgen.compile(STEPS)
    with emulated(threads=4), pytest.raises(ValueError, match="too large together"):
        ops.steps(torch.arange(5.0), s=2**60)


@pytest.mark.slow
def test_a_library_refuses_them_too(tmp_path: Path) -> None:
    (tmp_path / "steps.op").write_text(STEPS)
    path = library.build_library(tmp_path / "steps.op", tmp_path, ["f32"])
    name = opgen.load(tmp_path / "steps.op").FAMILY.operations["steps"].registered_name
    x = torch.arange(5.0)
    right, wrong = alone(path, [(name, (x, 2)), (name, (x, 2**60))], tmp_path)
    assert right[0].tolist() == [0, 2, 4, 4, 4]
    assert "too large for 64 bits" in wrong
