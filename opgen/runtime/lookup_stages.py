"""Autograd for calls that go in stages: gradients read what was between these.

The gradient of an op computes the temporaries again that it reads. Of a call in stages they were
tensors, and those that the gradient reads are kept. Which they are is known when one was derived:
of a call before that, all are. Where nothing but plain tensors is in play; else gradients go as
ever, from the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import autograd, compat, lookup_autograd, lookup_caller, lookup_library, stages
from opgen.runtime.lookup_autograd import Left, Step
from opgen.runtime.record import record
from opgen.runtime.schema import Number, flatten, unflatten

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation
    from opgen.runtime.stages import Stages

_Wanted = tuple[bool, ...]


@record
class InStages:
    """The calls of an op with one output that go in stages, and their gradients."""

    operation: Operation

    def forward(
        self, wanted: _Wanted, tensors: Sequence[Any], numbers: tuple[Number, ...]
    ) -> tuple[torch.Tensor, Left] | None:
        """The output of a call, and what it leaves for the gradients that are wanted; None of a
        call that goes as ever."""
        # Who looks at what is saved wants to see as many tensors in every call.
        if compat.saved_tensors_are_hooked() or lookup_library.is_suspended():
            return None
        values = unflatten(self.operation.attributes, numbers)
        found = stages.of(self.operation, tensors, values)
        if found is None:
            return None
        known = found.gradients.get(wanted)
        kept = found.between if known is None else known.kept
        made = found.run(tensors, kept)
        return None if made is None else (made[0], Left(found, kept, made[1:]))

    def backward(
        self,
        left: tuple[Stages, tuple[str, ...]],
        about: tuple[Any, tuple[Number, ...], Sequence[int]],
        saved: Sequence[torch.Tensor | None],
        wanted: _Wanted,
        cotangent: Any,
    ) -> list[Any] | None:
        """The gradients of a call; None where they go as ever.

        `left` are its stages and the names of what it kept, `about` its shapes and numbers, and the
        positions of the inputs that were saved; what was kept is `saved` behind these.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not lookup_caller.is_plain():
            return None
        if type(cotangent) is not torch.Tensor or not compat.has_memory(cotangent):
            return None
        (found, names), (shapes, numbers, kept) = left, about
        if wanted not in found.gradients:
            found.gradients[wanted] = self._gradients(found, wanted, shapes, numbers)
        count, steps = len(self.operation.inputs), found.gradients[wanted].steps
        if not steps:
            return None
        cotangents = (autograd.without_repeats(cotangent, saved),)
        places = (*kept, *(count + found.between.index(name) for name in names))
        return lookup_autograd.computed(steps, cotangents, places, saved, count, is_quick=True)

    def _gradients(
        self, found: Stages, wanted: _Wanted, shapes: Sequence[Any], numbers: Sequence[Number]
    ) -> Gradients:
        """How the gradients of a call are computed that has all at hand that is between stages.

        Sources behind the inputs are positions in that.
        """
        operation, names = self.operation, found.between
        count = len(operation.inputs)
        about = operation, wanted, shapes, numbers
        known, _ = operation.symbols(shapes, numbers)
        steps: list[Step] = []
        every: set[str] = set()
        for step in lookup_autograd.plan(*about, is_last=True, on_cpu=True):
            made = operation.family.of_kept(step.derived, names)
            if made is None:
                steps.append(step)
                continue
            derived, read = made
            inputs = (each.name for each in step.derived.inputs)
            places = dict(zip(inputs, step.sources, strict=True))
            places |= {name: count + names.index(name) for name in read}
            values = tuple(flatten(known[each.name] for each in derived.attributes))
            sources = tuple(places[each.name] for each in derived.inputs)
            steps.append(Step(step.at, step.together, derived, values, sources, None, ()))
            every.update(read)
        return Gradients(tuple(steps), tuple(name for name in names if name in every))


@record
class Gradients:
    """The steps to the gradients of a call, and what they read of what is between its stages."""

    steps: tuple[Step, ...]
    kept: tuple[str, ...]
