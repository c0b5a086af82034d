"""The generated module: sources, shape functions, descriptions, public functions and modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opgen.emit.c import c_source
from opgen.emit.c_entry import entry_name
from opgen.emit.certificate import certificate_text
from opgen.emit.cuda import cuda_kernels
from opgen.emit.names import python_names
from opgen.emit.python_text import (
    Group,
    Node,
    call,
    dict_of,
    docstring,
    layout,
    number_text,
    quoted,
    string,
    strings,
    tuple_of,
)
from opgen.emit.reach import index_reach
from opgen.emit.shapes import dim_text, shape_function
from opgen.emit.templates import comment, render
from opgen.emit.torch_eager import eager_function
from opgen.emit.types import Types
from opgen.ir.arrangement import Arrangement
from opgen.ir.certificate import Certificate
from opgen.ir.convolution import Convolution, Role
from opgen.ir.family import GradientLink, JoinedDims, Keepable, Member, Traits
from opgen.ir.loops import Fault, Operand, Program
from opgen.ir.matrix_product import MatrixProduct
from opgen.ir.notation import Attribute, AttributeType, Op, Tensor
from opgen.ir.show import show

Values = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class SpecialKernels:
    """Kernels for values of integers, None for one left open; see `runtime.description`.

    `programs` are those for the CPU, `on_gpu` those for threads of a GPU.
    """

    names: tuple[str, ...] = ()
    windows: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    lengths: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    programs: tuple[tuple[Values, Program], ...] = ()
    on_gpu: tuple[tuple[Values, Program], ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """An op of the module and its kernels: as they are, for the CPU, and for threads of a GPU."""

    member: Member
    program: Program
    on_cpu: Program
    on_gpu: Program
    traits: Traits
    special: SpecialKernels | None
    convolution: Convolution | None = None
    product: MatrixProduct | None = None
    apart: tuple[int, ...] = ()
    """Statements that are products by themselves, see `passes.stages`."""
    keepable: Keepable = field(default_factory=Keepable)
    """What may be kept for gradients."""
    joined: JoinedDims | None = None
    """Dims that kernels of the CPU may go through as one."""

    @property
    def op(self) -> Op:
        """The op."""
        return self.member.op

    @property
    def programs(self) -> tuple[Program, ...]:
        """Everything that a call may be computed by."""
        special = self.special or SpecialKernels()
        made = (program for _, program in (*special.programs, *special.on_gpu))
        return (self.program, self.on_cpu, self.on_gpu, *made)

    @property
    def of_gpu_alone(self) -> tuple[Operand, ...]:
        """Temporaries that kernels of the CPU have no use for."""
        names = {operand.name for operand in self.program.operands}
        return tuple(operand for operand in self.on_gpu.operands if operand.name not in names)

    @property
    def has_products(self) -> bool:
        """Whether some of its kernels are products of matrices."""
        return any(kernel.contraction for each in self._for_gpu for kernel in each.kernels)

    @property
    def has_chains(self) -> bool:
        """Whether some of its kernels have a chain."""
        return any(each.chains for each in self._for_gpu)

    @property
    def _for_gpu(self) -> tuple[Program, ...]:
        special = () if self.special is None else self.special.on_gpu
        return (self.on_gpu, *(program for _, program in special))


# ---------------------------------------------------------------------------- what is printed
@dataclass(frozen=True, slots=True)
class PublicOp:
    """An op of the spec as a function and a class."""

    signature: str
    docstring: str
    result: str
    module: str
    function: str
    constructor: str
    attributes: str
    forward: str
    forwarded: str


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


@dataclass(frozen=True, slots=True)
class Module:
    """What `torch_module.py.j2` prints."""

    docstring: str
    needs_math: bool
    typing: str
    runtime: str | None
    imports: tuple[str, ...]
    spec: str
    spec_name: str
    certificate: str
    public: tuple[PublicOp, ...]
    units: tuple[PrivateOp, ...]


def module_source(
    units: Sequence[Unit],
    spec: str,
    spec_name: str,
    certificate: Certificate | None = None,
    runtime: str | None = None,
) -> str:
    """The text of a module with these ops; spec ops first, in the order of the spec.

    It imports `opgen.runtime`, or the copy of it that lies beside the module as `runtime`.
    """
    public = [unit.op for unit in units if unit.member.is_public]
    functions = python_names(op.name for op in public)
    classes: dict[str, str] = {}
    for op in public:
        taken = (*functions.values(), *classes.values())
        classes[op.name] = python_names((_class_name(op.name),), taken)[_class_name(op.name)]
    operations = python_names(
        (f"_{unit.op.name}" for unit in units), (*functions.values(), *classes.values())
    )
    title = f"Generated by opgen from {spec_name}. Do not edit; edit the spec instead."
    private = tuple(_private(unit, operations[f"_{unit.op.name}"]) for unit in units)
    attributes = [attribute for op in public for attribute in op.attributes]
    choices = any(attribute.type is AttributeType.CHOICE for attribute in attributes)
    return render(
        "torch_module.py.j2",
        Module(
            string(title),
            any("math." in unit.shape_function for unit in private),
            "Any, Literal" if choices else "Any",
            runtime,
            _imports(units, any("checks." in unit.shape_function for unit in private)),
            string(spec),
            quoted(spec_name),
            "" if certificate is None else certificate_text(certificate),
            tuple(
                _public(op, functions[op.name], classes[op.name], operations[f"_{op.name}"])
                for op in public
            ),
            private,
        ),
    )


def _imports(units: Sequence[Unit], checks: bool) -> tuple[str, ...]:
    """What the module uses of the runtime."""
    used = {
        "Attribute": any(unit.op.attributes for unit in units),
        "Chain": any(unit.has_chains for unit in units),
        "Convolution": any(unit.convolution is not None for unit in units),
        "CudaKernels": True,
        "Family": True,
        "Fault": any(unit.program.faults for unit in units),
        "Gradient": any(unit.member.links for unit in units),
        "Input": any(unit.op.inputs for unit in units),
        "Launch": True,
        "Matrix": any(unit.has_products for unit in units),
        "MatrixProduct": any(unit.product is not None for unit in units),
        "Operation": True,
        "Output": True,
        "Phase": any(unit.has_chains for unit in units),
        "Product": any(unit.has_products for unit in units),
        "Shape": any(unit.op.inputs for unit in units),
        "Shapes": True,
        "Sources": True,
        "Special": any(unit.special is not None for unit in units),
        "Temporary": any(map(_temporaries, units)),
        "checks": checks,
        "eager": True,
    }
    return tuple(name for name, is_used in used.items() if is_used)


def _class_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Op"


# ---------------------------------------------------------------------------- functions
def _public(op: Op, function: str, module: str, operation: str) -> PublicOp:
    names = python_names(
        (*(tensor.name for tensor in op.inputs), *(each.name for each in op.attributes)),
        (function, module, operation),
    )
    tensors = [names[tensor.name] for tensor in op.inputs]
    attributes = [names[attribute.name] for attribute in op.attributes]
    tensor_parameters = _tensor_parameters(op.inputs, tensors)
    keyword_parameters = [
        f"{name}: {_annotation(attribute)} = {_default(attribute)}"
        for name, attribute in zip(attributes, op.attributes, strict=True)
    ]
    if keyword_parameters:
        keyword_parameters.insert(0, "*")
    returns = "Tensor"
    if len(op.outputs) != 1:
        returns = f"tuple[{', '.join('Tensor' for _ in op.outputs)}]"
    both = (*tensor_parameters, *keyword_parameters)
    return PublicOp(
        layout(call(function, both), before="def ", after=f" -> {returns}:"),
        docstring(_documentation(op), "    "),
        layout(call(f"{operation}.call", (*tensors, *attributes)), "    ", "return "),
        module,
        function,
        layout(call("__init__", ("self", *keyword_parameters)), "    ", "def ", " -> None:"),
        layout(
            dict_of({name: name for name in attributes}),
            " " * 8,
            "self.attributes: dict[str, Any] = ",
        ),
        layout(
            call("forward", ("self", *tensor_parameters)),
            "    ",
            "def ",
            f" -> {returns}:",
        ),
        layout(call(function, (*tensors, "**self.attributes")), " " * 8, "return "),
    )


def _tensor_parameters(inputs: Sequence[Tensor], names: Sequence[str]) -> list[str]:
    """Parameters of the inputs. After an optional one every parameter needs a default."""
    out: list[str] = []
    optional = False
    for name, tensor in zip(names, inputs, strict=True):
        optional = optional or tensor.default is not None
        out.append(f"{name}: Tensor | None = None" if optional else f"{name}: Tensor")
    return out


def _annotation(attribute: Attribute) -> str:
    match attribute.type:
        case AttributeType.INT | AttributeType.SIZE:
            single = "int"
        case AttributeType.FLOAT:
            single = "float"
        case AttributeType.BOOL:
            single = "bool"
        case AttributeType.CHOICE:
            single = f"Literal[{', '.join(map(quoted, attribute.choices))}]"
    if attribute.length is not None:
        single += f" | tuple[{', '.join([single] * attribute.length)}]"
    return single if attribute.default is not None else f"{single} | None"


def _default(attribute: Attribute) -> str:
    if isinstance(attribute.default, float):
        return number_text(attribute.default)
    if isinstance(attribute.default, str):
        return quoted(attribute.default)
    return repr(attribute.default)


def _documentation(op: Op) -> str:
    """The doc comment of the op, then its tensors with their shapes."""
    lines = [op.doc.strip() or f"The op `{op.name}`.", "", "Shapes:"]
    for tensor in op.inputs:
        shape = f"[{', '.join(map(dim_text, tensor.dims))}]"
        default = "" if tensor.default is None else f", optional, {tensor.default:g} if absent"
        lines.append(f"    {tensor.name}{shape}{_dtype_text(tensor)}{default}")
    for tensor in op.outputs:
        shape = f"[{', '.join(map(dim_text, tensor.dims))}]"
        lines.append(f"    returns {tensor.name}{shape}{_dtype_text(tensor)}")
    if op.lets:
        lines += ["", "where:"]
        lines += [f"    {let.name} = {let.text or let.value}" for let in op.lets]
    return "\n".join(lines)


def _dtype_text(tensor: Tensor) -> str:
    return "" if tensor.dtype.value == "same" else f": {tensor.dtype.value}"


# ---------------------------------------------------------------------------- operations
def _private(unit: Unit, operation: str) -> PrivateOp:
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
        temporaries=tuple_of(_temporaries(unit), tall=True),
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


def _temporaries(unit: Unit) -> list[Node]:
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
        default=None if attribute.default is None else _default(attribute),
        choices=strings(attribute.choices) if attribute.choices else None,
        length=None if attribute.length is None else str(attribute.length),
    )


def _fault(fault: Fault) -> Group:
    return call("Fault", (quoted(fault.tensor), str(fault.axis), quoted(fault.access)))


def _gradient(link: GradientLink) -> Group:
    return call("Gradient", (quoted(link.op), strings(link.tensors)))
