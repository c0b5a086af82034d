"""The texts that a running module asks for: derivatives, and kernels for the values of its calls.

The runtime asks by the names of these functions (`opgen.runtime.generated`) and keeps the answers
on disk, so that they depend on their arguments alone: a spec's text and name, and a path that says
which op of it is meant (`opgen.paths`).
"""

from __future__ import annotations

from collections.abc import Mapping

from opgen.compiler import module_text
from opgen.emit import torch_module
from opgen.emit.c import c_source
from opgen.emit.cuda import cuda_kernels
from opgen.errors import OpgenError, Source
from opgen.ir.family import JOINT
from opgen.ir.loops import Program
from opgen.ir.notation import Op
from opgen.passes.cuda_unrounded import unrounded as rounding_inputs
from opgen.passes.derive import joint, sources
from opgen.passes.differentiate import derivative
from opgen.passes.kept import keeping
from opgen.passes.relayout import Orders
from opgen.passes.specialise import (
    attributes_of,
    counts_of,
    default_values,
    factors_of,
    specialise,
    windows_of,
)
from opgen.passes.stages import Stage
from opgen.passes.stages import stages as stages_of
from opgen.passes.unclamp import unclamped
from opgen.passes.unrounded import unrounded
from opgen.paths import (
    WholeError,
    begin,
    checked,
    is_derived,
    of_kept,
    op_of,
    origin_of,
    stage_step,
)
from opgen.programs import for_cpu, for_gpu, scheduled, special_along_rows, special_threads, threads
from opgen.runtime import Operation, generated
from opgen.runtime.description import KEEPING, KEPT
from opgen.units import stage_unit, unit


def module_source(text: str, name: str) -> str:
    """The module of a spec without derivatives."""
    return module_text(Source(text, name), orders=0)


def derived_source(
    text: str,
    name: str,
    path: tuple[str, ...],
    siblings: bool = False,
    apart: bool = False,
) -> str:
    """A module of the op at the end of a path of differentiations.

    Its `LINK` says how the op before it on the path calls it, see `opgen.runtime.Gradient`. It is
    None, and the module holds nothing else, for a joint gradient that would not share anything:
    temporaries, or, of `siblings`, passes of a CUDA kernel for usual attributes and windows. With
    `apart` it need not: whoever asks looks at its kernels. There is none of an op with a gradient
    that is written by hand.
    """
    ops = checked(text, name)
    *before, last = path
    op = op_of(text, name, tuple(before))
    if siblings:
        if not _have_siblings(op, last):
            return "LINK = None\n"
    elif JOINT in last and (op.gradients or (not apart and joint(op, ops) is None)):
        return "LINK = None\n"
    found = derivative(op, last, ops)
    link = (found.op.name, sources(found))
    module = _operation_source(found.op, path, text, name, ops)
    return f"{module}\nLINK = {link}\n"


_USUAL_WINDOW = 3


def _have_siblings(op: Op, step: str) -> bool:
    """Whether a CUDA kernel computes several of an op's gradients, for usual values at least.

    These are defaults, and 1 for every attribute: a window of 3 is padded by 1.
    """
    if op.gradients:
        return False
    found = for_gpu(derivative(op, step).op)
    ones = dict.fromkeys(attributes_of(found), 1)
    sizes = dict.fromkeys(windows_of(op), _USUAL_WINDOW) | dict.fromkeys(factors_of(op), 1)
    known = set(scheduled(found).integers).difference(counts_of(op))
    for attributes in (default_values(found) or ones, ones):
        values = {**attributes, **sizes}
        try:
            special = unclamped(specialise(found, {n: v for n, v in values.items() if n in known}))
            on_gpu = threads(special, scheduled(special))
        except OpgenError:  # these values are none of this op
            continue
        if any(kernel.also for kernel in on_gpu.kernels):
            return True
    return False


def special_source(
    text: str, name: str, path: tuple[str, ...], values: Mapping[str, int], layout: int = 0
) -> str:
    """C kernels of the op at the end of a path for particular values of its integers.

    `layout` says which tensors are in channels-last format, see `passes.relayout`.
    """
    return c_source(*_special_program(text, name, path, values, layout))


def one_pass(
    text: str, name: str, path: tuple[str, ...], values: Mapping[str, int], layout: int = 0
) -> str:
    """`yes` if one of these kernels runs within another one, else nothing."""
    made = _special_program(text, name, path, values, layout)
    _LATEST.clear()  # by other threads as well
    _LATEST[text, name, path, tuple(values.items()), layout] = made
    program, *_ = made
    return "yes" if program.is_one_pass else ""


_LATEST: dict[object, tuple[Program, Program, Orders]] = {}
"""The program that `one_pass` looked at last: the source is asked for next."""


def unrounded_source(
    text: str,
    name: str,
    path: tuple[str, ...],
    values: Mapping[str, int],
    layout: int,
    tensors: tuple[str, ...],
) -> str:
    """The same where these tensors are float32 and the call computes with bfloat16.

    Empty where that is not worth it, see `passes.unrounded`.
    """
    program, called_as, orders = _special_program(text, name, path, values, layout)
    found = unrounded(program, tensors)
    return "" if found is None else c_source(found, called_as, orders)


def _special_program(
    text: str, name: str, path: tuple[str, ...], values: Mapping[str, int], layout: int
) -> tuple[Program, Program, Orders]:
    latest = _LATEST.get((text, name, path, tuple(values.items()), layout))
    if latest is not None:
        return latest
    public = checked(text, name)[begin(path)[0]]
    op = for_cpu(op_of(text, name, path), is_derived(path))
    return special_along_rows(op, public, values, layout)


def special_cuda(
    text: str, name: str, path: tuple[str, ...], values: Mapping[str, int], layout: int = 0
) -> str:
    """The same in CUDA: Python source that defines `kernels`."""
    op = for_gpu(op_of(text, name, path))
    special, program, orders = special_threads(op, values, layout)
    if special is program:
        return cuda_kernels(program, "kernels")
    return cuda_kernels(special, "kernels", program, orders)


def unrounded_cuda(
    text: str,
    name: str,
    path: tuple[str, ...],
    values: Mapping[str, int],
    layout: int,
    tensors: tuple[str, ...],
) -> str:
    """The same where these inputs are float32 and the call computes with numbers of 16 bits.

    Empty where that is not worth it, see `passes.cuda_unrounded`.
    """
    op = for_gpu(op_of(text, name, path))
    special, program, orders = special_threads(op, values, layout)
    found = rounding_inputs(special, tensors)
    return "" if found is None else cuda_kernels(found, "kernels", program, orders)


def leading_source(text: str, name: str, path: tuple[str, ...]) -> str:
    """A module of an op whose leading dims are dims of their own, as the path says how many.

    Empty for an op that needs them as one, or has no leading dims.
    """
    try:
        op = op_of(text, name, path)
    except WholeError:
        return ""
    first, _ = begin(path)
    whole = op_of(text, name, (first, *path[1:]))
    leading = frozenset(op.sizes) - frozenset(whole.sizes)
    return _operation_source(op, path, text, name, checked(text, name), leading)


def stages_source(
    text: str,
    name: str,
    path: tuple[str, ...],
    apart: tuple[int, ...],
    own: tuple[int, ...] = (),
) -> str:
    """A module of the ops that compute an op one after the other, see `passes.stages`.

    The statements `apart` are ops of their own. `STAGES` are the names of all, in order, with the
    positions of these statements. Those that are not opgen's `own` have no more than plain kernels:
    they are the library's in every call that has stages.
    """
    module, found = _staged(text, name, path, apart, own, are_halves=False)
    names = tuple((stage.op.name, stage.statement) for stage in found)
    return f"{module}\nSTAGES = {names}\n"


def halves_source(
    text: str, name: str, path: tuple[str, ...], apart: tuple[int, ...], own: tuple[int, ...]
) -> str:
    """The same for calls in bfloat16. The names of `WIDE` are those whose results have 32 bits, of
    `AGAIN` those that the op which this one is derived from rounds to 16."""
    module, found = _staged(text, name, path, apart, own, are_halves=True)
    names = tuple((stage.op.name, stage.statement) for stage in found)
    wide = tuple(stage.op.name for stage in found if stage.is_wide)
    again = tuple(stage.op.name for stage in found if stage.is_rounded_again)
    return f"{module}\nSTAGES = {names}\nWIDE = {wide}\nAGAIN = {again}\n"


def _staged(
    text: str,
    name: str,
    path: tuple[str, ...],
    apart: tuple[int, ...],
    own: tuple[int, ...],
    *,
    are_halves: bool,
) -> tuple[str, tuple[Stage, ...]]:
    """A module of stages, and these."""
    ops = checked(text, name)
    op, origin = op_of(text, name, path), origin_of(text, name, path)
    found = stages_of(op, apart, are_halves=are_halves, origin=origin)
    units = tuple(
        stage_unit(stage, own, (*path, stage_step(number, apart, are_halves)), text, ops)
        for number, stage in enumerate(found)
    )
    return torch_module.module_source(units, text, name), found


def kept_source(text: str, name: str, path: tuple[str, ...], names: tuple[str, ...]) -> str:
    """A module of the gradient at the end of a path that reads temporaries of the op before it, of
    these names, in place of computing them, see `passes.kept`.

    `KEPT` are those that it reads; where that is none, the module holds nothing else.
    """
    ops = checked(text, name)
    found, kept = of_kept(text, name, path, names)
    if not kept:
        return "KEPT = ()\n"
    one = unit(found, (*path, f"{KEPT}{JOINT.join(names)}"), text, ops)
    return f"{torch_module.module_source((one,), text, name)}\nKEPT = {kept}\n"


def keeping_source(text: str, name: str, path: tuple[str, ...], names: tuple[str, ...]) -> str:
    """A module of an op that gives temporaries of these names beside its outputs."""
    found = keeping(op_of(text, name, path), names)
    one = unit(found, (*path, f"{KEEPING}{JOINT.join(names)}"), text, checked(text, name))
    return torch_module.module_source((one,), text, name)


def operation(
    op: Op,
    path: tuple[str, ...] = (),
    text: str = "",
    name: str = "<notation>",
    ops: Mapping[str, Op] | None = None,
) -> Operation:
    """One op of the notation as something to call; `ops` are those of its file by name."""
    module = generated.load(_operation_source(op, path, text, name, ops or {}), name)
    found: Operation = module.FAMILY.operations[op.name]
    return found


def _operation_source(
    op: Op,
    path: tuple[str, ...],
    text: str,
    name: str,
    ops: Mapping[str, Op],
    leading: frozenset[str] = frozenset(),
) -> str:
    """A module of one op; `leading` are the sizes of leading dims that have one each."""
    return torch_module.module_source((unit(op, path, text, ops, leading),), text, name)
