"""What loop nests are made of: scalars, tests and polynomials, and what a kernel refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from opgen.algebra.poly import Poly
from opgen.ir.loops import (
    Accumulate,
    All,
    Always,
    Any,
    Argument,
    AtomicAdd,
    Call,
    Choose,
    Define,
    Either,
    For,
    If,
    Inside,
    Integer,
    Kernel,
    Lanes,
    Load,
    Node,
    Nonzero,
    Number,
    Program,
    Result,
    Scalar,
    Start,
    Store,
    Test,
    walk,
)
from opgen.ir.primitives import VECTOR_OPERATORS


def node_scalars(node: Node) -> tuple[Scalar, ...]:
    """The scalars a node holds itself."""
    match node:
        case Start(value=None) | Define() | For() | Lanes() | If():
            return ()
        case Start(value=value) | Store(value=value) | AtomicAdd(value=value):
            assert value is not None
            return (value,)
        case Accumulate(value=value):
            return (value,)
        case unexpected:
            assert_never(unexpected)


def node_tests(node: Node) -> tuple[Test, ...]:
    """The tests a node holds itself."""
    match node:
        case If(test=test):
            return (test,)
        case Accumulate(present=present):
            return (present,)
        case _:
            return ()


def node_polys(node: Node) -> tuple[Poly, ...]:
    """The polynomials a node holds itself, those of its scalars and tests not counted."""
    match node:
        case Define(value=value):
            return (value,)
        case For(lower=lower, upper=upper) | Lanes(lower=lower, upper=upper):
            return (*lower, *upper)
        case If(conditions=conditions):
            return tuple(condition.value for condition in conditions)
        case Start():
            return ()
        case Accumulate(position=position, order=order):
            return order if position is None else (position, *order)
        case Store(indices=indices) | AtomicAdd(indices=indices):
            return indices
        case unexpected:
            assert_never(unexpected)


def held(node: Node) -> Iterator[Scalar | Test]:
    """All scalars and tests that a node holds, each before its parts; not those of its children.

    Kernels are asked for them thousands of times: a loop leaves nothing behind, where functions
    that call each other would be garbage for Python to find.
    """
    waiting: list[Scalar | Test] = [*reversed(node_tests(node)), *reversed(node_scalars(node))]
    while waiting:
        value = waiting.pop()
        yield value
        match value:
            case Call(arguments=arguments):
                waiting.extend(reversed(arguments))
            case All(tests=tests) | Any(tests=tests):
                waiting.extend(reversed(tests))
            case Nonzero(value=number):
                waiting.append(number)
            case Choose(test=test, then=chosen, otherwise=other):
                waiting += (other, chosen, test)
            case Either(condition=condition, then=then, otherwise=otherwise):
                waiting += (otherwise, then, condition)
            case Number() | Argument() | Result() | Integer() | Load() | Always() | Inside():
                pass
            case unexpected:
                assert_never(unexpected)


def visit(
    node: Node,
    on_scalar: Callable[[Scalar], None],
    on_test: Callable[[Test], None],
    on_poly: Callable[[Poly], None],
    on_number: Callable[[Poly], None] | None = None,
) -> None:
    """Call back for all scalars, tests and polynomials that a node holds, not for its children.

    `on_number` is called instead of `on_poly` for polynomials that are used as numbers.
    """
    for value in held(node):
        match value:
            case Integer(value=number):
                on_scalar(value)
                (on_number or on_poly)(number)
            case Load(indices=indices):
                on_scalar(value)
                for index in indices:
                    on_poly(index)
            case Number() | Argument() | Result() | Call() | Choose():
                on_scalar(value)
            case Inside(index=index, extent=extent):
                on_test(value)
                on_poly(index)
                on_poly(extent)
            case Always() | Nonzero() | All() | Any() | Either():
                on_test(value)
            case unexpected:
                assert_never(unexpected)
    for polynomial in node_polys(node):
        on_poly(polynomial)


def loads_of(nodes: Iterable[Node]) -> list[Load]:
    """Every load that nodes hold, in order, repeats included; not those of their children."""
    return [value for node in nodes for value in held(node) if isinstance(value, Load)]


def results_of(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """The accumulators whose values scalars in the nodes, or in their children, read."""
    found = dict.fromkeys(
        value.accumulator
        for node in walk(nodes)
        for value in held(node)
        if isinstance(value, Result)
    )
    return tuple(found)


def goes_along(indices: Sequence[Poly], name: str) -> bool:
    """Whether neighbours along an axis, or lanes of a row, are neighbours in the last dim."""
    if not indices:
        return False
    *outer, last = indices
    return last.step_in(name) == 1 and not any(name in index.symbols for index in outer)


def is_arithmetic(value: Scalar, name: str) -> bool:
    """Whether only sums and products are made of vectors; what is the same for all lanes is one
    number."""
    if not any(moving(value, name)):
        return not any(isinstance(each, Choose) for each in _parts_of(value))
    match value:
        case Load() | Result():
            return True
        case Call(primitive=primitive, arguments=arguments):
            is_same = primitive in VECTOR_OPERATORS
            return is_same and all(is_arithmetic(each, name) for each in arguments)
        case _:
            return False


def _parts_of(value: Scalar) -> Iterator[Scalar]:
    yield value
    if isinstance(value, Call):
        for argument in value.arguments:
            yield from _parts_of(argument)


def moving(value: Scalar, name: str) -> Iterator[Scalar]:
    """The parts of a value that differ from lane to lane, where no test does."""
    match value:
        case Result():
            yield value
        case Load(indices=indices):
            if any(name in index.symbols for index in indices):
                yield value
        case Integer(value=number):
            if name in number.symbols:
                yield value
        case Call(arguments=arguments):
            for argument in arguments:
                yield from moving(argument, name)
        case Choose(then=then, otherwise=otherwise):
            yield from moving(then, name)
            yield from moving(otherwise, name)
        case Number() | Argument():
            return
        case unexpected:
            assert_never(unexpected)


def accumulators_of(*nodes: Node) -> frozenset[str]:
    """The accumulators that nodes, and those in them, start, join or read."""
    found: set[str] = set()
    for node in walk(nodes):
        found.update(value.accumulator for value in held(node) if isinstance(value, Result))
        if isinstance(node, Start | Accumulate):
            found.add(node.accumulator)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Uses:
    """What a kernel refers to: names of tensors and tables, symbols, float attributes.

    `read` are the tensors whose elements are numbers, `loaded` those that are read as part of an
    index; `faults` tells whether an index is checked at run time.
    """

    tensors: frozenset[str]
    read: frozenset[str]
    loaded: frozenset[str]
    symbols: frozenset[str]
    numbers: frozenset[str]
    faults: bool

    def joined(self, other: Uses) -> Uses:
        """What either of two kernels refers to."""
        return Uses(
            self.tensors | other.tensors,
            self.read | other.read,
            self.loaded | other.loaded,
            self.symbols | other.symbols,
            self.numbers | other.numbers,
            self.faults or other.faults,
        )


_KNOWN: Final[dict[int, tuple[Kernel, Uses]]] = {}
_MOST_KNOWN: Final = 64


def uses(kernel: Kernel) -> Uses:
    """Everything a kernel refers to; its own axes, loops and definitions are not counted.

    Passes ask again and again. Kernels are known by identity: to compare two of them, or to hash
    one, takes as long as to look at it.
    """
    known = _KNOWN.get(id(kernel))
    if known is None or known[0] is not kernel:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[id(kernel)] = (kernel, _looked_at(kernel))
    return known[1]


def _looked_at(kernel: Kernel) -> Uses:
    tensors = set(kernel.all_written)
    read: set[str] = set()
    loaded: set[str] = set()
    symbols: set[str] = set()
    numbers: set[str] = set()
    faults: list[int] = []
    local = {axis.name for axis in kernel.axes} | {define.name for define in kernel.prologue}

    def on_poly(value: Poly) -> None:
        symbols.update(value.symbols)
        loaded.update(atom.name for atom in value.loads)

    def on_scalar(value: Scalar) -> None:
        match value:
            case Load(tensor=tensor):
                read.add(tensor)
            case Argument(name=name):
                numbers.add(name)
            case _:
                pass

    def on_test(value: Test) -> None:
        if isinstance(value, Inside) and value.fault is not None:
            faults.append(value.fault)

    for row in kernel.stretched:
        local |= {row.axis.name, row.first, row.last, *(row.around or ())}
        on_poly(row.axis.extent)
    for axis in kernel.axes:
        on_poly(axis.extent)
    for define in kernel.prologue:
        on_poly(define.value)
    if kernel.guest is not None:
        on_poly(kernel.guest.first)
        on_poly(kernel.guest.count)
    for node in walk(kernel.body):
        visit(node, on_scalar, on_test, on_poly)
        match node:
            case Define(name=name) | For(name=name):
                local.add(name)
            case Store(tensor=tensor) | AtomicAdd(tensor=tensor) | Start(tensor=tensor):
                tensors.add(tensor)
            case _:
                pass
    return Uses(
        frozenset(tensors | read | loaded),
        frozenset(read),
        frozenset(loaded),
        frozenset(symbols - local),
        frozenset(numbers),
        bool(faults),
    )


def integers_in(*nodes: Node) -> set[str]:
    """The names of all integers that nodes, and those in them, use or define."""
    names: set[str] = set()

    def on_poly(value: Poly) -> None:
        names.update(value.symbols)

    for node in walk(nodes):
        visit(node, lambda scalar: None, lambda test: None, on_poly)
        if isinstance(node, Define | For):
            names.add(node.name)
    return names


def integer_names(kernel: Kernel, *nodes: Node, known: Iterable[str] = ()) -> set[str]:
    """The names of all integers that a kernel, or more nodes, use or define, and those `known`.

    Users choose the names of sizes, lets, attributes and iterators, and may choose any that a pass
    would give. Other kernels and facts speak of sizes too that this kernel does not mention.
    """
    names = integers_in(*kernel.prologue, *kernel.body, *nodes).union(known)
    for axis in (*kernel.axes, *(row.axis for row in kernel.stretched)):
        names |= {axis.name} | axis.extent.symbols
    for row in kernel.stretched:
        names |= {row.first, row.last, *(row.around or ())}
    if kernel.guest is not None:
        names |= kernel.guest.first.symbols | kernel.guest.count.symbols
    return names


def read_by(*kernels: Kernel) -> frozenset[str]:
    """The tensors of which kernels read elements, as numbers or in indices."""
    known = [uses(each) for each in kernels]
    return frozenset().union(*(each.read | each.loaded for each in known))


def is_last(kernel: Kernel, program: Program) -> bool:
    """Whether no kernel reads what this one writes."""
    return kernel.written not in read_by(*program.kernels) | set(kernel.local)
