"""The C compiler of this machine, and what identifies it."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class BuildError(RuntimeError):
    """A kernel could not be compiled."""


class NoCompilerError(BuildError):
    """There is no C compiler; ops run as plain PyTorch operations instead."""


def find_compiler() -> tuple[str, ...]:
    """The C compiler: $OPGEN_CC if it is set, else cc, gcc, clang or that of the ziglang package.

    NoCompilerError if there is none.
    """
    chosen = os.environ.get("OPGEN_CC")
    if chosen:
        words = tuple(shlex.split(chosen))
        if not words or shutil.which(words[0]) is None:
            raise NoCompilerError(f"$OPGEN_CC is {chosen!r}, but there is no such program")
        return words
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    zig = _zig()
    if zig is not None:
        return zig
    raise NoCompilerError(
        "no C compiler was found, and CPU kernels are compiled when they are first called; "
        "install gcc or clang (Debian and Ubuntu: apt install gcc, macOS: xcode-select --install), "
        "or the package ziglang (pip install ziglang), or set $OPGEN_CC to a compiler"
    )


def _zig() -> tuple[str, ...] | None:
    """The compiler in the ziglang package, started as `python -m ziglang cc` would.

    By its path, since a package that this process can import may be hidden from a new one.
    """
    try:
        found = importlib.util.find_spec("ziglang")
    except ValueError:  # something put a module of that name in its place
        return None
    if found is None or not found.submodule_search_locations or not sys.executable:
        return None
    program = Path(found.submodule_search_locations[0]) / "__main__.py"
    return (sys.executable, str(program), "cc") if program.is_file() else None


@functools.cache
def identity(compiler: tuple[str, ...], flags: tuple[str, ...]) -> str:
    """What the compiler says about itself, and which processor it compiles for with these flags.

    An upgrade of the compiler must not meet old files, nor one machine those of another that shares
    its home directory: under -march=native they hold other instructions.
    """
    version = _output(*compiler, "--version") or ""
    macros = _output(*compiler, *flags, "-dM", "-E", "-x", "c", os.devnull)
    return f"{version}\0{_processor() if macros is None else macros}"


def _output(*command: str) -> str | None:
    """What a program prints, None if it fails."""
    result = run(command)
    return result.stdout if result.returncode == 0 else None


def run(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a compiler; BuildError if there is nothing that can be run."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment
        )
    except OSError as error:
        raise BuildError(f"the C compiler {command[0]!r} cannot be run: {error}") from error


def _processor() -> str:
    """The processor as the system describes it, for compilers that do not list their macros."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0].split("\n")
    except OSError:
        lines = []
    stable = ("model", "flags", "Features", "CPU ", "stepping")
    return "\n".join([*platform.uname(), *(line for line in lines if line.startswith(stable))])
