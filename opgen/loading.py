"""Specs as modules in the running process.

What is known of a spec is kept on disk, and where it is, nothing of the compiler is loaded: that
would take longer than all the rest of a first call.
"""

from __future__ import annotations

import os
import types

from opgen.errors import Source
from opgen.runtime import generated


def compile(text: str, name: str = "<spec>") -> types.ModuleType:  # noqa: A001  # opgen.compile
    """A module with a function and a class for every op of a spec; gradients follow on demand.

    OpgenError with every fault of the spec.
    """
    return generated.load(generated.source("module_source", text, name), name)


def load(path: str | os.PathLike[str]) -> types.ModuleType:
    """A spec file as a module; see `compile`. OSError, or NotTextError, if it cannot be read."""
    source = Source.of_file(path)
    return compile(source.text, source.name)
