"""One canonical text for a spec, comments kept: what `opgen fmt` prints.

The text is printed from the syntax tree, so it does not depend on how the input was laid out, and
`parse` of it gives the same tree. An index is printed tight where it is a factor, `(C-1)*step`, and
spaced where it is a sum of its own, `v - c*step`; the product of values is spaced, `x[i] * w[k]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Final, assert_never

from opgen.errors import Source, Span
from opgen.lang import syntax
from opgen.lang.parse import parse

_WIDTH: Final = 100
_CLAUSE: Final = "  "
_CONTINUED: Final = "      "

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _POWER, _ATOM = range(8)
_PRECEDENCE: Final = {
    "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT, "**": _POWER,
}  # fmt: skip


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
    return str(int(value)) if value.is_integer() and abs(value) < 2**31 else _literal(value)


def _dim(dim: syntax.DimItem) -> str:
    match dim:
        case syntax.Composite():
            return _composite(dim)
        case syntax.BatchDims():
            return "..."
        case _:
            return _tight(dim)


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
            text = f"({', '.join(map(_literal, values))})"
        case value:
            text = _literal(value)
    return f"{out} = {text}" if text else out


def _literal(value: int | float) -> str:
    return re.sub(r"e([-+])0+(\d)", r"e\1\2", repr(value))


def _clause(clause: syntax.Clause) -> list[str]:
    match clause:
        case syntax.Where(conditions=conditions):
            return _listed("where ", [_expression(c) for c in conditions])
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
    texts = [f"{binding.name.text} = {_expression(binding.value)}" for binding in bindings]
    lines = _listed(keyword, texts)
    if all(len(line) <= _WIDTH for line in lines):
        return lines
    pieces: list[str] = []
    for binding in bindings:
        first, *others = _broken(binding.value)
        pieces += [f"{binding.name.text} = {first} ", *(f"{piece} " for piece in others)]
        pieces[-1] = pieces[-1].rstrip() + ", "
    pieces[-1] = pieces[-1].removesuffix(", ")
    return _fill(_CLAUSE + keyword, pieces, _CONTINUED)


def _table(values: syntax.Table) -> str:
    entries = [_table(v) if isinstance(v, tuple) else _literal(v) for v in values]
    return f"[{', '.join(entries)}]"


def _statement(statement: syntax.Statement) -> list[str]:
    head = f"{_CLAUSE}{_expression(statement.target)} {statement.operator} "
    pieces = [f"{piece} " for piece in _broken(statement.value)]
    if statement.domains:
        pieces.append(f" for {', '.join(map(_domain, statement.domains))} ")
    if statement.condition is not None:
        pieces.append(f" if {_expression(statement.condition)}")
    line = head + "".join(pieces)
    if len(line.rstrip()) <= _WIDTH:
        return [line.rstrip()]
    return _fill(head, [piece.lstrip() for piece in pieces], _CONTINUED)


def _broken(expression: syntax.Expression, *, last: bool = True) -> list[str]:
    """The expression in pieces between which a line may end: before its outer operators.

    A line may not end between the head of a reduction and its term. `last`: nothing follows in its
    product.
    """
    match expression:
        case syntax.Binary(operator="+" | "-" as operator, left=left, right=right):
            return [*_broken(left), f"{operator} {_at(right, _PRODUCT, last=True)}"]
        case syntax.Binary(operator="*" | "/" as operator, left=left, right=right) if not (
            _is_tight(left) and _is_tight(right)
        ):
            first = [_at(left, _PRODUCT)]
            if isinstance(left, syntax.Binary) and left.operator in ("*", "/"):
                first = _broken(left, last=False)
            return [*first, f"{operator} {_factor(right, last=last and operator == '*')}"]
        case syntax.Call(function=function, arguments=arguments) if len(arguments) > 1:
            texts = [_expression(argument) for argument in arguments]
            return [
                f"{function.text}({texts[0]},",
                *(f"{t}," for t in texts[1:-1]),
                f"{texts[-1]})",
            ]
        case syntax.Reduction():
            first_piece, *others = _broken_term(expression.body)
            return [f"{_head(expression)} {first_piece}", *others]
        case _:
            return [_expression(expression)]


def _broken_term(body: syntax.Expression) -> list[str]:
    match body:
        case syntax.Binary(operator="*") | syntax.Reduction():
            return _broken(body)
        case _:
            return [_body(body)]


# ---------------------------------------------------------------------------- expressions
def _expression(expression: syntax.Expression) -> str:
    return _at(expression, _OR, last=True)


def _tight(expression: syntax.Expression) -> str:
    """An extent: spaced only where it is a sum."""
    return _expression(expression)


def _at(expression: syntax.Expression, level: int, *, last: bool = False) -> str:
    """Text that may stand where `level` is required; `last`: nothing follows in its product."""
    text, own = _text(expression)
    if isinstance(expression, syntax.Reduction) and last and level <= _POWER:
        return text
    if own >= level:
        return text
    if _is_short_sum(expression):
        text = text.replace(" ", "")
    return f"({text})"


def _text(expression: syntax.Expression) -> tuple[str, int]:
    """Text and precedence."""
    match expression:
        case syntax.Number(value=value):
            return _literal(value), _ATOM
        case syntax.Infinity():
            return "inf", _ATOM
        case syntax.Truth(value=truth):
            return ("true" if truth else "false"), _ATOM
        case syntax.Text(value=text):
            return f'"{text}"', _ATOM
        case syntax.NameUse(name=name):
            return name, _ATOM
        case syntax.Subscript(name=name, indices=indices):
            return f"{name.text}[{_indices(indices)}]", _ATOM
        case syntax.Call(function=function, arguments=arguments):
            return f"{function.text}({', '.join(map(_expression, arguments))})", _ATOM
        case syntax.Reduction(body=body):
            return f"{_head(expression)} {_body(body)}", _SUM
        case syntax.Unary(operand=operand):
            return f"-{_at(operand, _PRODUCT, last=True)}", _SUM
        case syntax.Binary():
            return _binary(expression)
        case syntax.Comparison(operands=operands, operators=operators):
            parts = [_at(operands[0], _SUM)]
            for operator, operand in zip(operators, operands[1:], strict=True):
                parts += [operator, _at(operand, _SUM)]
            return " ".join(parts), _COMPARE
        case syntax.Logical(operator="not", operands=operands):
            return f"not {_at(operands[0], _NOT)}", _NOT
        case syntax.Logical(operator=operator, operands=operands):
            level = _OR if operator == "or" else _AND
            return f" {operator} ".join(_at(o, level + 1) for o in operands), level
        case unexpected:
            assert_never(unexpected)


def _binary(expression: syntax.Binary) -> tuple[str, int]:
    operator, left, right = expression.operator, expression.left, expression.right
    level = _PRECEDENCE[operator]
    if level == _SUM:
        first = _at(left, _SUM)
        return f"{first} {operator} {_at(right, _PRODUCT, last=True)}", _SUM
    if level == _POWER:
        exponent = right
        sign = ""
        if isinstance(exponent, syntax.Unary):
            sign, exponent = "-", exponent.operand
        return f"{_at(left, _ATOM)}**{sign}{_at(exponent, _ATOM)}", _POWER
    second = _factor(right, last=operator == "*")
    gap = "" if _is_tight(left) and _is_tight(right) else " "
    own = _SUM if isinstance(right, syntax.Reduction) else _PRODUCT
    return f"{_at(left, _PRODUCT)}{gap}{operator}{gap}{second}", own


def _factor(right: syntax.Expression, *, last: bool) -> str:
    """What stands behind `*`, `/`, `//` or `%`; `last`: it is the last factor of its product."""
    if isinstance(right, syntax.Unary):
        return f"-{_at(right.operand, _POWER)}"
    return _at(right, _POWER, last=last)


def _is_tight(expression: syntax.Expression) -> bool:
    """Whether it is index arithmetic on names and integers, printed without spaces as a factor."""
    match expression:
        case syntax.Number() | syntax.NameUse():
            return True
        case syntax.Subscript(indices=(syntax.PlainIndex(value=syntax.Number(), boundary=""),)):
            return True  # an element of a tuple attribute
        case syntax.Unary(operand=operand):
            return _is_tight(operand)
        case syntax.Binary(left=left, right=right):
            return _is_tight(left) and _is_tight(right)
        case _:
            return False


def _is_short_sum(expression: syntax.Expression) -> bool:
    """`(C-1)` rather than `(C - 1)`."""
    match expression:
        case syntax.Binary(operator="+" | "-", left=left, right=right):
            return all(
                _is_tight(side) and not isinstance(side, syntax.Binary | syntax.Unary)
                for side in (left, right)
            )
        case _:
            return False


def _head(reduction: syntax.Reduction) -> str:
    plain = all(domain.extent is None for domain in reduction.domains)
    inside = ("," if plain else ", ").join(map(_domain, reduction.domains))
    if reduction.condition is not None:
        inside += f" if {_expression(reduction.condition)}"
    if reduction.position is not None:
        inside += f"; {_expression(reduction.position)}"
    return f"{reduction.reducer.text}({inside})"


def _body(body: syntax.Expression) -> str:
    return (
        f"({_expression(body)})"
        if isinstance(body, syntax.Unary)
        else _at(body, _PRODUCT, last=True)
    )


def _domain(domain: syntax.Domain) -> str:
    if domain.extent is None:
        return domain.name.text
    return f"{domain.name.text} in {_at(domain.extent, _SUM)}"


def _composite(composite: syntax.Composite) -> str:
    parts = (
        part.text if isinstance(part, syntax.Name) else _literal(part.value)
        for part in composite.parts
    )
    return f"({' '.join(parts)})"


def _indices(items: Sequence[syntax.IndexItem]) -> str:
    out, after_plain = "", True
    for item in items:
        text, plain = _index(item)
        if out:
            out += "," if plain and after_plain else ", "
        out, after_plain = out + text, plain
    return out


def _index(item: syntax.IndexItem) -> tuple[str, bool]:
    """Text of an index, and whether it is so short that no space is needed before it."""
    match item:
        case syntax.BatchDims():
            return "...", True
        case syntax.Composite():
            return _composite(item), True
        case syntax.PlainIndex(value=value, boundary=boundary, fill=fill):
            text = _expression(value)
            if boundary == "?(":
                assert fill is not None
                return f"{text} ?({_expression(fill)})", False
            if boundary:
                return f"{text} {boundary}", False
            return text, isinstance(value, syntax.NameUse | syntax.Number)
        case unexpected:
            assert_never(unexpected)
