"""An op as the runtime knows it: its description, and the sources of its kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opgen.emit.c import c_source
from opgen.emit.c_entry import entry_name
from opgen.emit.cuda import cuda_kernels
from opgen.emit.public_op import default_text
from opgen.emit.python_text import (
    Group,
    Node,
    call,
    dict_of,
    layout,
    number_text,
    quoted,
    string,
    strings,
    tuple_of,
)
from opgen.emit.reach import index_reach
from opgen.emit.shapes import dim_text, shape_function
from opgen.emit.templates import comment
from opgen.emit.torch_eager import eager_function
from opgen.emit.types import Types
from opgen.emit.unit import SpecialKernels, Unit, Values
from opgen.ir.arrangement import Arrangement
from opgen.ir.convolution import Convolution, Role
from opgen.ir.family import GradientLink, JoinedDims
from opgen.ir.loops import Fault, Program
from opgen.ir.matrix_product import MatrixProduct
from opgen.ir.notation import Attribute, Op, Tensor
from opgen.ir.show import show


@dataclass(frozen=True, slots=True)
class PrivateOp:
    """An op as an `Operation` with its sources."""

    title: str
    notation: tuple[str, ...]
    shape_function: str
    eager_function: str
    c_name: str
    c_source: str
    special: tuple[tuple[str, str], ...]
    cuda: str
    operation: str


def private_op(unit: Unit, operation: str) -> PrivateOp:
    """The texts of a unit, whose description is called `operation`."""
    op, program = unit.op, unit.program
    shapes, eager = f"{operation}_shapes", f"{operation}_eager"
    c_name, cuda_name = f"{operation}_c".upper(), f"{operation}_cuda"
    made = unit.special or SpecialKernels()
    special = {
        f"{operation}_c_{number}".upper(): c_source(each, unit.on_cpu)
        for number, (_, each) in enumerate(made.programs, start=1)
    }
    special_cuda = {
        f"{cuda_name}_{number}": cuda_kernels(each, f"{cuda_name}_{number}", unit.on_gpu)
        for number, (_, each) in enumerate(made.on_gpu, start=1)
    }
    cuda = [cuda_kernels(unit.on_gpu, cuda_name), *special_cuda.values()]
    description = call(
        "Operation",
        (),
        name=quoted(op.name),
        digest=quoted(unit.traits.digest),
        path=strings(unit.member.path),
        family="FAMILY",
        inputs=tuple_of([_input(tensor) for tensor in op.inputs], tall=True),
        attributes=tuple_of([_attribute(each) for each in op.attributes], tall=True),
        outputs=tuple_of([_output(tensor) for tensor in op.outputs], tall=True),
        temporaries=tuple_of(temporaries(unit), tall=True),
        shapes=shapes,
        reach=_reach(unit),
        eager=eager,
        sources=call("Sources", (c_name, quoted(entry_name(program)))),
        cuda=cuda_name,
        floating=repr(Types(program).is_floating),
        faults=tuple_of([_fault(fault) for fault in program.faults], tall=True),
        gradients=dict_of({link.input: _gradient(link) for link in unit.member.links}, tall=True),
        parallel=tuple_of(
            [dict_of({name: str(axis) for name, axis in axes}) for axes in unit.traits.parallel]
        ),
        linear=tuple_of([strings(names) for names in unit.traits.linear]),
        special=_special(unit.special, special, special_cuda),
        convolution=_convolution(unit.convolution),
        product=_matrix_product(unit.product),
        apart=tuple_of(list(map(str, unit.apart))) if unit.apart else None,
        totals=strings(unit.keepable.totals) if unit.keepable.totals else None,
        positions=strings(unit.keepable.positions) if unit.keepable.positions else None,
        telling=strings(unit.keepable.telling) if unit.keepable.telling else None,
        joined=None if unit.joined is None else _joined(unit.joined),
    )
    return PrivateOp(
        comment(" ".join(unit.member.path))[0],
        () if unit.member.is_public else _notation(op),
        shape_function(
            op, program, shapes, unit.convolution, unit.product, unit.of_gpu_alone
        ).rstrip(),
        eager_function(op, eager).rstrip(),
        c_name,
        string(c_source(unit.on_cpu)),
        tuple((name, string(text)) for name, text in special.items()),
        "\n\n".join(text.rstrip() for text in cuda),
        layout(call("FAMILY.add", (description,)), before=f"{operation} = "),
    )


def _joined(found: JoinedDims) -> Group:
    places = {name: str(place) for name, place in found.places}
    return tuple_of([strings(found.sizes), dict_of(places)])


def _reach(unit: Unit) -> Group:
    """What no index exceeds, as the counts of products of integers."""
    terms = index_reach(unit.programs).terms.items()
    products = [(strings(sorted(atom.name for atom in monomial)), n) for monomial, n in terms]
    return tuple_of([tuple_of((str(count), names)) for names, count in products])


def _notation(op: Op) -> tuple[str, ...]:
    """A derived op as spec text, for a comment."""
    try:
        return comment(show(op))
    except AssertionError:  # not every op of the notation can be written in a spec
        return ()


def _input(tensor: Tensor) -> Group:
    return call(
        "Input",
        (quoted(tensor.name), strings([dim_text(dim) for dim in tensor.dims])),
        dtype=None if tensor.dtype.value == "same" else quoted(tensor.dtype.value),
        default=None if tensor.default is None else number_text(float(tensor.default)),
        nograd="True" if tensor.nograd else None,
    )


def _output(tensor: Tensor) -> Group:
    dtype = None if tensor.dtype.value == "same" else quoted(tensor.dtype.value)
    batched = "True" if tensor.batched else None
    return call("Output", (quoted(tensor.name),), dtype=dtype, batched=batched)


def _special(
    special: SpecialKernels | None, sources: Iterable[str], cuda: Iterable[str]
) -> Group | None:
    if special is None:
        return None

    def pairs(programs: Iterable[tuple[Values, Program]], names: Iterable[str]) -> Group | None:
        found = [
            tuple_of((tuple_of([repr(value) for value in values]), name))
            for (values, _), name in zip(programs, names, strict=True)
        ]
        return tuple_of(found) if found else None

    return call(
        "Special",
        (strings(special.names), strings(special.windows)),
        factors=strings(special.factors) if special.factors else None,
        lengths=strings(special.lengths) if special.lengths else None,
        counts=strings(special.counts) if special.counts else None,
        sources=pairs(special.programs, sources),
        cuda=pairs(special.on_gpu, cuda),
    )


def _convolution(found: Convolution | None) -> Group | None:
    if found is None:
        return None
    names = {role: getattr(found, role.value) for role in Role}
    orders: dict[str, Node] = {name: _order(each) for name, each in found.arrangements.items()}
    return call(
        "Convolution",
        [quoted(name) for name in (names[found.target], *names.values())],
        bias=None if found.bias is None else quoted(found.bias),
        orders=dict_of(orders) if orders else None,
    )


def _matrix_product(found: MatrixProduct | None) -> Group | None:
    if found is None:
        return None
    orders = [_order(each.arrangement) for each in found.operands]
    return call(
        "MatrixProduct",
        (quoted(found.left.tensor), quoted(found.right.tensor), tuple_of(orders)),
        bias=None if found.bias is None else quoted(found.bias.tensor),
    )


def _order(arrangement: Arrangement) -> Group:
    return tuple_of([tuple_of([str(part) for part in dim]) for dim in arrangement.order])


def temporaries(unit: Unit) -> list[Node]:
    """What is declared of temporaries, those of the CPU and those of a GPU."""
    program = unit.program
    workspaces = (*unit.on_gpu.workspaces, *program.workspaces)
    outputs = {workspace.name: workspace.output for workspace in workspaces}
    shared = {operand.name for operand in unit.on_gpu.operands}
    alone = unit.of_gpu_alone
    return [
        call(
            "Temporary",
            (quoted(operand.name),),
            dtype=None if operand.dtype.value == "same" else quoted(operand.dtype.value),
            workspace_of=quoted(outputs[operand.name]) if operand.name in outputs else None,
            cpu_only=None if operand.name in shared else "True",
            gpu_only="True" if operand in alone else None,
        )
        for operand in (*program.operands, *alone)
        if operand.widened
    ]


def _attribute(attribute: Attribute) -> Group:
    return call(
        "Attribute",
        (quoted(attribute.name), quoted(attribute.type.value)),
        default=None if attribute.default is None else default_text(attribute),
        choices=strings(attribute.choices) if attribute.choices else None,
        length=None if attribute.length is None else str(attribute.length),
    )


def _fault(fault: Fault) -> Group:
    return call("Fault", (quoted(fault.tensor), str(fault.axis), quoted(fault.access)))


def _gradient(link: GradientLink) -> Group:
    return call("Gradient", (quoted(link.op), strings(link.tensors)))
