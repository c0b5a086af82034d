"""Statements whose iterators are named alike in other orders, beside loops in Python.

Passes join statements, and loops of them, in one kernel. Square dims make loops of the same ranges,
so that names are all that tells them apart. Gradients have the names of all statements.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir import cells
from opgen.ir.binding import Array
from opgen.ir.notation import Op
from opgen.passes.differentiate import adjoint
from opgen.passes.gather import gather
from opgen.passes.schedule import schedule
from opgen.programs import along_rows, for_cpu, for_gpu, threads
from opgen.testing.run_loops import run

SIZE = 3
INPUTS = {"x": 2, "z": 2, "w": 2, "c": 1}
OUTPUTS = {"y": 1, "v": 2}
TEMPORARY = "t"
NAMES = ("i", "j", "k")
MODES = ("?0", "?clamp", "?wrap")

Values = dict[str, dict[tuple[int, ...], Tensor]]


@dataclass(frozen=True)
class Place:
    """One index of a factor: `first + sign*second + shift mode`, or `first` alone."""

    first: str
    second: str = ""
    sign: int = 1
    shift: int = 0
    mode: str = ""

    def __str__(self) -> str:
        second = f" {'+' if self.sign > 0 else '-'} {self.second}" if self.second else ""
        shift = f" {'+' if self.shift > 0 else '-'} {abs(self.shift)}" if self.shift else ""
        return f"{self.first}{second}{shift} {self.mode}".rstrip()

    def at(self, point: Mapping[str, int]) -> int | None:
        """The index at a point; None where it leaves the tensor and nothing is read."""
        index = point[self.first] + self.shift
        if self.second:
            index += self.sign * point[self.second]
        match self.mode:
            case "?clamp":
                return min(max(index, 0), SIZE - 1)
            case "?wrap":
                return index % SIZE
            case _:
                return index if 0 <= index < SIZE else None


@dataclass(frozen=True)
class Sum:
    """`target[indices] += factors for names if first <= second`."""

    target: str
    indices: tuple[str, ...]
    names: tuple[str, ...]
    factors: tuple[tuple[str, tuple[Place, ...]], ...]
    order: tuple[str, str] | None

    def __str__(self) -> str:
        body = "*".join(f"{name}[{', '.join(map(str, at))}]" for name, at in self.factors)
        ranges = ", ".join(f"{name} in D" for name in self.names)
        guard = f" if {self.order[0]} <= {self.order[1]}" if self.order else ""
        return f"  {self.target}[{','.join(self.indices)}] += {body} for {ranges}{guard}"

    def add(self, tensors: Values) -> None:
        """Do it, point by point."""
        for numbers in itertools.product(range(SIZE), repeat=len(self.names)):
            point = dict(zip(self.names, numbers, strict=True))
            if self.order and point[self.order[0]] > point[self.order[1]]:
                continue
            found = [(name, [each.at(point) for each in at]) for name, at in self.factors]
            if any(None in at for _, at in found):
                continue
            factors = [tensors[name][tuple(i for i in at if i is not None)] for name, at in found]
            cell = tuple(point[each] for each in self.indices)
            tensors[self.target][cell] = tensors[self.target][cell] + torch.stack(factors).prod()


def places(source: random.Random, names: list[str], rank: int) -> Iterator[Place]:
    """Iterators alone, more often than not."""
    for _ in range(rank):
        first, second = source.sample(names, 2)
        match source.randrange(6):
            case 0:
                yield Place(first, shift=source.choice((-1, 1)), mode=source.choice(MODES))
            case 1:
                yield Place(first, second, -1, source.choice((0, 1)), source.choice(MODES))
            case 2:
                yield Place(first, second, 1, -1, source.choice(MODES))
            case _:
                yield Place(first)


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
        factors = tuple((name, tuple(places(source, names, readable[name]))) for name in chosen)
        first, second = source.sample(names, 2)
        order = (first, second) if source.random() < 1 / 3 else None
        yield Sum(target, indices, tuple(source.sample(names, len(names))), factors, order)


def zeros(rank: int) -> dict[tuple[int, ...], Tensor]:
    cells_ = itertools.product(range(SIZE), repeat=rank)
    return {cell: torch.zeros((), dtype=torch.float64) for cell in cells_}


def cells_of(tensor: Tensor) -> dict[tuple[int, ...], Tensor]:
    return {cell: tensor[cell] for cell in itertools.product(range(SIZE), repeat=tensor.dim())}


def differences(op: Op, given: Mapping[str, Array], wanted: Mapping[str, Tensor]) -> list[str]:
    """The outputs that some program of the op gets wrong."""
    on_cpu, on_gpu = for_cpu(op), for_gpu(op)
    plain = schedule(on_gpu, gather(on_gpu))
    rows = along_rows(on_cpu, schedule(on_cpu, gather(on_cpu)))
    inputs = {tensor.name: given[tensor.name] for tensor in op.inputs}
    integers = {"D": SIZE} | {attribute.name: SIZE for attribute in op.attributes}
    wrong = []
    for way, program in (("plain", plain), ("rows", rows), ("threads", threads(on_gpu, plain))):
        found, _ = run(program, inputs, integers)
        for name, expected in wanted.items():
            array = cells.to_array(found[name], np.dtype(np.float64)).astype(np.float64)
            if not np.allclose(array, expected.numpy(), rtol=1e-9, atol=1e-9):
                wrong.append(f"{name} by {way}")
    return wrong


@pytest.mark.sampled(60)
@pytest.mark.parametrize("seed", range(100))
def test_sums_of_several_statements_and_their_gradients(seed: int) -> None:
    source = random.Random(seed)
    sums = tuple(statements(source))
    heads = {name: f"{name}[{','.join('D' * rank)}]" for name, rank in (INPUTS | OUTPUTS).items()}
    ins, outs = (", ".join(heads[name] for name in group) for group in (INPUTS, OUTPUTS))
    text = "\n".join((f"op f({ins}) -> {outs}", "  where D >= 1", *map(str, sums), ""))
    (op,) = check_source(Source(text, "<test>"))

    generator = torch.Generator().manual_seed(seed)

    def numbers(rank: int) -> Tensor:
        return torch.randn((SIZE,) * rank, generator=generator, dtype=torch.float64)

    inputs = {name: numbers(rank).requires_grad_() for name, rank in INPUTS.items()}
    tensors: Values = {name: cells_of(tensor) for name, tensor in inputs.items()}
    tensors |= {name: zeros(rank) for name, rank in (OUTPUTS | {TEMPORARY: 2}).items()}
    for each in sums:
        each.add(tensors)
    results = {
        name: torch.stack(list(tensors[name].values())).view((SIZE,) * rank)
        for name, rank in OUTPUTS.items()
    }
    given = {name: tensor.detach().numpy() for name, tensor in inputs.items()}
    wanted = {name: tensor.detach() for name, tensor in results.items()}
    assert not differences(op, given, wanted), text

    along = {name: numbers(rank) for name, rank in OUTPUTS.items()}
    total = sum((results[name] * along[name]).sum() for name in OUTPUTS)
    assert isinstance(total, Tensor)
    for tensor in op.inputs:
        (gradient,) = torch.autograd.grad(
            total, inputs[tensor.name], retain_graph=True, materialize_grads=True
        )
        derived = adjoint(op, tensor.name)
        cotangents = {given_as: along[name].numpy() for name, given_as in derived.cotangents}
        expected = {derived.op.outputs[0].name: gradient}
        assert not differences(derived.op, {**given, **cotangents}, expected), text
