"""Chains of kernels as one CUDA function, see `opgen.passes.cuda_chains`."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace

from opgen.algebra.poly import poly
from opgen.emit.cuda_function import Function, Head, Helpers
from opgen.emit.cuda_sums import print_phase, stretched
from opgen.emit.function import Signature
from opgen.emit.names import function_name
from opgen.emit.reach import reach
from opgen.emit.templates import render
from opgen.emit.types import Types
from opgen.ir.loops import Chain, Program
from opgen.ir.sums import phase_of


@dataclass(frozen=True, slots=True)
class ChainFunction:
    """What `cuda_chain.cu.j2` prints. The parameters are those of all phases.

    It stands for `count` kernels from the one at `first` on, and has a block for each cell of so
    many axes.
    """

    name: str
    signature: Signature
    parameters: tuple[str, ...]
    phases: tuple[Function, ...]
    first: int
    count: int
    cells: int

    @property
    def text(self) -> str:
        """The CUDA source."""
        return render("cuda_chain.cu.j2", self)


def chain_function(chain: Chain, program: Program, types: Types, helpers: Helpers) -> ChainFunction:
    """The function of a chain. The helper functions that it calls join `helpers`."""
    found = [(phase, phase_of(phase, chain.cells, program.integers)) for phase in chain.phases]
    kernels = [stretched(phase, box, program) if box.box else phase for phase, box in found]
    # The ends of rows are compared with extents, which all phases have as parameters.
    rows = next(each for each in kernels if each.row is not None)
    last = chain.phases[-1]
    whole = replace(
        rows,
        name=chain.name,
        written=last.written,
        also=tuple(name for phase in chain.phases for name in phase.all_written),
        body=tuple(node for phase in (*kernels, *chain.phases) for node in phase.body),
    )
    head = Head.begin(whole, program)
    of_cells = head.magic(chain.cells[1:])
    magic = [head.magic(box.box[1:]) for _, box in found]
    head.parameters.end((*of_cells, *(name for each in magic for name in each)))
    phases = []
    for (phase, box), kernel, own in zip(found, kernels, magic, strict=True):
        emitter = head.emitter(kernel, types, helpers)
        print_phase(emitter, phase, chain.cells, box, (of_cells, own))
        points = functools.reduce(operator.mul, (axis.extent for axis in box.box), poly(1))
        extents = [axis.extent for axis in (*chain.cells, *box.box)]
        phases.append(head.function(kernel, emitter, extents, reach(phase) + points))
    return ChainFunction(
        function_name(chain.name),
        head.parameters.signature,
        tuple(head.parameters.declared),
        tuple(phases),
        chain.first,
        chain.count,
        len(chain.cells),
    )
