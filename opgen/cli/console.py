"""Where the commands print: colours and progress in a terminal, plain text in a pipe or a file."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


def output() -> Console:
    """Standard output. Text is printed as it is: no markup, no wrapping, no guessed colours."""
    return Console(markup=False, highlight=False, soft_wrap=True, emoji=False)


def errors() -> Console:
    """Standard error, likewise."""
    return Console(markup=False, highlight=False, soft_wrap=True, emoji=False, stderr=True)


def progress() -> Progress:
    """A bar that is shown in a terminal only, and removed when it is done."""
    console = errors()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
