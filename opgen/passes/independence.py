"""Dims along which an op works slice by slice, and inputs in which it is linear.

Both are read off the relations and hold for every call: a dim that is the same plain iterator in
every tensor that has it may be cut into pieces, folded with another or spread over machines, and
sums may be pulled out of an op that is linear. What the rules do not show is taken to be false.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import chain, combinations

from opgen.algebra.poly import Atom, Kind, Poly, load, of_atom, poly, rebuild
from opgen.ir.notation import (
    BATCH,
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Tensor,
    Value,
    reads,
)
from opgen.ir.walk import expression_polynomials, values_of

_Axes = Mapping[str, int]


# ---------------------------------------------------------------------------- slices
def parallel_axes(op: Op) -> tuple[tuple[tuple[str, int], ...], ...]:
    """For every dim along which the op works slice by slice, its axis in inputs and outputs.

    All outputs have such a dim; inputs that lack it are the same for every slice.
    """
    found = []
    for size in dict.fromkeys((BATCH, *op.sizes)):
        axes = _axes_of(op, size)
        if axes is not None and all(
            _is_sliced(statement, size, axes) for statement in op.statements
        ):
            outside = [tensor.name for tensor in (*op.inputs, *op.outputs) if tensor.name in axes]
            found.append(tuple((name, axes[name]) for name in outside))
    return tuple(found)


def _axes_of(op: Op, size: str) -> dict[str, int] | None:
    """Where tensors have a dim of this size; None if the size has a meaning besides."""
    axes: dict[str, int] = {}
    for tensor in (*op.inputs, *op.outputs, *op.temporaries):
        for axis, dim in enumerate(tensor.dims):
            if dim.extent.symbol == size and not dim.parts and tensor.name not in axes:
                axes[tensor.name] = axis
            elif any(size in value.symbols for value in (dim.extent, *dim.parts)):
                return None
    elsewhere = chain(
        (let.value for let in op.lets), (each.condition.value for each in op.constraints)
    )
    is_needed = any(size in value.symbols for value in elsewhere)
    is_in_outputs = all(tensor.name in axes for tensor in op.outputs)
    is_in_inputs = any(tensor.name in axes for tensor in op.inputs)
    return axes if is_in_outputs and is_in_inputs and not is_needed else None


def _is_sliced(statement: Statement, size: str, axes: _Axes) -> bool:
    """Whether every point of a statement stays within one slice, and all slices are alike."""
    along = [each.name for each in statement.iterators if each.extent.symbol == size]
    if any(size in each.extent.symbols for each in statement.iterators if each.name not in along):
        return False
    if statement.target.tensor not in axes:
        # The same in every slice: nothing of it may know of the dim.
        touched = [access.tensor for access in reads(statement.body)]
        touched += [atom.name for value in values_of(statement) for atom in value.all_atoms()]
        return not along and not any(name in axes or name == size for name in touched)
    index = statement.target.indices[axes[statement.target.tensor]]
    iterator = index.value.symbol
    if iterator is None or along != [iterator]:
        return False
    left = list(values_of(statement))
    for access in (statement.target, *reads(statement.body)):
        axis = axes.get(access.tensor)
        if axis is not None and access.indices[axis].value.symbol != iterator:
            return False
        left += [each.value for at, each in enumerate(access.indices) if at != axis]
    return not any(
        {iterator, size} & _without_slices(value, iterator, axes).symbols for value in left
    )


def _without_slices(value: Poly, iterator: str, axes: _Axes) -> Poly:
    """A polynomial in which integers read from the current slice do not mention the iterator."""

    def in_atom(atom: Atom) -> Poly:
        if atom.kind is Kind.SYMBOL:
            return of_atom(atom)
        axis = axes.get(atom.name) if atom.kind is Kind.LOAD else None
        args = tuple(
            poly(0) if at == axis and arg.symbol == iterator else arg.map_atoms(in_atom)
            for at, arg in enumerate(atom.args)
        )
        return load(atom.name, args) if atom.kind is Kind.LOAD else rebuild(atom, args)

    return value.map_atoms(in_atom)


# ---------------------------------------------------------------------------- linearity
def linear_inputs(op: Op) -> tuple[tuple[str, ...], ...]:
    """The sets of inputs in which the op is linear together, the smallest ones only."""
    candidates = [t.name for t in op.inputs if not t.dtype.is_integer]
    found: list[tuple[str, ...]] = []
    for count in range(1, len(candidates) + 1):
        for names in combinations(candidates, count):
            covered = any(set(smaller) <= set(names) for smaller in found)
            if not covered and _is_linear(op, names):
                found.append(names)
    return tuple(found)


def _is_linear(op: Op, names: tuple[str, ...]) -> bool:
    """Whether all outputs are linear in the inputs of these names together."""
    active = set(names)
    for statement in op.statements:
        target = statement.target.tensor
        degree = _degree(statement.body, active)
        if degree == 0 and target not in active:
            continue
        summed = statement.reducer in (Reducer.ASSIGN, Reducer.ADD)
        dtype = next(t.dtype for t in _written(op) if t.name == target)
        if degree != 1 or not summed or dtype.is_integer or not _starts_linear(op, target, active):
            return False
        active.add(target)
    return all(tensor.name in active for tensor in op.outputs)


def _written(op: Op) -> tuple[Tensor, ...]:
    return (*op.outputs, *op.temporaries)


def _starts_linear(op: Op, target: str, active: Set[str]) -> bool:
    """Whether no statement that is not linear wrote to a tensor before a linear one does."""
    writes = [s for s in op.statements if s.target.tensor == target]
    return all(_degree(statement.body, active) == 1 for statement in writes)


def _degree(expr: Expr, active: Set[str]) -> int | None:
    """0 for what does not depend on active tensors, 1 for what is linear in them, else None."""
    if not _mentions(expr, active):
        return 0
    match expr:
        case Read(access=access):
            return 1 if _is_plain(access, active) else None
        case Apply(primitive=primitive, arguments=arguments):
            degrees = [_degree(argument, active) for argument in arguments]
            match primitive, degrees:
                case ("neg", [1]) | ("add" | "sub", [1, 1]) | ("mul", [0, 1] | [1, 0]):
                    return 1
                case "div", [1, 0]:
                    return 1
                case "select", [0, 1, 1]:
                    return 1
                case _:
                    return None
        case Constant() | Parameter() | Value():
            return None  # an integer read from an active tensor


def _is_plain(access: Access, active: Set[str]) -> bool:
    """Whether an access adds no value of its own and finds its cell without active tensors."""
    filled = any(index.boundary is Boundary.FILL and index.fill for index in access.indices)
    loaded = {atom.name for index in access.indices for atom in index.value.all_atoms()}
    return access.tensor in active and not filled and not loaded & active


def _mentions(expr: Expr, active: Set[str]) -> bool:
    loaded = (atom.name for value in expression_polynomials(expr) for atom in value.all_atoms())
    return any(access.tensor in active for access in reads(expr)) or any(
        name in active for name in loaded
    )
