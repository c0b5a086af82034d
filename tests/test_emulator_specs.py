"""Every CUDA kernel of every spec, forward and all gradients of two orders, checked while it runs.

An op runs its kernels in the emulator the way it would on a GPU, on a few shapes and layouts; there
is no finding, and every cell of its outputs is what the interpreter says, up to rounding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from unittest import mock

import numpy as np
import pytest
import torch

from catalogue import CATALOGUE, SPECS
from opgen import on_demand
from opgen.ir.family import Member
from opgen.ir.notation import Op
from opgen.passes.derive import derive
from opgen.passes.differentiate import derivative
from opgen.paths import checked
from opgen.runtime import Operation, cuda_grid, special
from opgen.testing.calls import Call, arrays
from opgen.testing.cases import Case, cases
from opgen.testing.compare import Mismatch, compare
from opgen.testing.cuda_on_cpu import KernelError, Module
from opgen.testing.cuda_on_cpu import emulated as emulation
from opgen.testing.cuda_on_cpu.emulated import Products, emulated
from opgen.testing.cuda_on_cpu.launch import Order
from opgen.testing.interpret import interpret
from opgen.testing.magnitude import widened

ORDERS = 2
SUBJECTS = [(entry.spec, entry.op) for entry in CATALOGUE]


@dataclass(frozen=True)
class Spec:
    """A spec file."""

    text: str
    name: str
    ops: Mapping[str, Op]

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """The ops and their gradients."""
        return derive(tuple(self.ops.values()), ORDERS)

    def at(self, path: tuple[str, ...]) -> tuple[Op, Operation]:
        """The op at the end of a path of differentiations, and what runs it."""
        op = self.ops[path[0]]
        for step in path[1:]:
            op = derivative(op, step, self.ops).op
        return op, on_demand.operation(op, path, self.text, self.name, self.ops)


def spec_of(text: str, name: str = "<spec>") -> Spec:
    """A spec from its text: its ops as modules have them."""
    return Spec(text, name, checked(text, name))


@cache
def spec_named(stem: str) -> Spec:
    """A spec of specs/."""
    return spec_of((SPECS / f"{stem}.op").read_text(encoding="utf-8"), f"{stem}.op")


# ---------------------------------------------------------------------------- calls
@dataclass(frozen=True)
class Setting:
    """How one of the calls of an op is made.

    `place` in its valid calls, smallest first; of those `wide` takes calls whose rows are multiples
    of 4 elements in most tensors. `special`: with kernels for the attributes of the call, and for
    the layouts of its images.
    `products`: which kernels run as products of matrices.
    """

    place: float
    dtype: str
    layout: str
    order: Order
    threads: int = cuda_grid.THREADS
    most_blocks: tuple[int, int, int] = cuda_grid.MOST_BLOCKS
    wide: bool = False
    special: bool = False
    products: Products = Products.NEVER


SETTINGS = (
    Setting(1, "float32", "contiguous", "forward", wide=True),
    Setting(1, "float32", "channels_last", "random", 32, special=True),
    Setting(0.8, "float32", "channels_last", "random", threads=32),
    # A narrow type has kernels of its own, which round the sums of scattered terms.
    Setting(0.5, "bfloat16", "sliced", "reverse", 4, (3, 2, 2)),
    Setting(1, "bfloat16", "contiguous", "reverse", 4, (3, 2, 2), wide=True, special=True),
)
PRODUCTS = (
    Setting(1, "float32", "sliced", "random", products=Products.ALWAYS),
    Setting(0.5, "bfloat16", "channels_last", "reverse", products=Products.ALWAYS),
)
"""For ops that have kernels that can be products of matrices, beside the others."""


def chosen(op: Op, setting: Setting) -> Case:
    """One of the calls in which no tensor is empty; the last is the largest that is done soon."""
    tensors = (*op.inputs, *op.outputs)
    shapes = {case: [case.shape(op, tensor) for tensor in tensors] for case in cases(op)}
    full = [case for case, found in shapes.items() if all(min(s, default=1) for s in found)]
    if setting.wide:
        rows = {case: sum(s[-1] % 4 == 0 for s in shapes[case] if s) for case in full}
        most = max(rows.values())
        full = [case for case in full if rows[case] == most]
    return full[round(setting.place * (len(full) - 1))]


def check(op: Op, operation: Operation, call: Call) -> None:
    """Raise Mismatch unless a call gives what the interpreter says."""
    inputs, case = call.inputs(op), call.case
    tensors = [inputs.get(tensor.name) for tensor in op.inputs]
    attributes = [case.attributes[each.name] for each in op.attributes]
    result = operation.call(*tensors, *attributes)
    given = arrays(inputs)
    for tensor in op.inputs:
        if tensor.name not in given:
            kind = np.int64 if tensor.dtype.is_integer else np.float64
            given[tensor.name] = np.full(case.shape(op, tensor), tensor.default, kind)
    symbols, wide = case.symbols(op), widened(op)
    wanted = interpret(wide, symbols, given, case.attributes, case.batch)
    scale = interpret(wide, symbols, given, case.attributes, case.batch, measure=True)
    types = {value.dtype for value in inputs.values()}
    computed = torch.float64 if torch.float64 in types else torch.float32
    got = result if isinstance(result, tuple) else (result,)
    for tensor, value in zip(op.outputs, got, strict=True):
        compare(tensor.name, value, wanted[tensor.name], scale[tensor.name], computed)


def run(op: Op, operation: Operation, setting: Setting, seed: int = 0) -> set[str]:
    """One call in the emulator; the names of the kernels that ran."""
    layouts = (setting.layout,) * len(op.inputs)
    call = Call(chosen(op, setting), setting.dtype, layouts, seed)
    number = str(special.MOST if setting.special else 0)
    with (
        mock.patch.dict(os.environ, OPGEN_SPECIAL_KERNELS=number),
        mock.patch.object(special, "LARGE", 0),
        emulated(
            setting.order,
            threads=setting.threads,
            products=setting.products,
            most_blocks=setting.most_blocks,
        ) as launches,
    ):
        check(op, operation, call)
    return launches.kernels


def kernels_of(operation: Operation) -> set[str]:
    """The names of the kernels of an op, those for particular attributes included."""
    sources = (operation.cuda, *operation.special_cuda.values())
    launches = [launch for kernels in sources for launch in kernels.launches]
    return {launch.kernel for launch in launches} | products_of(operation)


def products_of(operation: Operation) -> set[str]:
    """The kernels of an op that are products of matrices."""
    found = (launch.product for launch in operation.cuda.launches)
    return {product.kernel for product in found if product is not None}


# ---------------------------------------------------------------------------- every spec
@pytest.mark.slow
@pytest.mark.parametrize("order", range(ORDERS + 1))
@pytest.mark.parametrize(("stem", "name"), SUBJECTS)
def test_every_kernel(stem: str, name: str, order: int) -> None:
    """Of the op, of its gradients, and of theirs; families that close have none of the last."""
    spec = spec_named(stem)
    paths = [member.path for member in spec.members if member.path[0] == name]
    paths = [path for path in paths if len(path) == order + 1]
    assert paths or order > 0
    for path in paths:
        op, operation = spec.at(path)
        ran = set[str]()
        tiled = products_of(operation)
        settings = (*SETTINGS, *PRODUCTS) if tiled else SETTINGS
        if order == ORDERS:
            settings = SETTINGS[::3]  # the same kinds of kernels again, and the same products
        for seed, setting in enumerate(settings):
            ran |= run(op, operation, setting, seed)
        assert ran == kernels_of(operation) - (tiled if order == ORDERS else set())


FORMS = {
    "continued": "op f(x[B,C,H,W], w[O,C,3,3]) -> y[B,O,H,W]\n  where H >= 2\n"
    "  y[b,o,h,v] = sum(c,i,j) x[b,c,h+i-1 ?reflect,v+j-1 ?wrap]*w[o,c,i,j]\n",
    "separable": "op f(x[B,C,H,W], g[3], k[C,K]) -> y[B,C,H,W]\n"
    "  y[b,c,h,v] = sum(i,j) x[b,c,h+i-1 ?0,v+j-K//2 ?clamp]*g[i]*k[c,j]\n",
    "covariance": "op f(x[B,H,W], z[B,H,W], g[K], k[K]) -> y[B,H-K+1,W-K+1]\n"
    "  where K <= H + 1, K <= W + 1\n"
    "  y[b,h,v] = sum(i,j) g[i]*k[j]*x[b,h+i,v+j]*z[b,h+i,v+j]\n",
    "blocks": "op f(x[B,(H 4),(W 4)], d[4,4]) -> y[B,(H 4),(W 4)]\n"
    "  y[b,(h u),(w v)] = sum(i,j) x[b,(h i),(w j)]*d[u,i]*d[v,j]\n",
    "adapted": "op f(x[N,K], a[R,K], b[M,R]) -> y[N,M]\n  y[n,m] = sum(k,r) x[n,k]*a[r,k]*b[m,r]\n",
    "causal": "op f(x[B,C,T], w[O,C,K]) -> y[B,O,T]\n"
    "  y[b,o,t] = sum(c,i if i <= t) x[b,c,t-i]*w[o,c,i]\n",
}
"""What `passes.plain_products` writes anew, of which specs/ has nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_anew(form: str) -> None:
    spec = spec_of(FORMS[form], f"{form}.op")
    for path in (member.path for member in spec.members if len(member.path) <= 2):
        op, operation = spec.at(path)
        for seed, setting in enumerate(SETTINGS[:4:2]):
            run(op, operation, setting, seed)


@pytest.mark.parametrize(
    ("stem", "name"),
    [("shift_sum", "shift_sum"), ("embedding", "embedding"), ("norm", "layer_norm")],
)
def test_some_kernels(stem: str, name: str) -> None:
    op, operation = spec_named(stem).at((name,))
    for setting in SETTINGS[::3]:
        run(op, operation, setting)


def test_threads_that_find_bad_indices_at_the_same_time() -> None:
    """One of them is reported, with its own index; there is no race about it."""
    _, operation = spec_of("op f(x[N], id: int[K]) -> y[K]\n  y[k] = x[id[k]]\n").at(("f",))
    index = torch.tensor([7, 8, 9, 1, 10])
    for order in ("forward", "reverse", "random"):
        with emulated(order), pytest.raises(IndexError, match=r"index (7|8|9|10)\b"):
            operation.call(torch.ones(4), index)


# ---------------------------------------------------------------------------- the harness
TEXT = """
op f(x[A,B], w[B]) -> y[A]
  y[a] = sum(b) x[a,b] * w[b]
"""


def with_a_bug(monkeypatch: pytest.MonkeyPatch, macro: str, meaning: str) -> None:
    """From here on a macro of the kernels means something else."""

    def planted(code: str, **rest: object) -> Module:
        start = code.index('extern "C"')
        name = macro.split("(")[0]
        bug = f"#undef {name}\n#define {macro} {meaning}\n"
        return Module(code[:start] + bug + code[start:], **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(emulation, "Module", planted)


def run_small(setting: Setting = SETTINGS[2]) -> set[str]:
    """A call of the small op."""
    return run(*spec_of(TEXT).at(("f",)), setting)


def test_the_small_op_is_right() -> None:
    for setting in SETTINGS[::2]:
        assert run_small(setting) == {"f_y"}


def test_a_wrong_number_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_bug(monkeypatch, "from_T(cell)", "(from_f32(cell) + 0.001f)")
    with pytest.raises(Mismatch):
        run_small()


@pytest.mark.parametrize(
    ("macro", "meaning", "said"),
    [
        ("to_T(value)", "to_f32(x[1000000] + (value))", "out-of-bounds access"),
        ("to_T(value)", "(y[0] = 1, to_f32(value))", "race in global memory"),
        ("to_T(value)", "to_f32(y[1] + (value))", "uninitialised read"),
        ("to_T(value)", "to_f32(((T *)x)[0] = (value))", "write to const"),
    ],
)
def test_a_finding_is_an_error(
    monkeypatch: pytest.MonkeyPatch, macro: str, meaning: str, said: str
) -> None:
    with_a_bug(monkeypatch, macro, meaning)
    with pytest.raises(KernelError, match=said):
        run_small()


def test_an_output_that_is_not_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation._Function, "__call__", lambda *rest, **more: None)
    with pytest.raises(KernelError, match=r"f: (\d+) of \1 elements of y are written by no kernel"):
        run_small()
