"""Ops under torch.compile, torch.export and tracers: one op in the graph, the same numbers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

import binding_cases as cases
import opgen
from binding_cases import OPS, Op, real, spec
from opgen.testing.transforms import loss

close = torch.testing.assert_close
every_op = pytest.mark.parametrize("op", OPS, ids=repr)
func: Any = torch.func


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graph of another test, and no warnings about what torch calls itself."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compiled(function: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Any:
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def gradients(function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> Any:
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)
    value = function(*leaves)
    return value, torch.autograd.grad(value, leaves)


def surrounded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The op between others."""
    return lambda *t: function(*(2 * x for x in t)).relu().pow(3).sum()


# ---------------------------------------------------------------------------- torch.compile
@pytest.mark.sampled(16)
@every_op
@pytest.mark.parametrize("dynamic", [False, True])
def test_forward_and_backward_in_one_graph(op: Op, dynamic: bool) -> None:
    got = gradients(compiled(surrounded(op.ours), dynamic=dynamic), op.tensors)
    close(got, gradients(surrounded(op.reference), op.tensors))


@every_op
def test_without_gradients(op: Op) -> None:
    with torch.no_grad():
        close(compiled(op.ours)(*op.tensors), op.reference(*op.tensors))
    with torch.inference_mode():
        close(compiled(op.ours)(*op.tensors), op.reference(*op.tensors))


COMPILED = {
    "grad": lambda f: func.grad(loss(f)),
    "jvp": lambda f: lambda x, *rest: func.jvp(lambda z: f(z, *rest), (x,), (x.cos(),)),
    "vjp": lambda f: lambda x, *rest: func.vjp(lambda z: f(z, *rest).pow(2).sum(), x)[0],
    "hessian": lambda f: func.hessian(loss(f)),
    "vmap": lambda f: lambda *t: torch.vmap(f)(*(torch.stack([x, 2 * x]) for x in t)),
    "vmap of grad": lambda f: (
        lambda *t: torch.vmap(func.grad(loss(f)))(*(torch.stack([x, 2 * x]) for x in t))
    ),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("op", [cases.op(n) for n in ("shift_sum", "conv2d", "softmax")], ids=repr)
@pytest.mark.parametrize("transform", COMPILED)
def test_compiled_transforms(op: Op, transform: str) -> None:
    apply = COMPILED[transform]
    close(compiled(apply(op.ours))(*op.tensors), apply(op.reference)(*op.tensors))


def test_a_compiled_dual_level() -> None:
    ad: Any = torch.autograd.forward_ad
    op = cases.op("softmax")
    (x,) = op.tensors

    def tangent(x: Tensor) -> Any:
        with ad.dual_level():
            return ad.unpack_dual(op.ours(ad.make_dual(x, x.cos()))).tangent

    close(compiled(tangent)(x), func.jvp(op.reference, (x,), (x.cos(),))[1])


@pytest.mark.parametrize("name", ["shift_sum", "conv2d"])
def test_inductor(name: str) -> None:
    op = cases.op(name)
    got = gradients(compiled(surrounded(op.ours), backend="inductor"), op.tensors)
    close(got, gradients(surrounded(op.reference), op.tensors))


# Sizes of one call differ from each other: the compiler takes equal ones to stay equal.
SIZES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "shift_sum": (lambda x: spec("shift_sum").shift_sum(x, step=2), ((2, 3, 4, 5), (3, 9, 2, 7))),
    "shift_sum_pinv": (
        lambda x, n: spec("shift_sum").shift_sum_pinv(x, C=n.shape[0]),
        ((3, 1, 5, 9), (5, 1, 2, 11)),
    ),
    "depth_to_space": (
        lambda x: spec("depth_to_space").depth_to_space(x, r=2),
        ((2, 4, 6, 5), (3, 12, 5, 7)),
    ),
    "max_pool2d": (
        lambda x: spec("pool").max_pool2d(x, kernel_size=3, stride=2, padding=1),
        ((2, 3, 6, 5), (3, 4, 9, 7)),
    ),
    "layer_norm": (lambda x: spec("norm").layer_norm(x), ((2, 3, 4), (5, 4, 7))),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SIZES)
def test_one_graph_serves_all_sizes(name: str) -> None:
    function, shapes = SIZES[name]
    counter = CompileCounter()
    traced = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for shape, channels in zip(shapes, (4, 3), strict=True):
        given = (real(*shape), real(channels)) if name == "shift_sum_pinv" else (real(*shape),)
        close(traced(*given), function(*given))
    assert counter.frame_count == 1


def test_a_call_that_does_not_fit_names_the_op() -> None:
    with pytest.raises(Exception, match=r"depth_to_space: .*multiple of 4"):
        compiled(lambda x: spec("depth_to_space").depth_to_space(x, r=2))(real(1, 6, 2, 2))


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (-1, "'C' is a size and cannot be negative, got -1"),
        ((4,), r"'C' must be an int, got \(4\) \(tuple\)"),
        (1.5, r"'C' must be an int, got a number \(float\)"),
        (2**62 + 1, r"'C' must lie between -2\*\*62 and 2\*\*62, got 4611686018427387905"),
    ],
)
def test_an_attribute_that_does_not_fit_is_named(wrong: object, got: str) -> None:
    traced = compiled(lambda y, c: spec("shift_sum").shift_sum_pinv(y, C=c), dynamic=True)
    with pytest.raises(Exception, match=got):
        traced(real(3, 1, 5, 9), wrong)


def test_a_size_is_checked_where_a_graph_calls_the_op() -> None:
    op = opgen.compile("op crop(x[N]; p: size) -> y[M]\n  let M = N - p\n  y[i] = x[i + p]\n")._crop
    close(op.overload(real(5), 2), real(5)[2:])
    with pytest.raises(ValueError, match=r"crop: attribute 'p' is a size .*, got -1"):
        op.overload(real(5), -1)


def test_compiled_autograd() -> None:
    op = cases.op("depth_to_space")
    (x,) = op.leaves
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss(op.ours)(x).backward()
    close(x.grad, func.grad(loss(op.reference))(x.detach()))


# ---------------------------------------------------------------------------- sizes from numbers
def _chosen(x: Tensor, mask: Tensor, dim: int = 0) -> Tensor:
    """As many slices as the mask has ones: no compiler can know how many."""
    return x.index_select(dim, mask.nonzero().squeeze(-1))


COUNTED: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "softmax": (
        lambda x, m: spec("softmax").softmax(_chosen(x, m)),
        (real(4, 3, 5), torch.tensor([1, 0, 1, 1])),
    ),
    "conv2d": (
        lambda x, m, w: spec("conv").conv2d(_chosen(x, m), w, padding=1),
        (real(4, 2, 5, 6), torch.tensor([1, 0, 1, 1]), real(3, 2, 3, 3)),
    ),
    "shift_sum of channels": (
        lambda x, m: spec("shift_sum").shift_sum(_chosen(x, m, 1), step=1),
        (real(2, 4, 3, 5), torch.tensor([1, 0, 1, 1])),
    ),
    "depth_to_space of channels": (
        lambda x, m: spec("depth_to_space").depth_to_space(_chosen(x, m, 1), r=2),
        (real(2, 5, 3, 6), torch.tensor([1, 0, 1, 1, 1])),
    ),
    "embedding": (
        lambda i, w: spec("embedding").embedding(i[i > 0], w),
        (torch.tensor([2, 0, 1, 3]), real(4, 2)),
    ),
    "shift_sum by a number": (
        lambda x, s: spec("shift_sum").shift_sum(x, step=s.item()),
        (real(2, 3, 4, 5), torch.tensor(2)),
    ),
    "shift_sum_pinv by a number": (
        lambda y, n: spec("shift_sum").shift_sum_pinv(y, C=n.item()),
        (real(2, 1, 3, 7), torch.tensor(4)),
    ),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["shift_sum by a number", "shift_sum_pinv by a number"])
def test_attributes_that_only_the_program_knows(name: str, strict: bool) -> None:
    function, (x, number) = COUNTED[name]

    class Module(nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return function(*tensors)

    program = torch.export.export(Module(), (x, number), strict=strict).module()
    close(program(x, torch.tensor(3)), function(x, torch.tensor(3)))
    with pytest.raises((RuntimeError, ValueError)):
        program(x, torch.tensor(-1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COUNTED)
def test_sizes_that_only_the_program_knows(name: str) -> None:
    function, given = COUNTED[name]
    wanted = function(*given)
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        got = compiled(function, dynamic=True)(*given)
    close(got, wanted)
    assert got.stride() == wanted.stride()

    class Module(nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return function(*tensors)

    program = torch.export.export(Module(), given).module()
    close(program(*given), wanted)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("shift_sum by a number", (real(2, 3, 4, 5), torch.tensor(-1))),
        ("depth_to_space of channels", (real(2, 5, 3, 6), torch.tensor([1, 0, 1, 1, 0]))),
    ],
)
def test_what_only_the_program_knows_is_checked_there(name: str, given: tuple[Tensor, ...]) -> None:
    function, right = COUNTED[name]
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        traced = compiled(function, dynamic=True)
        traced(*right)
        with pytest.raises((RuntimeError, ValueError)):
            traced(*given)


def test_a_format_that_only_the_program_knows_is_refused() -> None:
    def function(x: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = spec("shift_sum").shift_sum(_chosen(x, mask, 1).transpose(2, 3), step=1)
        return result

    given = (real(2, 4, 3, 5), torch.tensor([1, 0, 1, 1]))
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.raises(Exception, match=r"the memory format of a tensor of shape .* is not known"),
    ):
        compiled(function, dynamic=True)(*given)


# ---------------------------------------------------------------------------- graphs
class Net(nn.Module):
    """A convolution of ours between ops of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 1).double()
        self.weight = nn.Parameter(real(4, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = spec("conv").conv2d(self.first(x), self.weight, padding=1)
        result: Tensor = spec("depth_to_space").depth_to_space(y.relu(), r=2)
        return result + 1

    def reference(self, x: Tensor) -> Tensor:
        y = F.conv2d(self.first(x), self.weight, padding=1)
        return F.pixel_shuffle(y.relu(), 2) + 1


def ours(graph: torch.fx.Graph) -> list[str]:
    """Readable names of our ops in a graph."""
    found = [str(node.target) for node in graph.nodes if "opgen" in str(node.target)]
    return [name.removeprefix("opgen.").rsplit("_", 1)[0] for name in found]


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_sizes(strict: bool) -> None:
    net, x = Net(), real(2, 2, 5, 6)
    dims = {0: torch.export.Dim("n"), 2: torch.export.Dim("h"), 3: torch.export.Dim("w")}
    program = torch.export.export(net, (x,), dynamic_shapes=(dims,), strict=strict)
    assert ours(program.graph) == ["conv2d", "depth_to_space"]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file)
    for size in (x, real(4, 2, 3, 9)):
        close(program.module()(size), net.reference(size))
        close(again.module()(size), net.reference(size))
    assert ours(program.run_decompositions().graph) == ["conv2d", "depth_to_space"]


@pytest.mark.slow
def test_aot_inductor_package(tmp_path: Path) -> None:
    net, x = Net(), real(2, 2, 5, 6)
    dims = {0: torch.export.Dim("n", min=1, max=64)}
    program = torch.export.export(net, (x,), dynamic_shapes=(dims,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "net.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for size in (x, real(5, 2, 5, 6)):
        close(loaded(size), net.reference(size))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_keeps_ops_whole(mode: str) -> None:
    op = cases.op("conv2d")
    traced = make_fx(func.grad(loss(op.ours), argnums=(0, 1, 2)), tracing_mode=mode)(*op.tensors)
    names = ours(traced.graph)
    assert sorted(set(names)) == [
        "conv2d",
        "conv2d_grad_bias",
        "conv2d_grad_weight",
        "conv2d_grad_x",
    ]
    close(traced(*op.tensors), func.grad(loss(op.reference), argnums=(0, 1, 2))(*op.tensors))


def test_symbolic_trace_and_jit_trace() -> None:
    net, x = Net(), real(2, 2, 5, 6)
    traced = torch.jit.trace(net, x)
    assert "opgen::conv2d" in str(traced.inlined_graph)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    other = real(3, 2, 4, 8)
    close(torch.jit.load(file)(other), net.reference(other))


def test_a_size_is_no_attribute_under_jit_trace() -> None:
    def function(x: Tensor) -> Tensor:
        result: Tensor = spec("shift_sum").shift_sum(x, step=x.shape[3])
        return result

    with pytest.raises(TypeError, match=r"'step' must be an int, .*; torch.jit.trace makes"):
        torch.jit.trace(function, real(2, 3, 4, 5))
