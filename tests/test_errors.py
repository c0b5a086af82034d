"""Every message about a bad spec is pinned whole, and what it tells the user to write is right.

    tests/errors/NAME.op     a spec with one fault; `several_*` have more
    tests/errors/NAME.err    the rendered message
    tests/errors/NAME.fixed  the spec as the message says to write it, where the message has words
                             only; a suggested edit needs no such file, it is applied and checked

`OPGEN_UPDATE_ERRORS=1 pytest tests/test_errors.py` rewrites the `.err` files: read the difference.
"""

from __future__ import annotations

import ast
import functools
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from opgen.errors import Diagnostic, Label, OpgenError, Source, Span, render
from opgen.lang.read import read

LANG = Path(__file__).parents[1] / "opgen" / "lang"
ERRORS = Path(__file__).parent / "errors"
SPECS = sorted(ERRORS.glob("*.op"))
UPDATE = bool(os.environ.get("OPGEN_UPDATE_ERRORS"))
FEWEST = 70

each = pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)


def source_of(path: Path) -> Source:
    return Source(path.read_text(encoding="utf-8"), path.name)


def faults_of(source: Source) -> tuple[Diagnostic, ...]:
    """The diagnostics of a text; none if it passes the check."""
    try:
        read(source)
    except OpgenError as error:
        return tuple(error.diagnostics)
    return ()


@functools.cache
def pinned(path: Path) -> tuple[Source, tuple[Diagnostic, ...]]:
    source = source_of(path)
    return source, faults_of(source)


# ---------------------------------------------------------------------------- what must hold
def wrong_text(faults: Sequence[Diagnostic], source: Source, expected: str) -> list[str]:
    """How the rendered message differs from the expected one."""
    text = f"{OpgenError(faults, source)}\n"
    return [] if text == expected else [f"expected:\n{expected}\nbut the message is:\n{text}"]


def wrong_shape(fault: Diagnostic, source: Source) -> list[str]:
    """What a diagnostic lacks: labels inside the text, a headline of one line, a reason or help."""
    found = []
    if not re.fullmatch(r"[a-z]+(-[a-z]+)*", fault.code):
        found.append(f"'{fault.code}' is no hyphenated name")
    if not fault.headline or "\n" in fault.headline or fault.headline.endswith("."):
        found.append("the headline is not one line of words")
    if not fault.help and not fault.notes:
        found.append("neither a note nor help")
    if fault.replacement is not None and not fault.help:
        found.append("an edit without words")
    if not fault.labels:
        found.append("no label")
    for label in fault.labels:
        start, end = label.span.start, label.span.end
        at_end = not source.text[start:].partition("\n")[0].strip()  # the fault: the line ends
        if not (0 <= start <= len(source.text) and (start < end or at_end)):
            found.append(f"the span {start}:{end} is not inside the text")
        elif not source.text[start:end].strip() and not at_end:
            found.append(f"the span {start}:{end} covers blanks")
    return found


def wrong_suggestion(fault: Diagnostic, faults: Sequence[Diagnostic], source: Source) -> list[str]:
    """What a suggested edit does not repair, or breaks."""
    if fault.replacement is None:
        return []
    others = Counter(other.headline for other in faults)
    others[fault.headline] -= 1
    edited = source.edited(fault.replacement)
    remaining = faults_of(edited)
    if Counter(other.headline for other in remaining) <= others:
        return []
    return [f"after the edit:\n{edited.text}\n{OpgenError(remaining, edited)}"]


# ---------------------------------------------------------------------------- every bad spec
@each
def test_message_is_pinned(path: Path) -> None:
    source, faults = pinned(path)
    assert faults, "this spec passes the check"
    message = path.with_suffix(".err")
    if UPDATE:
        message.write_text(f"{OpgenError(faults, source)}\n", encoding="utf-8")
    problems = wrong_text(faults, source, message.read_text(encoding="utf-8"))
    assert not problems, problems[0]


@each
def test_diagnostics_are_complete(path: Path) -> None:
    source, faults = pinned(path)
    assert [p for fault in faults for p in wrong_shape(fault, source)] == []
    assert len(faults) == 1 or path.stem.startswith("several")


@each
def test_suggestions_pass_the_check(path: Path) -> None:
    source, faults = pinned(path)
    problems = [p for fault in faults for p in wrong_suggestion(fault, faults, source)]
    assert not problems, problems[0]
    fixed = path.with_suffix(".fixed")
    if all(fault.replacement is not None for fault in faults):
        assert not fixed.exists(), "the message has an edit, so this file proves nothing"
    else:
        remaining = faults_of(source_of(fixed))
        assert not remaining, str(OpgenError(remaining, source_of(fixed)))


def test_files_belong_together() -> None:
    stems = {path.stem for path in SPECS}
    assert len(stems) >= FEWEST
    for path in sorted(ERRORS.iterdir()):
        assert path.suffix in (".op", ".err", ".fixed")
        assert path.stem in stems


# ---------------------------------------------------------------------------- every diagnostic
def raised_codes(text: str) -> Iterator[str]:
    """The codes of the diagnostics that a module makes."""
    tree = ast.parse(text)
    carriers = ("Fault", "Refused")  # these hand on a code that their caller names
    inside = {
        id(node)
        for definition in ast.walk(tree)
        if isinstance(definition, ast.ClassDef) and definition.name in carriers
        for node in ast.walk(definition)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in inside:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in (*carriers, "Diagnostic"):
            code = node.args[0]
            assert isinstance(code, ast.Constant) and isinstance(code.value, str), ast.dump(code)
            yield code.value


def test_every_code_is_pinned() -> None:
    raised = {c for path in LANG.glob("*.py") for c in raised_codes(path.read_text("utf-8"))}
    assert raised == {fault.code for path in SPECS for fault in pinned(path)[1]}


# ---------------------------------------------------------------------------- no traceback
_WORDS = re.compile(r'"[^"\n]*"|\?\w+|\w+|\*\*|//|[<>=!+]=|->|\.\.\.|\s|.')
_OTHERS = (
    "n",
    "N",
    "0",
    "x",
    "(",
    ")",
    "[",
    "]",
    ",",
    ";",
    "=",
    "-",
    "//",
    "?0",
    "?",
    "for",
    "sum",
)


def mutated(text: str, chance: random.Random) -> str:
    """The text with one word removed, doubled, replaced or moved."""
    words = _WORDS.findall(text)
    at, other = chance.randrange(len(words)), chance.randrange(len(words))
    match chance.randrange(4):
        case 0:
            words[at] = ""
        case 1:
            words[at] *= 2
        case 2:
            words[at] = chance.choice(_OTHERS)
        case _:
            words[at], words[other] = words[other], words[at]
    return "".join(words)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_specs_give_diagnostics(seed: int) -> None:
    """Whatever is written, the answer is an op or a complete diagnostic, never a traceback."""
    chance = random.Random(seed)
    for path in chance.sample(SPECS, 40):
        text = source_of(path).text
        source = Source(mutated(mutated(text, chance), chance), path.name)
        problems = [p for fault in faults_of(source) for p in wrong_shape(fault, source)]
        assert not problems, (source.text, problems)


# ---------------------------------------------------------------------------- the harness itself
GOOD = Source("op copy(x[N]) -> y[N]\n  y[n] = x[n]\n", "good.op")
BAD = Source("op shift(x[N]) -> y[N]\n  y[n] = x[n-1]\n", "bad.op")


def test_harness_reports_a_good_spec() -> None:
    assert faults_of(GOOD) == ()


def test_harness_reports_another_text() -> None:
    faults = faults_of(BAD)
    text = f"{OpgenError(faults, BAD)}\n"
    assert wrong_text(faults, BAD, text) == []
    assert wrong_text(faults, BAD, text.replace("^", " ")) != []


def test_harness_reports_a_bad_suggestion() -> None:
    (fault,) = faults_of(BAD)
    assert wrong_suggestion(fault, (fault,), BAD) == []
    at = BAD.text.index("n-1")
    for text in ("n+1", "m", "n-1 ?drop", "n-1]"):
        worse = Diagnostic(
            fault.code, fault.headline, fault.labels, (), "write this", (Span(at, at + 3), text)
        )
        assert wrong_suggestion(worse, (fault,), BAD) != []


def test_harness_reports_incomplete_diagnostics() -> None:
    label = Label(Span(3, 8), "here")
    assert wrong_shape(Diagnostic("some-code", "what is wrong", (label,), ("why",)), GOOD) == []
    for bad in (
        Diagnostic("SomeCode", "what is wrong", (label,), ("why",)),
        Diagnostic("some-code", "", (label,), ("why",)),
        Diagnostic("some-code", "two\nlines", (label,), ("why",)),
        Diagnostic("some-code", "what is wrong", (), ("why",)),
        Diagnostic("some-code", "what is wrong", (label,)),
        Diagnostic("some-code", "what is wrong", (Label(Span(3, 3)),), ("why",)),
        Diagnostic("some-code", "what is wrong", (Label(Span(2, 3)),), ("why",)),
        Diagnostic("some-code", "what is wrong", (Label(Span(999, 1000)),), ("why",)),
        Diagnostic("some-code", "what is wrong", (label,), ("why",), "", (Span(3, 8), "copy")),
    ):
        assert wrong_shape(bad, GOOD) != []


def test_codes_are_found_in_calls_only() -> None:
    text = 'raise Fault("one-code", "x", span)\nRefused("two-codes", x)\nother("three")\n'
    assert list(raised_codes(text)) == ["one-code", "two-codes"]
    with pytest.raises(AssertionError):
        list(raised_codes("Fault(code, headline)"))


# ---------------------------------------------------------------------------- rendering
def test_carets_stand_under_tabs_and_long_lines() -> None:
    tabs = Source("\ta\tbad", "tabs.op")
    shown = render(Diagnostic("code", "headline", (Label(Span(3, 6)),)), tabs)
    assert shown.splitlines()[2:] == ["1 | \ta\tbad", "  | \t \t^^^"]
    long = Source("x" * 500 + "bad" + "x" * 500, "long.op")
    shown = render(Diagnostic("code", "headline", (Label(Span(500, 503)),)), long)
    line, carets = shown.splitlines()[2:]
    assert len(line) < 140
    assert line[carets.index("^") : carets.rindex("^") + 1] == "bad"


def test_edits_are_shown_as_the_lines_they_leave() -> None:
    source = Source("one\ntwo\nthree\n", "edit.op")

    def shown(start: int, end: int, text: str) -> list[str]:
        edit = (Span(start, end), text)
        whole = render(Diagnostic("code", "headline", (), (), "help", edit), source)
        return whole.splitlines()[2:]

    assert shown(4, 7, "TWO") == ["2 + TWO"]
    assert shown(4, 4, "new\n") == ["2 + new"]
    assert shown(4, 8, "") == ["2 - two"]
    assert shown(3, 7, "") == ["1 + one"]
