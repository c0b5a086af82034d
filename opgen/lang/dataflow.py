"""Which statement writes what and when: faults that the order of the statements shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from opgen.algebra.poly import symbol
from opgen.errors import Edit, Span
from opgen.ir.notation import Access, Op, Reducer, Statement, Tensor
from opgen.ir.shapes import solve_order
from opgen.ir.walk import all_reads
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault, closest
from opgen.lang.lower import Lowered
from opgen.lang.repairs import accumulated, kept_apart, removed

_ADDS: Final = (Reducer.ASSIGN, Reducer.ADD)
_SPELLED: Final = {
    Reducer.ASSIGN: "=",
    Reducer.ADD: "+=",
    Reducer.MAX: "max=",
    Reducer.MIN: "min=",
    Reducer.MULTIPLY: "prod",
}


def order_faults(
    op: Op, entries: Sequence[Lowered], definition: syntax.Definition, environment: Environment
) -> Iterator[Fault]:
    """Every tensor is written, with one reducer, `=` first and before it is read; every size is
    determined by the inputs."""
    yield from _mixed(op)
    yield from _unwritten(op, definition, environment)
    yield from _read_too_early(op, entries, environment)
    yield from _assigned_late(entries, environment)
    yield from _undetermined(op, environment)


def _mixed(op: Op) -> Iterator[Fault]:
    first_of: dict[str, Statement] = {}
    for statement in op.statements:
        first = first_of.setdefault(statement.target.tensor, statement)
        if not _compatible(first, statement):
            one, two = (_SPELLED.get(s.reducer, s.reducer.value) for s in (first, statement))
            yield Fault(
                "mixed-reducers",
                f"'{statement.target.tensor}' is written with `{one}` and with `{two}`",
                (_span(statement), f"`{two}` here"),
                (_span(first), f"`{one}` here"),
                notes=("only `=` and `+=` go together",),
                advice="write one of them to a temporary first, and combine the two",
            )


def _compatible(first: Statement, second: Statement) -> bool:
    """Whether two statements may write one tensor: all add, or all take the max, or the min."""
    if first is second:
        return True
    if first.reducer in _ADDS and second.reducer in _ADDS:
        return True
    return first.reducer is second.reducer and first.reducer in (Reducer.MAX, Reducer.MIN)


def _unwritten(op: Op, definition: syntax.Definition, environment: Environment) -> Iterator[Fault]:
    written = {statement.target.tensor for statement in op.statements}
    declared = {
        tensor.name.text: clause
        for clause in definition.clauses
        if isinstance(clause, syntax.Temporaries)
        for tensor in clause.tensors
    }
    results: tuple[Tensor, ...] = (*op.outputs, *op.temporaries)
    inferred = [t.name for t in op.temporaries if t.name not in declared]
    for tensor in results:
        if tensor.name in written:
            continue
        close = closest(tensor.name, inferred)
        advice, edit = _write_it(tensor, close, declared.get(tensor.name), environment)
        yield Fault(
            "never-written",
            f"'{tensor.name}' is declared, but no statement writes it",
            environment.declared_at[tensor.name],
            *(((environment.declared_at[close], "written here"),) if close else ()),
            advice=advice,
            replacement=edit,
        )


def _write_it(
    tensor: Tensor,
    close: str | None,
    clause: syntax.Temporaries | None,
    environment: Environment,
) -> tuple[str, Edit | None]:
    if close is not None:
        return f"did you mean '{tensor.name}' there?", (environment.declared_at[close], tensor.name)
    if clause is not None:
        alone = len(clause.tensors) == 1
        edit = removed(clause.span, environment.source) if alone else None
        return "write it, or remove the declaration", edit
    shape = environment.shape(tensor).lower()
    return f"write it, such as {shape} = ..., or remove it from the outputs", None


@dataclass(frozen=True, slots=True)
class _EarlyRead:
    """The first read of a tensor that statements from there on write, this one or later ones."""

    access: Access
    statement: Statement
    writers: tuple[Statement, ...]
    is_written: bool  # by statements before this one

    @property
    def own(self) -> bool:
        """Whether the statement writes what it reads."""
        return self.statement.target.tensor == self.access.tensor

    @property
    def is_recurrence(self) -> bool:
        """Whether a cell depends on others; one that reads itself once more needs a temporary."""
        same = _same_cell(self.access, self.statement.target)
        return self.own and not (self.is_written and same)


def rewritten(op: Op) -> frozenset[str]:
    """The tensors that are written, read and written again, as if they were variables."""
    return frozenset(read.access.tensor for read in _early_reads(op) if read.is_written)


def _early_reads(op: Op) -> Iterator[_EarlyRead]:
    settled = {t.name for t in op.inputs} | {t.name for t in op.tables}  # or found already
    available = set(settled)
    for position, statement in enumerate(op.statements):
        for access in all_reads(statement):
            name = access.tensor
            writers = tuple(s for s in op.statements[position:] if s.target.tensor == name)
            if name in settled or not writers:
                continue
            settled.add(name)
            yield _EarlyRead(access, statement, writers, name in available)
        available.add(statement.target.tensor)


def _read_too_early(
    op: Op, entries: Sequence[Lowered], environment: Environment
) -> Iterator[Fault]:
    for read in _early_reads(op):
        name, access, statement = read.access.tensor, read.access, read.statement
        later = read.writers
        if read.is_recurrence:
            yield Fault(
                "read-before-written",
                f"'{name}' is read by the statement that writes it",
                access.span or _span(statement),
                (statement.target.span or _span(statement), "written here"),
                notes=("a cell does not depend on other cells of its tensor",),
                advice="write out what it comes to, such as sum(k if k <= i) x[k], or call an "
                "op for each step",
            )
        elif not read.is_written:
            yield Fault(
                "read-before-written",
                f"'{name}' is read before any statement writes it",
                access.span or _span(statement),
                (later[0].target.span or _span(later[0]), "written only here"),
                advice="statements run from top to bottom: move this one down",
            )
        else:
            meant = _kept_apart(name, later, entries, environment)
            yield Fault(
                "read-while-written",
                f"'{name}' is read before its last statement has written it",
                (access.span or _span(statement), "read here"),
                (_span(later[-1]), "still written here"),
                advice="write the intermediate result to a temporary of its own"
                + (f", such as {meant[0]}" if meant is not None else ""),
                replacement=None if meant is None else meant[1],
            )


def _kept_apart(
    name: str, later: Sequence[Statement], entries: Sequence[Lowered], environment: Environment
) -> tuple[str, Edit] | None:
    """A name for what is read, if the one statement that follows writes every cell anew."""
    writers = [entry for entry in entries if entry.statement.target.tensor == name]
    first, last = writers[0].written_as, writers[-1].written_as
    if len(later) > 1 or first is None or last is None or not _writes_all(writers[-1], environment):
        return None
    return kept_apart(first, last, environment)


def _writes_all(entry: Lowered, environment: Environment) -> bool:
    """Whether a statement plainly assigns every cell of its tensor."""
    statement, written_as = entry.statement, entry.written_as
    tensor = environment.tensors[statement.target.tensor]
    if written_as is None or written_as.operator != "=" or written_as.condition is not None:
        return False
    expand = environment.expand_lets
    ranges = [(symbol(i.name), expand(i.extent)) for i in statement.iterators[: entry.own]]
    cells = (
        [
            (index.value, expand(dim.extent))
            for index, dim in zip(statement.target.indices, tensor.dims, strict=True)
        ]
        if isinstance(tensor, Tensor)
        else []
    )
    return len(cells) == len(ranges) and all(ranges.count(cell) == 1 for cell in cells)


def _same_cell(one: Access, other: Access) -> bool:
    return [index.value for index in one.indices] == [index.value for index in other.indices]


def _assigned_late(entries: Iterable[Lowered], environment: Environment) -> Iterator[Fault]:
    """`=` comes before `+=`, `max=` and `min=`: it starts a cell, it does not replace it."""
    joined: dict[str, Statement] = {}
    for entry in entries:
        statement = entry.statement
        if not entry.exclusive:
            joined.setdefault(statement.target.tensor, statement)
        elif (earlier := joined.get(statement.target.tensor)) is not None:
            yield Fault(
                "assigned-late",
                f"`=` writes '{statement.target.tensor}' after an accumulation into it",
                (_span(statement), "here"),
                (_span(earlier), "accumulated here"),
                advice="move the `=` above, or accumulate here too",
                replacement=accumulated(entry.written_as, environment)
                if entry.written_as is not None
                else None,
            )


def _undetermined(op: Op, environment: Environment) -> Iterator[Fault]:
    plan = solve_order(op.inputs, op.attributes, op.sizes, op.lets, op.constraints, op.outputs)
    reported: set[str] = set()
    for size, places in plan.undetermined:
        if size in reported:
            continue
        # Sizes that share a dim: once one of them is given, the dim determines the other.
        sharing = [s for s, other in plan.undetermined if s == size or set(other) & set(places)]
        reported.update(sharing)
        shown = " and ".join(f"'{name}'" for name in sharing)
        dims = (environment.text(environment.dim_spans[place]) for place in places[:2])
        note = (
            "one dim determines one size, and there is only " + ", ".join(dims)
            if places
            else "an input with a default may be absent, so its shape determines nothing"
        )
        yield Fault(
            "undetermined-size",
            f"{shown} {'does' if len(sharing) == 1 else 'do'} not follow from the shapes of "
            "the inputs",
            environment.sizes[size],
            *((environment.sizes[other], "nor this") for other in sharing[1:]),
            notes=(note,),
            advice=f"pass {'it' if len(sharing) == 1 else 'one'} as an attribute, `; {size}: size`",
            replacement=environment.new_attribute(f"{size}: size"),
        )


def _span(statement: Statement) -> Span:
    return statement.span or Span(0, 0)
