"""Hypothesis profiles, the GPU marker, and skips that count as failures.

`OPGEN_HYPOTHESIS_PROFILE` selects the profile: "ci" (the default) draws few examples, "fuzz" many,
both the same ones in every run; "explore" draws many, others each time, to look for new faults.
"""

from __future__ import annotations

import gc
import importlib.util
import operator
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

# What thousands of tests are made of stays: to look for what does not takes a third of the time.
gc.disable()

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
for _name, _examples, _repeatable in (
    ("ci", 10, True),
    ("fuzz", 40, True),
    ("explore", 300, False),
):
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=_repeatable,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=_SLOW,
    )
_PROFILE = os.environ.get("OPGEN_HYPOTHESIS_PROFILE", "ci")
settings.load_profile(_PROFILE)

# Two test processes have two threads each on two cores. Threads that wait for each other by
# spinning then keep the one they wait for from running: six times the time, on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A tenth to a third of the time of the compiler; the longer tiers let it optimise, and
# `test_special_kernels` compiles every spec as users do.
os.environ.setdefault("OPGEN_CFLAGS", "-O0" if _PROFILE == "ci" else "-O1")


_MARKED = type(pytest.param())


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("opgen")
    group.addoption(
        "--require-gpu",
        action="store_true",
        help="run the GPU tests whether or not there is a GPU: without one they fail",
    )
    group.addoption(
        "--fail-on-skip",
        action="store_true",
        help="count skipped tests as failures, except GPU tests where no GPU is",
    )
    group.addoption(
        "--begin",
        type=int,
        default=0,
        metavar="N",
        help="begin with another file for each N, where not all tests are run that there are",
    )


def missing_gpu() -> str:
    """Why GPU tests cannot run here; empty if they can."""
    if importlib.util.find_spec("cupy") is None:
        return "needs CuPy (install opgen[cuda12] or opgen[cuda13])"
    import torch  # slow to load, and not needed where CuPy is missing

    if not torch.cuda.is_available():
        return "needs a CUDA device that PyTorch can use"
    return ""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _sample(item)
    _begin_with(config.getoption("--begin"), items)
    reason = missing_gpu()
    if not reason or config.getoption("--require-gpu"):
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def _begin_with(number: int, items: list[pytest.Item]) -> None:
    """Put the first files last, for each number others: neighbours of it begin far apart."""
    files = list(dict.fromkeys(item.path for item in items))
    if files:
        # The golden ratio: the first n of its multiples divide a circle nearly evenly, for each n.
        first = files[int(number * 0.6180339887 % 1 * len(files))]
        at = next(at for at, item in enumerate(items) if item.path == first)
        items[:] = items[at:] + items[:at]


def _sample(item: pytest.Item) -> None:
    """Leave all but each n-th case of a test that is marked `sampled(n)` to the longer tiers.

    Cases are counted along all parameters at once: with two of two values each, every value meets
    one of the other's, and with three every pair of values is met by some case. Where all cases
    are of one parameter, `sampled(n, first)` keeps others than another test does.
    """
    marker = item.get_closest_marker("sampled")
    if marker is not None and isinstance(item, pytest.Function):
        every, first = (*marker.args, 0)[:2]
        if sum(places(item)) % every != first:
            item.add_marker(pytest.mark.slow)


def places(item: pytest.Function) -> Iterator[int]:
    """Where the values of a case stand among the quick ones of each parameter.

    pytest numbers the values of fixtures alike, but gives all other parameters of a case the same
    number: that of the case.
    """
    counted: set[str] = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = [each.strip() for each in names.split(",")] if isinstance(names, str) else names
        counted.update(names)
        own = [item.callspec.params[name] for name in names]
        place = 0
        for given in mark.args[1]:
            marks, values = (), given if len(names) > 1 else (given,)
            if isinstance(given, _MARKED):
                marks, values = given.marks, given.values
            if all(map(operator.is_, values, own)):
                break
            place += all(each.name != "slow" for each in marks)
        else:
            raise pytest.UsageError(f"{item.nodeid}: values of {names} cannot be counted")
        yield place
    yield from (at for name, at in item.callspec.indices.items() if name not in counted)


def pytest_collection_finish() -> None:
    """What PyTorch and thousands of tests are made of stays: a collection need not look at it.

    It takes 0.4 s otherwise, and tests of what is freed, and when, ask for a hundred of them.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    # Compiling an op makes much that stays for a while: by default it is gone over again and again.
    gc.set_threshold(5_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    excused = item.get_closest_marker("gpu") is not None
    if report.skipped and not hasattr(report, "wasxfail"):
        _refuse_skip(report, item, excused)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _refuse_skip(report, collector, excused=False)
    return report


def _refuse_skip(
    report: pytest.TestReport | pytest.CollectReport,
    node: pytest.Item | pytest.Collector,
    excused: bool,
) -> None:
    """Turn a skip into a failure where the options say so."""
    required = node.config.getoption("--require-gpu")
    if required or (node.config.getoption("--fail-on-skip") and not excused):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{node.nodeid}: a skip counts as a failure here; {reason}"


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many threads PyTorch has for the time of a test."""
    import torch  # OpenMP reads the policy above when it is loaded

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
