"""From what the run time hands back to a report with names and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opgen.testing.cuda_on_cpu import abi
from opgen.testing.cuda_on_cpu.arguments import Memory
from opgen.testing.cuda_on_cpu.compiler import EmulatorError
from opgen.testing.cuda_on_cpu.lines import Place, places
from opgen.testing.cuda_on_cpu.report import (
    Access,
    Finding,
    FindingKind,
    Report,
    Site,
    Traffic,
)

_MOST_FINDINGS = 64
_MOST_SITES = 4096
_SHARED = -1
_COUNTS = tuple(Traffic.__dataclass_fields__)
_ANCHOR = 16  # bytes of the launch stub (see compiler.py)


class Raw:
    """Room for what the run time hands back."""

    def __init__(self, arrays: int) -> None:
        self._findings = (abi.Finding * _MOST_FINDINGS)()
        self._sites = (abi.Site * _MOST_SITES)()
        self._traffic = (abi.Traffic * max(1, arrays))()
        self.outcome = abi.Outcome(
            findings=self._findings,
            finding_capacity=_MOST_FINDINGS,
            sites=self._sites,
            site_capacity=_MOST_SITES,
            traffic=self._traffic,
        )

    @property
    def findings(self) -> list[abi.Finding]:
        """Those that were made."""
        return list(self._findings[: self.outcome.finding_count])

    @property
    def sites(self) -> list[abi.Site]:
        """Those that were met, in the order of the library's code."""
        return sorted(self._sites[: self.outcome.site_count], key=lambda site: site.pc)

    def traffic(self, array: int) -> Traffic:
        """The sectors of an array."""
        counts = self._traffic[array]
        return Traffic(*(getattr(counts, name) for name in _COUNTS))


def report_of(
    raw: Raw,
    kernel: str,
    source: str,
    library: str,
    memories: Sequence[Memory],
    demanded: Mapping[int, np.ndarray],
    *,
    trace: bool,
) -> Report:
    """The report. `demanded`: for memory that must be written, which cells were."""
    outcome = raw.outcome
    if outcome.sites_left_out:
        raise EmulatorError(f"{kernel}: more accesses than can be traced; trace a smaller kernel")
    addresses = {found.pc for found in raw.findings} | {site.pc for site in raw.sites}
    addresses |= {found.other_pc for found in raw.findings if found.other_pc}
    at = places(library, addresses)
    lines = source.split("\n")
    findings = [_finding(found, at, lines, memories) for found in raw.findings]
    if not outcome.aborted:
        findings += _unwritten(memories, demanded)
    names = [memory.name for memory in memories]
    return Report(
        kernel,
        tuple(findings),
        bool(outcome.aborted),
        outcome.accesses,
        max(0, outcome.static_shared - _ANCHOR),
        0.0,
        {name: raw.traffic(number) for number, name in enumerate(names)} if trace else {},
        tuple(_site(site, at, names) for site in raw.sites),
    )


def _finding(
    found: abi.Finding, at: Mapping[int, Place], lines: Sequence[str], memories: Sequence[Memory]
) -> Finding:
    place = at[found.pc]
    access = None
    if found.bytes:
        memory = memories[found.array] if found.array >= 0 else None
        access = Access(
            "shared memory" if found.array == _SHARED else memory.name if memory else "nothing",
            bool(found.is_write),
            found.bytes,
            found.offset,
            memory.itemsize if memory else 1,
            memory.extent if memory else 0,
        )
    return Finding(
        FindingKind(found.kind),
        place,
        lines[place.line - 1].strip() if 0 < place.line <= len(lines) else "",
        found.detail.decode("utf-8", "replace"),
        found.thread.as_tuple(),
        found.block.as_tuple(),
        access,
        found.other_thread.as_tuple() if found.has_other else None,
        found.other_block.as_tuple() if found.has_other else None,
        at[found.other_pc] if found.has_other and found.other_pc else None,
    )


def _unwritten(memories: Sequence[Memory], demanded: Mapping[int, np.ndarray]) -> list[Finding]:
    found = []
    for number, cells in demanded.items():
        missing = int(cells.size - np.count_nonzero(cells))
        if missing:
            first = int(np.argmin(cells))
            detail = (
                f"{missing} of {cells.size} elements of {memories[number].name} were never "
                f"written, the first at {first}"
            )
            nobody = (0, 0, 0)
            found.append(Finding(FindingKind.UNWRITTEN, Place(0), "", detail, nobody, nobody))
    return found


def _site(site: abi.Site, at: Mapping[int, Place], names: Sequence[str]) -> Site:
    return Site(
        at[site.pc],
        names[site.array] if site.array >= 0 else "shared",
        bool(site.is_write),
        site.bytes,
        site.requests,
        site.lanes,
        site.moved,
        site.ideal,
    )
