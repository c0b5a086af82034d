"""The command line: what it prints, where, and with which exit status."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import opgen
from catalogue import SPECS
from opgen.__main__ import main
from opgen.errors import NotTextError

ROOT = SPECS.parent
BAD = "op f(x[B,C]) -> y[B]\n  y[b] = x[b,c]\n"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.op"
    path.write_text(BAD, encoding="utf-8")
    return path


def test_check_names_the_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(SPECS / "shift_sum.op")]) == 0
    out, err = capsys.readouterr()
    assert out == f"{SPECS / 'shift_sum.op'}: shift_sum, shift_sum_masked, shift_sum_pinv\n"
    assert err == ""


def test_check_goes_on_after_a_bad_spec(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(bad), str(SPECS / "roll.op")]) == 1
    out, err = capsys.readouterr()
    assert out.endswith("roll.op: roll\n")
    assert err.startswith("error[free-iterator]:")
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["check", "show", "grad", "fmt", "build", "test"])
def test_a_missing_file_is_a_wrong_call(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.op"
    assert main([command, str(missing)]) == 2
    assert capsys.readouterr().err == f"opgen: No such file or directory: {missing}\n"


def test_check_and_fmt_go_on_after_a_file_that_cannot_be_read(
    bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every file is told of, in order, and the worst status is that of the call."""
    missing, binary, good = tmp_path / "none.op", tmp_path / "binary.op", tmp_path / "good.op"
    binary.write_bytes(b"\xff")
    good.write_text("op f(x[B])->y[B]\n  y[b]=2*x[b]\n", encoding="utf-8")
    files = [str(path) for path in (missing, binary, bad, good)]
    assert main(["check", *files]) == 2
    out, err = capsys.readouterr()
    assert out == f"{good}: f\n"
    assert err.startswith(f"opgen: No such file or directory: {missing}\nopgen: {binary} is not")
    assert "error[free-iterator]:" in err
    assert main(["fmt", *files]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == str(good)
    assert good.read_text(encoding="utf-8") == "op f(x[B]) -> y[B]\n  y[b] = 2 * x[b]\n"


@pytest.mark.parametrize(
    "command", ["check", "show", "grad", "fmt", "build", "test", "support", "bench", "cost"]
)
def test_a_file_that_is_no_text(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "binary.op"
    path.write_bytes(b"op\xff\xfe\x00")
    shape = ["--shape", "x=1"] if command in ("bench", "cost") else []
    assert main([command, str(path), *shape]) == 2
    told = f"opgen: {path} is not UTF-8 text: invalid start byte at byte 2; save it in that"
    assert capsys.readouterr().err.startswith(told)


def test_a_module_of_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.op"
    path.write_bytes(b"\xff")
    with pytest.raises(NotTextError, match=r"binary\.op is not UTF-8 text"):
        opgen.load(path)


def test_the_cpu_stage_is_that_of_c(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for stage in ("c", "cpu"):
        assert main(["show", str(SPECS / "roll.op"), "--stage", stage]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "int64_t run_roll(" in texts[0]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("show", "which one (notation); cpu is another name for c"),
        ("grad", "with 2 the gradients of the gradients, too (1)"),
    ],
)
def test_help_says_the_defaults(
    command: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert expected in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("syntax", "Definition"),
        ("notation", "op shift_sum(x[B,C,H,W]; step = 1) -> y[B,1,H,V]"),
        ("adjoint", "grad_x[b,c,h,w] = grad_y[b,0,h, c*step + w]"),
        ("tangent", "op shift_sum_tangent"),
        ("loops", "shift_sum"),
        ("c", "KERNEL void shift_sum_y("),
        ("cuda", "__global__ void __launch_bounds__(THREADS, 1) shift_sum_y("),
        ("module", "def shift_sum(x: Tensor, *, step: int = 1) -> Tensor:"),
    ],
)
def test_show(stage: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(SPECS / "shift_sum.op"), "--stage", stage]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.slow
def test_grad_prints_specs_that_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted(SPECS.glob("*.op")):
        assert main(["grad", str(path)]) == 0
        derived = tmp_path / path.name
        derived.write_text(capsys.readouterr().out, encoding="utf-8")
        assert main(["check", str(derived)]) == 0, path.name
        capsys.readouterr()


def test_grad_of_an_unknown_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grad", str(SPECS / "roll.op"), "--op", "rol"]) == 2
    assert "defines no op 'rol', only roll" in capsys.readouterr().err


def test_fmt_rewrites_and_check_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ugly.op"
    ugly = "op f(x[B])->y[B]\n    y[b]=2*x[b]\n"
    path.write_text(ugly, encoding="utf-8")
    assert main(["fmt", "--check", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == ugly
    assert main(["fmt", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == "op f(x[B]) -> y[B]\n  y[b] = 2 * x[b]\n"
    assert main(["fmt", "--check", str(path)]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_build_and_the_example(tmp_path: Path) -> None:
    """What the README calls the main job, in a fresh directory."""
    commands = (
        [sys.executable, "-m", "opgen", "build", str(SPECS / "shift_sum.op")],
        [sys.executable, str(ROOT / "examples" / "shift_sum.py"), "--cubes", "1"],
    )
    for command in commands:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
    assert "[1.0, 3.0, 6.0, 5.0, 3.0]" in done.stdout
    assert "equal to the loop of slices" in done.stdout


@pytest.mark.slow
def test_same_bytes_under_two_hash_seeds(tmp_path: Path) -> None:
    """No output depends on the order of sets or on what the process did before."""
    outputs = []
    for seed in ("1", "2"):
        directory = tmp_path / seed
        script = (
            "import sys; from opgen.__main__ import main\n"
            "names = ['shift_sum', 'pool', 'pad']\n"
            f"names = names if {seed} == 1 else names[::-1]\n"
            f"[main(['build', f'{SPECS}/{{n}}.op', '-o', {str(directory)!r}]) for n in names]\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        outputs.append({p.name: p.read_bytes() for p in sorted(directory.glob("*.py"))})
    assert len(outputs[0]) == 3
    assert outputs[0] == outputs[1]


def run_opgen(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opgen", *arguments],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_colours_in_a_terminal_and_the_very_same_text_in_a_pipe(bad: Path) -> None:
    piped = run_opgen("check", str(bad))
    coloured = run_opgen("check", str(bad), FORCE_COLOR="1", TERM="xterm")
    assert (piped.returncode, coloured.returncode) == (1, 1)
    assert "\x1b[" not in piped.stderr
    assert "\x1b[" in coloured.stderr
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured.stderr) == piped.stderr


def test_text_is_neither_wrapped_nor_read_as_markup(tmp_path: Path) -> None:
    """Rich would wrap at 80 columns, and take `[b]` for bold."""
    path = tmp_path / f"{'long' * 30}.op"
    path.write_text("op f(x[B]) -> y[B]\n  y[b] = x[b+1] + x[bold] # :smile: [/red]\n")
    done = run_opgen("check", str(path), COLUMNS="40")
    assert f"--> {path}:2:" in done.stderr
    assert "2 |   y[b] = x[b+1] + x[bold] # :smile: [/red]\n" in done.stderr


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("opgen.compiler.check_source", interrupted)
    assert main(["check", str(SPECS / "roll.op")]) == 130


def test_importing_opgen_loads_nothing_heavy() -> None:
    """`import opgen` alone, and the runtime that generated modules import."""
    for module in ("opgen", "opgen.runtime"):
        script = (
            f"import sys, {module}\n"
            "print(*sorted({'lark', 'jinja2', 'rich', 'hypothesis'} "
            "& set(sys.modules)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100
        )
        assert done.stdout == "\n", done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("opgen ")
