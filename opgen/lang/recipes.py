"""Reductions of libraries that a spec writes out, each in one statement or a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Recipe:
    """The statements that compute `y` from `x`, and what is to be known of them."""

    dims: str  # of y, in terms of those of x: N and K
    statements: tuple[str, ...]
    remark: str = ""

    @property
    def advice(self) -> str:
        """How it is written, in one line."""
        return "write " + ", then ".join(f"`{statement}`" for statement in self.statements)


_CENTRE: Final = "m[n] = mean(k) x[n,k]"
_GREATEST: Final = "m[n] = max(k) x[n,k]"
_DIVISOR: Final = (
    "this divides by the number of points; torch.{} divides by one less: "
    "(sum(k) (x[n,k] - m[n])**2) / (K - 1)"
)
_SOFTMAX: Final = Recipe(
    "N,K",
    (_GREATEST, "e[n,k] = exp(x[n,k] - m[n])", "y[n,k] = e[n,k] / (sum(j) e[n,j])"),
)
_LOG_SOFTMAX: Final = Recipe(
    "N,K", (_GREATEST, "y[n,k] = x[n,k] - m[n] - log(sum(j) exp(x[n,j] - m[n]))")
)
_COUNT: Final = Recipe("N", ("y[n] = sum(k) (x[n,k] != 0)",))
_RUNNING: Final = "this is right, but quadratic: for long rows use torch.{}"

RECIPES: Final = {
    "var": Recipe("N", (_CENTRE, "y[n] = mean(k) (x[n,k] - m[n])**2"), _DIVISOR.format("var")),
    "std": Recipe(
        "N", (_CENTRE, "y[n] = sqrt(mean(k) (x[n,k] - m[n])**2)"), _DIVISOR.format("std")
    ),
    "norm": Recipe("N", ("y[n] = sqrt(sum(k) x[n,k]**2)",)),
    "rms": Recipe("N", ("y[n] = sqrt(mean(k) x[n,k]**2)",)),
    "softmax": _SOFTMAX,
    "log_softmax": _LOG_SOFTMAX,
    "logsoftmax": _LOG_SOFTMAX,
    "logsumexp": Recipe("N", (_GREATEST, "y[n] = m[n] + log(sum(k) exp(x[n,k] - m[n]))")),
    # Counts, not `max` and `min`, which over no points are the ends of the integers.
    "any": Recipe("N", ("y[n] = (sum(k) (x[n,k] != 0)) > 0",)),
    "all": Recipe("N", ("y[n] = (sum(k) (x[n,k] == 0)) == 0",)),
    "count": _COUNT,
    "count_nonzero": _COUNT,
    "cumsum": Recipe("N,K", ("y[n,k] = sum(j if j <= k) x[n,j]",), _RUNNING.format("cumsum")),
    "cumprod": Recipe("N,K", ("y[n,k] = prod(j if j <= k) x[n,j]",), _RUNNING.format("cumprod")),
    "cummax": Recipe("N,K", ("y[n,k] = max(j if j <= k) x[n,j]",), _RUNNING.format("cummax")),
    "cummin": Recipe("N,K", ("y[n,k] = min(j if j <= k) x[n,j]",), _RUNNING.format("cummin")),
}
"""The recipes, for an `x` of rows `n` and columns `k`."""

SORTING: Final = frozenset(("median", "sort", "argsort", "topk", "quantile", "mode", "unique"))
"""What needs an order of the values, of which a spec has none."""
