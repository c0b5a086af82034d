"""Gradients that read temporaries of the forward pass in place of computing them again.

Before, the gradient of a convolution with a ReLU:

    z[n,o,h,w] = sum(c, i, j) x[n,c, h+i-1 ?0, w+j-1 ?0] * k[o,c,i,j]
    grad_z[n,o,h,w] = select(z[n,o,h,w] + b[o] >= 0, grad_y[n,o,h,w], 0)
    ...

After: the same without its first statement, and `z` is an input.

An op that keeps `z` has it as an output. Of any op those temporaries are worth it that are totals:
sums or the like with fewer dims than what they are of, which take as long as all else. So are the
positions of extremes, which only gradients look for, see `passes.kept_positions`.

What an output was divided from is the output times the divisor: of `y[b,d] = p[b,d] / s[b]` with a
sum `s` that was kept a gradient reads `y`, and computes no exponential.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from opgen.ir.build import ZERO, apply
from opgen.ir.family import Keepable
from opgen.ir.indices import extents_of
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Expr,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    map_expression,
    reads,
    substitute_access,
)
from opgen.ir.walk import all_reads, literals, nodes
from opgen.passes.assemble import Parts, assemble
from opgen.passes.kept_positions import positions, telling, told, with_positions
from opgen.passes.stages import plain

_CHEAP = frozenset({"add", "sub", "mul", "neg", "max", "min", "abs", "select"})
"""What takes no longer than a product."""


def keepable(op: Op) -> Keepable:
    """What may be kept of a call of an op; nothing where an author wrote its gradients."""
    if op.gradients:
        return Keepable()
    return Keepable(_totals(op), positions(op), telling(op))


def _totals(op: Op) -> tuple[str, ...]:
    return tuple(
        each.name
        for each in op.temporaries
        if each.dtype.is_generic
        and any(
            len(op.extents(access.tensor)) > len(each.dims)
            for statement in op.statements
            if statement.target.tensor == each.name and len(statement.iterators) > len(each.dims)
            for access in reads(statement.body)
        )
    )


def keeping(op: Op, names: Collection[str]) -> Op:
    """The op with temporaries of these names, or of positions, as further outputs."""
    known = with_positions(op)
    kept = tuple(plain(known, each.name) for each in known.temporaries if each.name in names)
    more = known.statements[len(op.statements) :]
    return replace(
        op,
        name=f"{op.name}_keeping",
        outputs=(*op.outputs, *kept),
        temporaries=tuple(each for each in op.temporaries if each.name not in names),
        statements=(*op.statements, *(each for each in more if each.target.tensor in names)),
        gradients=(),
    )


def with_kept(op: Op, forward: Op, names: Collection[str]) -> tuple[Op, tuple[str, ...]]:
    """The derived op with those of the named tensors of `forward` as inputs, the last but what
    flows back, that it reads; and which these are.

    They are temporaries that both compute by the same statements, and outputs that tell others.
    """
    op, places = told(op, forward, names)
    forward = with_positions(forward)
    same = _Same(op, forward)
    kept = {each.name: each for each in op.temporaries if each.name in names}
    kept = {name: plain(op, name) for name in kept if same.has(name)}
    quotients = [
        each
        for each in _quotients(forward)
        if each.output.tensor in names
        and each.divisor.tensor in kept
        and each.is_worth_it(op, same)
    ]
    divided = {each.dividend.tensor for each in quotients}
    results = [*places, *(each.output.tensor for each in quotients)]
    outputs = {name: plain(forward, name) for name in results}
    kept = {name: each for name, each in kept.items() if name not in divided} | outputs
    statements: list[Statement] = []
    for statement in op.statements:
        name = statement.target.tensor
        if name not in kept and name not in divided:
            statements.append(statement)
    statements = [_with_outputs(each, quotients) for each in statements]
    statements = [*(each.statement for each in quotients), *statements]
    of_forward = {each.name for each in forward.inputs}
    given = [each for each in op.inputs if each.name in of_forward]
    flowing = [each for each in op.inputs if each.name not in of_forward]
    parts = Parts(
        f"{op.name}_of_kept",
        op.doc,
        (given or flowing)[0].name,
        (*given, *kept.values(), *flowing),
        op.outputs,
        tuple(each for each in op.temporaries if each.name not in kept),
        tuple(statements),
    )
    derived = assemble(op, parts)
    read = tuple(each.name for each in derived.inputs if each.name in kept)
    return derived, read


# ---------------------------------------------------------------------------- the same tensors
class _Same:
    """Which tensors two ops compute by the same statements from the same inputs."""

    def __init__(self, one: Op, other: Op) -> None:
        self._one, self._other = one, other
        self._given = {each.name for each in one.inputs} & {each.name for each in other.inputs}
        self._given |= {each.name for each in one.tables} & {each.name for each in other.tables}
        self._known: dict[str, bool] = {}

    def has(self, name: str) -> bool:
        """Whether both have the tensor."""
        if name not in self._known:
            own, theirs = _writers(self._one, name), _writers(self._other, name)
            self._known[name] = (
                bool(own)
                and own == theirs
                and list(map(_literals, own)) == list(map(_literals, theirs))
                and self._one.extents(name) == self._other.extents(name)
                and all(
                    access.tensor in self._given or access.tensor == name or self.has(access.tensor)
                    for each in own
                    for access in all_reads(each)
                )
            )
        return self._known[name]


def _writers(op: Op, name: str) -> list[Statement]:
    found = [each for each in op.statements if each.target.tensor == name]
    return [replace(each, is_exclusive=False) for each in found]


def _literals(statement: Statement) -> tuple[str, ...]:
    return literals(statement.body)


# ---------------------------------------------------------------------------- quotients
@dataclass(frozen=True, slots=True)
class _Quotient:
    """A statement `output = dividend / divisor`, each cell of both in one place, turned around."""

    output: Access
    dividend: Access
    divisor: Access
    statement: Statement

    def is_worth_it(self, op: Op, same: _Same) -> bool:
        """Whether a derived op computes the dividend with functions that take their time."""
        name = self.dividend.tensor
        return same.has(name) and any(
            isinstance(node, Apply) and node.primitive not in _CHEAP
            for statement in op.statements
            if statement.target.tensor == name
            for node in nodes(statement.body)
        )


def _quotients(op: Op) -> Iterator[_Quotient]:
    """The quotients that outputs of an op are.

    Where the quotient is 0 the dividend was too, or too small beside the divisor for its gradient
    to be seen, or the divisor has no end.
    """
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
                if whole and _is_whole(op, statement, dividend):
                    quotient = Read(statement.target)
                    product = apply("mul", quotient, Read(divisor))
                    body = apply("select", apply("eq", quotient, ZERO), ZERO, product)
                    loops = {each.name: each for each in statement.iterators}
                    order = tuple(loops[str(index.value)] for index in dividend.indices)
                    turned = replace(
                        statement, target=dividend, iterators=order, body=body, span=None
                    )
                    yield _Quotient(statement.target, dividend, divisor, turned)
            case _:
                pass


def _with_outputs(statement: Statement, quotients: Collection[_Quotient]) -> Statement:
    """The statement that reads an output where it divides what that was divided from."""

    def change(expr: Expr) -> Expr | None:
        match expr:
            case Apply(primitive="div", arguments=(Read(access=above), Read(access=below))):
                found = (_output_at(each, above, below) for each in quotients)
                return next((Read(each) for each in found if each is not None), None)
            case _:
                return None

    return replace(statement, body=map_expression(statement.body, change))


def _output_at(quotient: _Quotient, above: Access, below: Access) -> Access | None:
    """The cell of the output that is the quotient of two cells; None if it is none."""
    dividend, divisor = quotient.dividend, quotient.divisor
    if (above.tensor, below.tensor) != (dividend.tensor, divisor.tensor):
        return None
    pairs = list(zip(dividend.indices, above.indices, strict=True))
    if any(index.boundary is not Boundary.NONE for _, index in pairs):
        return None
    values = {str(mine.value.symbol): theirs.value for mine, theirs in pairs}
    if substitute_access(divisor, values) != below:
        return None
    return substitute_access(quotient.output, values)


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
