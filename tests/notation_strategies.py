"""Hypothesis strategies for the notation: one for every node class, and calls that fit an op.

Every op that `ops()` draws is verified and has a meaning at every call that `calls(op)` draws: no
index without a mode leaves its tensor, whatever is read has been written, nothing is assigned
twice. To that end extents are at least 2, and an index without a mode is one of a few forms that
are plainly inside: an iterator over the dim, its mirror image, its neighbour clamped by min or max,
the digits of a product, a constant 0 or 1, an element of an integer input that holds 0s and 1s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
import numpy as np
from hypothesis.strategies import DrawFn, SearchStrategy

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Poly, floor_div, load, maximum, minimum, poly, symbol
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Apply,
    Attribute,
    AttributeType,
    Boundary,
    Constant,
    Constraint,
    Dim,
    DType,
    Expr,
    Index,
    Iterator,
    Let,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Table,
    Tensor,
    Value,
    reads,
)
from opgen.ir.primitives import PRIMITIVES
from opgen.ir.realness import is_real

AttributeValue = int | float | str | bool | tuple[int, ...]

SIZES = ("N", "M")
ATTRIBUTES = (
    Attribute("shift", AttributeType.INT, 1),
    Attribute("pad", AttributeType.INT, (0, 1), length=2),
    Attribute("scale", AttributeType.FLOAT, 0.5),
    Attribute("flag", AttributeType.BOOL, False),
    Attribute("mode", AttributeType.CHOICE, "sum", ("sum", "mean")),
    Attribute("extra", AttributeType.SIZE, 2),
)
LET = Let("P", symbol("N") + symbol("M"), "N + M")
TABLES = (Table("taps", (3,), (1, 2, 1)), Table("mix", (2, 2), (0.5, 1, 1, -0.25)))
EXTENTS = (symbol("N"), symbol("M"), symbol("P"), poly(2), symbol("N") * symbol("M"))
_AT_LEAST_TWO = (*SIZES, "extra")
_MOVING = (Boundary.CLAMP, Boundary.WRAP, Boundary.REFLECT, Boundary.SYMMETRIC)


@dataclass(frozen=True)
class Scope:
    """What an expression may mention."""

    tensors: tuple[Tensor | Table, ...]
    iterators: tuple[Iterator, ...] = ()
    attributes: tuple[Attribute, ...] = ATTRIBUTES
    lets: tuple[Let, ...] = (LET,)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Sizes, lets and attributes: what has a value before any point."""
        integers = (a for a in self.attributes if a.type is not AttributeType.FLOAT)
        names = [name for attribute in integers for name in attribute.symbols]
        return (*SIZES, *names, *(let.name for let in self.lets))

    @property
    def floats(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.attributes if a.type is AttributeType.FLOAT)

    @property
    def flat_integers(self) -> tuple[Tensor, ...]:
        """Integer inputs of rank 1, which hold 0s and 1s."""
        tensors = (t for t in self.tensors if isinstance(t, Tensor))
        return tuple(t for t in tensors if t.dtype.is_integer and len(t.dims) == 1)


def extents_of(tensor: Tensor | Table) -> tuple[Poly, ...]:
    if isinstance(tensor, Table):
        return tuple(map(poly, tensor.shape))
    return tuple(dim.extent for dim in tensor.dims)


# ---------------------------------------------------------------------------- polynomials
@st.composite
def polys(draw: DrawFn, scope: Scope) -> Poly:
    """An integer over everything in scope, with every kind of atom a spec can write."""
    names = [*scope.symbols, *(iterator.name for iterator in scope.iterators)]
    small = st.integers(-3, 3)
    total = poly(draw(small))
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        total = total + symbol(name) * draw(small)
    other = symbol(draw(st.sampled_from(names))) + draw(small)
    match draw(st.sampled_from(["plain"] * 6 + ["//", "%", "min", "max", "load"])):
        case "//":
            return floor_div(total, poly(draw(st.integers(2, 3))))
        case "%":
            return total % draw(st.integers(2, 3))
        case "min":
            return minimum(total, other)
        case "max":
            return maximum(total, other)
        case "load" if scope.flat_integers:
            tensor = draw(st.sampled_from(scope.flat_integers))
            return total + load(tensor.name, [draw(plain_indices(scope, extents_of(tensor)[0]))])
        case _:
            return total


@st.composite
def plain_indices(draw: DrawFn, scope: Scope, extent: Poly) -> Poly:
    """An index that is inside of the dim at every point."""
    forms = [poly(0), poly(1)]
    for iterator in scope.iterators:
        name = symbol(iterator.name)
        if iterator.extent == extent:
            forms += [name] * 6
            forms += [extent - 1 - name, maximum(name - 1, 0), minimum(name + 1, extent - 1)]
            forms += [floor_div(name, poly(2))]
        for inner in scope.iterators:
            if iterator is not inner and iterator.extent * inner.extent == extent:
                forms += [name * inner.extent + symbol(inner.name)] * 4
    for tensor in scope.flat_integers:
        inside = [i.name for i in scope.iterators if (i.extent,) == extents_of(tensor)]
        forms += [load(tensor.name, [symbol(name)]) for name in inside]
    return draw(st.sampled_from(forms))


@st.composite
def conditions(draw: DrawFn, scope: Scope) -> Condition:
    return Condition(draw(polys(scope)), draw(st.sampled_from(Relation)))


# ---------------------------------------------------------------------------- accesses
@st.composite
def indices(draw: DrawFn, scope: Scope, extent: Poly, integer: bool = False) -> Index:
    """An index of a read, under any mode that a read may have."""
    mode = draw(st.sampled_from([Boundary.NONE] * 4 + [Boundary.ZERO, Boundary.FILL, *_MOVING]))
    match mode:
        case Boundary.NONE:
            return Index(draw(plain_indices(scope, extent)))
        case Boundary.REFLECT | Boundary.SYMMETRIC:
            value = draw(plain_indices(scope, extent)) + draw(st.integers(-1, 1))
            return Index(value, mode)
        case Boundary.FILL:
            fills = [0.0, 1.0, -2.0] if integer else [0.0, 1.5, -2.0, float("-inf")]
            fill = draw(st.sampled_from(fills))
            return Index(draw(polys(scope)), mode, fill)
        case _:
            return Index(draw(polys(scope)), mode)


@st.composite
def accesses(draw: DrawFn, scope: Scope, tensor: Tensor | Table) -> Access:
    """A read. The batch dim can only be indexed by the batch iterator."""
    found = []
    for extent in extents_of(tensor):
        if extent.symbol == BATCH:
            found.append(Index(symbol(BATCH_ITERATOR)))
        else:
            found.append(draw(indices(scope, extent, not _is_real(tensor))))
    return Access(tensor.name, tuple(found))


# ---------------------------------------------------------------------------- expressions
def constants(integer: bool = False) -> SearchStrategy[Constant]:
    whole = st.integers(0, 3).map(Constant)
    real = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.25, float("inf")]).map(Constant)
    return whole if integer else st.one_of(whole, real)


def parameters(scope: Scope) -> SearchStrategy[Parameter]:
    return st.sampled_from(scope.floats).map(Parameter)


def values(scope: Scope) -> SearchStrategy[Value]:
    return polys(scope).map(Value)


@st.composite
def tensor_reads(draw: DrawFn, scope: Scope, integer: bool = False) -> Read:
    batched = any(iterator.name == BATCH_ITERATOR for iterator in scope.iterators)
    readable = [
        tensor
        for tensor in scope.tensors
        if (batched or not (isinstance(tensor, Tensor) and tensor.batched))
        and not (integer and _is_real(tensor))
    ]
    return Read(draw(accesses(scope, draw(st.sampled_from(readable)))))


def _is_real(tensor: Tensor | Table) -> bool:
    return not tensor.integer if isinstance(tensor, Table) else not tensor.dtype.is_integer


@st.composite
def applications(draw: DrawFn, scope: Scope, depth: int, integer: bool = False) -> Apply:
    rows = [row for row in PRIMITIVES.values() if not (integer and row.needs_float)]
    row = draw(st.sampled_from(rows))
    arguments = [draw(expressions(scope, depth - 1, integer)) for _ in range(row.arity)]
    return Apply(row.name, tuple(arguments))


@st.composite
def expressions(draw: DrawFn, scope: Scope, depth: int = 3, integer: bool = False) -> Expr:
    """Any expression; with `integer` one whose value is whole whatever the tensors hold."""
    if depth > 0 and draw(st.integers(0, 3)):
        return draw(applications(scope, depth, integer))
    leaves: list[SearchStrategy[Expr]] = [constants(integer), values(scope)]
    leaves += [tensor_reads(scope, integer)] * 4
    if scope.floats and not integer:
        leaves.append(parameters(scope))
    return draw(st.one_of(leaves))


# ---------------------------------------------------------------------------- statements
def _own_iterators(extents: Sequence[Poly]) -> tuple[Iterator, ...]:
    names = iter(("i", "j", "k"))
    return tuple(
        Iterator(BATCH_ITERATOR if extent.symbol == BATCH else next(names), extent)
        for extent in extents
    )


@st.composite
def statements(
    draw: DrawFn, scope: Scope, target: Tensor, reducer: Reducer, everywhere: bool
) -> Statement:
    """A statement for a tensor; with `everywhere` one that writes each of its cells.

    Without a reducer each point has its own cell: an iterator for every dim, maybe shifted under
    DROP. With one there may be more iterators and a boundary that moves the cell.
    """
    extents = extents_of(target)
    own = _own_iterators(extents)
    inner: tuple[Iterator, ...] = ()
    if reducer is not Reducer.ASSIGN:
        lists = st.lists(st.sampled_from(EXTENTS[:4]), max_size=2)
        inner = tuple(Iterator(name, e) for name, e in zip(("r", "s"), draw(lists), strict=False))
    scope = replace(scope, iterators=(*own, *inner))
    written = []
    for iterator in own:
        value, mode = symbol(iterator.name), Boundary.NONE
        if not everywhere and iterator.name != BATCH_ITERATOR:
            moving = _MOVING if reducer is Reducer.ADD else ()
            mode = draw(st.sampled_from([Boundary.NONE, Boundary.NONE, Boundary.DROP, *moving]))
            if mode is not Boundary.NONE:
                value = value + draw(st.integers(-1, 1))
        written.append(Index(value, mode))
    limit = 0 if everywhere and reducer is Reducer.ASSIGN else 2
    return Statement(
        Access(target.name, tuple(written)),
        reducer,
        scope.iterators,
        tuple(draw(st.lists(conditions(scope), max_size=limit))),
        draw(expressions(scope, integer=target.dtype.is_integer and not reducer.is_argument)),
        draw(polys(scope)) if reducer.is_argument else None,
    )


# ---------------------------------------------------------------------------- ops
_FLOATS = (DType.SAME, DType.SAME, DType.FLOAT, DType.F64, DType.F32, DType.F16)
_INTEGERS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.INT, DType.BOOL)


@st.composite
def tensors(
    draw: DrawFn, name: str, batched: bool, dtypes: Sequence[DType], optional: bool = False
) -> Tensor:
    dims = tuple(Dim(e) for e in draw(st.lists(st.sampled_from(EXTENTS), max_size=2)))
    if batched:
        dims = (Dim(symbol(BATCH)), *dims)
    default = draw(st.sampled_from([None, 0.0, 1.5])) if optional else None
    return Tensor(name, dims, draw(st.sampled_from(dtypes)), default)


@st.composite
def ops(draw: DrawFn) -> Op:
    """A verified op of one to four statements that has a meaning at every call of `calls`."""
    batched = draw(st.booleans())
    shape = (Dim(symbol("N")), Dim(symbol("N") * symbol("M"), (symbol("N"), symbol("M"))))
    if batched:
        shape = (Dim(symbol(BATCH)), *shape)
    inputs = (
        Tensor("x", shape, DType.SAME),
        draw(tensors("w", False, _FLOATS, optional=True)),
        Tensor("index", (Dim(symbol("M")),), draw(st.sampled_from(_INTEGERS[:-1]))),
        draw(tensors("count", False, _INTEGERS)),
    )
    scope = Scope((*inputs, *TABLES))
    outputs: list[Tensor] = []
    temporaries: list[Tensor] = []
    found: list[Statement] = []
    for number in range(draw(st.integers(1, 3))):
        reducer = draw(st.sampled_from([*Reducer, Reducer.ADD, Reducer.ADD]))
        temporary = draw(st.booleans()) and number < 2
        dtypes = _INTEGERS[:-1] if reducer.is_argument else (*_FLOATS, *_INTEGERS)
        if temporary:
            dtypes = (DType.I64,) if reducer.is_argument else (DType.SAME, DType.FLOAT, DType.I64)
        tensor = draw(tensors(f"t{number}" if temporary else f"y{number}", batched, dtypes))
        found.append(draw(statements(scope, tensor, reducer, temporary)))
        if reducer in (Reducer.ASSIGN, Reducer.ADD) and draw(st.integers(0, 2)) == 0:
            found.append(draw(statements(scope, tensor, Reducer.ADD, temporary)))
        if temporary:
            temporaries.append(tensor)
            # Not as an index: what it holds may be anything.
            scope = replace(scope, tensors=(*scope.tensors, replace(tensor, dtype=DType.F64)))
        else:
            outputs.append(tensor)
    if not outputs:
        tensor = draw(tensors("y", batched, _FLOATS))
        outputs.append(tensor)
        found.append(draw(statements(scope, tensor, Reducer.ADD, False)))
    constraints = tuple(
        Constraint(Condition(symbol(name) - 2), f"{name} >= 2") for name in _AT_LEAST_TWO
    )
    sizes = (BATCH, *SIZES) if batched else SIZES
    op = Op(
        "drawn", inputs, ATTRIBUTES, tuple(outputs), sizes, (LET,), constraints, TABLES,
        tuple(temporaries), tuple(found),
    )  # fmt: skip
    return _with_real_inputs(op)


def _with_real_inputs(op: Op) -> Op:
    """An op with a real value needs its undeclared tensors to be floating."""
    fills = [
        index.fill
        for statement in op.statements
        for access in reads(statement.body)
        for index in access.indices
        if index.fill is not None
    ]
    if not any(is_real(statement.body, op.tensor) for statement in op.statements) and all(
        np.isfinite(fill) and fill == int(fill) for fill in fills
    ):
        return op

    def floating(found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(replace(t, dtype=DType.FLOAT) if t.dtype is DType.SAME else t for t in found)

    return replace(
        op,
        inputs=floating(op.inputs),
        outputs=floating(op.outputs),
        temporaries=floating(op.temporaries),
    )


# ---------------------------------------------------------------------------- calls
@dataclass(frozen=True)
class Call:
    """Arguments of `ir.reference.evaluate`."""

    sizes: Mapping[str, int]
    tensors: Mapping[str, np.ndarray]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


_NUMPY = {
    DType.F16: np.float16,
    DType.BF16: np.float32,
    DType.F32: np.float32,
    DType.F64: np.float64,
    DType.U8: np.uint8,
    DType.I8: np.int8,
    DType.I16: np.int16,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.INT: np.int64,
    DType.BOOL: np.bool_,
}


@st.composite
def calls(
    draw: DrawFn, op: Op, shared: type[np.generic] = np.float64, special: bool = True
) -> Call:
    """A call with small sizes; `special` lets elements be infinite or NaN."""
    sizes = {name: draw(st.integers(2, 3)) for name in op.sizes}
    attributes: dict[str, AttributeValue] = {}
    for attribute in op.attributes:
        if draw(st.booleans()) or attribute.default is None:
            attributes[attribute.name] = draw(attribute_values(attribute))
    symbols = dict(sizes)
    for attribute in op.attributes:
        if attribute.type is AttributeType.SIZE:
            value = attributes.get(attribute.name, attribute.default)
            assert isinstance(value, int)
            symbols[attribute.name] = value
    for let in op.lets:
        symbols[let.name] = let.value.evaluate(symbols)
    arrays = {}
    for tensor in op.inputs:
        if tensor.default is not None and draw(st.booleans()):
            continue
        shape = tuple(extent.evaluate(symbols) for extent in extents_of(tensor))
        dtype = _NUMPY.get(tensor.dtype, shared)
        arrays[tensor.name] = draw(arrays_of(shape, dtype, special))
    return Call(sizes, arrays, attributes)


def attribute_values(attribute: Attribute) -> SearchStrategy[AttributeValue]:
    match attribute.type:
        case AttributeType.INT:
            whole = st.integers(-2, 2)
            if attribute.length is None:
                return whole
            return st.one_of(whole, st.tuples(*[whole] * attribute.length))
        case AttributeType.SIZE:
            return st.integers(2, 3)
        case AttributeType.FLOAT:
            return st.sampled_from([0.0, 0.25, -1.5])
        case AttributeType.BOOL:
            return st.booleans()
        case AttributeType.CHOICE:
            return st.sampled_from(attribute.choices)


@st.composite
def arrays_of(
    draw: DrawFn, shape: tuple[int, ...], dtype: type[np.generic], special: bool
) -> np.ndarray:
    """Elements from a seed: integers are 0 or 1, so that they can index anything."""
    numbers = np.random.default_rng(draw(st.integers(0, 2**16)))
    if not np.issubdtype(dtype, np.floating):
        return numbers.integers(0, 2, shape).astype(dtype)
    array = numbers.uniform(-2, 2, shape).astype(dtype)
    if special and array.size and draw(st.integers(0, 3)) == 0:
        where = draw(st.integers(0, array.size - 1))
        array.reshape(-1)[where] = draw(st.sampled_from([np.nan, np.inf, -np.inf, -0.0]))
    return array
