"""`opgen doctor`: what it finds, what it advises, and when it says that nothing works."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from opgen.__main__ import main
from opgen.cli import doctor
from opgen.cli.doctor import Status
from opgen.runtime import build


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
    assert "FAIL kernels" in out
    assert "apt install gcc" in out
    assert out.endswith("CPU kernels do not work here\n")
    assert "Traceback" not in out


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
