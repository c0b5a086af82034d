"""An op as a user writes it, beside eager PyTorch: what the tables of `everyday.py` are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

import opgen
from opgen.bench.beside import THEIRS
from opgen.bench.row import Contender, Shape, Workload

_TERMS: Final = 4096
"""Results may differ by what sums of so many terms explain."""

Given = Shape | tuple[int, Shape]
"""The shape of random numbers; or of random integers, with how many of these there are."""


@dataclass(frozen=True)
class Written:
    """An op named `f` with some inputs, and what eager PyTorch has in its place."""

    name: str
    text: str
    given: tuple[Given, ...]
    theirs: Callable[..., Tensor]
    attributes: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name, and the shape of the first input."""
        return f"{self.name} {list(self.given[0])}".replace(", ", ",")

    @property
    def is_image(self) -> bool:
        """Whether the first input is an image."""
        return self.text.startswith(("x: float[N,C,", "x[N,C,"))

    def workload(self, format_: torch.memory_format) -> Workload:
        """The op with numbers, images in a format."""
        op = opgen.compile(f"op f({self.text}\n").f

        def own(*inputs: Tensor) -> Tensor:
            result: Tensor = op(*inputs, **self.attributes)
            return result

        inputs = tuple(_numbers(each, format_) for each in self.given)
        floats = tuple(at for at, each in enumerate(inputs) if each.is_floating_point())
        points = _TERMS * max(each.numel() for each in inputs)
        contenders = (Contender(THEIRS, self.theirs),)
        return Workload(inputs, own, contenders, points, floats, bent=True)


def _numbers(given: Given, format_: torch.memory_format) -> Tensor:
    match given:
        case (int(count), tuple(shape)):
            return torch.randint(count, shape)
        case shape:
            made = torch.randn(*shape)
            return made.contiguous(memory_format=format_) if made.dim() == 4 else made
