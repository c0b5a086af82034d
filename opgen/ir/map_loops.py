"""Nodes of the loops rebuilt with other polynomials, and the symbols that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly
from opgen.ir.loop_parts import visit
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
    Lanes,
    Load,
    Node,
    Nonzero,
    Number,
    Result,
    Scalar,
    Start,
    Store,
    Test,
    walk,
)

Change = Callable[[Poly], Poly]


def map_node(node: Node, change: Change) -> Node:
    """The node with every polynomial replaced, those of the nodes in it as well."""

    def all_of(values: tuple[Poly, ...]) -> tuple[Poly, ...]:
        return tuple(map(change, values))

    match node:
        case Define(value=value):
            return replace(node, value=change(value))
        case For(lower=lower, upper=upper, body=body) | Lanes(lower=lower, upper=upper, body=body):
            inner = map_nodes(body, change)
            return replace(node, lower=all_of(lower), upper=all_of(upper), body=inner)
        case If(conditions=conditions, body=body, test=test):
            changed = tuple(Condition(change(c.value), c.relation) for c in conditions)
            return If(changed, map_nodes(body, change), map_test(test, change))
        case Start(value=value):
            return replace(node, value=None if value is None else map_scalar(value, change))
        case Accumulate(value=value, present=present, position=position, order=order):
            return replace(
                node,
                value=map_scalar(value, change),
                present=map_test(present, change),
                position=None if position is None else change(position),
                order=all_of(order),
            )
        case Store(indices=indices, value=value) | AtomicAdd(indices=indices, value=value):
            return replace(node, indices=all_of(indices), value=map_scalar(value, change))
        case unexpected:
            assert_never(unexpected)


def map_nodes(nodes: tuple[Node, ...], change: Change) -> tuple[Node, ...]:
    """`map_node` for each."""
    return tuple(map_node(node, change) for node in nodes)


def map_scalar(value: Scalar, change: Change) -> Scalar:
    """The scalar with every polynomial replaced."""
    match value:
        case Number() | Argument() | Result():
            return value
        case Integer(value=number):
            return Integer(change(number))
        case Load(tensor=tensor, indices=indices):
            return Load(tensor, tuple(map(change, indices)))
        case Call(primitive=primitive, arguments=arguments):
            return Call(primitive, tuple(map_scalar(each, change) for each in arguments))
        case Choose(test=test, then=then, otherwise=otherwise):
            return Choose(
                map_test(test, change), map_scalar(then, change), map_scalar(otherwise, change)
            )
        case unexpected:
            assert_never(unexpected)


def map_loads(nodes: tuple[Node, ...], change: Callable[[Load], Scalar]) -> tuple[Node, ...]:
    """The nodes with every load of an element replaced, those in tests as well."""
    return map_read(nodes, lambda value: change(value) if isinstance(value, Load) else value)


def map_read(
    nodes: tuple[Node, ...], change: Callable[[Load | Result], Scalar]
) -> tuple[Node, ...]:
    """The nodes with everything replaced that scalars read: elements, and accumulators."""
    return tuple(_map_read_of_node(node, change) for node in nodes)


_ChangeRead = Callable[[Load | Result], Scalar]


def _map_read_of_node(node: Node, change: _ChangeRead) -> Node:
    match node:
        case For(body=body) | Lanes(body=body):
            return replace(node, body=map_read(body, change))
        case If(body=body, test=test):
            return replace(node, body=map_read(body, change), test=_map_read_of_test(test, change))
        case Start(value=None) | Define():
            return node
        case Accumulate(value=value, present=present):
            return replace(
                node,
                value=_map_read_of_scalar(value, change),
                present=_map_read_of_test(present, change),
            )
        case Start(value=value) | Store(value=value) | AtomicAdd(value=value):
            assert value is not None
            return replace(node, value=_map_read_of_scalar(value, change))
        case unexpected:
            assert_never(unexpected)


def _map_read_of_scalar(value: Scalar, change: _ChangeRead) -> Scalar:
    match value:
        case Load() | Result():
            return change(value)
        case Call(primitive=primitive, arguments=arguments):
            return Call(primitive, tuple(_map_read_of_scalar(each, change) for each in arguments))
        case Choose(test=test, then=then, otherwise=otherwise):
            return Choose(
                _map_read_of_test(test, change),
                _map_read_of_scalar(then, change),
                _map_read_of_scalar(otherwise, change),
            )
        case Number() | Argument() | Integer():
            return value
        case unexpected:
            assert_never(unexpected)


def _map_read_of_test(test: Test, change: _ChangeRead) -> Test:
    match test:
        case Always() | Inside():
            return test
        case Nonzero(value=number):
            return Nonzero(_map_read_of_scalar(number, change))
        case All(tests=tests):
            return All(tuple(_map_read_of_test(each, change) for each in tests))
        case Any(tests=tests):
            return Any(tuple(_map_read_of_test(each, change) for each in tests))
        case Either(condition=condition, then=then, otherwise=otherwise):
            return Either(
                _map_read_of_test(condition, change),
                _map_read_of_test(then, change),
                _map_read_of_test(otherwise, change),
            )
        case unexpected:
            assert_never(unexpected)


def renamed(
    nodes: tuple[Node, ...],
    accumulator: Callable[[str], str],
    integers: Mapping[str, str] | None = None,
) -> tuple[Node, ...]:
    """The nodes with other names for their accumulators, and for what loops and nodes define.

    Where integers are used, they keep their names: `map_nodes` changes those.
    """

    def result(value: Load | Result) -> Scalar:
        if isinstance(value, Load):
            return value
        return replace(value, accumulator=accumulator(value.accumulator))

    return _with_names(map_read(nodes, result), accumulator, integers or {})


def _with_names(
    nodes: tuple[Node, ...], accumulator: Callable[[str], str], integers: Mapping[str, str]
) -> tuple[Node, ...]:
    """The nodes with other names for what they define."""
    out: list[Node] = []
    for node in nodes:
        match node:
            case Define(name=name):
                node = replace(node, name=integers.get(name, name))
            case For(name=name, body=body):
                inner = _with_names(body, accumulator, integers)
                node = replace(node, name=integers.get(name, name), body=inner)
            case If(body=body) | Lanes(body=body):
                node = replace(node, body=_with_names(body, accumulator, integers))
            case Start(accumulator=name) | Accumulate(accumulator=name):
                node = replace(node, accumulator=accumulator(name))
            case Store() | AtomicAdd():
                pass
            case unexpected:
                assert_never(unexpected)
        out.append(node)
    return tuple(out)


def map_test(test: Test, change: Change) -> Test:
    """The test with every polynomial replaced."""
    match test:
        case Always():
            return test
        case Inside(index=index, extent=extent, fault=fault):
            return Inside(change(index), change(extent), fault)
        case Nonzero(value=value):
            return Nonzero(map_scalar(value, change))
        case All(tests=tests):
            return All(tuple(map_test(each, change) for each in tests))
        case Any(tests=tests):
            return Any(tuple(map_test(each, change) for each in tests))
        case Either(condition=condition, then=then, otherwise=otherwise):
            return Either(
                map_test(condition, change), map_test(then, change), map_test(otherwise, change)
            )
        case unexpected:
            assert_never(unexpected)


def polynomials(*nodes: Node) -> tuple[Poly, ...]:
    """Every polynomial of the nodes and of those in them."""
    found: dict[Poly, None] = {}
    for node in walk(nodes):
        visit(
            node,
            lambda scalar: None,
            lambda test: None,
            lambda value: found.update({value: None}),
        )
    return tuple(found)


def symbols_of(*nodes: Node) -> frozenset[str]:
    """Every symbol of the nodes; those that they define are not told apart."""
    return frozenset[str]().union(*(value.symbols for value in polynomials(*nodes)))


def test_symbols(test: Test) -> frozenset[str]:
    """Every symbol of a test."""
    return symbols_of(If((), (), test))


def with_instead(node: Node, old: Node, new: tuple[Node, ...]) -> tuple[Node, ...]:
    """A node with others in place of one that it is, or that is in its loops and conditions."""
    if node is old:
        return new
    if isinstance(node, For | If):
        return (replace(node, body=tuple(e for n in node.body for e in with_instead(n, old, new))),)
    return (node,)
