"""One-token mutants of known kernels: each is noticed, or listed with the reason why it cannot."""

from __future__ import annotations

from collections import Counter

import pytest

from emulator_equivalents import EQUIVALENT
from emulator_mutants import SUBJECTS, Subject, mutants
from opgen.testing.cuda_on_cpu import EmulatorError, RawKernel

EACH = pytest.mark.parametrize("name", SUBJECTS)


def verdict(subject: Subject, source: str) -> str:
    """What notices a mutant: the compiler, the checks, the numbers, both of them; or nothing."""
    try:
        kernel = RawKernel(source, "k")
    except EmulatorError:
        return "compiler"
    checks = wrong = False
    for report, is_right in subject.launches(kernel, timeout=0.5):
        checks |= bool(report.findings)
        wrong |= not is_right
        if report.aborted:
            break
    return "both" if checks and wrong else "checks" if checks else "numbers" if wrong else "nothing"


@pytest.mark.sampled(2)
@EACH
@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_the_kernel_itself_passes(name: str, order: str) -> None:
    subject = SUBJECTS[name]
    for report, is_right in subject.launches(RawKernel(subject.source, "k"), order=order):
        report.raise_if_errors()
        assert is_right


@pytest.mark.slow
@EACH
def test_every_mutant_is_noticed(name: str) -> None:
    subject, known = SUBJECTS[name], EQUIVALENT.get(name, {})
    noticed = [(mutant.line, verdict(subject, mutant.source)) for mutant in mutants(subject.source)]
    print(name, dict(Counter(by for _, by in noticed)))
    survivors = {line for line, by in noticed if by == "nothing"}
    assert survivors == set(known), "a survivor needs its reason in emulator_equivalents.py"
    assert len(noticed) >= 15  # the rules still find what to change


@EACH
def test_a_program_that_is_the_same_is_not_noticed(name: str) -> None:
    """Negative control: the harness does not call everything noticed."""
    assert verdict(SUBJECTS[name], f"// nothing changed\n{SUBJECTS[name].source}") == "nothing"
