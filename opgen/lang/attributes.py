"""Attribute declarations: their types, defaults and choices."""

from __future__ import annotations

from typing import Final

from opgen.errors import Source, Span
from opgen.ir.notation import Attribute, AttributeType
from opgen.lang import syntax
from opgen.lang.environment import Fault, closest

_TYPES: Final = {
    "int": AttributeType.INT,
    "float": AttributeType.FLOAT,
    "bool": AttributeType.BOOL,
    "size": AttributeType.SIZE,
}
_MAX_TUPLE: Final = 8


def read_attribute(declaration: syntax.AttributeDeclaration, source: Source) -> Attribute:
    """An attribute as declared. Raises Fault where type, default and choices do not fit."""
    kind = _type(declaration, source)
    length = declaration.length
    if isinstance(declaration.default, tuple) and length is None:
        length = len(declaration.default)
    default = _default(declaration, kind, length)
    return Attribute(declaration.name.text, kind, default, declaration.choices, length)


def _type(declaration: syntax.AttributeDeclaration, source: Source) -> AttributeType:
    """The type that is written, or else the one that the default tells."""
    default = declaration.default
    written: AttributeType | None = None
    if declaration.type is None and default is None and not declaration.choices:
        raise _untyped(declaration.name)
    if declaration.type is not None:
        written = _TYPES.get(declaration.type.text)
        if written is None:
            raise _unknown_type(declaration.type)
    if declaration.choices:
        inferred = AttributeType.CHOICE
        if len(set(declaration.choices)) != len(declaration.choices):
            raise _duplicate_choice(declaration, source)
    elif isinstance(default, bool):
        inferred = AttributeType.BOOL
    elif isinstance(default, float):
        inferred = AttributeType.FLOAT
    else:
        inferred = AttributeType.INT
    if written is None:
        return inferred
    numeric = {AttributeType.INT, AttributeType.SIZE, AttributeType.FLOAT}
    if default is None and not declaration.choices:
        return written
    if written is inferred or (written in numeric and inferred is AttributeType.INT):
        return written
    assert declaration.type is not None
    span = declaration.default_span or declaration.span
    article = "an" if inferred is AttributeType.INT else "a"
    raise Fault(
        "default-type",
        f"'{declaration.name.text}' is declared {written.value}, but its default "
        f"{source.text[span.start : span.end]} is {article} {inferred.value}",
        span,
        (declaration.type.span, "declared here"),
        advice=f"write a default that is {written.value}, or declare it {inferred.value}",
        alternatives=[
            (declaration.type.span, inferred.value),
            (Span(declaration.name.span.end, declaration.type.span.end), ""),
        ],
    )


def _untyped(name: syntax.Name) -> Fault:
    return Fault(
        "untyped-attribute",
        f"nothing says what type '{name.text}' has",
        name.span,
        notes=("the type of an attribute follows from its default, or is written after `:`",),
        advice=f"declare it, such as {name.text}: int, or {name.text}: size for an extent",
        alternatives=[(Span(name.span.end, name.span.end), f": {type_}") for type_ in _TYPES],
    )


def _duplicate_choice(declaration: syntax.AttributeDeclaration, source: Source) -> Fault:
    choices = declaration.choices
    twice = next(c for c in choices if choices.count(c) > 1)
    text, quoted = source.text, f'"{twice}"'
    first = text.index(quoted, declaration.span.start)
    second = text.index(quoted, first + len(quoted))
    bar = text.rindex("|", 0, second)
    before = len(text[:bar].rstrip())
    return Fault(
        "duplicate-choice",
        f"the choice {quoted} is listed twice",
        Span(second, second + len(quoted)),
        (Span(first, first + len(quoted)), "first here"),
        advice="remove one of them",
        replacement=(Span(before, second + len(quoted)), ""),
    )


def _default(
    declaration: syntax.AttributeDeclaration, kind: AttributeType, length: int | None
) -> int | float | bool | str | tuple[int, ...] | None:
    default = declaration.default
    if declaration.choices:
        return declaration.choices[0]
    if length is not None:
        _refuse_length(declaration, kind, length)
        if default is None:
            return None
        values = default if isinstance(default, tuple) else (default,) * length
        if len(values) != length or not all(isinstance(v, int) for v in values):
            raise _default_of_tuple(declaration, values, length)
        return tuple(int(v) for v in values)
    if default is None or isinstance(default, tuple):
        return None
    if kind is AttributeType.FLOAT:
        return float(default)
    if kind is AttributeType.SIZE and default < 0:
        raise Fault(
            "default-type",
            f"a size is at least 0, and the default of '{declaration.name.text}' is {default}",
            declaration.default_span or declaration.span,
            advice="write a default of at least 0, or none",
        )
    return default


def _refuse_length(
    declaration: syntax.AttributeDeclaration, kind: AttributeType, length: int
) -> None:
    """Raises Fault where a tuple is too long or holds no integers."""
    type_ = declaration.type
    if kind not in (AttributeType.INT, AttributeType.SIZE):
        raise Fault(
            "tuple-attribute",
            f"a tuple attribute holds ints or sizes, and '{declaration.name.text}' is declared "
            f"{kind.value}",
            type_.span if type_ is not None else declaration.span,
            advice="declare it int, or declare one attribute for each element",
            replacement=(type_.span, "int") if type_ is not None else None,
        )
    if not 1 <= length <= _MAX_TUPLE:
        raise Fault(
            "tuple-attribute",
            f"a tuple attribute holds 1 to {_MAX_TUPLE} numbers, not {length}",
            declaration.span,
            advice="pass a long list as an integer tensor",
        )


def _default_of_tuple(
    declaration: syntax.AttributeDeclaration,
    values: tuple[int | float, ...],
    length: int,
) -> Fault:
    name, span = declaration.name.text, declaration.default_span or declaration.span
    if len(values) != length:
        return Fault(
            "default-type",
            f"'{name}' is a tuple of {length}, but its default has {len(values)} numbers",
            span,
            advice=f"write {length} numbers, or one for all of them",
        )
    return Fault(
        "default-type",
        f"'{name}' is a tuple of ints, but its default holds a float",
        span,
        advice="write integers, or declare one float attribute for each element",
    )


_OTHER_TYPES: Final = {
    "integer": "int", "int32": "int", "int64": "int", "i32": "int", "i64": "int", "long": "int",
    "f32": "float", "f64": "float", "float32": "float", "float64": "float", "double": "float",
    "real": "float", "boolean": "bool", "flag": "bool", "dim": "size", "extent": "size",
}  # fmt: skip


def _unknown_type(type_: syntax.Name) -> Fault:
    meant = _OTHER_TYPES.get(type_.text.lower()) or closest(type_.text, _TYPES)
    advice = f"did you mean `{meant}`?" if meant else "leave it out: the default tells the type"
    if type_.text.lower() in ("str", "string"):
        advice = 'a string attribute lists its values, such as mode = "a" | "b"'
    return Fault(
        "unknown-type",
        f"'{type_.text}' is no type of an attribute",
        type_.span,
        notes=('the types are int, float, bool, size, int[2] and "a" | "b"',),
        advice=advice,
        replacement=(type_.span, meant) if meant else None,
    )
