"""Calls under autocast that C casts piece by piece give what a cast and the op give."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen.runtime import build, lookup_casts, lookup_library, special, unrounded
from test_unrounded import FORMATS, image, same

OPS = """
op smooth(x[N,C,H,W]; gain = 1.0) -> y[N,C,H,W]
  y[n,c,h,w] = gain * sum(i in 3, j in 3) x[n, c, h + i - 1 ?0, w + j - 1 ?0]

op between(x[N,C]) -> y[N,C]
  y[n,c] = sum(k in 3) x[n + k - 1 ?0, c]

op product(x[N,C,H,W], z[N,C,H,W]) -> y[N,C,H,W]
  y[n,c,h,w] = sum(i in 3) x[n, c, h + i - 1 ?0, w] * z[n,c,h,w]

op chosen(x[N,C,W], at: int[W]) -> y[N,C,W]
  y[n,c,w] = sum(k in 3) x[n, c, at[w] + k]
"""
pytestmark = pytest.mark.skipif(
    not lookup_library.is_available(), reason="calls cannot be looked up here"
)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All tensors are large enough, and cut into pieces of at least 2 kB."""
    monkeypatch.setattr(special, "LARGE", 0)
    monkeypatch.setattr(special, "MOST", 1000)
    monkeypatch.setattr(special, "MOST_SIZES", 1000)
    monkeypatch.setattr(lookup_casts, "_LEAST_PIECE", 2**11)
    monkeypatch.setattr(lookup_casts, "_PIECE", 2**12)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def ops_of(test: str) -> Any:
    """The ops under names that no other test uses: calls that are alike share a table."""
    text = OPS
    for name in ("smooth", "between", "product", "chosen"):
        text = text.replace(f"op {name}(", f"op {name}_{test}(")
    return opgen.compile(text, f"{test}.op")


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def entered(monkeypatch: pytest.MonkeyPatch) -> list[lookup_casts.Cast]:
    """The casts that are entered from now on."""
    found: list[lookup_casts.Cast] = []
    enter = lookup_casts.Cast._make

    class Noted(lookup_casts.Cast):
        def __new__(cls, **fields: int) -> Any:
            found.append(enter(fields[name] for name in lookup_casts.Cast._fields))
            return found[-1]

    monkeypatch.setattr(lookup_casts, "Cast", Noted)
    return found


def only_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a call that Python checks is an error."""

    def checked(*_: object) -> None:
        raise AssertionError("the call was not looked up")

    monkeypatch.setattr(unrounded._Kernels, "checked", checked)


PIXELS = {(1, 3, 8, 8): 1, (6, 16, 8, 8): 3, (7, 16, 8, 8): 7, (4, 33, 16, 16): 4, (2, 3, 4, 4): 1}
PIXELS |= {(9, 16, 8, 8): 9}
PLANES = {(5, 2, 40, 40): 5, (8, 1, 24, 33): 4, (1, 3, 64, 64): 1}
"""How many pieces images are cut into: seven only in one or in seven. Two threads share out four or
nine, and compute three together. Small planes are not cast where there are instructions for them,
which round themselves."""
SHAPES = {"channels_last": PIXELS, "contiguous": PLANES}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it reads the assembly of x86-64")
@pytest.mark.parametrize("function", ["cast_numbers", "uint16_t_found", "uint32_t_found"])
def test_numbers_are_gone_over_in_vectors(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, calls with a cast took up to three times as long."""
    sources: list[str] = []
    monkeypatch.setattr(build, "library", sources.append)
    lookup_library._built(0, lookup_library._dtypes())
    text, made = tmp_path / "library.c", tmp_path / "library.s"
    # They are not to become parts of other functions, where they would not be found.
    beginning = r"static (?=(void|int) (cast_numbers|TYPE##_found)\()"
    apart = "__attribute__((noinline, noclone)) static "
    alone, count = re.subn(beginning, apart, sources[0])
    assert count == 2
    text.write_text(alone)
    monkeypatch.delenv("OPGEN_CFLAGS", raising=False)  # tests compile quickly
    flags = [flag for flag in build.flags() if flag != "-shared"]
    subprocess.run([*build.find_compiler(), *flags, "-S", str(text), "-o", str(made)], check=True)
    _, _, after = made.read_text().partition(f"\n{function}:")
    body, end, _ = after.partition(f".size\t{function}")
    assert end
    assert re.search(r"\sv?p(add|cmp|and|or|tern)\w*\s.*%[xyz]mm", body)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", FORMATS)
def test_images(layout: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities, NaNs, subnormals and ties among them; results are new each time."""
    smooth = getattr(ops_of(f"{layout}_{threads}"), f"smooth_{layout}_{threads}")
    casts = entered(monkeypatch)
    torch.set_num_threads(threads)
    for at, shape in enumerate(SHAPES[layout]):
        x = image(shape, FORMATS[layout], special_ones=True)
        wanted = smooth(x.to(torch.bfloat16), gain=0.5)
        with autocast():
            first = smooth(x, gain=0.5)
            assert len(casts) == at + 1
            with monkeypatch.context() as context:
                only_looked_up(context)
                second, third = smooth(x, gain=0.5), smooth(x.clone(), gain=0.5)
        for got in (first, second, third):
            assert got.stride() == wanted.stride()
            assert same(got, wanted)
        assert second.data_ptr() != third.data_ptr()
        with autocast(), monkeypatch.context() as context:
            only_looked_up(context)
            assert same(smooth(x, gain=2.0), smooth(x.to(torch.bfloat16), gain=2.0))
    assert [cast.pieces for cast in casts] == list(SHAPES[layout].values())
    # Threads that computed pieces of their own have not changed how many there are for others.
    assert f"omp_get_max_threads() : {threads}\n" in torch.__config__.parallel_info()


def test_entries_that_depend_on_each_other_are_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    between = ops_of("whole").between_whole
    casts, x = entered(monkeypatch), torch.randn(64, 128)
    with autocast():
        results = [between(x) for _ in range(3)]
    assert [cast.pieces for cast in casts] == [1]
    assert all(same(each, between(x.to(torch.bfloat16))) for each in results)


def test_tensors_with_gaps_and_several_casts_are_left_to_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ops, casts = ops_of("left"), entered(monkeypatch)
    x, z = torch.randn(2, 4, 12, 16, 32)
    with autocast():
        for _ in range(3):
            gaps = ops.smooth_left(x[..., ::2])
            both = ops.product_left(x, z)
    assert not casts
    assert same(gaps, ops.smooth_left(x[..., ::2].to(torch.bfloat16)))
    assert same(both, ops.product_left(x.to(torch.bfloat16), z.to(torch.bfloat16)))


def test_an_index_outside_is_said_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ops_of("fault").chosen_fault
    x, inside = torch.randn(6, 8, 64), torch.arange(64) % 60
    outside = inside.clone()
    outside[5] = 63
    with autocast():
        for _ in range(2):
            got = chosen(x, inside)
            with pytest.raises(IndexError, match="at"):
                chosen(x, outside)
    assert same(got, chosen(x.to(torch.bfloat16), inside))


def test_gradients_of_a_layer_whose_weight_is_frozen() -> None:
    """The image is not kept for a backward pass, and cast by C."""
    conv = opgen.load(SPECS / "conv.op").conv2d
    weight = torch.randn(16, 1, 3, 3)
    x = torch.randn(6, 16, 12, 12, requires_grad=True)
    rounded = x.detach().to(torch.bfloat16).requires_grad_()
    wanted = F.conv2d(rounded.double(), weight.to(torch.bfloat16).double(), padding=1, groups=16)
    cotangent = torch.randn(wanted.shape).to(torch.bfloat16)
    (expected,) = torch.autograd.grad(wanted, rounded, cotangent.double())
    for _ in range(3):
        with autocast():
            y = conv(x, weight, padding=1, groups=16)
        torch.testing.assert_close(y.double(), wanted, rtol=2**-7, atol=2**-6)
        (gradient,) = torch.autograd.grad(y, x, cotangent)
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, expected.float(), rtol=2**-6, atol=2**-5)


def test_other_sizes_and_threads_at_once() -> None:
    """Calls from several threads share tables, not what is cast."""
    from concurrent.futures import ThreadPoolExecutor

    smooth = ops_of("threads").smooth_threads
    images = [torch.randn(1 + at % 5, 8, 16, 16) for at in range(40)]

    def call(x: Tensor) -> Tensor:
        with autocast():
            result: Tensor = smooth(x)
        return result

    wanted = [smooth(x.to(torch.bfloat16)) for x in images]
    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(call, images))
        assert all(map(same, results, wanted))
