"""An op of a module with its kernels: what the text of the module is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from opgen.ir.convolution import Convolution
from opgen.ir.family import JoinedDims, Keepable, Member, Traits
from opgen.ir.loops import Operand, Program
from opgen.ir.matrix_product import MatrixProduct
from opgen.ir.notation import Op

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
