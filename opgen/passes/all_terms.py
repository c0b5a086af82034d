"""Cells along an axis that have all terms that any cell of it has: those away from its ends.

Near the border of an image a loop over the taps of a window has fewer values, or a condition fails.
"""

from __future__ import annotations

from dataclasses import replace

from opgen.algebra.poly import poly
from opgen.ir.loops import Always, For, If, Node, walk
from opgen.ir.map_loops import test_symbols
from opgen.passes.merge import Body


def has_all_terms(body: Body, name: str, value: int) -> bool:
    """Whether the cell at that value of the axis has all terms that some cell has."""
    for node in walk(body):
        match node:
            case For(lower=lower, upper=upper):
                for sign, bounds in ((1, lower), (-1, upper)):
                    limits = [sign * b.constant for b in bounds if b.is_constant]
                    for bound in bounds:
                        if name in bound.symbols:
                            here = bound.substitute({name: poly(value)})
                            if not here.is_constant or not limits:
                                return False
                            if sign * here.constant > max(limits):
                                return False
            case If(conditions=conditions, test=test):
                if name in test_symbols(test):
                    return False
                for each in conditions:
                    if name in each.value.symbols:
                        here = each.value.substitute({name: poly(value)})
                        if not here.is_constant or not replace(each, value=here).holds({}):
                            return False
            case _:
                pass
    return True


def of_all_terms(body: Body, name: str) -> Body:
    """The body of cells that have all terms: no bound and no condition depends on the axis."""
    out: list[Node] = []
    for node in body:
        match node:
            case For(lower=lower, upper=upper, body=inner):
                lower = tuple(bound for bound in lower if name not in bound.symbols)
                upper = tuple(bound for bound in upper if name not in bound.symbols)
                inner = of_all_terms(inner, name)
                out.append(replace(node, lower=lower, upper=upper, body=inner))
            case If(conditions=conditions, body=inner, test=test):
                left = tuple(each for each in conditions if name not in each.value.symbols)
                inner = of_all_terms(inner, name)
                out += (If(left, inner, test),) if left or test != Always() else inner
            case _:
                out.append(node)
    return tuple(out)
