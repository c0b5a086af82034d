"""How large a polynomial of a spec may grow.

Products multiply out, and a `let` that uses an earlier one several times multiplies what it stands
for: a few lines can mean more terms than there is memory. So the size of a polynomial is bounded,
and that of an extent with every `let` replaced is known before it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opgen.algebra.poly import Kind, Poly
from opgen.errors import Span
from opgen.lang.environment import Fault

_MAX_TERMS: Final = 200
_MAX_DEGREE: Final = 12
_MAX_COEFFICIENT: Final = 2**53


def bounded(value: Poly, span: Span) -> Poly:
    """The polynomial itself. Raises Fault if it is too large."""
    coefficient = max(map(abs, value.terms.values()), default=0)
    if len(value.terms) > _MAX_TERMS or coefficient > _MAX_COEFFICIENT:
        note = (
            f"an index has at most {_MAX_TERMS} terms when multiplied out, and factors below 2**53"
        )
        raise _too_large("this index expression grows too large", note, span)
    if _degree(value) > _MAX_DEGREE:
        note = f"a term of an index has at most {_MAX_DEGREE} factors"
        raise _too_large("this index expression grows too large", note, span)
    return value


def expandable(value: Poly, formulas: Mapping[str, Poly], span: Span) -> Poly:
    """The polynomial itself. Raises Fault if it is too large with every `let` replaced.

    `formulas` are what the lets stand for, in sizes and attributes only.
    """
    terms, degree = _expansion(value, formulas)
    if terms > _MAX_TERMS or degree > _MAX_DEGREE:
        note = (
            f"with every `let` replaced, a size has at most {_MAX_TERMS} terms of {_MAX_DEGREE} "
            "factors"
        )
        raise _too_large("this formula grows too large", note, span)
    return value


def _degree(value: Poly) -> int:
    """The largest number of factors in a term; what stands inside an atom does not count."""
    return max(map(len, value.terms), default=0)


def _expansion(value: Poly, formulas: Mapping[str, Poly]) -> tuple[int, int]:
    """Upper bounds of the terms, also those inside atoms, and of the degree after replacement."""
    terms = degree = 0
    for monomial in value.terms:
        product, factors = 1, 0
        for atom in monomial:
            formula = formulas.get(atom.name) if atom.kind is Kind.SYMBOL else None
            product *= 1 if formula is None else max(1, len(formula.terms))
            factors += 1 if formula is None else max(1, _degree(formula))
            terms += sum(_expansion(arg, formulas)[0] for arg in atom.args)
        terms, degree = terms + product, max(degree, factors)
    return terms, degree


def _too_large(headline: str, note: str, span: Span) -> Fault:
    return Fault(
        "index-too-large",
        headline,
        span,
        notes=(note,),
        advice="split the op, or pass the large factor as an attribute",
    )
