"""Files that a command will write when its work is done."""

from __future__ import annotations

import os
from pathlib import Path


def obstacle(path: Path) -> str:
    """Why a file cannot be written, to be told before the work; empty if it can."""
    folder = path.absolute().parent
    if not folder.is_dir():
        reason = f"{path.parent} does not exist" if not folder.exists() else "its folder is a file"
    elif path.is_dir():
        reason = "it is a folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "permission denied"
    else:
        return ""
    return f"{path} cannot be written: {reason}"
