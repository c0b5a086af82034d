"""What `opgen bench` writes: tables, growth, the plot."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import pytest
from torch import Tensor

from bench_rows import CPU, double, small
from opgen.__main__ import main
from opgen.bench import tables
from opgen.bench.calls import OPGEN
from opgen.bench.document import document
from opgen.bench.measure import COPY, Result, measure
from opgen.bench.row import Contender, Direction
from opgen.bench.run import Plan, Refused, run
from opgen.cli import bench_run
from opgen.cli.bench_run import _command


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    readme = folder / "README.md"
    begin, end = tables.marks(tables.ROWS)
    growth = "\n".join(tables.marks(tables.GROWTH))
    readme.write_text(f"before\n{begin}\nold figures\n{end}\n{growth}\nafter\n")
    files = ("--json", folder / "b.json", "--plot", folder / "b.svg", "--write-readme", readme)
    arguments = ["bench", "--tiny", "--rows", "bilinear [[]8,2048,8,8]", *map(str, files)]
    assert main(arguments) == 0
    return folder


def test_tables_are_written_between_the_marks(written: Path) -> None:
    text = (written / "README.md").read_text()
    begin, end = tables.marks(tables.ROWS)
    growth = "\n".join(tables.marks(tables.GROWTH))
    assert text.startswith(f"before\n{begin}\n* date: ") and "old figures" not in text
    assert text.endswith(f"\n{end}\n{growth}\nafter\n")
    lines = [line for line in text.splitlines() if line.startswith("| bilinear")]
    assert len(lines) == 2
    columns = next(line for line in text.splitlines() if line.startswith("| row |")).count("|")
    assert {line.count("|") for line in lines} == {columns}


def test_times_of_a_gpu_alone(tmp_path: Path) -> None:
    """A table of their own, where there are some; calls that cannot be replayed are left out."""
    result = measure(
        small(double, Contender("sum", lambda x: x + x), Contender("waits", lambda x: x * 2)),
        *(Direction.FORWARD, CPU),
        budget=0,
    )
    about = {"started": "now", "command": "opgen bench"}
    device = {OPGEN: 2e-6, "sum": 5e-6, COPY: 1.5e-6}
    result = replace(result, row=replace(result.row, kind="own"))
    found = document([replace(result, device=device)], {"device": "one"}, about)
    path = tmp_path / "GPU.md"
    path.write_text("\n".join(tables.marks(tables.ROWS)))
    tables.rewritten(path, tables.ROWS, found)
    assert (
        f"| {result.row.name} | forward | 2.0 | 5.0 | sum | 2.50 | 1.5 | 75 % |" in path.read_text()
    )
    tables.rewritten(path, tables.ROWS, document([result], {"device": "one"}, about))
    assert "GPU" not in path.read_text()


@pytest.mark.slow  # growth is measured in test_bench_memory, tables are written below
def test_growth_has_its_own_place(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    rows = "\n".join(tables.marks(tables.ROWS))
    path.write_text("\n".join([rows, *tables.marks(tables.GROWTH)]))
    arguments = ["bench", "--growth", "--tiny", "--forward", "--rows", "shift_sum A, 28*"]
    assert main([*arguments, "--write-readme", str(path)]) == 0
    text = path.read_text()
    assert text.startswith(rows) and text.count("| shift_sum A, 28 channels | forward |") == 1


def test_a_run_that_is_ended_has_written_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "run_closely", ended)
    path = tmp_path / "b.json"
    arguments = ["bench", "--tiny", "--forward", "--rows", "bilinear [[]8,2048,8,8]"]
    with contextlib.suppress(KeyboardInterrupt):
        main([*arguments, "--json", str(path)])
    assert len(json.loads(path.read_text())["rows"]) == 1


def test_files_are_looked_at_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody wants to hear after 45 minutes that the figures have no place."""
    (tmp_path / "other.md").write_text("no marks")
    for option, path, message in (
        ("--write-readme", tmp_path / "other.md", "no place for the figures"),
        ("--json", tmp_path / "none" / "b.json", "does not exist"),
        ("--plot", tmp_path / "none" / "b.svg", "does not exist"),
        ("--json", tmp_path, "it is a folder"),
        ("--json", tmp_path / "other.md" / "b.json", "its folder is a file"),
    ):
        assert main(["bench", "--rows", "unfold 3x3*", option, str(path)]) == 2
        said = capsys.readouterr()
        assert message in said.err and not said.out


def test_the_readme_has_its_marks() -> None:
    path = Path(__file__).parent.parent / "benchmarks" / "README.md"
    for part in tables.COMMANDS:
        tables.split(path, part)


def test_first_calls_have_their_own_place(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("\n".join(["before", *tables.marks(tables.FIRST_CALLS), "after"]))
    about = {"started": "now", "machine": {"cores": 2}, "command": "first_call.py"}
    about = {**about, "importing": "import: 1, then 2"}
    found = {**about, tables.FIRST_CALLS: [("a row", "1", "2", "3", "4")]}
    tables.rewritten(path, tables.FIRST_CALLS, found)
    lines = path.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after"
    assert "* machine: cores 2" in lines and "* import: 1, then 2" in lines
    assert "| a row | 1 | 2 | 3 | 4 |" in lines


def test_a_row_that_fails_does_not_end_the_run() -> None:
    def failing(x: Tensor) -> Tensor:
        raise RuntimeError("not enough memory")

    rows = (small(double, Contender("failing", failing)), small(double, Contender("same", double)))
    first, second = run(Plan(rows, (Direction.FORWARD,), CPU, minutes=1, tiny=True))
    assert isinstance(first, Refused) and first.reason == "RuntimeError: not enough memory"
    assert isinstance(second, Result)


def test_what_limits_a_row() -> None:
    row = {
        "times": {OPGEN: 1.0},
        "limit": 0.9,
        "dispatched": False,
        "copy": {"copy_": 0.9, "empty + copy_": 0.95},
    }
    assert tables.limited_by(row) == "memory"
    assert tables.limited_by({**row, "copy": {"copy_": 0.1}}) == "multiplications"
    assert tables.limited_by({**row, "limit": 0.5}) == "fresh pages of the output"
    cold = {**row, "limit": 0.5, "copy": {"copy_": 0.5, "empty + copy_": 0.6}}
    assert tables.limited_by(cold) == "its instructions"
    assert tables.limited_by({**row, "dispatched": True}) == "the library it is dispatched to"
    for alone, found in ((0.5, "the call"), (0.9, "its instructions")):
        on_gpu = {**row, "limit": 0.5, "device": {"opgen": alone}}
        assert tables.limited_by(on_gpu) == found


def test_the_plot_has_a_dot_for_every_row(written: Path) -> None:
    picture = ElementTree.parse(written / "b.svg").getroot()
    dots = picture.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(dots) == 2
    titles = [dot[0].text for dot in dots]
    assert all(title is not None and title.startswith("bilinear") for title in titles)


@pytest.mark.slow
def test_growth_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "growth.json"
    arguments = ["bench", "--growth", "--tiny", "--rows", "shift_sum A, 28*"]
    assert main([*arguments, "--json", str(path)]) == 0
    first, second = json.loads(path.read_text())["growth"]
    assert first["shapes"] == [[2, 5, 4, 4], [2, 5, 4, 8], [2, 5, 4, 16]]
    # x, the mask, and y, which is 8 columns wider.
    assert first["bytes"] == [4 * 4 * (2 * 5 * w + w + 2 * (w + 8)) for w in (4, 8, 16)]
    assert second["direction"] == "backward"
    assert "peak MB" in capsys.readouterr().out


def test_the_command_in_the_tables_names_no_file_of_this_machine() -> None:
    given = ["bench", "--quick", "--json", "/some/where.json", "--rows", "a b", "--plot=b.svg"]
    assert _command(given) == "opgen bench --quick --rows 'a b'"
