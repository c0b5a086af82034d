"""What the names of one op mean, and how a fault in their use is reported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from opgen.algebra.poly import Poly
from opgen.errors import Diagnostic, Edit, Label, Source, Span
from opgen.ir.notation import Attribute, AttributeType, Table, Tensor
from opgen.lang import syntax


class Fault(Exception):  # noqa: N818  # it carries a diagnostic; `check` collects them
    """One fault of a spec. Raised inside the checker and collected at clause granularity.

    A `consequence` follows from a fault that was collected before, and is not reported.
    `replacement` and `alternatives` are edits that may repair the fault: `lang.read` tries them.
    """

    def __init__(
        self,
        code: str,
        headline: str,
        *labels: Span | tuple[Span, str],
        notes: Iterable[str] = (),
        advice: str = "",
        replacement: Edit | None = None,
        alternatives: Iterable[Edit] = (),
        consequence: bool = False,
    ) -> None:
        super().__init__(headline)
        self.consequence = consequence
        self.diagnostic = Diagnostic(
            code,
            " ".join(headline.split()),  # it may quote text that goes over several lines
            tuple(Label(*label) if isinstance(label, tuple) else Label(label) for label in labels),
            tuple(notes),
            advice,
            replacement,
            tuple(alternatives),
        )

    def advising(self, advice: str) -> Fault:
        """The same fault with advice that only the caller could give."""
        self.diagnostic = replace(self.diagnostic, help=advice)
        return self

    def suggesting(self, edit: Edit | None) -> Fault:
        """The same fault with an edit that only the caller could know."""
        if edit is not None and self.diagnostic.replacement is None:
            self.diagnostic = replace(self.diagnostic, replacement=edit)
        return self


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that was probably meant; one or two letters are close in another case only."""
    known = [other for other in dict.fromkeys(candidates) if other != name]
    if len(name) > 2:
        close = difflib.get_close_matches(name, [o for o in known if len(o) > 1], 1, 0.7)
        if close:
            return close[0]
    return next((other for other in known if other.lower() == name.lower()), None)


class Place(Enum):
    """Where in a statement a divisor stands: what is evaluated before it depends on that."""

    EXTENT = "extent"
    GUARD = "guard"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Divisor:
    """A divisor of `//` or `%` that must be proved positive."""

    value: Poly
    span: Span
    place: Place = Place.BODY


@dataclass
class Environment:
    """The names of one op. Grows while its signature and clauses are read, clause by clause.

    `declared_at` holds the span of every declaration, for messages that show both sites.
    `formulas` are the lets in terms of sizes and attributes alone. `divisors` collects the divisors
    met while converting the clause in hand. `later` has the names that a clause further down
    defines, `failed` those whose definition was at fault. `ops` are those of the whole file.
    """

    attributes: dict[str, Attribute] = field(default_factory=dict)
    sizes: dict[str, Span] = field(default_factory=dict)
    lets: dict[str, Poly] = field(default_factory=dict)
    formulas: dict[str, Poly] = field(default_factory=dict)
    tensors: dict[str, Tensor | Table] = field(default_factory=dict)
    declared_at: dict[str, Span] = field(default_factory=dict)
    dim_spans: dict[tuple[str, int], Span] = field(default_factory=dict)
    divisors: list[Divisor] = field(default_factory=list)
    later: dict[str, Span] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    source: Source = field(default_factory=lambda: Source(""))
    definition: syntax.Definition | None = None
    ops: frozenset[str] = frozenset()

    def is_integer(self, name: str) -> bool:
        """Whether a bare name is an integer known at the call: a size, a let or an attribute."""
        if name in self.sizes or name in self.lets:
            return True
        attribute = self.attributes.get(name)
        return (
            attribute is not None
            and attribute.length is None
            and attribute.type is not AttributeType.FLOAT
        )

    def is_known(self, name: str) -> bool:
        """Whether a bare name means something other than an iterator, or was meant to."""
        return (
            name in self.sizes
            or name in self.lets
            or name in self.attributes
            or name in self.failed
        )

    def shadowed(self, name: syntax.Name, what: str) -> Fault:
        """The fault of an iterator or an alias with a name that is known."""
        return Fault(
            "shadowed-name",
            f"'{name.text}' is already a size or attribute and cannot be an {what}",
            name.span,
            (self.declared_at.get(name.text, name.span), "declared here"),
            advice=f"give the {what} another name",
            consequence=name.text in self.failed,
        )

    def declare(self, name: str, span: Span, what: str) -> None:
        """Claim a name; raises Fault if it is taken."""
        if name in self.declared_at:
            raise Fault(
                "duplicate-name",
                f"'{name}' is declared twice",
                (span, f"{what} '{name}'"),
                (self.declared_at[name], "first declared here"),
                advice="give one of them another name",
            )
        self.declared_at[name] = span

    def expand_lets(self, value: Poly) -> Poly:
        """The polynomial with every `let` replaced by its formula, so that extents compare."""
        return value.substitute(self.formulas)

    # ------------------------------------------------------------ for messages
    def integers(self) -> list[str]:
        """The bare names of sizes, lets and attributes."""
        return [*self.sizes, *self.lets, *self.attributes]

    def text(self, span: Span) -> str:
        """What the user wrote."""
        return self.source.text[span.start : span.end]

    def enclosed(self, span: Span) -> Span:
        """A span with the brackets that its text leaves open."""
        text, start, end = self.source.text, span.start, span.end
        depth = least = 0
        for character in text[start:end]:
            depth += (character in "([") - (character in ")]")
            least = min(least, depth)
        for _ in range(-least):
            start = max(text.rfind("(", 0, start), text.rfind("[", 0, start))
        for _ in range(depth - least):
            closing = [at for at in (text.find(")", end), text.find("]", end)) if at >= 0]
            end = min(closing, default=end - 1) + 1
        return Span(start, end) if start >= 0 else span

    def shape(self, tensor: Tensor | Table) -> str:
        """`x[N,(C r r)]`, as it is declared."""
        if isinstance(tensor, Table):
            return f"{tensor.name}[{','.join(map(str, tensor.shape))}]"
        dims = (
            f"({' '.join(map(str, dim.parts))})" if dim.parts else str(dim.extent)
            for dim in tensor.dims
        )
        return f"{tensor.name}[{','.join(dims)}]"

    def dim_label(self, name: str, axis: int, text: str) -> tuple[tuple[Span, str], ...]:
        """A label at the declaration of a dim, if it has one."""
        span = self.dim_spans.get((name, axis))
        return () if span is None else ((span, text),)

    def new_attribute(self, declaration: str) -> Edit | None:
        """The edit that declares one more attribute."""
        if self.definition is None or not self.definition.inputs:
            return None
        attributes = self.definition.attributes
        last = (attributes or self.definition.inputs)[-1].span.end
        return Span(last, last), f"{', ' if attributes else '; '}{declaration}"
