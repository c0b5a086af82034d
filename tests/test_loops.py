"""Kernels: they mean what the notation means, execute no more than they must, and can be read."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import notation_strategies
from catalogue import CATALOGUE, Entry
from notation_strategies import Call
from opgen.algebra.poly import symbol
from opgen.errors import Source
from opgen.ir import cells, loops
from opgen.ir.binding import Array, bind
from opgen.ir.loop_parts import accumulators_of, held, loads_of, results_of, uses
from opgen.ir.loops import (
    Always,
    Choose,
    Either,
    For,
    Inside,
    Integer,
    Kernel,
    Load,
    Node,
    Nonzero,
    Program,
    Result,
    Store,
    walk,
)
from opgen.ir.loops import (
    Call as Function,
)
from opgen.ir.map_loops import map_read, polynomials
from opgen.ir.notation import Op, Reducer
from opgen.ir.reference import evaluate
from opgen.ir.show_loops import show_program
from opgen.lang.read import read
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.testing.run_loops import Counts, FaultError, run
from opgen.testing.sizes import flattened
from spec_calls import checked, leading, sizes_of
from spec_calls import run as run_reference


def op_of(text: str) -> Op:
    """The last op of a spec."""
    return read(Source(text))[-1]


def program_of(op: Op) -> Program:
    return schedule(op, gather(op))


def execute(op: Op, call: Call, program: Program | None = None) -> tuple[dict[str, Array], Counts]:
    """The outputs of a program, in their element types."""
    binding = bind(op, call.sizes, call.tensors, call.attributes)
    tensors = dict(call.tensors)
    for tensor in op.inputs:
        if tensor.name not in tensors:
            shape = tuple(dim.extent.evaluate(binding.symbols) for dim in tensor.dims)
            tensors[tensor.name] = np.full(shape, tensor.default, binding.storage[tensor.name])
    found, counts = run(
        program or program_of(op), tensors, binding.symbols, binding.parameters, binding.storage
    )
    arrays = {
        tensor.name: cells.to_array(found[tensor.name], binding.storage[tensor.name])
        for tensor in op.outputs
    }
    return arrays, counts


def differences(op: Op, call: Call, program: Program | None = None) -> list[str]:
    """The outputs in which a program and the interpreter of the notation differ."""
    wanted = evaluate(op, call.sizes, call.tensors, call.attributes)
    got, _ = execute(op, call, program)
    return [name for name in wanted if not _agree(got[name], wanted[name])]


def _agree(got: Array, wanted: Array) -> bool:
    # The interpreter of the loops computes in double precision, that of the notation may not.
    tolerance = 1e-2 if got.dtype == np.float16 else 1e-4
    return got.shape == wanted.shape and np.allclose(
        got.astype(float), wanted.astype(float), tolerance, tolerance, equal_nan=True
    )


# ---------------------------------------------------------------------------- meaning
@settings(max_examples=40)
@given(data=st.data())
def test_programs_mean_what_the_notation_means(data: st.DataObject) -> None:
    op = data.draw(notation_strategies.ops())
    call = data.draw(notation_strategies.calls(op))
    assert not differences(op, call)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("subject", CATALOGUE, ids=repr)
@settings(max_examples=2)
@given(data=st.data())
def test_specs_mean_what_the_notation_means(subject: Entry, data: st.DataObject) -> None:
    op = checked(subject)
    case = data.draw(subject.cases)
    inputs = subject.make_inputs(case, data.draw(st.integers(0, 99)))
    batch = leading(op, case)
    wanted = run_reference(op, sizes_of(op, case), inputs, case.attributes, batch)
    flat = {name: array.reshape(flattened(op, name, array.shape)) for name, array in inputs.items()}
    got, _ = execute(op, Call(sizes_of(op, case), flat, case.attributes))
    for name, array in wanted.items():
        assert _agree(got[name].reshape(array.shape), array)


CONVOLUTION = (
    "op f(x[N], w[K]; s=1, p=0, d=1) -> y[M]\n"
    "  where s >= 1, p >= 0, d >= 1\n"
    "  let M = (N + 2*p - d*(K-1) - 1)//s + 1\n"
    "  y[m] = sum(k) x[m*s - p + k*d ?0] * w[k]"
)
CALL = Call(
    {"N": 7, "K": 3}, {"x": np.arange(1.0, 8.0), "w": np.array([1.0, -2.0, 5.0])}, {"p": 2, "d": 2}
)


def _everywhere(change: Callable[[Node], Node]) -> Callable[[Kernel], Kernel]:
    """The kernel with a change made to every node, inside out."""

    def in_nodes(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(in_node(node) for node in nodes)

    def in_node(node: Node) -> Node:
        if isinstance(node, loops.For | loops.If):
            node = replace(node, body=in_nodes(node.body))
        return change(node)

    return lambda kernel: replace(kernel, body=in_nodes(kernel.body))


def _start_later(node: Node) -> Node:
    if isinstance(node, loops.For):
        return replace(node, lower=tuple(bound + 1 for bound in node.lower))
    return node


def _assign(node: Node) -> Node:
    if isinstance(node, loops.Accumulate):
        return replace(node, reducer=Reducer.ASSIGN)
    return node


def _shift_store(node: Node) -> Node:
    if isinstance(node, loops.Store):
        return replace(node, value=loops.Number(1.0))
    return node


@pytest.mark.parametrize("change", [_start_later, _assign, _shift_store])
def test_a_wrong_kernel_is_reported(change: Callable[[Node], Node]) -> None:
    op = op_of(CONVOLUTION)
    program = program_of(op)
    assert not differences(op, CALL, program)
    wrong = replace(program, kernels=tuple(map(_everywhere(change), program.kernels)))
    assert differences(op, CALL, wrong) == ["y"]


# ---------------------------------------------------------------------------- what is executed
def executed(text: str, call: Call) -> tuple[int, int, Counts]:
    """Points that count according to the notation, all points, and what the kernels executed."""
    op = op_of(text)
    present: list[bool] = []
    evaluate(
        op,
        call.sizes,
        call.tensors,
        call.attributes,
        trace=lambda number, point, is_present: present.append(is_present),
    )
    _, counts = execute(op, call)
    return sum(present), len(present), counts


def test_every_executed_term_counts() -> None:
    wanted, points, counts = executed(CONVOLUTION, CALL)
    assert wanted < points
    assert counts == Counts(terms=wanted, rejected=0)


def test_enumeration_is_visible_in_the_counts() -> None:
    """The control for the test above: a square root is not solved for, so most points fail."""
    op = "op f(x[N]; M: size) -> y[M]\n  y[n*n ?drop] += x[n]"
    wanted, _, counts = executed(op, Call({"N": 5}, {"x": np.arange(5.0)}, {"M": 20}))
    assert counts.terms == wanted == 5
    assert counts.rejected > 50


# ---------------------------------------------------------------------------- ties, NaN, absence
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1.0, 3.0, 3.0], 1),
        ([3.0, 3.0, 3.0], 0),
        ([1.0, np.nan, np.nan], 1),
        ([-np.inf, -np.inf, -np.inf], 0),
    ],
)
def test_argmax_takes_the_first_of_equals(values: list[float], wanted: int) -> None:
    op = op_of("op f(x[N]) -> i: i64[1]\n  i[0] = argmax(n) x[n]")
    got, _ = execute(op, Call({"N": 3}, {"x": np.array(values)}))
    assert got["i"].tolist() == [wanted]


def test_argmax_keeps_the_order_of_iteration_where_loops_run_otherwise() -> None:
    """On an antidiagonal the solver loops over `a` or `b`; only one of them is in order."""
    for condition in ("a + b == n", "b + 2*a == n", "a + 2*b == n"):
        op = op_of(
            f"op f(x[A,B]; N: size) -> i: i64[N]\n"
            f"  i[n] = argmax(a, b if {condition}; a*B + b) x[a,b]"
        )
        flat = Call({"A": 4, "B": 5}, {"x": np.ones((4, 5))}, {"N": 9})
        two = Call({"A": 4, "B": 5}, {"x": np.arange(20.0).reshape(4, 5) % 3}, {"N": 9})
        assert not differences(op, flat)
        assert not differences(op, two)


def _forget_order(node: Node) -> Node:
    return replace(node, order=()) if isinstance(node, loops.Accumulate) else node


def test_forgetting_the_order_of_iteration_is_reported() -> None:
    op = op_of(
        "op f(x[A,B]; N: size) -> i: i64[N]\n  i[n] = argmax(a, b if a + b == n; a*B + b) x[a,b]"
    )
    program = program_of(op)
    if not any(isinstance(n, loops.Accumulate) and n.order for n in walk(program.kernels[0].body)):
        pytest.fail("the loops run in order here; the test needs an op where they do not")
    wrong = replace(program, kernels=tuple(map(_everywhere(_forget_order), program.kernels)))
    call = Call({"A": 4, "B": 5}, {"x": np.ones((4, 5))}, {"N": 9})
    assert differences(op, call, wrong) == ["i"]


def test_zero_times_infinity_outside_is_nothing() -> None:
    op = op_of("op f(x[N], w[K]) -> y[N]\n  y[n] = sum(k) x[n + k ?0] * w[k]  for n in N")
    tensors = {"x": np.array([1.0, 2.0]), "w": np.array([1.0, np.inf])}
    got, _ = execute(op, Call({"N": 2, "K": 2}, tensors))
    assert got["y"].tolist() == [np.inf, 2.0]


def test_an_index_outside_is_a_fault_with_the_names_of_the_spec() -> None:
    op = op_of("op f(t[V,E], id: i64[N]) -> y[N,E]\n  y[n,e] = t[id[n],e]")
    call = Call({"V": 2, "E": 1, "N": 2}, {"t": np.ones((2, 1)), "id": np.array([0, 2])})
    with pytest.raises(FaultError) as caught:
        execute(op, call)
    assert caught.value.fault == loops.Fault("t", 0, "t[id[n], e]")
    assert (caught.value.index, caught.value.extent) == (2, 2)


def test_an_index_in_the_branch_that_is_not_taken_is_no_fault() -> None:
    op = op_of("op f(t[V], id: i64[N]) -> y[N]\n  y[n] = select(id[n] >= 0, t[id[n]], 0)")
    call = Call({"V": 2, "N": 3}, {"t": np.array([5.0, 6.0]), "id": np.array([1, -1, 0])})
    assert execute(op, call)[0]["y"].tolist() == [6.0, 0.0, 5.0]


# ---------------------------------------------------------------------------- structure
def test_statements_into_one_tensor_share_a_kernel() -> None:
    program = program_of(
        op_of("op f(x[N]) -> y[N]\n  y[n] += x[n]\n  y[n] += x[n - 1 ?0]  for n in N")
    )
    assert [kernel.name for kernel in program.kernels] == ["f_y"]
    assert not program.workspaces


def test_statements_with_another_tensor_between_them_are_one_pass() -> None:
    op = op_of("op f(x[N]) -> y[N], z[1]\n  y[n] += x[n]\n  z[0] = sum(n) x[n]\n  y[n] += 2*x[n]")
    program = program_of(op)
    assert [kernel.name for kernel in program.kernels] == ["f_z", "f_y"]
    assert not differences(op, Call({"N": 3}, {"x": np.array([1.0, 2.0, 4.0])}), program)


def test_sums_over_the_same_terms_are_one_loop() -> None:
    op = op_of("op f(x[N,W], k[W]) -> y[N]\n  y[n] += x[n,w]\n  y[n] += k[w]*x[n,w]")
    (kernel,) = program_of(op).kernels
    assert len([node for node in walk(kernel.body) if isinstance(node, For)]) == 1
    values = {"x": np.arange(6.0).reshape(2, 3), "k": np.array([1.0, 2.0, 4.0])}
    assert not differences(op, Call({"N": 2, "W": 3}, values), program_of(op))


def test_a_scatter_starts_its_cells_and_is_not_deterministic_in_parallel() -> None:
    program = program_of(op_of("op f(x[N], i: i64[N]; M: size) -> y[M]\n  y[i[n]] += x[n]"))
    names = [kernel.name for kernel in program.kernels]
    assert names == ["f_y_total_start", "f_y_total", "f_y"]
    assert [kernel.is_deterministic for kernel in program.kernels] == [True, False, True]


def test_uses_lists_what_a_kernel_is_called_with() -> None:
    program = program_of(
        op_of("op f(x: float[N], i: i64[M]; a = 0.5, k = 1) -> y[M]\n  y[m] = a * x[i[m] + k ?0]")
    )
    (kernel,) = program.kernels
    found = uses(kernel)
    assert found.tensors == {"x", "i", "y"}
    assert found.loaded == {"i"}
    assert found.numbers == {"a"}
    assert {"N", "M", "k"} >= found.symbols >= {"N", "k"}


def test_show() -> None:
    program = program_of(
        op_of(
            "op f(x[B,C,W]; step=1) -> y[B,V]\n  where step >= 1\n  let V = W + (C-1)*step\n"
            "  y[b,v] = sum(c) x[b,c, v - c*step ?0]  for v in V"
        )
    )
    assert show_program(program) == (
        "program f\n"
        "  kernel f_y\n"
        "    # y[b,v] = sum(c) x[b,c, v - c*step ?0]\n"
        "    parallel b < B, v < V\n"
        "      total = identity of add\n"
        "      for c in max(0, (v - W)//step + 1) .. min(C - 1, v//step)\n"
        "        total add= x[b, c, v - c*step]\n"
        "      y[b, v] = total\n"
    )


def _names_are_defined_once(kernel: Kernel, outside: Mapping[str, object]) -> bool:
    names = [define.name for define in kernel.prologue] + [axis.name for axis in kernel.axes]
    inner = [n.name for n in walk(kernel.body) if isinstance(n, loops.For | loops.Define)]
    return len(names) == len(set(names)) and not {*names, *inner} & outside.keys()


@settings(max_examples=25)
@given(data=st.data())
def test_local_names_hide_nothing(data: st.DataObject) -> None:
    op = data.draw(notation_strategies.ops())
    program = program_of(op)
    outside = dict.fromkeys(program.integers)
    assert all(_names_are_defined_once(kernel, outside) for kernel in program.kernels)


# ---------------------------------------------------------------------------- what kernels hold
HOLDING = """op f(x[N,D], i: int[N], z[D]; t = 1.0) -> y[N,D]
  s[n] = sum(d if d > n) select(x[n,d] > t, x[n,d-1 ?0], 2*z[d ?0])
  y[n,d] = select(s[n] > 0 and x[n,d] < z[i[n] ?clamp], exp(x[n,d]), t)
"""


def test_scalars_and_tests_of_a_node_in_order() -> None:
    """Each before its parts; what a test holds, too."""
    first, second = Load("a", (symbol("p"),)), Load("b", (symbol("q"),))
    test = Either(Nonzero(first), Inside(symbol("p"), symbol("N")), Always())
    chosen = Choose(test, Function("exp", (second, Integer(symbol("q")))), Result("total"))
    wanted = [
        *(chosen, test, Nonzero(first), first, Inside(symbol("p"), symbol("N")), Always()),
        *(chosen.then, second, Integer(symbol("q")), chosen.otherwise),
    ]
    assert list(held(Store("y", (symbol("p"),), chosen))) == wanted
    assert loads_of([Store("y", (symbol("p"),), chosen)]) == [first, second]


def test_to_look_at_kernels_leaves_no_garbage() -> None:
    """Kernels are looked at thousands of times; what Python has to find afterwards takes longer."""
    program = program_of(op_of(HOLDING))
    gc.collect()
    gc.disable()
    try:
        for kernel in program.kernels:
            uses(kernel)
            nodes = tuple(walk(kernel.body))
            loads_of(nodes), results_of(nodes), accumulators_of(*nodes), polynomials(*nodes)
            assert map_read(kernel.body, lambda value: value) == kernel.body
        assert gc.collect() == 0
    finally:
        gc.enable()
