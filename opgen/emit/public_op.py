"""The function and the class of an op, as users of a module call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opgen.emit.names import python_names
from opgen.emit.python_text import call, dict_of, docstring, layout, number_text, quoted
from opgen.emit.shapes import dim_text
from opgen.ir.notation import Attribute, AttributeType, Op, Tensor


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


def public_op(op: Op, function: str, module: str, operation: str) -> PublicOp:
    """The texts of an op, for these names of its function, its class and its description."""
    # Where these are parameters, a function names the operation and `forward` names the function.
    own = python_names((tensor.name for tensor in op.inputs), (function, operation))
    tensors = list(own.values())
    names = python_names((each.name for each in op.attributes), (operation, *tensors))
    attributes = [names[attribute.name] for attribute in op.attributes]
    tensor_parameters = _tensor_parameters(op.inputs, tensors)
    keyword_parameters = [
        f"{name}: {_annotation(attribute)} = {default_text(attribute)}"
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


def default_text(attribute: Attribute) -> str:
    """What an attribute is where a call does not give it, as Python."""
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
