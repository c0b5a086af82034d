"""The scripts of examples/: small settings here, the same code as with the real ones."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from types import ModuleType

import pytest
import torch

from catalogue import SPECS

EXAMPLES = SPECS.parent / "examples"


@pytest.fixture(autouse=True)
def beside_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import each other as scripts do, whose directory is on the path."""
    monkeypatch.syspath_prepend(EXAMPLES)


@cache
def example(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def test_cassi_reconstruction_converges() -> None:
    cassi = example("cassi")
    few = cassi.reconstruct(channels=8, size=32, steps=10)
    many = cassi.reconstruct(channels=8, size=32, steps=80)
    assert many.consistency < 1e-6
    assert many.residual < 1e-3 < few.residual
    assert many.least_squares > many.pseudo_inverse + 15
    assert many.least_squares > 12


def test_cassi_normal_equations_need_the_right_transpose() -> None:
    """Negative control: with a product that is not symmetric nothing converges."""
    cassi = example("cassi")
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(20, 20, generator=generator, dtype=torch.float64)
    right = torch.randn(20, generator=generator, dtype=torch.float64)
    _, good = cassi.conjugate_gradients(lambda x: a.T @ (a @ x) + x, right, 25)
    _, bad = cassi.conjugate_gradients(lambda x: a @ (a @ x) + x, right, 25)
    assert good < 1e-8 < 1e-2 < bad


@pytest.mark.slow
@pytest.mark.parametrize("name", ["edsr", "mobilenet"])
def test_both_nets_learn_alike(name: str) -> None:
    if name == "edsr":
        result = example(name).train(features=4, blocks=1, size=6, steps=4, dtype=torch.float64)
    else:
        result = example(name).train(width=2, size=16, count=8, steps=4, dtype=torch.float64)
    assert result.difference < 1e-10
    assert result.opgen[-1] < result.opgen[0]
    assert len(result.opgen) == 4


@pytest.mark.slow
def test_another_slope_does_not_learn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison sees a leaky ReLU of another slope."""
    edsr = example("edsr")
    monkeypatch.setattr(edsr, "SPEC", edsr.SPEC.replace("slope = 0.1)\n", "slope = 0.11)\n"))
    result = edsr.train(features=4, blocks=1, size=6, steps=2, dtype=torch.float64)
    assert result.difference > 1e-6


@pytest.mark.slow
def test_custom_convolution_equals_unfold_and_fold() -> None:
    result = example("custom_convolution").run(size=24, kernel=3, steps=3)
    assert result.value_difference < 1e-5
    assert result.gradient_difference < 1e-4
    assert result.last < result.first


@pytest.mark.parametrize(
    ("name", "options", "pattern", "bound"),
    [
        ("cassi", "--channels 6 --size 24 --steps 30", r"reproduces the image to (\S+),", 1e-5),
        pytest.param(
            *("edsr", "--features 4 --blocks 1 --size 6 --steps 2 --double"),
            *(r"losses: (\S+)", 1e-10),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(
                "mobilenet",
                "--width 2 --size 16 --count 8 --steps 2 --double",
                r"losses: (\S+)",
                1e-10,
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(
                "custom_convolution",
                "--size 16 --kernel 3 --steps 1",
                r"values differ by (\S+),",
                1e-5,
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_as_a_script(name: str, options: str, pattern: str, bound: float) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *options.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert number(pattern, done.stdout) < bound
    assert len(done.stdout.splitlines()) <= 5


def test_mistakes_in_a_kernel_are_found() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "raw_kernel.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    right, barrier, bound, bank, traffic = done.stdout.strip().split("\n\n")
    assert right == "70 x 90: right, and nothing found"
    assert barrier.startswith("If the barrier is missing:\nkernel.cu:")
    assert "race in shared memory" in barrier
    assert "out-of-bounds access" in bound and "load from x at element 6300" in bound
    assert number(r"a load takes (\d+) times its wavefronts", bank) > 20
    assert traffic.startswith("64 x 96: every sector that is moved is needed")


def test_every_example_is_tested() -> None:
    tested = {"cassi", "edsr", "mobilenet", "custom_convolution", "raw_kernel", "shift_sum"}
    tested.add("photograph")  # by what it gives to the others, and below
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def test_the_photograph() -> None:
    whole = example("photograph").photograph()
    assert whole.shape == (3, 256, 256)
    assert 0 <= whole.min() < 0.1 < 0.9 < whole.max() <= 1
    # A photograph: neighbours are alike, and what is far apart is not.
    near, far = (whole.diff(dim=2)).abs().mean(), (whole - whole.roll(64, 2)).abs().mean()
    assert near < 0.25 * far
    pieces = example("photograph").patches(3, 16)
    assert pieces.shape == (3, 3, 16, 16)
    windows = whole.unfold(1, 16, 1).unfold(2, 16, 1)
    for piece in pieces:
        assert ((windows - piece[:, None, None]).abs().amax((0, 3, 4)) == 0).any()
