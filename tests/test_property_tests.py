"""`opgen test`: it passes right ops, and every property notices what it is there for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from catalogue import SPECS
from opgen import compiler
from opgen.__main__ import main
from opgen.errors import Source
from opgen.testing.calls import Call
from opgen.testing.cases import Case, NoCaseError, cases
from opgen.testing.compare import Mismatch, compare
from opgen.testing.properties import PROPERTIES, Inconclusive
from opgen.testing.session import Outcome, check
from opgen.testing.slopes import slope
from opgen.testing.subject import Subject, subjects

SQUARES = """op squares(x: float[N,K], w[K]; p = 0) -> y[N]
  where p >= 0
  y[n] = sum(k) x[n, k - p ?0] * x[n,k] * w[k]
"""
LOOPS = """import numpy as np

def squares(x, w, p=0):
    y = np.zeros(x.shape[0], x.dtype)
    for n in range(x.shape[0]):
        for k in range(x.shape[1]):
            if 0 <= k - p:
                y[n] += x[n, k - p] * x[n, k] * w[k]
    return y
"""


def written(folder: Path, text: str = SQUARES, loops: str | None = LOOPS) -> Path:
    spec = folder / "squares.op"
    spec.write_text(text, encoding="utf-8")
    if loops is not None:
        (folder / "references").mkdir()
        (folder / "references" / "squares.py").write_text(loops, encoding="utf-8")
    return spec


@pytest.fixture(autouse=True)
def few_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for two sets of attributes; other calls run on those for all."""
    monkeypatch.setattr("opgen.runtime.special.MOST", 2)


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    (found,) = subjects(written(tmp_path))
    return found


def outcomes(subject: Subject, examples: int = 12) -> dict[str, Outcome]:
    return {outcome.property: outcome for outcome in check(subject, examples=examples)}


def failed(found: dict[str, Outcome]) -> set[str]:
    return {name for name, outcome in found.items() if outcome.failure is not None}


# ---------------------------------------------------------------------------- right ops
@pytest.mark.parametrize(
    "spec",
    [
        "embedding",
        *(
            pytest.param(s, marks=pytest.mark.slow)
            for s in ("softmax", "norm", "pool", "shift_sum", "unfold")
        ),
    ],
)
def test_ops_of_every_kind_pass(spec: str) -> None:
    for each in subjects(SPECS / f"{spec}.op"):
        assert each.loops is not None
        found = outcomes(each, examples=6)
        assert failed(found) == set(), found
        for name in ("forward", "gradients", "second", "slopes", "transposes"):
            assert found[name].passed >= 1, (each.op.name, found[name])


def test_same_seed_same_calls(subject: Subject) -> None:
    def drawn(seed: int) -> list[str]:
        seen: list[str] = []

        def noting(x: torch.Tensor, w: torch.Tensor, *, p: int = 0) -> object:
            seen.append(f"{x.dtype} {x.stride()} {x.tolist()} {p}")
            return subject.function(x=x, w=w, p=p)

        noted = replace(subject, function=_like(subject.function, noting))
        assert not failed({o.property: o for o in check(noted, examples=2, seed=seed)})
        return seen

    first = drawn(0)
    assert len(first) > 10
    assert first == drawn(0)
    assert first != drawn(1)


def _like(right: Callable[..., object], wrong: Callable[..., object]) -> Callable[..., object]:
    """`wrong` with the parameters of `right`."""
    wrong.__wrapped__ = right  # type: ignore[attr-defined]
    return wrong


# ---------------------------------------------------------------------------- wrong ops
def test_a_wrong_result_shrinks_to_the_least_call(subject: Subject) -> None:
    right = subject.function

    def wrong(x: torch.Tensor, w: torch.Tensor, *, p: int = 0) -> object:
        y = right(x=x, w=w, p=p)
        assert isinstance(y, torch.Tensor)
        return y + 1 if x.shape[0] >= 3 else y

    failure = outcomes(replace(subject, function=_like(right, wrong)))["forward"].failure
    assert failure is not None
    assert failure.call.case.sizes["N"] == 3
    assert failure.call.dtype == "float64"
    assert set(failure.call.layouts) == {"contiguous"}
    assert "kernel and interpreter differ too" in failure.text


class _Scaled(torch.autograd.Function):
    """The identity with a gradient that is off by a thousandth."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, cotangent: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return cotangent * 1.001


class _Detached(torch.autograd.Function):
    """Squares, with a gradient that is right and has none itself."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.factor = 2 * x.detach()  # type: ignore[attr-defined]
        return x * x

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, cotangent: torch.Tensor
    ) -> torch.Tensor:
        return cotangent * ctx.factor  # type: ignore[attr-defined]


def test_a_wrong_gradient_is_noticed_twice(subject: Subject) -> None:
    right = subject.function

    def wrong(x: torch.Tensor, w: torch.Tensor, *, p: int = 0) -> object:
        return right(x=_Scaled.apply(x), w=w, p=p)

    found = failed(outcomes(replace(subject, function=_like(right, wrong))))
    assert {"gradients", "slopes"} <= found
    assert "forward" not in found


def test_a_detached_gradient_is_noticed(tmp_path: Path) -> None:
    """Values saved for the backward pass must not lose their own derivative."""
    text = "op squares(x: float[N]) -> y[N]\n  y[n] = x[n] * x[n]\n"
    (subject,) = subjects(written(tmp_path, text, None))

    def wrong(x: torch.Tensor) -> object:
        return _Detached.apply(x)

    found = failed(outcomes(replace(subject, function=_like(subject.function, wrong))))
    assert found == {"second"}


def test_a_wrong_derivation_is_noticed_without_kernels(subject: Subject) -> None:
    """The adjoint of another op, with the same signature, in place of the right one."""
    other = compiler.check_source(Source(SQUARES.replace("* w[k]", "* w[k] * 2")))[0]
    wrong = Subject(other, {}, subject.function, None).adjoint(other, "w")
    misled = replace(subject, _adjoints={(subject.op, "w"): wrong})
    found = outcomes(misled)
    assert {"gradients", "transposes"} <= failed(found)


def test_loops_that_say_something_else_are_told_from_wrong_kernels(tmp_path: Path) -> None:
    (subject,) = subjects(written(tmp_path, loops=LOOPS.replace("0 <= k - p", "0 < k - p")))
    failure = outcomes(subject)["forward"].failure
    assert failure is not None
    assert "the spec and its plain loops say different things" in failure.text


def test_a_gradient_that_its_author_wrote_need_not_be_the_derivative(tmp_path: Path) -> None:
    text = (
        "op squares(x: float[N]) -> y[N]\n  gradient x by through\n  y[n] = floor(x[n])\n\n"
        "op through(grad_y: float[N]) -> grad_x[N]\n  grad_x[n] = grad_y[n]\n"
    )
    found = {s.op.name: outcomes(s) for s in subjects(written(tmp_path, text, None))}
    assert failed(found["squares"]) == set()
    assert found["squares"]["gradients"].passed > 0
    for name in ("slopes", "transposes", "tangents"):
        assert "written in the spec" in found["squares"][name].skipped


def test_an_index_outside_must_raise(tmp_path: Path) -> None:
    text = "op squares(x[N], at: i64[M]) -> y[M]\n  y[m] = x[at[m] + 1]\n"
    (subject,) = subjects(written(tmp_path, text, None))
    assert failed(outcomes(subject)) == set()

    def silent(x: torch.Tensor, at: torch.Tensor) -> object:
        try:
            return subject.function(x=x, at=at)
        except IndexError:
            return torch.zeros(at.shape, dtype=x.dtype)

    wrong = replace(subject, function=_like(subject.function, silent))
    failure = outcomes(wrong)["forward"].failure
    assert failure is not None
    assert "without an error" in failure.text


# ---------------------------------------------------------------------------- pieces
@pytest.mark.parametrize(
    "spec", ["pool", *(pytest.param(s, marks=pytest.mark.slow) for s in ("unfold", "shift_sum"))]
)
def test_cases_meet_what_a_call_checks(spec: str) -> None:
    """The runtime refuses none of them; zeros, ones and larger sizes are among them."""
    for op in compiler.check_source(compiler.read_source(SPECS / f"{spec}.op")):
        found = cases(op)
        assert found == cases.__wrapped__(op)
        sizes = {size for case in found for size in case.sizes.values()}
        assert {0, 1, 2, 3} <= sizes
        assert max(sizes) >= 7


def test_no_case_is_an_error() -> None:
    (op,) = compiler.check_source(Source("op f(x[N]) -> y[N]\n  where N >= 1000\n  y[n] = x[n]\n"))
    with pytest.raises(NoCaseError, match=r"f: no sizes up to 37 .* `where N >= 1000`"):
        cases(op)


def test_compare_says_where() -> None:
    wanted = np.arange(6.0).reshape(2, 3)
    got = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    compare("y", got, wanted, wanted, torch.float64)
    got[1, 2] += 1e-9
    with pytest.raises(Mismatch, match=r"y\[1, 2\] is 5, expected 5 .* 1 of 6 cells"):
        compare("y", got, wanted, wanted, torch.float64)
    with pytest.raises(Mismatch, match="shape"):
        compare("y", got[0], wanted, wanted, torch.float64)
    with pytest.raises(Mismatch, match=r"y\[1\] is nan, expected 1"):
        compare("y", torch.tensor([0.0, torch.nan]), wanted[0][:2], wanted[0][:2], torch.float32)
    with pytest.raises(Mismatch, match=r"y\[2\] is 3, expected 2"):
        compare("y", torch.tensor([0, 1, 3]), np.arange(3), np.arange(3), torch.float32)


@pytest.mark.parametrize(
    ("function", "derivative"),
    [(lambda t: 3 + 2 * t, 2.0), (np.exp, 1.0), (lambda t: np.sin(5 * t), 5.0)],
)
def test_slopes(function: Callable[[float], float], derivative: float) -> None:
    found = slope(lambda t: (float(function(t)), abs(float(function(t)))))
    assert found is not None
    value, allowed = found
    assert abs(value - derivative) <= allowed < 1e-3


def test_a_kink_has_no_slope() -> None:
    assert slope(lambda t: (abs(t), abs(t))) is None
    assert slope(lambda t: (np.inf, np.inf)) is None


@pytest.mark.parametrize("at", np.linspace(-1.2e-3, 1.2e-3, 41))
def test_a_kink_nearby_is_noticed_or_allowed_for(at: float) -> None:
    """The branch at 0 is `t` below the kink and `3*t` above it."""
    found = slope(lambda t: (t + 2 * max(t - at, 0.0), 1e-3))
    if found is not None:
        value, allowed = found
        assert abs(value - (1.0 if at > 0 else 3.0)) <= allowed


def test_a_property_without_a_derivative_says_nothing(subject: Subject) -> None:
    call = Call(Case({"N": 1, "K": 1}, {"p": 0}))
    inert = replace(subject, op=replace(subject.op, inputs=()))
    for name in ("gradients", "second", "slopes"):
        with pytest.raises(Inconclusive):
            PROPERTIES[name](inert, call)


# ---------------------------------------------------------------------------- the command
def test_the_command_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", str(written(tmp_path)), "--examples", "4"]) == 0
    out, err = capsys.readouterr()
    # Four drawn calls, and both sizes long in two types.
    assert out.startswith("squares (plain loops)\n  forward     8 passed\n  gradients   8 passed\n")
    assert "calls passed (seed 0)\n" in out
    assert err == ""
    assert "\x1b" not in out


def test_the_command_says_interpreter_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", str(written(tmp_path, loops=None)), "--examples", "2"]) == 0
    assert "squares (interpreter only)\n" in capsys.readouterr().out


def test_a_failure_is_replayed_by_its_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = written(tmp_path, loops=LOOPS.replace("* w[k]", "* w[k] * 2"))
    assert main(["test", str(spec), "--examples", "8", "--replays", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "FAILED" in out
    assert "Call(case=Case(sizes={'N': 1, 'K': 1}" in out
    assert err == "opgen: 2 failed: squares forward, squares slopes\n"
    assert "Traceback" not in out + err
    script = tmp_path / "replay_squares_forward.py"
    assert len(script.read_text().splitlines()) < 20
    run = [sys.executable, str(script)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert "squares: forward: y[0] is" in done.stderr
    assert "Traceback" not in done.stderr
    assert "x: torch.float64, shape (1, 1), strides (1, 1)" in done.stdout
    (tmp_path / "references" / "squares.py").write_text(LOOPS, encoding="utf-8")
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "squares: forward holds in this call" in done.stdout


@pytest.mark.parametrize(
    ("loops", "expected", "status"),
    [
        ("1 / 0\n", "squares.py: ZeroDivisionError: division by zero", 2),
        ("def squares(x, w):\n    return x\n", "takes (x, w), but the op takes (x, w, p)", 2),
        (
            "def square(x, w, p):\n    return x\n",
            "no op of the spec is called 'square', only sq",
            2,
        ),
        (
            LOOPS + "def shape(x):\n    return x\n",
            "squares.py: no op of the spec is called 'sha",
            2,
        ),
        ("def squares(x, w, p):\n    raise KeyError('q')\n", "KeyError: 'q'", 1),
        (
            "def squares(x, w, p):\n    return x, w\n",
            "gives 2 results, but the op has 1 outputs",
            1,
        ),
    ],
)
def test_references_at_fault(
    loops: str, expected: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--examples", "2", "--replays", str(tmp_path)]
    assert main(["test", str(written(tmp_path, loops=loops)), *options]) == status
    out, err = capsys.readouterr()
    assert expected in out + err
    assert "Traceback" not in out + err


def test_infinities_are_no_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """They are values like others, and NumPy's warnings would stand between the rows."""
    text = "op squares(x[B,N]) -> y[B,N]\n  y[b,n] = x[b, n + 1 ?(-inf)] - x[b, n - 1 ?(-inf)]\n"
    options = ["--examples", "6", "--replays", str(tmp_path)]
    assert main(["test", str(written(tmp_path, text, None)), *options]) == 0
    assert "RuntimeWarning" not in capsys.readouterr().err
    assert not [each for each in recwarn if each.category is RuntimeWarning]


def test_what_helps_a_reference(tmp_path: Path) -> None:
    """Names that begin with an underscore, and what is imported, are for no op and may stay."""
    helpers = "from pathlib import Path\nfrom textwrap import dedent\n\ndef _helper():\n    pass\n"
    (found,) = subjects(written(tmp_path, loops=helpers + LOOPS))
    assert found.loops is not None


def test_an_op_with_a_word_of_python_for_its_name(tmp_path: Path) -> None:
    """Its loops have the name that its function has."""
    (tmp_path / "references").mkdir()
    (tmp_path / "references" / "f.py").write_text("def lambda_(x):\n    return x\n")
    path = tmp_path / "f.op"
    path.write_text("op lambda(x[N]) -> y[N]\n  y[n] = x[n]\n")
    (found,) = subjects(path)
    assert found.loops is not None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--op", "sqares"], "defines no op 'sqares', only squares"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_wrong_calls(
    options: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["test", str(written(tmp_path)), *options]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--examples", "0"], ["--examples", "x"], ["--device", "tpu"]])
def test_wrong_options(options: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["test", str(written(tmp_path)), *options])


def test_a_spec_at_fault_is_a_diagnostic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", str(written(tmp_path, "op f(x[N]) -> y[N]\n  y[n] = x[n+1]\n"))]) == 1
    assert capsys.readouterr().err.startswith("error[")
