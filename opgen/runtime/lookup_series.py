"""Calls in stages as the table of `lookup_table` takes them: the entries of their stages in order.

Between two stages Python would look for a plan, make a list of tensors, and call an op of the
dispatcher. For a convolution of 14 by 14 pixels with a ReLU that is a fifth of the time, and most
of it is spent on what the stage before has driven out of the caches.

A call is entered once every stage of it is known to the table of its own op, which is so after a
call or two. What is not known goes as ever: stages on a GPU, those that convert tensors or read
what stands for an absent input, and convolutions that are taken in strips.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opgen.runtime import evaluation, lookup, lookup_caller, lookup_library
from opgen.runtime.library_plan import Plan
from opgen.runtime.lookup_series_source import MAX_HELD, SERIES
from opgen.runtime.schema import Number, unflatten

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation
    from opgen.runtime.stages import Stage, Stages

MOST_TRIES = 4
"""How often it is tried to enter a call: kernels are known after one or two."""

_ENTERED = -1

_MOST_KEPT = 8
"""For how many choices of what is kept an op has a twin."""

_Structure = tuple[object, ...]
_KEEPING: dict[_Structure, lookup.Twin | None] = {}
"""Twins of ops that give more, by how their calls go; None for those of an op with too many. Names
of what is kept are no part of it: to the dispatcher ops that differ in these are the same."""

_made: dict[str, int] = {}
"""How many of them each op has."""

Tensors = Sequence[torch.Tensor | None]


def computed(
    operation: Operation,
    stages: Stages,
    tensors: Tensors,
    numbers: Sequence[Number],
    kept: Sequence[str] = (),
    *,
    is_asked: bool = False,
) -> tuple[torch.Tensor, ...] | None:
    """What `Stages.run` gives for a call: by the table, unless that `is_asked` already and had no
    answer, else stage by stage, and then the call is entered if it can be."""
    names = tuple(kept)
    tries = stages.tries.get(names, 0)
    if tries > MOST_TRIES or any(each is not None and not each.is_cpu for each in tensors):
        return stages.run(tensors, kept)
    twin = operation.twin if not names else _keeping(operation, stages, names)
    if twin is None:
        return stages.run(tensors, kept)
    if not is_asked:
        # One with other floats may have been entered.
        result = twin.call(*tensors, *numbers)
        if lookup_library.is_answered(result):
            stages.tries[names] = _ENTERED
            return (result,) if isinstance(result, torch.Tensor) else tuple(result)
    if tries == _ENTERED:
        return stages.run(tensors, kept)
    entries: list[int | None] = []
    found = stages.run(tensors, kept, lambda *about: entries.append(_entry(*about)))
    if found is not None:
        stages.tries[names] = tries + 1
        integers = _words(operation, stages, numbers, entries, names)
        if integers is not None and twin.enter_series(tensors, numbers, found, integers):
            stages.tries[names] = _ENTERED
    return found


def entered(operation: Operation, stages: Stages, kept: Sequence[str]) -> Callable[..., Any] | None:
    """What computes calls that keep so much, of tensors and numbers, once one was entered."""
    names = tuple(kept)
    if stages.tries.get(names) != _ENTERED:
        return None
    twin = operation.twin if not names else _keeping(operation, stages, names)
    return None if twin is None else twin.call


def _keeping(operation: Operation, stages: Stages, kept: tuple[str, ...]) -> lookup.Twin | None:
    """The twin of an op that has tensors between its stages for outputs as well."""
    structure = _structure(operation, stages, kept)
    if structure not in _KEEPING:
        with lookup_library.LOCK:
            name = operation.registered_name
            number = _made.get(name, 0)
            if not lookup_caller.is_plain():
                return None
            if structure not in _KEEPING:
                _made[name] = number + 1
                about = f"{name}_keeping_{number}", False, len(kept)
                made = lookup.twin(operation, *about) if number < _MOST_KEPT else None
                _KEEPING[structure] = made
    return _KEEPING[structure]


def _structure(operation: Operation, stages: Stages, kept: Sequence[str]) -> _Structure:
    """The ops of the stages, what each reads and makes, and what is kept, all by numbers."""
    places = _places(stages)
    return (
        operation.registered_name,
        tuple(
            (
                stage.operation.registered_name,
                tuple(places.get(name, name) for name in stage.sources),
                tuple(places[name] for name in stage.results),
            )
            for stage in stages.stages
        ),
        tuple(places[name] for name in kept),
    )


def _places(stages: Stages) -> dict[str, int]:
    """The tensors of a call by name: its inputs, and what the stages make."""
    places = {name: at for at, name in enumerate(stages.inputs)}
    for stage in stages.stages:
        for name in stage.results:
            places.setdefault(name, len(places))
    return places


def _words(
    operation: Operation,
    stages: Stages,
    numbers: Sequence[Number],
    entries: Sequence[int | None],
    kept: Sequence[str],
) -> list[int] | None:
    """How a call is computed whose stages have these entries, with some of what is between them for
    outputs behind its own; None where not all are known, or one is nothing for the table."""
    places = _places(stages)
    if len(places) > MAX_HELD:
        return None
    steps: list[int] = []
    for stage, entry in zip(stages.stages, entries, strict=True):
        floats = _floats(operation, stage, numbers)
        if entry is None or floats is None or not stages.absent.keys().isdisjoint(stage.sources):
            return None
        # Inputs belong to who calls.
        spent = [places[n] for n in stage.spent if n not in kept and n not in stages.inputs]
        sources, results = ([places[n] for n in each] for each in (stage.sources, stage.results))
        if min(results) < len(stages.inputs):
            return None
        steps.append(entry)
        for each in (sources, results, floats, spent):
            steps += [len(each), *each]
    outputs = [places[name] for name in (*stages.outputs, *kept)]
    if len(set(outputs)) < len(outputs):
        return None
    return [SERIES, len(stages.inputs), len(places), len(entries), *steps, *outputs]


def _entry(stage: Stage, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> int | None:
    """The address of the entry of a stage with such tensors; None where there is none."""
    if stage.gives is not None or any(each.dtype != stage.takes for each in given if stage.takes):
        return None
    twin = stage.operation.twin
    if twin is None or not all(each.is_cpu for each in given):
        return None
    found = twin.table.find(given, stage.numbers)
    if found is None and isinstance(stage.plan, Plan):
        values = unflatten(stage.operation.attributes, stage.numbers)
        call = evaluation.prepare(stage.operation, given, values)
        twin.enter_library(call, stage.plan, made[0])
        found = twin.table.find(given, stage.numbers)
    return found


def _floats(operation: Operation, stage: Stage, numbers: Sequence[Number]) -> list[int] | None:
    """Which floats of a call are those of a stage; None where one is none of these."""
    names = _names_of_floats(operation)
    given = [number for number in numbers if isinstance(number, float)]
    own = [number for number in stage.numbers if isinstance(number, float)]
    places = [names.index(n) if n in names else -1 for n in _names_of_floats(stage.operation)]
    if len(own) != len(places) or -1 in places:
        return None
    are_same = all(_bits(given[at]) == _bits(mine) for at, mine in zip(places, own, strict=True))
    return places if are_same else None


def _names_of_floats(operation: Operation) -> list[str]:
    """The float attributes of an op, one by one."""
    return [
        f"{each.name}[{at}]"
        for each in operation.attributes
        if each.type == "float"
        for at in range(each.length or 1)
    ]


def _bits(number: float) -> bytes:
    return struct.pack("d", number)
