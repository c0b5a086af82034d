"""The stages from spec text to a module, in order. Nothing else knows the order.

Those of loops consist of many passes, whose order `programs` knows.

text -> syntax -> notation -> adjoint -> loops -> threads -> cuda, module
                           -> tangent          -> rows -> c, module
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from opgen import output
from opgen.emit import torch_module
from opgen.emit.c import c_source
from opgen.emit.cuda import cuda_kernels, cuda_text
from opgen.emit.torch_module import SpecialKernels, Unit
from opgen.errors import OpgenError, Source
from opgen.ir.certificate import Trials
from opgen.ir.convolution import Convolution
from opgen.ir.family import JOINT, Keepable, Member, Traits
from opgen.ir.loops import Program
from opgen.ir.matrix_product import MatrixProduct
from opgen.ir.notation import Op
from opgen.ir.show import show_file
from opgen.ir.show_loops import show_program
from opgen.lang.parse import parse
from opgen.lang.read import read
from opgen.passes.certify import certificate
from opgen.passes.convolution import convolution
from opgen.passes.cuda_unrounded import unrounded as rounding_inputs
from opgen.passes.derive import derive, differentiable, joint, sources
from opgen.passes.differentiate import derivative, tangent
from opgen.passes.fingerprint import fingerprint
from opgen.passes.gather import gather
from opgen.passes.gathered_form import gathered_form
from opgen.passes.independence import linear_inputs, parallel_axes
from opgen.passes.joined_dims import joined_dims
from opgen.passes.kept import keepable, keeping
from opgen.passes.matrix_product import matrix_product
from opgen.passes.relayout import Orders
from opgen.passes.schedule import schedule
from opgen.passes.specialise import (
    attributes_of,
    counts_of,
    default_values,
    factors_of,
    lengths_of,
    specialise,
    windows_of,
)
from opgen.passes.stages import Stage as OpStage
from opgen.passes.stages import products_of
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
from opgen.programs import (
    along_rows,
    for_cpu,
    for_gpu,
    for_values,
    scheduled,
    special_along_rows,
    special_threads,
    threads,
    window_sizes,
)
from opgen.runtime import Operation, generated
from opgen.runtime.description import KEEPING, KEPT, STAGE

ORDERS = 2
"""How many times the ops of a written module are differentiated."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One representation of a spec. `text` prints it."""

    name: str
    value: object
    text: Callable[[], str]


STAGES = (
    "syntax",
    "notation",
    "adjoint",
    "tangent",
    "loops",
    "rows",
    "c",
    "threads",
    "cuda",
    "module",
)
"""The names of the stages, in order."""


def stages(
    source: Source, orders: int = ORDERS, trials: Trials | None = None, runtime: str | None = None
) -> Iterator[Stage]:
    """Every representation of a spec, in order; raises OpgenError where the spec is at fault.

    `trials` are property tests that passed, for the module's certificate. `runtime` is the package
    beside the module that it imports, if it is not `opgen.runtime`.
    """
    tree = parse(source)
    yield Stage("syntax", tree, lambda: f"{tree}\n")
    ops = check_source(source)
    yield Stage("notation", ops, lambda: show_file(ops))
    members = derive(ops, orders)
    derived = tuple(member.op for member in members if not member.is_public)
    yield Stage("adjoint", members, lambda: show_file(map(gathered_form, derived)))
    yield Stage("tangent", ops, lambda: show_file(map(_tangent, ops)))
    fibres = tuple(gather(member.op) for member in members)
    computed = [
        (for_cpu(member.op, is_derived(member.path)), for_gpu(member.op)) for member in members
    ]
    programs = tuple(
        schedule(op, gathered if op is member.op else gather(op))
        for (op, _), member, gathered in zip(computed, members, fibres, strict=True)
    )
    yield Stage("loops", programs, lambda: "\n".join(map(show_program, programs)))
    on_cpu = tuple(
        along_rows(op, program) for program, (op, _) in zip(programs, computed, strict=True)
    )
    yield Stage("rows", on_cpu, lambda: "\n".join(map(show_program, on_cpu)))
    yield Stage("c", on_cpu, lambda: "\n".join(map(c_source, on_cpu)))
    on_gpu = tuple(
        threads(op, program if op is other else scheduled(op))
        for program, (other, op) in zip(programs, computed, strict=True)
    )
    yield Stage("threads", on_gpu, lambda: "\n".join(map(show_program, on_gpu)))
    yield Stage("cuda", on_gpu, lambda: "\n".join(map(cuda_text, on_gpu)))
    by_name = {op.name: op for op in ops}
    traits = [_traits(member.op, by_name) for member in members]
    specials = [
        _special_kernels(*ops_of, cpu, gpu, by_name[member.path[0]])
        if len(member.path) <= 2
        else None  # gradients of gradients are large, and rarely what takes the time
        for ops_of, member, cpu, gpu in zip(computed, members, on_cpu, on_gpu, strict=True)
    ]
    forms = zip(*map(_forms, members), strict=True)
    joined = (joined_dims(op) for op, _ in computed)
    units = tuple(map(Unit, members, programs, on_cpu, on_gpu, traits, specials, *forms, joined))
    proved = certificate(members, fibres, trials)
    module = torch_module.module_source(units, source.text, source.name, proved, runtime)
    yield Stage("module", module, lambda: module)


def stage_text(source: Source, name: str) -> str:
    """One representation of a spec as text."""
    return next(stage for stage in stages(source) if stage.name == name).text()


def _traits(op: Op, ops: Mapping[str, Op]) -> Traits:
    """What the module tells about an op; `ops` are all ops of the file by name."""
    return Traits(fingerprint(op, ops), parallel_axes(op), linear_inputs(op))


def _special_kernels(
    op: Op,
    gpu_op: Op,
    program: Program,
    on_gpu: Program,
    public: Op,
    leading: frozenset[str] = frozenset(),
) -> SpecialKernels | None:
    """What the op's kernels can be made for, and those for default attributes.

    The op is given as it is for the CPU, and as it is for a GPU. `public` is the op of the spec
    that it was derived from: it knows what a window is. None are made for the `leading` sizes.
    """
    if program.faults:
        return None  # faults are numbered, and each program numbers its own
    names = attributes_of(op)
    taken = set(leading)
    sizes = []
    windows = window_sizes(op, public)
    # Gradients have rows of their own: those of the result, which are inputs to them.
    rows_of_both = dict.fromkeys((*lengths_of(public), *lengths_of(op)))
    for found in (windows, rows_of_both, factors_of(public)):
        sizes.append(tuple(n for n in found if n in program.integers and n not in taken))
        taken.update(found)
    windows, lengths, factors = sizes
    counts = tuple(name for name in counts_of(public) if name in names)
    kernels = SpecialKernels(names, windows, factors, lengths, counts)
    defaults = default_values(op)
    if not names or defaults is None:
        return kernels
    fixed = {n: value for n, value in defaults.items() if n not in counts or value == 1}
    attributes = (fixed.get(name) for name in names)
    values = (*attributes, *(None for _ in (*windows, *factors, *lengths)), None)
    return replace(
        kernels,
        programs=((values, for_values(op, program, fixed, along_rows)),),
        on_gpu=((values, for_values(gpu_op, on_gpu, fixed, threads, unclamped)),),
    )


def _tangent(op: Op) -> Op:
    """The derivative along all inputs that have one."""
    return tangent(op, tuple(tensor.name for tensor in differentiable(op))).op


def read_source(path: str | os.PathLike[str]) -> Source:
    """The text of a spec file, under the name it is shown with; OSError, or NotTextError."""
    return Source.of_file(path)


def check_source(source: Source) -> tuple[Op, ...]:
    """The ops of a spec, proved; raises OpgenError with every fault."""
    return read(source)


# ---------------------------------------------------------------------------- products
def build(
    path: str | os.PathLike[str],
    out_dir: str | os.PathLike[str] = "generated",
    trials: Trials | None = None,
    *,
    vendor: bool = False,
) -> Path:
    """Write the module of a spec file, with derivatives up to order two, into a directory.

    `trials` are property tests that passed, for the module's certificate. With `vendor` a copy of
    the runtime is written beside it, so that the module works where opgen is not installed. OSError
    if a file is in the way that opgen did not write.
    """
    spec, directory = Path(path), Path(out_dir)
    source = read_source(path)
    target = output.module_path(spec, directory)
    runtime = output.runtime_package() if vendor else None
    # The name alone: the same spec gives the same bytes wherever it lies.
    text = _module_text(Source(source.text, spec.name), ORDERS, trials, runtime)
    if vendor:
        output.write_runtime(directory)
    output.write_module(target, text)
    return target


def _module_text(
    source: Source, orders: int, trials: Trials | None = None, runtime: str | None = None
) -> str:
    *_, last = stages(source, orders, trials, runtime)
    return last.text()


# ---------------------------------------------------------------------------- derivatives on demand
def module_source(text: str, name: str) -> str:
    """The module of a spec without derivatives."""
    return _module_text(Source(text, name), orders=0)


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
) -> tuple[str, tuple[OpStage, ...]]:
    """A module of stages, and these."""
    ops = checked(text, name)
    op, origin = op_of(text, name, path), origin_of(text, name, path)
    found = stages_of(op, apart, are_halves=are_halves, origin=origin)
    units = tuple(
        _stage_unit(stage, own, (*path, stage_step(number, apart, are_halves)), text, ops)
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
    unit = _unit(found, (*path, f"{KEPT}{JOINT.join(names)}"), text, ops)
    return f"{torch_module.module_source((unit,), text, name)}\nKEPT = {kept}\n"


def keeping_source(text: str, name: str, path: tuple[str, ...], names: tuple[str, ...]) -> str:
    """A module of an op that gives temporaries of these names beside its outputs."""
    found = keeping(op_of(text, name, path), names)
    unit = _unit(found, (*path, f"{KEEPING}{JOINT.join(names)}"), text, checked(text, name))
    return torch_module.module_source((unit,), text, name)


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
    return torch_module.module_source((_unit(op, path, text, ops, leading),), text, name)


def _stage_unit(
    stage: OpStage,
    own: Collection[int],
    path: tuple[str, ...],
    text: str,
    ops: Mapping[str, Op],
) -> Unit:
    """A stage of an op; see `stages_source`."""
    op = stage.op
    if stage.statement is None or stage.statement in own:
        return replace(_unit(op, path, text, ops), apart=())
    member, plain = Member(op, path, ()), scheduled(op)
    return Unit(member, plain, plain, plain, _traits(op, ops), None, *_forms(member))


def _unit(
    op: Op,
    path: tuple[str, ...],
    text: str,
    ops: Mapping[str, Op],
    leading: frozenset[str] = frozenset(),
) -> Unit:
    """One op of a module."""
    member = Member(op, path or (op.name,), ())
    cpu_op, gpu_op = for_cpu(op, is_derived(member.path)), for_gpu(op)
    program = scheduled(cpu_op)
    on_cpu, on_gpu = along_rows(cpu_op, program), threads(gpu_op, scheduled(gpu_op))
    kernels = None  # without a spec nothing can be made later
    if text and len([step for step in member.path if step[0] not in (STAGE, KEEPING, KEPT)]) <= 2:
        public = ops.get(begin(member.path)[0], op)
        kernels = _special_kernels(cpu_op, gpu_op, on_cpu, on_gpu, public, leading)
    about = _traits(op, ops), kernels, *_forms(member), joined_dims(cpu_op)
    return Unit(member, program, on_cpu, on_gpu, *about)


def _forms(
    member: Member,
) -> tuple[Convolution | None, MatrixProduct | None, tuple[int, ...], Keepable]:
    """An op as a convolution, and as a product of matrices; if it is neither, which statements are,
    and what may be kept of an op of the spec.

    The result of a gradient is what flows back, the last input: those of image and weight are one
    call of the library if both see it so.
    """
    op = member.op
    results = op.outputs[:1] if member.is_public else op.inputs[-1:]
    found = convolution(op, "".join(each.name for each in results))
    product = matrix_product(op)
    if found or product:
        return found, product, (), Keepable()
    if member.is_public:
        return found, product, products_of(op), keepable(op)
    apart = products_of(op)
    # Gradients that share nothing are one op where kernels that compute both at once are faster.
    is_pair = len(apart) == len(op.statements) == len(op.outputs)
    return found, product, () if is_pair else apart, Keepable()
