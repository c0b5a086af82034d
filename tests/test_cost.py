"""Predicted costs: counts against hand-made ones, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogue import SPECS
from opgen.__main__ import main
from opgen.cost.kernels import Cost, Tiles, cost, tiled_cost
from opgen.cost.machines import MACHINES
from opgen.errors import Source
from opgen.ir.context import facts_of
from opgen.ir.notation import DType
from opgen.lang.read import read
from opgen.passes.cuda_rows import cuda_rows
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule

H200 = MACHINES["h200"]


def costs(text: str, sizes: dict[str, int], dtype: DType = DType.F32) -> list[Cost]:
    op = read(Source(text))[-1]
    program = schedule(op, gather(op))
    threads = cuda_rows(program, facts_of(op))
    return [
        cost(kernel, launched, program, sizes, dtype, H200)
        for kernel, launched in zip(program.kernels, threads.kernels, strict=True)
    ]


def test_a_map() -> None:
    (found,) = costs("op f(x[N], w[N]) -> y[N]\n  y[n] = 2*x[n] + w[n]", {"N": 10**8})
    assert found.flops == 2 * 10**8
    assert found.bytes == 3 * 4 * 10**8
    assert found.limit == "memory"
    assert found.seconds == pytest.approx(3e-6 + 1.2e9 / 4.3e12)
    assert found.template.name == "vector map"


def test_bytes_follow_the_type() -> None:
    text = "op f(x[N], id: i32[N], seen: bool[N]) -> y[N]\n  y[n] = x[n] + id[n]  if seen[n]"
    for dtype, size in ((DType.BF16, 2), (DType.F64, 8)):
        (found,) = costs(text, {"N": 1000}, dtype)
        assert found.bytes == 1000 * (2 * size + 4 + 1)


def test_a_product_of_matrices() -> None:
    text = "op f(a[M,K], b[K,N]) -> y[M,N]\n  y[m,n] = sum(k) a[m,k] * b[k,n]"
    (found,) = costs(text, {"M": 512, "K": 300, "N": 700})
    assert found.flops == 2 * 512 * 300 * 700
    assert found.bytes == 4 * (512 * 300 + 300 * 700 + 512 * 700)
    assert found.limit == "issue"
    assert found.template.name == "serial sum"


def test_a_sum_over_everything() -> None:
    (found,) = costs("op f(x[N,M]) -> y[1]\n  y[0] = sum(n,m) x[n,m]", {"N": 1000, "M": 2000})
    assert found.flops == 2 * 10**6
    assert found.template.name == "split sum"


def test_small_work_is_a_launch() -> None:
    (found,) = costs("op f(x[N]) -> y[N]\n  y[n] = x[n]", {"N": 10})
    assert (found.limit, found.seconds, found.flops) == ("launch", H200.launch, 0)
    (found,) = costs("op f(x[N]) -> y[N]\n  y[n] = x[n]", {"N": 0})
    assert (found.limit, found.bytes) == ("launch", 0)


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(SPECS / "conv.op")
    shapes = ("--shape", "x=64,32,112,112", "weight=32,1,3,3")
    options = ("--op", "conv2d", "--attribute", "padding=1", "groups=32", "--dtype", "bf16")
    assert main(["cost", spec, *shapes, *options]) == 0
    text = capsys.readouterr().out
    assert text.startswith("conv2d, bf16, predicted for NVIDIA H200\n")
    # 2 bytes for 64*32*112*112 elements of x and of y each, at 4.3 TB/s.
    assert "moving 102.8 MB once takes 23.9 us" in text
    assert "conv2d_grad_weight_grad_weight" in text
    assert (
        "window: neighbours along j are consecutive in memory, 8 along i are one thread's; 9 terms"
        in text
    )


def test_options_are_given_as_for_bench(capsys: pytest.CaptureFixture[str]) -> None:
    """Once for each value or once for all, types by either name, and the names they had before."""
    spec = str(SPECS / "conv.op")
    told = []
    for options in (
        (
            *("--shape", "x=64,32,112,112", "weight=32,1,3,3"),
            *("--attribute", "padding=1", "groups=32", "--dtype", "bf16"),
        ),
        (
            *("--shape", "x=[64,32,112,112]", "--shape", "weight=32,1,3,3"),
            *("--set", "padding=(1,1)", "--set", "groups=32", "--dtype", "bfloat16"),
        ),
    ):
        assert main(["cost", spec, "--op", "conv2d", *options]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


def test_the_report_of_siblings(capsys: pytest.CaptureFixture[str]) -> None:
    """Two images are read and one is written; kernels for each would move five."""
    spec = str(SPECS / "conv.op")
    shapes = ("--shape", "x=64,32,112,112", "weight=32,1,3,3", "bias=32")
    assert (
        main(["cost", spec, *shapes, "--op", "conv2d", "--attribute", "padding=1", "groups=32"])
        == 0
    )
    _, text = capsys.readouterr().out.split("\nconv2d_grad_x_and_weight_and_bias: ")
    assert f"moving {3 * 4 * 64 * 32 * 112 * 112 / 1e6:.1f} MB once" in text
    assert "grad_bias, grad_weight, grad_x in one pass over what they share" in text
    assert "moves 60% of what a kernel for each would" in text


@pytest.mark.parametrize(("dtype", "who"), [("bf16", "tensor cores"), ("f32", "threads")])
def test_the_report_of_matrix_tiles(
    dtype: str, who: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = str(SPECS / "conv.op")
    shapes = ("--shape", "x=64,128,56,56", "weight=128,128,3,3")
    options = ("--op", "conv2d", "--attribute", "padding=1", "--dtype", dtype)
    assert main(["cost", spec, *shapes, *options]) == 0
    text = " ".join(capsys.readouterr().out.split())
    # 2 * 64*128*56*56 cells of 128*3*3 terms.
    assert "59.19 Gflop" in text
    assert (
        "matrix tiles: each factor has an axis of its own: 1 of 128 x 200704 x 1152, multiplied by "
        f"{who} in tiles of 128"
    ) in text


def test_a_product_of_few_tiles_takes_longer() -> None:
    """Eight blocks keep 8 of 132 multiprocessors busy."""
    op = read(Source("op f(a[M,K], b[K,N]) -> c[M,N]\n  c[m,n] = sum(k) a[m,k] * b[k,n]\n"))[0]
    program = schedule(op, gather(op))
    few = {"M": 128, "N": 1024, "K": 4096}
    many = {"M": 1024, "N": 132 * 128, "K": 4096}
    found = [
        tiled_cost(
            program.kernels[0],
            Tiles(128, 1, sizes["M"], sizes["N"], sizes["K"], 16),
            program,
            sizes,
            DType.BF16,
            H200,
        )
        for sizes in (few, many)
    ]
    rates = [each.flops / (each.seconds - H200.launch) for each in found]
    assert rates[1] == pytest.approx(rates[0] * 132 / 8)
    assert found[0].template.name == "matrix tiles"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "x=1,2"), "x has 4 dims; got 2 in '1,2'"),
        (("--shape", "x=1,2,a,4"), "--shape 'x=1,2,a,4' must be as x=8,64,32,32"),
        (("--shape", "x=1,,4,4"), "--shape 'x=1,,4,4' must be as x=8,64,32,32"),
        (("--shape", "x=1,-4,2,2"), "--shape 'x=1,-4,2,2' must be as x=8,64,32,32"),
        (("--shape", "x=1,4,2,2", "--shape", "x=1,4,4,4"), "--shape gives x twice"),
        (("--shape", "x=1,4,2,2", "--set", "r=2", "--attribute", "r=2"), "--set gives r twice"),
        (("--shape", "x=1,4,2,2", "--set", "r=2,x"), "--set 'r=2,x': a tuple is written as 1,1"),
        ((), "give the shape of x: --shape x=..."),
        (("--shape", "z=1"), "depth_to_space has no input 'z', only x"),
        (("--shape", "x"), "--shape 'x' must be as x=8,64,32,32"),
        (("--shape", "x=1,4,2,2", "--attribute", "q=2"), "has no attribute 'q', only r, mode"),
        (("--shape", "x=1,3,2,2", "--attribute", "r=2"), "x.shape[1]"),
        (("--shape", "x=1,4,2,2", "--op", "other"), "defines no op 'other'"),
    ],
)
def test_what_does_not_fit(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", str(SPECS / "depth_to_space.op"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_spec_at_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "f.op"
    spec.write_text("op f(x[N]) -> y[N]\n  y[n] = x[n+1]\n")
    assert main(["cost", str(spec), "--shape", "x=3"]) == 1
    assert "error[" in capsys.readouterr().err
