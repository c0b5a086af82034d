"""The parameters of a CUDA kernel, and the names that they have in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opgen.emit.c_layout import wrapped
from opgen.emit.cuda_printer import INDEX
from opgen.emit.expression import Names
from opgen.emit.function import Signature, declare_names, pointer, strides_of
from opgen.emit.names import CNames
from opgen.ir.loops import Kernel, Program


@dataclass(frozen=True, slots=True)
class Parameters:
    """Declarations of parameters, the statement that narrows integers to indices, and names.

    `magic` are those of the numbers with which `quotient` divides.
    """

    declared: tuple[str, ...]
    narrowing: tuple[str, ...]
    names: Names
    magic: tuple[str, ...]


def declare_parameters(
    signature: Signature,
    kernel: Kernel,
    program: Program,
    scope: CNames,
    divided: Sequence[str],
) -> Parameters:
    """The parameters of a kernel, with one more for each axis that it divides by the extent of.

    All integers are passed in 64 bits.
    """
    names = declare_names(signature, program, scope)
    declared: list[str] = []
    narrowed: list[str] = []

    def integers(group: Sequence[str]) -> list[str]:
        given = [scope.fresh(f"{name}_arg") for name in group]
        narrowed.extend(f"{name} = {wide}" for name, wide in zip(group, given, strict=True))
        return [f"int64_t {name}" for name in given]

    for name in signature.tensors:
        group = [pointer(program.operand(name), kernel, names, "__restrict__")]
        declared += wrapped([*group, *integers(strides_of(name, program, names))])
    magic = tuple(scope.fresh(f"{name}_magic") for name in divided)
    group = integers([names.symbols[name] for name in signature.integers])
    group += [f"double {names.numbers[name]}" for name in signature.numbers]
    group += [f"int64_t {name}" for name in magic]
    group += ["int64_t *fault"] if signature.faults else []
    declared += wrapped(group)
    narrowing: tuple[str, ...] = ()
    if narrowed:
        text = ",\n        ".join(wrapped(narrowed, 84))
        narrowing = tuple(f"    const {INDEX} {text};".split("\n"))
    return Parameters(tuple(declared), narrowing, names, magic)
