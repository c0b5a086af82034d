"""Ops of several statements whose products PyTorch's library computes, and kernels all else.

A convolution with a bias and a ReLU is none that the library knows, and as one op each of its
kernels would be generated. Where the products in it are large it is computed as several ops, one
after the other (`opgen.passes.stages`), each as it would be by itself. Numbers that one hands to
the next are those that kernels keep in temporaries, in the same types but for some in bfloat16.
Large products of matrices are apart also where generated kernels are faster: gradients find their
results (`lookup_kept`).

Whether calls go that way depends on shapes and strides alone, on a GPU also on settings of PyTorch
(`library_cuda`), so that a call always gives the same bits. opgen makes the ops when such a call is
met; without it calls go as ever. So do those in float16: numbers between its statements may be
larger than that type has. In bfloat16 tensors between stages have 16 bits or 32, as
`opgen.passes.halves` says. Products with results of 32 bits are cuBLAS's on a GPU, which gives them
of factors with 16; on a CPU the factors are converted first.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import torch

from opgen.runtime import (
    build,
    checks,
    compat,
    cuda,
    evaluation,
    generated,
    joined,
    leading,
    library_call,
    library_cuda,
    library_product,
    lookup_library,
    lookup_series,
)
from opgen.runtime.library_plan import Plan
from opgen.runtime.library_product import Multiplication
from opgen.runtime.record import record, replaced
from opgen.runtime.schema import Number, Numbers, flatten, told_apart, unflatten

if TYPE_CHECKING:
    from opgen.runtime.evaluation import Call, Known
    from opgen.runtime.lookup_kept import Gradients
    from opgen.runtime.operation import Operation

Tensors = Sequence[torch.Tensor | None]
Outputs = tuple[torch.Tensor, ...]

LEAST_WORK = 2**18
"""From how many products on, in all sums that are the library's, a call goes in stages. With so
many it takes 0.7 to 1.4 times as long in kernels of one op, with seven times as many up to 14."""

LEAST_WORK_ON_GPU = 2**28
"""The same on a GPU, where a call in stages is to pay for its way through Python."""

_MOST_KNOWN = 1024
"""For how many kinds of calls an op remembers whether they go in stages."""

_TRIED = 3
"""How often it is looked again which products are apart, when others are not."""

_TYPES = (("f32", "f32"), ("f64", "f64"), ("bf16", "f32"))
_HALVES = "bf16"


@record
class Stage:
    """One op of several: what it reads and gives, by name, and what nobody reads after it.

    `plan` is what the library is asked for from here, None of what is looked up like calls of
    kernels: on a CPU products of matrices, on a GPU convolutions, of which no number is looked at.
    """

    operation: Operation
    numbers: tuple[Number, ...]
    sources: tuple[str, ...]
    results: tuple[str, ...]
    spent: tuple[str, ...]
    plan: Plan | Multiplication | None
    takes: torch.dtype | None = None
    """Of a product in a call in bfloat16 the type that its factors are converted to,"""
    gives: torch.dtype | None = None
    """and that of its result where it is another one."""

    def computed(self, given: list[torch.Tensor]) -> Outputs | None:
        """What it gives; None where the library may not be right about some number."""
        if self.takes is not None:
            given = [each.to(self.takes) for each in given]
        if isinstance(self.plan, Multiplication):
            return (library_product.multiply(self.plan, given, self.gives),)
        if self.plan is None:
            return applied(self.operation, given, self.numbers)
        found = library_call.computed(self.plan, given)
        return None if found is None else (found,)


@record
class Stages:
    """How calls of an op go: the stages in order, the names of the op's tensors, and what stands
    for inputs that are absent."""

    stages: tuple[Stage, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    absent: Mapping[str, torch.Tensor]
    between: tuple[str, ...]
    """What one stage hands to another, in the type of the call, and is no output."""
    gradients: dict[tuple[bool, ...], Gradients] = field(default_factory=dict)
    """How gradients are computed, by which are wanted."""
    tries: dict[tuple[str, ...], int] = field(default_factory=dict)
    """How often it was tried to enter a call that keeps some, see `lookup_series`."""

    def run(
        self,
        tensors: Tensors,
        kept: Sequence[str] = (),
        note: Callable[[Stage, Sequence[torch.Tensor], Outputs], None] | None = None,
    ) -> Outputs | None:
        """The outputs of a call, and then what is `kept` of what is between the stages; None where
        the library may not be right about some number, or an index is outside.

        `note` hears what each stage is given and makes, which is gone as soon as it is spent.
        """
        found = dict(self.absent)
        found.update((n, x) for n, x in zip(self.inputs, tensors, strict=True) if x is not None)
        with torch.no_grad():
            for stage in self.stages:
                given = [found[name] for name in stage.sources]
                try:
                    made = stage.computed(given)
                except IndexError:
                    return None  # of an index that is outside the op speaks, by its name
                if made is None:
                    return None
                if note is not None:
                    note(stage, given, made)
                del given
                found.update(zip(stage.results, made, strict=True))
                for name in stage.spent:
                    if name not in kept:
                        del found[name]
        return tuple(found[name] for name in (*self.outputs, *kept))


def evaluate(
    operation: Operation,
    tensors: Tensors,
    values: Sequence[Numbers],
    known: Known | None = None,
) -> Outputs:
    """The outputs of a call, in stages or not; raises what is wrong with it."""
    if operation.apart:
        stages = of(operation, tensors, values)
        if stages is not None:
            found = lookup_series.computed(operation, stages, tensors, flatten(values))
            if found is not None:
                return found
            known = None  # the next call like this one may well go in stages
    return evaluation.evaluate(operation, tensors, values, known)


def caller(
    operation: Operation,
) -> Callable[[Tensors, tuple[Number, ...]], torch.Tensor | Outputs | None] | None:
    """A function that computes calls of an op like earlier ones, if these went in stages; None
    where none does. It gives None for other calls, and where the library may not be right."""
    if not operation.apart:
        return None
    staged, is_single = operation.staged, len(operation.outputs) == 1

    def call(tensors: Tensors, numbers: tuple[Number, ...]) -> torch.Tensor | Outputs | None:
        if not staged:
            return None
        try:
            stages = staged.get(library_call.key_of(tensors, told_apart(numbers)))
        except RuntimeError:
            return None  # a tensor without strides, which is to be refused
        if stages is None or not all(each is None or compat.has_memory(each) for each in tensors):
            return None
        found = lookup_series.computed(operation, stages, tensors, numbers, is_asked=True)
        return found[0] if is_single and found is not None else found

    return call


def of(operation: Operation, tensors: Tensors, values: Sequence[Numbers]) -> Stages | None:
    """How a call goes in stages; None if it does not, or may be wrong."""
    given = [each for each in tensors if each is not None]
    if any(each.layout is not torch.strided for each in given):
        return None
    if not given or not (given[0].is_cpu or cuda.computes(given[0].device)):
        return None
    if max(each.numel() for each in given) ** 1.5 < _least_work(given[0].device):
        return None  # square matrices have so many products; others are hardly worth it
    key = library_call.key_of(tensors, told_apart(flatten(values)))
    if key in operation.staged:
        return operation.staged.get(key)
    found = _planned(evaluation.prepare(operation, tensors, values))
    if len(operation.staged) >= _MOST_KNOWN:
        operation.staged.clear()
    operation.staged[key] = found
    return found


def applied(operation: Operation, tensors: Tensors, numbers: Sequence[Number]) -> Outputs:
    """The outputs of an op that nothing is recorded of; kernels are compiled beside the library of
    calls that were seen, if that is still to be made."""
    if not lookup_library.build_meanwhile():
        return operation.apply(tensors, numbers)
    with compat.below_autograd():
        found = operation.overload(*tensors, *numbers)
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


# ---------------------------------------------------------------------------- what is worth it
def _planned(call: Call) -> Stages | None:
    """The stages of calls like this one; None where no products are worth it to be apart.

    Other products stay in the kernels of what is around them.
    """
    operation = call.operation
    if call.types.key[:2] not in _TYPES:
        return None
    if not generated.is_installed() or (operation.faults and cuda.computes(call.device)):
        return None  # a GPU would be waited for after each stage that looks for faults
    least = _least_work(call.device)
    known: tuple[tuple[int, ...], tuple[int, ...]] = operation.apart, ()
    for _ in range(_TRIED):
        plan = _Plan(call)
        are_halves = call.types.shared == _HALVES
        for stage in operation.family.stages(operation, *known, are_halves):
            plan.add(*stage)
        if not plan.apart or plan.work < least or not plan.is_rounded_as_before(least):
            return None
        found = tuple(sorted(plan.apart)), tuple(sorted(plan.own))
        if found == known:
            return plan.stages()
        known = found
    return None


class _Plan:
    """Follows a call through its stages, with tensors that hold nothing."""

    def __init__(self, call: Call) -> None:
        self.call, self.work, self.work_again = call, 0, 0
        self.is_again = False
        self.apart: list[int] = []
        self.own: list[int] = []
        operation = call.operation
        shapes = [None if each is None else each.shape for each in call.tensors]
        self.known, optional = operation.symbols(shapes, flatten(call.values))
        self.absent: dict[str, torch.Tensor] = {}
        self.found: dict[str, torch.Tensor] = {}
        for declared, tensor in zip(operation.inputs, call.tensors, strict=True):
            if tensor is None:
                dtype = evaluation.dtype_of(call, declared.name)
                about = optional[declared.name], dtype, call.device
                tensor = evaluation.default_tensor(declared, *about)
                self.absent[declared.name] = tensor
            self.found[declared.name] = tensor
        self.made: list[Stage] = []
        self.calls: list[Call] = []

    def add(
        self, operation: Operation, statement: int | None, is_wide: bool, is_again: bool
    ) -> None:
        """Add a stage; `statement` is the position of the product that it is, and of a product that
        the op which this one is derived from rounds to 16 bits `is_again` holds."""
        numbers = tuple(flatten(self.known[each.name] for each in operation.attributes))
        sources = tuple(each.name for each in operation.inputs)
        given, on_gpu = [self.found[name] for name in sources], cuda.computes(self.call.device)
        takes = gives = None
        if statement is not None and self.call.types.shared == _HALVES:
            # Of factors with 16 bits a GPU's library gives 32.
            takes = torch.float32 if is_wide and not on_gpu else torch.bfloat16
            gives = torch.float32 if is_wide and on_gpu else None
            with torch.no_grad():
                given = [each.to(takes) for each in given]
        call = evaluation.prepare(operation, given, unflatten(operation.attributes, numbers))
        plan = None if statement is None else library_call.plan(call)
        if gives is not None and not isinstance(plan, Multiplication):
            statement = None  # tiles of opgen take it in 16 bits, with what is around it
        if statement is not None:
            work = library_product.work(call) if plan is None else _work(plan)
            is_own = work >= max(1, _least_work(call.device)) and not _is_slow_to_find(call)
            if plan is not None or is_own:
                self.work += work
                self.work_again += work * is_again
                self.apart.append(statement)
                self.own += [statement] if plan is None else []
        self.is_again = self.is_again or is_again
        results = tuple(each.name for each in operation.outputs)
        made = evaluation.empty_outputs(call)
        if gives is not None:
            made = tuple(each.to(gives) for each in made)
        self.found.update(zip(results, made, strict=True))
        if plan is None:
            self.calls.append(call)
        if isinstance(plan, Multiplication) is not on_gpu:
            plan = None
        self.made.append(Stage(operation, numbers, sources, results, (), plan, takes, gives))

    def is_rounded_as_before(self, least: int) -> bool:
        """Whether a gradient has its products again as the call before had them: if that had too
        few for stages, which is for these alone to say, they were in kernels with 32 bits."""
        return not self.is_again or self.work_again >= least

    def stages(self) -> Stages | None:
        """All of them; None where they would give outputs with other strides than the op."""
        operation = self.call.operation
        outputs = tuple(each.name for each in operation.outputs)
        promised = zip(outputs, evaluation.empty_outputs(self.call), strict=True)
        if any(self.found[name].stride() != like.stride() for name, like in promised):
            return None
        if not cuda.computes(self.call.device):
            _compile(self.calls)
        last = {name: at for at, stage in enumerate(self.made) for name in stage.sources}
        spent: list[tuple[str, ...]] = [() for _ in self.made]
        for name, at in last.items():
            if name not in outputs:
                spent[at] += (name,)
        stages = (replaced(s, spent=names) for s, names in zip(self.made, spent, strict=True))
        inputs = tuple(each.name for each in operation.inputs)
        made = dict.fromkeys(name for stage in self.made for name in stage.results)
        between = (n for n in made if n not in outputs and not self._is_wider(n))
        return Stages(tuple(stages), inputs, outputs, self.absent, tuple(between))

    def _is_wider(self, name: str) -> bool:
        """Whether a tensor has more bits than reals of the call, which gradients would mix."""
        dtype = self.found[name].dtype
        return dtype.is_floating_point and checks.DTYPES[dtype] != self.call.types.shared


def _is_slow_to_find(call: Call) -> bool:
    """Whether opgen's kernels for a product are found anew in each call, as those in TF32 are."""
    if not cuda.computes(call.device) or call.types.real != "f32":
        return False
    found = library_cuda.settings()
    return found is not None and found.tf32_of_products


def _least_work(device: torch.device) -> int:
    """From how many products on a call on a device goes in stages."""
    return LEAST_WORK_ON_GPU if cuda.computes(device) else LEAST_WORK


def _compile(calls: Sequence[Call]) -> None:
    """Compile the kernels of some calls side by side, and the library of calls that were seen."""
    lookup_library.build_meanwhile()

    def compile_one(call: Call) -> None:
        call = leading.of_dims(call)
        with contextlib.suppress(
            build.BuildError, build.NoCompilerError
        ):  # the call says so itself
            places = evaluation.places_of(call, evaluation.empty_outputs(call))
            evaluation.compiled(*joined.of_call(call, evaluation.operands_of(call, places)))

    if len(calls) > 1:
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            list(pool.map(compile_one, calls))


def _work(plan: Plan | Multiplication) -> int:
    """How many products there are in what the library computes."""
    if isinstance(plan, Multiplication):
        return plan.work
    return math.prod(plan.case.result) * math.prod(plan.case.weight[1:])
