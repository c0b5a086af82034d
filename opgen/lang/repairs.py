"""Edits of whole statements that a message may propose; `lang.read` tries them before it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from opgen.algebra.poly import Poly
from opgen.errors import Edit, Source, Span
from opgen.lang import syntax
from opgen.lang.environment import Environment


def accumulated(statement: syntax.Statement, environment: Environment) -> Edit:
    """With `+=` in place of its operator."""
    return _operator(statement, environment), "+="


def chosen_by_value(statement: syntax.Statement, environment: Environment) -> Edit | None:
    """`y[n] = v if c` as `y[n] = select(c, v, 0)`, which is the same for `=` and `+=`."""
    if statement.condition is None or statement.domains or statement.operator not in ("=", "+="):
        return None
    value = _value(statement, environment)
    word = environment.source.text.rindex("if", value.end, statement.condition.span.start)
    test = environment.enclosed(Span(word + 2, statement.condition.span.end))
    text = f"select({environment.text(test).strip()}, {environment.text(value)}, 0)"
    return Span(value.start, test.end), text


def summed(
    statement: syntax.Statement,
    names: Sequence[str],
    mentions: Callable[[syntax.Expression], bool],
    environment: Environment,
) -> Edit | None:
    """With `sum(names)` before the term that mentions them, or before all terms if several do."""
    terms = [term for term in _terms(statement.value) if mentions(term)]
    head = f"sum({','.join(names)})"
    if len(terms) == 1:
        start = environment.enclosed(terms[0].span).start
        return Span(start, start), f"{head} "
    if not terms:
        return None
    value = _value(statement, environment)
    return value, f"{head} ({environment.text(value)})"


def ranging(statement: syntax.Statement, domain: str, environment: Environment) -> Edit:
    """With one more iterator after `for`, such as `n in N`."""
    if statement.domains:
        last = environment.enclosed(statement.domains[-1].span).end
        return Span(last, last), f", {domain}"
    end = _value(statement, environment).end
    return Span(end, end), f" for {domain}"


def declared(statement: syntax.Statement, dims: Sequence[str], environment: Environment) -> Edit:
    """With a `tmp` clause for its target on a line before it."""
    clause = f"tmp {statement.target.name.text}[{','.join(dims)}]"
    return _before(statement.span.start, clause, environment)


def condition_inside(
    statement: syntax.Statement, reduction: syntax.Reduction, environment: Environment
) -> Edit | None:
    """`sum(c) v if t` as `sum(c if t) v`."""
    condition = statement.condition
    if condition is None or reduction.condition or reduction.position or statement.domains:
        return None
    value = _value(statement, environment)
    word = environment.source.text.rindex("if", value.end, condition.span.start)
    test = environment.enclosed(Span(word + 2, condition.span.end))
    close = reduction.head.end - 1
    rest = environment.text(Span(close, value.end))
    return Span(close, test.end), f" if {environment.text(test).strip()}{rest}"


def in_parentheses(
    statement: syntax.Statement, reduction: syntax.Reduction, environment: Environment
) -> Edit:
    """`sum(c) v + w` as `sum(c) (v + w)`."""
    start, end = reduction.head.end, _value(statement, environment).end
    return Span(start, end), f" ({environment.text(Span(start, end)).strip()})"


def removed(span: Span, source: Source) -> Edit:
    """Without a clause, its line included."""
    start = source.text.rfind("\n", 0, span.start) + 1
    end = len(source.text[: span.end].rstrip())
    after = source.text.find("\n", end)
    return Span(start, len(source.text) if after < 0 else after + 1), ""


def accumulated_at(span: Span | None, environment: Environment) -> Edit | None:
    """With `+=` in the statement whose target stands there."""
    statement = _statement_at(span, environment)
    return None if statement is None else accumulated(statement, environment)


def compared_at(span: Span | None, environment: Environment) -> Edit | None:
    """With `!= 0` after the value of the `=` whose target stands there."""
    statement = _statement_at(span, environment)
    if statement is None or statement.operator != "=":
        return None
    end = _value(statement, environment).end
    return Span(end, end), " != 0"


def _statement_at(span: Span | None, environment: Environment) -> syntax.Statement | None:
    if environment.definition is None:
        return None
    for clause in environment.definition.clauses:
        if isinstance(clause, syntax.Statement) and clause.target.span == span:
            return clause
    return None


def kept_apart(
    first: syntax.Statement, last: syntax.Statement, environment: Environment
) -> tuple[str, Edit]:
    """Another name for a tensor from its first statement to the value of its last one."""
    name, text = last.target.name.text, environment.source.text
    fresh = next(f"{name}{n}" for n in range(1, 100) if f"{name}{n}" not in text)
    used = re.compile(rf"\b{name}(?=\s*\[)")
    target, whole = last.target.span, first.target.span.to(_value(last, environment))
    before = used.sub(fresh, text[whole.start : target.start])
    after = used.sub(fresh, text[target.end : whole.end])
    return fresh, (whole, before + text[target.start : target.end] + after)


def required(values: Sequence[Poly], environment: Environment) -> Edit | None:
    """With a `where` that demands polynomials to be at least 0."""
    texts = []
    for value in values:
        positive = Poly({m: c for m, c in value.terms.items() if c > 0})
        texts.append(f"{positive} >= {positive - value}")
    return demanded(", ".join(texts), environment)


def demanded(condition: str, environment: Environment) -> Edit | None:
    """With a condition of the call in the first `where` clause, or in a new one."""
    if environment.definition is None or not environment.definition.clauses:
        return None
    clauses = environment.definition.clauses
    for clause in clauses:
        if isinstance(clause, syntax.Where):
            end = environment.enclosed(clause.conditions[-1].span).end
            return Span(end, end), f", {condition}"
    return _before(clauses[0].span.start, f"where {condition}", environment)


def renamed(span: Span, name: str, environment: Environment) -> Edit:
    """With another name for an iterator within a part of the text."""
    fresh = next(f"{name}{n}" for n in range(2, 100) if f"{name}{n}" not in environment.source.text)
    return span, re.sub(rf"\b{name}\b(?!\s*\[)", fresh, environment.text(span))


def _before(start: int, clause: str, environment: Environment) -> Edit:
    """With one more clause before another, on a line of its own."""
    _, column = environment.source.position(start)
    indent = " " * (column - 1)
    return Span(start, start), f"{clause}\n{indent}"


def _operator(statement: syntax.Statement, environment: Environment) -> Span:
    start = environment.source.text.index(statement.operator, statement.target.span.end)
    return Span(start, start + len(statement.operator))


def _value(statement: syntax.Statement, environment: Environment) -> Span:
    """The right-hand side, with brackets that stand around all of it."""
    text, start = environment.source.text, _operator(statement, environment).end
    start += len(text[start:]) - len(text[start:].lstrip())
    return environment.enclosed(Span(start, statement.value.span.end))


def _terms(value: syntax.Expression) -> list[syntax.Expression]:
    match value:
        case syntax.Binary(operator="+" | "-", left=left, right=right):
            return [*_terms(left), right]
        case syntax.Unary(operand=operand):
            return [operand]
        case _:
            return [value]
