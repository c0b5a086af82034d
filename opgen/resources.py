"""Where the grammar and the templates live, in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE if (_PACKAGE / "grammar").is_dir() else _PACKAGE.parent

GRAMMAR = _ROOT / "grammar" / "opgen.lark"
TEMPLATES = _ROOT / "templates"
