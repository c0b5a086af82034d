"""What a traced launch asks of memory, and what of it falls short of the ideal.

    report = kernel(grid, block, args, trace=True)
    assert not shortfalls(report, ideal_bytes=x.nbytes + y.nbytes)

Bytes at three levels, in sectors of 32: what all requests ask of the first cache; what reaches the
second, if the first holds what a block has read, and stores pass through it unmerged; and what is
unique in the launch, which the memory of the device must move at least. No figure is a time: of two
kernels the one that asks for less is not always faster, but one that asks for twice as much as it
needs is rarely fast. Caches of real size, and what the compiler hoists, are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opgen.testing.cuda_on_cpu.report import Report, Site

_SECTOR = 32


@dataclass(frozen=True, slots=True)
class Movement:
    """Bytes that a launch moves."""

    first_cache: int
    second_cache: int
    device: int


def movement(report: Report) -> Movement:
    """The bytes of all arrays together. ValueError without a trace."""
    arrays = _traced(report).traffic.values()
    return Movement(
        _SECTOR * sum(each.read_sectors + each.write_sectors for each in arrays),
        _SECTOR * sum(each.read_block_sectors + each.write_sectors for each in arrays),
        _SECTOR * sum(each.read_unique_sectors + each.write_unique_sectors for each in arrays),
    )


def widths(report: Report) -> dict[tuple[str, bool], frozenset[int]]:
    """For an array, and whether it is written: the bytes that a thread accesses at once."""
    found: dict[tuple[str, bool], frozenset[int]] = {}
    for site in _traced(report).sites:
        key = site.array, site.is_write
        found[key] = found.get(key, frozenset()) | {site.bytes}
    return found


def bank_conflicts(report: Report) -> float:
    """The most wavefronts of an access to shared memory, as a multiple of the fewest it needs."""
    shared = [site for site in _traced(report).sites if site.is_shared]
    return max((site.moved / site.ideal for site in shared), default=1.0)


def shortfalls(
    report: Report,
    ideal_bytes: int,
    *,
    device: float = 0.97,
    second_cache: float = 0.85,
    loads: float = 0.85,
    stores: float = 1.0,
    conflicts: float = 1.0,
) -> list[str]:
    """Sentences about what falls short; none if the kernel asks for little more than it needs.

    `ideal_bytes`: what the operation must move by its definition. `device`, `second_cache`: which
    part of the bytes there must be of use. `loads`, `stores`: which part of the sectors of each
    access must be needed. `conflicts`: the most wavefronts of an access to shared memory, as a
    multiple of the fewest. ValueError without a trace.
    """
    moved = movement(report)
    found = [
        f"{name} moves {count} bytes for {ideal_bytes} that are needed: {ideal_bytes / count:.0%} "
        f"useful, wanted {wanted:.0%}"
        for name, count, wanted in (
            ("the device's memory", moved.device, device),
            ("the second cache", moved.second_cache, second_cache),
        )
        if count and ideal_bytes / count < wanted
    ]
    for site in report.sites:
        found += _shortfalls_of(site, stores if site.is_write else loads, conflicts)
    return found


def _shortfalls_of(site: Site, wanted: float, conflicts: float) -> Iterator[str]:
    what = f"{site.place}: the {site.bytes}-byte {'store to' if site.is_write else 'load from'}"
    if site.is_shared:
        ways = site.moved / site.ideal
        if ways > conflicts:
            yield f"{what} shared memory takes {ways:.1f} times the wavefronts: bank conflicts"
    elif site.efficiency < wanted:
        yield (
            f"{what} {site.array} uses {site.per_request:.1f} sectors a request, "
            f"{site.ideal / site.requests:.1f} would do"
        )


def _traced(report: Report) -> Report:
    if report.accesses and not report.sites:
        raise ValueError(f"{report.kernel} was launched without trace=True")
    return report
