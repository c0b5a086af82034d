"""The range of every iterator, by a rule that can be followed in one's head.

An iterator runs over `[0, E)` where E is (1) what `in E` says, else (2) its partner in a composite
dim, or the dim where it stands bare, without boundary suffix. All such places must agree, except
that a left-hand dim which is a right-hand dim plus more yields to it: concatenation, `y[i] = a[i]`
into `y[N + M]`, means the range of `a`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opgen.algebra.poly import Poly, symbol
from opgen.errors import Edit, Span
from opgen.ir.notation import BATCH, BATCH_ITERATOR, Table, Tensor
from opgen.lang import syntax
from opgen.lang.environment import Environment, Fault, Place, closest
from opgen.lang.index_faults import data_dependent
from opgen.lang.indices import composite_extents, size_polynomial
from opgen.lang.repairs import ranging
from opgen.lang.scope import Scope


@dataclass(frozen=True, slots=True)
class _Site:
    extent: Poly
    span: Span
    left: bool
    declared: Span | None = None


def resolve(
    names: Sequence[syntax.Domain],
    statement: syntax.Statement | None,
    body: Sequence[syntax.Expression],
    environment: Environment,
) -> dict[str, Poly]:
    """The extent of every iterator in `names`, in that order.

    `statement` is the one whose own iterators these are, None for those of a reduction. Raises
    Fault where an iterator has no range or two different ones.
    """
    return {
        domain.name.text: _explicit(domain, environment)
        if domain.extent is not None
        else _inferred(domain, statement, body, environment)
        for domain in names
    }


def _explicit(domain: syntax.Domain, environment: Environment) -> Poly:
    assert domain.extent is not None
    for subscript in subscripts(domain.extent):
        if subscript.name.text in environment.tensors:
            raise data_dependent(
                subscript.name.text, domain.extent.span, _as_condition(domain, environment)
            )
    for name, span in free_names(domain.extent, environment):
        raise unknown_extent(domain, name, span, environment)
    return size_polynomial(domain.extent, Scope(environment, place=Place.EXTENT))


def unknown_extent(domain: syntax.Domain, name: str, span: Span, environment: Environment) -> Fault:
    """The fault of a name in the extent of an iterator that is no size."""
    assert domain.extent is not None
    close = closest(name, environment.integers()) if len(name) > 2 else None
    without = Span(domain.name.span.end, environment.enclosed(domain.extent.span).end)
    condition = _as_condition(domain, environment)
    if close:
        advice = f"did you mean '{close}'?"
    elif name in environment.tensors:
        advice = "leave the range out where the dim tells it"
    elif name.islower():  # as iterators are, of which a triangle takes one
        words = condition[1].partition(" ")[2]
        advice = f"what differs from cell to cell is a condition: `{words}`"
    else:
        advice = "leave the range out where the dim tells it, or add a condition: "
        advice += f"`if {domain.name.text} < {name}`"
    edits = [(without, ""), condition]
    return Fault(
        "unknown-name",
        f"'{name}' is no size or attribute, and a range is made of those",
        span,
        advice=advice,
        replacement=(span, close) if close else None,
        alternatives=edits[::-1] if name.islower() else edits,
    )


def _as_condition(domain: syntax.Domain, environment: Environment) -> Edit:
    """`sum(k in K)` as `sum(k if k < K)`: the range of `k` is then the dim it stands in."""
    assert domain.extent is not None
    name = domain.name.text
    extent = environment.enclosed(domain.extent.span)
    return domain.name.span.to(extent), f"{name} if {name} < {environment.text(extent)}"


def _inferred(
    domain: syntax.Domain,
    statement: syntax.Statement | None,
    body: Sequence[syntax.Expression],
    environment: Environment,
) -> Poly:
    name = domain.name.text
    if name == BATCH_ITERATOR:
        return symbol(BATCH)
    sites: list[_Site] = []
    if statement is not None:
        sites.extend(_sites(name, statement.target, True, environment))
        body = (*body, *children(statement.target))
    for expression in body:
        for subscript in subscripts(expression):
            sites.extend(_sites(name, subscript, False, environment))
    if not sites:
        raise _no_range(domain, statement, body, environment)
    right = [site for site in sites if not site.left]
    if right:
        sites = [
            site
            for site in sites
            if not (site.left and all(_extends(site, part, environment) for part in right))
        ]
    first = sites[0]
    for other in sites[1:]:
        if environment.expand_lets(other.extent) != environment.expand_lets(first.extent):
            raise _range_conflict(domain, first, other, statement, environment)
    return first.extent


def _only_size(
    name: str, statement: syntax.Statement | None, environment: Environment
) -> str | None:
    """The size of the op if it has just one, for an iterator that counts cells of a temporary."""
    indices = statement.target.indices if statement is not None else ()
    bare = any(
        isinstance(index, syntax.PlainIndex)
        and isinstance(index.value, syntax.NameUse)
        and index.value.name == name
        for index in indices
    )
    sizes = [size for size in environment.sizes if size != BATCH]
    return sizes[0] if bare and len(sizes) == 1 else None


def _no_range(
    domain: syntax.Domain,
    statement: syntax.Statement | None,
    body: Sequence[syntax.Expression],
    environment: Environment,
) -> Fault:
    """The fault of an iterator without a range, with the dim it stands in but for a suffix."""
    name, span = domain.name.text, domain.name.span
    accesses = [statement.target] if statement is not None else []
    accesses += [access for expression in body for access in subscripts(expression)]
    likely = [e for access in reversed(accesses) for e in _suffixed(name, access, environment)]
    if not likely and statement is not None:
        around = {e for access in accesses for e in _containing(name, access, environment)}
        likely = list(around) if len(around) == 1 else []
    if name.upper() in environment.integers():  # as sizes and iterators are called
        extent: str | None = name.upper()
    else:
        extent = str(likely[0]) if likely else _only_size(name, statement, environment)
    close = closest(name, environment.integers()) if len(name) > 2 else None
    unknown = "3" if statement is None else "..."  # a window has a size that is not told
    wanted = f"{name} in {extent or unknown}"
    edits = [(span, close)] if close is not None else []
    if extent is not None:
        place = (span, wanted)
        edits.append(place if statement is None else ranging(statement, wanted, environment))
    return Fault(
        "no-range",
        f"'{name}' has no range",
        span,
        notes=(
            "the range of an iterator is the dim where it stands bare, without a boundary mode, "
            "or is written with `in`",
        ),
        advice=(f"did you mean '{close}'? Or " if close else "")
        + (
            f"write its extent, such as `{wanted}`"
            if statement is None
            else f"end the statement with `for {wanted}`"
        ),
        alternatives=edits,
    )


def _suffixed(name: str, access: syntax.Subscript, environment: Environment) -> Iterator[Poly]:
    """The extents of dims in which a name stands bare, with a boundary mode."""
    tensor = environment.tensors.get(access.name.text)
    for axis, item in enumerate(access.indices):
        match item:
            case syntax.PlainIndex(value=syntax.NameUse(name=used)) if used == name and tensor:
                yield _extent(tensor, axis)
            case _:
                pass


def _containing(name: str, access: syntax.Subscript, environment: Environment) -> Iterator[Poly]:
    """The extents of dims in whose index a name is a term: `2*n` has half of the dim."""
    tensor = environment.tensors.get(access.name.text)
    for axis, item in enumerate(access.indices):
        if isinstance(item, syntax.PlainIndex) and tensor and _is_term(name, item.value):
            yield _extent(tensor, axis)


def _is_term(name: str, index: syntax.Expression) -> bool:
    """Whether an index is a sum in which a name stands bare."""
    match index:
        case syntax.NameUse(name=used):
            return used == name
        case syntax.Binary(operator="+", left=left, right=right):
            return _is_term(name, left) or _is_term(name, right)
        case syntax.Binary(operator="-", left=left):
            return _is_term(name, left)
        case _:
            return False


def _range_conflict(
    domain: syntax.Domain,
    first: _Site,
    other: _Site,
    statement: syntax.Statement | None,
    environment: Environment,
) -> Fault:
    name = domain.name.text
    for site in (first, other):
        if site.extent == 1 and not site.left:
            return _one_cell(name, site, first, other)
    if statement is not None:
        reordered = _reordered(statement, environment)
        if reordered is not None:
            return _conflict(name, first, other, *reordered)
    edits: list[Edit] = []
    for extent in (first.extent, other.extent):
        wanted = f"{name} in {extent}"
        place = (domain.name.span, wanted)
        edits.append(place if statement is None else ranging(statement, wanted, environment))
    if other.declared is not None:
        edits.append((other.declared, str(first.extent)))
    advice = f"say which one is meant, `{name} in {first.extent}`, or declare the dims alike"
    return _conflict(name, first, other, advice, edits)


def _conflict(name: str, first: _Site, other: _Site, advice: str, edits: Sequence[Edit]) -> Fault:
    return Fault(
        "range-conflict",
        f"'{name}' has two ranges, {first.extent} and {other.extent}",
        (first.span, f"{first.extent} here"),
        (other.span, f"{other.extent} here"),
        advice=advice,
        alternatives=edits,
    )


def _one_cell(name: str, site: _Site, first: _Site, other: _Site) -> Fault:
    """The fault of a dim of extent 1 that is read as if its cell were repeated."""
    advice = f"nothing is repeated by itself: the one cell of a dim of 1 is 0, not {name}"
    return _conflict(name, first, other, advice, [(site.span, "0")])


def _reordered(
    statement: syntax.Statement, environment: Environment
) -> tuple[str, list[Edit]] | None:
    """The target with its iterators in the order of its dims, where all of these agree then."""
    target = statement.target
    tensor = environment.tensors.get(target.name.text)
    names = [
        item.value.name
        for item in target.indices
        if isinstance(item, syntax.PlainIndex)
        and isinstance(item.value, syntax.NameUse)
        and not item.boundary
    ]
    if tensor is None or len(names) != len(target.indices) or len(set(names)) < len(names):
        return None
    by_extent: dict[Poly, str] = {}
    for name in names:
        sites = [
            site.extent
            for access in subscripts(statement.value)
            for site in _sites(name, access, False, environment)
        ]
        if len(set(sites)) != 1 or sites[0] in by_extent:
            return None
        by_extent[sites[0]] = name
    ordered = [by_extent.get(_extent(tensor, axis)) for axis in range(len(names))]
    if None in ordered:
        return None
    text = f"{target.name.text}[{','.join(filter(None, ordered))}]"
    return f"the dims of '{target.name.text}' are in another order: {text}", [(target.span, text)]


def _extends(whole: _Site, part: _Site, environment: Environment) -> bool:
    """Whether a dim is a sum of which another is a part: `N + M` extends `N`, `2*N` does not."""
    extent = environment.expand_lets(whole.extent)
    rest = extent - environment.expand_lets(part.extent)
    return (
        len(extent.terms) > 1
        and bool(rest.terms)
        and all(coefficient > 0 for coefficient in rest.terms.values())
    )


def _sites(
    name: str, subscript: syntax.Subscript, left: bool, environment: Environment
) -> Iterator[_Site]:
    """Where the iterator fixes its range in one access."""
    tensor = environment.tensors.get(subscript.name.text)
    if tensor is None:
        return
    rank = len(tensor.dims) if isinstance(tensor, Tensor) else len(tensor.shape)
    if rank != len(subscript.indices):
        return  # reported where the access is converted
    for axis, item in enumerate(subscript.indices):
        match item:
            case syntax.PlainIndex(value=syntax.NameUse(name=used), boundary="") if used == name:
                declared = environment.dim_spans.get((tensor.name, axis))
                yield _Site(_extent(tensor, axis), item.span, left, declared)
            case syntax.Composite(parts=parts):
                extents = composite_extents(item, tensor, axis, environment)
                for part, extent in zip(parts, extents, strict=True):
                    if isinstance(part, syntax.Name) and part.text == name:
                        yield _Site(extent, part.span, left)
            case _:
                pass


def _extent(tensor: Tensor | Table, axis: int) -> Poly:
    if isinstance(tensor, Table):
        return Poly({(): tensor.shape[axis]})
    return tensor.dims[axis].extent


# ---------------------------------------------------------------------------- walking syntax
def children(expression: syntax.Expression) -> Iterator[syntax.Expression]:
    """The expressions directly inside one."""
    match expression:
        case syntax.Subscript(indices=indices):
            for item in indices:
                if isinstance(item, syntax.PlainIndex):
                    yield item.value
                    if item.fill is not None:
                        yield item.fill
        case syntax.Call(arguments=arguments):
            yield from arguments
        case syntax.Reduction(domains=domains, condition=condition, position=position, body=body):
            for domain in domains:
                if domain.extent is not None:
                    yield domain.extent
            for part in (condition, position):
                if part is not None:
                    yield part
            yield body
        case syntax.Unary(operand=operand):
            yield operand
        case syntax.Binary(left=left, right=right):
            yield left
            yield right
        case syntax.Comparison(operands=operands) | syntax.Logical(operands=operands):
            yield from operands
        case _:
            return


def subscripts(expression: syntax.Expression) -> Iterator[syntax.Subscript]:
    """Every access in an expression, outermost first."""
    if isinstance(expression, syntax.Subscript):
        yield expression
    for child in children(expression):
        yield from subscripts(child)


def calls(expression: syntax.Expression) -> Iterator[syntax.Call]:
    """Every function call in an expression, outermost first."""
    if isinstance(expression, syntax.Call):
        yield expression
    for child in children(expression):
        yield from calls(child)


def free_names(
    expression: syntax.Expression, environment: Environment
) -> Iterator[tuple[str, Span]]:
    """Names that can only be iterators and are not bound by a reduction inside; may repeat."""
    match expression:
        case syntax.NameUse(name=name, span=span):
            if not environment.is_known(name):
                yield name, span
        case syntax.Subscript(indices=indices):
            for item in indices:
                match item:
                    case syntax.Composite(parts=parts):
                        for part in parts:
                            if isinstance(part, syntax.Name) and not environment.is_known(
                                part.text
                            ):
                                yield part.text, part.span
                    case syntax.BatchDims(span=span):
                        yield BATCH_ITERATOR, span
                    case syntax.PlainIndex(value=value):
                        yield from free_names(value, environment)
        case syntax.Reduction(domains=domains):
            bound = {domain.name.text for domain in domains}
            for child in children(expression):
                for name, span in free_names(child, environment):
                    if name not in bound:
                        yield name, span
        case _:
            for child in children(expression):
                yield from free_names(child, environment)
