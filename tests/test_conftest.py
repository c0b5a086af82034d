"""The test harness itself: skips that fail, GPU tests that are skipped with a reason, profiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from hypothesis import settings

def test_passes():
    assert settings().derandomize == {derandomize}

@pytest.mark.skip(reason="no reason at all")
def test_skipped():
    pass

def test_skips_itself():
    pytest.skip("no reason either")

@pytest.mark.xfail(strict=True)
def test_known_failure():
    assert False

@pytest.mark.gpu
def test_gpu():
    import torch
    assert torch.cuda.is_available()
"""

PRODUCT = """
import pytest

@pytest.mark.sampled(2)
@pytest.mark.parametrize("letter", ["a", "b"])
@pytest.mark.parametrize(
    ("one", "two"), [(1, 2), pytest.param(3, 4, marks=pytest.mark.slow), (5, 6)]
)
def test_product(letter, one, two, threads):
    pass
"""


def run(folder: Path, *options: str, profile: str = "ci", no_gpu: bool = True) -> dict[str, int]:
    """Run a small suite under the project's conftest; how often each outcome occurred."""
    (folder / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: needs a GPU\n")
    (folder / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (folder / "test_small.py").write_text(TESTS.format(derandomize=profile != "explore"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment |= {"OPGEN_HYPOTHESIS_PROFILE": profile}
    if no_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL")
    lines = result.stdout.splitlines()
    return {name: sum(line.startswith(name) for line in lines) for name in outcomes}


COLLECT = """
import sys, pytest
for options in eval(sys.argv[1]):
    print("run")
    pytest.main(["--collect-only", "-q", *options])
"""


def collected(folder: Path, *runs: tuple[str, ...]) -> list[list[str]]:
    """The cases that pytest would run there, in that order, with each of these options."""
    result = subprocess.run(
        [sys.executable, "-c", COLLECT, repr(runs)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        check=False,
    )
    return [
        [line for line in said.splitlines() if "::" in line]
        for said in result.stdout.split("run\n")[1:]
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param((), (1, 0, 4, 1), marks=pytest.mark.slow),
        (("--fail-on-skip",), (1, 3, 1, 1)),
        (("--require-gpu",), (1, 4, 0, 1)),
    ],
    ids=["plain", "fail-on-skip", "require-gpu"],
)
def test_what_a_skip_counts_as_without_a_gpu(
    tmp_path: Path, options: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    """How many pass, fail, are skipped and fail as expected."""
    options = (*options, "--continue-on-collection-errors")
    found = run(tmp_path, *options)
    failures = found["FAILED"] + found["ERROR"]
    assert (found["PASSED"], failures, found["SKIPPED"], found["XFAIL"]) == expected


def test_every_value_of_a_sampled_product_has_a_quick_case(tmp_path: Path) -> None:
    """Those of a tuple together have one place, and those of a fixture have theirs."""
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_product.py").write_text(PRODUCT)
    (cases,) = collected(tmp_path, ("-m", "not slow"))
    assert {line.partition("[")[2] for line in cases} == {
        "1-1-2-a]",
        "1-5-6-b]",
        "2-1-2-b]",
        "2-5-6-a]",
    }


def test_runs_that_begin_elsewhere_have_the_same_cases(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    for name in "abcde":
        (tmp_path / f"test_{name}.py").write_text("def test_one():\n    pass\n")
    found = collected(tmp_path, *((f"--begin={number}",) for number in range(5)))
    assert len(found) == 5
    assert found[0] == sorted(found[0])
    assert all(sorted(each) == found[0] for each in found)
    assert {each[0] for each in found} == set(found[0])


@pytest.mark.parametrize("profile", ["ci", pytest.param("fuzz", marks=pytest.mark.slow), "explore"])
def test_profiles(tmp_path: Path, profile: str) -> None:
    """Only "explore" draws other examples in every run."""
    assert run(tmp_path, profile=profile)["PASSED"] == 1
