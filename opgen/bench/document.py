"""The results as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opgen.bench.calls import OPGEN
from opgen.bench.growth import Growth
from opgen.bench.measure import Result
from opgen.bench.run import Omitted, Outcome, Refused

Document = dict[str, Any]


def document(
    outcomes: Sequence[Outcome],
    machine: Mapping[str, str | int],
    about: Mapping[str, object],
    growths: Sequence[Growth] = (),
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
        "growth": [grown(growth) for growth in growths],
    }


def grown(growth: Growth) -> Document:
    """One row in one direction at its sizes, smallest first; peaks are bytes."""
    return {
        "name": growth.row.name,
        "direction": growth.direction.value,
        "shapes": [list(result.shape) for result in growth.results],
        "seconds": [result.times[OPGEN] for result in growth.results],
        "bytes": [result.moved for result in growth.results],
        "exponents": dict(growth.exponents),
        "peaks": dict(growth.peaks),
    }


def row(result: Result) -> Document:
    """One row in one direction; `best` is None where opgen was timed alone."""
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
        "device": dict(result.device),
        "bytes": result.moved,
        "moves": result.row.moves,
        "rounds": result.rounds,
        "repeated": result.repeated,
        "disturbed": result.noisy,
        "copies": dict(result.copies),
        "failed": dict(result.failed),
        "left_out": list(result.row.omitted),
    }
