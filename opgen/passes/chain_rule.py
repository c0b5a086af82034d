"""The chain rule inside one body: a term for every occurrence of a read.

    d body / d read  =  sum over its occurrences of   factors / divisors   where all choices hold

Factors, choices and covers are those on the way from the root of the body to the occurrence. In
this order what flows back is multiplied and divided, as by PyTorch's graph of the same expression:
`0 * log(x)` has the gradient 0 even where `1 / x` is infinite. So it has been divided before it
gets to either side of a quotient, and kernels which make several gradients divide once for all.

* The zeros of differentiation are never built: an argument without a partial derivative, or with
  the partial 0, has no term. So nothing is ever multiplied by a literal 0, and `0 * inf` cannot
  turn a missing dependence into NaN.
* Choices are the conditions of `select` and of 0/1 partials such as that of `relu`. They end up
  outside of the product, so that the branch that is not taken does no harm, as in `torch.where`.
* A product is absent where a factor read with `?0` is. The conditions for that are the covers of
  a term: where one fails the term is zero. In the body they also kept other reads in range; where
  the factor itself is gone from the derivative, or is no longer around a condition, the statement
  has to say so again as a guard (`passes.coverage`).

Absence needs no other care: if a part of the body is absent at a point, then so is each of its
terms, or the read that the term belongs to lies outside its tensor there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly
from opgen.ir.notation import Access, Apply, Boundary, Constant, Expr, Read, reads
from opgen.ir.primitives import PRIMITIVES, Absence
from opgen.passes.simplify import simplify_expression

Extents = Callable[[str], tuple[Poly, ...]]
"""The extents of a tensor by its name."""


@dataclass(frozen=True, slots=True)
class Cover:
    """`0 <= value < extent`."""

    value: Poly
    extent: Poly

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The cover as guards."""
        return Condition(self.value), Condition(self.extent - 1 - self.value)


@dataclass(frozen=True, slots=True)
class Choice:
    """A condition, and whether it has to be true or false."""

    condition: Expr
    outcome: bool


@dataclass(frozen=True, slots=True)
class Divisor:
    """What flows back is divided by this, where it is multiplied by a factor."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Term:
    """The derivative of a body with respect to one occurrence of a read."""

    coefficient: int | float = 1
    steps: tuple[Expr | Divisor, ...] = ()  # from the root on
    negative: bool = False
    choices: tuple[Choice, ...] = ()
    covers: tuple[Cover, ...] = ()

    def times(self, seed: Expr, copies: int = 1) -> Expr:
        """The term times `seed`, `copies` times over."""
        coefficient = self.coefficient * copies
        result = seed
        factors: list[Expr] = []
        for step in self.steps:
            if isinstance(step, Divisor):
                result = Apply("div", (_product((*factors, result)), step.value))
                factors = []
            else:
                factors.insert(0, step)
        if coefficient != 1:
            factors.insert(0, Constant(coefficient))
        result = _product((*factors, result))
        if self.negative:
            result = Apply("neg", (result,))
        for choice in reversed(self.choices):
            branches = (result, Constant(0)) if choice.outcome else (Constant(0), result)
            result = Apply("select", (choice.condition, *branches))
        return result

    def through(self, partial: Expr) -> Term:
        """The term of an argument whose function has this partial derivative."""
        match partial:
            case Constant(value=value) if value < 0:
                return replace(self, negative=not self.negative).through(Constant(-value))
            case Constant(value=value):
                return replace(self, coefficient=self.coefficient * value)
            case Apply(primitive="neg", arguments=(inner,)):
                return replace(self, negative=not self.negative).through(inner)
            case Apply(primitive="mul", arguments=(left, right)):
                return self.through(right).through(left)
            case Apply(primitive="div", arguments=(Constant(value=1), divisor)):
                return replace(self, steps=(*self.steps, Divisor(divisor)))
            case Apply(primitive="select", arguments=(condition, inner, Constant(value=0))):
                return self._chosen(condition, True).through(inner)
            case Apply(primitive="select", arguments=(condition, Constant(value=0), inner)):
                return self._chosen(condition, False).through(inner)
            case _:
                return replace(self, steps=(*self.steps, partial))

    def _chosen(self, condition: Expr, outcome: bool) -> Term:
        return replace(self, choices=(*self.choices, Choice(condition, outcome)))


def _product(factors: Sequence[Expr]) -> Expr:
    return reduce(lambda a, b: Apply("mul", (a, b)), factors)


def terms(
    body: Expr, wanted: Callable[[Access], bool], extents: Extents
) -> Iterator[tuple[Access, Term]]:
    """A term for every occurrence of a wanted read, left to right."""
    return _descend(body, Term(), wanted, extents)


def _descend(
    expr: Expr, term: Term, wanted: Callable[[Access], bool], extents: Extents
) -> Iterator[tuple[Access, Term]]:
    if isinstance(expr, Read) and wanted(expr.access):
        yield expr.access, term
    if not isinstance(expr, Apply) or not any(map(wanted, reads(expr))):
        return
    row = PRIMITIVES[expr.primitive]
    if row.partials is None:
        return
    for number, partial in enumerate(row.partials(*expr.arguments)):
        if partial is None or partial == Constant(0):
            continue
        covers = (*term.covers, *_covers_of_others(expr, number, extents))
        inner = replace(term, covers=tuple(dict.fromkeys(covers)))
        inner = inner.through(simplify_expression(partial))
        yield from _descend(expr.arguments[number], inner, wanted, extents)


def _covers_of_others(expr: Apply, number: int, extents: Extents) -> Iterator[Cover]:
    """Covers that the other arguments give to an argument."""
    match PRIMITIVES[expr.primitive].absence:
        case Absence.ANY:
            for other, argument in enumerate(expr.arguments):
                if other != number:
                    yield from _annihilators(argument, extents)
        case Absence.NUMERATOR if number > 0:
            yield from _annihilators(expr.arguments[0], extents)
        case _:
            return


def _annihilators(expr: Expr, extents: Extents) -> tuple[Cover, ...]:
    """Covers outside of which the expression is absent."""
    match expr:
        case Read(access=access):
            return own_covers(access, extents)
        case Apply(primitive=name, arguments=arguments):
            inner = [_annihilators(argument, extents) for argument in arguments]
            match PRIMITIVES[name].absence:
                case Absence.ANY:
                    return tuple(dict.fromkeys(cover for covers in inner for cover in covers))
                case Absence.NUMERATOR | Absence.PASS:
                    return inner[0]
                case Absence.ALL:
                    return _shared(inner)
                case Absence.BRANCH:
                    return _shared(inner[1:])
                case Absence.NEVER:
                    return ()
        case _:
            return ()


def _shared(groups: list[tuple[Cover, ...]]) -> tuple[Cover, ...]:
    return tuple(cover for cover in groups[0] if all(cover in other for other in groups[1:]))


def own_covers(access: Access, extents: Extents) -> tuple[Cover, ...]:
    """Covers outside of which a read is absent."""
    return tuple(
        Cover(index.value, extent)
        for index, extent in zip(access.indices, extents(access.tensor), strict=True)
        if index.boundary is Boundary.ZERO
    )
