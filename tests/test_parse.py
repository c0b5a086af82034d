"""Text to tree: layout, spans, syntax errors, and that no text at all breaks parser or checker.

The fuzz tests hold `parse` and `check` to one promise: whatever the text, they give ops or an
OpgenError whose message can be shown, and soon. `survive` is that promise; it is tested with a
front end that breaks it.
"""

from __future__ import annotations

import dataclasses
import random
import re
import signal
import string
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgen.errors import OpgenError, Source, Span
from opgen.lang import syntax
from opgen.lang.check import check
from opgen.lang.parse import parse

SPECS = Path(__file__).parent.parent / "specs"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SPECS.glob("*.op"))}


# ---------------------------------------------------------------------------- trees
def shape(node: object) -> object:
    """A tree without its spans, so that trees of differently laid out text compare."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = [f.name for f in dataclasses.fields(node)]
        values = {name: getattr(node, name) for name in fields}
        kept = {n: shape(v) for n, v in values.items() if not isinstance(v, Span) and n != "head"}
        return type(node).__name__, kept
    return tuple(map(shape, node)) if isinstance(node, tuple) else node


def nodes(node: object) -> Iterator[object]:
    """Every node of a tree, parents first."""
    if isinstance(node, tuple):
        for child in node:
            yield from nodes(child)
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        yield node
        for field in dataclasses.fields(node):
            yield from nodes(getattr(node, field.name))


def tree(text: str) -> syntax.File:
    return parse(Source(text))


# ---------------------------------------------------------------------------- layout
PLAIN = """\
op f(x[N,C], w[C]; r = 2) -> y[N]
  where r >= 1, N >= 1
  let M = N + r
  with u = n + 1
  y[n] = sum(c) x[n,c] * w[c] + 2 for n in N if n >= 0 and n < r
  y[n] += x[n,0]
"""

LAYOUTS = {
    "inside brackets": PLAIN.replace("x[N,C], w[C]; r", "x[N,\n\nC],\n w[\nC]\n;\nr"),
    "after a comma": PLAIN.replace("r >= 1, N", "r >= 1,\n\n  N"),
    "after an operator": PLAIN.replace("* w[c] + 2", "*\n w[c] +\n 2").replace("M = N", "M =\n N"),
    "after a keyword": PLAIN.replace("  let M", "  let\n M").replace(
        "if n >= 0 and", "if\nn >= 0 and\n"
    ),
    "before an operator": PLAIN.replace("* w[c] + 2", "\n   * w[c]\n+ 2").replace(
        "M = N", "M\n= N"
    ),
    "before for and if": PLAIN.replace(" for n", "\n for n").replace(" if n", "\n\n if n"),
    "before and": PLAIN.replace(" and n", "\n   and n").replace(" -> ", "\n-> "),
    "comments": PLAIN.replace(" * w", " # one\n # two\n * w").replace("\n", "  # end\n"),
    "blank lines": "\n\n" + PLAIN.replace("\n", "\n\n   \n") + "\n\n",
    "no indentation": re.sub(r"^ +", "", PLAIN, flags=re.MULTILINE),
    "tabs": PLAIN.replace("  ", "\t").replace(" ", "\t"),
    "windows line ends": PLAIN.replace("\n", "\r\n"),
    "no line end at the end": PLAIN.rstrip("\n"),
    "no spaces": re.sub(r" ?([-+*=<>,;]+) ?", r"\1", PLAIN),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_does_not_matter(layout: str) -> None:
    assert LAYOUTS[layout] != PLAIN
    assert shape(tree(LAYOUTS[layout])) == shape(tree(PLAIN))


@pytest.mark.parametrize(
    "changed",
    [
        PLAIN.replace("+ 2 for", "- 2 for"),
        PLAIN.replace("  with u", "  # with u"),
        PLAIN.replace("sum(c) x[n,c] * w[c] + 2", "sum(c) x[n,c] * (w[c] + 2)"),
        "## documented\n" + PLAIN,
    ],
)
def test_what_matters_changes_the_tree(changed: str) -> None:
    assert shape(tree(changed)) != shape(tree(PLAIN))


@pytest.mark.parametrize(
    "broken",
    [
        PLAIN.replace("\n  let", " let"),  # two clauses on a line
        PLAIN.replace("\n  y[n] +=", " y[n] +="),
        PLAIN.replace("sum(c) x", "sum(c)\n x"),  # a line may end after sum(c), and then it does
    ],
)
def test_line_ends_that_matter(broken: str) -> None:
    with pytest.raises(OpgenError):
        tree(broken)


def test_doc_comments() -> None:
    text = "# no doc\n## One.\n##\n##   Two.\n# not this\n" + PLAIN + "## Three.\n\n" + PLAIN
    first, second = tree(text).definitions
    assert first.doc == "One.\n\nTwo."
    assert second.doc == "Three."


def test_doc_comment_inside_an_op_is_a_comment() -> None:
    inside = PLAIN.replace("  where", "  ## beside\n  where")
    assert shape(tree(inside)) == shape(tree(PLAIN))


# ---------------------------------------------------------------------------- precedence
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a + b*c", "a + (b*c)"),
        ("a - b - c", "(a - b) - c"),
        ("a / b * c", "(a/b) * c"),
        ("-a * b", "-(a*b)"),
        ("-a ** 2", "-(a**2)"),
        ("-a // b", "-(a//b)"),
        ("a * -b ** 2", "a * (-(b**2))"),
        ("a ** -b", "a ** (-b)"),
        ("not a == b and c", "(not (a == b)) and c"),
        ("a or b and c", "a or (b and c)"),
        ("sum(k) a * b + c", "(sum(k) (a*b)) + c"),
        ("a + sum(k) b", "a + (sum(k) b)"),
        ("a * sum(k) b / c", "a * (sum(k) (b/c))"),
        ("sum(k) max(l) a * b", "sum(k) (max(l) (a*b))"),
        ("max(a, b) * c", "(max(a, b)) * c"),
    ],
)
def test_precedence(text: str, meant: str) -> None:
    head = "op f(x[N]) -> y[N]\n  y[i] = "
    assert shape(tree(head + text)) == shape(tree(head + meant))


@pytest.mark.parametrize(
    ("text", "other"), [("a - b - c", "a - (b - c)"), ("sum(k) a + b", "sum(k) (a + b)")]
)
def test_precedence_is_seen(text: str, other: str) -> None:
    head = "op f(x[N]) -> y[N]\n  y[i] = "
    assert shape(tree(head + text)) != shape(tree(head + other))


# ---------------------------------------------------------------------------- spans
CLAUSES = (
    syntax.Where,
    syntax.Let,
    syntax.With,
    syntax.Const,
    syntax.Temporaries,
    syntax.GradientBy,
)


@pytest.mark.parametrize("spec", TEXTS)
def test_spans(spec: str) -> None:
    text = TEXTS[spec]
    seen = 0
    for node in nodes(tree(text)):
        span = getattr(node, "span", None)
        if span is None:
            continue
        seen += 1
        spelled = text[span.start : span.end]
        if isinstance(node, CLAUSES):
            spelled = spelled.rstrip()  # the line end belongs to them
        assert spelled == spelled.strip() != ""
        match node:
            case syntax.Name(text=name) | syntax.NameUse(name=name):
                assert spelled == name
            case syntax.Number(value=value):
                assert float(spelled) == value
            case syntax.Text(value=value):
                assert spelled == f'"{value}"'
            case syntax.Subscript(name=name):
                assert spelled.startswith(f"{name.text}[") and spelled.endswith("]")
            case syntax.Composite():
                assert spelled.startswith("(") and spelled.endswith(")")
            case syntax.Call(function=name) | syntax.Reduction(reducer=name):
                assert spelled.startswith(f"{name.text}(")
            case syntax.Statement(target=target):
                assert span.start == target.span.start and "=" in spelled
            case _:
                pass
        for child in dataclasses.fields(node):  # type: ignore[arg-type]
            inner = getattr(getattr(node, child.name), "span", None)
            if isinstance(inner, Span) and not isinstance(node, syntax.Definition):
                assert span.start <= inner.start and inner.end <= span.end
    assert seen > 20


# ---------------------------------------------------------------------------- syntax errors
HEAD = "op f(x[N]) -> y[N]\n"


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "words"),
    [
        ("", "empty-spec", 1, 1, "defines no op"),
        ("# nothing\n", "empty-spec", 1, 1, "defines no op"),
        ("y[i] = x[i]\n", "syntax", 1, 1, "op"),
        ("op f(x[N]) y[N]\n  y[i] = x[i]\n", "syntax", 1, 12, "'->'"),
        (HEAD, "never-written", 1, 15, "no statement writes it"),
        (HEAD + "  y[i] = x[i\n", "syntax", 2, 13, "expected"),
        (HEAD + "  y[i] = 2x[i]\n", "syntax", 2, 11, "`*`"),
        (HEAD + "  y[i] = x[i] / sum(k) x[k]\n", "syntax", 2, 24, "parentheses"),
        (HEAD + "  y[i] = x[i]  if i = 2\n", "syntax", 2, 21, "`==`"),
        (HEAD + "  y[i] = x[i]^2\n", "unknown-character", 2, 14, "`**`"),
        (HEAD + "  y[i] = x[i ?mirror]\n", "unknown-boundary", 2, 14, "?reflect"),
        (HEAD + "  y[i] = x[i] * é\n", "unknown-character", 2, 17, "letters"),
        (HEAD + "  y[i] = x[i] * ٣\n", "unknown-character", 2, 17, ""),
        (HEAD + "  y[i] = 99999999999*x[i]\n", "integer-too-large", 2, 10, "2147483647"),
        (HEAD + "  y[i] = 1e999\n", "number-too-large", 2, 10, "float64"),
        (HEAD + "  y[i] = " + "(" * 41 + "i" + ")" * 41 + "\n", "too-deep", 2, 50, "nested"),
        (HEAD + "  y[i] = " + "not " * 50 + "i\n", "too-deep", 2, 170, "nested"),
        (HEAD + "  y[i] = x[i]" + " + 1" * 400 + "\n", "too-long", 2, 1197, "600"),
    ],
)
def test_syntax_error(text: str, code: str, line: int, column: int, words: str) -> None:
    source = Source(text)
    with pytest.raises(OpgenError) as caught:
        check(parse(source), source)
    first, *_ = caught.value.diagnostics
    assert first.code == code
    assert source.position(first.labels[0].span.start) == (line, column)
    assert words in str(caught.value)


# ---------------------------------------------------------------------------- survival
Front = Callable[[Source], object]

LIMIT = 3.0
"""Seconds of processor time that one text may take; the slowest here take less than one."""


def front(source: Source) -> object:
    """What every command does first."""
    return check(parse(source), source)


class TooSlowError(AssertionError):
    pass


@contextmanager
def within(seconds: float) -> Generator[None, None, None]:
    """Raises TooSlowError in the body after so much processor time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {seconds} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def survive(text: str, run: Front = front, seconds: float = LIMIT) -> OpgenError | None:
    """The error of a text, if any; an AssertionError for every other outcome."""
    source = Source(text, "fuzz.op")
    try:
        with within(seconds):
            run(source)
        return None
    except OpgenError as error:
        caught = error
    except TooSlowError:
        raise
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{text}") from error
    shown = str(caught)
    assert caught.diagnostics
    for diagnostic in caught.diagnostics:
        assert diagnostic.headline in shown
        for label in diagnostic.labels:
            # A label at the end of the text stands one character behind it.
            assert 0 <= label.span.start <= label.span.end <= len(text) + 1
    return caught


def test_survive_notices_a_crash() -> None:
    def crash(source: Source) -> object:
        raise RecursionError("deep")

    with pytest.raises(AssertionError, match="RecursionError: deep"):
        survive(PLAIN, crash)


def test_survive_notices_a_hang() -> None:
    def hang(source: Source) -> object:
        while True:
            pass

    with pytest.raises(TooSlowError):
        survive(PLAIN, hang, seconds=0.1)


def test_survive_notices_a_message_without_place() -> None:
    def misplaced(source: Source) -> object:
        try:
            return check(parse(Source("op")), source)
        except OpgenError as error:
            raise OpgenError(
                [
                    dataclasses.replace(
                        d, labels=(dataclasses.replace(d.labels[0], span=Span(0, 9)),)
                    )
                    for d in error.diagnostics
                ],
                source,
            ) from None

    with pytest.raises(AssertionError):
        survive("op", misplaced)


# ---------------------------------------------------------------------------- hostile texts
def of_value(value: str) -> str:
    return f"op f(x[N]) -> y[N]\n  y[i] = {value}\n"


def names(letter: str, count: int, separator: str = ",") -> str:
    return separator.join(f"{letter}{k}" for k in range(count))


def doubling(clause: str, first: str, form: str, count: int) -> str:
    """Clauses of which each uses the one before it several times."""
    lines = [f"  {clause} a0 = {first}\n"]
    lines += [f"  {clause} a{k + 1} = {form.replace('@', f'a{k}')}\n" for k in range(count)]
    return "".join(lines)


HOSTILE = {
    "negations": of_value("not " * 590 + "x[i]"),
    "long sum": of_value(" + ".join(["x[i]"] * 100)),
    "long index sum": of_value(" + ".join(["i"] * 290)),
    "many ?0": of_value(" * ".join(f"x[i + {k} ?0]" for k in range(60))),
    "nested reductions": of_value(" ".join(f"sum(a{k} in N)" for k in range(80)) + " x[i]"),
    "nested select": of_value("select(x[i] > 0, " * 38 + "x[i]" + ", 0)" * 38),
    "nested loads": "op f(x: i32[N]) -> y: i32[N]\n  y[i] = " + "x[" * 39 + "0" + "]" * 39 + "\n",
    "power of powers": of_value("x[((((i**16)**16)**16)**16)**16 ?0]"),
    "power of a sum": of_value("x[(i + N + 1)**12 ?0]"),
    "nested division": of_value("x[" + "(" * 30 + "i" + "//2 + 1)" * 30 + "]"),
    "nested minimum": of_value("x[" + "min(" * 30 + "i" + ", N - 1)" * 30 + "]"),
    "products of attributes": f"op f(x[N]; {names('a', 11)}) -> y[N]\n"
    f"  y[i] = x[i*{names('a', 11, '*')}]\n".replace("; a0", "; a0 = 1"),
    "many dims": f"op f(x[{names('D', 150)}]) -> y[D0]\n  y[i] = x[i,{','.join(['0'] * 149)}]\n",
    "many iterators": f"op f(x[{names('D', 60)}]) -> y[]\n"
    f"  y[] = sum({names('i', 60)}) x[{names('i', 60)}]\n",
    "many factors": f"op f(x[{names('D', 10)}]) -> y[({names('D', 10, ' ')})]\n"
    f"  y[({names('i', 10, ' ')})] = x[{names('i', 10)}]\n",
    "too many factors": f"op f(x[{names('D', 60)}]) -> y[({names('D', 60, ' ')})]\n"
    f"  y[({names('i', 60, ' ')})] = x[{names('i', 60)}]\n",
    "squared lets": "op f(x[N]) -> y[a40]\n"
    + doubling("let", "N", "@*@", 40)
    + "  y[i] = x[i ?0]\n",
    "sums of lets": "op f(x[N]) -> y[a20 + 1]\n"
    + doubling("let", "N", "@*@ + @", 20)
    + "  y[i] = x[i]\n",
    "doubled aliases": "op f(x[N]) -> y[N]\n"
    + doubling("with", "i", "@ + @", 40)
    + "  y[i] = x[a40 ?0]\n",
    "doubled values": "op f(x[N]) -> y[N]\n"
    + doubling("with", "x[i]", "@ * @", 25)
    + "  y[i] = a25\n",
    "long alias chain": "op f(x[N]) -> y[N]\n"
    + doubling("with", "x[i]", " + ".join(["@", *["1"] * 100]), 30)
    + "  y[i] = a30\n",
    "many cases": "op f(x[N]) -> y[N]\n"
    + "".join(f"  y[i] = x[i]  if i == {k}\n" for k in range(25)),
    "many guards": of_value("x[i]  if " + " and ".join(f"i != {k}" for k in range(80))),
    "hard guards": of_value(
        "x[i*i - 3]  if " + " and ".join(f"i*{k} < N*{k + 1} - 3" for k in range(40))
    ),
    "hard injection": "op f(x[A,B,C,D]; p = 1, q = 1) -> y[M]\n  let M = 1000*A*B*C*D\n"
    "  y[(i*p + j*q + 3*k)//2 + (l*p)%(q + 1) ?drop] = x[i,j,k,l]\n",
    "scattered temporary": "op f(x[A,B]) -> y[A,B]\n  tmp t[A,B]\n"
    + "".join(f"  t[i,j] = x[i,j]  if i*{k + 2} - j*j == {k}\n" for k in range(5))
    + "  y[i,j] = t[i,j]\n",
    "huge integer": of_value("9" * 5000),
    "huge float": of_value("1" * 5000 + "." + "2" * 5000 + "e-9"),
    "huge name": f"op {'f' * 20000}(x[N]) -> y[N]\n  y[i] = x[i]\n",
    "deep table": "op f(x[N]) -> y[N]\n  const k = "
    + "[" * 39
    + "1"
    + "]" * 39
    + "\n  y[i] = x[i]\n",
    "open brackets": "(" * 5000,
    "closed brackets": ")" * 5000,
    "line ends": "\n" * 20000,
    "comments": "## a\n" * 5000,
    "lone surrogate": "op f\ud800",
    "null": of_value("x[i]\x00"),
    "only ops": "op " * 2000,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text(name: str) -> None:
    survive(HOSTILE[name])


# ---------------------------------------------------------------------------- fuzzing
TOKEN = re.compile(r"\s*(?:\w+|\*\*|//|\?\w+|\?\(|\.\.\.|[-+]=|->|<=|>=|==|!=|\S)")


def single_ops(text: str) -> list[str]:
    """The ops of a file without comments, each a text of its own."""
    bare = re.sub(r"#.*", "", text)
    return ["op " + part for part in re.split(r"^op ", bare, flags=re.MULTILINE)[1:]]


OPS = [op for text in TEXTS.values() for op in single_ops(text)]
WORDS = sorted({word for op in OPS for word in TOKEN.findall(op)})


def kind(word: str) -> str:
    """Words of one kind can often stand for each other: most of the mutations shall parse."""
    for name, pattern in KINDS.items():
        if re.fullmatch(pattern, word.strip()):
            return name
    return word.strip()


KINDS = {
    "keyword": "op|where|let|with|const|tmp|for|in|if|and|or|not|nograd",
    "size": "[A-Z][A-Z]?",
    "iterator": "[a-z]",
    "name": r"[a-z]\w+",
    "number": r"[0-9.]+",
    "operator": r"[-+*/%]|//|\*\*",
    "comparison": "<|>|<=|>=|==|!=",
    "assignment": r"=|\+=",
    "mode": r"\?\w+",
}
BY_KIND = {name: [word for word in WORDS if kind(word) == name] for name in map(kind, WORDS)}


def mutated(seed: int) -> str:
    """A real op after a few deletions, swaps, copies and replacements."""
    draw = random.Random(seed)
    text = draw.choice(OPS)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5))):
        change = draw.choice(("alike", "alike", "alike", "same", "same", "line", "any"))
        pattern = {"line": r".*\n?", "any": r"(?s:.)"}.get(change) if draw.random() < 0.9 else None
        pieces = re.findall(pattern or TOKEN, text)
        if not pieces:
            break
        at, other = draw.randrange(len(pieces)), draw.randrange(len(pieces))
        if change == "alike":  # put a word of the same kind in place of one
            pieces[at] = draw.choice(BY_KIND.get(kind(pieces[at]), [pieces[at]]))
        elif change == "same":  # exchange two words of the same kind
            alike = [k for k, piece in enumerate(pieces) if kind(piece) == kind(pieces[at])]
            other = draw.choice(alike)
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            match draw.choice(("delete", "swap", "copy", "replace", "cut")):
                case "delete":
                    del pieces[at]
                case "swap":
                    pieces[at], pieces[other] = pieces[other], pieces[at]
                case "copy":
                    pieces.insert(at, pieces[other])
                case "replace":
                    pieces[at] = draw.choice(WORDS)
                case "cut":
                    del pieces[at : at + draw.randrange(1, 12)]
        text = "".join(pieces)
    return text


# Seeds, not drawn mutations: hypothesis would try many variants of few mutations.
mutated_specs = st.integers(0, 2**64).map(mutated)

random_texts = st.one_of(
    st.text(max_size=200),
    st.text(string.ascii_letters + string.digits + " \n\t()[]?#\"'+-*/%=<>,;:.|!", max_size=200),
    st.binary(max_size=200).map(lambda data: data.decode("latin-1")),
    st.binary(max_size=200).map(lambda data: data.decode("utf-8", "surrogateescape")),
)
word_salads = st.lists(st.sampled_from([*WORDS, "\n", " "]), max_size=60).map("".join)
salads_in_a_statement = word_salads.map(lambda salad: PLAIN.replace("+ 2", "+ " + salad))


@settings(max_examples=500)
@given(random_texts)
def test_random_text(text: str) -> None:
    survive(text)


@settings(max_examples=150)
@given(st.one_of(word_salads, salads_in_a_statement))
def test_word_salad(text: str) -> None:
    survive(text)


@pytest.mark.slow
@settings(max_examples=1500)
@given(st.one_of(random_texts, word_salads, salads_in_a_statement))
def test_much_random_text(text: str) -> None:
    survive(text)


@pytest.mark.slow
@settings(max_examples=1500)
@given(mutated_specs)
def test_many_mutated_specs(text: str) -> None:
    survive(text)


def test_mutations_reach_the_checker() -> None:
    """The mutated specs are not all refused by the parser: some are whole, some fail proofs."""
    found: set[str] = set()

    @settings(max_examples=300)
    @given(mutated_specs)
    def collect(text: str) -> None:
        error = survive(text)
        found.update(d.code for d in error.diagnostics) if error else found.add("accepted")

    collect()
    assert found >= {"accepted", "syntax", "out-of-range", "free-iterator"}
    assert len(found) >= 20
