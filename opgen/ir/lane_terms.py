"""Passes over the lanes of a row as terms that lanes between two bounds have.

Windows that are written out have a pass for the lanes at each end of a row, whose windows are not
whole, and one for those between,

    for j in 0 .. 0:    if j >= 1: best = max(best, x[2*j - 1])
                        best = max(best, x[2*j])
    for j in 1 .. 27:   best = max(best, x[2*j - 1])
                        best = max(best, x[2*j])

and lanes differ only in where a window begins and ends:

    for j in 1 .. 27:   best = max(best, x[2*j - 1])
    for j in 0 .. 27:   best = max(best, x[2*j])

Each lane has the same terms in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Poly, symbol
from opgen.ir.loops import Accumulate, Always, Define, For, If, Lanes, Node
from opgen.ir.map_loops import map_nodes


def terms_by_lanes(nodes: tuple[Node, ...], lane: str) -> tuple[Node, ...] | None:
    """The nodes with passes of nothing but terms that the same lanes have; None where there is
    anything else in passes than terms, and conditions on the lane or on none."""
    out: list[Node] = []
    pieces: list[_Piece] = []
    for node in nodes:
        if isinstance(node, Lanes):
            piece = _piece(replace(node, body=without_definitions(node.body)), lane)
            if piece is None:
                return None
            pieces.append(piece)
            continue
        out += _passes(pieces)
        pieces = []
        match node:
            case For(any_order=False, body=body) | If(test=Always(), body=body):
                inner = terms_by_lanes(body, lane)
                if inner is None:
                    return None
                out.append(replace(node, body=inner))
            case Define():
                out.append(node)
            case _:
                return None
    return (*out, *_passes(pieces))


def without_definitions(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with the values of what they define in its place."""
    known: dict[str, Poly] = {}
    out: list[Node] = []
    for node in body:
        if isinstance(node, Define):
            known[node.name] = node.value.substitute(known)
        else:
            out += map_nodes((node,), lambda value: value.substitute(known)) if known else (node,)
    return tuple(out)


# ---------------------------------------------------------------------------- pieces of a row
@dataclass(frozen=True, slots=True)
class _Term:
    """A term of the lanes between the bounds, if the other conditions hold."""

    lower: tuple[Poly, ...]
    upper: tuple[Poly, ...]
    others: tuple[Condition, ...]
    node: Accumulate

    @property
    def is_of_none(self) -> bool:
        """Whether no lane has it."""
        least = [each.constant for each in self.lower if each.is_constant]
        greatest = [each.constant for each in self.upper if each.is_constant]
        return bool(least and greatest) and max(least) > min(greatest)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The terms of a pass in order, and the bounds of that."""

    lower: tuple[Poly, ...]
    upper: tuple[Poly, ...]
    terms: tuple[_Term, ...]

    @property
    def nodes(self) -> list[Accumulate]:
        """The terms alone."""
        return [each.node for each in self.terms]


def _piece(node: Lanes, lane: str) -> _Piece | None:
    terms = list(_terms(node, node.body, (), lane))
    if None in terms:
        return None
    found = tuple(each for each in terms if each is not None and not each.is_of_none)
    return _Piece(node.lower, node.upper, found)


def _terms(
    node: Lanes, body: Sequence[Node], others: tuple[Condition, ...], lane: str
) -> Iterator[_Term | None]:
    """The terms of a body; None for what is no term, or has a condition of another kind."""
    for each in body:
        match each:
            case Accumulate():
                yield _Term(node.lower, node.upper, others, each)
            case If(conditions=conditions, test=Always(), body=inner):
                bounded, more = node, others
                for condition in conditions:
                    value, step = condition.value, condition.value.step_in(lane)
                    if lane not in value.symbols:
                        more = (*more, condition)
                    elif condition.relation is not Relation.GE or step not in (1, -1):
                        yield None
                    elif step == 1:
                        bounded = replace(bounded, lower=(*bounded.lower, symbol(lane) - value))
                    else:
                        bounded = replace(bounded, upper=(*bounded.upper, symbol(lane) + value))
                yield from _terms(bounded, inner, more, lane)
            case _:
                yield None


# ---------------------------------------------------------------------------- pieces as one
def _passes(pieces: Sequence[_Piece]) -> list[Node]:
    """Passes for the terms of neighbouring pieces."""
    terms = _together(pieces) or [each for piece in pieces for each in piece.terms]
    out: list[Node] = []
    for term in terms:
        last = out[-1] if out else None
        own = Lanes(term.lower, term.upper, (term.node,))
        if term.others:
            out.append(If(term.others, (own,)))
        elif isinstance(last, Lanes) and last == replace(own, body=last.body):
            out[-1] = replace(last, body=(*last.body, term.node))
        else:
            out.append(own)
    return out


def _together(pieces: Sequence[_Piece]) -> list[_Term] | None:
    """The terms of pieces each of which begins where the one before ends, as those of one; None
    where they are not the same in the same order, or lanes in between do not have them."""
    if len(pieces) < 2 or any(term.others for piece in pieces for term in piece.terms):
        return None
    for piece, following in itertools.pairwise(pieces):
        if tuple(each + 1 for each in piece.upper) != following.lower or len(piece.upper) != 1:
            return None
    order = max(pieces, key=lambda piece: len(piece.terms)).nodes
    if not all(_is_within(piece.nodes, order) for piece in pieces) or len(set(order)) < len(order):
        return None
    found = [_of_pieces(node, pieces) for node in order]
    return None if None in found else [each for each in found if each is not None]


def _is_within(terms: Sequence[Accumulate], order: Sequence[Accumulate]) -> bool:
    """Whether terms are some of others, in the order of these."""
    rest = iter(order)
    return all(each in rest for each in terms)


def _of_pieces(node: Accumulate, pieces: Sequence[_Piece]) -> _Term | None:
    """A term of several pieces as one; None where lanes in between do not have it."""
    having = [
        (at, term) for at, piece in enumerate(pieces) for term in piece.terms if term.node == node
    ]
    (first, begin), (last, end) = having[0], having[-1]
    if len(having) != last - first + 1:
        return None
    for at, term in having:
        is_from_start = at == first or term.lower == pieces[at].lower
        is_to_end = at == last or term.upper == pieces[at].upper
        if not (is_from_start and is_to_end):
            return None
    return _Term(begin.lower, end.upper, (), node)
