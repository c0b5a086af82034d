"""The stages from spec text to a module, in order. Nothing else knows the order.

Those of loops consist of many passes, whose order `programs` knows.

text -> syntax -> notation -> adjoint -> loops -> threads -> cuda, module
                           -> tangent          -> rows -> c, module
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opgen import output
from opgen.emit import torch_module
from opgen.emit.c import c_source
from opgen.emit.cuda import cuda_text
from opgen.emit.unit import Unit
from opgen.errors import Source
from opgen.ir.certificate import Trials
from opgen.ir.notation import Op
from opgen.ir.show import show_file
from opgen.ir.show_loops import show_program
from opgen.lang.parse import parse
from opgen.lang.read import read
from opgen.passes.carried_totals import with_memory_of
from opgen.passes.certify import certificate
from opgen.passes.derive import derive, differentiable
from opgen.passes.differentiate import tangent
from opgen.passes.gather import gather
from opgen.passes.gathered_form import gathered_form
from opgen.passes.joined_dims import joined_dims
from opgen.passes.plain_products import with_plain_products
from opgen.passes.schedule import schedule
from opgen.paths import is_derived
from opgen.programs import along_rows, for_cpu, for_gpu, scheduled, threads
from opgen.units import forms, special_kernels, traits

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
    ops = tuple(map(with_plain_products, ops))
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
    all_traits = [traits(member.op, by_name) for member in members]
    specials = [
        special_kernels(*ops_of, cpu, gpu, by_name[member.path[0]])
        if len(member.path) <= 2
        else None  # gradients of gradients are large, and rarely what takes the time
        for ops_of, member, cpu, gpu in zip(computed, members, on_cpu, on_gpu, strict=True)
    ]
    public = (by_name[member.path[0]] for member in members)
    all_forms = zip(*map(forms, members, public), strict=True)
    joined = (joined_dims(op) for op, _ in computed)
    plain = map(with_memory_of, programs, on_cpu)
    units = tuple(
        map(Unit, members, plain, on_cpu, on_gpu, all_traits, specials, *all_forms, joined)
    )
    proved = certificate(members, fibres, trials)
    module = torch_module.module_source(units, source.text, source.name, proved, runtime)
    yield Stage("module", module, lambda: module)


def stage_text(source: Source, name: str) -> str:
    """One representation of a spec as text."""
    return next(stage for stage in stages(source) if stage.name == name).text()


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
    text = module_text(Source(source.text, spec.name), ORDERS, trials, runtime)
    if vendor:
        output.write_runtime(directory)
    output.write_module(target, text)
    return target


def module_text(
    source: Source, orders: int, trials: Trials | None = None, runtime: str | None = None
) -> str:
    """The last stage: the module of a spec, with derivatives up to an order; see `stages`."""
    *_, last = stages(source, orders, trials, runtime)
    return last.text()
