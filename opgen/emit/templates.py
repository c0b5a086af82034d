"""The templates: skeletons of files that receive one object `k` and compute nothing."""

from __future__ import annotations

import functools

import jinja2

from opgen import resources


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(template: str, k: object) -> str:
    """The text of a template for `k`."""
    return _environment().get_template(template).render(k=k)


def comment(text: str) -> tuple[str, ...]:
    """Lines that are safe after `//` or `#`: nothing in them can end the comment or continue it."""
    lines = text.splitlines() or [""]
    return tuple(
        "".join(c if c.isprintable() and c != "\\" else "?" for c in line).rstrip()
        for line in lines
    )
