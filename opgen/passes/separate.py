"""An op of several outputs as ops of one output each, and their programs as one again.

The gradients of an op for several of its inputs are one op where a backward pass wants them all.
Its outputs need not have anything to do with each other. Passes that make kernels for planes, for
images with a border, or for blocks look at programs of one output, so each output has its own
program for as long as these run. What both read is then the business of `passes.guests`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opgen.ir.loops import Program
from opgen.ir.notation import Op, Statement, Tensor, reads


def separated(op: Op) -> tuple[Op, ...]:
    """The op for each of its outputs; just the op itself where they have anything in common, be it
    a temporary, or one is read for another."""
    needed = [_needed(op, tensor) for tensor in op.outputs]
    if len(needed) < 2 or len(frozenset[str]().union(*needed)) < sum(map(len, needed)):
        return (op,)
    return tuple(
        replace(
            op,
            outputs=(tensor,),
            temporaries=tuple(each for each in op.temporaries if each.name in names),
            statements=tuple(s for s in op.statements if s.target.tensor in names),
        )
        for tensor, names in zip(op.outputs, needed, strict=True)
    )


def _needed(op: Op, output: Tensor) -> frozenset[str]:
    """An output, and all other tensors that statements write from which it is computed."""
    written = {statement.target.tensor for statement in op.statements}
    found = frozenset((output.name,))
    while True:
        own = (statement for statement in op.statements if statement.target.tensor in found)
        more = found.union(*map(_tensors_read, own)) & written | found
        if more == found:
            return found
        found = more


def _tensors_read(statement: Statement) -> frozenset[str]:
    accesses = tuple(reads(statement.body))
    values = [index.value for each in (*accesses, statement.target) for index in each.indices]
    values += [guard.value for guard in statement.guards]
    loaded = (atom.name for value in values for atom in value.loads)
    return frozenset((*(access.tensor for access in accesses), *loaded))


def rejoined(program: Program, parts: Sequence[Program]) -> Program:
    """The program of all outputs with the kernels of the programs of each; as it was if they clash.

    They do where own tensors of the same name differ, and where faults or wide copies, which are
    numbered and named for the whole, are in play.
    """
    kernels = tuple(kernel for part in parts for kernel in part.kernels)
    unstored = {each.name: each for part in parts for each in part.unstored}
    is_alike = all(unstored[each.name] == each for part in parts for each in part.unstored)
    known = {operand.name: operand for operand in program.operands}
    fits = all(known.get(each.name) == each for part in parts for each in part.operands) and all(
        (part.integers, part.numbers, part.tables)
        == (program.integers, program.numbers, program.tables)
        for part in parts
    )
    is_plain = not any(each.faults or each.workspaces for each in (program, *parts))
    names = {kernel.name for kernel in kernels}
    if not (is_alike and fits and is_plain and len(names) == len(kernels)):
        return program
    return replace(program, kernels=kernels, unstored=tuple(unstored.values()))
