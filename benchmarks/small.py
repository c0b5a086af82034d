"""The ops of `everyday.py` with little to do, where a call itself is much of the time.

    python benchmarks/small.py [PATTERN] [--device cuda] [--threads N] [--seconds S]
        [--write-readme]

Dims of 16 to 127 are a quarter as long, longer ones an eighth: images of 14 by 14 pixels, tensors
of up to 32000 elements, as in the last layers of a net that works on one picture. The columns are
those of `everyday.py`; forward nothing is recorded for gradients. There is a table for the CPU.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Final

import everyday

from opgen.bench import tables
from opgen.bench.beside import main

README: Final = Path(__file__).parent / "README.md"


def small(op: everyday.Written) -> everyday.Written:
    """The same op on smaller tensors; dims of one size stay so."""
    return dataclasses.replace(op, given=tuple(map(_smaller, op.given)))


def _smaller(given: everyday.Given) -> everyday.Given:
    match given:
        case (int(count), tuple(shape)):
            return _size(count), tuple(map(_size, shape))
        case shape:
            return tuple(map(_size, shape))


def _size(size: int) -> int:
    return size // 8 if size >= 128 else size // 4 if size >= 16 else size


OPS: Final = tuple(map(small, everyday.OPS))

if __name__ == "__main__":
    sys.exit(main(OPS, tables.SMALL, README, __doc__))
