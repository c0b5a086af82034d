"""The certificate of a module: it states what was proved and tried, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import opgen
from catalogue import SPECS
from opgen import compiler
from opgen.__main__ import main
from opgen.emit.certificate import UNTRIED
from opgen.passes.gather import Kind, gather
from test_module import imported, run_without

LOOPS = """
def double(x):
    return 2 * x
"""


def certificate(text: str) -> dict[str, Any]:
    found: dict[str, Any] = opgen.compile(text).CERTIFICATE
    return found


def built(folder: Path, text: str) -> dict[str, Any]:
    """The certificate with derivatives, of a module that was written."""
    spec = folder / "spec.op"
    spec.write_text(text, encoding="utf-8")
    found: dict[str, Any] = imported(opgen.build(spec, folder / "out")).CERTIFICATE
    return found


def accesses(inside: int, bounded: int = 0, checked: int = 0) -> dict[str, int]:
    return {"inside": inside, "with a boundary mode": bounded, "checked at run time": checked}


# ---------------------------------------------------------------------------- proofs
@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        ("op f(x[N]) -> y[N]\n  y[n] = x[n] * x[N-1-n]\n", accesses(2), accesses(1)),
        ("op f(x[N]) -> y[N]\n  y[n] = x[n-1 ?0]\n", accesses(0, 1), accesses(1)),
        ("op f(x[N]) -> y[N]\n  y[n+1 ?drop] = x[n]\n", accesses(1), accesses(0, 1)),
        ("op f(x[N], i: i64[M]) -> y[M]\n  y[m] = x[i[m]]\n", accesses(1, 0, 1), accesses(1)),
        ("op f(x[N], i: i64[M]) -> y[M]\n  y[m] = x[i[m] ?0]\n", accesses(1, 1), accesses(1)),
        (
            "op f(x[M], i: i64[M]; N: size) -> y[N]\n  y[i[m]] += x[m]  for m in M\n",
            accesses(2),
            accesses(0, 0, 1),
        ),
        (
            "op f(x[N], i: i64[N]) -> y[N]\n  y[n] = sum(k in N if k <= i[n]) x[k]\n",
            accesses(2),
            accesses(1),
        ),
    ],
)
def test_accesses_by_kind(text: str, reads: dict[str, int], writes: dict[str, int]) -> None:
    found = certificate(text)["proved for all sizes"]["f"]
    assert found["reads"] == reads
    assert found["writes"] == writes


def test_assignments_and_temporaries() -> None:
    text = (
        "op f(x[N]) -> y[V], z[N]\n  let V = 2*N\n"
        "  t[n] = x[n] * x[n]\n  y[2*n] = t[n]\n  y[2*n+1] = x[n]\n  z[n] += t[n]\n"
    )
    found = certificate(text)["proved for all sizes"]["f"]
    assert found["assigned once"] == ("t", "y")
    assert found["written before read"] == ("t",)


@pytest.mark.parametrize(
    ("statements", "once"),
    [
        ("y[n] = sum(k) x[n,k]", ("y",)),
        ("y[n] = max(k) x[n,k]", ("y",)),
        ("y[n] += x[n,k]", ()),
        ("y[n] += sum(k) x[n,k]", ()),
        ("y[n] = sum(k) x[n,k] if n >= 2\n  y[n] = x[n,0 ?0] if n < 2", ("y",)),
        ("y[n] = 1 / (sum(k) x[n,k])", ("_t1", "y")),
    ],
)
def test_a_reduction_on_the_right_is_no_accumulation(
    statements: str, once: tuple[str, ...]
) -> None:
    text = f"op f(x: float[N,K]) -> y[N]\n  {statements}\n"
    assert certificate(text)["proved for all sizes"]["f"]["assigned once"] == once


def test_launch_checks_are_stated() -> None:
    text = "op f(x[N], w[M]) -> y[M]\n  y[m] = w[m] * x[3]\n"
    assert certificate(text)["launch checks"]["f"] == (
        "index 3 of dim 0 of x must lie inside its extent N",
    )
    assert certificate("op f(x[N]) -> y[N]\n  y[n] = x[n]\n")["launch checks"]["f"] == ()


# ---------------------------------------------------------------------------- derivatives
def test_forms_of_derivatives(tmp_path: Path) -> None:
    found = built(
        tmp_path,
        "op f(x[N], i: i64[M]) -> y[M]\n  y[m] = x[i[m]]\n\n"
        "op g(x: float[N]) -> y[N]\n  gradient x by h\n  y[n] = floor(x[n])\n\n"
        "op h(grad_y: float[N]) -> grad_x[N]\n  grad_x[n] = grad_y[n]\n",
    )["derivatives"]
    assert found["f_grad_x"] == "atomics"
    assert found["f_grad_x_grad_grad_y"] == "gather"
    assert found["h"] == "stated"


@pytest.mark.slow
def test_forms_are_those_of_the_fibres() -> None:
    """For the derivatives of specs of every kind, and the README's claim for its example."""
    for stem in ("conv", "embedding", "pool", "shift_sum", "softmax", "upsample_bilinear"):
        path = SPECS / f"{stem}.op"
        stages = {s.name: s.value for s in compiler.stages(compiler.read_source(path), 1)}
        members = [m for m in stages["adjoint"] if not m.is_public]  # type: ignore[attr-defined]
        tree = ast.parse(str(stages["module"]))
        (node,) = (n for n in tree.body if isinstance(n, ast.AnnAssign))
        assert node.value is not None
        stated = ast.literal_eval(node.value)
        for member in members:
            kinds = {statement.kind for statement in gather(member.op)}
            form = stated["derivatives"][member.op.name]
            assert (form == "atomics") == (Kind.SCATTER in kinds), member.op.name
            if form == "gather":
                assert Kind.ENUMERATED not in kinds
        if path.stem == "shift_sum":
            assert set(stated["derivatives"].values()) == {"gather"}


# ---------------------------------------------------------------------------- numbers
def test_a_plain_build_says_that_nothing_was_tried(tmp_path: Path) -> None:
    assert built(tmp_path, "op f(x[N]) -> y[N]\n  y[n] = x[n]\n")["numbers"] == UNTRIED


@pytest.fixture
def double(tmp_path: Path) -> Path:
    spec = tmp_path / "double.op"
    spec.write_text("op double(x: float[N]) -> y[N]\n  y[n] = 2 * x[n]\n", encoding="utf-8")
    (tmp_path / "references").mkdir()
    (tmp_path / "references" / "double.py").write_text(LOOPS, encoding="utf-8")
    return spec


def test_a_certified_build_states_the_calls_that_passed(
    double: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for name in ("a", "b"):
        options = ["--certify", "--examples", "8", "-o", str(tmp_path / name)]
        assert main(["build", str(double), *options]) == 0
        texts.append((tmp_path / name / "double.py").read_bytes())
    assert texts[0] == texts[1]
    numbers = imported(tmp_path / "a" / "double.py").CERTIFICATE["numbers"]
    assert (numbers["seed"], numbers["device"]) == (0, "cpu")
    calls = numbers["calls"]["double"]
    assert calls.pop("against") == "plain loops"
    # Eight drawn calls, and one size long in two types.
    assert calls["forward"] == calls["gradients"] == 10
    assert calls["slopes"] + calls["transposes"] <= 8
    assert set(calls) <= {"forward", "gradients", "second", "slopes", "transposes", "tangents"}
    capsys.readouterr()


def test_nothing_is_written_where_a_property_fails(
    double: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    references = tmp_path / "references" / "double.py"
    references.write_text(LOOPS.replace("2 *", "3 *"), encoding="utf-8")
    options = ["--certify", "--examples", "4", "-o", str(tmp_path / "out")]
    assert main(["build", str(double), *options]) == 1
    assert not (tmp_path / "out").exists()
    assert "FAILED" in capsys.readouterr().out


def test_without_loops_it_says_interpreter_only(
    double: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "references" / "double.py").unlink()
    options = ["--certify", "--examples", "2", "-o", str(tmp_path / "out")]
    assert main(["build", str(double), *options]) == 0
    numbers = imported(tmp_path / "out" / "double.py").CERTIFICATE["numbers"]
    assert numbers["calls"]["double"]["against"] == "interpreter only"
    capsys.readouterr()


def test_an_op_may_be_called_certificate() -> None:
    module = opgen.compile("op CERTIFICATE(x[N]) -> y[N]\n  y[n] = x[n]\n")
    assert callable(module.CERTIFICATE_)
    assert list(module.CERTIFICATE["proved for all sizes"]) == ["CERTIFICATE"]


def test_a_certified_module_needs_no_compiler_of_specs(double: Path, tmp_path: Path) -> None:
    path = opgen.build(double, tmp_path / "out")
    done = run_without(
        "lark jinja2 rich hypothesis", "import double; print(double.CERTIFICATE['numbers'])\n", path
    )
    assert (done.returncode, done.stdout) == (0, f"{UNTRIED}\n"), done.stderr
