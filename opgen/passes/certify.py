"""The certificate of a family of ops: what its proofs and its gather forms say.

Before: checked ops with their derivatives, and the fibres that their kernels are made from. After:
a summary that states nothing beyond what the checker requires of every op, and what `gather` found.
It proves nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from opgen.algebra.poly import Kind as AtomKind
from opgen.algebra.poly import Poly
from opgen.ir.certificate import Accesses, Certificate, DerivedForm, Form, Proofs, Trials
from opgen.ir.family import Member
from opgen.ir.notation import Access, Boundary, Index, Op, Statement, reads
from opgen.passes.gather import GatheredStatement, Kind


def certificate(
    members: Sequence[Member],
    gathered: Sequence[Sequence[GatheredStatement]],
    trials: Trials | None = None,
) -> Certificate:
    """The certificate of ops and derivatives; `gathered` are the fibres of each."""
    derived = []
    stated = {m.op.name: {g.input: g.op for g in m.op.gradients} for m in members}
    for member, statements in zip(members, gathered, strict=True):
        if not member.is_public:
            derived.append(DerivedForm(member.path, member.op.name, _form(statements)))
        for name, op in stated[member.op.name].items():
            derived.append(DerivedForm((*member.path, name), op, Form.STATED))
    return Certificate(
        tuple(_proofs(member.op) for member in members if member.is_public),
        tuple(derived),
        trials,
    )


def _form(statements: Iterable[GatheredStatement]) -> Form:
    """The least favourable form of the statements of an op."""
    forms = {_form_of(statement.kind) for statement in statements}
    for form in (Form.ATOMICS, Form.ENUMERATED):
        if form in forms:
            return form
    return Form.GATHER


def _form_of(kind: Kind) -> Form:
    match kind:
        case Kind.BIJECTIVE | Kind.INJECTIVE | Kind.GATHER:
            return Form.GATHER
        case Kind.ENUMERATED:
            return Form.ENUMERATED
        case Kind.SCATTER:
            return Form.ATOMICS
        case unexpected:
            assert_never(unexpected)


# ---------------------------------------------------------------------------- proofs
def _proofs(op: Op) -> Proofs:
    reduced = {s.target.tensor for s in op.statements if not s.is_exclusive}
    assigned = [s.target.tensor for s in op.statements if s.target.tensor not in reduced]
    return Proofs(
        op.name,
        _counted(access for each in op.statements for access in _read(each)),
        _counted(each.target for each in op.statements),
        tuple(dict.fromkeys(assigned)),
        tuple(temporary.name for temporary in op.temporaries),
        tuple(c.text or str(c.condition) for c in op.constraints if c.derived),
    )


def _counted(accesses: Iterable[Access]) -> Accesses:
    proved = bounded = checked = 0
    for access in accesses:
        modes = [(i.boundary, i.value.is_data_dependent) for i in access.indices]
        if any(mode is Boundary.NONE and is_loaded for mode, is_loaded in modes):
            checked += 1
        elif any(mode is not Boundary.NONE for mode, _ in modes):
            bounded += 1
        else:
            proved += 1
    return Accesses(proved, bounded, checked)


def _read(statement: Statement) -> Iterator[Access]:
    """Every access that a statement reads, also those that give an index or a condition."""
    for access in reads(statement.body):
        yield access
        yield from _loads(index.value for index in access.indices)
    yield from _loads(index.value for index in statement.target.indices)
    yield from _loads(guard.value for guard in statement.guards)
    if statement.position is not None:
        yield from _loads((statement.position,))


def _loads(values: Iterable[Poly]) -> Iterator[Access]:
    for value in values:
        for atom in value.all_atoms():
            if atom.kind is AtomKind.LOAD:
                yield Access(atom.name, tuple(Index(argument) for argument in atom.args))
