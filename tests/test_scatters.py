"""Sums into cells that a quotient chooses: the points look for their cells, not the other way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.compiler import check_source
from opgen.emit.c import c_source
from opgen.emit.loop_tables import MOST, axis_tables, loop_tables
from opgen.errors import Source
from opgen.on_demand import special_source
from opgen.passes.fingerprint import fingerprint
from opgen.passes.scatters import with_scatters
from opgen.programs import along_rows, for_cpu, for_gpu, scheduled
from written_anew import read

RESIZED = "op f(g[N,C,V]; W: size) -> y[N,C,W]\n  where W >= 1, V >= 1\n  "
WINDOWS = "op f(g[N,C,V]; W: size, s: int) -> y[N,C,W]\n  where W >= 1, V >= 1, s >= 1\n  "


def is_scattered(spec: str) -> bool:
    (op,) = check_source(Source(spec, "<test>"))
    assert for_gpu(op) == op  # cells of a GPU look for their terms
    return any(each.is_scattered for each in with_scatters(op).statements)


@pytest.mark.parametrize(
    "line",
    [
        "y[n,c,v*W//V] += g[n,c,v]",
        "y[n,c,(2*v + 1)*W//(2*V)] += g[n,c,v]",
        "y[n,c,v*(W-1)//max(V-1,1) + a ?clamp] += (1-abs(a - v/V))*g[n,c,v] for a in 2",
        "y[n,c,2*v//3 ?drop] += g[n,c,v]",
        "y[n,(2*c//3) ?clamp,v ?drop] += g[n,c,v]",
    ],
)
def test_points_look_for_their_cells(line: str) -> None:
    assert is_scattered(f"{RESIZED}{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "y[n,c,v ?drop] += g[n,c,v]",
        "y[n,c,3*v + 1 ?drop] += g[n,c,v]",
        "y[n,c,v//3 ?drop] += g[n,c,v]",  # a range of v for every cell
        "y[n,c,(v+1)//V ?drop] += g[n,c,v]",
        "y[n,c,v%5 ?drop] += g[n,c,v]",
        "y[n,c,w] = g[n,c,w*V//W]",  # read, not written
    ],
)
def test_cells_look_for_their_points(line: str) -> None:
    assert not is_scattered(f"{RESIZED}{line}\n")


def test_a_window_is_no_dim() -> None:
    """Of a factor or a few values there are few terms to look for."""
    assert not is_scattered(f"{WINDOWS}y[n,c,v + 3*k//2 ?drop] += g[n,c,v] for k in 5\n")
    assert not is_scattered(f"{WINDOWS}y[n,c,v + 3*k//2 ?drop] += g[n,c,v] for k in s\n")
    assert is_scattered(f"{WINDOWS}y[n,c,v + 3*k//2 ?drop] += g[n,c,v] for k in 17\n")


def test_threads_need_cells_of_their_own() -> None:
    spec = "op f(g[N,V]; W: size) -> y[N + W]\n  where W >= 1, V >= 1\n"
    assert not is_scattered(f"{spec}  y[n + v*W//V ?drop] += g[n,v]\n")


def c_text(spec: str) -> str:
    (op,) = check_source(Source(spec, "<test>"))
    op = for_cpu(op)
    return c_source(along_rows(op, scheduled(op)))


@pytest.mark.parametrize("mode", ["", "?drop", "?clamp", "?wrap", "?reflect", "?symmetric"])
def test_cells_that_a_tensor_chooses(mode: str) -> None:
    """Whatever mode brings them inside, as those of a gradient of what is read so."""
    spec = f"op f(x[W,C], i: int[M]) -> y[M,C]\n  where W >= 2\n  y[m,c] = x[i[m] {mode},c]\n"
    head = "op f(g[M,C], i: int[M]; W: size) -> y[W,C]\n  where W >= 2\n"
    scattered = f"{head}  y[i[m] {mode},c] += g[m,c]\n"
    assert is_scattered(scattered) is (mode not in ("", "?drop"))  # those are so anyway
    reach = 2 if mode not in ("", "?drop") else 0
    i = torch.randint(-reach, 5 + reach, (40,), generator=torch.Generator().manual_seed(1))
    folded = {
        "?clamp": i.clamp(0, 4),
        "?wrap": i % 5,
        "?reflect": torch.where(i < 0, -i, torch.where(i > 4, 8 - i, i)),
        "?symmetric": torch.where(i < 0, -1 - i, torch.where(i > 4, 9 - i, i)),
    }.get(mode, i)
    g = torch.randn(40, 3, dtype=torch.float64)
    wanted = g.new_zeros(5, 3).index_add(0, folded, g)
    torch.testing.assert_close(opgen.compile(scattered).f(g, i, W=5), wanted)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    if mode in ("?clamp", "?wrap"):  # any number has a cell: nothing is checked
        assert not scheduled(read(scattered)).faults
    if mode != "?drop":
        (found,) = torch.autograd.grad(opgen.compile(spec).f(x, i), x, g)
        torch.testing.assert_close(found, wanted)


def test_divisions_are_those_of_a_loop() -> None:
    text = c_text(f"{RESIZED}y[n,c,v*W//V] += g[n,c,v]\n")
    (line,) = [line for line in text.splitlines() if "floor_div" in line and "V" in line]
    assert line.strip() == "v_table[v] = floor_div(W * v, V);"
    assert text.count("free(v_table);") == text.count("= malloc(") == 1


def test_tables_are_not_too_many() -> None:
    terms = " + ".join(f"g[n,c, {k}*v//V ?clamp]" for k in range(2, MOST + 5))
    line = f"y[n,c,v*W//V] += g[n,c,v] * ({terms})"
    (op,) = check_source(Source(f"{RESIZED}{line}\n", "<test>"))
    op = for_cpu(op)
    program = along_rows(op, scheduled(op))
    sizes = [sum(len(t.values) for t in loop_tables(k, program)) for k in program.kernels]
    assert max(sizes) == MOST


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("y[n,v,w] = x[n, v*H//V, w]", {"v": 1}),
        ("y[n,v,w] = x[n, (v*H)//V, w] * ((v*H%V)/V)", {"v": 2}),
        ("y[n,v,w] = x[n, n*H//V ?clamp, w] + x[n, v*H//V, w]", {"n": 1, "v": 1}),
        ("y[n,v,w] = x[n, v//3 ?clamp, w]", {}),  # few quotients differ
        ("y[n,v,w] = x[n, (v + n*H)//V ?clamp, w]", {}),  # others for every n
        ("y[n,v,w] = x[n, v - V ?wrap, w]", {}),
        ("y[n,v,w] = x[n, v ?clamp, w*W//V ?clamp]", {}),  # that of a row
    ],
)
def test_axes_have_tables(line: str, wanted: dict[str, int]) -> None:
    header = "op f(x: float[N,H,W]; V: size) -> y[N,V,W]\n  where H >= 1, V >= 1, W >= 1\n"
    (op,) = check_source(Source(f"{header}  {line}\n", "<test>"))
    op = for_cpu(op)
    program = along_rows(op, scheduled(op))
    (kernel,) = program.kernels
    assert {each.loop: len(each.values) for each in axis_tables(kernel, program)} == wanted


@pytest.mark.parametrize("images", [(1, 1), (1, 40), (3, 1), (2, 3)])
@pytest.mark.parametrize(("pixels", "size"), [((5, 7), (900, 3)), ((700, 9), (3, 1000))])
@pytest.mark.sampled(6)
def test_tables_of_axes_hold_what_points_need(
    images: tuple[int, int], pixels: tuple[int, int], size: tuple[int, int], threads: int
) -> None:
    """A thread has a part of the points, which begins within an axis and may go around its end."""
    torch.manual_seed(0)
    x = torch.randn(*images, *pixels, dtype=torch.float64)
    for image in (x, x.contiguous(memory_format=torch.channels_last)):
        for own, other in OPS.values():
            wanted = other(x, size)
            torch.testing.assert_close(own(image, size), wanted, rtol=1e-9, atol=1e-9)


def test_names_of_ops_do_not_depend_on_it() -> None:
    """Programs that were saved find their ops again."""
    (op,) = check_source(Source(f"{RESIZED}y[n,c,v*W//V] += g[n,c,v]\n", "<test>"))
    marked = with_scatters(op)
    assert marked != op
    assert fingerprint(marked, {}) == fingerprint(op, {})


def test_few_terms_are_written_out() -> None:
    text = (SPECS / "upsample_bilinear.op").read_text()
    values = {"align_corners": 0, "H": 56, "W": 56, "OH": 8, "OW": 8}
    source = special_source(text, "upsample_bilinear.op", ("upsample_bilinear_size", "x"), values)
    assert source.count("grad_x_total[") < 64


def test_declared_types_are_rounded_once() -> None:
    """A float32 that adds up doubles is no sum of its own."""
    header = "op f(g: f64[N,C,V]; W: size) -> y: f32[N,C,W]\n  where W >= 1, V >= 1\n"
    assert not is_scattered(f"{header}  y[n,c,v*W//V] += g[n,c,v]\n")


def resized(g: Tensor, width: int) -> Tensor:
    """The sum of `y[n, v*W//V, ...] += g[n,v,...]`, one by one."""
    y = torch.zeros(g.shape[0], width, *g.shape[2:], dtype=g.dtype)
    for v in range(g.shape[1]):
        y[:, v * width // g.shape[1]] += g[:, v]
    return y


@pytest.mark.parametrize("depth", [1, 5, 127, 300])
def test_tables_of_a_row_and_of_a_loop(depth: int, threads: int) -> None:
    ops = opgen.compile(
        "op f(g: float[N,V,D]; W: size) -> y[N,W,D]\n  where W >= 1, V >= 1\n"
        "  y[n, v*W//V, d] += g[n,v,d] * ((d*V%D)/D)\n"
    )
    torch.manual_seed(0)
    g = torch.randn(3, 11, depth, dtype=torch.float64)
    scale = torch.tensor([d * 11 % depth / depth for d in range(depth)], dtype=torch.float64)
    for width in (4, 11, 30):
        torch.testing.assert_close(ops.f(g, W=width), resized(g * scale, width))


@pytest.mark.parametrize("depth", [5, 1500])
def test_tables_of_a_row_and_of_an_axis(depth: int, threads: int) -> None:
    ops = opgen.compile(
        "op f(x: float[N,W,D]; V: size) -> y[N,V,D]\n  where W >= 1, V >= 1\n"
        "  y[n,v,d] = x[n, v*W//V, d] * ((d*V%D)/D)\n"
    )
    torch.manual_seed(0)
    x = torch.randn(3, 11, depth, dtype=torch.float64)
    for size in (4, 11, 30):
        scale = torch.tensor([d * size % depth / depth for d in range(depth)], dtype=torch.float64)
        rows = [v * 11 // size for v in range(size)]
        torch.testing.assert_close(ops.f(x, V=size), x[:, rows] * scale)


def test_guards_that_are_read_by_an_index_that_was_read() -> None:
    ops = opgen.compile(
        "op f(g[N,V], id: i64[K], jd: i64[V]; W: size) -> y[N,W]\n  where W >= 1, V >= 1\n"
        "  y[n, v*W//V] += g[n,v] if id[jd[v]] > 0\n"
    )
    g, jd = torch.randn(3, 10, dtype=torch.float64), torch.arange(10) % 4
    chosen = torch.tensor([1, 0, 3, -1])
    wanted = resized(g * (chosen[jd] > 0), 7)
    torch.testing.assert_close(ops.f(g, chosen, jd, W=7), wanted)
    with pytest.raises(IndexError):
        ops.f(g, chosen, jd + 1, W=7)


def test_images_that_keep_their_size_are_rows() -> None:
    """No cell has two terms then, and all are cells of their own."""
    text = (SPECS / "upsample_nearest.op").read_text()
    values = {"H": 56, "W": 56, "OH": 56, "OW": 56}
    source = special_source(text, "upsample_nearest.op", ("upsample_nearest_size", "x"), values)
    assert "points share cells" not in source


# ---------------------------------------------------------------------------- numbers
nearest = opgen.load(SPECS / "upsample_nearest.op")
bilinear = opgen.load(SPECS / "upsample_bilinear.op")

Resize = Callable[[Tensor, tuple[int, int]], Tensor]


def rows_of(x: Tensor, rows: list[list[tuple[int, float]]], dim: int) -> Tensor:
    """Sums of rows along a dim, with weights."""
    parts = [sum(w * x.select(dim, at) for at, w in row) for row in rows]
    return torch.stack([part for part in parts if isinstance(part, Tensor)], dim)


def weights(size: int, wanted: int, *, align: bool) -> list[list[tuple[int, float]]]:
    """The pixels that each one of a resized row is made of, and how much of each."""
    found = []
    for i in range(wanted):
        centre = (i + 0.5) * size / wanted - 0.5
        at = i * (size - 1) / max(wanted - 1, 1) if align else centre
        low = int(at // 1)
        part = at - low
        pairs = [(low, 1 - part), (low + 1, part)]
        found.append([(min(max(place, 0), size - 1), weight) for place, weight in pairs])
    return found


def by_rows(x: Tensor, size: tuple[int, int], *, align: bool) -> Tensor:
    for dim, wanted in zip((2, 3), size, strict=True):
        x = rows_of(x, weights(x.shape[dim], wanted, align=align), dim)
    return x


OPS: dict[str, tuple[Resize, Resize]] = {
    "nearest": (
        lambda x, size: nearest.upsample_nearest_size(x, output_size=size),
        lambda x, size: F.interpolate(x, size, mode="nearest"),
    ),
    "nearest exact": (
        lambda x, size: nearest.upsample_nearest_exact(x, output_size=size),
        lambda x, size: F.interpolate(x, size, mode="nearest-exact"),
    ),
    "bilinear": (
        lambda x, size: bilinear.upsample_bilinear_size(x, output_size=size),
        lambda x, size: by_rows(x, size, align=False),
    ),
    "aligned": (
        lambda x, size: bilinear.upsample_bilinear_size(x, output_size=size, align_corners=True),
        lambda x, size: by_rows(x, size, align=True),
    ),
}
SIZES = [
    ((8, 8), (8, 8)),
    ((5, 7), (9, 13)),
    ((9, 13), (5, 7)),
    ((1, 1), (3, 5)),
    ((4, 6), (1, 1)),
    ((33, 20), (65, 40)),
    ((2, 1100), (3, 1300)),
]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("pixels", "size"), SIZES)
@pytest.mark.parametrize("shape", [(3, 2), (1, 1), (2, 17)])
def test_gradients_of_resizing(
    name: str, pixels: tuple[int, int], size: tuple[int, int], shape: tuple[int, int]
) -> None:
    own, other = OPS[name]
    torch.manual_seed(0)
    x = torch.randn(*shape, *pixels, dtype=torch.float64)
    cotangent = torch.randn(*shape, *size, dtype=torch.float64)
    last = {"memory_format": torch.channels_last}
    wide = torch.randn(*shape, size[0], 2 * size[1], dtype=torch.float64)
    wide[..., ::2] = cotangent
    for image, flowing in (
        (x, cotangent),
        (x.contiguous(**last), cotangent.contiguous(**last)),
        (x, wide[..., ::2]),
        (x.contiguous(**last), cotangent),
    ):
        image = image.detach().requires_grad_()
        got = own(image, size)
        torch.testing.assert_close(got, other(x, size), rtol=1e-9, atol=1e-9)
        (mine,) = torch.autograd.grad(got, image, flowing)
        (theirs,) = torch.autograd.grad(other(image, size), image, cotangent)
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_wide(name: str, dtype: torch.dtype, threads: int) -> None:
    """A cell with many terms is rounded once: the sum of 4096 ones and a half is not 256."""
    own, other = OPS[name]
    x = torch.zeros(2, 3, 1, 1, dtype=dtype, requires_grad=True)
    got = own(x, (64, 64))
    (mine,) = torch.autograd.grad(got, x, torch.ones_like(got))
    assert torch.equal(mine, torch.full_like(mine, 4096))
    torch.manual_seed(0)
    x = torch.randn(3, 4, 9, 11).to(dtype).requires_grad_()
    got = own(x, (20, 31))
    cotangent = torch.randn(got.shape).to(dtype)
    (mine,) = torch.autograd.grad(got, x, cotangent)
    exact = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(other(exact, (20, 31)), exact, cotangent.double())
    # Half a step of the result's type, of the largest number; weights are those of float32.
    step = torch.finfo(dtype).eps * wanted.abs().max().item()
    assert (mine.double() - wanted).abs().max().item() <= 0.5 * step + 1e-5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPS)
def test_gradients_of_gradients(name: str) -> None:
    own, _ = OPS[name]
    torch.manual_seed(0)
    x = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: own(x, (5, 7)), (x,))


def test_every_run_gives_the_same_bits(threads: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 7, 30, 40, requires_grad=True)
    got = bilinear.upsample_bilinear_size(x, output_size=(77, 55))
    cotangent = torch.randn_like(got)
    first, *others = [
        torch.autograd.grad(got, x, cotangent, retain_graph=True)[0] for _ in range(5)
    ]
    assert all(torch.equal(each, first) for each in others)


def test_what_is_not_finite_stays_in_its_image() -> None:
    x = torch.zeros(3, 2, 4, 4, requires_grad=True)
    got = bilinear.upsample_bilinear_size(x, output_size=(9, 9), align_corners=True)
    cotangent = torch.ones_like(got)
    cotangent[1, 1] = float("nan")
    (mine,) = torch.autograd.grad(got, x, cotangent)
    assert mine[1, 1].isnan().all()
    mine[1, 1] = 0
    assert mine.isfinite().all()
