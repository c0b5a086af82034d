"""The faults of a statement's iterators and reductions: what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from opgen.algebra.poly import Poly, symbol, symbol_atom
from opgen.errors import Edit, Span
from opgen.ir.indices import position
from opgen.ir.notation import Tensor
from opgen.ir.primitives import PRIMITIVES, Precedence
from opgen.lang import repairs, syntax
from opgen.lang.environment import Environment, Fault, closest
from opgen.lang.index_faults import unknown_name
from opgen.lang.indices import index_polynomial
from opgen.lang.ranges import children, free_names, subscripts, unknown_extent
from opgen.lang.recipes import RECIPES, SORTING
from opgen.lang.scope import Scope

_OTHER_NAMES: Final = {
    "add": "sum", "total": "sum", "reduce_sum": "sum", "product": "prod", "mul": "prod",
    "avg": "mean", "average": "mean", "maximum": "max", "amax": "max", "minimum": "min",
    "amin": "min",
}  # fmt: skip


def free_iterators(
    statement: syntax.Statement,
    free: Mapping[str, Span],
    own: Iterable[str],
    environment: Environment,
) -> Fault:
    """The fault of names on the right of `=` that are neither on the left nor reduced."""
    own = list(own)
    name, span = next(iter(free.items()))
    for reduction in reductions(statement.value):
        for domain in reduction.domains:
            if domain.extent is not None and _within(span, domain.extent.span):
                return unknown_extent(domain, name, span, environment)
    indexing = set(_names_in_indices(statement, environment))
    if name not in indexing:
        if name in _NUMBERS:
            return _number(name, span)
        return unknown_name(name, span, Scope(environment, {other: symbol(other) for other in own}))
    names = [other for other in free if other in indexing]
    close = closest(name, [*own, *environment.integers()]) if len(name) > 2 else None
    if close is None and len(names) == 1:
        close = _left_over(statement, name, environment)
    edits: list[Edit | None] = [None if close is None else (span, close)]

    def mentions(expression: syntax.Expression) -> bool:
        return any(other in names for other, _ in free_names(expression, environment))

    if statement.condition is None or not mentions(statement.condition):
        edits.append(repairs.summed(statement, names, mentions, environment))
    is_word = len(name) > 2 and close is None  # no iterator, perhaps, but an attribute
    if is_word:
        edits.append(environment.new_attribute(f"{name} = 1"))
    shown = " and ".join(f"'{other}'" for other in names)
    return Fault(
        "free-iterator",
        f"{shown} {'is' if len(names) == 1 else 'are'} neither on the left nor reduced",
        span,
        *((free[other], "nor this") for other in names[1:]),
        notes=("with `=` every iterator of the right stands on the left or in a reduction",),
        advice=(f"did you mean '{close}'? Or " if close else "")
        + f"reduce it: sum({','.join(names)}) ..."
        + (f"; an attribute is declared, such as `; {name} = 1`" if is_word else ""),
        alternatives=[edit for edit in edits if edit is not None],
    )


def _left_over(statement: syntax.Statement, name: str, environment: Environment) -> str | None:
    """The iterator that only the left names, over a dim like the one where a name stands once."""
    right = [statement.value, *([statement.condition] if statement.condition else [])]
    accesses = [access for part in right for access in subscripts(part)]
    places = [place for access in accesses for place in _bare(access, environment)]
    extents = [extent for other, extent in places if other == name]
    used = {other for part in right for other, _ in free_names(part, environment)}
    left = [
        other
        for other, extent in _bare(statement.target, environment)
        if other not in used and [extent] == extents
    ]
    return left[0] if len(left) == 1 else None


def _bare(access: syntax.Subscript, environment: Environment) -> Iterator[tuple[str, Poly]]:
    """The names that are an index of their own, each with the extent of its dim."""
    tensor = environment.tensors.get(access.name.text)
    if not isinstance(tensor, Tensor) or len(tensor.dims) != len(access.indices):
        return
    for index, dim in zip(access.indices, tensor.dims, strict=True):
        if isinstance(index, syntax.PlainIndex) and isinstance(index.value, syntax.NameUse):
            yield index.value.name, dim.extent


_NUMBERS: Final = {"pi": "3.141592653589793", "tau": "6.283185307179586"}


def _number(name: str, span: Span) -> Fault:
    """The fault of a constant of mathematics by its name."""
    return Fault(
        "unknown-name",
        f"'{name}' has no value in a spec",
        span,
        advice=f"write the number, {_NUMBERS[name]}",
        replacement=(span, _NUMBERS[name]),
    )


def _within(part: Span, whole: Span) -> bool:
    return whole.start <= part.start and part.end <= whole.end


def reductions(expression: syntax.Expression) -> Iterator[syntax.Reduction]:
    """Every reduction in an expression, outermost first."""
    if isinstance(expression, syntax.Reduction):
        yield expression
    for child in children(expression):
        yield from reductions(child)


def reduced_names(expression: syntax.Expression) -> frozenset[str]:
    """The iterators of every reduction in an expression."""
    return frozenset(
        domain.name.text for reduction in reductions(expression) for domain in reduction.domains
    )


def outside_reduction(
    statement: syntax.Statement, name: str, span: Span, environment: Environment
) -> Fault:
    """The fault of an iterator that is used outside of the reduction that binds it."""
    bound = next(
        reduction
        for reduction in reductions(statement.value)
        if name in [domain.name.text for domain in reduction.domains]
    )
    head = environment.text(bound.head)
    condition = statement.condition
    in_condition = condition is not None and condition.span.start <= span.start
    return Fault(
        "free-iterator",
        f"'{name}' is reduced by `{head}` and means nothing outside of it",
        span,
        (bound.head, "reduced here"),
        notes=("a reduction takes the product that follows it, not a sum",),
        advice="write the condition inside, after the iterators"
        if in_condition
        else "write the terms to reduce in parentheses",
        replacement=repairs.condition_inside(statement, bound, environment)
        if in_condition
        else repairs.in_parentheses(statement, bound, environment),
    )


def _names_in_indices(statement: syntax.Statement, environment: Environment) -> Iterator[str]:
    for part in (statement.value, statement.condition):
        for subscript in subscripts(part) if part is not None else ():
            yield from (name for name, _ in free_names(subscript, environment))


def unknown_reducer(reduction: syntax.Reduction, scope: Scope) -> Fault:
    """The fault of `name(k) term` where the name is no reduction."""
    name, body, environment = reduction.reducer, reduction.body, scope.environment
    start = environment.enclosed(body.span).start
    product = (Span(start, start), "* ")
    if name.text in environment.tensors:
        inside = environment.text(Span(name.span.end + 1, reduction.head.end - 1))
        return Fault(
            "tensor-called",
            f"'{name.text}' is a tensor, and is read with square brackets",
            reduction.head,
            (environment.declared_at[name.text], "declared here"),
            advice="write the index in square brackets, and an operator after it",
            replacement=(Span(reduction.head.start, start), f"{name.text}[{inside}] * "),
        )
    if name.text.lower() in RECIPES or name.text.lower() in SORTING:
        return _written_out(name)
    meant = _OTHER_NAMES.get(name.text.lower()) or closest(name.text, syntax.REDUCERS)
    if meant is not None:
        return Fault(
            "unknown-reducer",
            f"there is no reduction '{name.text}'",
            name.span,
            notes=_REDUCTIONS,
            advice=f"did you mean '{meant}'?",
            replacement=(name.span, meant),
        )
    if not (_is_value(name.text, scope) or name.text in environment.ops):
        return Fault(
            "unknown-reducer",
            f"there is no reduction '{name.text}'",
            name.span,
            notes=_REDUCTIONS,
            advice="build it from these; a product is written with `*`",
        )
    return Fault(
        "missing-operator",
        f"an operator is missing between `{environment.text(reduction.head)}` and what follows",
        (body.span, ""),
        notes=("only reductions stand before a term: " + ", ".join(syntax.REDUCERS),),
        advice="a product is written with `*`",
        replacement=product,
    )


_REDUCTIONS: Final = ("the reductions are " + ", ".join(syntax.REDUCERS),)
_FUNCTIONS: Final = frozenset(
    row.symbol for row in PRIMITIVES.values() if row.precedence is Precedence.PRIMARY
)


def _is_value(name: str, scope: Scope) -> bool:
    """Whether a name means something that may be a factor."""
    return name in _FUNCTIONS or name in scope.iterators or scope.environment.is_known(name)


def _written_out(name: syntax.Name) -> Fault:
    """The fault of a reduction that libraries have, with the statements that compute it."""
    recipe = RECIPES.get(name.text.lower())
    remarks = (recipe.remark,) if recipe is not None and recipe.remark else ()
    return Fault(
        "unknown-reducer",
        f"there is no reduction '{name.text}'",
        name.span,
        notes=(*_REDUCTIONS, *remarks),
        advice="a spec does not sort: pass the indices of `torch.sort` as an int tensor"
        if recipe is None
        else recipe.advice,
    )


def undeclared_temporary(
    statement: syntax.Statement,
    item: syntax.IndexItem,
    extents: Mapping[str, Poly],
    environment: Environment,
) -> Fault:
    """The fault of a target that is not declared and whose dims cannot be inferred."""
    name = statement.target.name
    close = closest(name.text, environment.tensors)
    dims = _dims_that_hold(statement, extents, environment)
    edits = [(name.span, close)] if close is not None else []
    if dims is not None:
        edits.append(repairs.declared(statement, dims, environment))
    shown = ",".join(dims) if dims is not None else "..."
    return Fault(
        "undeclared-temporary",
        f"the dims of '{name.text}' do not follow from this index",
        item.span,
        notes=("a temporary is inferred where its indices are plain iterators",),
        advice=(f"did you mean '{close}'? Or " if close else "")
        + f"declare it: tmp {name.text}[{shown}]",
        alternatives=edits,
    )


def _dims_that_hold(
    statement: syntax.Statement, extents: Mapping[str, Poly], environment: Environment
) -> list[str] | None:
    """The least extents that hold every index, if all grow with their iterators."""
    scope = Scope(environment, extents)
    last = {name: extent - 1 for name, extent in extents.items()}
    dims: list[str] = []
    for item in statement.target.indices:
        if not isinstance(item, syntax.PlainIndex):
            return None
        index = index_polynomial(item.value, scope)
        slopes = (index.linear_in(symbol_atom(name)) for name in index.symbols & extents.keys())
        if any(s is None or not s[0].is_constant or s[0].constant < 0 for s in slopes):
            return None
        dims.append(str(index.substitute(last) + 1))
    return dims


def missing_position(
    reduction: syntax.Reduction, extents: Mapping[str, Poly], environment: Environment
) -> Fault:
    """The fault of an argmax over several iterators without an index to return."""
    names = [domain.name.text for domain in reduction.domains]
    flat = str(position(names, extents))
    last = reduction.condition or reduction.domains[-1]
    end = environment.enclosed(Span(reduction.head.start, last.span.end)).end - 1
    return Fault(
        "missing-position",
        f"`{reduction.reducer.text}` over {len(names)} iterators does not say which index it "
        "returns",
        reduction.head,
        advice=f"state it after `;`, such as the position in row-major order, {flat}",
        replacement=(Span(end, end), f"; {flat}"),
    )


def unexpected_position(reduction: syntax.Reduction, environment: Environment) -> Fault:
    """The fault of an index stated for a reduction that returns none."""
    assert reduction.position is not None
    start = environment.source.text.rindex(";", 0, reduction.position.span.start)
    return Fault(
        "unexpected-position",
        f"only argmax and argmin return an index, `{reduction.reducer.text}` does not",
        reduction.position.span,
        advice="remove what follows `;`",
        replacement=(Span(start, reduction.head.end - 1), ""),
    )


def duplicate_iterator(reduction: syntax.Reduction, name: str) -> Fault:
    """The fault of an iterator that one reduction names twice."""
    positions = [i for i, domain in enumerate(reduction.domains) if domain.name.text == name]
    first, last = reduction.domains[positions[0]], reduction.domains[positions[-1]]
    before = reduction.domains[positions[-1] - 1]
    return Fault(
        "duplicate-iterator",
        f"'{name}' is reduced twice",
        first.span,
        (last.span, "again here"),
        advice="name every iterator once",
        replacement=(Span(before.span.end, last.span.end), ""),
    )
