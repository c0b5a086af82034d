"""The runner of `opgen bench`: its checks, and every row at a tiny size."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench_rows import CPU, double, small, to_tf32, with_ratio
from opgen.__main__ import main
from opgen.bench import limits, precision, replays, report, timing, trace
from opgen.bench.calls import OPGEN, calls_of
from opgen.bench.faults import BenchError, DisagreementError
from opgen.bench.measure import COPY, Result, measure
from opgen.bench.precision import tf32
from opgen.bench.row import Contender, Direction, Row, Workload
from opgen.bench.rows import QUICKLY_COMPILED, every_row, pyinn
from opgen.bench.rows.nets import forward as net
from opgen.bench.run import Omitted, Plan, Refused, chosen, run, run_again, run_closely
from opgen.testing.cuda_on_cpu import RawKernel, virtual
from opgen.testing.references import references_path

ROWS = {row.name: row for row in every_row()}


# ---------------------------------------------------------------------------- agreement
@pytest.mark.parametrize("direction", Direction, ids=lambda d: d.value)
def test_factors_in_tf32(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are held to it where it is allowed."""
    rounding = Contender("rounding", lambda x: to_tf32(x) * 2, lambda g, x: (to_tf32(g) * 2,))
    with pytest.raises(DisagreementError, match="rounding"):
        measure(small(double, rounding), direction, CPU, budget=0)
    monkeypatch.setattr(precision, "of_factors", lambda _: precision.FACTORS)
    assert "rounding" in measure(small(double, rounding), direction, CPU, budget=0).times


def test_bent_gradients_are_not_compared_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS["EDSR-like net [1,3,180,320]"]
    monkeypatch.setattr(precision, "of_factors", lambda _: precision.FACTORS)
    others = [
        set(measure(row, each, CPU, shape=row.tiny, budget=0).times) - {OPGEN} for each in Direction
    ]
    assert others == [{"F.pixel_shuffle"}, set()]
    assert "TF32" in row.omitted[0]


# ---------------------------------------------------------------------------- limits
def test_bytes_that_must_move() -> None:
    image, row = torch.empty(8, 4, 5), torch.empty(5, dtype=torch.bfloat16)
    assert limits.traffic([image], [row]) == 8 * 4 * 5 * 4 + 5 * 2
    # An expanded filter is read once, however many channels it serves.
    assert limits.traffic([torch.empty(3, 3).expand(64, 1, 3, 3)], []) == 36
    assert limits.traffic([torch.empty(0, 4)], []) == 0


def test_copies_move_as_many_bytes() -> None:
    found = limits.copies(4096, CPU)
    for call in (found.recycled, found.fresh):
        made = call()
        assert isinstance(made, Tensor) and 2 * made.numel() * made.element_size() == 4096


def test_multiplications_of_gradients() -> None:
    """As many as forward for each of two factors; a bias and further layers have none."""
    x = torch.ones(3)
    for differentiable, factor in (((0,), 1), ((0, 1), 2), ((0, 1, 2), 2), (tuple(range(11)), 2)):
        workload = Workload((x,) * 11, double, (), points=70, differentiable=differentiable)
        assert workload.multiplications(Direction.FORWARD) == 70
        assert workload.multiplications(Direction.BACKWARD) == 70 * factor


# ---------------------------------------------------------------------------- rows
# ---------------------------------------------------------------------------- rows
def test_rows_have_names_of_their_own() -> None:
    assert len(ROWS) == len(list(every_row())) > 150
    assert set(QUICKLY_COMPILED) <= {name for name, row in ROWS.items() if row.quick}


@pytest.mark.parametrize("direction", Direction, ids=lambda d: d.value)
def test_a_contender_that_disagrees_is_not_reported(direction: Direction) -> None:
    wrong = Contender("wrong", lambda x: x * 2.001)
    row = small(double, Contender("right", lambda x: x + x), wrong)
    with pytest.raises(DisagreementError, match="wrong"):
        measure(row, direction, CPU, budget=0)
    plan = Plan((row,), (direction,), CPU, minutes=0.01)
    (outcome,) = run(plan)
    assert isinstance(outcome, Refused) and "wrong" in outcome.reason
    assert "not reported" in report.problem(outcome)


def test_written_gradients_are_checked_too() -> None:
    right = Contender("right", double, gradients=lambda g, x: (g * 2,))
    result = measure(small(double, right), Direction.BACKWARD, CPU, budget=0)
    assert set(result.times) == {OPGEN, "right"}
    wrong = Contender("wrong", double, gradients=lambda g, x: (g * 3,))
    with pytest.raises(DisagreementError, match="wrong"):
        measure(small(double, wrong), Direction.BACKWARD, CPU, budget=0)


def test_results_say_who_is_best() -> None:
    row = small(double, Contender("sum", lambda x: x + x), Contender("long", lambda x: slow(x)))
    result = measure(row, Direction.FORWARD, CPU, budget=0.01)
    assert result.best == "sum" and result.ratio is result.ratios["sum"]
    assert result.times["long"] > 2 * result.times["sum"]
    assert result.moved == 2 * 5 * 4 and result.limit == result.copy["copy_"]
    assert not result.dispatched


def slow(x: Tensor) -> Tensor:
    for _ in range(100):
        x = x + 1 - 1
    return x * 2


def test_dispatched_calls_are_told_apart() -> None:
    weight = torch.randn(3, 3)
    for call, expected in (
        (lambda: F.linear(torch.randn(2, 3), weight), True),
        (lambda: F.conv1d(torch.randn(1, 1, 9), torch.randn(1, 1, 3)), True),
        (lambda: torch.randn(2, 3) * 2, False),
    ):
        result, ops = trace.traced(call)
        assert isinstance(result, Tensor) and trace.runs_contraction(ops) is expected


def test_a_row_that_is_measured_again_is_still_dispatched() -> None:
    """Calls that are looked up by then show no op of the library."""
    row = next(each for each in every_row() if each.name.startswith("10 layers of 256 channels"))
    for direction in Direction:
        found = [measure(row, direction, CPU, shape=(1, 128, 5, 6), budget=0) for _ in range(3)]
        assert [each.dispatched for each in found] == [True] * 3


def test_rows_for_which_no_time_is_left_are_named() -> None:
    plan = Plan((small(double, Contender("same", double)),), (Direction.FORWARD,), CPU, minutes=0)
    (outcome,) = run(plan)
    assert isinstance(outcome, Omitted) and "no time was left" in report.problem(outcome)


def test_patterns() -> None:
    rows = tuple(every_row())
    assert chosen(rows, "") == rows
    assert {row.kind for row in chosen(rows, "unfold")} == {"unfold"}
    assert all("channels_last" in row.name for row in chosen(rows, "depth*channels_last"))
    assert chosen(rows, "no such row") == ()


def test_cotangents_are_alike_whoever_is_measured() -> None:
    """torch.compile comes later than the others, and must meet the same numbers."""
    x = torch.randn(3, 4)
    workload = Workload((x,), double, (), points=12)
    once, again = (
        calls_of(workload, [Contender(OPGEN, double)], Direction.BACKWARD)[OPGEN]()[0]
        for _ in range(2)
    )
    assert torch.equal(once, again) and not torch.equal(once, torch.ones_like(x))


def test_gradients_written_by_hand_have_the_type_of_the_input() -> None:
    """Under autocast cotangents have 16 bits, and the cast of a gradient is a part of the work."""
    x = torch.ones(3)
    half = Contender("half", double, gradients=lambda g, x: (g.bfloat16() * 2,))
    workload = Workload((x,), double, (half,), points=3)
    calls = calls_of(workload, [Contender(OPGEN, double), half], Direction.BACKWARD)
    assert calls["half"]()[0].dtype == x.dtype


def test_what_the_first_forward_pass_kept_is_not_timed() -> None:
    """An op of opgen is looked up by its attributes from the second call on."""
    factors = iter((2.0, 3.0))
    x = torch.randn(3, 4)
    workload = Workload((x,), lambda x: next(factors) * x, (), points=12)
    contender = Contender(OPGEN, workload.opgen)
    call = calls_of(workload, [contender], Direction.BACKWARD)[OPGEN]
    workload = Workload((x,), lambda x: 3.0 * x, (), points=12)
    contender = Contender(OPGEN, workload.opgen)
    expected = calls_of(workload, [contender], Direction.BACKWARD)[OPGEN]
    assert torch.equal(call()[0], expected()[0])


REPRESENTATIVE = [
    row
    for row in every_row()
    if row.quick
    or (row.name.endswith("autocast") and "[8,2048,8,8]" in row.name)
    or "in one spec [" in row.name
]


@pytest.mark.slow
@pytest.mark.parametrize("row", REPRESENTATIVE, ids=lambda row: row.name)
def test_contenders_of_a_row_agree(row: Row) -> None:
    for direction in row.directions:
        result = measure(row, direction, CPU, shape=row.tiny, budget=0)
        assert result.times[OPGEN] > 0 and len(result.times) >= 2
        assert result.moved > 0 and result.limit > 0


def test_shapes_of_a_run() -> None:
    row = dataclasses.replace(small(double), brief=(4,), on_gpu=(6,))
    gpu = torch.device("cuda")
    assert [row.shape_for(CPU, quick=q) for q in (False, True)] == [(5,), (4,)]
    assert [row.shape_for(gpu, quick=q) for q in (False, True)] == [(6,), (4,)]
    plan = Plan((row,), (Direction.FORWARD,), gpu, minutes=1, tiny=True)
    assert plan.shape(row) == row.tiny


def test_tf32_is_switched_and_put_back() -> None:
    def allowed() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before, gpu = allowed(), torch.device("cuda")
    for wanted in (True, False):
        with tf32(allowed=wanted):
            assert allowed() == (wanted, wanted)
            assert precision.of_factors(gpu) == (precision.FACTORS if wanted else None)
            assert precision.of_factors(CPU) is None
        assert allowed() == before


def test_tf32_is_for_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tf32", "--tiny", "--device", "cpu"]) == 2
    assert "--tf32 is for a GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_specs_of_the_benchmark(tmp_path: Path) -> None:
    specs = sorted((Path(__file__).parent.parent / "benchmarks" / "specs").glob("*.op"))
    assert specs
    for spec in specs:
        assert references_path(spec).exists()
        arguments = ["--examples", "4", "--replays", str(tmp_path)]
        assert main(["test", str(spec), *arguments]) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("row", REPRESENTATIVE, ids=lambda row: row.name)
def test_contenders_of_a_row_agree_on_a_gpu(row: Row) -> None:
    for direction, allowed in itertools.product(row.directions, (False, True)):
        with tf32(allowed=allowed):
            result = measure(row, direction, torch.device("cuda"), shape=row.tiny, budget=0)
        is_bent = any("TF32" in each for each in row.omitted)
        alone = allowed and is_bent and direction is Direction.BACKWARD
        assert result.times[OPGEN] > 0 and len(result.times) >= (1 if alone else 2)


@pytest.mark.gpu
def test_replays() -> None:
    """A GPU alone takes less than a small call from Python, and what waits is not replayed."""
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.ones(1000, device="cuda")
        calls = {"add": lambda: x + 1, "wait": lambda: (x + 1).sum().item()}
        for call in calls.values():
            call()
        seconds = {name: timing.on_gpu(call, 100).seconds for name, call in calls.items()}
        found = replays.device_times(calls, seconds, 0.1, ())
        assert set(found) == {"add"}
        assert 0 < found["add"] < seconds["add"]
        row = ROWS["depth_to_space r=2 CRD [8,64,180,320] float32"]
        result = measure(row, Direction.BACKWARD, torch.device("cuda"), shape=row.tiny, budget=0)
        assert {OPGEN, COPY, "F.pixel_shuffle"} <= set(result.device)


def test_what_is_replayed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short calls are several in a graph, and their time is that of one."""
    made: dict[str, int] = {}

    class Graph:
        def __init__(self, count: int, seconds: float) -> None:
            self.seconds = count * seconds

        def replay(self) -> None:
            clock[0] += self.seconds

    def captured(call: timing.Call, count: int) -> Graph | None:
        name = str(call())
        made[name] = count
        return None if name == "waits" else Graph(count, {"short": 1e-5, "long": 0.02}[name])

    def on_gpu(call: timing.Call, repeats: int) -> timing.Sample:
        before = clock[0]
        for _ in range(repeats):
            call()
        return timing.Sample((clock[0] - before) / repeats)

    clock = [0.0]
    monkeypatch.setattr(replays, "_captured", captured)
    monkeypatch.setattr(replays, "_can_capture", lambda: True)
    monkeypatch.setattr(timing, "on_gpu", on_gpu)
    seconds = {"short": 1e-4, "long": 0.02, "waits": 0.5}
    calls = {name: (lambda name=name: name) for name in seconds}
    found = replays.device_times(calls, seconds, 0.01, ())
    assert found == {"short": pytest.approx(1e-5), "long": pytest.approx(0.02)}
    assert made["short"] > 1 == made["long"]


# ---------------------------------------------------------------------------- layout copies
def test_no_copy_around_the_shuffle() -> None:
    name = "EDSR-like net [1,3,180,320] channels_last"
    result = measure(ROWS[name], Direction.FORWARD, CPU, shape=(1, 3, 180, 320), budget=0)
    assert result.copies[OPGEN] == 0


def test_layout_copies_are_seen() -> None:
    """Negative control: the same net with a shuffle that changes the layout."""
    workload = ROWS["EDSR-like net [1,3,180,320] channels_last"].make((1, 3, 180, 320), CPU)
    copying = net(lambda x, w: F.pixel_shuffle(F.conv2d(x, w, padding=1).contiguous(), 2))
    _, ops = trace.traced(lambda: copying(*workload.inputs), workload.inputs[0].numel())
    assert ops[trace.COPY_OP] >= 2


# ---------------------------------------------------------------------------- the command
def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench.json"
    assert main(["bench", "--rows", "unfold 3x3 [[]2,*", "--tiny", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert {"machine", "rows"} <= set(found)
    assert {"device", "threads", "torch"} <= set(found["machine"])
    assert [(row["name"], row["direction"]) for row in found["rows"]] == [
        ("unfold 3x3 [2,10,50,50]", "forward"),
        ("unfold 3x3 [2,10,50,50]", "backward"),
    ]
    for row in found["rows"]:
        assert {"opgen", "F.unfold", "as_strided"} == set(row["times"])
        assert all(isinstance(t, float) and t > 0 for t in row["times"].values())
        assert isinstance(row["limit"], float) and row["dispatched"] is False
    assert "torch.compile was not tried in: unfold 3x3 [2,10,50,50]" in capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list", "--quick"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert sorted(names) == sorted(name for name, row in ROWS.items() if row.quick)
    assert len({ROWS[name].kind for name in names[:6]}) == 6, "one of each kind first"


def test_rows_that_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--rows", "no such row"]) == 2
    for option in (["--shape", "x=3"], ["--set", "r=2"], ["--op", "f"]):
        assert main(["bench", *option]) == 2
        assert "name its SPEC" in capsys.readouterr().err


def test_lines_and_summary() -> None:
    result = measure(
        small(double, Contender("sum", lambda x: x + x)), Direction.FORWARD, CPU, budget=0
    )
    behind = with_ratio(result, 0.5, 0.4, 0.6)
    near = with_ratio(result, 0.98, 0.9, 1.05)
    assert [report.keeps_up(r.ratio) for r in (behind, near) if r.ratio] == [False, True]
    lines = list(report.summary([behind, near], frozenset()))
    assert lines[0].startswith("2 rows; opgen keeps up in 1;") and lines[0].endswith(": 0.70")
    assert "0.50x" in report.line(behind).plain and "sum" in report.line(behind).plain
    alone = measure(small(double), Direction.FORWARD, CPU, budget=0)
    line = next(report.summary([behind, alone], frozenset()))
    assert line.startswith("2 rows; opgen keeps up in 0;") and line.endswith("itself: 0.50")
    assert next(report.summary([], frozenset())) == "0 rows"
    dispatched = dataclasses.replace(near, dispatched=True)
    assert next(report.summary([dispatched], frozenset())) == "1 rows; opgen keeps up in 1"


def test_faults_are_one_kind() -> None:
    assert issubclass(DisagreementError, BenchError)


def test_disturbed_rows_are_measured_again() -> None:
    """Calm ones are not, whoever was faster in them, and what is disturbed twice is not better."""
    names = ("calm", "once", "calm and behind", "twice")
    rows = {
        n: dataclasses.replace(small(double, Contender("sum", lambda x: x + x)), name=n)
        for n in names
    }
    results = {n: measure(row, Direction.FORWARD, CPU, budget=0) for n, row in rows.items()}
    first = [
        dataclasses.replace(results["calm"], noisy=False),
        dataclasses.replace(results["once"], noisy=True),
        dataclasses.replace(with_ratio(results["calm and behind"], 0.5, 0.4, 0.6), noisy=False),
        dataclasses.replace(results["twice"], noisy=True),
    ]
    asked: list[str] = []

    def measured(row: Row, direction: Direction, device: torch.device, **_: object) -> Result:
        asked.append(row.name)
        return dataclasses.replace(results[row.name], noisy=row.name == "twice")

    plan = Plan(tuple(rows.values()), (Direction.FORWARD,), CPU, minutes=1)
    assert [found.row.name for found in run_again(plan, first, measured)] == ["once"]
    assert asked == ["once", "twice"]
    assert not list(run_again(dataclasses.replace(plan, minutes=0), first, measured))


def test_close_rows_are_measured_again() -> None:
    """Those ahead as those behind, the shortest first; a row keeps what it had more rounds of."""
    ratios = {
        "ahead": 1.2,
        "just ahead": 1.04,
        "no time": 1.0,
        "just behind": 0.96,
        "behind": 0.9,
        "disturbed": 1.0,
    }
    again = {"just ahead": 60, "no time": 20, "just behind": 100, "disturbed": 90}
    rows = {
        n: dataclasses.replace(small(double, Contender("sum", lambda x: x + x)), name=n)
        for n in ratios
    }
    results = {}
    for at, (name, ratio) in enumerate(ratios.items()):
        result = measure(rows[name], Direction.FORWARD, CPU, budget=0)
        result = dataclasses.replace(with_ratio(result, ratio, 0.9, 1.1), noisy=False, rounds=25)
        results[name] = dataclasses.replace(result, times={**result.times, "opgen": 10.0 - at})
    asked: dict[str, tuple[float, int]] = {}

    def measured(
        row: Row,
        direction: Direction,
        device: torch.device,
        *,
        budget: float,
        rounds: int,
        **_: object,
    ) -> Result:
        asked[row.name] = budget, rounds
        return dataclasses.replace(
            results[row.name], noisy=row.name == "disturbed", rounds=again[row.name]
        )

    plan = Plan(tuple(rows.values()), (Direction.FORWARD,), CPU, minutes=100)
    refused = Refused(rows["ahead"], Direction.FORWARD, "out of memory")
    first = [*results.values(), refused, Omitted(rows["behind"], Direction.FORWARD)]
    found = [each.row.name for each in run_closely(plan, first, measured)]
    assert found == ["just behind", "just ahead"]
    assert list(asked) == ["disturbed", "just behind", "no time", "just ahead"]
    assert all(budget > 4 and rounds > 25 for budget, rounds in asked.values())
    assert not list(run_closely(dataclasses.replace(plan, minutes=0), first, measured))
    assert not list(run_closely(dataclasses.replace(plan, quick=True), first, measured))


def test_rounds_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a row that nothing disturbs, so many are run."""

    def undisturbed(call: timing.Call, repeats: int) -> timing.Sample:
        call()
        return timing.Sample(1e-3)

    monkeypatch.setattr(timing, "clock_of", lambda _: undisturbed)
    row = small(double, Contender("sum", lambda x: x + x))
    for rounds in (7, 60):
        assert measure(row, Direction.FORWARD, CPU, budget=20, rounds=rounds).rounds == rounds


# ---------------------------------------------------------------------------- kernels of others
def test_kernels_of_pyinn() -> None:
    """A contender on GPUs, here in the emulator: results and gradients are those of PyTorch."""
    reports = []

    def emulated(source: str, name: str, cells: int, tensors: tuple[torch.Tensor, ...]) -> None:
        arrays = tuple(tensor.detach().numpy() for tensor in tensors)
        report = RawKernel(source, name)((-(-cells // 32),), (32,), arrays)
        report.raise_if_errors()
        reports.append(name)

    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 5, 6, requires_grad=True), torch.randn(3, 1, 3, 3)
    weight.requires_grad_()
    ours = pyinn.depthwise(x, weight, padding=1, run=emulated)
    theirs = F.conv2d(x, weight, padding=1, groups=3)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn_like(theirs)
    found = torch.autograd.grad(ours, (x, weight), cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(theirs, (x, weight), cotangent))
    assert reports == ["forward", "to_image", "to_filter"]


def test_products_of_pyinn_beyond_32_bits() -> None:
    """3.1e9 of them at 31x31 taps of 1024 images of 20x20: all lie where they belong."""
    sources: dict[str, str] = {}

    def noted(source: str, name: str, cells: int, tensors: tuple[torch.Tensor, ...]) -> None:
        sources[name] = source

    image = torch.empty(8, 1024, 20, 20, device="meta", requires_grad=True)
    weight = torch.empty(1024, 1, 31, 31, device="meta", requires_grad=True)
    pyinn.depthwise(image, weight, padding=15, run=noted).sum().backward()

    x, cotangent = (virtual(image.shape, np.float32) for _ in range(2))
    x[-1, -1], cotangent[-1, -1] = 2, 3
    products = virtual((*weight.shape, 8, 20, 20), np.float32)
    blocks = products.size // pyinn.THREADS
    # The first block whose cells are beyond 31 bits, and the last one.
    sample = (2**31 // pyinn.THREADS, blocks - 1)
    kernel = RawKernel(sources["to_filter"], "to_filter")
    report = kernel((blocks,), (pyinn.THREADS,), (x, cotangent, products), blocks=sample)
    report.raise_if_errors()
    expected = np.zeros((20, 20), np.float32)
    expected[:5, :5] = 6  # the last tap looks 15 rows and columns further
    np.testing.assert_array_equal(products[-1, 0, -1, -1, -1], expected)
