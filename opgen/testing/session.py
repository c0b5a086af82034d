"""Properties over drawn calls: counts, and for a failure the smallest call that shows it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import hypothesis
import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, settings

from opgen.testing.calls import Call
from opgen.testing.cases import cases, long_cases
from opgen.testing.layouts import LAYOUTS
from opgen.testing.properties import PROPERTIES, Inconclusive, offers_forward_mode
from opgen.testing.subject import Subject

_COSTLY: Final = frozenset({"second", "slopes", "transposes", "tangents"})
"""Properties that get half of the examples."""

_IN_DOUBLE: Final = frozenset({"slopes", "transposes"})
"""Properties of the op's mathematics, on contiguous tensors in double precision."""

# Properties that also try long sizes; those of derivatives of higher order would take long.
_WITH_LONG: Final = frozenset({"forward", "gradients"})

_WIDE: Final = ("float64", "float32")
"""Types in which derivatives are compared: PyTorch may add up several, each rounded to its type."""

_TENSORS: Final = 12  # layouts that are drawn; tensors beyond are contiguous


@dataclass(frozen=True)
class Failure:
    """The smallest call found that breaks a property, and the sentence that says how."""

    call: Call
    text: str


@dataclass(frozen=True)
class Outcome:
    """One property of one op: how many calls it held for, or how it failed.

    `inconclusive` calls said nothing; `skipped` says why there were no calls at all.
    """

    op: str
    property: str
    passed: int = 0
    inconclusive: int = 0
    skipped: str = ""
    failure: Failure | None = None


Progress = Callable[[str, str, int, int], None]
"""Called with op, property, calls done and calls planned."""


def calls_of(subject: Subject, name: str, device: str = "cpu") -> st.SearchStrategy[Call]:
    """Calls of an op for one property. Raises NoCaseError."""
    pool = st.sampled_from(cases(subject.op))
    seeds, flags = st.integers(0, 2**16), st.booleans()
    if name in _IN_DOUBLE:
        return st.builds(Call, pool, seed=seeds, positive=flags, device=st.just(device))
    dtypes = subject.dtypes if name == "forward" else _WIDE
    count = min(_TENSORS, len(subject.op.inputs) + len(subject.op.outputs))
    layouts = st.tuples(*[st.sampled_from(LAYOUTS)] * count)
    return st.builds(
        Call, pool, st.sampled_from(dtypes), layouts, seeds, flags, device=st.just(device)
    )


def long_calls(subject: Subject, name: str, device: str = "cpu") -> tuple[Call, ...]:
    """Calls with long rows and sums in consecutive memory: kernels work on whole vectors there."""
    if name not in _WITH_LONG:
        return ()
    dtypes = [each for each in ("float32", "float64") if each in subject.dtypes]
    return tuple(
        Call(case, dtype, device=device)
        for case in long_cases(subject.op)
        for dtype in dtypes or subject.dtypes[:1]
    )


def check(
    subject: Subject,
    *,
    examples: int,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = lambda op, name, done, planned: None,
) -> Iterator[Outcome]:
    """Every property of an op, one after the other; the same calls for the same seed."""
    for name in PROPERTIES:
        yield _check(subject, name, examples, seed, device, progress)


def _check(
    subject: Subject, name: str, examples: int, seed: int, device: str, progress: Progress
) -> Outcome:
    op = subject.op.name
    reason = _not_applicable(subject, name, device)
    if reason:
        return Outcome(op, name, skipped=reason)
    planned = max(1, examples // 2) if name in _COSTLY else examples
    long = long_calls(subject, name, device)
    planned += len(long)
    tally = _Tally(subject, name, lambda done: progress(op, name, done, planned))

    @hypothesis.seed(seed)
    @settings(
        max_examples=planned - len(long),
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(calls_of(subject, name, device))
    def run(call: Call) -> None:
        tally.count(call)

    # Infinities and NaN are values like others here: NumPy need not warn of them in the table.
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        try:
            run()  # first: what it finds shrinks
            for call in long:
                tally.count(call)
        except Exception:  # the tally has the smallest call and what it raised
            if tally.failure is None:
                raise
    return Outcome(op, name, tally.passed, tally.inconclusive, failure=tally.failure)


def _not_applicable(subject: Subject, name: str, device: str) -> str:
    """Why a property has nothing to say about an op; empty if it has."""
    if name == "forward":
        return ""
    if not subject.tangent_exists:
        return "the op has no derivative"
    written = subject.stated_gradients
    if name == "tangents" and written:
        return "forward mode follows a gradient that is written in the spec"
    probe = Call(cases(subject.op)[0], device=device)
    if name == "tangents" and not offers_forward_mode(subject, probe):
        return "the PyTorch binding offers no forward mode"
    if name in _IN_DOUBLE and written.issuperset(t.name for t in subject.numeric):
        return "all gradients are written in the spec, and need not be derivatives"
    return ""


class _Tally:
    """A property that counts. Hypothesis calls it last with the smallest failing call."""

    def __init__(self, subject: Subject, name: str, done: Callable[[int], None]) -> None:
        self.subject, self.name, self.done = subject, name, done
        self.passed = self.inconclusive = 0
        self.failure: Failure | None = None

    def count(self, call: Call) -> None:
        """Try the property on one call."""
        try:
            PROPERTIES[self.name](self.subject, call)
        except Inconclusive:
            self.inconclusive += 1
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            self.failure = Failure(replace(call), f"{kind}{error}")
            raise
        else:
            self.passed += 1
        self.done(self.passed + self.inconclusive)
