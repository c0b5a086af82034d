"""The figures of a run as Markdown, for benchmarks/README.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from opgen.bench.calls import OPGEN
from opgen.bench.document import Document
from opgen.bench.faults import BenchError
from opgen.bench.measure import COMPILED, COPY, FRESH_COPY
from opgen.bench.report import milliseconds
from opgen.bench.statistics import geometric_mean

ROWS: Final = "rows"
GROWTH: Final = "growth"
FIRST_CALLS: Final = "first calls"
BOUNDS: Final = "bounds"
NETS: Final = "nets"
EVERYDAY: Final = "everyday"
SMALL: Final = "small"
COMMANDS: Final = {
    ROWS: "opgen bench",
    GROWTH: "opgen bench",
    FIRST_CALLS: "benchmarks/first_call.py",
    BOUNDS: "benchmarks/bounds.py",
    NETS: "benchmarks/nets.py",
    EVERYDAY: "benchmarks/everyday.py",
    SMALL: "benchmarks/small.py",
}
"""What writes each part of the file."""
TITLES: Final = {
    "shift_sum": "Shift and sum",
    "upsampling": "Upsampling by two",
    "convolution": "Convolutions",
    "unfold": "Unfold, product, fold",
    "depth_to_space": "Depth to space, space to depth",
    "nets": "A super-resolution net",
    "own": "Own ops",
}
_AT_LIMIT: Final = 0.8
_KEEPS_UP: Final = 0.97
_LIKE_FRESH: Final = 1.25
_LIKE_ALONE: Final = 1.25
"""How much longer than the GPU alone a call takes, at most, that the GPU decides."""


def marks(part: str) -> tuple[str, str]:
    """The lines between which a part of the file is written, one of `COMMANDS`."""
    command = COMMANDS[part]
    return f"<!-- {part}: written by {command} --write-readme -->", f"<!-- end of {part} -->"


def split(path: Path, part: str) -> tuple[str, str]:
    """What stands before and after a part of a file; BenchError where it has no place."""
    begin, end = marks(part)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise BenchError(f"{path} has no place for the figures: lines '{begin}' and '{end}'")
    return head, tail


def rewritten(path: Path, part: str, found: Document) -> None:
    """Put the figures between the marks of a file; BenchError where it has none."""
    head, tail = split(path, part)
    begin, end = marks(part)
    lines = [*_origin(found), *_PARTS[part](found)]
    path.write_text("\n".join([head + begin, *lines, end + tail]), encoding="utf-8")


def _origin(found: Document) -> Iterator[str]:
    """How the run was made."""
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    yield from (f"* date: {found['started']}", f"* machine: {machine}")
    yield f"* command: `{found['command']}`"
    for title, key in (("not reported", "refused"), ("not measured, for lack of time", "omitted")):
        if found.get(key):
            directions: dict[str, list[str]] = {}
            for row in found[key]:
                directions.setdefault(row["name"], []).append(row["direction"])
            names = [f"{name} ({', '.join(listed)})" for name, listed in directions.items()]
            yield f"* {title}: {'; '.join(names)}"


def _rows(found: Document) -> Iterator[str]:
    """What the run comes to, and a table of each kind of row."""
    compared = [row for row in found["rows"] if row["best"] is not None]
    own = [row["ratio"][row["best"]]["median"] for row in compared if not row["dispatched"]]
    if own:
        yield (
            f"* geometric mean of the ratios of the {len(own)} rows that opgen computes itself: "
            f"{geometric_mean(own):.2f}"
        )
    disturbed = sum(row["disturbed"] for row in found["rows"])
    if disturbed:
        yield f"* disturbed by other programs: {disturbed} of {len(found['rows'])} rows, marked \\*"
    for kind, title in TITLES.items():
        rows = [row for row in found["rows"] if row["kind"] == kind]
        if rows:
            yield from ("", f"### {title}", "")
            yield from _times(rows)
            yield from _replayed([row for row in rows if OPGEN in row.get("device", {})])
            yield from _recycled([row for row in rows if row["recycled"]])
            yield from _copies([row for row in rows if row["copies"]])


def _copies(rows: list[Document]) -> Iterator[str]:
    if not rows:
        return
    yield from (
        "",
        "Copies of images that PyTorch runs within a call, as its profiler sees them:",
        "",
    )
    for row in rows:
        counts = ", ".join(f"{name} {count}" for name, count in row["copies"].items())
        yield f"* {row['name']}, {row['direction']}: {counts}"


def _times(rows: list[Document]) -> Iterator[str]:
    yield (
        "| row | | opgen | best other | by | ratio | 95 % | torch.compile | limit "
        "| of limit | limited by |"
    )
    yield "|---|---|---:|---:|---|---:|---|---:|---:|---:|---|"
    for row in rows:
        times = row["times"]
        compiled = milliseconds(times[COMPILED]) if COMPILED in times else ""
        yield _cells(
            row["name"] + " \\*" * row["disturbed"],
            row["direction"],
            milliseconds(times[OPGEN]),
            *_comparison(row),
            compiled,
            milliseconds(row["limit"]),
            f"{100 * row['limit'] / times[OPGEN]:.0f} %",
            limited_by(row),
        )


def _comparison(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """The time of the best contender, its name, the ratio and its interval; empty without one."""
    best = row["best"]
    if best is None:
        return "", "", "", ""
    ratio = row["ratio"][best]
    interval = f"{ratio['low']:.2f}-{ratio['high']:.2f}"
    return milliseconds(row["times"][best]), best, f"{ratio['median']:.2f}", interval


def limited_by(row: Mapping[str, Any]) -> str:
    """What keeps opgen from being faster in a row."""
    own = row["times"][OPGEN]
    if row["dispatched"]:
        return "the library it is dispatched to"
    if row["limit"] >= _AT_LIMIT * own:
        return "multiplications" if row["limit"] > row["copy"][COPY] else "memory"
    alone = row.get("device", {}).get(OPGEN)
    if alone is not None:  # a GPU
        return "the call" if own > _LIKE_ALONE * alone else "its instructions"
    if own <= _LIKE_FRESH * row["copy"][FRESH_COPY]:
        return "fresh pages of the output"
    return "its instructions"


def _replayed(rows: list[Document]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", "The GPU alone, as replays of CUDA graphs, in microseconds:", "")
    yield "| row | | opgen | best other | by | ratio | `copy_` | of its bandwidth |"
    yield "|---|---|---:|---:|---|---:|---:|---:|"
    for row in rows:
        times = row["device"]
        own, copied = times[OPGEN], times.get(COPY)
        others = {name: each for name, each in times.items() if name not in (OPGEN, COPY)}
        best = min(others, key=others.__getitem__, default=None)
        yield _cells(
            row["name"],
            row["direction"],
            _microseconds(own),
            "" if best is None else _microseconds(others[best]),
            best or "",
            "" if best is None else f"{others[best] / own:.2f}",
            "" if copied is None else _microseconds(copied),
            "" if copied is None else f"{100 * copied / own:.0f} %",
        )


def _recycled(rows: list[Document]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", "With outputs recycled, in every call the same memory:", "")
    yield from ("| row | | opgen | `copy_` | of its bandwidth |", "|---|---|---:|---:|---:|")
    for row in rows:
        own, copied = row["recycled"][OPGEN], row["recycled"][COPY]
        part = f"{100 * copied / own:.0f} %"
        yield _cells(row["name"], row["direction"], milliseconds(own), milliseconds(copied), part)


def _growth(found: Document) -> Iterator[str]:
    yield ""
    yield "Times at a quarter, a half, and the whole of the batch or the largest dim; MB moved;"
    yield "the exponent of the time over the bytes; MB held by forward and backward at the whole."
    yield ""
    yield "| row | | opgen | MB | exponent | of the best other | peak | of the best other |"
    yield "|---|---|---|---|---:|---:|---:|---:|"
    for row in found["growth"]:
        others = [value for name, value in row["exponents"].items() if name != OPGEN]
        peaks = [value for name, value in row["peaks"].items() if name != OPGEN]
        yield _cells(
            row["name"],
            row["direction"],
            ", ".join(milliseconds(seconds) for seconds in row["seconds"]),
            ", ".join(_megabytes(size) for size in row["bytes"]),
            f"{row['exponents'][OPGEN]:.2f}",
            f"{others[0]:.2f}" if others else "",
            _megabytes(row["peaks"][OPGEN]) if row["peaks"] else "",
            _megabytes(peaks[0]) if peaks else "",
        )


def _first_calls(found: Document) -> Iterator[str]:
    yield f"* {found['importing']}"
    yield ""
    yield "| row | cold, forward | cold, with gradients | warm, forward | warm, with gradients |"
    yield "|---|---:|---:|---:|---:|"
    for row in found["first calls"]:
        yield _cells(*row)


def _bounds(found: Document) -> Iterator[str]:
    yield ""
    yield "| row | | `copy_` | loop | nothing | both | opgen | reached |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for row in found[BOUNDS]:
        yield _cells(*row)


def _beside(found: Document, table: str, what: str) -> Iterator[str]:
    yield from _summed_up(found["ratios"], "ratios")
    if found.get("alone"):
        yield from _summed_up(found["alone"], "ratios of what the GPU alone takes, in brackets,")
    yield ""
    yield f"| {what} | forward | channels_last | backward | channels_last |"
    yield "|---|---:|---:|---:|---:|"
    for row in found[table]:
        yield _cells(*row)


def _summed_up(ratios: Sequence[float], what: str) -> Iterator[str]:
    ahead = sum(ratio >= _KEEPS_UP for ratio in ratios)
    yield f"* {ahead} of {len(ratios)} {what} are {_KEEPS_UP} or more"
    yield f"* their geometric mean: {geometric_mean(ratios):.2f}"


def _nets(found: Document) -> Iterator[str]:
    return _beside(found, NETS, "layer")


def _everyday(found: Document) -> Iterator[str]:
    return _beside(found, EVERYDAY, "op")


def _small(found: Document) -> Iterator[str]:
    return _beside(found, SMALL, "op")


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.{1 if seconds < 1e-4 else 0}f}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g}"


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_PARTS: Final = {
    ROWS: _rows,
    GROWTH: _growth,
    FIRST_CALLS: _first_calls,
    BOUNDS: _bounds,
    NETS: _nets,
    EVERYDAY: _everyday,
    SMALL: _small,
}
