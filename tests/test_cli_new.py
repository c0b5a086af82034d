"""`opgen new`: what it writes passes every check as it stands, and it overwrites nothing."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import opgen
from catalogue import SPECS
from opgen.__main__ import main
from opgen.cli.new import refusal

README = SPECS.parent / "README.md"


def test_new_files_check_and_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "row_filter"]) == 0
    assert capsys.readouterr().out == (
        "specs/row_filter.op\n"
        "specs/references/row_filter.py\n"
        "next: opgen test specs/row_filter.op, opgen build specs/row_filter.op\n"
    )
    spec = Path("specs/row_filter.op")
    assert main(["check", str(spec)]) == 0
    assert main(["fmt", "--check", str(spec)]) == 0
    assert main(["build", str(spec)]) == 0
    assert Path("generated/row_filter.py").is_file()
    assert "weighted sum of a window" in (opgen.load(spec).row_filter.__doc__ or "")


@pytest.mark.slow
def test_new_files_pass_their_tests_as_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "row_filter"]) == 0
    capsys.readouterr()
    assert main(["test", "specs/row_filter.op"]) == 0
    shown = capsys.readouterr().out
    assert textwrap.indent(shown, "    ") in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("existing", ["a.op", "references/a.py"])
def test_existing_files_are_left_alone(
    existing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "references").mkdir()
    (tmp_path / existing).write_text("mine", encoding="utf-8")
    assert main(["new", "a", "-o", str(tmp_path)]) == 2
    assert "exists and is left as it is" in capsys.readouterr().err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_text(encoding="utf-8") for path in files] == ["mine"]


def test_a_dangling_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / "a.op").symlink_to(target)
    assert main(["new", "a", "-o", str(tmp_path)]) == 2
    assert not target.exists()


@pytest.mark.parametrize(
    "name",
    [
        *("", "../evil", "a/b", "a.b", "a b", "a-b", "Big", "_a", "a_", "a__b", "1a", "é", "a\nb"),
        *("lambda", "match", "print", "range", "torch", "math", "json", "np", "weight"),
        *("op", "sum", "where", "let", "for"),
    ],
)
def test_bad_names_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", name, "-o", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "cannot be the name of an op" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "conv2d", "shift_sum", "b2_c"])
def test_good_names(name: str) -> None:
    assert refusal(name) == ""
