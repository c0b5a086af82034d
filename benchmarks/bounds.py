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
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, cast

import torch
from torch import Tensor

from opgen.bench import agreement, limits, machine, recycle, statistics, tables, timing
from opgen.bench.calls import OPGEN, calls_of, drawn_like, result_like, surroundings
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


def _kept(sizes: Callable[[Shape], tuple[int, ...]]) -> Callable[[Shape], tuple[int, ...]]:
    """The caches hold what is read and written: the loop writes into them."""
    return lambda shape: (*sizes(shape), 0)


def _past(sizes: Callable[[Shape], tuple[int, ...]]) -> Callable[[Shape], tuple[int, ...]]:
    """They do not, and the loop writes past them."""
    return lambda shape: (*sizes(shape), 1)


_UNFOLD, _FOLD = (f"{name} 3x3 [2,10,50,50]" for name in ("unfold", "fold"))
_NEAREST, _TRANSPOSED = (f"{name} [8,2048,8,8]" for name in ("nearest", "transposed 2x2"))
_LARGE = "nearest [8,2048,16,16]"
_BATCH, _LARGE_BATCH = (f"transposed 2x2 [16,2048,{size}]" for size in ("8,8", "16,16"))
_PIXELS, _ROUNDED = " channels_last", " autocast"
_FORWARD, _BACKWARD = Direction.FORWARD, Direction.BACKWARD


def _bounds() -> Iterator[Bound]:
    theirs = "F.unfold"
    yield Bound(_UNFOLD, _FORWARD, "unfold", theirs, _planes)
    yield Bound(_UNFOLD, _BACKWARD, "fold", theirs, _planes)
    theirs = "F.fold"
    yield Bound(_FOLD, _FORWARD, "fold", theirs, _planes)
    yield Bound(_FOLD, _BACKWARD, "unfold", theirs, _planes)
    theirs = "overlapping view"
    for channels in (28, 512):
        row = f"shift_sum A_pinv, {channels} channels"
        yield Bound(row, _BACKWARD, "shift_sum_pinv_gradients", theirs, _images)
    yield from _nearest("F.interpolate")
    yield from _transposed("F.conv_transpose2d")


def _nearest(theirs: str) -> Iterator[Bound]:
    row = _NEAREST
    yield Bound(row, _FORWARD, "nearest_planes", theirs, _planes)
    yield Bound(row, _BACKWARD, "nearest_planes_gradient", theirs, _planes)
    row, gradient = _NEAREST + _ROUNDED, "nearest_planes_autocast_gradient"
    yield Bound(row, _FORWARD, "nearest_planes_autocast", theirs, _planes)
    yield Bound(row, _BACKWARD, gradient, theirs, _kept(_planes))
    yield Bound(_LARGE + _ROUNDED, _BACKWARD, gradient, theirs, _past(_planes))
    row = _NEAREST + _PIXELS
    yield Bound(row, _FORWARD, "nearest", theirs, _pixels)
    yield Bound(row, _BACKWARD, "nearest_gradient", theirs, _pixels)
    row, gradient = row + _ROUNDED, "nearest_autocast_gradient"
    yield Bound(row, _FORWARD, "nearest_autocast", theirs, _pixels)
    yield Bound(row, _BACKWARD, gradient, theirs, _kept(_pixels))
    yield Bound(_LARGE + _PIXELS + _ROUNDED, _BACKWARD, gradient, theirs, _past(_pixels))


def _transposed(theirs: str) -> Iterator[Bound]:
    yield Bound(_TRANSPOSED, _BACKWARD, "transposed_gradients", theirs, _kept(_images))
    yield Bound(_BATCH, _FORWARD, "transposed", theirs, _past(_images))
    yield Bound(_BATCH, _BACKWARD, "transposed_gradients", theirs, _past(_images))
    yield Bound(_LARGE_BATCH, _BACKWARD, "transposed_gradients", theirs, _past(_images))
    row = _TRANSPOSED + _ROUNDED
    yield Bound(row, _FORWARD, "transposed_autocast", theirs, _images)
    yield Bound(row, _BACKWARD, "transposed_autocast_gradients", theirs, _images)
    row = _TRANSPOSED + _PIXELS
    yield Bound(row, _FORWARD, "transposed_pixels", theirs, _pixels)
    yield Bound(row, _BACKWARD, "transposed_pixels_gradients", theirs, _pixels)
    row += _ROUNDED
    yield Bound(row, _FORWARD, "transposed_pixels_autocast", theirs, _pixels)
    yield Bound(row, _BACKWARD, "transposed_pixels_autocast_gradients", theirs, _pixels)


BOUNDS: Final = tuple(_bounds())


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
    found = getattr(ctypes.CDLL(str(library)), name)
    # What a call leaves out would be any number.
    found.argtypes = _kinds(name, source.read_text(encoding="utf-8"))
    return cast(Callable[..., object], found)


def _kinds(name: str, source: str) -> list[type]:
    """What a loop is called with: addresses, and then integers."""
    (parameters,) = re.findall(rf"^void {name}\(([^)]*)\)", source, re.MULTILINE)
    return [ctypes.c_void_p if "*" in each else ctypes.c_int64 for each in parameters.split(",")]


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
    with surroundings(workload, bound.direction):
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
