"""Aliases of `with`: the formula in place of the name, as long as that does not grow too large.

An alias that uses an earlier one twice doubles it, so that a few lines can stand for more text than
the stages behind can take. The size of what an alias stands for is known before it is put in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from opgen.errors import Edit, Span
from opgen.ir.notation import Tensor
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault
from opgen.lang.ranges import children, subscripts
from opgen.lang.repairs import renamed
from opgen.lang.statement_faults import reductions

_MAX_NODES: Final = 2000
_MAX_DEPTH: Final = 150


@dataclass(frozen=True, slots=True)
class Measure:
    """The size of an expression with all aliases replaced."""

    nodes: int = 1
    depth: int = 1


def measure(
    expressions: Iterable[syntax.Expression], aliases: Mapping[str, Measure], span: Span
) -> Measure:
    """The size of expressions together. Raises Fault if they are too large for later stages."""
    total = _together(_measure(expression, aliases) for expression in expressions)
    advice = "name parts of the expression with a temporary"
    if total.depth > _MAX_DEPTH:
        headline = f"formulas are nested deeper than {_MAX_DEPTH}, aliases included"
        raise Fault("too-deep", headline, span, advice=advice)
    if total.nodes > _MAX_NODES:
        headline = f"this has more than {_MAX_NODES} words, with all aliases replaced"
        raise Fault("too-long", headline, span, advice=advice)
    return total


def _measure(expression: syntax.Expression, aliases: Mapping[str, Measure]) -> Measure:
    if isinstance(expression, syntax.NameUse):
        return aliases.get(expression.name, Measure())
    inside = _together(_measure(child, aliases) for child in children(expression))
    return Measure(1 + inside.nodes, 1 + inside.depth)


def _together(parts: Iterable[Measure]) -> Measure:
    nodes = depth = 0
    for part in parts:
        nodes, depth = nodes + part.nodes, max(depth, part.depth)
    return Measure(nodes, depth)


def expand_aliases(
    expression: syntax.Expression, aliases: Mapping[str, syntax.Expression]
) -> syntax.Expression:
    """The expression with every alias replaced by what it stands for."""
    if not aliases:
        return expression

    def expand(node: syntax.Expression) -> syntax.Expression:
        match node:
            case syntax.NameUse(name=name):
                return aliases.get(name, node)
            case syntax.Subscript(name=name, indices=indices, span=span):
                return syntax.Subscript(name, tuple(map(expand_index, indices)), span)
            case syntax.Unary(operand=operand, span=span):
                return syntax.Unary(expand(operand), span)
            case syntax.Binary(operator=operator, left=left, right=right, span=span):
                return syntax.Binary(operator, expand(left), expand(right), span)
            case syntax.Comparison(operands=operands, operators=operators, span=span):
                return syntax.Comparison(tuple(map(expand, operands)), operators, span)
            case syntax.Logical(operator=operator, operands=operands, span=span):
                return syntax.Logical(operator, tuple(map(expand, operands)), span)
            case syntax.Call(function=function, arguments=arguments, span=span):
                return syntax.Call(function, tuple(map(expand, arguments)), span)
            case syntax.Reduction():
                return syntax.Reduction(
                    node.reducer,
                    tuple(
                        syntax.Domain(
                            d.name, None if d.extent is None else expand(d.extent), d.span
                        )
                        for d in node.domains
                    ),
                    None if node.condition is None else expand(node.condition),
                    None if node.position is None else expand(node.position),
                    expand(node.body),
                    node.head,
                    node.span,
                )
            case _:
                return node

    def expand_index(item: syntax.IndexItem) -> syntax.IndexItem:
        if not isinstance(item, syntax.PlainIndex):
            return item
        fill = None if item.fill is None else expand(item.fill)
        return syntax.PlainIndex(expand(item.value), item.boundary, fill, item.span)

    return expand(expression)


def expand_statement(
    statement: syntax.Statement,
    aliases: Mapping[str, syntax.Expression],
    environment: Environment,
) -> syntax.Statement:
    """The statement with every alias replaced. Raises Fault where one is an iterator as well."""
    _refuse_iterators(statement, aliases, environment)
    _refuse_parts(statement, aliases, environment)
    target = expand_aliases(statement.target, aliases)
    assert isinstance(target, syntax.Subscript)
    return replace(
        statement,
        target=target,
        value=expand_aliases(statement.value, aliases),
        domains=tuple(
            replace(domain, extent=domain.extent and expand_aliases(domain.extent, aliases))
            for domain in statement.domains
        ),
        condition=None
        if statement.condition is None
        else expand_aliases(statement.condition, aliases),
    )


def _refuse_iterators(
    statement: syntax.Statement,
    aliases: Mapping[str, syntax.Expression],
    environment: Environment,
) -> None:
    """An alias is text put in place of a name, so the name cannot be an iterator as well."""
    parts = [statement.value] + ([statement.condition] if statement.condition else [])
    heads = [reduction for part in parts for reduction in reductions(part)]
    domains = [(d.name, r.span) for r in heads for d in r.domains]
    domains += [(domain.name, statement.span) for domain in statement.domains]
    for name, within in domains:
        if name.text in aliases:
            raise Fault(
                "shadowed-name",
                f"'{name.text}' is an alias by `with` and cannot be an iterator of the same "
                "statement",
                name.span,
                (aliases[name.text].span, "the alias stands for this"),
                advice="give one of them another name",
                replacement=renamed(within, name.text, environment),
            )


def _refuse_parts(
    statement: syntax.Statement,
    aliases: Mapping[str, syntax.Expression],
    environment: Environment,
) -> None:
    """The parts of a composite index are digits of a number, and a formula may be none."""
    parts = [statement.target, statement.value]
    parts += [statement.condition] if statement.condition else []
    accesses = [access for part in parts for access in subscripts(part)]
    indices = [(access, *each) for access in accesses for each in enumerate(access.indices)]
    for access, axis, item in indices:
        for part in item.parts if isinstance(item, syntax.Composite) else ():
            if isinstance(part, syntax.Name) and part.text in aliases:
                assert isinstance(item, syntax.Composite)
                raise Fault(
                    "alias-in-composite",
                    f"'{part.text}' is an alias by `with`, and no iterator",
                    part.span,
                    (aliases[part.text].span, "the alias stands for this"),
                    notes=("the parts of a composite index are iterators, each of a size",),
                    advice="write the position in the whole dim as a formula",
                    replacement=_position(access, axis, item, environment),
                )


def _position(
    access: syntax.Subscript, axis: int, item: syntax.Composite, environment: Environment
) -> Edit | None:
    """A composite index as a formula: `u*K + k` for `(u k)` of a dim `(H K)`."""
    tensor = environment.tensors.get(access.name.text)
    if not isinstance(tensor, Tensor) or len(tensor.dims) <= axis:
        return None
    sizes = tensor.dims[axis].parts
    if len(sizes) != len(item.parts):
        return None
    texts = [each.text if isinstance(each, syntax.Name) else str(each.value) for each in item.parts]
    found = texts[0]
    for text, size in zip(texts[1:], sizes[1:], strict=True):
        found = f"({found})" if " " in found else found
        found = f"{found}*{size if size.symbol or size.is_constant else f'({size})'} + {text}"
    return item.span, found
