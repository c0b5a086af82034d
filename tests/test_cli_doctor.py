"""`opgen doctor`: what it finds, what it advises, and when it says that nothing works."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import opgen
from catalogue import SPECS
from opgen.__main__ import main
from opgen.cli import doctor
from opgen.cli.doctor import Status
from opgen.runtime import build, toolchain


def program(folder: Path, name: str, text: str) -> Path:
    """An executable script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_machine_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    for name in ("software", "compiler", "kernels", "threads", "cache", "gpu", "cupy", "tests"):
        assert any(line[5:].startswith(name) for line in lines), name
    assert "FAIL" not in out
    assert lines[-1] == "CPU kernels work here"
    assert str(build.cache_directory()) in out
    assert f"torch {torch.__version__}" in out
    assert err == ""
    assert "\x1b" not in out


def test_everything_that_is_not_in_order_comes_with_advice() -> None:
    for finding in doctor.findings():
        assert finding.status is Status.OK or finding.advice, finding


def test_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPGEN_CC", str(tmp_path / "none"))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL compiler" in out
    assert "-> let it name a compiler, or unset it and install gcc or clang (Debian and" in out
    assert "FAIL kernels   none was tried: they take a compiler\n" in out
    assert "lines above" not in out
    assert out.endswith(
        ": ops run as plain PyTorch operations, which give the same results much more slowly\n"
    )
    assert "Traceback" not in out


def test_ops_run_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last line says."""
    monkeypatch.setenv("OPGEN_CC", "'")
    ops = opgen.compile("op f(x[N]) -> y[N]\n  y[n] = 3 * x[n]\n")
    with pytest.warns(
        RuntimeWarning, match="cannot be split into words: No closing quotation; let"
    ):
        assert ops.f(torch.ones(2)).tolist() == [3, 3]


def test_one_hint_how_to_get_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the README, in the error, and here."""
    readme = " ".join((SPECS.parent / "README.md").read_text().replace("`", "").split())
    assert toolchain.HOW_TO_GET_ONE in readme
    monkeypatch.delenv("OPGEN_CC", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    monkeypatch.setattr(toolchain, "_zig", lambda: None)
    finding = doctor.compiler()
    assert finding.advice == toolchain.HOW_TO_GET_ONE
    with pytest.raises(build.NoCompilerError) as caught:
        build.find_compiler()
    assert str(caught.value) == f"{finding.text}; {finding.advice}"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--no-such-option", "unset $OPGEN_CFLAGS, which adds '--no-such-option', or try another"),
        ("'", "let $OPGEN_CFLAGS hold options of the compiler, such as -O1, or unset it"),
    ],
)
def test_options_that_the_compiler_refuses(
    options: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPGEN_CFLAGS", options)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert expected in out
    assert out.endswith("CPU kernels do not work here: ops on CPU tensors raise an error\n")


def test_a_compiler_that_is_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    monkeypatch.setenv("OPGEN_CC", str(broken))
    assert main(["doctor"]) == 1
    assert "cannot be run" in capsys.readouterr().out


def test_a_compiler_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = program(tmp_path, "broken", "echo 'cannot find libc' >&2; exit 1")
    monkeypatch.setenv("OPGEN_CC", str(broken))
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path / "cache"))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert f"{broken} (from $OPGEN_CC): does not say its version" in out
    assert "cannot find libc" in out


def test_a_cache_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    monkeypatch.setenv("OPGEN_CACHE", str(file))
    finding = doctor.cache()
    assert finding.status is Status.WARNING
    assert "every process compiles" in finding.text
    assert "$OPGEN_CACHE" in finding.advice


def test_one_thread_on_several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(doctor, "_cores", lambda: 8)
    finding = doctor.threads()
    assert finding.status is Status.WARNING
    assert "OMP_NUM_THREADS" in finding.advice


def test_an_old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    assert doctor.software().status is Status.FAILURE
    monkeypatch.setattr(torch, "__version__", "2.10.0a0+git")
    assert doctor.software().status is Status.OK


def test_a_gpu_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    finding = doctor.cupy()
    assert finding.status is Status.WARNING
    assert "opgen[cuda13]" in finding.advice


def test_a_cupy_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "cupy", None)
    finding = doctor.cupy()
    assert finding.status is Status.WARNING
    assert "cannot be used" in finding.text


def test_cupy_and_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy, nvrtc = ModuleType("cupy"), ModuleType("cupy.cuda.nvrtc")
    cupy.__version__ = "14.0.1"  # type: ignore[attr-defined]
    nvrtc.getVersion = lambda: (12, 9)  # type: ignore[attr-defined]
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", ModuleType("cupy.cuda"))
    monkeypatch.setitem(sys.modules, "cupy.cuda.nvrtc", nvrtc)
    assert doctor.cupy() == doctor.Finding(Status.OK, "cupy", "14.0.1, NVRTC 12.9")
