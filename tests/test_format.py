"""`opgen fmt`: one canonical text that means the same, with every comment kept."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catalogue import SPECS
from opgen.errors import OpgenError, Source
from opgen.lang.format import format_source
from opgen.lang.parse import parse

FILES = sorted(SPECS.glob("*.op"))


def meaning(text: str) -> str:
    """The syntax tree without positions."""
    return re.sub(r"Span\(start=\d+, end=\d+\)", "", repr(parse(Source(text))))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_specs_are_formatted(path: object) -> None:
    text = SPECS.joinpath(str(path)).read_text(encoding="utf-8")
    assert format_source(Source(text)) == text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_layout_does_not_matter(path: object) -> None:
    """Squeezed and stretched, a spec formats to the same text."""
    text = SPECS.joinpath(str(path)).read_text(encoding="utf-8")
    stretched = "\n".join(
        re.sub(r"(?<=[\[\](),;])(?!.*#)", "  ", line) + "   " if "#" not in line else line
        for line in text.split("\n")
    )
    assert meaning(stretched) == meaning(text)
    assert format_source(Source(stretched)) == format_source(Source(text))


UGLY = """\
# before everything
## The doc
op   f( x[ B,(C r r) ,W];r=2,mode="a"|"b",
   eps=1e-5)->y[B,C]   # beside the signature
    # before the where
  where  r>=1   # beside the where
  let V=C *  r, # inside
      U=V+1
  with u=b *2,w=(c)
  y[b,w]=sum(k in r if k<=c) x[b , u%B ?( - inf),0]*2.0-(1+2)
        +max(b,c)*x[b,c,0]**-(2)   if mode=="a" and not(r>1)
# at the end
"""
PRETTY = """\
# before everything
## The doc
op f(x[B,(C r r),W]; r = 2, mode = "a" | "b", eps = 1e-5) -> y[B,C]
  # beside the signature
  # before the where
  where r >= 1  # beside the where
  # inside
  let V = C*r, U = V + 1
  with u = b*2, w = c
  y[b,w] = sum(k in r if k <= c) x[b, u%B ?(-inf), 0] * 2.0 - (1+2) + max(b, c) * x[b,c,0]**-2
      if mode == "a" and not r > 1

# at the end
"""


def test_an_ugly_spec() -> None:
    assert format_source(Source(UGLY)) == PRETTY
    assert format_source(Source(PRETTY)) == PRETTY
    assert meaning(UGLY) == meaning(PRETTY)


@pytest.mark.parametrize("blank", ["", "\n", "\n\n"])
def test_a_blank_line_parts_a_comment_from_the_documentation(blank: str) -> None:
    op = "## The doc\nop f(x[N]) -> y[N]\n  y[n] = x[n]\n"
    text = format_source(Source(f"# about the file\n{blank}{op}\n# about f\n{blank}{op}"))
    kept = blank[:1]
    assert text == f"# about the file\n{kept}{op}\n# about f\n{kept}{op}"
    assert format_source(Source(text)) == text


def test_a_bad_spec_is_refused_and_not_formatted() -> None:
    with pytest.raises(OpgenError, match="expected"):
        format_source(Source("op f(x[B) -> y[B]\n  y[b] = x[b]\n"))


# ---------------------------------------------------------------------------- values of any form
_LEAVES = ("x[n,c, h + k - 1 ?0, w]", "a_long_name[n, c_long, h*stride[0] + k ?clamp]", "g[c]", "3")
_LEAVES += ("beta", "K", "a[0]", "inf", "1e-5")
_HEADS = ("sum(k in 3, l in 2*radius + 1 if k <= l)", "max(k)", "prod(k)", "mean(k,l)")
_HEADS += ("argmax(k in K, l in L; k*L + l)",)


def _longer(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    enclosed = values | values.map("({})".format)
    operators = st.sampled_from((" + ", " - ", "*", " * ", " / ", "//", "%"))
    return st.one_of(
        st.tuples(enclosed, operators, enclosed).map("".join),
        st.tuples(st.sampled_from(_HEADS), enclosed).map(" ".join),
        st.tuples(values, st.sampled_from(("2", "-2", "(K+1)"))).map(lambda e: f"({e[0]})**{e[1]}"),
        enclosed.map("(-{})".format),
        st.tuples(values, values, values).map(lambda e: f"select({e[0]} > 0, {e[1]}, {e[2]})"),
    )


VALUES = st.recursive(st.sampled_from(_LEAVES), _longer, max_leaves=12)


@given(VALUES, st.sampled_from(("", " for n in N, h in H", " if 0 <= n + h - 1 < H")))
@example("b[n] * (max(k) x[n,k]*b[n]) * (sum(j) a[n,j]*b[n])", "")
@example("b[n]*(max(k) x[n,k])/b[n] + 1", "")
@example(
    "sum(k in 3, l in 3) x[n,c, h + k - 1 ?clamp, w + l - 1 ?clamp] * t[i,k] * t[j,l]*u[k,l] / 9",
    "",
)
def test_values_keep_their_meaning(value: str, tail: str) -> None:
    """A reduction goes as far as its product does: its parentheses stay, and so does its term."""
    text = f"op f(x[N]) -> y[N]\n  y[n] = {value}{tail}\n"
    try:
        before = meaning(text)
    except OpgenError:
        return  # a reduction in front of a factor
    after = format_source(Source(text))
    assert meaning(after) == before
    assert format_source(Source(after)) == after


def test_a_text_of_another_meaning_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong, `opgen fmt` overwrites no spec with another one."""
    monkeypatch.setattr("opgen.lang.format_expression._factor", lambda right, *, last: "2")
    with pytest.raises(AssertionError):
        format_source(Source("op f(x[N]) -> y[N]\n  y[n] = x[n] * 3\n"))
