"""Outputs that were divided from a temporary: what gradients read in place of that.

The gradient of a softmax `y[b,d] = p[b,d] / s[b]` multiplies by the exponentials `p`, which it
would have to compute again:

    grad_p[b,d] += grad_y[b,d] / s[b]
    grad_s[b]    = sum(d) -p[b,d] / s[b] * (grad_y[b,d] / s[b])
    grad_p[b,d] += grad_s[b]
    grad_x[b,d]  = p[b,d] * grad_p[b,d]

All that the other factor is a sum of was divided by `s`. So nobody needs that, and `y` tells all:

    grad_p[b,d] += grad_y[b,d]
    grad_s[b]    = sum(d) -y[b,d] * grad_y[b,d]
    grad_p[b,d] += grad_s[b]
    grad_x[b,d]  = y[b,d] * grad_p[b,d]

The output times the divisor does not stand for `p` anywhere else. It is rounded twice: where `p` is
compared with a number that it may be, as in `max(p, 1)`, the gradient would go another way. And a
quotient may be 0, or have lost most of its bits, where the dividend is neither.

The cell of the divisor may be one that an input holds, as in the softmax over the edges to a node,
`y[e,h] = p[e,h] / s[j[e],h]`: what flows back to an edge was divided at the cell of its node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

from opgen.algebra.poly import Poly, symbol
from opgen.ir.build import apply, neg
from opgen.ir.indices import extents_of
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    map_expression,
    reads,
    substitute_access,
)


@dataclass(frozen=True, slots=True)
class Quotient:
    """A statement `output = dividend / divisor`, each cell of both first ones in one place."""

    output: Access
    dividend: Access
    divisor: Access


def quotients(op: Op) -> Iterator[Quotient]:
    """The quotients that outputs of an op are."""
    results = {each.name for each in op.outputs}
    targets = [each.target.tensor for each in op.statements]
    for statement in op.statements:
        output = statement.target.tensor
        match statement:
            case Statement(
                reducer=Reducer.ASSIGN,
                guards=(),
                body=Apply(
                    primitive="div", arguments=(Read(access=dividend), Read(access=divisor))
                ),
            ) if output in results and targets.count(output) == 1:
                whole = _is_whole(op, statement, statement.target)
                if whole and _is_whole(op, statement, dividend) and _is_fixed(op, divisor):
                    yield Quotient(statement.target, dividend, divisor)
            case _:
                pass


def _is_fixed(op: Op, divisor: Access) -> bool:
    """Whether nothing but inputs of an op say which cells of a divisor are read: gradients read
    the same ones."""
    given = {each.name for each in op.inputs}
    return all(load.name in given for index in divisor.indices for load in index.value.loads)


def without_quotient(
    statements: Sequence[Statement], quotient: Quotient, temporaries: Collection[str]
) -> list[Statement] | None:
    """The statements with neither the dividend nor the divisor of a quotient, but what it is; None
    where the dividend does more than to multiply sums of what was divided."""
    dividend = quotient.dividend.tensor
    others = [each for each in statements if each.target.tensor != dividend]
    return _without_divisor(
        [_with_output(each, quotient) for each in others], quotient, temporaries
    )


def _with_output(statement: Statement, quotient: Quotient) -> Statement:
    """The statement that reads an output where it divides what that was divided from."""

    def change(expr: Expr) -> Expr | None:
        match expr:
            case Apply(primitive="div", arguments=(Read(access=above), Read(access=below))):
                cell = _output_at(quotient, above, below)
                return None if cell is None else Read(cell)
            case _:
                return None

    return replace(statement, body=map_expression(statement.body, change))


def _output_at(quotient: Quotient, above: Access, below: Access) -> Access | None:
    """The cell of the output that is the quotient of two cells; None if it is none."""
    dividend, divisor = quotient.dividend, quotient.divisor
    if (above.tensor, below.tensor) != (dividend.tensor, divisor.tensor):
        return None
    values = _at_cell(quotient, above)
    if values is None or substitute_access(divisor, values) != below:
        return None
    return substitute_access(quotient.output, values)


def _at_cell(quotient: Quotient, cell: Access) -> dict[str, Poly] | None:
    """The iterators of a quotient at a cell of the dividend; None if that may be outside."""
    if any(index.boundary is not Boundary.NONE for index in cell.indices):
        return None
    pairs = zip(quotient.dividend.indices, cell.indices, strict=True)
    return {str(mine.value.symbol): theirs.value for mine, theirs in pairs}


def _is_whole(op: Op, statement: Statement, access: Access) -> bool:
    """Whether a temporary or an output has one cell for each point of a statement."""
    tensor = op.tensor(access.tensor)
    if not isinstance(tensor, Tensor) or access.tensor in {each.name for each in op.inputs}:
        return False
    if not tensor.dtype.is_generic:
        return False  # it may have fewer bits
    extents = extents_of(statement.iterators)
    names = [index.value.symbol for index in access.indices]
    sizes = zip(names, (dim.extent for dim in tensor.dims), strict=True)
    return (
        all(index.boundary is Boundary.NONE for index in access.indices)
        and len(names) == len(extents)
        and set(names) == set(extents)
        and all(name is not None and extents[name] == size for name, size in sizes)
    )


# ---------------------------------------------------------------------------- without the divisor
def _without_divisor(
    statements: Sequence[Statement], quotient: Quotient, temporaries: Collection[str]
) -> list[Statement] | None:
    """The statements without those two; see `without_quotient`."""
    dividend = quotient.dividend.tensor
    factors: set[str] = set()
    out: list[Statement] = []
    for statement in statements:
        if all(access.tensor != dividend for access in reads(statement.body)):
            out.append(statement)
            continue
        is_sum = statement.reducer in (Reducer.ADD, Reducer.ASSIGN)
        if not is_sum or not _multiplies(statement.body, dividend):
            return None
        found = _multiplied(statement.body, quotient, temporaries)
        if found is None:
            return None
        factors |= found[1]
        out.append(replace(statement, body=found[0]))
    of_divisor = quotient.divisor.indices
    if not factors or any(index.boundary is not Boundary.NONE for index in of_divisor):
        return None
    cell = tuple(index.value for index in of_divisor)
    where = _where(cell, quotient.dividend, _names_in(quotient.dividend))
    if where is None:
        return None
    scaling = _Scaling(quotient.divisor.tensor, frozenset(temporaries), out)
    return scaling.applied(dict.fromkeys(factors, where))


def _names_in(access: Access) -> frozenset[str]:
    """The iterators of an access to one cell for each point."""
    return frozenset().union(*(index.value.symbols for index in access.indices))


_Where = tuple[Poly, ...]
"""A cell of the divisor in terms of the indices of a cell of another tensor."""


def _place(axis: int) -> str:
    """The symbol of an index along an axis."""
    return f"index {axis}"


def _where(cell: tuple[Poly, ...], access: Access, names: Set[str]) -> _Where | None:
    """Where the divisor is read at a cell, of iterators with these names, in terms of the indices
    of an access; None where they do not tell it."""
    values = [index.value for index in access.indices]
    known = {str(v.symbol): symbol(_place(axis)) for axis, v in enumerate(values) if v.symbol}
    found = []
    for value in cell:
        if value in values:
            found.append(symbol(_place(values.index(value))))
        elif value.symbols & names <= known.keys():
            found.append(value.substitute({n: p for n, p in known.items() if n in names}))
        else:
            return None
    return tuple(found)


def _multiplies(body: Expr, name: str) -> bool:
    """Whether a tensor only multiplies what a body is made of: nothing is decided by it, and it is
    no argument of a function."""
    if all(access.tensor != name for access in reads(body)):
        return True
    match body:
        case Read():
            return True
        case Apply(primitive="mul" | "add" | "sub" | "neg", arguments=arguments):
            return all(_multiplies(each, name) for each in arguments)
        case Apply(primitive="div", arguments=(above, below)):
            return _multiplies(above, name) and all(a.tensor != name for a in reads(below))
        case Apply(primitive="select", arguments=(test, *branches)):
            decides = any(access.tensor == name for access in reads(test))
            return not decides and all(_multiplies(each, name) for each in branches)
        case _:
            return False


def _multiplied(
    body: Expr, quotient: Quotient, temporaries: Collection[str]
) -> tuple[Expr, set[str]] | None:
    """A body with the output in place of the dividend, and the temporaries that this multiplies at
    the same cell; None where it stands in another place."""
    found: set[str] = set()

    def change(expr: Expr) -> Expr | None:
        factors = list(_factors(expr))
        mine = [
            each
            for each in factors
            if isinstance(each, Read) and each.access.tensor == quotient.dividend.tensor
        ]
        if len(mine) != 1 or len(factors) < 2:
            return None
        (own,) = mine
        others = [
            each.access.tensor
            for each in factors
            if isinstance(each, Read)
            and each.access.tensor in temporaries
            and each.access.indices == own.access.indices
            and each is not own
        ]
        values = _at_cell(quotient, own.access)
        if len(others) != 1 or values is None:
            return None
        found.update(others)
        return _with_factor(expr, own, Read(substitute_access(quotient.output, values)))

    changed = map_expression(body, change)
    if any(access.tensor == quotient.dividend.tensor for access in reads(changed)):
        return None
    return changed, found


def _factors(expr: Expr) -> Iterator[Expr]:
    """What an expression is a product of."""
    match expr:
        case Apply(primitive="mul", arguments=arguments):
            for each in arguments:
                yield from _factors(each)
        case _:
            yield expr


def _with_factor(expr: Expr, old: Expr, new: Expr) -> Expr:
    """A product with another factor in place of one."""
    match expr:
        case Apply(primitive="mul", arguments=arguments):
            return Apply("mul", tuple(_with_factor(each, old, new) for each in arguments))
        case _:
            return new if expr is old else expr


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of the divisor in a statement, and the names of the iterators of this."""

    indices: tuple[Poly, ...]
    names: frozenset[str]


@dataclass
class _Scaling:
    """Multiplies temporaries by a divisor, by which all that they are sums of was divided.

    Each has the cell of the divisor that belongs to one of its own.
    """

    divisor: str
    temporaries: frozenset[str]
    statements: Sequence[Statement]
    scaled: dict[str, _Where] = field(default_factory=dict)
    handled: int = 0

    def applied(self, factors: dict[str, _Where]) -> list[Statement] | None:
        """The statements with these temporaries, and what they are sums of, times the divisor; the
        factors are read once each where that is taken back. None where something is not divided."""
        names = [access.tensor for each in self.statements for access in reads(each.body)]
        if any(names.count(name) != 1 for name in factors):
            return None
        self.scaled = dict(factors)
        out = list(self.statements)
        done: set[str] = set()
        while waiting := [name for name in self.scaled if name not in done]:
            name = waiting[0]
            done.add(name)
            for at, statement in enumerate(out):
                if statement.target.tensor != name:
                    continue
                body = self._of(statement)
                if body is None:
                    return None
                out[at] = replace(statement, body=body)
        others = sum(names.count(name) for name in self.scaled if name not in factors)
        return out if others == self.handled else None

    def _of(self, statement: Statement) -> Expr | None:
        """The body of a statement times the divisor."""
        target = statement.target
        if statement.reducer not in (Reducer.ADD, Reducer.ASSIGN):
            return None
        where = self.scaled[target.tensor]
        asked = {str(name) for value in where for name in value.symbols}
        values = {}
        for axis, index in enumerate(target.indices):
            if _place(axis) not in asked:
                continue
            if index.boundary not in (Boundary.NONE, Boundary.DROP):
                return None
            values[_place(axis)] = index.value
        names = frozenset(each.name for each in statement.iterators)
        return self._times(statement.body, _Cell(tuple(v.substitute(values) for v in where), names))

    def _times(self, expr: Expr, cell: _Cell) -> Expr | None:
        """An expression times the divisor at a cell; None where it was not divided by that: then
        nothing is scaled for it."""
        before = dict(self.scaled), self.handled
        found = self._divided(expr, cell)
        if found is None:
            self.scaled, self.handled = before
        return found

    def _divided(self, expr: Expr, cell: _Cell) -> Expr | None:
        match expr:
            case Apply(primitive="div", arguments=(above, Read(access=below))) if below == Access(
                self.divisor, tuple(map(Index, cell.indices))
            ):
                return above
            case Apply(primitive="neg", arguments=(inner,)):
                found = self._times(inner, cell)
                return None if found is None else neg(found)
            case Apply(primitive="mul" | "div" as primitive, arguments=(left, right)):
                found = self._times(left, cell)
                if found is not None:
                    return apply(primitive, found, right)
                found = self._times(right, cell) if primitive == "mul" else None
                return None if found is None else apply("mul", left, found)
            case Apply(primitive="add" | "sub" as primitive, arguments=(left, right)):
                one, other = self._times(left, cell), self._times(right, cell)
                return None if one is None or other is None else apply(primitive, one, other)
            case Constant(value=0):
                return expr
            case Read(access=access) if access.tensor in self.temporaries:
                return expr if self._is_scaled(access, cell) else None
            case _:
                return None

    def _is_scaled(self, access: Access, cell: _Cell) -> bool:
        """Whether a temporary may be scaled by the divisor at that cell where it is read."""
        if any(index.boundary is not Boundary.NONE for index in access.indices):
            return False
        where = _where(cell.indices, access, cell.names)
        if where is None or self.scaled.setdefault(access.tensor, where) != where:
            return False
        self.handled += 1
        return True
