"""Expressions of the notation to scalars of the loops: boundary modes and absence made explicit.

Before: a read may leave its tensor, and an expression may be absent. After: an element is loaded
only where a test says that its index is inside, and what was absence is a test beside the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Atom, Kind, Poly, load, rebuild
from opgen.ir.indices import ANYWHERE, fold, places, product
from opgen.ir.loops import (
    All,
    Always,
    Any,
    Argument,
    Call,
    Choose,
    Either,
    Fault,
    If,
    Inside,
    Integer,
    Load,
    Node,
    Nonzero,
    Number,
    Scalar,
    Test,
)
from opgen.ir.notation import (
    Access,
    Apply,
    Boundary,
    Constant,
    Expr,
    Index,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Value,
)
from opgen.ir.primitives import PRIMITIVES, Absence
from opgen.ir.show_expression import access_label
from opgen.passes import gather

_ALWAYS: Final = Always()
_ZERO: Final = Number(0)


@dataclass(frozen=True, slots=True)
class Present:
    """A value, and the test under which it is not absent; the value is 0-free of faults only there.

    Where the test fails the value must not be evaluated.
    """

    test: Test
    value: Scalar

    @property
    def or_zero(self) -> Scalar:
        """The value with 0 for absent."""
        return choose(self.test, self.value, _ZERO)


@dataclass
class Lowering:
    """Lowers the expressions of one op.

    `faults` grows by every index that must be checked; `shown` says under which names messages
    speak of tensors.
    """

    op: Op
    shown: Mapping[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def expression(
        self, expr: Expr, values: Mapping[str, Poly], assumed: Sequence[gather.Inside] = ()
    ) -> Present:
        """The expression where iterators have the given values.

        `assumed` lists `?0` indices that are known to be inside.
        """
        match expr:
            case Constant(value=value):
                return Present(_ALWAYS, Number(value))
            case Parameter(name=name):
                return Present(_ALWAYS, Argument(name))
            case Value(value=number):
                return Present(_ALWAYS, Integer(number.substitute(values)))
            case Read(access=access):
                return self._read(access, values, assumed)
            case Apply(primitive=name, arguments=arguments):
                return _apply(
                    name,
                    tuple(self.expression(argument, values, assumed) for argument in arguments),
                )
            case unexpected:
                assert_never(unexpected)

    def _read(
        self, access: Access, values: Mapping[str, Poly], assumed: Sequence[gather.Inside]
    ) -> Present:
        extents = self.op.extents(access.tensor)
        present: list[Test] = []  # fails: absent
        filled: list[tuple[Test, Scalar]] = []  # fails: the fill value
        checked: list[Test] = []  # fails: a fault
        indices: list[Poly] = []
        for axis, (index, extent) in enumerate(zip(access.indices, extents, strict=True)):
            value = fold(index, extent).substitute(values)
            indices.append(value)
            match index.boundary:
                case Boundary.ZERO:
                    if gather.Inside(access, axis) not in assumed:
                        present += [*self._loads_inside(value), Inside(value, extent)]
                case Boundary.FILL:
                    assert index.fill is not None
                    checked += self._loads_inside(value)
                    filled.append((Inside(value, extent), Number(index.fill)))
                case _:
                    if gather.is_data_dependent(value):
                        checked += self._loads_inside(value)
                        if index.boundary not in ANYWHERE:
                            checked.append(Inside(value, extent, self._fault(access, axis)))
        result: Scalar = Load(access.tensor, tuple(indices))
        for test, fill in reversed(filled):
            result = choose(test, result, fill)
        result = choose(every(checked), result, _ZERO)
        return Present(every(present), result)

    def target(self, access: Access, values: Mapping[str, Poly]) -> tuple[Test, tuple[Poly, ...]]:
        """For a write that is done point by point: whether it is done, and where."""
        tests: list[Test] = []
        extents = self.op.extents(access.tensor)
        pairs = list(zip(access.indices, extents, strict=True))
        indices = [fold(index, extent).substitute(values) for index, extent in pairs]
        ends = {begin: (end, number) for begin, end, number in places(indices, extents)}
        known = 0
        for axis, (value, (index, extent)) in enumerate(zip(indices, pairs, strict=True)):
            tests += self._loads_inside(value)
            if axis < known:
                continue
            end, number = ends.get(axis, (axis, value))
            modes = {each.boundary for each in access.indices[axis:end]}
            if modes == {Boundary.DROP}:  # all are inside where the number is
                tests.append(Inside(number, product(extents[axis:end])))
                known = end
            elif index.boundary is Boundary.DROP:
                tests.append(Inside(value, extent))
            elif gather.is_data_dependent(value) and index.boundary not in ANYWHERE:
                tests.append(Inside(value, extent, self._fault(access, axis)))
        return every(tests), tuple(indices)

    def loads_inside(self, *values: Poly) -> Test:
        """Checks of all integers that are read where an index that was read itself says."""
        return every([test for value in values for test in self._loads_inside(value)])

    def guarded(self, conditions: Sequence[Condition], body: tuple[Node, ...]) -> tuple[Node, ...]:
        """The body where all conditions hold.

        An integer that is read may need other conditions to be meaningful, so it comes behind them,
        and one whose own index is read behind all that are read at known places: in
        `if i[m] >= 1 and v == p[b] + m`, of which `m = v - p[b]` is known, `i` has such a number
        only where `v - p[b]` is one of m. An index counts only where those conditions hold.
        """
        depths = sorted({max(_depth(each.value), 1) for each in conditions}, reverse=True)
        for depth in depths:
            here = [each for each in conditions if max(_depth(each.value), 1) == depth]
            here.sort(key=lambda each: each.value.is_data_dependent)
            body = (If(tuple(here), body),)
            checks = self.loads_inside(*(each.value for each in here))
            if checks != _ALWAYS:
                body = (If((), body, checks),)
        return body

    def _loads_inside(self, value: Poly) -> list[Test]:
        """Checks of the integers read for an index, where their own index is read as well."""
        return [
            Inside(arg, extent, self._fault(Access(atom.name, tuple(map(Index, atom.args))), axis))
            for atom in value.all_atoms()
            if atom.kind is Kind.LOAD
            for axis, (arg, extent) in enumerate(
                zip(atom.args, self.op.extents(atom.name), strict=True)
            )
            if gather.is_data_dependent(arg)
        ]

    def _fault(self, access: Access, axis: int) -> int:
        name = self.shown.get(access.tensor, access.tensor)
        written = (replace(each, value=self._written(each.value)) for each in access.indices)
        fault = Fault(name, axis, access_label(Access(name, tuple(written))))
        if fault not in self.faults:
            self.faults.append(fault)
        return self.faults.index(fault) + 1

    def _written(self, value: Poly) -> Poly:
        """An index with integers read from where a call has them, not from a copy of these."""

        def source(atom: Atom) -> Poly:
            args = tuple(map(self._written, atom.args))
            copied = _copied(self.op, atom.name) if atom.kind is Kind.LOAD else None
            if copied is None:
                return rebuild(atom, args)
            cell, read = copied
            here = dict(zip(cell, args, strict=True))
            return load(read.tensor, (each.value.substitute(here) for each in read.indices))

        return value.map_atoms(source) if value.is_data_dependent else value


def _copied(op: Op, name: str) -> tuple[tuple[str, ...], Access] | None:
    """What a temporary that a pass made is a copy of: the names of its own indices, and the cell
    that is read there."""
    if not any(each.name == name and each.stored for each in op.temporaries):
        return None
    match [each for each in op.statements if each.target.tensor == name]:
        case [Statement(target=target, reducer=Reducer.ASSIGN, guards=(), body=Read(access=read))]:
            cell = tuple(index.value.symbol or "" for index in target.indices)
            return (cell, read) if all(cell) else None
        case _:
            return None


def _depth(value: Poly) -> int:
    """How many integers are read one after the other: 2 for `i[p[b]]`, 0 where none is."""
    inner = (
        (atom.kind is Kind.LOAD) + max((_depth(arg) for arg in atom.args), default=0)
        for atom in value.atoms()
    )
    return max(inner, default=0)


# ---------------------------------------------------------------------------- absence
def _apply(name: str, arguments: tuple[Present, ...]) -> Present:
    """The rules of `ir.primitives.Absence`."""
    zeroed = tuple(argument.or_zero for argument in arguments)
    match PRIMITIVES[name].absence:
        case Absence.ANY:
            present = every([argument.test for argument in arguments])
            return Present(present, Call(name, tuple(argument.value for argument in arguments)))
        case Absence.ALL:
            return Present(some([argument.test for argument in arguments]), Call(name, zeroed))
        case Absence.NUMERATOR:
            first, *rest = arguments
            others = tuple(argument.or_zero for argument in rest)
            return Present(first.test, Call(name, (first.value, *others)))
        case Absence.PASS:
            (only,) = arguments
            return Present(only.test, Call(name, (only.value,)))
        case Absence.BRANCH:
            condition, then, otherwise = arguments
            test = Nonzero(condition.or_zero)
            # Where the whole is present, so is the chosen branch: its own test is not repeated.
            return Present(
                either(test, then.test, otherwise.test),
                Choose(test, then.value, otherwise.value),
            )
        case Absence.NEVER:
            return Present(_ALWAYS, Call(name, zeroed))
        case unexpected:
            assert_never(unexpected)


# ---------------------------------------------------------------------------- tests, simplified
def choose(test: Test, then: Scalar, otherwise: Scalar) -> Scalar:
    """`Choose`, without a test that always holds."""
    return then if test == _ALWAYS else Choose(test, then, otherwise)


def every(tests: Sequence[Test]) -> Test:
    """`All`, flat and without repeats."""
    flat: dict[Test, None] = {}
    for test in tests:
        match test:
            case Always():
                pass
            case All(tests=inner):
                flat.update(dict.fromkeys(inner))
            case _:
                flat[test] = None
    match tuple(flat):
        case ():
            return _ALWAYS
        case (single,):
            return single
        case several:
            return All(several)


def some(tests: Sequence[Test]) -> Test:
    """`Any`, without repeats."""
    distinct = tuple(dict.fromkeys(tests))
    if _ALWAYS in distinct:
        return _ALWAYS
    return distinct[0] if len(distinct) == 1 else Any(distinct)


def either(condition: Test, then: Test, otherwise: Test) -> Test:
    """`Either`, unless both sides agree."""
    return then if then == otherwise else Either(condition, then, otherwise)
