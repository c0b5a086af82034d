"""Modules made while a program runs: what Python compiles them to is kept on disk."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import traceback
import types
from pathlib import Path

import pytest

import opgen
from opgen.runtime import generated

TEXT = "def answer(given):\n    assert given, 'no'\n    return 42 // given\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory, which does not exist yet."""
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what Python compiles."""
    names: list[str] = []

    def noted(text: str, filename: str, mode: str) -> types.CodeType:
        names.append(filename)
        return compile(text, filename, mode)

    monkeypatch.setattr(generated, "builtins", types.SimpleNamespace(compile=noted))
    return names


def test_a_text_is_compiled_once(place: Path, compiled: list[str]) -> None:
    for _ in range(3):
        assert generated.load(TEXT, "one.op").answer(2) == 21
    assert len(compiled) == 1 and len(list(place.glob("*/*"))) == 1
    assert generated.load(TEXT.replace("42", "44"), "one.op").answer(2) == 22
    generated.load(TEXT, "other.op")  # tracebacks name the file
    assert len(compiled) == 3


def test_tracebacks_show_the_text_of_a_module_from_disk(compiled: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(AssertionError, match="no") as caught:
            generated.load(TEXT, "one.op").answer(0)
        last = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (last.filename, last.lineno, last.line) == (compiled[0], 2, "assert given, 'no'")
    assert len(compiled) == 1


@pytest.mark.parametrize("damage", [b"", b"\0", None], ids=["empty", "short", "cut"])
def test_a_damaged_entry_is_made_again(
    place: Path, compiled: list[str], damage: bytes | None
) -> None:
    generated.load(TEXT, "one.op")
    (entry,) = place.glob("*/*")
    content = entry.read_bytes()
    entry.write_bytes(content[:-1] if damage is None else damage)
    assert generated.load(TEXT, "one.op").answer(2) == 21
    assert len(compiled) == 2
    assert list(place.glob("*/*")) == [entry] and entry.read_bytes() == content


def test_where_there_is_no_room_it_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    for _ in range(2):
        assert generated.load(TEXT, "one.op").answer(2) == 21
    assert len(compiled) == 2


WITHOUT_TORCH = f"""
import sys, types
package = sys.modules["opgen.runtime"] = types.ModuleType("opgen.runtime")
package.__path__ = [{str(Path(generated.__file__).parent)!r}]
"""
"""A module of the package alone: all of PyTorch is compiled where there are no assertions."""


@pytest.mark.parametrize(
    "runs",
    [
        (((), False), (("-O",), True)),
        pytest.param((((), False), (("-O",), True), ((), False)), marks=pytest.mark.slow),
    ],
    ids=["once", "again"],
)
def test_a_python_without_assertions_has_its_own(
    runs: tuple[tuple[tuple[str, ...], bool], ...], place: Path
) -> None:
    program = (
        f"{WITHOUT_TORCH}from opgen.runtime import generated\n"
        f"print(generated.load({TEXT.replace('42 // given', '42')!r}, 'one.op').answer(0))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(opgen.__file__).parent.parent)}
    for flags, succeeds in runs:
        command = [sys.executable, *flags, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.stdout == "42\n") == succeeds == (done.returncode == 0), done.stderr
    assert len(list(place.glob("*/*"))) == 2


# ---------------------------------------------------------------------------- collections
@pytest.mark.parametrize("is_enabled", [True, False])
def test_nobody_collects_while_a_text_is_made(
    monkeypatch: pytest.MonkeyPatch, is_enabled: bool
) -> None:
    """Not even where it is refused; then it is as it was before."""
    seen: list[bool] = []

    def made(text: str, name: str) -> str:
        seen.append(gc.isenabled())
        if not text:
            raise ValueError(name)
        return text

    monkeypatch.setattr("opgen.on_demand.module_source", made)
    before = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        assert generated.source("module_source", TEXT, "one.op") == TEXT
        assert gc.isenabled() is is_enabled
        with pytest.raises(ValueError, match=r"two\.op"):
            generated.source("module_source", "", "two.op")
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False, False]
