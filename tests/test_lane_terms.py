"""Passes over the lanes of a row as terms that lanes between two bounds have."""

from __future__ import annotations

from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.lane_terms import terms_by_lanes
from opgen.ir.loops import Accumulate, Define, For, If, Integer, Lanes, Node, Start, Store
from opgen.ir.notation import Reducer

J = symbol("j")


def term(place: Poly | int) -> Accumulate:
    return Accumulate("best", Reducer.MAX, Integer(poly(place)))


def lanes(lower: Poly | int | None, upper: Poly | int | None, *body: Node) -> Lanes:
    bounds = [() if each is None else (poly(each),) for each in (lower, upper)]
    return Lanes(bounds[0], bounds[1], body)


def test_pieces_of_a_row_are_one() -> None:
    """Windows of three cells, of which the first and the last row are not whole."""
    pieces = (
        lanes(None, 0, If((Condition(J - 1),), (term(J - 1),)), term(J), term(J + 1)),
        lanes(1, 26, term(J - 1), term(J), term(J + 1)),
        lanes(27, None, term(J - 1), term(J)),
    )
    assert terms_by_lanes(pieces, "j") == (
        lanes(1, None, term(J - 1)),
        lanes(None, None, term(J)),
        lanes(None, 26, term(J + 1)),
    )


def test_a_condition_on_the_lane_is_a_bound() -> None:
    below = If((Condition(symbol("W") - 2 - J),), (term(J + 1),))
    assert terms_by_lanes((lanes(None, None, term(J), below),), "j") == (
        lanes(None, None, term(J)),
        lanes(None, symbol("W") - 2, term(J + 1)),
    )


def test_terms_of_the_same_lanes_are_one_pass() -> None:
    both = lanes(1, 5, term(J), term(J + 1))
    assert terms_by_lanes((both,), "j") == (both,)


def test_definitions_are_put_in_their_places() -> None:
    body = Define("d", J + 1), Define("e", symbol("d") * 2), term(symbol("e"))
    assert terms_by_lanes((lanes(0, 5, *body),), "j") == (lanes(0, 5, term(2 * J + 2)),)


def test_conditions_that_no_lane_changes_stay() -> None:
    there = Condition(symbol("i") - 1)
    (found,) = terms_by_lanes((lanes(0, 5, If((there,), (term(J),))),), "j") or ()
    assert found == If((there,), (lanes(0, 5, term(J)),))
    inside = If((there,), (lanes(0, 5, term(J)),))
    assert terms_by_lanes((inside,), "j") == (inside,)


def test_loops_around_passes_stay() -> None:
    loop = For("k", (poly(0),), (poly(4),), (lanes(2 - symbol("k"), None, term(J)),))
    assert terms_by_lanes((loop,), "j") == (loop,)


def test_pieces_that_are_not_one() -> None:
    """Lanes between them, another order, and lanes in the middle without a term."""
    apart = lanes(0, 3, term(J)), lanes(5, 9, term(J))
    assert terms_by_lanes(apart, "j") == apart
    turned = lanes(0, 3, term(J), term(J + 1)), lanes(4, 9, term(J + 1), term(J))
    assert terms_by_lanes(turned, "j") == turned
    gap = (
        lanes(0, 3, term(J), term(J + 1)),
        lanes(4, 6, term(J + 1)),
        lanes(7, 9, term(J), term(J + 1)),
    )
    assert terms_by_lanes(gap, "j") == gap


def test_bodies_with_anything_else() -> None:
    store = Store("y", (J,), Integer(J))
    begin = Start("best", "y", Reducer.MAX)
    odd = If((Condition(J - 3, Relation.EQ),), (term(J),))
    twice = If((Condition(2 * J - 3),), (term(J),))
    for other in (store, begin, odd, twice):
        assert terms_by_lanes((lanes(0, 5, term(J), other),), "j") is None
    assert terms_by_lanes((lanes(0, 5, term(J)), store), "j") is None
    in_any_order = For("k", (poly(0),), (poly(4),), (lanes(0, 5, term(J)),), any_order=True)
    assert terms_by_lanes((in_any_order,), "j") is None
