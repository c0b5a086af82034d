"""Memory that is used again, how cost grows, and the most memory that a step holds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import opgen.bench.growth
from bench_rows import CPU, double, small
from opgen.__main__ import main
from opgen.bench import recycle, timing
from opgen.bench.calls import OPGEN
from opgen.bench.faults import BenchError
from opgen.bench.growth import grown, growth
from opgen.bench.memory import peak
from opgen.bench.row import Contender, Direction, Shape, Workload
from opgen.bench.rows import every_row
from opgen.bench.run import Plan, run_growth
from opgen.bench.timing import Sample


def test_calls_are_made_until_they_bring_no_new_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = iter([5000, 300, 20, 0, 0])
    pages = [0]
    called: list[str] = []

    def first() -> None:
        called.append("first")
        pages[0] += next(fresh)

    monkeypatch.setattr(recycle, "_pages", lambda: pages[0])
    recycle.settle([first, lambda: called.append("second")])
    assert called == ["first", "second"] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's allocator is replaced on Linux only")
def test_freed_memory_is_given_out_again() -> None:
    cells = 1 << 20
    before = torch.ones(cells)
    with recycle.freed_memory_kept():
        del before  # of the allocator that was there before
        places = set()
        for step in range(4):
            result = torch.full((cells,), step, dtype=torch.float32)
            assert result.sum() == step * cells
            places.add(result.data_ptr())
            del result
        assert len(places) == 1
        kept, second = torch.ones(cells), torch.ones(cells)
        assert kept.data_ptr() in places
        assert second.data_ptr() not in places
        assert torch.ones(1000).data_ptr() not in places
        assert torch.ones(0).sum() == 0
        threads = [threading.Thread(target=lambda: torch.randn(5000).sort()) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del second
    with recycle.freed_memory_kept():
        assert kept.sum() == cells
        del kept


def test_rows_count_where_memory_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @contextlib.contextmanager
    def refuse() -> Iterator[None]:
        raise BenchError("there is no compiler here")
        yield

    monkeypatch.setattr(recycle, "freed_memory_kept", refuse)
    path = tmp_path / "rows.json"
    row = "nearest [8,2048,8,8]"
    assert main(["bench", "--tiny", "--forward", "--rows", row, "--json", str(path)]) == 0
    assert "outputs recycled: not measured: there is no compiler here" in capsys.readouterr().err
    assert all(not found["recycled"] for found in json.loads(path.read_text())["rows"])


# ---------------------------------------------------------------------------- growth and memory
def test_sizes_that_grow() -> None:
    def shapes(*shape: int) -> tuple[Shape, ...]:
        return grown(dataclasses.replace(small(double), shape=shape), shape)

    assert shapes(8, 3, 5) == ((2, 3, 5), (4, 3, 5), (8, 3, 5))
    assert shapes(1, 3, 40) == ((1, 3, 10), (1, 3, 20), (1, 3, 40))
    with pytest.raises(BenchError, match="can be divided by 4"):
        shapes(1, 3, 3)


def test_a_larger_size_of_another_row_has_no_growth_of_its_own() -> None:
    nets = [row for row in every_row() if row.kind == "nets"]
    named = {row.name for row in nets if not row.grows}
    assert named == {
        "EDSR-like net [1,3,720,1280]",
        "EDSR-like net [1,3,720,1280] channels_last",
    }
    assert all(row.grows for row in every_row() if row.name not in named)
    row = dataclasses.replace(small(double, Contender("sum", lambda x: x + x)), grows=False)
    plan = Plan((row,), (Direction.FORWARD,), CPU, minutes=1, tiny=True)
    assert not list(run_growth(plan))


def test_growth_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock for which everything takes the square of the cells."""

    def clock(call: Callable[[], object], repeats: int) -> Sample:
        made = call()
        result = made[0] if isinstance(made, tuple) else made
        assert isinstance(result, Tensor)
        return Sample(float(result.numel() ** 2))

    monkeypatch.setattr(timing, "clock_of", lambda device: clock)
    row = small(double, Contender("sum", lambda x: x + x))
    found = growth(row, Direction.FORWARD, CPU, (12,), budget=0)
    assert [result.times[OPGEN] for result in found.results] == [9, 36, 144]
    assert [result.moved for result in found.results] == [2 * 4 * n for n in (3, 6, 12)]
    assert found.exponents == pytest.approx({OPGEN: 2, "sum": 2})


def test_memory_is_measured_once_for_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def peak(contender: Contender, workload: Workload) -> int:
        measured.append(contender.name)
        return len(measured)

    monkeypatch.setattr(opgen.bench.growth, "peak", peak)
    row, known = small(double, Contender("sum", lambda x: x + x)), {}
    found = [growth(row, direction, CPU, (12,), 0, known).peaks for direction in Direction]
    assert measured == [OPGEN, "sum"]
    assert found == [{OPGEN: 1, "sum": 2}] * 2


def test_peak_memory() -> None:
    """Twelve times the input held at once, and nothing but the results."""
    x = torch.randn(4 << 20)
    size = x.numel() * x.element_size()
    workload = Workload((x,), double, (), points=x.numel())
    lean = peak(Contender("lean", double), workload)
    wasteful = peak(Contender("wasteful", lambda x: torch.stack([x] * 12).sum(0)), workload)
    if sys.platform.startswith("linux"):
        assert lean is not None and wasteful is not None
        assert 1.9 * size < lean < 6 * size
        assert 11 * size < wasteful
