"""What a message tells the user to write computes what was meant.

`test_errors` checks that it is a spec; here it is evaluated and compared with NumPy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from opgen.errors import Diagnostic, OpgenError, Source
from opgen.ir.reference import evaluate
from opgen.lang.read import read
from opgen.lang.recipes import RECIPES, SORTING, Recipe

ERRORS = Path(__file__).parent / "errors"

Array = npt.NDArray[np.float64]
X: Final = np.array([[0.5, -2.0, 3.5, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 4.0, -1.5, 2.5]])


def spec_of(recipe: Recipe) -> Source:
    lines = "".join(f"  {statement}\n" for statement in recipe.statements)
    return Source(f"op f(x: f64[N,K]) -> y: f64[{recipe.dims}]\n{lines}")


def value(source: Source, sizes: dict[str, int], **inputs: Array) -> Array:
    """What the only op of a text gives for its only output."""
    (op,) = read(source)
    (result,) = evaluate(op, sizes, inputs, {}).values()
    return np.array(result, np.float64)


def fault_of(source: Source) -> Diagnostic:
    with pytest.raises(OpgenError) as raised:
        read(source)
    (fault,) = raised.value.diagnostics
    return fault


# ---------------------------------------------------------------------------- reductions
def softmax(x: Array) -> Array:
    weights = np.exp(x)
    return np.array(weights / weights.sum(1, keepdims=True))


MEANT: Final[dict[str, Callable[[Array], npt.ArrayLike]]] = {
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "norm": lambda x: np.linalg.norm(x, axis=1),
    "rms": lambda x: np.sqrt((x**2).mean(1)),
    "softmax": softmax,
    "log_softmax": lambda x: np.log(softmax(x)),
    "logsoftmax": lambda x: np.log(softmax(x)),
    "logsumexp": lambda x: np.log(np.exp(x).sum(1)),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
    "count": lambda x: (x != 0).sum(1),
    "count_nonzero": lambda x: (x != 0).sum(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: np.maximum.accumulate(x, 1),
    "cummin": lambda x: np.minimum.accumulate(x, 1),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_computes_what_its_name_says(name: str) -> None:
    found = value(spec_of(RECIPES[name]), {"N": 3, "K": 4}, x=X)
    np.testing.assert_allclose(found, np.asarray(MEANT[name](X), np.float64), rtol=1e-12)


@pytest.mark.parametrize("name", ["any", "all", "count"])
def test_recipe_of_no_points(name: str) -> None:
    none = np.zeros((2, 0))
    found = value(spec_of(RECIPES[name]), {"N": 2, "K": 0}, x=none)
    np.testing.assert_array_equal(found, np.asarray(MEANT[name](none), np.float64))


@pytest.mark.parametrize("name", ["var", "std"])
def test_remark_of_a_variance_computes_that_of_a_sample(name: str) -> None:
    recipe = RECIPES[name]
    formula = recipe.remark.partition("one less: ")[2]
    root = f"sqrt({formula})" if name == "std" else formula
    sample = Recipe(recipe.dims, (recipe.statements[0], f"y[n] = {root}"))
    expected = X.var(1, ddof=1) if name == "var" else X.std(1, ddof=1)
    np.testing.assert_allclose(value(spec_of(sample), {"N": 3, "K": 4}, x=X), expected)


@pytest.mark.parametrize("name", sorted({*RECIPES, *SORTING}))
def test_message_tells_the_recipe(name: str) -> None:
    fault = fault_of(Source(f"op f(x[N,K]) -> y[N]\n  y[n] = {name}(k in K) x[n,k]\n"))
    assert fault.code == "unknown-reducer"
    assert fault.replacement is None
    if name in RECIPES:
        written = re.findall("`(.*?)`", fault.help)
        assert tuple(written) == RECIPES[name].statements
    else:
        assert "torch.sort" in fault.help


# ---------------------------------------------------------------------------- edits
PERIOD: Final = np.float64(1.5)
EDITED: Final[dict[str, Callable[[Array], npt.ArrayLike]]] = {
    "conditional_as_argument": lambda x: np.maximum(1, np.abs(x)),
    "conditional_in_parentheses": lambda x: 2 * np.abs(x),
    "question_mark": lambda x: 2 * np.abs(x),
    "question_mark_at_zero": lambda x: np.maximum(x, 0),
    "floor_of_reals": lambda x: x // 2,
    "floor_of_a_function": lambda x: np.exp(x + 1) // 2,
    "remainder_of_reals": lambda x: 2 * (x + 1) % -PERIOD * 3,
    "greek_number": lambda x: 2 * np.pi * x,
}


@pytest.mark.parametrize("name", EDITED)
def test_edit_computes_what_was_meant(name: str) -> None:
    source = Source((ERRORS / f"{name}.op").read_text(encoding="utf-8"))
    edit = fault_of(source).replacement
    assert edit is not None
    (op,) = read(source.edited(edit))
    attributes = {"period": float(PERIOD)} if op.attributes else {}
    (found,) = evaluate(op, {"N": 4}, {"x": X[0]}, attributes).values()
    expected = np.asarray(EDITED[name](X[0]), np.float64)
    np.testing.assert_allclose(np.array(found, np.float64), expected, rtol=1e-12)


def test_another_name_for_what_is_rewritten_computes_what_was_meant() -> None:
    source = Source((ERRORS / "rewritten_output.op").read_text(encoding="utf-8"))
    edit = fault_of(source).replacement
    assert edit is not None
    found = value(source.edited(edit), {"B": 1, "T": 3, "S": 4}, x=X[None])
    expected = X[None] - X[None].max(-1, keepdims=True)
    np.testing.assert_allclose(found, expected)


def test_magnitudes_compute_what_was_meant() -> None:
    source = Source((ERRORS / "magnitude.op").read_text(encoding="utf-8"))
    edit = fault_of(source).replacement
    assert edit is not None
    first = X[:, :1]
    expected = (np.abs(X - first) * np.abs(X - np.abs(first))).sum(1)
    np.testing.assert_allclose(value(source.edited(edit), {"N": 3, "M": 4}, x=X), expected)


def test_an_alias_fills() -> None:
    """What `with` names is put in its place in a boundary mode, too."""
    source = Source("op f(x: f64[N]) -> y: f64[N]\n  with b = 0.5\n  y[n] = x[n-1 ?(b)]\n")
    assert value(source, {"N": 3}, x=np.arange(1.0, 4)).tolist() == [0.5, 1, 2]
