"""What `opgen bench` cannot do, said in one sentence."""

from __future__ import annotations


class BenchError(Exception):
    """A call that cannot be measured, with what to do about it."""


class DisagreementError(BenchError):
    """A contender computes something else: its time would mean nothing."""
