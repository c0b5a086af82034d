"""What is reachable for rows below 80 % of `copy_`: loops written by hand, and what a call costs.

    python benchmarks/bounds.py [PATTERN] [--threads N] [--seconds S] [--write-readme]

Each file of `bounds` holds one C function, which is given the tensors that a row reads, those that
it writes, and sizes. It is compiled by the system's compiler, must agree with PyTorch, and is then
timed beside opgen, beside `copy_` of as many bytes, and beside an op that does nothing: forward one
that makes tensors like the results, backward autograd through a copy, whose gradient is what flows
back, and the same. All take turns in one process, and write into the same memory in every call.
The op that does nothing and then the loop are what a kernel that is no worse than it comes to: more
than the sum of both, since each finds the first cache as the other left it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from opgen.bench import agreement, limits, machine, recycle, statistics, tables, timing
from opgen.bench.calls import OPGEN, calls_of, drawn_like, result_like
from opgen.bench.measure import COPY
from opgen.bench.report import milliseconds
from opgen.bench.row import Contender, Direction, Row, Shape, Workload
from opgen.bench.rows import every_row
from opgen.runtime.toolchain import find_compiler

FOLDER: Final = Path(__file__).parent / "bounds"
README: Final = Path(__file__).parent / "README.md"
FLAGS: Final = ("-O3", "-march=native", "-fopenmp", "-fPIC")
LOOP, NOTHING, BOTH = "loop", "an op that does nothing", "both"
CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Bound:
    """A loop, the row and direction that it computes, and which contender is PyTorch's."""

    row: str
    direction: Direction
    loop: str
    theirs: str
    sizes: Callable[[Shape], tuple[int, ...]]
    """What the loop is given after the tensors, for the shape of the row."""


def _planes(shape: Shape) -> tuple[int, ...]:
    batch, channels, height, width = shape
    return batch * channels, height, width


def _pixels(shape: Shape) -> tuple[int, ...]:
    batch, channels, height, width = shape
    return batch, height, width, channels


def _images(shape: Shape) -> tuple[int, ...]:
    return tuple(shape)


_SMALL = "3x3 [2,10,50,50]"
_PLANES = "nearest [8,2048,8,8]"
_ROUNDED_PLANES = f"{_PLANES} autocast"
_NEAREST = f"{_PLANES} channels_last"
_ROUNDED = f"{_NEAREST} autocast"
_TRANSPOSED = "transposed 2x2 [8,2048,8,8]"
_CELLS = f"{_TRANSPOSED} channels_last"
BOUNDS: Final = (
    Bound(f"unfold {_SMALL}", Direction.FORWARD, "unfold", "F.unfold", _planes),
    Bound(f"unfold {_SMALL}", Direction.BACKWARD, "fold", "F.unfold", _planes),
    Bound(f"fold {_SMALL}", Direction.FORWARD, "fold", "F.fold", _planes),
    Bound(f"fold {_SMALL}", Direction.BACKWARD, "unfold", "F.fold", _planes),
    Bound(_PLANES, Direction.FORWARD, "nearest_planes", "F.interpolate", _planes),
    Bound(_PLANES, Direction.BACKWARD, "nearest_planes_gradient", "F.interpolate", _planes),
    Bound(
        *(_ROUNDED_PLANES, Direction.FORWARD, "nearest_planes_autocast", "F.interpolate"),
        _planes,
    ),
    Bound(
        *(_ROUNDED_PLANES, Direction.BACKWARD, "nearest_planes_autocast_gradient", "F.interpolate"),
        _planes,
    ),
    Bound(_NEAREST, Direction.BACKWARD, "nearest_gradient", "F.interpolate", _pixels),
    Bound(_ROUNDED, Direction.FORWARD, "nearest_autocast", "F.interpolate", _pixels),
    Bound(_ROUNDED, Direction.BACKWARD, "nearest_autocast_gradient", "F.interpolate", _pixels),
    Bound(
        *(_TRANSPOSED, Direction.BACKWARD, "transposed_gradients", "F.conv_transpose2d"), _images
    ),
    Bound(_CELLS, Direction.FORWARD, "transposed_pixels", "F.conv_transpose2d", _pixels),
    Bound(
        *(_CELLS, Direction.BACKWARD, "transposed_pixels_gradients", "F.conv_transpose2d"), _pixels
    ),
)


@functools.cache
def compiled(name: str, folder: Path) -> Callable[..., object]:
    """The function of a loop, compiled into a folder.

    It is linked without OpenMP's library, so that it finds PyTorch's and runs on its threads.
    """
    source, made, library = FOLDER / f"{name}.c", folder / f"{name}.o", folder / f"{name}.so"
    for command in (
        (*find_compiler(), *FLAGS, "-c", str(source), "-o", str(made)),
        (*find_compiler(), "-shared", str(made), "-o", str(library), "-lm"),
    ):
        subprocess.run(command, check=True)
    found: Callable[..., object] = getattr(ctypes.CDLL(str(library)), name)
    return found


def loop_call(
    function: Callable[..., object],
    read: Sequence[Tensor],
    written: Sequence[Tensor],
    sizes: Sequence[int],
) -> Callable[[], object]:
    """A call of a loop on these tensors; arguments are made once."""
    arguments = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*read, *written)]
    counts = [ctypes.c_int64(size) for size in sizes]
    return lambda: function(*arguments, *counts)


def _doing_nothing(
    direction: Direction, inputs: Sequence[Tensor], results: Sequence[Tensor]
) -> Callable[[], object]:
    """The least that PyTorch needs to call an op with these results, from Python."""
    if direction is Direction.FORWARD:
        return lambda: [torch.empty_like(result) for result in results]
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    copies = [leaf.clone() for leaf in leaves]
    cotangents = [torch.ones_like(leaf) for leaf in leaves]

    def backward() -> object:
        torch.autograd.grad(copies, leaves, cotangents, retain_graph=True)
        return [torch.empty_like(result) for result in results]

    return backward


def measure(bound: Bound, row: Row, shape: Shape, budget: float, folder: Path) -> dict[str, float]:
    """Seconds by name; DisagreementError if the loop computes something else than PyTorch."""
    torch.manual_seed(0)
    workload = row.make(shape, CPU)
    theirs = next(each for each in workload.contenders if each.name == bound.theirs)
    contenders = [Contender(OPGEN, workload.opgen), theirs]
    pair = calls_of(workload, contenders, bound.direction)
    expected, results = pair[theirs.name](), pair[OPGEN]()
    read, written = _read(workload, bound.direction), [torch.full_like(r, 7) for r in results]
    loop = loop_call(compiled(bound.loop, folder), read, written, bound.sizes(shape))
    loop()
    points = workload.points * workload.mixing
    agreement.check(LOOP, tuple(written), expected, points, workload.depth, workload.autocast)
    wanted = [workload.inputs[at] for at in workload.differentiable]
    nothing = _doing_nothing(bound.direction, wanted, results)
    calls: dict[str, timing.Call] = {
        OPGEN: pair[OPGEN],
        LOOP: loop,
        NOTHING: nothing,
        BOTH: lambda: (nothing(), loop()),
        COPY: limits.copies(limits.traffic(read, results), CPU).recycled,
    }
    recycle.settle(calls.values())
    references = set(calls) - {OPGEN}
    rounds = timing.in_turn(calls, timing.clock_of(CPU), budget, {OPGEN}, references)
    return {name: statistics.median(rounds.seconds(name)) for name in calls}


def _read(workload: Workload, direction: Direction) -> list[Tensor]:
    """What a loop is given: the inputs, or the cotangent and the inputs that a gradient needs."""
    if direction is Direction.FORWARD:
        return list(workload.inputs)
    cotangent = drawn_like(result_like(workload))
    return [cotangent, *(() if workload.linear else workload.inputs)]


def cells(bound: Bound, seconds: dict[str, float]) -> tuple[str, ...]:
    """A line of the table: times in milliseconds, and how near opgen comes to what is reachable."""
    times = (milliseconds(seconds[name]) for name in (COPY, LOOP, NOTHING, BOTH, OPGEN))
    return (
        *(bound.row, bound.direction.value, *times),
        f"{100 * seconds[BOTH] / seconds[OPGEN]:.0f} %",
    )


def main() -> int:
    """Print a line for every loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="", help="rows whose name has or matches it")
    parser.add_argument("--threads", type=int, help="as many threads; PyTorch's number without it")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each loop")
    parser.add_argument("--write-readme", action="store_true", help="put the table there")
    given = parser.parse_args()
    if given.write_readme:
        tables.split(README, tables.BOUNDS)  # complains before minutes are spent
    if given.threads:
        torch.set_num_threads(given.threads)
    started, rows = time.strftime("%Y-%m-%d %H:%M:%S"), {row.name: row for row in every_row()}
    found = []
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        held.enter_context(recycle.freed_memory_kept())
        for bound in BOUNDS:
            if given.pattern in bound.row or fnmatchcase(bound.row, given.pattern):
                row = rows[bound.row]
                found.append(cells(bound, measure(bound, row, row.shape, given.seconds, folder)))
                print(" | ".join(found[-1]), flush=True)
    if given.write_readme:
        command = shlex.join(["python", "benchmarks/bounds.py", *sys.argv[1:]])
        about = {"machine": machine.describe(CPU), "started": started, "command": command}
        tables.rewritten(README, tables.BOUNDS, {**about, tables.BOUNDS: found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
