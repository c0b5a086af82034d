"""Runs calls of ops from a library alone: `python library_child.py LIBRARY DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch


def run(library: str, directory: Path) -> None:
    """Load the library, run every call that the directory holds, and leave the results there."""
    for name in ("opgen", "lark", "jinja2"):
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    torch.ops.load_library(library)
    calls: Any = torch.load(directory / "calls.pt")
    results: list[Any] = []
    for name, arguments in calls:
        op = getattr(torch.ops.opgen, name).default
        try:
            result = op(*arguments)
        except RuntimeError as error:
            results.append(str(error))
        else:
            results.append(result if isinstance(result, tuple) else (result,))
    torch.save(results, directory / "results.pt")


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
