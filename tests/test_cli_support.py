"""`opgen support`: right ops pass, and what is broken on purpose is shown as failed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from catalogue import SPECS
from opgen.__main__ import main
from opgen.runtime import autograd, evaluation, registration, vmap
from opgen.testing.subject import subjects
from opgen.testing.support import processes
from opgen.testing.support.probe import Probe, agree, others, probe
from opgen.testing.support.table import FEATURES

README = SPECS.parent / "README.md"

QUICK = (
    *(
        "eager",
        "double backward",
        "forward mode",
        "inputs",
        "func",
        "vmap",
        "make_fx",
        "checkpoint",
    ),
    *("autocast", "mode", "tensors", "subclass", "opcheck", "pickle", "threads", "DataParallel"),
    *("checkpoint", "export", "CUDA"),
)
"""Rows that take no other process, nor the compiler of Inductor."""


def features(*names: str) -> list[str]:
    return [word for name in names for word in ("--feature", name)]


def rows(printed: str) -> dict[str, str]:
    """The text after the name of each row."""
    found = {}
    for line in printed.splitlines():
        for feature in FEATURES:
            if re.match(rf"  {re.escape(feature.name)}  +\w", line):
                found[feature.name] = line.removeprefix(f"  {feature.name}").strip()
    return found


@pytest.mark.parametrize(
    ("spec", "op"),
    [
        ("embedding", "embedding"),
        pytest.param("shift_sum", "shift_sum", marks=pytest.mark.slow),
    ],
)
def test_right_ops_pass(
    spec: str, op: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.json"
    path = str(SPECS / f"{spec}.op")
    assert main(["support", path, "--op", op, "--json", str(table), *features(*QUICK)]) == 0
    found = rows(capsys.readouterr().out)
    assert len(found) > 25
    excused = {"CUDA", "channels_last inputs"}
    for name, text in found.items():
        assert re.match(r"passed +against \w" if name not in excused else "not tried|passed", text)
    written = json.loads(table.read_text(encoding="utf-8"))
    assert {row["feature"] for row in written["rows"]} == set(found)
    assert written["machine"]["torch"] == torch.__version__
    assert all((row["reason"] == "") == (row["status"] == "passed") for row in written["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["roll"])
def test_every_row_of_a_spec(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", str(SPECS / f"{spec}.op")]) == 0
    printed = capsys.readouterr().out
    assert set(rows(printed)) == {feature.name for feature in FEATURES}
    assert ", 0 failed, " in printed


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("DDP", "without a compiler")),
        "vendored",
    ],
)
def test_rows_in_other_processes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SPECS / "channel_shuffle.op")
    assert main(["support", path, *features(name)]) == 0
    assert rows(capsys.readouterr().out) == {name: "passed     against eager"}


def test_an_op_of_integers_has_rows_that_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "turn.op"
    spec.write_text("op turn(x: int[N,M]) -> y: int[M,N]\n  y[m,n] = x[n,m]\n", encoding="utf-8")
    wanted = features("eager", "func.grad", "make_fx", "vmap", "fake", "opcheck")
    assert main(["support", str(spec), *wanted]) == 0
    found = rows(capsys.readouterr().out)
    assert found["eager forward"] == "passed     against interpreter"
    for name in ("eager backward", "func.grad", "vmap of grad"):
        assert found[name] == "not tried  the op has no derivative"
    for name in ("make_fx", "vmap", "fake tensors", "opcheck", "compile aot_eager"):
        assert found[name].startswith("passed")


# ---------------------------------------------------------------------------- negative controls
def wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    right = evaluation.run_on_cpu

    def run(call: Any, operands: Any) -> bool:
        right(call, operands)
        for output in call.operation.outputs:
            operands[output.name].mul_(1.01)
        return False  # not to be looked up later

    monkeypatch.setattr(evaluation, "run_on_cpu", run)


def wrong_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    right = registration.empty_outputs
    monkeypatch.setattr(
        registration, "empty_outputs", lambda call: tuple(x.unsqueeze(0) for x in right(call))
    )


def wrong_tangents(monkeypatch: pytest.MonkeyPatch) -> None:
    right = autograd._tangent
    monkeypatch.setattr(autograd, "_tangent", lambda *call: 2 * right(*call))


def wrong_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmap._Mapped, "_slice", lambda self, at: list(self.arguments))
    monkeypatch.setattr(vmap._Mapped, "fits", lambda self, axes: False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("breaking", "failing", "holding"),
    [
        (wrong_numbers, ("eager forward", "eager backward", "strided inputs"), ("fake tensors",)),
        (wrong_fakes, ("meta tensors", "fake tensors", "opcheck", "make_fx"), ("eager forward",)),
        (wrong_tangents, ("forward mode", "func.jvp", "func.jacfwd"), ("func.jacrev",)),
        (wrong_vmap, ("vmap",), ("func.grad",)),
    ],
)
def test_what_is_broken_is_shown_as_failed(
    breaking: Callable[[pytest.MonkeyPatch], None],
    failing: tuple[str, ...],
    holding: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = tmp_path / "decay.op"
    text = "op decay(x: float[N,M]) -> y[N,M]\n  y[n,m] = x[n,m] * x[n,m] + x[n, m - 1 ?0]\n"
    # One op for each way to break it: what an op does is looked up and kept.
    spec.write_text(text.replace("decay", f"decay_{breaking.__name__}"), encoding="utf-8")
    breaking(monkeypatch)
    assert main(["support", str(spec), *features(*failing, *holding)]) == 1
    captured = capsys.readouterr()
    found = rows(captured.out)
    for name in failing:
        assert re.match(r"failed +\S", found[name]), (name, found[name])
    for name in holding:
        assert found[name].startswith("passed"), (name, found[name])
    assert " 0 failed" not in captured.out


def test_a_process_that_fails_is_told_with_its_last_line() -> None:
    program = "import sys\nprint('something went wrong', file=sys.stderr)\nsys.exit(3)"
    with pytest.raises(RuntimeError, match=r"^something went wrong$"):
        processes.finish([processes.start(["-c", program], {})])


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    with pytest.raises(RuntimeError, match="did not end within"):
        processes.finish([processes.start(["-c", "import time; time.sleep(60)"], {})])


def test_agreement() -> None:
    x = torch.tensor([1.0, float("nan")])
    agree("x", x, x.clone())
    with pytest.raises(AssertionError, match=r"^x: Tensor-likes are not close! .*$"):
        agree("x", x, x + 1)


# ---------------------------------------------------------------------------- what is tried
def chosen(spec: str) -> Probe:
    return probe(subjects(SPECS / spec)[0], SPECS / spec)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spec", ["conv.op", "softmax.op", "norm.op", "depth_to_space.op"])
def test_a_call_has_something_to_show(spec: str) -> None:
    found = chosen(spec)
    assert all(x.numel() > 1 for x in found.inputs.values())
    assert found.has_derivative
    again = others(found)
    assert again
    for other in again:
        assert other.attributes == found.attributes
        assert [x.shape for x in other.tensors] != [x.shape for x in found.tensors]
        other.outputs(*other.tensors)


def test_wrong_calls(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SPECS / "roll.op")
    assert main(["support", path, "--op", "nothing"]) == 2
    assert "defines no op 'nothing', only " in capsys.readouterr().err
    assert main(["support", path, "--feature", "nonsense"]) == 2
    assert "there is no row 'nonsense', only 'eager forward', " in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none" / "rows.json"
    for path, reason in ((missing, f"{missing.parent} does not exist"), (tmp_path, "a folder")):
        assert main(["support", str(SPECS / "roll.op"), "--json", str(path)]) == 2
        out, err = capsys.readouterr()
        assert reason in err and err.startswith(f"opgen: {path} cannot be written: ") and not out


def test_the_sample_in_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text(encoding="utf-8")
    _, _, sample = text.partition("    $ opgen support specs/shift_sum.op --op shift_sum\n")
    sample = sample.partition("\n\n")[0]
    shown = [line.removeprefix("    ") for line in sample.splitlines() if "..." not in line]
    assert len(shown) > 6
    assert f"... {len(FEATURES) - len(shown) + 1} rows more" in sample
    names = [feature.name for feature in FEATURES if any(f"  {feature.name} " in x for x in shown)]
    assert (
        main(["support", str(SPECS / "shift_sum.op"), "--op", "shift_sum", *features(*names)]) == 0
    )
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in shown:
        assert " ".join(line.split()) in printed, line
