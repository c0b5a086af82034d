"""How often the compiler runs: sizes and layouts need no kernels of their own."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opgen
from catalogue import SPECS

Call = Callable[[Any, random.Random], Tensor]


def tensor(numbers: random.Random, *least: int) -> Tensor:
    """A tensor that asks for a gradient, each dim up to 9 larger than the least."""
    sizes = [each + numbers.randrange(9) for each in least]
    x = torch.randn(sizes)
    if numbers.random() < 0.5:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    return x.requires_grad_()


def conv(module: Any, numbers: random.Random) -> Tensor:
    x = tensor(numbers, 1, 2, 3, 3)  # a single channel has a kernel of its own
    return module.conv2d(x, torch.randn(2, x.shape[1], 3, 3), padding=1)  # type: ignore[no-any-return]


CALLS: dict[str, Call] = {
    "shift_sum": lambda m, n: m.shift_sum(tensor(n, 0, 1, 0, 1), step=2),
    "conv": conv,
    "pool": lambda m, n: m.max_pool2d(tensor(n, 0, 1, 2, 2), kernel_size=2, stride=2)[0],
    "softmax": lambda m, n: m.softmax(tensor(n, 1, 1, 1)),
    "upsample_bilinear": lambda m, n: m.upsample_bilinear(tensor(n, 1, 1, 2, 2), scale_factor=2),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_50_shapes_compile_at_most_4_kernels(name: str) -> None:
    module, numbers = opgen.load(SPECS / f"{name}.op"), random.Random(0)
    for _ in range(50):
        CALLS[name](module, numbers).sum().backward()  # type: ignore[no-untyped-call]
    operations = [*module.FAMILY.operations.values()]
    operations += [operation for operation, _ in module.FAMILY._derived.values()]
    compiled = {each.name: len(each.compiled) for each in operations}
    assert sum(map(bool, compiled.values())) >= 2
    assert max(compiled.values()) <= 4, compiled


def test_importing_a_module_loads_nothing_that_only_a_call_needs(tmp_path: Path) -> None:
    """How long it takes is measured by benchmarks/first_call.py."""
    opgen.build(SPECS / "shift_sum.op", tmp_path)
    program = (
        "import sys, torch\nbefore = set(sys.modules)\nimport shift_sum\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    loaded = set(done.stdout.split())
    assert {"shift_sum", "opgen.runtime.operation"} <= loaded
    needless = {"lark", "jinja2", "cupy", "numpy", "opgen.on_demand", "opgen.compiler"}
    needless |= {"opgen.passes", "opgen.emit", "opgen.runtime.cuda_call", "opgen.runtime.cuda_grid"}
    tiles = {each for each in loaded if each.startswith("opgen.runtime.convolution_")}
    assert not loaded & needless
    assert tiles <= {
        "opgen.runtime.convolution_tiles",
        "opgen.runtime.convolution_tiles_source",
        "opgen.runtime.convolution_witness",
    }
