"""`opgen fmt`: one canonical text that means the same, with every comment kept."""

from __future__ import annotations

import re

import pytest

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
