"""Sums of random products mean the same in the form in which they are computed."""

from __future__ import annotations

import re
import warnings

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from derivatives import read_op
from opgen.errors import OpgenError
from opgen.ir.notation import Op
from opgen.ir.reference import evaluate
from opgen.passes.differentiate import derivative
from opgen.passes.plain_products import with_plain_products

INPUTS = {
    **{"x": "NK", "w": "MK", "s": "K", "a": "N", "b": "M", "z": "NM"},
    **{"p": "KL", "q": "ML", "r": "NLK", "h": "L"},
    **{"u": "ML2", "v": "2", "e": "M3L", "f": "ML22", "d": "2", "c": "LNM", "o": "L2", "t2": "22"},
}
FACTORS = (
    *("x[n,k]", "x[n,k-1 ?0]", "x[n,k+j ?0]", "x[n,k+j-1 ?clamp]", "x[n,k-j ?(2)]", "x[n ?0,k]"),
    *("w[m,k]", "w[m,k+j ?0]", "w[m,k-1 ?clamp]", "w[m,k ?wrap]", "w[m-1 ?0,k]"),
    *("s[k]", "s[k-1 ?0]", "s[k+j ?clamp]", "a[n]", "b[m]", "b[m-1 ?0]", "z[n,m]", "g", "K", "k"),
    *("2", "0.5", "rsqrt(K)", "(K-1)", "(N*M)", "(-x[n,k])", "(-w[m,k])", "(x[n,k] - a[n])"),
    *("relu(x[n,k+j ?0])", "max(w[m,k], 0)", "sigmoid(x[n,k])", "exp(w[m,k])", "x[n,k]**2"),
    *("(w[m,k] + s[k])", "exp(x[n,k-1 ?0])", "sqrt(x[n,k+j ?0]**2)", "select(k > 0, x[n,k], 1)"),
    *("t[j]", "(t[j] + 1)", "(x[n,k] + t[j])", "relu(x[n,0])", "relu(x[n,n ?0])", "z[n,0 ?0]"),
    *("cos(2*k*m)", "exp(a[n] - b[m])", "(k - 2*m)", "(a[n]*(m + 1))", "sqrt(s[k]**2 + n)"),
    *("relu(x[n,k-1 ?0])", "silu(x[n,k+j-1 ?clamp])", "(x[n,k] > 0.5)", "(x[n,k]*s[k])"),
)
LONGER = (
    *("p[k,l]", "q[m,l]", "r[n,l,k]", "h[l]", "h[l+j-1 ?0]", "q[m,l-1 ?0]", "p[k,l]", "q[m,l]"),
    *("u[m,l,j]", "u[m,l,j]", "r[n,l,k-j ?0]", "v[j]"),
)
"""What moves with one iterator more."""

IMAGES = ("r[n,l,k-j ?0]", "r[n,l,k-2*j+1 ?0]", "r[n,l,k+1-j ?clamp]", "r[n,l ?wrap,n-j ?0]")
WINDOWS = (
    *(
        "z[n+j ?0,m+i-1 ?0]",
        "z[n-j ?0,m+i ?clamp]",
        "z[n+j ?clamp,m-i ?wrap]",
        "z[n+j,m+2*i ?wrap]",
    ),
    *("c[l,n+j ?wrap,m+i-1 ?wrap]", "c[l,n+j-1 ?0,m+i ?0]", "c[l,n-2*j ?clamp,m+i-1 ?0]"),
    *("c[l,n+i ?wrap,m+i-1 ?0]", "c[l,n+j+1 ?0,m+i-1 ?0]", "c[l,n+j ?clamp,n+i ?clamp]"),
)
TAPS = (
    "v[j]",
    "d[i]",
    "v[i]",
    "u[m,l,j]",
    "u[m,l,i]",
    "o[l,j]",
    "o[l,i]",
    "o[n,j ?0]",
    "h[l]",
    "a[n]",
)
PAIRS = (
    ("v[j]", "d[i]"),
    ("o[l,j]", "v[i]"),
    ("d[j]", "o[l,i]"),
    ("e[m,j,l]", "v[i]"),
    ("t2[i,j]",),
)
"""Images with two windows, and what there may be beside them."""

FILTERS = ("u[m,l,j]", "e[m,j,l]", "f[m,l,j,j]", "f[m,l,j,l-j ?0]", "q[m,l]", "u[m,l,1-j]")

INSIDE = {" if k >= j": "x[n,k-j]", " if l >= j and n < M": "p[k,l-j]", " if 0 < n": "a[n-1]"}
"""Conditions of terms, and what they keep inside."""
DIVISORS = (
    "(a[n]*(b[m]/2))",
    "a[n]",
    "z[n,m]",
    "K",
    "(K*N)",
    "sqrt(K)",
    "2",
    "(b[m]**2 + 1)",
    "(x[n,k]**2 + 1)",
    "(s[k]**2 + 2)",
)
ENDS = ("", "", " if k <= n", " if n + m > 1")


@st.composite
def products(draw: st.DrawFn) -> str:
    """A spec that sums products of some of these."""
    parts = [draw(st.sampled_from(FACTORS)) for _ in range(draw(st.integers(2, 5)))]
    longer = [draw(st.sampled_from(LONGER)) for _ in range(max(0, draw(st.integers(-3, 2))))]
    kind = draw(st.integers(0, 7))
    if kind < 4:
        parts = parts[: draw(st.integers(0, 1))]
        longer = [draw(st.sampled_from(IMAGES)), draw(st.sampled_from(FILTERS))]
    if kind < 2:
        taps = draw(st.lists(st.sampled_from(TAPS), max_size=2))
        pair = draw(st.sampled_from(PAIRS)) if kind == 0 or draw(st.booleans()) else ()
        longer = [draw(st.sampled_from(WINDOWS)), *pair, *taps]
        longer += longer[:1] if draw(st.integers(0, 3)) == 3 else []
    parts = draw(st.permutations([*parts, *longer])) if longer else parts
    term = "*".join(parts)
    if kind > 0 and draw(st.booleans()):
        term += f"/{draw(st.sampled_from(DIVISORS))}"
        if draw(st.booleans()):
            term += f"*{draw(st.sampled_from(FACTORS))}"
    end = draw(st.sampled_from((*ENDS, *INSIDE))) if kind > 0 else ""
    if end in INSIDE:
        term = f"{INSIDE[end]}*{term}"
        longer += ["p"] if "p" in INSIDE[end] else []
    target = draw(st.sampled_from(("y[n,m]", "y[m,n]", "y[m,0]", "y[m, n//2]")))
    dims = {"y[n,m]": "N,M", "y[m,n]": "M,N", "y[m,0]": "M,1", "y[m, n//2]": "M,N"}[target]
    used = [(name, of) for name, of in INPUTS.items() if f"{name}[" in term]
    tensors = ", ".join(f"{name}: float[{','.join(of)}]" for name, of in used)
    known = "".join(of for _, of in used)
    sizes = "NMKL" if longer else "NMK"
    attributes = [f"{size}: size" for size in sizes if size not in known]
    attributes += ["g = 0.5"] if "g" in parts else []
    more = f"; {', '.join(attributes)}" if attributes else ""
    iterators = "n in N, m in M, k in K, j in 2" + (", l in L" if longer else "")
    iterators += ", i in 2" if re.search(r"\bi\b", term) else ""
    statement = f"{target} += {term} for {iterators}{end}"
    table = "  const t = [1.5, -2.0]\n" if "t[" in term else ""
    return f"op f({tensors}{more}) -> y[{dims}]\n{table}  {statement}\n"


def values_of(op: Op, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    known = {**sizes, "2": 2, "3": 3}
    shapes = {name: tuple(known[size] for size in of) for name, of in INPUTS.items()}
    first = next(iter(op.outputs))
    shape = {"N": sizes["N"], "M": sizes["M"]}
    shapes["grad_y"] = tuple(each.extent.evaluate(shape) for each in first.dims)
    return {name: generator.uniform(-2, 2, shape) for name, shape in shapes.items()}


@settings(max_examples=40)
@given(products(), st.integers(0, 3), st.integers(0, 2**16))
@example("op f(x[N,K], w[M,K]) -> y[N,M]\n  y[n,m] = sum(k) x[n,k]**2*w[m,k]*K/K\n", 0, 0)
def test_random_products_mean_the_same(text: str, width: int, seed: int) -> None:
    """And so do their gradients; an access outside of a tensor is an error of the interpreter."""
    try:
        op = read_op(text)
    except OpgenError:
        assume(False)
    sizes = {"N": 3 - seed % 5 // 4 * 3, "M": 2 - seed % 7 // 6 * 2, "K": width}
    sizes["L"] = 2 - seed % 11 // 10 * 2
    numbers = values_of(op, sizes, seed)
    changed = with_plain_products(op)
    pairs = [(op, changed)]
    for name in [each.name for each in op.inputs]:
        pairs.append((derivative(op, name).op, derivative(changed, name).op))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one, other in pairs:
            wanted, found = (
                evaluate(
                    each,
                    {size: sizes[size] for size in each.sizes},
                    {tensor.name: numbers[tensor.name] for tensor in each.inputs},
                    {a.name: sizes.get(a.name, 0.5) for a in each.attributes},
                )
                for each in (one, other)
            )
            for key, value in wanted.items():
                np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-9)
