"""The results as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opgen.bench.measure import Result
from opgen.bench.run import Omitted, Outcome, Refused

Document = dict[str, Any]


def document(
    outcomes: Sequence[Outcome],
    machine: Mapping[str, str | int],
    about: Mapping[str, object],
) -> Document:
    """What `--json` writes; times are seconds, sizes bytes. `about` says how the run was made."""
    return {
        "machine": dict(machine),
        **about,
        "rows": [row(outcome) for outcome in outcomes if isinstance(outcome, Result)],
        "refused": [
            {"name": o.row.name, "direction": o.direction.value, "reason": o.reason}
            for o in outcomes
            if isinstance(o, Refused)
        ],
        "omitted": [
            {"name": o.row.name, "direction": o.direction.value}
            for o in outcomes
            if isinstance(o, Omitted)
        ],
    }


def row(result: Result) -> Document:
    """One row in one direction."""
    return {
        "name": result.row.name,
        "direction": result.direction.value,
        "times": dict(result.times),
        "limit": result.limit,
        "dispatched": result.dispatched,
        "kind": result.row.kind,
        "shape": list(result.shape),
        "spread": dict(result.spreads),
        "ratio": {name: asdict(ratio) for name, ratio in result.ratios.items()},
        "best": result.best,
        "copy": dict(result.copy),
        "copy_ratio": asdict(result.copy_ratio),
        "recycled": dict(result.recycled),
        "bytes": result.moved,
        "moves": result.row.moves,
        "rounds": result.rounds,
        "repeated": result.repeated,
        "disturbed": result.noisy,
        "copies": dict(result.copies),
        "failed": dict(result.failed),
        "left_out": list(result.row.omitted),
    }
