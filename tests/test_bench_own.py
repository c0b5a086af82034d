"""`opgen bench` of an op of one's own: alone, beside other forms, at three sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench_rows import CPU
from opgen.__main__ import main
from opgen.bench import own as own_ops
from opgen.bench import plot, tables

AGAINST = """
import torch

def scaled(x, weight, stride):
    return x[:, ::stride] * weight

def wrong(x, weight, stride):
    return x[:, ::stride] * weight + 1e-6
"""
SPEC = """
op scaled(x[N,W], weight[1]; stride = 1) -> y[N,V]
  where stride >= 1
  let V = (W - 1)//stride + 1
  y[n,v] = x[n, v*stride] * weight[0]
"""


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    (tmp_path / "scaled.op").write_text(SPEC)
    (tmp_path / "forms.py").write_text(AGAINST)
    return [
        *("bench", str(tmp_path / "scaled.op"), "--shape", "x=4,10", "--shape", "weight=1"),
        *("--set", "stride=2", "--tiny"),
    ]


def test_an_op_of_ones_own(own: list[str], tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    against = f"{tmp_path / 'forms.py'}:scaled"
    assert main([*own, "--against", against, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["direction"] for row in rows] == ["forward", "backward"]
    assert all(set(row["times"]) == {"opgen", against} for row in rows)
    assert rows[0]["name"] == "scaled x=[4,10] weight=[1]"
    assert rows[0]["bytes"] == 4 * (40 + 1 + 20)


def test_an_op_against_something_else_is_refused(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A millionth more: float32 would hide it, so the check runs in double precision as well."""
    assert main([*own, "--against", f"{tmp_path / 'forms.py'}:wrong"]) == 1
    assert "not reported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "torch"], "must be module:function"),
        (["--against", "no_such_module:f"], "cannot be imported"),
        (["--against", "torch:no_such_function"], "has no function 'no_such_function'"),
        (["--shape", "z=3"], "no input 'z': write --shape x=..., --shape weight=..."),
        (["--shape", "z=a,b"], "must be as x=8,64,32,32"),
        (["--set", "stride"], "must be as stride=2"),
        (["--op", "other"], "no op 'other'; choose one with --op: scaled"),
        (["--shape", "x=2,6"], "--shape gives x twice"),
        (["--set", "stride=3"], "--set gives stride twice"),
        (["--attribute", "stride"], "must be as stride=2"),
        (["--set", "q=2"], "scaled has no attribute 'q', only stride"),
        (["--rows", "scaled"], "--rows is for the rows of the benchmark"),
        (["--plot", "own.svg"], "--plot shows how opgen compares with others: add --against"),
    ],
)
def test_bad_calls(
    own: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*own, *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err and err.count("\n") == 1 and not out


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (["x=4"], "scaled: x must be 2-d [N, W], got shape (4,)"),
        (["x=4,0"], "x=[4,0] has no elements: there is nothing to time"),
        (["x=4,9", "--growth"], "--growth also measures x=[1,9]: scaled: N % 2 == 0 does not hold"),
        (["x=2,3", "--growth"], "no dim of [2, 3] can be divided by 4"),
        (["x=2,4", "--set", "cut=two"], "attribute 'cut' must be an int, got 'two'"),
        (["x=2,4", "--set", "cut=-1"], "cut >= 0 does not hold (cut=-1)"),
        (["x=3,9"], "N % 2 == 0 does not hold (N=3 from x.shape[0])"),
        (["x=2,4", "--set", "cut=4"], "scaled gives [2,0] for x=[2,4], which has no elements"),
        (["x=2,4", "--set", "cut=5"], "is negative"),
    ],
)
def test_shapes_that_do_not_fit(
    shapes: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are told once, before anything is timed."""
    path = tmp_path / "scaled.op"
    path.write_text(
        "op scaled(x[N,W]; cut = 0) -> y[N,V]\n  where cut >= 0, N % 2 == 0\n"
        "  let V = W - cut\n  y[n,v] = x[n,v] for v in V\n"
    )
    assert main(["bench", str(path), "--shape", *shapes]) == 2
    out, err = capsys.readouterr()
    assert message in err and err.count("\n") == 1 and not out


def test_options_are_given_as_for_cost(tmp_path: Path, own: list[str]) -> None:
    """Several values after one option, types by either name, and SPEC behind them."""
    path = tmp_path / "own.json"
    spec = own[1]
    shapes = ["--shape", "x=4,10", "weight=1", spec]
    options = ["--attribute", "stride=2", "--dtype", "f64", "--tiny", "--forward"]
    assert main(["bench", *shapes, *options, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["name"] == "scaled x=[4,10] weight=[1]"
    assert row["bytes"] == 8 * (40 + 1 + 20)


def test_an_attribute_without_a_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.op"
    path.write_text("op f(x[N]; s: int) -> y[N]\n  y[n] = s * x[n]\n")
    assert main(["bench", str(path), "--shape", "x=4"]) == 2
    assert "f needs its attribute 's': --set s=..." in capsys.readouterr().err


@pytest.mark.parametrize("options", [(), ("--dtype", "float16", "--channels-last")])
def test_an_op_of_ones_own_alone(
    options: tuple[str, ...], own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --against opgen stands beside the limit and `copy_`, in every form of the figures."""
    path, readme = tmp_path / "own.json", tmp_path / "README.md"
    readme.write_text("\n".join(tables.marks(tables.ROWS)))
    files = ("--json", str(path), "--write-readme", str(readme))
    assert main([*own, *options, *files]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["direction"] for row in rows] == ["forward", "backward"]
    for row in rows:
        assert set(row["times"]) == {"opgen"} and row["best"] is None and row["ratio"] == {}
        assert row["limit"] > 0 and row["copy"]["copy_"] > 0
    out, err = capsys.readouterr()
    assert out.count("scaled x=[4,10] weight=[1]") >= 2 and not err
    assert "2 rows, in which opgen was compared with nothing" in out and "nan" not in out
    written = readme.read_text()
    assert written.count("| scaled x=[4,10] weight=[1]") == 2 and "mean" not in written
    columns = [line.count("|") for line in written.splitlines() if line.startswith("|")]
    assert len(set(columns)) == 1
    assert "<circle" not in plot.svg(json.loads(path.read_text()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_compared", [False, True])
def test_growth_of_an_op_of_ones_own(
    is_compared: bool, own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, readme = tmp_path / "own.json", tmp_path / "README.md"
    readme.write_text("\n".join(tables.marks(tables.GROWTH)))
    against = f"{tmp_path / 'forms.py'}:scaled"
    compared = ["--against", against] if is_compared else []
    files = ("--json", str(path), "--write-readme", str(readme))
    assert main([*own, *compared, "--growth", *files]) == 0
    found = json.loads(path.read_text())["growth"]
    assert [row["direction"] for row in found] == ["forward", "backward"]
    names = {"opgen", *compared[1:]}
    for row in found:
        assert row["shapes"] == [[1, 10], [2, 10], [4, 10]]
        assert set(row["exponents"]) == names
        assert not row["peaks"] or set(row["peaks"]) == names
    assert found[0]["bytes"] == [4 * (10 * n + 1 + 5 * n) for n in (1, 2, 4)]
    assert not capsys.readouterr().err
    assert readme.read_text().count("| scaled x=[4,10] weight=[1]") == 2


def test_growth_that_is_not_reported_is_no_success(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.json"
    wrong = ("--against", f"{tmp_path / 'forms.py'}:wrong")
    assert main([*own, *wrong, "--growth", "--json", str(path)]) == 1
    assert "not reported" in capsys.readouterr().err
    found = json.loads(path.read_text())
    assert len(found["refused"]) == 2 and not found["growth"]


def test_dims_that_grow_together(tmp_path: Path) -> None:
    """A symbol has one size in all inputs, and so has a batch dim; other extents stay."""
    path = tmp_path / "f.op"
    path.write_text(
        "op f(x[...,C,C], w[C,K], v[...,K]) -> y[...,K]\n"
        "  y[...,k] = sum(c,d) x[...,c,d] * w[d,k] * v[...,k]\n"
    )
    shapes = {"w": (3, 5), "x": (8, 2, 3, 3), "v": (8, 2, 5)}
    row = own_ops.row(own_ops.Own(path, shapes, ()), growing=True)
    assert row.shape == (8, 2, 3, 3)
    found = [tuple(x.shape) for x in row.make((2, 2, 3, 3), CPU).inputs]
    assert found == [(2, 2, 3, 3), (3, 5), (2, 2, 5)]
    found = [tuple(x.shape) for x in row.make((8, 2, 4, 3), CPU).inputs]
    assert found == [(8, 2, 4, 4), (4, 5), (8, 2, 5)]


def test_an_op_without_gradients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.op"
    path.write_text("op f(x[N,C]) -> k: i64[N]\n  k[n] = argmax(c) x[n,c]\n")
    arguments = ["bench", str(path), "--shape", "x=8,64", "--tiny"]
    for option in ([], ["--growth"]):
        assert main([*arguments, *option]) == 0
        out, err = capsys.readouterr()
        assert "f x=[8,64]" in out and "backward" not in out and not err
