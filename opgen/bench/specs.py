"""The specs that the rows are made from: those of the repository, and those of benchmarks/."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Final

from opgen import loading
from opgen.bench.faults import BenchError

_ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = (_ROOT / "specs", _ROOT / "benchmarks" / "specs")


def load(name: str) -> types.ModuleType:
    """A new module of `NAME.op`; BenchError where opgen was installed without its specs.

    One for each row, as in a program of that row alone: kernels for short rows are made for the
    first few lengths that an op meets.
    """
    for folder in FOLDERS:
        path = folder / f"{name}.op"
        if path.is_file():
            return loading.load(path)
    raise BenchError(
        f"the rows of the benchmark are made from {name}.op, which is not in "
        f"{' or '.join(map(str, FOLDERS))}; run `opgen bench` with `pip install -e .` from a "
        "checkout of opgen, or give it a spec of your own"
    )
