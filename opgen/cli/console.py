"""Where the commands print: colours and progress in a terminal, plain text in a pipe or a file."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text


def output() -> Console:
    """Standard output. Text is printed as it is: no markup, no wrapping, no guessed colours."""
    return Console(markup=False, highlight=False, soft_wrap=True, emoji=False)


def errors() -> Console:
    """Standard error, likewise."""
    return Console(markup=False, highlight=False, soft_wrap=True, emoji=False, stderr=True)


def diagnostics(error: Exception) -> Text:
    """The text of an OpgenError, with the parts that people look for in colour."""
    text = Text(str(error))
    text.highlight_regex(r"(?m)^error\[[\w-]+\]:", "bold red")
    text.highlight_regex(r"(?m)^ +\| +\^+.*$", "red")
    text.highlight_regex(r"(?m)^ *--> .*$", "cyan")
    text.highlight_regex(r"(?m)^  (help|note):", "bold")
    text.highlight_regex(r"(?m)^\d+ \+ .*$", "green")
    return text


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
