"""The statements of a derived op in the making: what reverse and forward sweep have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition
from opgen.algebra.poly import symbol
from opgen.ir.build import ZERO
from opgen.ir.indices import covers_plainly, extents_of, fixed_iterators
from opgen.ir.notation import (
    Access,
    Apply,
    Dim,
    Expr,
    Index,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
)
from opgen.passes.assemble import Parts, assemble
from opgen.passes.chain_rule import Choice, Term, terms
from opgen.passes.coverage import Tensors, conditions_of, guards_for, tensors_of
from opgen.passes.deviations import adds_zero
from opgen.passes.order import target_first
from opgen.passes.reducers import Names, Weights
from opgen.passes.without_effect import without_effect


@dataclass(frozen=True, slots=True)
class Contribution:
    """`target += term * seed` at the points of a statement.

    `gone` is the read that the term belongs to, if `target` is where it reads.
    """

    target: Access
    term: Term
    seed: Expr
    gone: Access | None = None


class Derivation:
    """Collects statements and temporaries; `assembled` makes the op."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.names = Names(op)
        self.statements: list[Statement] = []
        self._sources: list[Statement] = []  # of each statement: the one it is derived from
        self._extra: list[Statement] = []  # for weights; they need nothing but primal tensors
        self._temporaries: list[Tensor] = []
        self._weights = Weights(op, self.names)
        known = tensors_of(op)
        self._dims: dict[str, tuple[Dim, ...]] = {}  # of new tensors
        self._extents = dict(known.extents)  # of all tensors
        self._tensors = Tensors(self._extents, known.partly_written)
        positions = {s.target.tensor for s in op.statements if s.reducer.is_argument}
        self.numeric = {
            tensor.name: tensor
            for tensor in (*op.inputs, *op.outputs, *op.temporaries)
            if not tensor.dtype.is_integer and tensor.name not in positions
        }
        """The tensors that have a derivative."""
        self.without_effect = without_effect(op)
        """Temporaries along which the derivative of every output is zero."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs that have a derivative."""
        return tuple(tensor for tensor in self.op.outputs if tensor.name in self.numeric)

    # ------------------------------------------------------------ tensors
    def twin(self, prefix: str, name: str) -> Tensor:
        """A new tensor like the one of that name, `prefix_name`."""
        like = self.numeric[name]
        tensor = Tensor(self.names.fresh(f"{prefix}_{name}"), like.dims, like.dtype)
        self._register(tensor)
        return tensor

    def temporary(self, prefix: str, name: str) -> str:
        """A new temporary like the tensor of that name."""
        tensor = self.twin(prefix, name)
        self._temporaries.append(tensor)
        return tensor.name

    def _register(self, tensor: Tensor) -> None:
        self._dims[tensor.name] = tensor.dims
        self._extents[tensor.name] = tuple(dim.extent for dim in tensor.dims)

    # ------------------------------------------------------------ statements
    def terms(self, statement: Statement, active: Iterable[str]) -> list[tuple[Access, Term]]:
        """The derivative of the written cells with respect to every read of an active tensor."""
        wanted = frozenset(active) & self.numeric.keys()
        found = list(terms(statement.body, lambda a: a.tensor in wanted, self._extents.__getitem__))
        if not found:
            return []
        weight = self._weights.of(statement)
        self._extra += weight.statements
        self._temporaries += weight.temporaries
        for tensor in weight.temporaries:
            self._register(tensor)
        choices = tuple(Choice(condition, True) for condition in weight.conditions)
        return [
            (
                access,
                replace(
                    term,
                    steps=(*reversed(weight.factors), *term.steps),
                    choices=(*choices, *term.choices),
                ),
            )
            for access, term in found
        ]

    def contribute(self, source: Statement, contributions: Iterable[Contribution]) -> None:
        """Add statements over the points of `source`: one for each target and set of guards."""
        groups: dict[tuple[Access, tuple[Condition, ...]], list[tuple[Term, Expr]]] = {}
        for contribution in contributions:
            statement, term = self._alone(source, contribution)
            group = groups.setdefault((statement.target, statement.guards), [])
            group.append((term, contribution.seed))
        for (target, guards), products in groups.items():
            self._add(source, target, guards, _sum(products))

    def _alone(self, source: Statement, part: Contribution) -> tuple[Statement, Term]:
        """A statement for one contribution, and its term without what became a guard."""
        term, guards = part.term, dict.fromkeys(source.guards)
        if part.gone is not None:
            split = [conditions_of(choice) for choice in term.choices]
            guards.update(dict.fromkeys(c for conditions, _ in split for c in conditions))
            term = replace(term, choices=tuple(c for _, rest in split for c in rest))
        statement = replace(
            source,
            target=part.target,
            reducer=Reducer.ADD,
            guards=tuple(guards),
            body=term.times(part.seed),
            position=None,
        )
        more = guards_for(statement, term, part.gone, self._tensors)
        return replace(statement, guards=(*statement.guards, *more)), term

    def _add(
        self, source: Statement, target: Access, guards: tuple[Condition, ...], body: Expr
    ) -> None:
        dims = self._dims[target.tensor]
        iterators = target_first(self.op, target, dims, source.iterators)
        statement = Statement(target, Reducer.ADD, iterators, guards, body, None, source.span)
        if not adds_zero(self.op, statement):
            self.statements.append(statement)
            self._sources.append(source)

    def fill(self, target: str, source: str | None = None) -> None:
        """Write every cell of a new tensor: 0, or what `source` holds there."""
        cells = self._weights.cells(self._dims[target])
        indices = tuple(Index(symbol(iterator.name)) for iterator in cells)
        body: Expr = ZERO if source is None else Read(Access(source, indices))
        statement = Statement(Access(target, indices), Reducer.ASSIGN, cells, (), body)
        self.statements.append(statement)
        self._sources.append(statement)

    def writes(self, name: str) -> bool:
        """Whether some statement writes a new tensor."""
        return any(statement.target.tensor == name for statement in self.statements)

    def assign_where_possible(self, twins: Iterable[tuple[str, str]]) -> None:
        """Let a twin be assigned if its tensor is and both write the same cells."""
        for name, twin in twins:
            writers = [s for s in self.op.statements if s.target.tensor == name]
            derived = [i for i, s in enumerate(self.statements) if s.target.tensor == twin]
            assigned = all(writer.reducer is Reducer.ASSIGN for writer in writers)
            if assigned and [self._sources[i] for i in derived] == writers:
                for i in derived:
                    if self.statements[i].guards == self._sources[i].guards:
                        self.statements[i] = replace(self.statements[i], reducer=Reducer.ASSIGN)

    def assembled(self, parts: Parts) -> Op:
        """The derived op. Outputs of the original that it reads are temporaries now."""
        temporaries = [each for each in self._temporaries if self._is_made(each.name)]
        return assemble(
            self.op,
            replace(
                parts,
                inputs=(*self.op.inputs, *parts.inputs),
                temporaries=(*self.op.temporaries, *self.op.outputs, *temporaries),
                statements=(*self.op.statements, *self._extra, *map(self._final, self.statements)),
            ),
        )

    def _is_made(self, name: str) -> bool:
        """Whether some statement writes a temporary: what all add to it may be zero."""
        return any(each.target.tensor == name for each in (*self._extra, *self.statements))

    def _final(self, statement: Statement) -> Statement:
        """The statement, as an assignment if it alone writes its tensor, each cell once."""
        name = statement.target.tensor
        alone = sum(other.target.tensor == name for other in self.statements) == 1
        if not alone or statement.guards:
            return statement
        box = extents_of(statement.iterators)
        covers = covers_plainly(statement.target, self._extents[name], box)
        if covers and set(fixed_iterators(statement.target, box)) == box.keys():
            return replace(statement, reducer=Reducer.ASSIGN)
        return statement


def _sum(products: list[tuple[Term, Expr]]) -> Expr:
    """The sum of terms times seeds; equal ones are counted."""
    counts: dict[tuple[Term, Expr], int] = {}
    for term, seed in products:
        key = (replace(term, covers=()), seed)
        counts[key] = counts.get(key, 0) + 1
    result: Expr | None = None
    for (term, seed), count in counts.items():
        if result is None:
            result = term.times(seed, count)
        elif term.negative and not term.choices:
            positive = replace(term, negative=False)
            result = Apply("sub", (result, positive.times(seed, count)))
        else:
            result = Apply("add", (result, term.times(seed, count)))
    assert result is not None
    return result
