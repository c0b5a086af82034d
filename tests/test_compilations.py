"""How often the compiler runs: sizes and layouts need no kernels of their own."""

from __future__ import annotations

import os
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


@pytest.mark.slow  # what is imported is tested at once; this takes several processes
def test_a_warm_module_is_imported_in_a_twentieth_of_the_time_of_torch(tmp_path: Path) -> None:
    """50 ms beside a second, in time of the processor; the least of some, for others run too."""
    opgen.build(SPECS / "shift_sum.op", tmp_path, vendor=True)
    program = (
        "import time\nbegin = time.process_time()\nimport torch\nmiddle = time.process_time()\n"
        "import shift_sum\nprint((time.process_time() - middle) / (middle - begin))\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    least = 1.0
    for _ in range(6):  # the first writes bytecode
        result = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env=environment,
        )
        least = min(least, float(result.stdout))
        if least < 0.05:
            return
    pytest.fail(f"importing a module takes {100 * least:.1f} % of the time of importing torch")
