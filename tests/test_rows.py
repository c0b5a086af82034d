"""Kernels scheduled for the CPU and for particular attributes mean what the notation means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import notation_strategies
import opgen
from catalogue import CATALOGUE, SPECS, Entry, each_but_long
from notation_strategies import Call
from opgen.ir.binding import bind
from opgen.ir.context import facts_of
from opgen.ir.loops import Kernel, Lanes, Program, walk
from opgen.ir.notation import BATCH, Op
from opgen.ir.show_loops import show_kernel, show_program
from opgen.ir.verify import verify
from opgen.passes.gather import gather
from opgen.passes.padded import with_padding
from opgen.passes.relayout import channels_last, relayout
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import (
    attributes_of,
    factors_of,
    lengths_of,
    specialise,
    windows_of,
)
from opgen.testing.sizes import flattened
from spec_calls import checked, gradient, leading, ops_of, sizes_of
from spec_calls import run as run_reference
from test_loops import _agree, differences, execute, op_of


def narrow(program: Program, width: int = 3) -> Program:
    """With stretches of rows so short that small tensors have several."""

    def kernel(each: Kernel) -> Kernel:
        row, group = each.row, each.group
        return replace(
            each,
            row=None if row is None else replace(row, width=width),
            group=None if group is None else replace(group, width=width),
        )

    return replace(program, kernels=tuple(map(kernel, program.kernels)))


def scheduled(op: Op, special: Op | None = None) -> Program:
    special = special or op
    program = rows(schedule(special, gather(special)), facts_of(special))
    return narrow(with_padding(special, program))


@settings(max_examples=60)
@given(data=st.data())
def test_rows_mean_what_the_notation_means(data: st.DataObject) -> None:
    op = data.draw(notation_strategies.ops())
    call = data.draw(notation_strategies.calls(op))
    assert not differences(op, call, scheduled(op))


@pytest.mark.slow
@given(data=st.data())
def test_rows_of_many_ops_mean_what_the_notation_means(data: st.DataObject) -> None:
    op = data.draw(notation_strategies.ops())
    call = data.draw(notation_strategies.calls(op))
    assert not differences(op, call, scheduled(op))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("special", ["nothing", "attributes", "sizes"])
@pytest.mark.parametrize("subject", CATALOGUE, ids=repr)
@settings(max_examples=2)
@given(data=st.data())
def test_rows_of_specs_mean_what_the_notation_means(
    special: str, subject: Entry, data: st.DataObject
) -> None:
    op = checked(subject)
    case = data.draw(subject.cases)
    inputs = subject.make_inputs(case, data.draw(st.integers(0, 99)))
    wanted = run_reference(op, sizes_of(op, case), inputs, case.attributes, leading(op, case))
    flat = {name: array.reshape(flattened(op, name, array.shape)) for name, array in inputs.items()}
    call = Call(sizes_of(op, case), flat, case.attributes)
    fixed = None if special == "nothing" else specialised(op, call, special == "sizes")
    got, _ = execute(op, call, scheduled(op, fixed))
    for name, array in wanted.items():
        assert _agree(got[name].reshape(array.shape), array)


IMAGES = [
    entry
    for entry in CATALOGUE
    if all(not tensor.batched for tensor in checked(entry).inputs)
    and any(len(tensor.dims) in (4, 5) for tensor in checked(entry).inputs)
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("special", [False, True], ids=["generic", "special"])
@each_but_long(IMAGES)
@settings(max_examples=2)
@given(data=st.data())
def test_channels_may_come_last(special: bool, subject: Entry, data: st.DataObject) -> None:
    """Tensors whose dims stand in another order, against the op in declared order."""
    op = checked(subject)
    case = data.draw(subject.cases)
    inputs = subject.make_inputs(case, data.draw(st.integers(0, 99)))
    wanted = run_reference(op, sizes_of(op, case), inputs, case.attributes)
    tensors = (*op.inputs, *op.outputs)
    bits = [len(tensor.dims) in (4, 5) and data.draw(st.booleans()) for tensor in tensors]
    orders = channels_last(op, sum(bit << at for at, bit in enumerate(bits)))
    moved = {
        name: array.transpose(orders.get(name, range(array.ndim))) for name, array in inputs.items()
    }
    other = relayout(op, orders)
    call = Call(sizes_of(op, case), moved, case.attributes)
    got, _ = execute(
        other, call, scheduled(other, specialised(other, call, True) if special else None)
    )
    for name, array in wanted.items():
        assert _agree(got[name], array.transpose(orders.get(name, range(array.ndim))))


def specialised(op: Op, call: Call, sizes: bool) -> Op:
    """The op for the attributes and windows of a call, or for all its sizes but the batch."""
    symbols = bind(op, call.sizes, call.tensors, call.attributes).symbols
    names = {*attributes_of(op), *windows_of(op)}
    if sizes:
        names |= {*factors_of(op), *lengths_of(op)}
    windows = {*windows_of(op), *factors_of(op), *lengths_of(op)}
    values = {name: symbols[name] for name in names if symbols[name] or name not in windows}
    special = specialise(op, values)
    verify(special)
    return special


@pytest.mark.sampled(4, 1)
@each_but_long(entry for entry in CATALOGUE if entry.differentiable)
@settings(max_examples=1)
@given(data=st.data())
def test_rows_of_gradients_mean_what_the_notation_means(
    subject: Entry, data: st.DataObject
) -> None:
    op = checked(subject)
    case = data.draw(subject.cases)
    inputs = subject.make_inputs(case, data.draw(st.integers(0, 99)))
    flat = {name: array.reshape(flattened(op, name, array.shape)) for name, array in inputs.items()}
    symbols = bind(op, sizes_of(op, case), flat, case.attributes).symbols
    numbers = np.random.default_rng(0)
    for name in subject.differentiable:
        derived = gradient(op, name).op
        sizes = {size: symbols[size] for size in (*derived.sizes, BATCH) if size in symbols}
        tensors = {
            tensor.name: flat[tensor.name]
            if tensor.name in flat
            else numbers.standard_normal([d.extent.evaluate(symbols) for d in tensor.dims])
            for tensor in derived.inputs
        }
        attributes = {
            a.name: case.attributes.get(a.name, symbols.get(a.name, a.default))
            for a in derived.attributes
        }
        call = Call(sizes, tensors, attributes)
        for special in (None, specialised(derived, call, False), specialised(derived, call, True)):
            program = scheduled(derived, special)
            assert not differences(derived, call, program), show_program(program)


# ---------------------------------------------------------------------------- negative control
def test_a_lane_too_many_is_noticed() -> None:
    op = op_of("op f(x[N]) -> y[N]\n  y[n] = sum(k in 3) x[n + k - 1 ?0]")
    call = Call({"N": 7}, {"x": np.arange(1.0, 8.0)}, {})
    program = scheduled(op)
    assert not differences(op, call, program)
    (kernel,) = program.kernels
    lanes = [node for node in walk(kernel.body) if isinstance(node, Lanes)]
    middle = next(node for node in lanes if node.lower and node.upper)
    wider = tuple(replace(n, upper=()) if n is middle else n for n in kernel.body)
    broken = replace(program, kernels=(replace(kernel, body=wider),))
    with pytest.raises(AssertionError):
        assert not differences(op, call, broken)


# ---------------------------------------------------------------------------- forms
def text_of(spec: str, **values: int) -> str:
    op = specialise(op_of(spec), values)
    program = rows(schedule(op, gather(op)), facts_of(op))
    return "\n".join(map(show_kernel, program.kernels))


def test_interleaved_cells_are_stored_in_one_pass() -> None:
    text = text_of("op f(x[N,W]; r=2) -> y[N,(W r)]\n  where r >= 1\n  y[n,(w i)] = x[n,w]", r=2)
    assert text.count("lanes") == 1
    assert "y[n, 2*w] = x[n, w]" in text
    assert "y[n, 2*w + 1] = x[n, w]" in text


def test_conditions_become_bounds_of_the_row() -> None:
    shift = "op f(x[C,W]; s=1) -> y[V]\n  where s >= 1\n  let V = W + (C-1)*s\n"
    text = text_of(shift + "  y[v] = sum(c) x[c, v - c*s ?0]", s=2)
    assert "if" not in text
    assert "lanes from 2*c to W + 2*c - 1" in text


def test_parts_of_a_row_have_passes_of_their_own() -> None:
    """No lane is in both halves: none has to ask where it is."""
    text = text_of(
        "op f(x[N,D], z[N,D]) -> y[N,(2 D)]\n"
        "  y[n,(0 d)] += x[n,d]*x[n,d]\n  y[n,(1 d)] += exp(z[n,d])\n"
    )
    assert "lanes to D - 1" in text
    assert "lanes from D\n" in text
    assert "if " not in text


def test_a_single_lane_has_a_pass_of_its_own() -> None:
    """The cell of a diagonal: the others need not ask whether they are it."""
    head = "op f(x[N,N], d[N], t: int[N]) -> y[N,N]\n"
    spec = "  y[n,n] += d[n]\n  y[n,m] += x[n,m]*x[n,m]\n"
    text = text_of(head.replace(", t: int[N]", "") + spec)
    assert "lanes to n - 1" in text
    assert "lanes from n to n" in text
    assert "if " not in text
    function = opgen.compile(f"{head}{spec}  y[n,t[n] ?drop] += d[n]\n").f
    for size in (0, 1, 2, 40):
        x, d = torch.rand(size, size, dtype=torch.float64), torch.rand(size, dtype=torch.float64)
        t = torch.randint(-1, size + 1, (size,))
        wanted = x * x + torch.diag(d)
        for n, m in enumerate(t.tolist()):
            if 0 <= m < size:
                wanted[n, m] += d[n]
        torch.testing.assert_close(function(x, d, t), wanted)


def test_rows_of_a_plane_are_taken_together() -> None:
    text = text_of("op f(x[C,H,W]) -> y[H,W]\n  y[h,w] = sum(c) x[c,h,w]")
    assert "for h in h_first .. h_last" in text


def test_rows_of_a_plane_are_taken_together_under_a_condition() -> None:
    spec = "op f(x[C,H,W]; k = 1) -> y[H,W]\n  y[h,w] = sum(c if {}) x[c,h,w]"
    assert "for h in h_first .. h_last" in text_of(spec.format("k >= 1"))
    assert "for h in h_first .. h_last" not in text_of(spec.format("h >= k"))


def test_what_is_read_as_one_piece_is_read_in_its_order() -> None:
    """Every second row of x, then all others, would load it twice; what is written comes first."""
    parted = "op f(x[(H r),W]; r = 2) -> y[r,H,W]\n  where r >= 1\n  y[i,h,w] = x[(h i),w]"
    assert "parallel h < H, i < 2" in text_of(parted, r=2)
    joined = "op f(x[r,H,W]; r = 2) -> y[(H r),W]\n  where r >= 1\n  y[(h i),w] = x[i,h,w]"
    assert "parallel h < H, i < 2" in text_of(joined, r=2)
    both = (
        "op f(x[(H r),W]; r = 2) -> y[(r H),W]\n  where r == 2, H == 4\n  y[(i h),w] = x[(h i),w]"
    )
    assert "parallel i < 2, h < 4" in text_of(both, r=2, H=4)


def test_few_rows_are_read_in_turn() -> None:
    """Of blocks of many images: a row of blocks for all rows of the images, then the next one."""
    spec = "op f(x[N,(C r r),H,W]; r = 2) -> y[N,C,(H r),(W r)]\n  where r >= 1\n  "
    shuffle = spec + "y[n,c,(h i),(w j)] = x[n,(c i j),h,w]"
    assert "parallel n < N, c < C, h < H, i < 2" in text_of(shuffle, r=2)
    assert "parallel n < N, c < C, i < 3, h < H" in text_of(shuffle, r=3)
    assert "parallel n < N, c < C, i < 4, h < H" in text_of(shuffle, r=4)
    # Not where that would leave parts of rows to be written in turn, or more than a copy is made.
    joined = "op f(x[N,K,2,L,D]; K: size) -> y[N,L,(K D 2)]\n  y[n,l,(k d e)] = x[n,k,e,l,d]"
    assert "parallel n < N, l < L, k < 8" in text_of(joined, K=8)
    doubled = spec + "y[n,c,(h i),(w j)] = 2 * x[n,(c i j),h,w]"
    assert "h < H, i < 4" in text_of(doubled, r=4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.bfloat16),
        *(pytest.param(each, marks=pytest.mark.slow) for each in (torch.float64, torch.float16)),
    ],
)
def test_rows_of_many_images_in_turn(dtype: torch.dtype) -> None:
    """Of rows that are longer and shorter than a part of them, on one thread and on two."""
    own = opgen.load("specs/depth_to_space.op").depth_to_space
    threads = torch.get_num_threads()
    generator = torch.Generator().manual_seed(3)
    for r, height, width in ((3, 5, 341), (3, 0, 300), (4, 7, 257), (4, 9, 600), (5, 3, 1100)):
        shape = (2, 2 * r * r, height, width)
        x = torch.randint(-99, 99, shape, generator=generator).to(dtype)
        gaps = x.new_zeros(*shape[:3], 2 * width)[..., ::2].copy_(x)
        wanted = x.reshape(2, 2, r, r, height, width).permute(0, 1, 4, 2, 5, 3)
        try:
            for given, number in ((x, 1), (x, 2), (gaps, 2)):
                torch.set_num_threads(number)
                y = own(given, r=r)
                assert torch.equal(y, wanted.reshape(2, 2, height * r, width * r))
        finally:
            torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("sizes", "is_inside"),
    [({"H": 8, "W": 32}, True), ({"H": 8, "W": 33}, False), ({"H": 65, "W": 8}, False)],
)
def test_a_point_computes_all_short_rows_of_a_plane(sizes: dict[str, int], is_inside: bool) -> None:
    text = text_of("op f(x[N,H,W]) -> y[N,H,W]\n  y[n,h,w] = 2 * x[n,h,w]", **sizes)
    assert (f"for h in 0 .. {sizes['H'] - 1}" in text) == is_inside
    assert "parallel n < N" in text


@pytest.mark.parametrize(("r", "is_filled"), [(4, True), (5, False)])
def test_gaps_of_up_to_sixteen_cells_are_filled(r: int, is_filled: bool) -> None:
    spec = "op f(x[N,r,r,W]) -> y[N,(W r r)]\n  y[n,(w i j)] = x[n,i,j,w]"
    assert (f"y[n, {r * r}*w + {r}] = x[n, 1, 0, w]" in text_of(spec, r=r)) == is_filled


def test_points_that_guards_leave_out_are_no_cells() -> None:
    """Of three points only the middle one is a cell."""
    op = op_of("op f(x[J]) -> y[1]\n  y[j - 1] += x[j] if 1 <= j < 2")
    for size in (2, 3, 5):
        call = Call({"J": size}, {"x": np.arange(1.0, size + 1)}, {})
        assert not differences(op, call, scheduled(op, specialise(op, {"J": size})))


def test_sums_of_cells_that_only_some_lanes_have() -> None:
    """A lane computes two cells; the last one has the first of them alone in rows of odd length."""
    text = """
op halves(x[W], w[2]) -> y[W]
  y[j] = sum(l in 2) x[(j + l)//2 ?(1)] * w[l]
"""
    own = opgen.compile(text, "halves.op").halves
    for width in (0, 1, 2, 3, 40, 41):
        x, w = torch.randn(width), torch.randn(2)
        padded = torch.cat([x, torch.ones(1)])
        at = torch.arange(width)
        wanted = padded[at // 2] * w[0] + padded[(at + 1) // 2] * w[1]
        torch.testing.assert_close(own(x, w), wanted)


@pytest.mark.parametrize("reducer", ["+=", "max=", "min="])
def test_cells_that_only_some_lanes_have_join_what_is_there(reducer: str) -> None:
    """The second statement writes two cells a lane; each begins with what the first one left."""
    own = opgen.compile(
        f"op joined(x[N,M], w[N]) -> y[N]\n  y[i] {reducer} w[i]\n"
        f"  y[N - 1 - i] {reducer} (sum(k) w[i]*w[i//2]*x[i - 1 ?0,k])  for i in N\n"
    ).joined
    function = {"+=": torch.add, "max=": torch.maximum, "min=": torch.minimum}[reducer]
    for length in (0, 1, 2, 3, 40, 41):
        x, w = torch.randn(length, 3).double(), torch.randn(length).double()
        before = torch.cat([torch.zeros(1, 3).double(), x])[:length]
        terms = w * w[torch.arange(length) // 2] * before.sum(1)
        torch.testing.assert_close(own(x, w), function(w, terms.flip(0)))


@pytest.mark.parametrize(("width", "is_vector"), [(3, False), (4, True), (7, True), (8, True)])
def test_short_sums_are_vectors_where_nothing_else_is(width: int, is_vector: bool) -> None:
    """Rows of seven cells: a vector with half of its lanes, not one product after the other."""
    op = op_of(
        f"op taps(x[N,C,9,9], g[N,C,{width},{width}]) -> w[C,3,3]\n"
        f"  w[c,k,l] = sum(n, i in {width}, j in {width}) x[n,c, i + k - 1 ?0, j + l - 1 ?0]"
        " * g[n,c,i,j]"
    )
    text = show_program(rows(schedule(op, gather(op)), facts_of(op)))
    assert ("in any order" in text) == is_vector


@pytest.mark.parametrize(
    ("line", "sums"),
    [
        # What is loaded once for a cell, or stays in every turn, is no reason for lanes over cells.
        ("y[n] = p[n] + log(sum(d) exp(x[n,d] - p[n]))", 1),
        ("y[n] = p[n] * (sum(d) x[n,d]) + p[n] * p[n]", 1),
        # All sums of a cell go through their rows in lanes.
        ("y[n] = (sum(d) x[n,d] * z[n,d]) * (sum(d) x[n,d]) + (sum(d) z[n,d] * z[n,d])", 3),
        ("y[n] = p[n] + (sum(d) x[n,d]) * (sum(d) t[d,n])", 0),
        ("y[n] = p[n] + log(sum(d) exp(t[d,n] - p[n]))", 0),
    ],
)
def test_sums_of_rows_are_vectors_whatever_comes_of_them(line: str, sums: int) -> None:
    inputs = [f"{name}[{dims}]" for name, dims in SUMMED.items() if f"{name}[" in line]
    op = op_of(f"op f({', '.join(inputs)}) -> y[N]\n  {line}\n")
    text = show_program(rows(scheduled(op), facts_of(op)))
    assert text.count("in any order") == sums
    assert ("lanes" in text) == (sums == 0)


SUMMED = {"x": "N,D", "z": "N,D", "t": "D,N", "p": "N"}


@pytest.mark.parametrize(("sizes", "row"), [({}, "w"), ({"H": 9, "W": 7}, None)])
def test_rows_that_are_stored_side_by_side(sizes: dict[str, int], row: str | None) -> None:
    """They are rows if they are not short, wherever they are read from."""
    fold = next(op for op in ops_of(SPECS / "unfold.op") if op.name == "fold")
    names = {"kernel_size": 4, "stride": 4, "padding": 0, "dilation": 1}
    values = {f"{name}[{at}]": value for name, value in names.items() for at in (0, 1)}
    special = specialise(fold, values | {"K": 4, "L": 4} | sizes)
    (kernel,) = rows(schedule(special, gather(special)), facts_of(special)).kernels
    assert (kernel.row and kernel.row.axis.name) == row, show_kernel(kernel)
