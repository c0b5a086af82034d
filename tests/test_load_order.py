"""Terms that load the same stand together, and those of a cell keep their order."""

from __future__ import annotations

import itertools

from opgen.algebra.poly import poly, symbol
from opgen.ir.loop_parts import loads_of
from opgen.ir.loops import Accumulate, Call, For, Load, Start
from opgen.ir.notation import Reducer
from opgen.passes.load_order import MOST_OTHERS, by_column, by_load


def term(cell: int, pixel: int, tap: int, pixels: str = "x") -> Accumulate:
    loads = Load(pixels, (symbol("n"), symbol("i") + pixel)), Load("w", (poly(tap),))
    return Accumulate(f"total_{cell}", Reducer.ADD, Call("mul", loads))


def by_tap(cells: int, taps: int, sign: int = 1) -> tuple[Accumulate, ...]:
    return tuple(term(cell, cell + sign * tap, tap) for tap in range(taps) for cell in range(cells))


def pixels(body: tuple[Accumulate, ...]) -> list[int]:
    found = []
    for each in body:
        assert isinstance(each.value, Call)
        load = each.value.arguments[0]
        assert isinstance(load, Load)
        found.append(load.indices[1].constant)
    return found


def of_cells(body: tuple[Accumulate, ...]) -> dict[str, list[Accumulate]]:
    found: dict[str, list[Accumulate]] = {}
    for each in body:
        found.setdefault(each.accumulator, []).append(each)
    return found


def test_every_pixel_is_loaded_once() -> None:
    for sign in (1, -1):
        body = by_tap(8, 3, sign)
        found = by_load(body)
        assert pixels(found) == sorted(pixels(body), reverse=sign < 0) != pixels(body)
        assert of_cells(found) == of_cells(body)


def test_pixels_that_cells_take_in_no_order_of_their_own_are_loaded_once() -> None:
    """As in the gradient of a bilinear resize: of each cell two even pixels, then two odd ones."""
    takes = [(2 * cell + 2, 2 * cell, 2 * cell + 1, 2 * cell - 1) for cell in range(8)]
    for first, again in ((takes[0], 0), ((2, 0, 2, 1), 1)):
        cells = [first, *takes[1:]]
        body = tuple(term(cell, cells[cell][at], 0) for at in range(4) for cell in range(8))
        found = by_load(body)
        runs = [pixel for pixel, _ in itertools.groupby(pixels(found))]
        assert len(runs) == len(set(runs)) + again
        assert set(runs) == set(pixels(body))
        assert of_cells(found) == of_cells(body)
        assert len(found) == len(body)


def test_other_nodes_stay_where_they_are() -> None:
    start = Start("total_0", "y", Reducer.ADD)
    first, second = by_tap(4, 3), by_tap(8, 2)
    found = by_load((start, *first, start, *second))
    assert found == (start, *by_load(first), start, *by_load(second))
    assert found != (start, *first, start, *second)


def test_what_stays_as_it_is() -> None:
    many = by_tap(20, MOST_OTHERS + 1)
    # A cell that takes its terms forwards, and one that takes them backwards.
    mixed = (term(0, 0, 0), term(1, 4, 1), term(0, 1, 1), term(1, 2, 0))
    other_rows = (term(0, 0, 0), term(1, 1, 0, "z"), term(0, 1, 1, "z"), term(1, 2, 1))
    for body in (many, mixed, other_rows, ()):
        assert by_load(body) == body


def cell(row: int, i: int, j: int) -> Accumulate:
    """The term of the tap (i, j) of a cell in that row."""
    place = (symbol("i") * 2 + (row + i), symbol("j") + j)
    loads = Load("x", place), Load("w", (poly(i), poly(j)))
    return Accumulate(f"total_{row}", Reducer.ADD, Call("mul", loads))


def test_column_by_column_every_element_is_loaded_in_one_place() -> None:
    taps = [(i, j) for i in range(7) for j in range(7)]
    body = tuple(cell(row, i, j) for i, j in taps for row in range(10))
    start = Start("total_0", "y", Reducer.ADD)
    loop = For("c", (poly(0),), (poly(3),), body)
    (_, *found), (whole,) = by_column((start, *body), "x"), by_column((loop,), "x")
    assert isinstance(whole, For) and whole.body == tuple(found)
    runs = [list(group) for _, group in itertools.groupby(found, lambda each: loads_of((each,))[0])]
    assert len(runs) == 16 * 7
    columns = [loads_of((run[0],))[0].indices[1].constant for run in runs]
    assert columns == sorted(columns)
    assert sorted(map(repr, found)) == sorted(map(repr, body))


def test_terms_of_other_tensors_stay_where_they_are() -> None:
    body = (cell(0, 0, 1), cell(0, 0, 0), term(0, 1, 0))
    assert by_column(body, "x") == body
    assert by_column(body[:2], "x") == body[1::-1]
    assert by_column(body[:2], "z") == body[:2]
