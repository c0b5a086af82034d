"""Kernels that pad short rows in memory of their own mean what the ordinary ones mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import forks
import opgen
from catalogue import SPECS
from opgen.compiler import check_source, read_source
from opgen.errors import Source
from opgen.ir.binding import Array
from opgen.ir.cells import Cells, to_array
from opgen.ir.context import facts_of
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Finite, For, Load, Program, Start, Store, walk
from opgen.ir.map_loops import map_loads
from opgen.ir.notation import Op
from opgen.ir.show_loops import show_program
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import gather
from opgen.passes.padded import with_padding
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.passes.specialise import specialise
from opgen.testing.run_loops import run

CONV = {op.name: op for op in check_source(read_source(SPECS / "conv.op"))}


def padded(op: Op, values: dict[str, int]) -> tuple[Program, Program]:
    """The ordinary program for particular values, and the one with padding."""
    special = specialise(op, values)
    program = rows(schedule(special, gather(special)), facts_of(special))
    return program, with_padding(special, program)


def numbers(cells: Cells) -> Array:
    return to_array(cells, np.dtype(np.float64))


def is_padded(program: Program) -> bool:
    return any(kernel.local for kernel in program.kernels)


def geometry(
    window: int, size: int, padding: int, stride: int, dilation: int, outputs: int
) -> dict[str, int]:
    names = {"stride": stride, "padding": padding, "dilation": dilation}
    values = {f"{name}[{at}]": value for name, value in names.items() for at in (0, 1)}
    return values | {
        **{"groups": 2, "Ci": 1, "Co": outputs, "N": 2},
        **{"K": window, "L": window, "H": size, "W": size},
    }


GEOMETRIES = {
    "3x3": geometry(3, 8, 1, 1, 1, 1),
    "a row that is no whole vector": geometry(3, 7, 1, 1, 1, 1),
    "full padding": geometry(3, 5, 2, 1, 1, 1),
    "5x5": geometry(5, 6, 2, 1, 1, 1),
    "dilated": geometry(3, 9, 2, 1, 2, 1),
    "a stride": geometry(3, 9, 1, 2, 1, 1),
    "two results a channel": geometry(3, 7, 1, 1, 1, 2),
    "a window larger than the image": geometry(7, 4, 3, 1, 1, 1),
    "ten rows of a large window": geometry(7, 20, 3, 1, 1, 1),
    "seven rows of a large window": geometry(5, 14, 2, 1, 1, 1),
    "a large window with a stride": geometry(5, 9, 2, 2, 1, 1),
    "a stride of three": geometry(4, 10, 2, 3, 1, 1),
    "a stride and a dilation": geometry(3, 11, 2, 2, 3, 2),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("weight", ["finite", "infinite"])
def test_loops_with_padding_give_what_loops_without_give(name: str, weight: str) -> None:
    values = GEOMETRIES[name]
    ordinary, changed = padded(CONV["conv2d"], values)
    assert is_padded(changed), show_program(changed)
    random = np.random.default_rng(0)
    channels = values["Co"] * values["groups"]
    x = random.integers(-4, 5, (2, 2, values["H"], values["W"])).astype(float)
    w = random.integers(-4, 5, (channels, 1, values["K"], values["L"])).astype(float)
    if weight == "infinite":
        w[0, 0, 0, 0] = np.inf
    tensors = {"x": x, "weight": w, "bias": np.arange(1.0, channels + 1)}
    (got, _), (wanted, _) = run(changed, tensors, {}), run(ordinary, tensors, {})
    np.testing.assert_array_equal(numbers(got["y"]), numbers(wanted["y"]))
    assert ("x_padded" in got) == (weight == "finite")


@pytest.mark.parametrize("name", ["3x3", "full padding", "5x5", "dilated"])
def test_loops_of_gradients(name: str) -> None:
    values = GEOMETRIES[name]
    op = adjoint(CONV["conv2d"], "x", CONV).op
    ordinary, changed = padded(op, values)
    assert is_padded(changed), show_program(changed)
    random = np.random.default_rng(0)
    side = values["H"] + 2 * values["padding[0]"] - values["dilation[0]"] * (values["K"] - 1)
    tensors = {
        "weight": random.integers(-4, 5, (2, 1, values["K"], values["L"])).astype(float),
        "grad_y": random.integers(-4, 5, (2, 2, side, side)).astype(float),
    }
    (wanted, _), (got, _) = run(ordinary, tensors, {}), run(changed, tensors, {})
    np.testing.assert_array_equal(numbers(got["grad_x"]), numbers(wanted["grad_x"]))
    assert "grad_y_padded" in got


@pytest.mark.parametrize(
    ("name", "step"),
    [("3x3", 1), ("a stride", 2), ("a large window with a stride", 2), ("a stride of three", 3)],
)
def test_lanes_load_neighbours(name: str, step: int) -> None:
    """Columns with one remainder stand together: one apart in memory, however far windows move."""
    _, changed = padded(CONV["conv2d"], GEOMETRIES[name])
    kernel = changed.kernels[0]
    assert kernel.row is not None
    loads = [each for each in loads_of(walk(kernel.body)) if each.tensor == "x_padded"]
    assert {load.indices[-1].step_in(kernel.row.axis.name) for load in loads} == {1}
    assert {len(load.indices) for load in loads} == {2 if step == 1 else 3}
    extents = changed.operand("x_padded").extents
    assert len(extents) == 2 or extents[1] == step


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_zeros_are_stored_once(name: str) -> None:
    """Every point stores into the same cells of the copy, so what is zero stays so."""
    _, changed = padded(CONV["conv2d"], GEOMETRIES[name])
    kernel = changed.kernels[0]
    assert kernel.zeroed == kernel.local == ("x_padded",)
    loops = {node.name for node in walk(kernel.body) if isinstance(node, For)}
    copied = [
        node
        for node in walk(kernel.body)
        if isinstance(node, Store) and node.tensor in kernel.local
    ]
    assert copied
    for store in copied:
        assert all(index.symbols <= loops for index in store.indices)


def test_a_call_runs_one_of_both() -> None:
    _, changed = padded(CONV["conv2d"], GEOMETRIES["3x3"])
    assert [kernel.only for kernel in changed.kernels] == [
        Finite("weight", True),
        Finite("weight", False),
    ]


PLAIN = (
    "op f(x[N,C,W], w[C,K]) -> y[N,C,V]\n  let V = W + 2 - K + 1\n"
    "  y[n,c,v] = sum(k) x[n,c, v + k - 1 ?0] * w[c,k]\n"
)
NEAR_MISSES = {
    "edges repeated": PLAIN.replace("?0", "?clamp"),
    "another value": PLAIN.replace("?0", "?(1)"),
    "a filter for every cell": PLAIN.replace("w[C,K]", "w[C,K,V]").replace("w[c,k]", "w[c,k,v]"),
    "a guard": PLAIN.replace("sum(k)", "sum(k if k > v)"),
    "a maximum": PLAIN.replace("sum", "max"),
    "three factors": PLAIN.replace("w[c,k]", "w[c,k] * w[c,k]"),
    "one image": PLAIN.replace("x[N,C,W]", "x[W]")
    .replace("x[n,c, ", "x[")
    .replace("y[N,C,V]", "y[V]")
    .replace("y[n,c,v]", "y[v]")
    .replace("w[C,K]", "w[K]")
    .replace("w[c,k]", "w[k]"),
    "channels are summed": PLAIN.replace("y[N,C,V]", "y[N,V]")
    .replace("y[n,c,v]", "y[n,v]")
    .replace("sum(k)", "sum(c,k)"),
}


@pytest.mark.parametrize("name", ["plain", *NEAR_MISSES])
def test_near_misses(name: str) -> None:
    (op,) = check_source(Source(NEAR_MISSES.get(name, PLAIN), "<test>"))
    ordinary, changed = padded(op, {"W": 12, "K": 3})
    assert is_padded(changed) == (name == "plain")
    assert name == "plain" or changed == ordinary


def test_edges_repeated_along_one_dim_alone() -> None:
    """Zeros beyond the last row, and repeated cells beyond the last column: no copy with zeros."""
    (op,) = check_source(
        Source(
            "op f(x[N,C,H,W], w[C,K]) -> y[N,C,H,W]\n"
            "  y[n,c,h,v] = sum(k) x[n,c, h + k - 1 ?0, v + k - 1 ?clamp] * w[c,k]\n",
            "<test>",
        )
    )
    ordinary, changed = padded(op, {"H": 12, "W": 12, "K": 3})
    assert changed == ordinary


def test_a_large_image_is_not_copied() -> None:
    ordinary, changed = padded(CONV["conv2d"], GEOMETRIES["3x3"] | {"H": 72, "W": 72})
    assert changed == ordinary


def test_a_filter_that_is_spread_is_no_image() -> None:
    """A copy of its few cells with room for a whole image around them would be zeros throughout."""
    (op,) = check_source(
        Source(
            "op f(x[N,C,H], w[C,K]) -> y[N,C,V]\n  let V = 2*H\n"
            "  y[n,c,v] = sum(h) x[n,c,h] * w[c, v - 2*h ?0]\n",
            "<test>",
        )
    )
    ordinary, changed = padded(op, {"H": 12, "K": 2})
    assert changed == ordinary


def test_a_wrong_copy_is_found() -> None:
    """A copy that lies one cell off gives other numbers: the comparison above would say so."""
    ordinary, changed = padded(CONV["conv2d"], GEOMETRIES["3x3"])
    kernel = changed.kernels[0]

    def off(load: Load) -> Load:
        if load.tensor != "x_padded":
            return load
        return replace(load, indices=(*load.indices[:-1], 0 * load.indices[-1]))

    broken = replace(kernel, body=map_loads(kernel.body, off))
    changed = replace(changed, kernels=(broken, *changed.kernels[1:]))
    tensors = {
        "x": np.arange(256.0).reshape(2, 2, 8, 8),
        "weight": np.ones((2, 1, 3, 3)),
        "bias": np.zeros(2),
    }
    (wanted, _), (got, _) = run(ordinary, tensors, {}), run(changed, tensors, {})
    assert not np.array_equal(numbers(got["y"]), numbers(wanted["y"]))


# ---------------------------------------------------------------------------- compiled
@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_compiled_kernels_give_what_pytorch_gives(dtype: torch.dtype) -> None:
    module = opgen.load(SPECS / "conv.op")
    torch.manual_seed(0)
    x, w = torch.randint(-4, 5, (4, 200, 9, 7)), torch.randint(-4, 5, (200, 1, 3, 3))
    wanted = F.conv2d(x.double(), w.double(), padding=1, groups=200)
    got = module.conv2d(x.to(dtype), w.to(dtype), padding=1, groups=200)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=0)


LARGE = [
    (torch.float32, 20, 7, 1),
    pytest.param((torch.bfloat16, 14, 5, 1), marks=pytest.mark.slow),
    pytest.param((torch.float32, 9, 5, 2), marks=pytest.mark.slow),
    pytest.param((torch.float64, 17, 7, 1), marks=pytest.mark.slow),
    pytest.param((torch.float16, 7, 7, 1), marks=pytest.mark.slow),
    pytest.param((torch.float32, 11, 5, 1), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_windows_compiled(case: tuple[torch.dtype, int, int, int]) -> None:
    """Sums so small that every type has them, so that their order does not show."""
    dtype, width, window, stride = case
    called = {"stride": stride, "padding": window // 2, "groups": 100}
    module = opgen.load(SPECS / "conv.op")
    torch.manual_seed(0)
    x = torch.randint(-1, 2, (3, 100, 2 * width, width)).double().requires_grad_()
    w = torch.randint(-1, 2, (100, 1, window, window)).double()
    wanted = F.conv2d(x, w, **called)
    seed = torch.randint(-1, 2, wanted.shape).double()
    (of_image,) = torch.autograd.grad(wanted, x, seed)
    own = x.detach().to(dtype).requires_grad_()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            got = module.conv2d(own, w.to(dtype), **called)
            (of_own,) = torch.autograd.grad(got, own, seed.to(dtype))
            torch.testing.assert_close(got.double(), wanted.detach(), rtol=0, atol=0)
            torch.testing.assert_close(of_own.double(), of_image, rtol=0, atol=0)
    finally:
        torch.set_num_threads(before)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("dtype", "height", "padding"),
    [
        (torch.float32, 9, 4),
        (torch.bfloat16, 13, 2),
        pytest.param(torch.float16, 11, 2, marks=pytest.mark.slow),
        pytest.param(torch.float64, 13, 2, marks=pytest.mark.slow),
        pytest.param(torch.float32, 17, 2, marks=pytest.mark.slow),
        pytest.param(torch.float32, 19, 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("threads")
def test_prime_numbers_of_rows_compiled(dtype: torch.dtype, height: int, padding: int) -> None:
    """All rows of an image at once; sums so small that every type has them."""
    conv, channels = opgen.load(SPECS / "conv.op").conv2d, 120
    torch.manual_seed(0)
    images = torch.randint(-1, 2, (4, channels, height, 11)).to(dtype)
    w = torch.randint(-1, 2, (channels, 1, 5, 5)).double()
    for x in (images[..., :9], images[:, :, :, 2:11], images[..., :9].contiguous()):
        wanted = F.conv2d(x.double(), w, padding=padding, groups=channels)
        got = conv(x, w.to(dtype), padding=padding, groups=channels)
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=0)
    assert conv(images[:0], w.to(dtype), padding=padding, groups=channels).numel() == 0


def test_how_many_rows_share_what_they_load() -> None:
    """As many as leave none over and have few enough terms, where the window is large."""

    def totals(op: Op, size: int, window: int) -> int:
        values = geometry(window, size, window // 2, 1, 1, 1)
        nodes = walk(padded(op, values)[1].kernels[0].body)
        return len({node.accumulator for node in nodes if isinstance(node, Start)})

    assert [totals(CONV["conv2d"], 20, each) for each in (3, 5, 7)] == [4, 10, 10]
    assert [totals(CONV["conv2d"], 14, each) for each in (3, 5, 7)] == [2, 7, 7]
    assert [totals(CONV["conv2d"], 13, each) for each in (3, 5, 7)] == [1, 13, 1]
    assert [totals(CONV["conv2d"], 19, each) for each in (3, 5, 7)] == [1, 19, 1]
    assert [totals(CONV["conv2d"], 22, each) for each in (3, 5, 7)] == [2, 11, 2]


def test_padding_has_no_terms_even_beside_infinity() -> None:
    module = opgen.load(SPECS / "conv.op")
    x, w = torch.ones(4, 200, 9, 7), torch.ones(200, 1, 3, 3)
    for places in (w, w.movedim(0, -1).contiguous().movedim(-1, 0)):
        given = places.clone()
        given[150, 0, 2, 2] = float("inf")
        got = module.conv2d(x, given, padding=1, groups=200)
        assert not got.isnan().any()
        # The last tap never meets the last row and the last column of an image.
        assert got[:, 150, :-1, :-1].isinf().all()
        assert got[:, 150, -1].isfinite().all()
        assert got[:, :150].isfinite().all()


STRIDED = """
import sys, torch, opgen
module, width = opgen.load(sys.argv[1]), int(sys.argv[2])
generator = torch.Generator().manual_seed(0)
x = torch.randint(-4, 5, (2, 128, width, width), generator=generator).float()
w = torch.randint(-4, 5, (128, 1, 3, 3), generator=generator).float()
wanted = torch.nn.functional.conv2d(x, w, stride=2, padding=1, groups=128)
assert torch.equal(module.conv2d(x, w, stride=2, padding=1, groups=128), wanted)
"""


@pytest.mark.parametrize("width", [40, pytest.param(56, marks=pytest.mark.slow)])
def test_rows_that_begin_at_no_boundary(width: int) -> None:
    """In a process of its own, which a load from there would end; optimised, unlike others."""
    assert not forks.printed(STRIDED, str(SPECS / "conv.op"), str(width), OPGEN_CFLAGS="")


BEFORE = """op f(x[N,C,H,W], w[C,3,3]) -> y[N,C,H,W]
  y[n,c,i,j] = sum(k,l) x[n - 1 ?(2), c, i + k - 1 ?0, j + l - 1 ?0] * w[c,k,l]
"""


def test_an_image_that_is_not_there_has_no_padding() -> None:
    """Its fill value is no longer absent at the edges, and its copy has nowhere to come from."""
    x, w = torch.randn(9, 64, 9, 9)[1:], torch.randn(64, 3, 3)
    images = torch.cat((torch.full((1, 64, 9, 9), 2.0), x[:-1]))
    wanted = F.conv2d(images, w[:, None], padding=1, groups=64)
    torch.testing.assert_close(opgen.compile(BEFORE).f(x, w), wanted)


COVERED = """op f(x[N,C,H,W], w[C,H,3]) -> y[N,C,W]
  y[n,c,i] = sum(k in H + 2, l in 3) x[n,c, k - 1 ?0, i + l - 1 ?0] * w[c, k - 1, l]
"""


def test_a_factor_that_is_inside_where_the_image_is() -> None:
    """Terms that the edge of the image leaves out have no factor: nothing is read beyond it."""
    x, around = torch.randn(8, 64, 9, 9), torch.full((64 * 27 + 20000,), torch.inf)
    w = around[10000 : 10000 + 64 * 27].view(64, 9, 3)
    w.copy_(torch.randn(64, 9, 3))
    wanted = F.conv2d(x, w[:, None], padding=(0, 1), groups=64)[:, :, 0]
    torch.testing.assert_close(opgen.compile(COVERED).f(x, w), wanted)
