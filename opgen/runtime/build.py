"""C source to a loaded shared library, through the cache on disk."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import shlex
from pathlib import Path

from opgen.runtime import cache
from opgen.runtime.cache import directory as cache_directory
from opgen.runtime.toolchain import BuildError, NoCompilerError, find_compiler, identity, run

__all__ = ["BuildError", "NoCompilerError", "cache_directory", "find_compiler", "flags", "library"]

_PROCESSOR = {
    "x86_64": ("-march=native", "-mprefer-vector-width=512"),
    "AMD64": ("-march=native", "-mprefer-vector-width=512"),
    "aarch64": ("-mcpu=native",),
    "arm64": ("-mcpu=native",),
}
"""How to ask for all instructions of this processor."""

FLAGS = (
    *("-O3", *_PROCESSOR.get(platform.machine(), ()), "-fopenmp-simd", "-shared", "-fPIC"),
    *("-std=gnu11", "-fwrapv", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-w"),
)
"""Integer overflow wraps around as in PyTorch. A product and a sum may be rounded once; beyond that
floating-point arithmetic stays as written, so there is no -ffast-math: it would also change the
arithmetic of the whole process when the library is loaded."""


def flags() -> tuple[str, ...]:
    """What a kernel is compiled with; `$OPGEN_CFLAGS` adds to it, as `-O1` or `-g`."""
    try:
        return (*FLAGS, *shlex.split(os.environ.get("OPGEN_CFLAGS", "")))
    except ValueError as error:
        raise BuildError(f"$OPGEN_CFLAGS cannot be split into words: {error}") from error


_FULL = ("No space left on device", "Disk quota exceeded", "Read-only file system")


def library(source: str) -> ctypes.CDLL:
    """The shared library of a C source; compiled if the cache does not hold it.

    Where the cache cannot take it, because the disk is full or must not hold programs, a directory
    of this process does. BuildError with what the compiler said if it refuses the source.
    """
    compiler, options = find_compiler(), flags()
    made_from = "\0".join((*compiler, *options, identity(compiler, options), source))
    key = hashlib.sha256(made_from.encode()).hexdigest()[:32]
    failures: list[OSError] = []
    for place in (cache_directory, cache.private_directory):
        try:
            directory = place()
            loaded = cache.find(directory, key)
            return _told(loaded or ctypes.CDLL(str(_compile(compiler, source, directory, key))))
        except OSError as error:
            failures.append(error)
    reasons = "; ".join(dict.fromkeys(map(str, failures)))
    raise BuildError(f"a compiled kernel can be kept and loaded nowhere: {reasons}")


_is_child = False


def _in_child() -> None:
    global _is_child
    _is_child = True


os.register_at_fork(after_in_child=_in_child)


def _told(library: ctypes.CDLL) -> ctypes.CDLL:
    """A library of kernels that knows whether this process was forked before it was loaded."""
    if _is_child and hasattr(library, "opgen_in_child"):
        library.opgen_in_child()
    return library


def _compile(compiler: tuple[str, ...], source: str, directory: Path, key: str) -> Path:
    """A new entry of the cache; OSError if there is no room for it."""
    with cache.scratch(directory, key) as scratch:
        text, built = scratch / "op.c", scratch / "op.so"
        text.write_text(source, encoding="utf-8")
        command = [*compiler, *flags(), "-o", str(built), str(text), "-lm"]
        # Temporary files of the compiler stay where they are found again if it is killed; what it
        # says is in the language in which it is looked at below.
        environment = {**os.environ, "TMPDIR": str(scratch), "LC_ALL": "C"}
        result = run(command, environment)
        if result.returncode != 0:
            for reason in _FULL:
                if reason in result.stderr:
                    raise OSError(errno.ENOSPC, reason, str(directory))
            raise BuildError(f"{shlex.join(command)} failed:\n{result.stderr.strip()}")
        return cache.add(built, directory, key)
