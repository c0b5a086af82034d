"""One op with all that its module needs: programs for both devices, and what is known of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from opgen.emit.unit import SpecialKernels, Unit
from opgen.ir.convolution import Convolution
from opgen.ir.family import Keepable, Member, Traits
from opgen.ir.loops import Program
from opgen.ir.matrix_product import MatrixProduct
from opgen.ir.notation import Op
from opgen.passes.carried_totals import with_memory_of
from opgen.passes.convolution import convolution
from opgen.passes.fingerprint import fingerprint
from opgen.passes.independence import linear_inputs, parallel_axes
from opgen.passes.joined_dims import joined_dims
from opgen.passes.kept import keepable
from opgen.passes.matrix_product import matrix_product
from opgen.passes.specialise import (
    attributes_of,
    counts_of,
    default_values,
    factors_of,
    lengths_of,
    rows_of_points,
    sizes_of_products,
    windows_of,
)
from opgen.passes.stages import Stage, products_of
from opgen.passes.unclamp import unclamped
from opgen.paths import begin, is_derived
from opgen.programs import (
    along_rows,
    for_cpu,
    for_gpu,
    for_values,
    scheduled,
    threads,
    window_sizes,
)
from opgen.runtime.description import KEEPING, KEPT, STAGE


def traits(op: Op, ops: Mapping[str, Op]) -> Traits:
    """What the module tells about an op; `ops` are all ops of the file by name."""
    return Traits(fingerprint(op, ops), parallel_axes(op), linear_inputs(op))


def special_kernels(
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
    names = () if program.faults else attributes_of(op)
    taken = set(leading)
    sizes = []
    windows = window_sizes(op, public)
    # Gradients have rows of their own: those of the result, which are inputs to them.
    both = (public, op)
    rows = dict.fromkeys(name for each in both for name in rows_of_points(each))
    multiplied = frozenset[str]().union(*map(sizes_of_products, both))
    rows_of_both = dict.fromkeys(name for each in both for name in lengths_of(each))
    rows_of_both |= dict.fromkeys(name for name in rows if name not in multiplied)
    factors = factors_of(public)
    if program.faults:
        windows, factors = (), ()  # rows alone were tried
    # Kernels of products take any size, but for one that leaves nothing to be multiplied.
    factors = tuple(dict.fromkeys((*factors, *(name for name in rows if name in multiplied))))
    for found in (windows, rows_of_both, factors):
        sizes.append(tuple(n for n in found if n in program.integers and n not in taken))
        taken.update(found)
    windows, lengths, factors = sizes
    if program.faults and not lengths and not factors:
        return None
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


def stage_unit(
    stage: Stage,
    own: Collection[int],
    path: tuple[str, ...],
    text: str,
    ops: Mapping[str, Op],
) -> Unit:
    """A stage of an op; see `opgen.on_demand.stages_source`."""
    op = stage.op
    if stage.statement is None or stage.statement in own:
        return replace(unit(op, path, text, ops), apart=())
    member, plain = Member(op, path, ()), scheduled(op)
    found = forms(member, _public(member, ops))
    return Unit(member, plain, plain, plain, traits(op, ops), None, *found)


def unit(
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
    public = _public(member, ops)
    kernels = None  # without a spec nothing can be made later
    if text and len([step for step in member.path if step[0] not in (STAGE, KEEPING, KEPT)]) <= 2:
        kernels = special_kernels(cpu_op, gpu_op, on_cpu, on_gpu, public, leading)
    about = traits(op, ops), kernels, *forms(member, public), joined_dims(cpu_op)
    return Unit(member, with_memory_of(program, on_cpu), on_cpu, on_gpu, *about)


def _public(member: Member, ops: Mapping[str, Op]) -> Op:
    """The op of the spec that one was derived from."""
    return ops.get(begin(member.path)[0], member.op)


def forms(
    member: Member, public: Op
) -> tuple[Convolution | None, MatrixProduct | None, tuple[int, ...], Keepable]:
    """An op as a convolution, and as a product of matrices; if it is neither, which statements are,
    and what may be kept of an op of the spec. The `public` one knows what a window is.

    The result of a gradient is what flows back, the last input: those of image and weight are one
    call of the library if both see it so. That of an op of the spec, and of its stages, is what it
    computes.
    """
    op = member.op
    results = op.inputs[-1:] if is_derived(member.path) else op.outputs[:1]
    found = convolution(op, "".join(each.name for each in results), windows_of(public))
    product = matrix_product(op)
    if found or product:
        return found, product, (), Keepable()
    if member.is_public:
        return found, product, products_of(op), keepable(op)
    apart = products_of(op)
    # Gradients that share nothing are one op where kernels that compute both at once are faster.
    is_pair = len(apart) == len(op.statements) == len(op.outputs)
    return found, product, () if is_pair else apart, Keepable()
