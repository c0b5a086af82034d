"""The parameters of a CUDA kernel, and the names that they have in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opgen.emit.c_layout import wrapped
from opgen.emit.cuda_printer import INDEX
from opgen.emit.expression import Names
from opgen.emit.function import Signature, declare_names, pointer, strides_of
from opgen.emit.names import CNames
from opgen.ir.loops import Kernel, Program


@dataclass
class Parameters:
    """Declarations of parameters, what they are called, and the integers narrowed to indices.

    All integers are passed in 64 bits.
    """

    signature: Signature
    scope: CNames
    names: Names
    declared: list[str] = field(default_factory=list)
    narrowed: list[str] = field(default_factory=list)

    @classmethod
    def begin(
        cls, signature: Signature, kernel: Kernel, program: Program, scope: CNames
    ) -> Parameters:
        """Those for tensors."""
        found = cls(signature, scope, declare_names(signature, program, scope))
        for name in signature.tensors:
            group = [pointer(program.operand(name), kernel, found.names, "__restrict__")]
            strides = found.integers(strides_of(name, program, found.names))
            found.declared += wrapped([*group, *strides])
        return found

    def integers(self, group: Sequence[str]) -> list[str]:
        """Declarations of integers that are narrowed to indices of these names."""
        given = [self.scope.fresh(f"{name}_arg") for name in group]
        self.narrowed.extend(f"{name} = {wide}" for name, wide in zip(group, given, strict=True))
        return [f"int64_t {name}" for name in given]

    def magic(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Names for the numbers with which `quotient` divides by the extents of axes."""
        return tuple(self.scope.fresh(f"{name}_magic") for name in axes)

    def end(self, magic: Sequence[str], more: Sequence[str] = ()) -> None:
        """Those behind the tensors: integers, numbers, what it divides by, `more`."""
        group = self.integers([self.names.symbols[name] for name in self.signature.integers])
        group += [f"double {self.names.numbers[name]}" for name in self.signature.numbers]
        group += [f"int64_t {name}" for name in magic]
        group += [*more, *(["int64_t *fault"] if self.signature.faults else [])]
        self.declared += wrapped(group)

    @property
    def narrowing(self) -> tuple[str, ...]:
        """The statement that narrows the integers."""
        if not self.narrowed:
            return ()
        text = ",\n        ".join(wrapped(self.narrowed, 84))
        return tuple(f"    const {INDEX} {text};".split("\n"))
