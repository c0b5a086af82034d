"""The C compiler of this machine, and what identifies it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from opgen.runtime import cache


class BuildError(RuntimeError):
    """A kernel could not be compiled."""


class NoCompilerError(BuildError):
    """There is no C compiler; ops run as plain PyTorch operations instead.

    Its text is what is wrong, and behind a semicolon what to do.
    """


HOW_TO_GET_ONE = (
    "install gcc or clang (Debian and Ubuntu: apt install gcc, macOS: xcode-select --install), "
    "or the package ziglang (pip install ziglang), or set $OPGEN_CC to a compiler"
)
"""What to do where there is no C compiler."""


def find_compiler() -> tuple[str, ...]:
    """The C compiler: $OPGEN_CC if it is set, else cc, gcc, clang or that of the ziglang package.

    NoCompilerError if there is none.
    """
    chosen = os.environ.get("OPGEN_CC")
    if chosen:
        return _chosen(chosen)
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    zig = _zig()
    if zig is not None:
        return zig
    raise NoCompilerError(
        "no C compiler was found, and CPU kernels are compiled when they are first called; "
        + HOW_TO_GET_ONE
    )


def _chosen(command: str) -> tuple[str, ...]:
    """The words of $OPGEN_CC; NoCompilerError if they name no program."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        reason = f"and cannot be split into words: {error}"
    else:
        if words and shutil.which(words[0]) is not None:
            return words
        reason = "but there is no such program"
    raise NoCompilerError(
        f"$OPGEN_CC is {command!r}, {reason}; let it name a compiler, or unset it and "
        f"{HOW_TO_GET_ONE.partition(', or set')[0]}"
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

    To ask takes longer than all else of a first call whose kernels are on disk, so the answer of a
    compiler is kept there too, for as long as its program and the processor stay the same. What is
    only called one, such as a script, may run another program tomorrow, and is always asked.
    """
    key = _name(compiler, flags)
    known = None if key is None else cache.find_source(cache.directory(), key, _SUFFIX)
    if known is not None:
        return known
    version = _output(*compiler, "--version") or ""
    macros = _output(*compiler, *flags, "-dM", "-E", "-x", "c", os.devnull)
    found = f"{version}\0{_processor() if macros is None else macros}"
    if key is not None:
        with contextlib.suppress(OSError):  # where there is no room, it is asked another time
            cache.add_source(found, cache.directory(), key, _SUFFIX)
    return found


_SUFFIX = ".txt"
_COMPILERS = re.compile(r"(.*-)?(gcc|clang)(-[\d.]+)?")
_ELSEWHERE = ("GCC_EXEC_PREFIX", "COMPILER_PATH")
"""Where gcc looks for the programs that it consists of."""


def _name(compiler: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    """A name for a compiler with flags here; None for what is no compiler itself."""
    path = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    try:
        with path.open("rb") as program:
            is_script = program.read(2) == b"#!"
            status = os.fstat(program.fileno())
    except OSError:
        return None
    if is_script or not _COMPILERS.fullmatch(path.name):
        return None
    file = (str(path), str(status.st_size), str(status.st_mtime_ns), str(status.st_ino))
    places = (os.environ.get(variable, "") for variable in _ELSEWHERE)
    words = (*compiler, "", *flags, "", *file, *places, _processor())
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:32]


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


@functools.cache
def _processor() -> str:
    """The processor as the system describes it."""
    lines: list[str] = []
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as listed:
        lines += itertools.takewhile(str.strip, listed)  # the first of many alike
    stable = ("model", "flags", "Features", "CPU ", "stepping")
    return "\n".join([*os.uname(), *(line.strip() for line in lines if line.startswith(stable))])
