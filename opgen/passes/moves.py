"""Kernels that only copy, with addresses that are linear in all axes.

How such a copy is best made depends on the strides of a call as much as on the spec: which axes may
be taken as one, what is consecutive on both sides, what is consecutive on neither. So the axes go
to the call as they are, see `opgen.emit.moves`.
"""

from __future__ import annotations

from collections.abc import Sequence

from opgen.algebra.poly import Kind, Poly, symbol_atom
from opgen.ir.loops import Define, Kernel, Load, Move, Program, Store
from opgen.ir.map_loops import map_nodes
from opgen.ir.notation import DType

_GENERIC = frozenset({DType.SAME, DType.FLOAT})
"""Tensors with elements of the type that a call chooses."""


def move_of(kernel: Kernel, program: Program) -> Move | None:
    """The copy that a kernel with one point for each cell is; None for one that computes."""
    *defines, store = kernel.body
    if kernel.prologue or not isinstance(store, Store) or not isinstance(store.value, Load):
        return None
    values: dict[str, Poly] = {}
    for define in defines:
        if not isinstance(define, Define):
            return None
        values[define.name] = define.value.substitute(values)
    (store,) = map_nodes((store,), lambda value: value.substitute(values))
    assert isinstance(store, Store) and isinstance(store.value, Load)
    if not all(_is_plain(tensor, program) for tensor in (store.tensor, store.value.tensor)):
        return None
    names = [axis.name for axis in kernel.axes]
    indices = (*store.indices, *store.value.indices)
    known = frozenset(program.integers)
    if not all(_is_linear(index, names, known) for index in indices):
        return None
    extents = [axis.extent for axis in kernel.axes]
    return Move(kernel.axes, store) if all(_is_known(each, known) for each in extents) else None


def _is_plain(tensor: str, program: Program) -> bool:
    """Whether it is a tensor that is always there, with elements of the call's type."""
    operand = next((each for each in program.operands if each.name == tensor), None)
    return (
        operand is not None
        and operand.dtype in _GENERIC
        and not operand.widened
        and not operand.optional
    )


def _is_linear(index: Poly, names: Sequence[str], known: frozenset[str]) -> bool:
    """Whether the index is a sum of constants of a call, each times one of the names, and one."""
    for name in names:
        linear = index.linear_in(symbol_atom(name))
        if linear is None or not _is_known(linear[0], known):
            return False
        index = linear[1]
    return _is_known(index, known)


def _is_known(value: Poly, known: frozenset[str]) -> bool:
    loaded = any(atom.kind is Kind.LOAD for atom in value.all_atoms())
    return value.symbols <= known and not loaded
