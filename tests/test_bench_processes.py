"""Rows measured in processes of their own."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

from bench_rows import CPU, double, small
from opgen.__main__ import main
from opgen.bench.calls import OPGEN
from opgen.bench.faults import BenchError, DisagreementError
from opgen.bench.measure import Result
from opgen.bench.processes import in_its_own, measure_alone
from opgen.bench.row import Direction
from opgen.bench.rows import every_row
from opgen.bench.run import Plan, Refused, run, run_again

ROW = next(row for row in every_row() if row.name == "nearest [8,2048,8,8]")


def _crash() -> None:
    os.abort()


def _fail(text: str) -> None:
    raise BenchError(text)


def test_every_call_is_in_a_process_of_its_own() -> None:
    found = {os.getpid(), in_its_own(os.getpid), in_its_own(os.getpid)}
    assert len(found) == 3


@pytest.mark.parametrize("count", [1, 2])
def test_processes_have_the_threads_of_the_run(count: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        assert in_its_own(torch.get_num_threads) == count
    finally:
        torch.set_num_threads(before)


def test_what_goes_wrong_in_a_process_is_said() -> None:
    with pytest.raises(BenchError, match="no such thing"):
        in_its_own(_fail, "no such thing")
    with pytest.raises(BenchError, match="its process died"):
        in_its_own(_crash)
    assert in_its_own(abs, -3) == 3


def test_a_row_keeps_what_it_is() -> None:
    found = measure_alone(ROW, Direction.FORWARD, CPU, shape=ROW.tiny, budget=0)
    assert found.row is ROW and found.shape == ROW.tiny
    assert set(found.times) == {OPGEN, "F.interpolate", "expand, reshape"}


def test_a_row_that_cannot_be_measured_does_not_end_the_run() -> None:
    """Here one of the names that no process knows."""
    rows = (small(double), ROW)
    first, second = run(Plan(rows, (Direction.FORWARD,), CPU, 1, tiny=True), measure_alone)
    assert isinstance(first, Refused) and not isinstance(second, Refused)


def test_a_row_that_fails_once_more_keeps_its_first_figures() -> None:
    found = measure_alone(ROW, Direction.FORWARD, CPU, shape=ROW.tiny, budget=0)
    noisy = dataclasses.replace(found, noisy=True)
    plan = Plan((ROW,), (Direction.FORWARD,), CPU, 1, tiny=True)

    def measured(*_: object, **__: object) -> Result:
        in_its_own(_crash)
        raise AssertionError

    assert not list(run_again(plan, [noisy], measured))

    def disagreeing(*_: object, **__: object) -> Result:
        raise DisagreementError

    with pytest.raises(DisagreementError):
        list(run_again(plan, [noisy], disagreeing))


def test_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    arguments = ["bench", "--tiny", "--apart", "--forward", "--rows", "nearest [[]8,2048,8,8]"]
    assert main([*arguments, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["name"] == ROW.name and OPGEN in row["times"]
    capsys.readouterr()
    assert main(["bench", "--apart", "my.op", "--shape", "x=3"]) == 2
    assert "--apart is for the rows of the benchmark" in capsys.readouterr().err
