"""Ops without a C compiler: the printed PyTorch functions mean what the notation says.

They are compared with the reference interpreter on random ops, with the loops written by hand and
PyTorch on every op of specs/, and bit by bit with the C kernels.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import forks
import opgen
import test_emit_c
import test_spec_kernels
from catalogue import CATALOGUE, Entry, each_but_long
from opgen import compiler
from opgen.ir.primitives import PRIMITIVES, Absence, Kind
from opgen.runtime import build, eager, lookup_library
from opgen.runtime.eager import points, terms
from test_runtime import SPEC

pytestmark = pytest.mark.filterwarnings("ignore:.*plain PyTorch operations:RuntimeWarning")

each = pytest.mark.parametrize("subject", CATALOGUE, ids=repr)
CPU = torch.device("cpu")


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Within this block there is no C compiler. Ops that are compiled already stay so."""
    # Calls that a compiled kernel has served would be served by it again.
    with pytest.MonkeyPatch.context() as patch, lookup_library.suspended():
        patch.setenv("OPGEN_CC", "/no/such/compiler")
        yield


@cache
def module(path: str) -> ModuleType:
    """A module whose ops have never met a compiler."""
    return opgen.load(path)


# ---------------------------------------------------------------------------- random ops
@settings(max_examples=30)
@given(data=st.data())
def test_computes_what_the_notation_says(data: st.DataObject) -> None:
    with without_compiler():
        test_emit_c.assert_computes_what_the_notation_says(data)


@settings(max_examples=15)
@given(data=st.data(), size=st.integers(1, 5))
def test_parts_of_any_size_give_the_same(data: st.DataObject, size: int) -> None:
    with without_compiler(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "LARGEST_CHUNK", size)
        test_emit_c.assert_computes_what_the_notation_says(data)


@pytest.mark.parametrize("has_compiler", [True, False])
def test_an_integer_without_dims_is_part_of_an_index(has_compiler: bool) -> None:
    function = opgen.compile(
        "op f(x[M], i: int[M], p: int[]; V: size) -> y[V]\n"
        "  y[v] = sum(m in M if i[m] >= 1 and v == p[] + m) x[m] for v in V\n"
    ).f
    with contextlib.nullcontext() if has_compiler else without_compiler():
        y = function(torch.ones(3), torch.tensor([1, 0, 2]), torch.tensor(1), V=5)
    assert y.tolist() == [0, 1, 0, 1, 0]


@given(st.lists(st.integers(0, 5), max_size=4), st.integers(1, 40))
def test_boxes_hold_every_point_once_in_order(extents: list[int], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "LARGEST_CHUNK", size)
        found = []
        for box in points.boxes(extents):
            inside = list(itertools.product(*(range(*bounds) for bounds in box)))
            assert 0 < len(inside) <= size
            found += inside
    assert found == list(itertools.product(*map(range, extents)))


# ---------------------------------------------------------------------------- the ops of specs/
@each_but_long(CATALOGUE)
@settings(max_examples=2)
@given(data=st.data())
@pytest.mark.sampled(6)
def test_specs_are_the_plain_loops(subject: Entry, data: st.DataObject) -> None:
    case = data.draw(subject.cases)
    arrays = subject.make_inputs(case, data.draw(st.integers(0, 2**16)))
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
    function = getattr(module(str(subject.spec_path)), subject.op)
    with without_compiler():
        got = test_spec_kernels.as_tuple(function(**tensors, **case.attributes))
    wanted = subject.reference(**arrays, **case.attributes)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for value, expected in zip(got, wanted, strict=True):
        torch.testing.assert_close(value, torch.from_numpy(np.asarray(expected)))


@pytest.mark.slow
@pytest.mark.parametrize("subject", [e for e in CATALOGUE if e.differentiable], ids=repr)
@settings(max_examples=2)
@given(data=st.data())
def test_gradients_are_slopes_of_the_plain_loops(subject: Entry, data: st.DataObject) -> None:
    """The gradient along a direction against central differences of the loops."""
    case = data.draw(subject.cases)
    arrays = subject.make_inputs(case, data.draw(st.integers(0, 2**16)))
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
    inputs = test_spec_kernels.leaves(subject, tensors)
    numbers = np.random.default_rng(0)
    with without_compiler():
        function = getattr(module(str(subject.spec_path)), subject.op)
        output, *_ = test_spec_kernels.as_tuple(function(**tensors, **case.attributes))
        cotangent = torch.from_numpy(numbers.standard_normal(tuple(output.shape)))
        gradients = torch.autograd.grad(output, inputs, cotangent)

    def loops(moved: dict[str, np.ndarray]) -> float:
        result = subject.reference(**{**arrays, **moved}, **case.attributes)
        first = np.asarray(result[0] if isinstance(result, tuple) else result)
        return float((first * cotangent.numpy()).sum())

    names = [name for name in subject.differentiable if name in tensors]
    for name, gradient in zip(names, gradients, strict=True):
        direction = numbers.standard_normal(arrays[name].shape)
        step = 1e-6 * direction
        high, low = loops({name: arrays[name] + step}), loops({name: arrays[name] - step})
        assert gradient.numel() == 0 or math.isfinite(high)
        slope = float((gradient.numpy() * direction).sum())
        assert slope == pytest.approx((high - low) / 2e-6, rel=1e-5, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("subject", test_spec_kernels.WITH_TORCH, ids=repr)
@settings(max_examples=1)
@given(data=st.data())
def test_two_backwards_are_those_of_torch(subject: Entry, data: st.DataObject) -> None:
    assert subject.torch_equivalent is not None
    case = data.draw(subject.cases)
    tensors = test_spec_kernels.tensors_of(subject, case, data.draw(st.integers(0, 2**16)))
    inputs = test_spec_kernels.leaves(subject, tensors)
    as_tuple = test_spec_kernels.as_tuple
    with without_compiler():
        function = getattr(module(str(subject.spec_path)), subject.op)
        got = as_tuple(function(**tensors, **case.attributes))
        wanted = as_tuple(subject.torch_equivalent(**tensors, **case.attributes))
        # torch's own double backward fails on some empty tensors.
        assume(all(value.numel() for value in (*got, *inputs)))
        test_spec_kernels.chain(got, wanted, inputs)


# ---------------------------------------------------------------------------- against C kernels
def both(
    text: str, name: str, *tensors: torch.Tensor, **attributes: object
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What an op gives with and without a compiler."""
    as_tuple = test_spec_kernels.as_tuple
    compiled = as_tuple(getattr(opgen.compile(text), name)(*tensors, **attributes))
    with without_compiler():
        interpreted = as_tuple(getattr(opgen.compile(text), name)(*tensors, **attributes))
    return list(compiled), list(interpreted)


def assert_same_bits(text: str, name: str, *tensors: torch.Tensor, **attributes: object) -> None:
    compiled, interpreted = both(text, name, *tensors, **attributes)
    for one, other in zip(compiled, interpreted, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)


FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS])
@pytest.mark.sampled(8)
def test_every_dtype_gives_the_bits_of_the_kernel(dtype: torch.dtype) -> None:
    """Whole numbers add up exactly in any order, and in 32 bits; integers wrap around alike."""
    x = torch.randint(-100, 100, (2, 3, 40), generator=torch.Generator().manual_seed(1)).to(dtype)
    assert_same_bits(SPEC, "shift_sum", x, step=2)
    assert_same_bits(SPEC, "max_pool", x[0])
    assert_same_bits(SPEC, "total", x.flatten())


REDUCTIONS = """
op reduce(x[N,K]) -> big[N], small[N], product[N], first: i64[N], last: i32[N], seen: bool[N]
  big[n] = max(k) x[n,k]
  small[n] = min(k) x[n,k]
  product[n] = prod(k) x[n,k]
  first[n] = argmax(k) x[n,k]
  last[n] = argmin(k) x[n,k]
  seen[n] += 1  for k in K  if k >= 1
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.uint8])
def test_reductions_of_nothing_and_of_equals(width: int, dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(width)
    assert_same_bits(
        REDUCTIONS, "reduce", torch.randint(0, 3, (20, width), generator=numbers).to(dtype)
    )


def test_nan_wins_and_the_first_of_equals() -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0])
    x = torch.cartesian_prod(values, values, values)
    assert_same_bits(REDUCTIONS, "reduce", x)
    with without_compiler(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "LARGEST_CHUNK", 2)  # rows go on in the next part
        big, small, _, first, last, _ = opgen.compile(REDUCTIONS).reduce(x)
    rows = x.numpy()
    has_nan = x.isnan().any(1)
    assert big[has_nan].isnan().all()
    assert small[has_nan].isnan().all()
    assert first.tolist() == np.argmax(rows, 1).tolist()
    assert last.tolist() == np.argmin(rows, 1).tolist()


def test_what_is_absent_is_not_computed() -> None:
    text = (
        "op weigh(x: float[N], w[N]) -> y[N], z[N]\n"
        "  y[i] = x[i - 1 ?0] * w[i]\n"
        "  z[i] = select(i >= 1, x[i - 1], 0) / w[i]  if i < N - 1\n"
    )
    x, w = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([math.inf, 2.0, 0.0])
    with without_compiler():
        y, z = opgen.compile(text).weigh(x, w)
    assert y.tolist() == [0.0, 2.0, 0.0]
    assert z.tolist() == [0.0, 0.5, 0.0]


def test_strides_and_optional_inputs() -> None:
    numbers = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, (2, 3, 6, 5), generator=numbers).float().permute(0, 3, 1, 2)[:, ::2]
    w = torch.randint(-9, 9, (2, 3, 2, 2), generator=numbers).float()
    assert_same_bits(SPEC, "conv", x, w, p=1)
    assert_same_bits(SPEC, "conv", x.expand(2, 3, 3, 6), w, torch.ones(1).expand(2), p=1, s=2)


@pytest.mark.parametrize("value", [-1, 4])
def test_an_index_outside_is_the_same_index_error(value: int) -> None:
    index = torch.tensor([0, value])
    with without_compiler():
        ops = opgen.compile(SPEC)
        with pytest.raises(IndexError) as caught:
            ops.embed(torch.ones(4, 1), index)
        assert str(caught.value) == (
            f"embed: index {value} is outside of dimension 0 of 't', which has extent 4 "
            "(in t[id[n], e])"
        )
        with pytest.raises(IndexError, match=r"dimension 0 of 'y'.*in y\[id\[n\]\]"):
            ops.histogram(index, torch.ones(2), V=4)


def test_an_index_outside_that_nobody_uses_is_no_fault() -> None:
    text = (
        "op pick(t[V], id: int[N], w[N]) -> y[N], z[N], u[N]\n"
        "  y[n] = select(w[n] > 0, t[id[n]], 0)\n"
        "  z[n] = w[n - 1 ?0] * t[id[n]]\n"
        "  u[n] = t[id[n]]  if n >= 1\n"
    )
    t, w = torch.tensor([5.0, 6.0]), torch.tensor([0.0, 1.0])
    with without_compiler():
        ops = opgen.compile(text)
        y, z, u = ops.pick(t, torch.tensor([9, 1]), w)
        assert (y.tolist(), z.tolist(), u.tolist()) == ([0, 6], [0, 0], [0, 6])
        with pytest.raises(IndexError, match="index 9"):
            ops.pick(t, torch.tensor([0, 9]), w)


@pytest.mark.parametrize(
    "statement",
    ["y[n] = argmax(k in 1; id[jd[n]]) x[n]", "y[n] = 1  if id[jd[n]] > 0", "y[n] = id[jd[n]]"],
)
def test_an_integer_read_by_a_bad_index_is_a_fault(statement: str) -> None:
    """In positions, conditions and values."""
    text = f"op f(x[N], id: int[V], jd: int[N]) -> y: i64[N]\n  {statement}\n"
    x, rows = torch.ones(2), torch.tensor([5, 6])
    with without_compiler():
        function = opgen.compile(text).f
        assert function(x, rows, torch.tensor([1, 0])).shape == (2,)
        with pytest.raises(IndexError, match=r"index 2 .* of 'id'.*\(in id\[jd\[n\]\]\)"):
            function(x, rows, torch.tensor([1, 2]))


def test_a_double_is_rounded_once() -> None:
    text = "op narrow(x: f64[N]) -> y: f16[N]\n  y[n] = x[n]\n"
    x = np.random.default_rng(0).standard_normal(20000)
    # Halfway between two f16 numbers but for a bit that float32 has not.
    x[:10000] = np.float16(x[:10000]).astype(float) * (1 + 2**-11) * (1 + 2.0**-30)
    with without_compiler():
        y = opgen.compile(text).narrow(torch.from_numpy(x))
    assert np.array_equal(y.numpy(), x.astype(np.float16))
    assert not np.array_equal(y.numpy(), x.astype(np.float32).astype(np.float16))


# ---------------------------------------------------------------------------- primitives
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 1e-3, 20.0, math.inf, -math.inf, math.nan]


def test_every_primitive_is_known() -> None:
    assert set(PRIMITIVES) == eager.PRIMITIVES


@pytest.mark.parametrize("name", PRIMITIVES)
@pytest.mark.parametrize("whole", [False, True])
def test_primitives_are_those_of_the_table(name: str, whole: bool) -> None:
    row = PRIMITIVES[name]
    numbers = [-3, -1, 0, 1, 2, 7] if whole else SPECIAL
    cases = list(itertools.product(numbers, repeat=row.arity))
    columns = [torch.tensor(column) for column in zip(*cases, strict=True)]
    given = [column if whole else column.double() for column in columns]
    got = terms.apply(name, *(terms.Term(column, torch.float64) for column in given))
    assert got.present is None
    assert got.value.is_floating_point() == (
        row.kind is Kind.NUMBER and (row.needs_float or not whole)
    )
    wanted = []
    for case in cases:
        arguments = [float(x) for x in case] if row.needs_float else case
        wanted.append(float(row.function(*arguments)))
    torch.testing.assert_close(
        got.value.double(), torch.tensor(wanted).double(), rtol=1e-6, atol=1e-6, equal_nan=True
    )


@pytest.mark.parametrize("name", [name for name in PRIMITIVES if name != "select"])
def test_primitives_are_absent_as_the_table_says(name: str) -> None:
    row = PRIMITIVES[name]
    for missing in itertools.product((False, True), repeat=row.arity):
        arguments = []
        for is_missing in missing:
            present = None if not is_missing else torch.tensor(False)
            value = torch.tensor(0.0 if is_missing else math.inf)
            arguments.append(terms.Term(value, torch.float32, present))
        got = terms.apply(name, *arguments)
        absent = got.present is not None and not bool(got.present)
        rules = {
            Absence.ANY: any(missing),
            Absence.ALL: all(missing),
            Absence.NUMERATOR: missing[0],
            Absence.PASS: missing[0],
            Absence.NEVER: False,
        }
        assert absent == rules[row.absence]
        assert not absent or float(got.value) == 0


# ---------------------------------------------------------------------------- what is printed
def test_the_printed_function() -> None:
    text = (
        "op f(t[V,W], id: int[N]; r = 2, scale = 0.5, flip = false) -> y[N,W]\n"
        "  where r >= 1\n"
        "  y[n,w] = scale * -t[id[n], w//r ?clamp] + exp(t[0, w - r ?0])  if w >= 1 and flip\n"
        "  y[n,w] += 2/3  if not flip\n"
    )
    source = opgen.errors.Source(text, "f.op")
    printed = compiler.stage_text(source, "module")
    start = printed.index("def _f_eager")
    end = printed.index("\n\n\n", start)
    assert printed[start:end] == EXPECTED


EXPECTED = '''\
def _f_eager(call: eager.Call) -> None:
    """The statements of `f` in plain PyTorch operations."""
    W, N, r, flip = call.integers("W", "N", "r", "flip")
    scale = call.attribute("scale")
    t = call.input("t")
    id = call.input("id")
    y = call.output("y", "=")
    # y[n,w] = scale * (-t[id[n], w//r ?clamp]) + exp(t[0, w - r ?0]) if w >= 1 and flip
    for at in call.points(N, W):
        n, w = at.iterators
        n, w = at.keep(w >= 1, flip == 1)
        at.assign(
            y,
            (n, w),
            scale * -t.checked("t[id[n], w//r ?clamp]")[id[n], eager.clamp(w // r)]
            + eager.apply("exp", t[0, eager.zero(w - r)]),
        )
    # y[n,w] += 2 / 3 if not flip
    for at in call.points(N, W):
        n, w = at.iterators
        n, w = at.keep(flip == 0)
        at.add(y, (n, w), call.number(2) / 3)'''


def test_sizes_beyond_32_bits_are_python_integers() -> None:
    """A suffix that C needs is no Python."""
    text = "op far(x[N]) -> y[V]\n  let V = N + 65536*131072\n  y[v] = x[v - 65536*131072 ?0]\n"
    x = torch.empty(2, device="meta")
    assert opgen.compile(text).far(x).shape == (8589934594,)


# ---------------------------------------------------------------------------- saying so
PROGRAM = """
import sys, warnings
import torch
import spec
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    for _ in range(2):
        spec.total(x.flatten()).backward()
        spec.nothing(x.flatten())
print(x.grad.tolist())
for warning in caught:
    print(warning.category.__name__, warning.message)
"""


def run_program(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "spec.op").write_text(SPEC)
    opgen.build(tmp_path / "spec.op", tmp_path)
    cache = {"OPGEN_CACHE": str(tmp_path / "cache")}
    return forks.run(forks.within(tmp_path, PROGRAM), **cache, **environment)


@pytest.mark.parametrize(
    "environment",
    [{"PATH": ""}, pytest.param({"OPGEN_CC": "/no/such/compiler"}, marks=pytest.mark.slow)],
)
def test_a_machine_without_a_compiler_is_told_once(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    result = run_program(tmp_path, **environment)
    assert result.returncode == 0, result.stdout
    gradient, *warned = result.stdout.splitlines()
    assert gradient == "[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]"
    (line,) = warned
    assert line.startswith("RuntimeWarning ")
    assert "plain PyTorch operations" in line
    assert ("install gcc or clang" if "PATH" in environment else "$OPGEN_CC is") in line


def test_a_broken_compiler_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cc: license expired' >&2\nexit 3\n")
    broken.chmod(0o755)
    result = run_program(tmp_path, OPGEN_CC=str(broken))
    assert result.returncode == 1
    assert "BuildError" in result.stdout
    assert "license expired" in result.stdout
    assert "plain PyTorch operations" not in result.stdout


def test_harness_really_goes_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with a wrong printed function the numbers are wrong."""

    def wrong(points_: points.Points, *arguments: object) -> None:
        original(points_, *arguments)
        target = arguments[0]
        assert isinstance(target, eager.Operand)
        target.data += 1

    original: Callable[..., None] = points.Points.add
    monkeypatch.setattr(points.Points, "add", wrong)
    with without_compiler():
        assert opgen.compile(SPEC).total(torch.ones(3)).item() == 4
    assert opgen.compile(SPEC).total(torch.ones(3)).item() == 3
    assert build.find_compiler()
