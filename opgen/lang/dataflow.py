"""Which statement writes what and when: faults that the order of the statements shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from opgen.errors import Edit, Span
from opgen.ir.notation import Access, Op, Reducer, Statement, Tensor
from opgen.ir.shapes import solve_order
from opgen.ir.walk import all_reads
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault, closest
from opgen.lang.lower import Lowered
from opgen.lang.repairs import accumulated, removed

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
    yield from _read_too_early(op)
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


def _read_too_early(op: Op) -> Iterator[Fault]:
    settled = {t.name for t in op.inputs} | {t.name for t in op.tables}  # or reported already
    available = set(settled)
    for position, statement in enumerate(op.statements):
        for access in all_reads(statement):
            name = access.tensor
            later = [s for s in op.statements[position:] if s.target.tensor == name]
            if name in settled or not later:
                continue
            settled.add(name)
            own = statement.target.tensor == name
            # A cell that reads itself once more needs a temporary, others make a recurrence.
            if own and (name not in available or not _same_cell(access, statement.target)):
                yield Fault(
                    "read-before-written",
                    f"'{name}' is read by the statement that writes it",
                    access.span or _span(statement),
                    (statement.target.span or _span(statement), "written here"),
                    notes=("a cell does not depend on other cells of its tensor",),
                    advice="write out what it comes to, such as sum(k if k <= i) x[k], or call an "
                    "op for each step",
                )
            elif name not in available:
                yield Fault(
                    "read-before-written",
                    f"'{name}' is read before any statement writes it",
                    access.span or _span(statement),
                    (later[0].target.span or _span(later[0]), "written only here"),
                    advice="statements run from top to bottom: move this one down",
                )
            else:
                yield Fault(
                    "read-while-written",
                    f"'{name}' is read before its last statement has written it",
                    (access.span or _span(statement), "read here"),
                    (_span(later[-1]), "still written here"),
                    advice="write the intermediate result to a temporary of its own",
                )
        available.add(statement.target.tensor)


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
