"""Which index the innermost loops of a kernel run along, told by what lies side by side there."""

from __future__ import annotations

import pytest

from opgen.errors import Source
from opgen.ir.loops import For, Lanes, walk
from opgen.lang.read import read
from opgen.passes.specialise import specialise
from opgen.programs import along_rows, for_cpu, scheduled

ALONG_CELLS, ALONG_TERMS = "cells", "terms"


def ways(text: str, **sizes: int) -> list[str]:
    """For each kernel whether its innermost loops run along cells, or along the terms of a cell."""
    (op,) = read(Source(text, "test.op"))
    own = specialise(for_cpu(op), sizes)
    found = []
    for kernel in along_rows(own, scheduled(own)).kernels:
        nodes = tuple(walk(kernel.body))
        if any(isinstance(node, For) and node.any_order for node in nodes):
            found.append(ALONG_TERMS)
        elif any(isinstance(node, Lanes) for node in nodes):
            found.append(ALONG_CELLS)
    return found


SUM = "op f(x: float[N,C,H,W], a[N,C], b[N,C], s[C]) -> y[N,C]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{SUM}  y[n,c] = sum(h,w) x[n,c,h,w]*s[c]/(a[n,c] + b[n,c])\n", [ALONG_TERMS]),
        # What is the same for all cells, beside rows apart.
        (
            "op f(x: float[N,D], w[M,D], a[N,M], b[N,M], c[M]) -> y[N,M]\n"
            "  y[n,m] = sum(d) x[n,d]*w[m,d]*a[n,m]*b[n,m]*c[m]\n",
            [ALONG_TERMS],
        ),
        # The second factor lies along the cells.
        (
            "op f(x: float[N,D], w[D,M]) -> y[N,M]\n  y[n,m] = sum(d) x[n,d]*w[d,m]\n",
            [ALONG_CELLS],
        ),
        # Groups of a dim are rows apart, as long as a size says.
        (
            "op f(x: float[N,(G D)]; G: int) -> y[N,G]\n  where G >= 1\n"
            "  y[n,g] = sum(d) x[n,(g d)]\n",
            [ALONG_TERMS],
        ),
        # So are those of known lengths, if these are no shorter than vectors.
        ("op f(x: float[N,(W 32)]) -> y[N,W]\n  y[n,w] = sum(b in 32) x[n,(w b)]\n", [ALONG_TERMS]),
        ("op f(x: float[N,(W 12)]) -> y[N,W]\n  y[n,w] = sum(b in 12) x[n,(w b)]\n", [ALONG_CELLS]),
        # Their cells side by side lie along the cells.
        (
            "op f(x: float[N,(G D)]; G: int) -> y[N,D]\n  where G >= 1\n"
            "  y[n,d] = sum(g in G) x[n,(g d)]\n",
            [ALONG_CELLS],
        ),
        # So do the terms of a window.
        (
            "op f(x: float[N,W], k[K]) -> y[N,W]\n  y[n,w] = sum(k_) x[n, w + k_ ?0]*k[k_]\n",
            [ALONG_CELLS],
        ),
    ],
)
def test_the_way_of_sums(text: str, expected: list[str]) -> None:
    assert ways(text) == expected


def test_a_row_of_known_length_is_one_too() -> None:
    text = f"{SUM}  y[n,c] = sum(h,w) x[n,c,h,w]*s[c]/(a[n,c] + b[n,c])\n"
    assert ways(text, H=32, W=32) == [ALONG_TERMS]
    assert ways(text, H=32, W=3) == [ALONG_CELLS]
