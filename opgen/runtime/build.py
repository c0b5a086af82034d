"""C source to a loaded shared library, through a cache on disk.

An entry is named after a hash of the source, the compiler and its flags, and after a hash of its
own bytes. A file that is cut short or altered therefore does not match its name, is ignored and is
built again; files appear by renaming, so processes may build the same entry at the same time.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

FLAGS = (
    *("-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp-simd", "-shared", "-fPIC"),
    *("-std=gnu11", "-fwrapv", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-w"),
)
"""Integer overflow wraps around as in PyTorch. A product and a sum may be rounded once; beyond that
floating-point arithmetic stays as written, so there is no -ffast-math: it would also change the
arithmetic of the whole process when the library is loaded."""


class BuildError(RuntimeError):
    """A kernel could not be compiled."""


class NoCompilerError(BuildError):
    """There is no C compiler; ops run as plain PyTorch operations instead."""


def library(source: str) -> ctypes.CDLL:
    """The shared library of a C source; compiled if the cache does not hold it."""
    compiler = find_compiler()
    identity = "\0".join((*compiler, _version(compiler), *FLAGS, source))
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    directory = cache_directory()
    for entry in sorted(directory.glob(f"{key}-*.so")):
        loaded = _load(entry)
        if loaded is not None:
            return loaded
    entry = _compile(compiler, source, directory, key)
    loaded = _load(entry)
    if loaded is None:
        raise BuildError(f"{entry} was built but cannot be loaded")
    return loaded


def find_compiler() -> tuple[str, ...]:
    """The C compiler: $OPGEN_CC if it is set, else the first of cc, gcc and clang."""
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
    raise NoCompilerError(
        "no C compiler was found, and CPU kernels are compiled when they are first called; "
        "install gcc or clang (Debian and Ubuntu: apt install gcc, macOS: xcode-select --install) "
        "or set $OPGEN_CC to one"
    )


@functools.cache
def _version(compiler: tuple[str, ...]) -> str:
    """What the compiler says about itself: an upgrade must not meet old entries."""
    result = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    return result.stdout


def cache_directory() -> Path:
    """A directory that only this user may write to: its content is executed."""
    chosen = os.environ.get("OPGEN_CACHE")
    if chosen:
        directory = Path(chosen)
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        directory = (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "opgen"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(directory):
            return directory
    except OSError:
        pass
    return _private_directory()


def _is_private(directory: Path) -> bool:
    status = directory.stat()
    owned = status.st_uid == os.getuid()
    if owned and stat.S_IMODE(status.st_mode) & 0o022:
        directory.chmod(0o700)
        status = directory.stat()
    others = stat.S_IMODE(status.st_mode) & 0o022
    return owned and not others and os.access(directory, os.W_OK)


@functools.cache
def _private_directory() -> Path:
    """Where no cache can be kept: a new directory for this process."""
    return Path(tempfile.mkdtemp(prefix="opgen-"))


def _load(entry: Path) -> ctypes.CDLL | None:
    """The library if its bytes match its name, else None."""
    try:
        digest = hashlib.sha256(entry.read_bytes()).hexdigest()[:32]
        if not entry.stem.endswith(f"-{digest}"):
            return None
        return ctypes.CDLL(str(entry))
    except OSError:
        return None


def _compile(compiler: tuple[str, ...], source: str, directory: Path, key: str) -> Path:
    with tempfile.TemporaryDirectory(prefix=f"{key}-", dir=directory) as scratch:
        text, built = Path(scratch) / "op.c", Path(scratch) / "op.so"
        text.write_text(source, encoding="utf-8")
        command = [*compiler, *FLAGS, "-o", str(built), str(text), "-lm"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise BuildError(f"{shlex.join(command)} failed:\n{result.stderr.strip()}")
        digest = hashlib.sha256(built.read_bytes()).hexdigest()[:32]
        entry = directory / f"{key}-{digest}.so"
        built.replace(entry)
    return entry
