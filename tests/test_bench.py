"""The runner of `opgen bench`: its statistics, its checks, and every row at a tiny size."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen.bench.growth
from opgen.__main__ import main
from opgen.bench import agreement, limits, recycle, report, statistics, tables, timing, trace
from opgen.bench.calls import OPGEN, calls_of
from opgen.bench.faults import BenchError, DisagreementError
from opgen.bench.growth import grown, growth
from opgen.bench.measure import COPY_OP, Result, measure
from opgen.bench.memory import peak
from opgen.bench.precision import in_tf32, tf32
from opgen.bench.row import Contender, Direction, Row, Shape, Workload
from opgen.bench.rows import QUICKLY_COMPILED, every_row, pyinn
from opgen.bench.rows.nets import forward as net
from opgen.bench.run import Omitted, Plan, Refused, chosen, run, run_again, run_growth
from opgen.bench.timing import Sample
from opgen.cli.bench_run import _command
from opgen.testing.cuda_on_cpu import RawKernel
from opgen.testing.references import references_path

CPU = torch.device("cpu")
ROWS = {row.name: row for row in every_row()}


# ---------------------------------------------------------------------------- statistics
def test_medians_and_spreads_by_hand() -> None:
    assert statistics.median([3, 1, 2]) == 2
    assert statistics.median([4, 1, 2, 3]) == 2.5
    # The quartiles of 1, 2, 3, 4, 5 are 2 and 4.
    assert statistics.spread([5, 1, 4, 2, 3]) == pytest.approx((4 - 2) / 3)
    assert statistics.spread([7]) == 0


def test_ratios_are_paired() -> None:
    """Each round twice as slow as the one before: pairs are alike all the same."""
    below = [1.0, 2.0, 4.0, 8.0, 16.0]
    ratio = statistics.paired_ratio([3 * t for t in below], below)
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((3, 3, 3))


def test_interval_holds_the_median_and_narrows() -> None:
    few = statistics.paired_ratio([1.0, 1.1, 0.9, 1.05, 0.95], [1.0] * 5)
    many = statistics.paired_ratio([1.0, 1.1, 0.9, 1.05, 0.95] * 8, [1.0] * 40)
    for ratio in (few, many):
        assert 0.9 <= ratio.low <= ratio.median == 1.0 <= ratio.high <= 1.1
    assert many.high - many.low < few.high - few.low
    # With one round in five late, the bootstrap's interval still reaches it: 5 draws have three or
    # more late rounds with probability 0.058 > 0.025.
    assert statistics.paired_ratio([1.0, 1.0, 1.0, 1.0, 9.0], [1.0] * 5).high == 9
    assert statistics.paired_ratio([1.0] * 19 + [9.0], [1.0] * 20).high == 1


def test_intervals_start_alike() -> None:
    once, again = (statistics.paired_ratio([1.0, 2.0, 4.0], [1.0] * 3) for _ in range(2))
    assert once == again


def test_a_ratio_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        statistics.paired_ratio([], [])


def test_means_and_exponents_by_hand() -> None:
    assert statistics.geometric_mean([1, 4, 2]) == pytest.approx(2)
    assert math.isnan(statistics.geometric_mean([]))
    assert statistics.exponent([1, 2, 4], [5, 10, 20]) == pytest.approx(1)
    assert statistics.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert statistics.exponent([1, 10], [7, 7]) == pytest.approx(0)
    with pytest.raises(ValueError, match="two sizes"):
        statistics.exponent([2, 2], [1, 1])


# ---------------------------------------------------------------------------- timing
class Script:
    """A clock that tells what was written down for each call."""

    def __init__(self, samples: dict[str, list[Sample]]) -> None:
        self.samples = {name: list(found) for name, found in samples.items()}
        self.order: list[str] = []

    def calls(self) -> dict[str, Callable[[], object]]:
        return {name: lambda name=name: name for name in self.samples}  # type: ignore[misc]

    def __call__(self, call: Callable[[], object], repeats: int) -> Sample:
        name = str(call())
        self.order.append(name)
        found = self.samples[name]
        return found.pop(0) if len(found) > 1 else found[0]


def test_rounds_turn() -> None:
    clock = Script({"a": [Sample(1.0)], "b": [Sample(1.0)], "c": [Sample(1.0)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0)
    turns = [tuple(clock.order[at : at + 3]) for at in range(3, 12, 3)]
    assert len(set(turns)) == 3 and all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(rounds.taken) == timing.FEW_ROUNDS and not rounds.noisy


@pytest.mark.parametrize("count", range(2, 9))
def test_no_call_always_follows_the_same_one(count: int) -> None:
    orders = timing.orders(count)
    assert all(sorted(order) == list(range(count)) for order in orders)
    after = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(after) == count * (count - 1) and len(set(after.values())) == 1


def test_slow_contenders_are_timed_less_often() -> None:
    times = {"a": 0.01, "slow": 0.1, "slower": 1.0, OPGEN: 1.0}
    clock = Script({name: [Sample(seconds)] for name, seconds in times.items()})
    rounds = timing.in_turn(clock.calls(), clock, budget=0.4, always={OPGEN})
    assert len(rounds.seconds("a")) > timing.FEW_ROUNDS
    assert len(rounds.seconds("slow")) == timing.FEW_ROUNDS
    assert len(rounds.seconds("slower")) == 1
    assert len(rounds.seconds(OPGEN)) == len(rounds.seconds("a"))
    above, below = rounds.pairs("slow", "a")
    assert len(above) == len(below) == timing.FEW_ROUNDS


def test_a_late_first_call_is_not_a_slow_contender() -> None:
    clock = Script({"a": [Sample(0.01)], "late": [Sample(1.0), Sample(0.01)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0)
    assert len(rounds.seconds("late")) == len(rounds.seconds("a")) > 1


def test_a_late_first_call_is_repeated_within_a_sample_like_others() -> None:
    clock = Script({"a": [Sample(1e-4)], "late": [Sample(3e-3)] * 2 + [Sample(1e-4)]})
    repeats: list[int] = []

    def counted(call: Callable[[], object], times: int) -> Sample:
        repeats.append(times)
        return clock(call, times)

    timing.in_turn(clock.calls(), counted, budget=0)
    before = 2 * (1 + timing.SHORT_CALLS)
    assert set(repeats[:before]) == {1}
    assert set(repeats[before:]) == {round(timing.SAMPLE / 1e-4)}


def test_a_slow_call_of_seconds_is_not_made_again() -> None:
    clock = Script({OPGEN: [Sample(0.1)], "a": [Sample(0.2)], "long": [Sample(3.0), Sample(9.0)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=1, always={OPGEN})
    assert rounds.seconds("long") == [3.0]
    assert rounds.pairs("long", OPGEN) == ([3.0], [0.1])
    assert len(rounds.seconds("a")) >= timing.LEAST_ROUNDS


def test_the_best_rival_is_not_slow_beside_opgen() -> None:
    clock = Script({OPGEN: [Sample(0.001)], "best": [Sample(0.1)], "other": [Sample(0.2)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=1, always={OPGEN})
    assert len(rounds.seconds("best")) == len(rounds.seconds(OPGEN)) > timing.FEW_ROUNDS


def test_slowness_is_reconsidered() -> None:
    """Late twice before the rounds begin, and as fast as the other in the first one."""
    late = [Sample(1.0), Sample(1.0), Sample(0.01)]
    clock = Script({"a": [Sample(0.01)], "late": late})
    rounds = timing.in_turn(clock.calls(), clock, budget=0)
    assert len(rounds.seconds("late")) > timing.FEW_ROUNDS


def test_a_copy_makes_nobody_slow() -> None:
    clock = Script({"copy_": [Sample(1e-3)], "a": [Sample(0.1)], "b": [Sample(0.1)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0.5, references={"copy_"})
    assert len(rounds.seconds("b")) == len(rounds.seconds("copy_")) > timing.FEW_ROUNDS


def test_disturbed_rounds_are_run_again() -> None:
    calm, late = Sample(0.01), Sample(0.05, switches=3)
    before = 1 + timing.SHORT_CALLS
    clock = Script({"a": [calm] * (before + 2) + [late] + [calm], "b": [calm]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0.05)
    assert rounds.repeated == 1 and not rounds.noisy
    assert set(rounds.seconds("a")) == {0.01}


def test_interrupted_calls_that_are_in_time_count() -> None:
    clock = Script({"a": [Sample(0.01, switches=2)], "b": [Sample(0.01)]})
    rounds = timing.in_turn(clock.calls(), clock, budget=0.05)
    assert rounds.repeated == 0 and not rounds.noisy


def test_what_is_always_disturbed_is_marked() -> None:
    samples = [Sample(0.01), Sample(0.05, switches=1)] * 40
    clock = Script({"a": samples, "b": list(reversed(samples))})
    assert timing.in_turn(clock.calls(), clock, budget=0).noisy


def test_clocks_tell_seconds() -> None:
    def work() -> None:
        sum(range(200_000))

    by_wall, by_processor = timing.on_cpu(work, 3).seconds, timing.on_one_thread(work, 3).seconds
    assert 1e-4 < by_processor < 1
    assert by_wall > 0.5 * by_processor


# ---------------------------------------------------------------------------- agreement
def test_what_rounding_explains_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(64, 4096, generator=generator)
    b = torch.randn(4096, 64, generator=generator)
    exact = (a.double() @ b.double()).float()
    in_chunks = sum(a[:, k : k + 7] @ b[k : k + 7] for k in range(0, 4096, 7))
    assert isinstance(in_chunks, Tensor)
    agreement.check("chunks", [in_chunks], [exact], points=64 * 64 * 4096)


def test_what_rounding_does_not_explain_is_refused() -> None:
    """Negative controls: a wrong factor, one wrong cell, a NaN, a wrong shape."""
    x = torch.arange(1.0, 13.0).view(3, 4)
    wrong = x.clone()
    wrong[1, 2] += 1e-3
    for other, message in (
        (x * 1.0001, r"at \[2, 3\], opgen's is 12"),
        (wrong, r"is 7\.00\d* at \[1, 2\], opgen's is 7; rounding explains"),
        (x.where(x != 5, math.nan), "nan"),
        (x[:, :3], r"shape \[3, 3\], opgen's has \[3, 4\]"),
    ):
        with pytest.raises(DisagreementError, match=message):
            agreement.check("other", [other], [x], points=12)


def test_sixteen_bits_are_held_to_their_own_precision() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    agreement.check("rounded", [x.bfloat16()], [x], points=1000)
    with pytest.raises(DisagreementError):
        agreement.check("wrong", [(x * 1.2).bfloat16()], [x], points=1000)


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
def small(opgen: Callable[..., Tensor], *contenders: Contender, **others: object) -> Row:
    """A row of five numbers."""

    def make(shape: Shape, device: torch.device) -> Workload:
        x = torch.randn(shape, device=device)
        return Workload((x,), opgen, contenders, points=x.numel(), **others)  # type: ignore[arg-type]

    return Row("small", (5,), (5,), make, "test")


def double(x: Tensor) -> Tensor:
    return x * 2


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
    seen = []

    def product(x: Tensor) -> Tensor:
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return x

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with tf32(allowed=False):
        contender = in_tf32(Contender("product", product))
        with contender.settings():
            contender.function(torch.ones(1))
        product(torch.ones(1))
    assert seen == [(True, True), (False, False)]
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    assert contender.name == "product, TF32" and contender.precision is torch.float16


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
    for direction in row.directions:
        result = measure(row, direction, torch.device("cuda"), shape=row.tiny, budget=0)
        assert result.times[OPGEN] > 0 and len(result.times) >= 2


# ---------------------------------------------------------------------------- layout copies
def test_no_copy_around_the_shuffle() -> None:
    name = "EDSR-like net [1,3,180,320] channels_last"
    result = measure(ROWS[name], Direction.FORWARD, CPU, shape=(1, 3, 5, 6), budget=0)
    assert result.copies[OPGEN] == 0


def test_layout_copies_are_seen() -> None:
    """Negative control: the same net with a shuffle that changes the layout."""
    workload = ROWS["EDSR-like net [1,3,180,320] channels_last"].make((1, 3, 5, 6), CPU)
    copying = net(lambda x: F.pixel_shuffle(x.contiguous(), 2))
    _, ops = trace.traced(lambda: copying(*workload.inputs))
    assert ops[COPY_OP] >= 2


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


AGAINST = """
import torch

def scaled(x, weight, stride):
    return x[:, ::stride] * weight

def wrong(x, weight, stride):
    return x[:, ::stride] * weight + 1e-6
"""
SPEC = """
op scaled(x[N,W], weight[1]; stride = 1) -> y[N,V]
  where stride >= 1
  let V = (W - 1)//stride + 1
  y[n,v] = x[n, v*stride] * weight[0]
"""


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    (tmp_path / "scaled.op").write_text(SPEC)
    (tmp_path / "forms.py").write_text(AGAINST)
    return [
        *("bench", str(tmp_path / "scaled.op"), "--shape", "x=4,10", "--shape", "weight=1"),
        *("--set", "stride=2", "--compile", "none", "--minutes", "0.2"),
    ]


def test_an_op_of_ones_own(own: list[str], tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    against = f"{tmp_path / 'forms.py'}:scaled"
    assert main([*own, "--against", against, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["direction"] for row in rows] == ["forward", "backward"]
    assert all(set(row["times"]) == {"opgen", against} for row in rows)
    assert rows[0]["name"] == "scaled x=[4,10] weight=[1]"
    assert rows[0]["bytes"] == 4 * (40 + 1 + 20)


def test_an_op_against_something_else_is_refused(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A millionth more: float32 would hide it, so the check runs in double precision as well."""
    assert main([*own, "--against", f"{tmp_path / 'forms.py'}:wrong"]) == 1
    assert "not reported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "torch"], "must be module:function"),
        (["--against", "no_such_module:f"], "cannot be imported"),
        (["--against", "torch:no_such_function"], "has no function 'no_such_function'"),
        (["--shape", "z=3"], "no input 'z': write --shape x=..., --shape weight=..."),
        (["--shape", "x=a,b"], "must be as x=8,64,32,32"),
        (["--set", "stride"], "must be as stride=2"),
        (["--op", "other"], "no op 'other'; choose one with --op: scaled"),
    ],
)
def test_bad_calls(
    own: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*own, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_rows_that_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--rows", "no such row"]) == 2
    assert main(["bench", "--shape", "x=3"]) == 2
    assert "name its SPEC" in capsys.readouterr().err


def test_lines_and_summary() -> None:
    result = measure(
        small(double, Contender("sum", lambda x: x + x)), Direction.FORWARD, CPU, budget=0
    )
    behind = with_ratio(result, 0.5, 0.4, 0.6)
    near = with_ratio(result, 0.98, 0.9, 1.05)
    assert [report.keeps_up(r) for r in (behind, near)] == [False, True]
    lines = list(report.summary([behind, near], frozenset()))
    assert lines[0].startswith("2 rows; opgen keeps up in 1;") and lines[0].endswith(": 0.70")
    assert "0.50x" in report.line(behind).plain and "sum" in report.line(behind).plain


def with_ratio(result: Result, median: float, low: float, high: float) -> Result:
    """The result with another ratio to its only contender."""
    ratio = statistics.Ratio(median, low, high)
    return dataclasses.replace(result, ratios=dict.fromkeys(result.ratios, ratio), noisy=False)


def test_faults_are_one_kind() -> None:
    assert issubclass(DisagreementError, BenchError)


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


# ---------------------------------------------------------------------------- files
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


def test_growth_has_its_own_place(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    rows = "\n".join(tables.marks(tables.ROWS))
    path.write_text("\n".join([rows, *tables.marks(tables.GROWTH)]))
    arguments = ["bench", "--growth", "--tiny", "--forward", "--rows", "shift_sum A, 28*"]
    assert main([*arguments, "--write-readme", str(path)]) == 0
    text = path.read_text()
    assert text.startswith(rows) and text.count("| shift_sum A, 28 channels | forward |") == 1


def test_files_are_looked_at_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody wants to hear after 40 minutes that the figures have no place."""
    (tmp_path / "other.md").write_text("no marks")
    for option, path, message in (
        ("--write-readme", tmp_path / "other.md", "no place for the figures"),
        ("--json", tmp_path / "none" / "b.json", "does not exist"),
        ("--plot", tmp_path / "none" / "b.svg", "does not exist"),
    ):
        assert main(["bench", "--rows", "unfold 3x3*", option, str(path)]) == 2
        said = capsys.readouterr()
        assert message in said.err and not said.out


def test_the_readme_has_its_marks() -> None:
    path = Path(__file__).parent.parent / "benchmarks" / "README.md"
    for part in (tables.ROWS, tables.GROWTH):
        tables.split(path, part)


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
