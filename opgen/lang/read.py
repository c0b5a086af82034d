"""A spec text to ops in one call, with every fault of the file and only suggestions that hold.

A suggested edit is tried before it is shown: the edited text must have no fault that the original
did not have, and one fewer. So what a message tells the user to write passes the check.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from opgen.errors import Diagnostic, Edit, OpgenError, Source
from opgen.ir.notation import Op
from opgen.lang.check import check
from opgen.lang.identities import without_identities
from opgen.lang.parse import parse_readable
from opgen.lang.unused import UNUSED

# Trying an edit takes a check, and longer the more faults there are. Where there are many, the
# suggestions of the later ones stay words.
_EFFORT: Final = 60


def read(source: Source) -> tuple[Op, ...]:
    """The ops of a spec. Raises OpgenError with every fault of syntax and of meaning."""
    ops, faults = _outcome(source)
    if faults:
        raise OpgenError(_with_sound_suggestions(faults, source), source)
    return tuple(map(without_identities, ops))


def _outcome(source: Source) -> tuple[tuple[Op, ...], tuple[Diagnostic, ...]]:
    """The ops and the faults of a text."""
    file, faults = parse_readable(source)
    if faults and not file.definitions:
        return (), faults
    try:
        return check(file, source), faults
    except OpgenError as error:
        found = tuple(error.diagnostics)
        if faults:  # a hand-written gradient may be one of the ops that could not be parsed
            found = tuple(d for d in found if d.code != "unknown-op")
        return (), (*faults, *found)


def _with_sound_suggestions(
    faults: tuple[Diagnostic, ...], source: Source
) -> tuple[Diagnostic, ...]:
    left = max(1, _EFFORT // (len(faults) + 1))
    out = []
    for fault in faults:
        edits = (*([fault.replacement] if fault.replacement else []), *fault.alternatives)[:left]
        left -= len(edits)
        sound = next((edit for edit in edits if _repairs(edit, fault, faults, source)), None)
        out.append(replace(fault, replacement=sound, alternatives=()))
    return tuple(out)


def _repairs(edit: Edit, fault: Diagnostic, faults: tuple[Diagnostic, ...], source: Source) -> bool:
    """Whether the edited text has the other faults at most."""
    others = Counter((other.code, other.headline) for other in faults)
    others[fault.code, fault.headline] -= 1
    _, remaining = _outcome(source.edited(edit))
    # What is unused is seen only once all else is right: an edit does not lead to it.
    late = UNUSED.difference(other.code for other in faults)
    return Counter((d.code, d.headline) for d in remaining if d.code not in late) <= others
