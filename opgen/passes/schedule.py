"""Gathered statements to kernels: the choice of what runs in parallel and what in a loop.

Before: statements with their fibres. After: a `loops.Program` that computes the same cells from the
same terms. One rule so far: every cell of a target is one parallel point that runs through its
fibre; consecutive statements into one tensor share a kernel. A statement whose cells are known only
at its points, or that `passes.scatters` marked, runs over the points instead, with atomic
additions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.condition import Condition
from opgen.algebra.facts import Facts
from opgen.algebra.poly import ZERO, Poly, symbol
from opgen.ir import primitives
from opgen.ir.context import facts_of
from opgen.ir.loops import (
    Always,
    AtomicAdd,
    Axis,
    Define,
    Fault,
    If,
    Kernel,
    Load,
    Node,
    Operand,
    Program,
    Result,
    Start,
    Store,
    Test,
    Workspace,
    walk,
)
from opgen.ir.names import fresh_name
from opgen.ir.notation import (
    Access,
    Apply,
    AttributeType,
    DType,
    Index,
    Iterator,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
    reads,
)
from opgen.ir.show import StatementPrinter
from opgen.passes.bucket_loops import Cell, over_own_points, sorting_loops
from opgen.passes.buckets import choices
from opgen.passes.derive import rename_tensors
from opgen.passes.fuse import fuse
from opgen.passes.gather import GatheredStatement, Kind, gather
from opgen.passes.lower import Lowering, every
from opgen.passes.nest import build_nest
from opgen.passes.point_form import PointForm, point_form

_ACCUMULATOR: Final = "total"


def schedule(
    op: Op, gathered: tuple[GatheredStatement, ...], faults: tuple[Fault, ...] = ()
) -> Program:
    """Kernels for an op, whose statements were gathered in order. Some faults may have numbers."""
    gathered = _postponed(gathered)
    wide, gathered, workspaces = _with_workspaces(op, gathered)
    shown = {workspace.name: workspace.output for workspace in workspaces}
    scheduler = _Scheduler(wide, shown, Lowering(wide, shown, list(faults)))
    for run in _runs(gathered):
        scheduler.run(run)
    narrow = (*op.inputs, *op.outputs)
    operands = [_operand(wide, tensor, widened=False) for tensor in narrow]
    operands += [_operand(wide, tensor, widened=True) for tensor in wide.temporaries]
    program = Program(
        op.name,
        tuple(operands),
        op.tables,
        _integers_of(op),
        tuple(a.name for a in op.attributes if a.type is AttributeType.FLOAT),
        tuple(scheduler.kernels),
        tuple(scheduler.lowering.faults),
        workspaces,
    )
    return fuse(program)


def _integers_of(op: Op) -> tuple[str, ...]:
    """The symbols that a call passes: sizes, lets, integer attributes."""
    names = [
        tensor.dims[0].extent.symbol or "" for tensor in (*op.inputs, *op.outputs) if tensor.batched
    ]
    names += [*op.sizes, *(let.name for let in op.lets)]
    for attribute in op.attributes:
        if attribute.type is not AttributeType.FLOAT:
            names.extend(attribute.symbols)
    return tuple(dict.fromkeys(names))


def _operand(op: Op, tensor: Tensor, widened: bool) -> Operand:
    optional = tensor.default is not None
    about = tensor.name, tensor.dtype, op.extents(tensor.name), widened, optional
    return Operand(*about, stored=tensor.stored, carried=tensor.carried)


# ---------------------------------------------------------------------------- runs of statements
@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive statements into one tensor that share a kernel."""

    tensor: str
    parts: tuple[GatheredStatement, ...]

    @property
    def is_scattered(self) -> bool:
        return self.parts[0].kind is Kind.SCATTER

    @property
    def is_added(self) -> bool:
        """Whether points add to cells, which others make zero before, or join in them otherwise."""
        statement = self.parts[0].statement
        is_known = statement.reducer in (Reducer.ADD, Reducer.ASSIGN) or statement.is_scattered
        return self.is_scattered and is_known


def _postponed(gathered: Sequence[GatheredStatement]) -> tuple[GatheredStatement, ...]:
    """The statements in an order in which more of those into one tensor follow each other.

    A reverse sweep adds to a gradient wherever it meets a reader of the tensor. What is added goes
    to the next statement that adds to the same tensor, if nothing in between needs the sum so far,
    or changes what it is made of. What goes through points that know their cells comes behind what
    goes through cells: these need not be zero before, and then be loaded again.
    """
    out: list[GatheredStatement] = []
    for part in gathered:
        tensor = part.statement.target.tensor
        waiting = [each for each in out if each.statement.target.tensor == tensor]
        scattered: list[GatheredStatement] = []
        if waiting and all(_may_wait(each, out) for each in waiting):
            out = [each for each in out if each not in waiting]
            if _is_gathered_sum(part):
                scattered = [each for each in waiting if each.kind is Kind.SCATTER]
            out += [each for each in waiting if each not in scattered]
        out += [part, *scattered]
    return tuple(out)


def _is_gathered_sum(part: GatheredStatement) -> bool:
    """Whether cells look for what is added to them."""
    tensor = part.statement.target.tensor
    is_sum = part.statement.reducer is Reducer.ADD
    return is_sum and part.kind is not Kind.SCATTER and tensor not in _tensors_read(part.statement)


def _may_wait(part: GatheredStatement, before: Sequence[GatheredStatement]) -> bool:
    """Whether a statement may as well come behind the last one of these, of which it is one."""
    tensor, needed = part.statement.target.tensor, _tensors_read(part.statement)
    behind = before[before.index(part) + 1 :]
    is_scattered = part.kind is Kind.SCATTER
    return (
        (part.statement.reducer is Reducer.ADD or not is_scattered)
        and part.statement.reducer in (Reducer.ADD, Reducer.ASSIGN)
        and tensor not in needed
        and all(
            each.statement.target.tensor == tensor
            or (
                tensor not in _tensors_read(each.statement)
                and each.statement.target.tensor not in needed
            )
            for each in behind
        )
    )


def _runs(gathered: Sequence[GatheredStatement]) -> tuple[_Run, ...]:
    runs: list[_Run] = []
    for part in gathered:
        tensor = part.statement.target.tensor
        if (
            runs
            and runs[-1].tensor == tensor
            and not runs[-1].is_scattered
            and part.kind is not Kind.SCATTER
            and tensor not in _tensors_read(part.statement)
        ):
            runs[-1] = _Run(tensor, (*runs[-1].parts, part))
        else:
            runs.append(_Run(tensor, (part,)))
    return tuple(runs)


def _tensors_read(statement: Statement) -> frozenset[str]:
    accesses = tuple(reads(statement.body))
    polys = [index.value for a in (*accesses, statement.target) for index in a.indices]
    polys += [guard.value for guard in statement.guards]
    loaded = (atom.name for value in polys for atom in value.loads)
    return frozenset((*(access.tensor for access in accesses), *loaded))


# ---------------------------------------------------------------------------- workspaces
_WIDE: Final = frozenset({DType.F32, DType.F64, DType.I64})
"""Types that are stored as they are computed."""


def _with_workspaces(
    op: Op, gathered: tuple[GatheredStatement, ...]
) -> tuple[Op, tuple[GatheredStatement, ...], tuple[Workspace, ...]]:
    """Let kernels that share an output of a narrow type add up in a wide temporary.

    Otherwise every kernel would round what the one before it left. An output of a type of its own
    that later statements read has one too: what they read is not converted yet.
    """
    kernels = [run.tensor for run in _runs(gathered) for _ in range(2 if run.is_added else 1)]
    read = frozenset[str]().union(*(_tensors_read(part.statement) for part in gathered))
    shared = [
        tensor
        for tensor in op.outputs
        if (kernels.count(tensor.name) > 1 and tensor.dtype not in _WIDE)
        or (tensor.name in read and _is_converted(op, tensor))
    ]
    if not shared:
        return op, gathered, ()
    taken = {tensor.name for tensor in (*op.inputs, *op.outputs, *op.temporaries)}
    taken.update(table.name for table in op.tables)
    names = {tensor.name: fresh_name(f"{tensor.name}_total", taken) for tensor in shared}
    last = {part.statement.target.tensor: at for at, part in enumerate(gathered)}
    copies = {tensor.name: _copy_statement(tensor, names[tensor.name]) for tensor in shared}
    temporaries = tuple(replace(tensor, name=names[tensor.name]) for tensor in shared)
    wide = replace(
        op,
        temporaries=(*op.temporaries, *temporaries),
        statements=tuple(copies.values()),
    )
    gathered_copies = dict(zip(copies, gather(wide), strict=True))
    out: list[GatheredStatement] = []
    for at, part in enumerate(gathered):
        out.append(replace(part, statement=rename_tensors(part.statement, names)))
        target = part.statement.target.tensor
        if target in names and last[target] == at:
            out.append(gathered_copies[target])
    return wide, tuple(out), tuple(Workspace(new, old) for old, new in names.items())


def _is_converted(op: Op, tensor: Tensor) -> bool:
    """Whether the numbers of an output may be others once they are stored in its declared type.

    What is true or false is the same in all. Undeclared ones take the type of the inputs.
    """
    if tensor.dtype.is_generic or tensor.dtype in (DType.F64, DType.I64):
        return False
    types = {each.dtype for each in (*op.inputs, *op.outputs)}
    if tensor.dtype is DType.F32 and not any(e.is_generic or e is DType.F64 for e in types):
        return False  # nothing is computed in more bits
    return not all(
        isinstance(each.body, Apply)
        and primitives.PRIMITIVES[each.body.primitive].kind is primitives.Kind.BOOLEAN
        for each in op.statements
        if each.target.tensor == tensor.name
    )


def _copy_statement(tensor: Tensor, source: str) -> Statement:
    names = tuple(f"i{axis}" for axis in range(len(tensor.dims)))
    indices = tuple(Index(symbol(name)) for name in names)
    iterators = tuple(
        Iterator(name, dim.extent) for name, dim in zip(names, tensor.dims, strict=True)
    )
    target, copied = Access(tensor.name, indices), Access(source, indices)
    return Statement(target, Reducer.ASSIGN, iterators, (), Read(copied))


# ---------------------------------------------------------------------------- kernels
@dataclass
class _Scheduler:
    """Collects the kernels of one op."""

    op: Op
    shown: Mapping[str, str]  # workspaces by the names of their outputs
    lowering: Lowering
    facts: Facts = field(init=False)
    kernels: list[Kernel] = field(default_factory=list)
    started: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.facts = facts_of(self.op)

    def run(self, run: _Run) -> None:
        """The kernels of one run."""
        if run.is_scattered:
            self._scatter(run)
        else:
            self._gather(run)

    def _kernel(
        self,
        name: str,
        written: str,
        axes: tuple[Axis, ...],
        body: tuple[Node, ...],
        spec: tuple[str, ...],
        prologue: tuple[Define, ...] = (),
    ) -> None:
        number, unique = 2, f"{self.op.name}_{name}"
        while unique in self.taken:
            number, unique = number + 1, f"{self.op.name}_{name}_{number}"
        self.taken.add(unique)
        self.kernels.append(Kernel(unique, written, axes, prologue, body, spec))
        self.started.add(written)

    def _spec(self, part: GatheredStatement) -> str:
        """The statement as spec text, for comments."""
        statement = rename_tensors(part.statement, self.shown)
        try:
            return StatementPrinter(self.op, statement).text()
        except AssertionError:  # not every statement of the notation can be written in a spec
            cell = ", ".join(str(index.value) for index in statement.target.indices)
            return f"{statement.target.tensor}[{cell}] by {statement.reducer.name.lower()}"

    def _start(self, tensor: str, reducer: Reducer, cell: tuple[Poly, ...]) -> Start:
        """The accumulator of a cell: what was stored so far, else the identity."""
        if tensor not in self.started:
            return Start(_ACCUMULATOR, tensor, reducer)
        return Start(_ACCUMULATOR, tensor, reducer, Load(tensor, cell))

    def _gather(self, run: _Run) -> None:
        """One point for every cell."""
        parts = run.parts
        names = parts[0].coordinates
        axes, point = _axes(names, self.op.extents(run.tensor))
        cell = point
        forms = _agreeing([point_form(self.op, part.statement) for part in parts])
        if forms:
            parts, names = tuple(form.gathered for form in forms), forms[0].gathered.coordinates
            axes, point = _axes(names, [iterator.extent for iterator in forms[0].iterators])
            cell = forms[0].cell_at(point)
        taken = {*_integers_of(self.op), *names}
        known = _extents_are_positive(self.facts, axes)
        prologue: list[Define] = []
        body: list[Node] = [self._start(run.tensor, parts[0].statement.reducer, cell)]
        for part in parts:
            for piece in part.pieces:
                nest = build_nest(part, piece, point, taken, known, _ACCUMULATOR, self.lowering)
                prologue.extend(nest.prologue)
                body.extend(nest.body if forms else self._bucketed(part, nest.body, point, taken))
                # What follows in the kernel sees these: a loop of the same name would be theirs.
                taken.update(node.name for node in walk(nest.body) if isinstance(node, Define))
        body.append(Store(run.tensor, cell, Result(_ACCUMULATOR)))
        spec = tuple(self._spec(part) for part in run.parts)
        self._kernel(run.tensor, run.tensor, axes, tuple(body), spec, tuple(prologue))

    def _bucketed(
        self,
        part: GatheredStatement,
        body: tuple[Node, ...],
        cell: tuple[Poly, ...],
        taken: set[str],
    ) -> tuple[Node, ...]:
        """A nest whose cells go through lists of their points, if it is marked so."""
        statement, lists = part.statement, part.statement.buckets
        found = lists and choices(statement, self.op.extents(statement.target.tensor))
        if not lists or not found:
            return body
        inner = over_own_points(body, found, lists, Cell(cell, dict(part.names)), taken)
        if inner is not None and lists.ends not in self.started:
            names = {*_integers_of(self.op), *(each.name for each in statement.iterators)}
            sorting = sorting_loops(found, lists, self.lowering, names, _ACCUMULATOR)
            self._kernel(lists.ends, lists.ends, *sorting, ())
            self.kernels[-1] = replace(self.kernels[-1], also=(lists.order,), shares_cells=False)
        return body if inner is None else inner

    def _scatter(self, run: _Run) -> None:
        """One point for every term."""
        (part,) = run.parts
        statement = part.statement
        spec = (self._spec(part),)
        inside, cell = self.lowering.target(statement.target, {})
        if not run.is_added:
            # There is no atomic form: try every point for every cell, then check the indices.
            self._gather(run)
            check = self._guarded(statement, Always(), If((), (), inside))
            self._point_kernel(f"{run.tensor}_check", statement, check, spec)
            return
        if run.tensor not in self.started:
            self._initialise(run.tensor, statement.reducer)
        lowered = self.lowering.expression(statement.body, {})
        if statement.reducer is not Reducer.ASSIGN:
            add = AtomicAdd(run.tensor, cell, lowered.value, statement.reducer)
            node = self._guarded(statement, every((inside, lowered.test)), add)
        else:
            store = Store(run.tensor, cell, lowered.or_zero)
            node = self._guarded(statement, inside, store)
        self._point_kernel(run.tensor, statement, node, spec)

    def _guarded(self, statement: Statement, test: Test, node: Node) -> Node:
        """A node at the points of a statement that its guards and a test allow."""
        if self.lowering.loads_inside(*(guard.value for guard in statement.guards)) == Always():
            return _if(statement.guards, test, node)
        (guarded,) = self.lowering.guarded(statement.guards, (_if((), test, node),))
        return guarded

    def _initialise(self, tensor: str, reducer: Reducer) -> None:
        taken = set(_integers_of(self.op))
        extents = self.op.extents(tensor)
        names = tuple(fresh_name(f"u{axis}", taken) for axis in range(len(extents)))
        axes, cell = _axes(names, extents)
        store = Store(tensor, cell, Result(_ACCUMULATOR))
        body = (Start(_ACCUMULATOR, tensor, reducer), store)
        self._kernel(f"{tensor}_start", tensor, axes, body, ())

    def _point_kernel(
        self, name: str, statement: Statement, node: Node, spec: tuple[str, ...]
    ) -> None:
        axes = tuple(Axis(iterator.name, iterator.extent) for iterator in statement.iterators)
        self._kernel(name, statement.target.tensor, axes, (node,), spec)


def _if(conditions: tuple[Condition, ...], test: Test, node: Node) -> Node:
    """A node where conditions and a test hold; the node itself where there are none."""
    return node if not conditions and test == Always() else If(conditions, (node,), test)


def _agreeing(forms: Sequence[PointForm | None]) -> tuple[PointForm, ...]:
    """The forms, if all enumerate the same cells in the same order; else none."""
    found = [form for form in forms if form is not None]
    if len(found) < len(forms):
        return ()
    first, *others = found
    point = [symbol(each.name) for each in first.iterators]
    for form in others:
        extents = [each.extent for each in form.iterators]
        if extents != [each.extent for each in first.iterators]:
            return ()
        if form.cell_at(point) != first.cell:
            return ()
    return tuple(found)


def _axes(
    names: Sequence[str], extents: Sequence[Poly]
) -> tuple[tuple[Axis, ...], tuple[Poly, ...]]:
    """The axes over the cells of a tensor, none for an extent of 1, and the cell at a point."""
    axes = []
    cell = []
    for name, extent in zip(names, extents, strict=True):
        if extent == 1:
            cell.append(ZERO)
        else:
            axes.append(Axis(name, extent))
            cell.append(symbol(name))
    return tuple(axes), tuple(cell)


def _extents_are_positive(facts: Facts, axes: Sequence[Axis]) -> Facts:
    """What holds inside the loops over the axes."""
    return facts.with_conditions(*(Condition(axis.extent - 1) for axis in axes))
