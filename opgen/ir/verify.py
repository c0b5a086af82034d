"""What holds of every op between any two passes, as small named checks.

`verify` is run on checked specs, on derived ops and after every pass. Each check yields a sentence
for every place where its invariant is broken; its name says what should hold. What needs a proof
(accesses in range, cells written once) is no business of this module: the checker proves it, and
`ir.reference` notices where it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final, assert_never

from opgen.algebra.poly import Atom, Poly, poly
from opgen.ir.indices import FOLDED
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Apply,
    Attribute,
    AttributeType,
    Boundary,
    Constant,
    DType,
    Expr,
    Op,
    Parameter,
    Reducer,
    Statement,
    Table,
    Tensor,
    Value,
    reads,
)
from opgen.ir.primitives import PRIMITIVES
from opgen.ir.realness import is_real

Faults = Iterator[str]


def verify(op: Op) -> None:
    """Raise an AssertionError that names the broken invariant and the place."""
    for check in _CHECKS:
        fault = next(check(op), None)
        if fault is not None:
            name = check.__name__.lstrip("_").replace("_", " ")
            raise AssertionError(f"op '{op.name}': {name}: {fault}")


# ---------------------------------------------------------------------------- names and symbols
def _op_is_hashable(op: Op) -> Faults:
    # A list where a tuple belongs would make equality work and caches fail.
    try:
        hash(op)
    except TypeError as error:
        yield str(error)


def _names_are_identifiers(op: Op) -> Faults:
    for name in (op.name, *_tensor_names(op), *_scalar_names(op)):
        if not name.isidentifier() and name != BATCH:
            yield repr(name)
    for place, statement in _placed(op):
        for iterator in statement.iterators:
            if not iterator.name.isidentifier() and iterator.name != BATCH_ITERATOR:
                yield f"{place}: {iterator.name!r}"


def _names_are_unique(op: Op) -> Faults:
    for name in _repeated((*_tensor_names(op), *_scalar_names(op))):
        yield f"'{name}' is declared twice"


def _lets_refer_to_what_comes_before(op: Op) -> Faults:
    known = {*op.sizes, *_integer_attributes(op)}
    for let in op.lets:
        yield from _unknown(let.value, known, f"let {let.name}")
        known.add(let.name)


def _shapes_are_in_scope(op: Op) -> Faults:
    scope = _scope(op)
    for tensor in (*op.inputs, *op.outputs, *op.temporaries):
        for axis, dim in enumerate(tensor.dims):
            place = f"dimension {axis} of '{tensor.name}'"
            yield from _unknown(dim.extent, scope, place)
            if dim.parts and math.prod(dim.parts, start=poly(1)) != dim.extent:
                yield f"{place} is {dim.extent}, not the product of its parts"
            if axis and BATCH in dim.extent.symbols:
                yield f"{place} stands for the batch, but is not the first"


def _constraints_are_in_scope(op: Op) -> Faults:
    for constraint in op.constraints:
        yield from _unknown(constraint.condition.value, _scope(op), f"'{constraint.condition}'")


def _iterators_are_in_scope(op: Op) -> Faults:
    scope = _scope(op)
    for place, statement in _placed(op):
        names = [iterator.name for iterator in statement.iterators]
        for name in _repeated(names):
            yield f"{place}: '{name}' is iterated twice"
        for iterator in statement.iterators:
            if iterator.name in scope:
                yield f"{place}: iterator '{iterator.name}' hides a size or attribute"
            yield from _unknown(iterator.extent, scope, f"{place}: extent of '{iterator.name}'")


def _symbols_are_in_scope(op: Op) -> Faults:
    for place, statement in _placed(op):
        scope = _scope(op) | {iterator.name for iterator in statement.iterators}
        for value in _polynomials(statement):
            for name in sorted(value.symbols - scope):
                yield f"{place}: nothing defines '{name}' of '{value}'"


# ---------------------------------------------------------------------------- declarations
def _attributes_are_well_formed(op: Op) -> Faults:
    for attribute in op.attributes:
        if (attribute.type is AttributeType.CHOICE) != bool(attribute.choices):
            yield f"'{attribute.name}' has the choices {attribute.choices}"
        if attribute.length is not None and attribute.type not in _OF_TUPLES:
            yield f"'{attribute.name}' is a tuple of type {attribute.type.value}"
        if attribute.default is not None and not _is_value_of(attribute, attribute.default):
            yield f"'{attribute.name}' has the default {attribute.default!r}"


_OF_TUPLES: Final = (AttributeType.INT, AttributeType.SIZE)


def _is_value_of(attribute: Attribute, value: int | float | bool | str | tuple[int, ...]) -> bool:
    if isinstance(value, tuple):
        single = replace(attribute, length=None)
        return len(value) == attribute.length and all(_is_value_of(single, v) for v in value)
    match attribute.type:
        case AttributeType.INT:
            return _is_whole(value)
        case AttributeType.SIZE:
            return isinstance(value, int) and _is_whole(value) and value >= 0
        case AttributeType.FLOAT:
            return isinstance(value, float) or _is_whole(value)
        case AttributeType.BOOL:
            return isinstance(value, bool)
        case AttributeType.CHOICE:
            return value in attribute.choices
        case unexpected:
            assert_never(unexpected)


def _only_inputs_have_defaults_and_nograd(op: Op) -> Faults:
    for tensor in (*op.outputs, *op.temporaries):
        if tensor.default is not None or tensor.nograd:
            yield f"'{tensor.name}'"


def _tables_are_filled(op: Op) -> Faults:
    for table in op.tables:
        if math.prod(table.shape) != len(table.values):
            yield f"'{table.name}' has {len(table.values)} values for the shape {table.shape}"


def _gradients_are_of_inputs(op: Op) -> Faults:
    inputs = {tensor.name for tensor in op.inputs}
    names = [gradient.input for gradient in op.gradients]
    yield from (f"'{name}'" for name in names if name not in inputs)
    yield from (f"'{name}' has two" for name in _repeated(names))


# ---------------------------------------------------------------------------- accesses
def _accesses_have_the_rank_of_their_tensor(op: Op) -> Faults:
    ranks = {name: len(op.extents(name)) for name in _tensor_names(op)}
    for place, statement in _placed(op):
        accesses = [(a.tensor, len(a.indices)) for a in _accesses(statement)]
        loads = [(atom.name, len(atom.args)) for atom in _loads(statement)]
        for name, rank in (*accesses, *loads):
            if name not in ranks:
                yield f"{place}: there is no tensor '{name}'"
            elif rank != ranks[name]:
                yield f"{place}: '{name}' has rank {ranks[name]}, not {rank}"


def _boundary_modes_fit_the_side(op: Op) -> Faults:
    for place, statement in _placed(op):
        for access in _accesses(statement):
            writing = access is statement.target
            for index in access.indices:
                mode = index.boundary
                if (mode is Boundary.FILL) != (index.fill is not None):
                    yield f"{place}: fill value {index.fill} of '{access.tensor}'"
                if mode in (_READ_ONLY if writing else _WRITE_ONLY):
                    side = "written" if writing else "read"
                    yield f"{place}: '{access.tensor}' is {side} with {mode.value}"
                if writing and mode in FOLDED and statement.reducer is Reducer.ASSIGN:
                    yield f"{place}: '{access.tensor}' is assigned with {mode.value}"


_WRITE_ONLY: Final = (Boundary.DROP,)
_READ_ONLY: Final = (Boundary.ZERO, Boundary.FILL)


def _indices_load_integers_only(op: Op) -> Faults:
    for place, statement in _placed(op):
        for atom in _loads(statement):
            if not _is_integer(op.tensor(atom.name)):
                yield f"{place}: '{atom.name}' is not an integer tensor"


# ---------------------------------------------------------------------------- expressions
def _primitives_are_in_the_table(op: Op) -> Faults:
    for place, expr in _expressions(op):
        if isinstance(expr, Apply):
            row = PRIMITIVES.get(expr.primitive)
            if row is None:
                yield f"{place}: '{expr.primitive}'"
            elif row.arity != len(expr.arguments):
                yield f"{place}: '{row.name}' of {len(expr.arguments)} arguments"


def _parameters_are_float_attributes(op: Op) -> Faults:
    floats = {a.name for a in op.attributes if a.type is AttributeType.FLOAT}
    for place, expr in _expressions(op):
        if isinstance(expr, Parameter) and expr.name not in floats:
            yield f"{place}: '{expr.name}'"


def _literals_are_numbers(op: Op) -> Faults:
    # A NaN is not equal to itself: it would break equality of ops.
    for place, expr in _expressions(op):
        match expr:
            case Constant(value=value):
                if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
                    yield f"{place}: {value!r}"


def _integer_tensors_hold_integers(op: Op) -> Faults:
    for place, statement in _placed(op):
        real = is_real(statement.body, lambda name: _typed(op.tensor(name)))
        if (
            real
            and not statement.reducer.is_argument
            and _is_integer(op.tensor(statement.target.tensor))
        ):
            yield f"{place} writes a real value to '{statement.target.tensor}'"


def _typed(tensor: Tensor | Table) -> Tensor | Table:
    """The tensor with a floating type where its type is open."""
    if isinstance(tensor, Tensor) and tensor.dtype is DType.SAME:
        return replace(tensor, dtype=DType.FLOAT)
    return tensor


# ---------------------------------------------------------------------------- statements
def _targets_are_outputs_or_temporaries(op: Op) -> Faults:
    writable = {tensor.name for tensor in (*op.outputs, *op.temporaries)}
    for place, statement in _placed(op):
        if statement.target.tensor not in writable:
            yield f"{place} writes to '{statement.target.tensor}'"


def _outputs_and_temporaries_are_written(op: Op) -> Faults:
    written = {statement.target.tensor for statement in op.statements}
    for tensor in (*op.outputs, *op.temporaries):
        if tensor.name not in written:
            yield f"nothing writes '{tensor.name}'"


def _tensors_are_read_after_they_are_written(op: Op) -> Faults:
    last = {statement.target.tensor: number for number, statement in enumerate(op.statements)}
    for number, (place, statement) in enumerate(_placed(op)):
        accesses = (access.tensor for access in reads(statement.body))
        for name in (*accesses, *(atom.name for atom in _loads(statement))):
            if last.get(name, -1) >= number:
                yield f"{place} reads '{name}' before its last statement has written it"


def _only_argmax_and_argmin_have_a_position(op: Op) -> Faults:
    for place, statement in _placed(op):
        if statement.reducer.is_argument != (statement.position is not None):
            yield f"{place} is {statement.reducer.value} with position {statement.position}"
        elif statement.reducer.is_argument and not _is_integer(op.tensor(statement.target.tensor)):
            yield f"{place} writes an index to '{statement.target.tensor}', which holds no integers"


def _statements_of_a_tensor_reduce_alike(op: Op) -> Faults:
    first: dict[str, Reducer] = {}
    for place, statement in _placed(op):
        name, reducer = statement.target.tensor, statement.reducer
        if name in first and frozenset((first[name], reducer)) not in _COMPATIBLE:
            yield f"{place}: '{name}' is written with {first[name].value} and {reducer.value}"
        first.setdefault(name, reducer)


_COMPATIBLE: Final = frozenset(
    frozenset(pair)
    for pair in (
        (Reducer.ASSIGN,),
        (Reducer.ADD,),
        (Reducer.ASSIGN, Reducer.ADD),
        (Reducer.MAX,),
        (Reducer.MIN,),
    )
)

_CHECKS: Final[tuple[Callable[[Op], Faults], ...]] = (
    # Each check may rely on those before it.
    _op_is_hashable,
    _names_are_identifiers,
    _names_are_unique,
    _attributes_are_well_formed,
    _only_inputs_have_defaults_and_nograd,
    _tables_are_filled,
    _gradients_are_of_inputs,
    _lets_refer_to_what_comes_before,
    _shapes_are_in_scope,
    _constraints_are_in_scope,
    _iterators_are_in_scope,
    _symbols_are_in_scope,
    _accesses_have_the_rank_of_their_tensor,
    _boundary_modes_fit_the_side,
    _indices_load_integers_only,
    _primitives_are_in_the_table,
    _parameters_are_float_attributes,
    _literals_are_numbers,
    _targets_are_outputs_or_temporaries,
    _outputs_and_temporaries_are_written,
    _tensors_are_read_after_they_are_written,
    _only_argmax_and_argmin_have_a_position,
    _integer_tensors_hold_integers,
    _statements_of_a_tensor_reduce_alike,
)


# ---------------------------------------------------------------------------- traversal
def _tensor_names(op: Op) -> list[str]:
    tensors = (*op.inputs, *op.outputs, *op.temporaries)
    return [*(tensor.name for tensor in tensors), *(table.name for table in op.tables)]


def _scalar_names(op: Op) -> list[str]:
    return [*op.sizes, *(let.name for let in op.lets), *(a.name for a in op.attributes)]


def _integer_attributes(op: Op) -> set[str]:
    integers = (a for a in op.attributes if a.type is not AttributeType.FLOAT)
    return set(chain.from_iterable(attribute.symbols for attribute in integers))


def _scope(op: Op) -> set[str]:
    """The symbols that have a value at every call."""
    batched = any(tensor.batched for tensor in (*op.inputs, *op.outputs, *op.temporaries))
    batch = (BATCH,) if batched else ()
    return {*op.sizes, *(let.name for let in op.lets), *_integer_attributes(op), *batch}


def _placed(op: Op) -> Iterator[tuple[str, Statement]]:
    for number, statement in enumerate(op.statements, 1):
        yield f"statement {number}", statement


def _accesses(statement: Statement) -> Iterator[Access]:
    yield statement.target
    yield from reads(statement.body)


def _expressions(op: Op) -> Iterator[tuple[str, Expr]]:
    """Every node of every body."""
    for place, statement in _placed(op):
        pending = [statement.body]
        while pending:
            expr = pending.pop()
            yield place, expr
            if isinstance(expr, Apply):
                pending.extend(expr.arguments)


def _polynomials(statement: Statement) -> Iterator[Poly]:
    """Every polynomial that is evaluated at the points of a statement."""
    for access in _accesses(statement):
        yield from (index.value for index in access.indices)
    yield from (guard.value for guard in statement.guards)
    if statement.position is not None:
        yield statement.position
    pending = [statement.body]
    while pending:
        match pending.pop():
            case Value(value=value):
                yield value
            case Apply(arguments=arguments):
                pending.extend(arguments)


def _loads(statement: Statement) -> Iterator[Atom]:
    for value in _polynomials(statement):
        yield from value.loads


def _unknown(value: Poly, scope: set[str], place: str) -> Faults:
    """What a polynomial that is known before any point mentions wrongly."""
    for name in sorted(value.symbols - scope):
        yield f"nothing defines '{name}' of {place}"
    if value.is_data_dependent:
        yield f"{place} depends on elements"


def _repeated(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer(tensor: Tensor | Table) -> bool:
    return tensor.integer if isinstance(tensor, Table) else tensor.dtype.is_integer
