"""Statements whose iterators are named alike in other orders, beside loops in Python.

Passes join statements, and loops of them, in one kernel. Square dims make loops of the same ranges,
so that names are all that tells them apart.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir import cells
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.programs import along_rows, for_cpu, for_gpu, threads
from opgen.testing.run_loops import run

Numbers = npt.NDArray[np.int64]

SIZE = 3
INPUTS = {"x": 2, "z": 2, "w": 2, "c": 1}
OUTPUTS = {"y": 1, "v": 2}
TEMPORARY = "t"
NAMES = ("i", "j", "k")


@dataclass(frozen=True)
class Sum:
    """`target[indices] += factors for names if first <= second`."""

    target: str
    indices: tuple[str, ...]
    names: tuple[str, ...]
    factors: tuple[tuple[str, tuple[str, ...]], ...]
    order: tuple[str, str] | None

    def __str__(self) -> str:
        body = "*".join(f"{name}[{','.join(at)}]" for name, at in self.factors)
        ranges = ", ".join(f"{name} in D" for name in self.names)
        guard = f" if {self.order[0]} <= {self.order[1]}" if self.order else ""
        return f"  {self.target}[{','.join(self.indices)}] += {body} for {ranges}{guard}"

    def add(self, tensors: dict[str, Numbers]) -> None:
        """Do it, point by point."""
        for point in itertools.product(range(SIZE), repeat=len(self.names)):
            at = dict(zip(self.names, point, strict=True))
            if self.order and at[self.order[0]] > at[self.order[1]]:
                continue
            term = 1
            for name, indices in self.factors:
                term *= int(tensors[name][tuple(at[each] for each in indices)])
            tensors[self.target][tuple(at[each] for each in self.indices)] += term


def statements(source: random.Random) -> Iterator[Sum]:
    """Two of a temporary, and three or four of outputs, which may read it."""
    readable = dict(INPUTS)
    targets = [TEMPORARY] * 2 + source.choices(list(OUTPUTS), k=2) + list(OUTPUTS)
    for number, target in enumerate(targets):
        if number == targets.count(TEMPORARY):
            readable[TEMPORARY] = 2
        names = source.sample(NAMES, source.randint(2, 3))
        indices = tuple(source.sample(names, OUTPUTS.get(target, 2)))
        chosen = [source.choice(list(readable)) for _ in range(source.randint(1, 3))]
        if number == len(targets) - 1:
            chosen[0] = TEMPORARY  # which is read at least once
        factors = tuple(
            (name, tuple(source.choice(names) for _ in range(readable[name]))) for name in chosen
        )
        first, second = source.sample(names, 2)
        order = (first, second) if source.random() < 1 / 3 else None
        yield Sum(target, indices, tuple(source.sample(names, len(names))), factors, order)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(80))
def test_sums_of_several_statements(seed: int) -> None:
    source = random.Random(seed)
    sums = tuple(statements(source))
    heads = {name: f"{name}[{','.join('D' * rank)}]" for name, rank in (INPUTS | OUTPUTS).items()}
    given, results = (", ".join(heads[name] for name in group) for group in (INPUTS, OUTPUTS))
    text = "\n".join((f"op f({given}) -> {results}", *map(str, sums), ""))
    (op,) = check_source(Source(text, "<test>"))

    numbers = np.random.default_rng(seed)
    tensors: dict[str, Numbers] = {
        name: numbers.integers(-3, 4, (SIZE,) * rank) for name, rank in INPUTS.items()
    }
    wanted = tensors | {
        name: np.zeros((SIZE,) * rank, np.int64)
        for name, rank in (OUTPUTS | {TEMPORARY: 2}).items()
    }
    for each in sums:
        each.add(wanted)
    on_cpu, on_gpu = for_cpu(op), for_gpu(op)
    programs = [along_rows(on_cpu, schedule(on_cpu, gather(on_cpu)))]
    programs += [
        schedule(on_gpu, gather(on_gpu)),
        threads(on_gpu, schedule(on_gpu, gather(on_gpu))),
    ]
    for program in programs:
        found, _ = run(program, tensors, {"D": SIZE})
        for name in OUTPUTS:
            array = cells.to_array(found[name], np.dtype(np.int64))
            assert np.array_equal(array, wanted[name]), f"{text}\n{name} of {program.name}"
