"""Autograd for calls whose gradients read what the forward pass computed on its way.

The gradient of an op computes the temporaries again that it reads. Three kinds of calls keep them:

* those in stages (`opgen.runtime.stages`), of which everything between these was a tensor;
* those of an op with sums, means or maxima that are small beside its tensors, as the two of a norm.
  An op that has them for outputs as well runs in its place (`opgen.passes.kept`). So may an
  output be read, as that of a softmax. It is no tensor of its own: where somebody has changed it,
  gradients go as ever;
* on the CPU, those of an op with maxima or minima through which gradients flow: where these were is
  kept, an integer of 64 bits for each as in PyTorch, or told by an output that the op has for it
  (`opgen.passes.kept_positions`).

What the gradient reads of it is known when one was derived: of a call before that, all is kept.
This is so where nothing but plain tensors is in play; else gradients go as ever, from the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from opgen.runtime import (
    autograd,
    compat,
    cuda,
    evaluation,
    generated,
    library_call,
    lookup_autograd,
    lookup_caller,
    lookup_library,
    lookup_series,
    special,
    stages,
)
from opgen.runtime.description import GENERIC, Shape
from opgen.runtime.lookup_autograd import Left, Step
from opgen.runtime.record import record
from opgen.runtime.schema import Number, flatten, told_apart, unflatten

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

_MOST_KNOWN = 1024
_LEAST_PART = 8
"""How many times as large as anything that is kept beside it the largest input is at least."""

_LARGE_ON_GPU = 2**19
"""From how many elements of the largest input on a call on a GPU keeps anything beside stages: the
fewest measured. On an H200 (2026-11-27) a softmax of as many then takes 30 microseconds in place of
26 as called, its gradient 96 in place of 103; of the GPU alone that is 5.3 of 12.4."""

_MANY_PAIRS = 2**21
"""From which product of the elements of two inputs on positions are kept on the CPU: of 512 points
and more, gradients of distances to the nearest of as many take less time so."""

_TYPES = frozenset({torch.float32, torch.float64})
"""Types of which temporaries are tensors, with nothing rounded."""

_HALVES = frozenset({torch.bfloat16, torch.float16})
"""Types of which positions are what they are in any other one."""

_INDICES = frozenset({torch.int64, torch.int32, torch.bool})
"""Types that may be beside these, of inputs that are declared so: indices and masks."""

_Wanted = tuple[bool, ...]


class Way(Protocol):
    """How calls like one go that keep something; `between` are the names of what they may keep."""

    @property
    def between(self) -> tuple[str, ...]:
        """See above."""

    @property
    def gradients(self) -> dict[_Wanted, Gradients]:
        """How gradients are computed, by which are wanted."""

    def run(
        self, tensors: Sequence[torch.Tensor | None], kept: Sequence[str]
    ) -> tuple[torch.Tensor, ...] | None:
        """The outputs and what is kept, or None where the call has to go as ever."""


@record
class Gradients:
    """The steps to the gradients of a call, and what they read that it keeps."""

    steps: tuple[Step, ...]
    kept: tuple[str, ...]


@record
class Whole:
    """The way of an op that gives what may be kept beside its outputs, which may be read too.

    Where nothing else is kept, the `plain` op runs, which has no other outputs.
    """

    operation: Operation
    plain: Operation
    numbers: tuple[Number, ...]
    between: tuple[str, ...]
    gradients: dict[_Wanted, Gradients] = field(default_factory=dict)

    def run(
        self, tensors: Sequence[torch.Tensor | None], kept: Sequence[str]
    ) -> tuple[torch.Tensor, ...] | None:
        """See `Way`. Of an index that is outside the op itself speaks, which then runs."""
        operation = self.operation if kept else self.plain
        try:
            made = stages.applied(operation, tensors, self.numbers)
        except IndexError:
            return None
        if not kept:
            return made
        by_name = dict(zip((each.name for each in operation.outputs), made, strict=True))
        return (*made[: len(self.plain.outputs)], *(by_name[name] for name in kept))


def _key_of(
    wanted: _Wanted, tensors: Sequence[Any], numbers: tuple[Number, ...]
) -> tuple[object, ...] | None:
    """The shapes of a call, and its numbers; None of a tensor without one, which is refused."""
    try:
        shapes = tuple([None if each is None else each.shape for each in tensors])
    except RuntimeError:
        return None
    return wanted, shapes, told_apart(numbers)


class _Quick(NamedTuple):
    """What computes calls in stages that were entered, and what these leave for their gradients."""

    call: Callable[..., Any]
    left: Left


@record
class Keeps:
    """The calls of an op that keep something for their gradients, and these. One of its outputs has
    a derivative."""

    operation: Operation
    outputs: tuple[str, ...]
    has_stages: bool
    keeps_more: bool
    """Whether there is something beside tensors between stages."""
    ways: dict[Any, Whole | None] = field(default_factory=dict)
    quick: dict[Any, _Quick] = field(default_factory=dict)
    """How calls of these shapes went, with these numbers, for these gradients."""

    @staticmethod
    def of(operation: Operation) -> Keeps:
        """Nothing is known of calls of an op."""
        outputs = tuple(each.name for each in operation.outputs)
        has_stages = bool(operation.apart) and len(outputs) == 1
        more = operation.totals or operation.positions or operation.telling
        return Keeps(operation, outputs, has_stages, bool(more))

    def forward(
        self, wanted: _Wanted, tensors: Sequence[Any], numbers: tuple[Number, ...]
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], Left] | None:
        """The outputs of a call, what is saved for the gradients that are wanted, and how that was
        left; None of a call that goes as ever."""
        # Who looks at what is saved wants to see as many tensors in every call.
        if compat.saved_tensors_are_hooked() or lookup_library.is_suspended():
            return None
        key = None
        if self.has_stages:
            key = _key_of(wanted, tensors, numbers)
            if key is None:
                return None
            quick = self.quick.get(key)
            if quick is not None:
                # The table tells calls apart whose tensors lie otherwise, or are of other types.
                result = quick.call(*tensors, *numbers)
                more = result if type(result) is tuple else (result,)
                if more[0] is not lookup_library.ask_python():
                    return more[:1], more[1:], quick.left
        found = self._way(tensors, numbers)
        if found is None:
            return None
        known, outputs = found.gradients.get(wanted), self.outputs
        kept = found.between if known is None else known.kept
        names = tuple(name for name in kept if name not in outputs)
        if isinstance(found, stages.Stages):
            made = lookup_series.computed(self.operation, found, tensors, numbers, names)
            if known is not None:
                self._remember(key, found, names)
        else:
            made = found.run(tensors, names)
        if made is None:
            return None
        count = len(outputs)
        own = []
        for name, tensor in zip(outputs, made[:count], strict=True):
            if name in kept:
                alias = tensor.detach()
                own.append((name, alias, alias._version))
        return made[:count], made[count:], Left(found, names, tuple(own))

    def _way(self, tensors: Sequence[Any], numbers: tuple[Number, ...]) -> Way | None:
        """How a call goes that keeps something; None of one that does not."""
        found: Way | None = None
        if self.has_stages:
            values = unflatten(self.operation.attributes, numbers)
            found = stages.of(self.operation, tensors, values)
        if found is None and self.keeps_more:
            found = self._whole(tensors, numbers)
        return found

    def _remember(self, key: Any, found: stages.Stages, names: tuple[str, ...]) -> None:
        """Let the next calls with this key be asked of the table at once, if one was entered."""
        call = lookup_series.entered(self.operation, found, names)
        is_only_way = bool(names) or not self.keeps_more
        if call is not None and is_only_way:
            if len(self.quick) >= _MOST_KNOWN:
                self.quick.clear()
            self.quick[key] = _Quick(call, Left(found, names))

    def backward(
        self,
        left: Left,
        about: tuple[Any, tuple[Number, ...], Sequence[int]],
        saved: Sequence[torch.Tensor | None],
        wanted: _Wanted,
        cotangents: Sequence[Any],
    ) -> list[Any] | None:
        """The gradients of a call; None where they go as ever.

        `about` are its shapes and numbers, and the positions of the inputs that were saved; what
        was kept is `saved` behind these.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not lookup_caller.is_plain():
            return None
        (flowing,) = self.operation.flowing
        cotangent = cotangents[flowing]
        if type(cotangent) is not torch.Tensor or not compat.has_memory(cotangent):
            return None
        found, names = left.way, left.names
        for name, output, version in left.outputs:
            if output._version != version:
                return None
            saved, names = (*saved, output), (*names, name)
        shapes, numbers, kept = about
        if wanted not in found.gradients:
            on_gpu = cotangent.shape if cuda.computes(cotangent.device) else None
            about_call = wanted, shapes, numbers, on_gpu
            found.gradients[wanted] = self._gradients(found.between, *about_call)
        count, steps = len(self.operation.inputs), found.gradients[wanted].steps
        if not steps:
            return None
        if cotangent.is_cpu:
            cotangent = autograd.without_repeats(cotangent, saved)
        given = [cotangent] * (flowing + 1)  # no step reads another one
        places = (*kept, *(count + found.between.index(name) for name in names))
        return lookup_autograd.computed(steps, given, places, saved, count, is_quick=True)

    def _whole(self, tensors: Sequence[Any], numbers: tuple[Number, ...]) -> Whole | None:
        """The way of a large call of which something is kept."""
        given = [each for each in tensors if each is not None]
        if not given:
            return None
        numbers_of = _TYPES if self.operation.totals else _TYPES | _HALVES
        for declared, tensor in zip(self.operation.inputs, tensors, strict=True):
            types = numbers_of if declared.dtype in GENERIC else _TYPES | _INDICES
            if tensor is not None and tensor.dtype not in types:
                return None
        on_gpu = cuda.computes(given[0].device)
        if not (given[0].is_cpu or (on_gpu and not self.operation.faults)):
            return None
        if not self._is_large([each.numel() for each in given], on_gpu):
            return None
        if any(each.layout is not torch.strided for each in given):
            return None
        key = library_call.key_of(tensors, told_apart(numbers))
        if key in self.ways:
            return self.ways.get(key)
        found = self._planned(tensors, numbers)
        if len(self.ways) >= _MOST_KNOWN:
            self.ways.clear()
        self.ways[key] = found
        return found

    def _is_large(self, counts: Sequence[int], on_gpu: bool) -> bool:
        """Whether a call with inputs of so many elements is worth it.

        An extreme of all pairs of two inputs' points takes as long as there are pairs.
        """
        *_, second, first = sorted((1, *counts))
        if on_gpu:
            return first >= _LARGE_ON_GPU
        are_pairs = bool(self.operation.positions) and first * second >= _MANY_PAIRS
        return first >= special.LARGE or are_pairs

    def _planned(self, tensors: Sequence[Any], numbers: tuple[Number, ...]) -> Whole | None:
        operation, values = self.operation, unflatten(self.operation.attributes, numbers)
        evaluation.prepare(operation, tensors, values)  # says what is wrong
        if not generated.is_installed():
            return None
        given = [each for each in tensors if each is not None]
        most = max(each.numel() for each in given) // _LEAST_PART
        # Cells of a GPU look for their terms: nothing else was tried there.
        on_cpu = given[0].is_cpu
        positions = operation.positions if on_cpu else ()
        telling = operation.telling if on_cpu else ()
        count = len(operation.outputs)
        names = (*operation.totals, *positions)
        read = tuple(operation.outputs[at].name for at in operation.flowing) + telling
        while names:
            keeping = operation.family.keeping(operation, names)
            if keeping is None:
                return None
            shapes = evaluation.prepare(keeping, tensors, values).shapes.outputs[count:]
            given_names = (each.name for each in keeping.outputs[count:])
            sizes = dict(zip(given_names, map(math.prod, shapes), strict=True))
            small = tuple(name for name in names if name in positions or sizes[name] <= most)
            if small == names:
                return Whole(keeping, operation, numbers, (*names, *read))
            names = small
        return Whole(operation, operation, numbers, read) if telling else None

    def _gradients(
        self,
        names: tuple[str, ...],
        wanted: _Wanted,
        shapes: Sequence[Any],
        numbers: Sequence[Number],
        on_gpu: Shape | None,
    ) -> Gradients:
        """How the gradients of a call are computed that keeps temporaries of these names.

        On a GPU the shape of the output is given. Sources behind the inputs are positions in these.
        """
        operation = self.operation
        count = len(operation.inputs)
        given = operation, wanted, shapes, numbers
        known, _ = operation.symbols(shapes, numbers)
        steps: list[Step] = []
        every: set[str] = set()
        on_cpu = on_gpu is None
        for step in lookup_autograd.plan(*given, is_last=True, on_gpu=on_gpu, on_cpu=on_cpu):
            path, is_other = step.derived.path, False
            if not step.together:
                # That of `u` in `y = z*u` is the op itself; in a module two of `y = z*w` are one.
                path = (*operation.path, operation.inputs[step.at].name)
                is_other = path != step.derived.path
            made = operation.family.of_kept(path, names)
            places = None if made is None else self._places(step, made, is_other)
            if made is None or places is None:
                steps.append(step)
                continue
            derived, read = made
            places |= {name: count + names.index(name) for name in read}
            values = tuple(flatten(known[each.name] for each in derived.attributes))
            sources = tuple(places[each.name] for each in derived.inputs)
            about = step.at, step.together
            steps.append(lookup_autograd.step_of(*about, derived, values, sources))
            every.update(read)
        return Gradients(tuple(steps), tuple(name for name in names if name in every))

    def _places(
        self, step: Step, made: tuple[Operation, tuple[str, ...]], is_other: bool
    ) -> dict[str, int] | None:
        """Where the tensors are that a gradient which reads temporaries is given, but for these.

        None if that is not known, where the step would ask an op that is none of this one's own.
        """
        if not is_other:
            names = (each.name for each in step.derived.inputs)
            return dict(zip(names, step.sources, strict=True))
        derived, read = made
        places = {each.name: at for at, each in enumerate(self.operation.inputs)}
        flowing = [e.name for e in derived.inputs if e.name not in places and e.name not in read]
        sources = [source for source in step.sources if source < 0]
        if len(flowing) != 1 or len(sources) != 1:
            return None
        return places | {flowing[0]: sources[0]}
