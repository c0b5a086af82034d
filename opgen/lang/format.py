"""One canonical text for a spec, comments kept: what `opgen fmt` prints.

The text is printed from the syntax tree, so it does not depend on how the input was laid out, and
`parse` of it gives the same tree. Expressions are those of `format_expression`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Final, assert_never

from opgen.errors import Source, Span
from opgen.lang import syntax
from opgen.lang.format_expression import (
    broken,
    composite_text,
    domain_text,
    expression_text,
    literal_text,
)
from opgen.lang.parse import parse

_WIDTH: Final = 100
_CLAUSE: Final = "  "
_CONTINUED: Final = "      "


def format_source(source: Source) -> str:
    """The canonical text of a spec. Raises OpgenError where it does not parse.

    The text is parsed before it is returned: whoever overwrites a spec with it keeps its meaning.
    """
    file = parse(source)
    comments = list(_comments(source))
    blocks = [
        _definition(definition, source, comments, end)
        for definition, end in zip(file.definitions, _ends(file.definitions, source), strict=True)
    ]
    trailing = [text for _, text, _ in comments]
    if trailing:
        blocks.append("\n".join(trailing))
    text = "\n\n".join(blocks) + "\n"
    assert _without_places(parse(Source(text, source.name))) == _without_places(file)
    return text


def _without_places(node: object) -> object:
    """What a tree says, and not where."""
    match node:
        case Span():
            return None
        case tuple():
            return tuple(map(_without_places, node))
        case _ if is_dataclass(node):
            return type(node), *(_without_places(getattr(node, each.name)) for each in fields(node))
        case _:
            return repr(node)  # 2 is not 2.0


# ---------------------------------------------------------------------------- comments
def _comments(source: Source) -> Iterator[tuple[int, str, bool]]:
    """Offset, text, and whether it stands on a line of its own; doc comments are not included."""
    offset = 0
    for line in source.text.split("\n"):
        bare = re.sub(r'"[^"\n]*"', lambda match: " " * len(match.group()), line)
        start = bare.find("#")
        if start >= 0 and not bare.startswith("##", start):
            yield offset + start, line[start:].rstrip(), not line[:start].strip()
        offset += len(line) + 1


def _ends(definitions: Sequence[syntax.Definition], source: Source) -> list[int]:
    """Where each definition ends: its last clause's line, so that later comments open the next."""
    ends = []
    for definition in definitions:
        last = (definition.clauses or definition.outputs)[-1].span.end
        line_end = source.text.find("\n", last)
        ends.append(len(source.text) if line_end < 0 else line_end)
    return ends


def _definition(
    definition: syntax.Definition,
    source: Source,
    comments: list[tuple[int, str, bool]],
    end: int,
) -> str:
    """The text of one op; takes the comments that belong to it out of the list."""
    mine = [comment for comment in comments if comment[0] <= end]
    del comments[: len(mine)]
    before = [text for offset, text, _ in mine if offset < definition.name.span.start]
    inside = [comment for comment in mine if comment[0] >= definition.name.span.start]
    if before and definition.doc and _apart(source, mine, definition):
        before.append("")
    lines = [
        *before,
        *(f"## {line}".rstrip() for line in definition.doc.split("\n") if definition.doc),
    ]
    lines.extend(_signature(definition))
    for number, clause in enumerate(definition.clauses):
        following = definition.clauses[number + 1 :]
        limit = following[0].span.start if following else end + 1
        here = [comment for comment in inside if comment[0] < limit]
        inside = inside[len(here) :]
        own = [text for offset, text, alone in here if alone or offset < clause.span.start]
        if not following:
            own_after: list[str] = []
        else:
            # A comment on a line of its own after the clause opens the next clause.
            own_after = [text for offset, text, alone in here if alone and offset > clause.span.end]
            own = own[: len(own) - len(own_after)]
        # A comment inside a clause, which is printed without a break there, stands above it.
        behind = [(o, t) for o, t, alone in here if not alone and o >= clause.span.start]
        above = [text for offset, text in behind if _goes_on(source, offset, clause.span.end)]
        beside = [text for offset, text in behind if not _goes_on(source, offset, clause.span.end)]
        own += above
        lines.extend(_CLAUSE + text for text in own)
        printed = _clause(clause)
        if beside and len(printed) == 1:
            printed = [f"{printed[0]}  {' '.join(beside)}"]
        else:
            lines.extend(_CLAUSE + text for text in beside)
        lines.extend(printed)
        lines.extend(_CLAUSE + text for text in own_after)
    return "\n".join(lines)


def _apart(
    source: Source, comments: Sequence[tuple[int, str, bool]], definition: syntax.Definition
) -> bool:
    """Whether a blank line parts the comments before an op from its documentation."""
    start = definition.name.span.start
    offset, text, _ = [comment for comment in comments if comment[0] < start][-1]
    return re.match(r"[ \t]*\n[ \t]*\r?\n", source.text[offset + len(text) :]) is not None


def _goes_on(source: Source, comment: int, end: int) -> bool:
    """Whether a clause that ends at `end` has text on the lines after a comment."""
    line_end = source.text.find("\n", comment)
    return line_end >= 0 and bool(source.text[line_end:end].strip())


# ---------------------------------------------------------------------------- clauses
def _signature(definition: syntax.Definition) -> list[str]:
    inputs = [_tensor(tensor) for tensor in definition.inputs]
    attributes = [_attribute(attribute) for attribute in definition.attributes]
    outputs = "-> " + ", ".join(map(_tensor, definition.outputs))
    head = f"op {definition.name.text}("
    pieces = [f"{text}, " for text in inputs]
    if pieces:
        pieces[-1] = inputs[-1] + ("; " if attributes else ")")
    elif attributes:
        pieces = ["; "]
    else:
        pieces = [")"]
    pieces.extend(f"{text}, " for text in attributes)
    if attributes:
        pieces[-1] = attributes[-1] + ")"
    whole = head + "".join(pieces) + " " + outputs
    if len(whole) <= _WIDTH:
        return [whole]
    one_line = head + "".join(pieces)
    if len(one_line) <= _WIDTH:
        return [one_line, "    " + outputs]
    indent = " " * len(head)
    count = len(inputs)
    lines = _fill(head, pieces[:count], indent) if inputs else [head]
    if attributes:
        lines += _fill(indent, pieces[count:], indent) if inputs else _fill(head, pieces, indent)
    return [*(lines if inputs or not attributes else lines[1:]), "    " + outputs]


def _fill(first: str, pieces: Sequence[str], indent: str) -> list[str]:
    """Greedy lines of at most `_WIDTH`; a piece is never broken."""
    lines, line = [], first
    for piece in pieces:
        if len(line) + len(piece.rstrip()) > _WIDTH and line.strip() and line != indent:
            lines.append(line.rstrip())
            line = indent
        line += piece
    return [*lines, line.rstrip()]


def _tensor(tensor: syntax.TensorDeclaration) -> str:
    dtype = f": {tensor.dtype.text}" if tensor.dtype is not None else ""
    dims = ",".join(map(_dim, tensor.dims))
    default = "" if tensor.default is None else f" = {_fill_value(tensor.default)}"
    return f"{'nograd ' if tensor.nograd else ''}{tensor.name.text}{dtype}[{dims}]{default}"


def _fill_value(value: float) -> str:
    """The default of a tensor; it is kept as a float however it was written."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**31 else literal_text(value)


def _dim(dim: syntax.DimItem) -> str:
    match dim:
        case syntax.Composite():
            return composite_text(dim)
        case syntax.BatchDims():
            return "..."
        case _:
            return expression_text(dim)


def _attribute(attribute: syntax.AttributeDeclaration) -> str:
    out = attribute.name.text
    if attribute.type is not None:
        length = "" if attribute.length is None else f"[{attribute.length}]"
        out += f": {attribute.type.text}{length}"
    match attribute.default:
        case None:
            text = " | ".join(f'"{choice}"' for choice in attribute.choices)
        case bool(value):
            text = "true" if value else "false"
        case tuple(values):
            text = f"({', '.join(map(literal_text, values))})"
        case value:
            text = literal_text(value)
    return f"{out} = {text}" if text else out


def _clause(clause: syntax.Clause) -> list[str]:
    match clause:
        case syntax.Where(conditions=conditions):
            return _listed("where ", [expression_text(c) for c in conditions])
        case syntax.Let(bindings=bindings):
            return _bindings("let ", bindings)
        case syntax.With(bindings=bindings):
            return _bindings("with ", bindings)
        case syntax.Const(name=name, values=values):
            return [f"{_CLAUSE}const {name.text} = {_table(values)}"]
        case syntax.Temporaries(tensors=tensors):
            return _listed("tmp ", [_tensor(tensor) for tensor in tensors])
        case syntax.GradientBy(input=name, op=op):
            return [f"{_CLAUSE}gradient {name.text} by {op.text}"]
        case syntax.Statement():
            return _statement(clause)
        case unexpected:
            assert_never(unexpected)


def _listed(keyword: str, items: Sequence[str]) -> list[str]:
    pieces = [f"{item}, " for item in items[:-1]] + [items[-1]]
    return _fill(_CLAUSE + keyword, pieces, _CLAUSE + " " * len(keyword))


def _bindings(keyword: str, bindings: Sequence[syntax.Binding]) -> list[str]:
    texts = [f"{binding.name.text} = {expression_text(binding.value)}" for binding in bindings]
    lines = _listed(keyword, texts)
    if all(len(line) <= _WIDTH for line in lines):
        return lines
    pieces: list[str] = []
    for binding in bindings:
        first, *others = broken(binding.value)
        pieces += [f"{binding.name.text} = {first} ", *(f"{piece} " for piece in others)]
        pieces[-1] = pieces[-1].rstrip() + ", "
    pieces[-1] = pieces[-1].removesuffix(", ")
    return _fill(_CLAUSE + keyword, pieces, _CONTINUED)


def _table(values: syntax.Table) -> str:
    entries = [_table(v) if isinstance(v, tuple) else literal_text(v) for v in values]
    return f"[{', '.join(entries)}]"


def _statement(statement: syntax.Statement) -> list[str]:
    head = f"{_CLAUSE}{expression_text(statement.target)} {statement.operator} "
    pieces = [f"{piece} " for piece in broken(statement.value)]
    if statement.domains:
        pieces.append(f" for {', '.join(map(domain_text, statement.domains))} ")
    if statement.condition is not None:
        pieces.append(f" if {expression_text(statement.condition)}")
    line = head + "".join(pieces)
    if len(line.rstrip()) <= _WIDTH:
        return [line.rstrip()]
    return _fill(head, [piece.lstrip() for piece in pieces], _CONTINUED)
