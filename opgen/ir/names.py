"""Names that nothing else has yet."""

from __future__ import annotations


def fresh_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, with underscores appended until it is new; it is taken from now on."""
    while wanted in taken:
        wanted += "_"
    taken.add(wanted)
    return wanted
