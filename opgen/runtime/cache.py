"""Compiled libraries, and sources that take time to make, on disk, under telling names.

An entry is named after a key, the hash of everything it was made from, and after the hash of its
own bytes. A file that is cut short or altered therefore does not match its name, is ignored and
made again; files appear by renaming, so processes may make the same entry at the same time. It lies
in the folder of the first two digits of its key: to look for a name whose end is not known, a
folder must be listed, which takes ten milliseconds where thousands of files are in it.

The directory is private to the user, since its content is executed. It holds about `LARGEST`
bytes: those entries go that have not been used for longest, and directories in which a compiler
was killed go after an hour. A process looks for them when it first adds an entry, and each time it
has added a sixteenth of what there is room for. To look at thousands of entries takes tens of
milliseconds, and a first call of an op adds up to ten of them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LARGEST = 2**29
"""How many bytes the entries of a directory may have together, beside what was added since."""

_added: dict[Path, int] = {}
"""How many bytes this process added to a directory since it last made room there."""

_ENTRY = re.compile(r"([0-9a-f]{32}|host)-[0-9a-f]{32}\.(so|c|py|pyc|cubin|txt)")
_FOLDER = re.compile(r"[0-9a-z]{2}")
_SCRATCH = re.compile(r"[0-9a-f]{32}-[^.]*")
_HOUR = 3600.0


# ---------------------------------------------------------------------------- directories
def directory() -> Path:
    """$OPGEN_CACHE or opgen in the user's cache directory, if it is or can be made private.

    Else a directory of this process.
    """
    chosen = os.environ.get("OPGEN_CACHE")
    try:
        if chosen:
            found = Path(chosen)
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME", ""))
            found = (base if base.is_absolute() else Path.home() / ".cache") / "opgen"
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(found):
            return found
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        pass
    return private_directory()


def _is_private(found: Path) -> bool:
    status = found.stat()
    owned = status.st_uid == os.getuid()
    if owned and stat.S_IMODE(status.st_mode) & 0o022:
        found.chmod(0o700)
        status = found.stat()
    others = stat.S_IMODE(status.st_mode) & 0o022
    return owned and not others and os.access(found, os.W_OK | os.X_OK)


def private_directory() -> Path:
    """A directory that goes when the process ends that made it."""
    found = _made()
    if not found.is_dir():  # made by a parent of this process, which has ended
        _made.cache_clear()
        found = _made()
    return found


@functools.cache
def _made() -> Path:
    made = Path(tempfile.mkdtemp(prefix="opgen-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # and not in a child of it
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


# ---------------------------------------------------------------------------- entries
def find(place: Path, key: str) -> ctypes.CDLL | None:
    """The library of a key, if an entry holds it; damaged entries are removed."""
    for entry in _entries(place, key, ".so"):
        loaded = _load(entry)
        if loaded is not None:
            return loaded
        _remove(entry)
    return None


def find_source(place: Path, key: str, suffix: str) -> str | None:
    """The source of a key, if an entry holds it; damaged entries are removed."""
    for entry in _entries(place, key, suffix):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if _is_whole(entry):
                return entry.read_text(encoding="utf-8")
        _remove(entry)
    return None


def find_file(place: Path, key: str, suffix: str) -> Path | None:
    """The file of a key, if an entry holds it; damaged entries are removed."""
    for entry in _entries(place, key, suffix):
        with contextlib.suppress(OSError):
            if _is_whole(entry):
                return entry
        _remove(entry)
    return None


def _folder(place: Path, key: str) -> Path:
    """Where the entries of a key lie in a directory."""
    return place / key[:2]


def _entries(place: Path, key: str, suffix: str) -> list[Path]:
    """The entries of a key."""
    folder = _folder(place, key)
    try:
        files = list(folder.iterdir()) if _is_private(folder) else []
    except OSError:
        return []
    return sorted(
        each for each in files if each.name.startswith(f"{key}-") and each.name.endswith(suffix)
    )


def _load(entry: Path) -> ctypes.CDLL | None:
    """The library if its bytes match its name and nobody else can have written them, else None."""
    with contextlib.suppress(OSError):
        if _is_whole(entry):
            return ctypes.CDLL(str(entry))
    return None


def _is_whole(entry: Path) -> bool:
    """Whether an entry is what was put there; it then counts as used now, see `_shrink`."""
    if not _is_ours(entry.lstat()) or not entry.stem.endswith(f"-{_digest(entry)}"):
        return False
    if time.time() - entry.stat().st_mtime > _HOUR:
        os.utime(entry)
    return True


def _is_ours(status: os.stat_result) -> bool:
    """Whether a file is a plain one of this user that no other may write to.

    The directory may have been open to others before it was made private.
    """
    mode = status.st_mode
    return stat.S_ISREG(mode) and status.st_uid == os.getuid() and not stat.S_IMODE(mode) & 0o022


def add(built: Path, place: Path, key: str) -> Path:
    """Make a file an entry, and make room now and then; OSError if that is not possible."""
    folder = _folder(place, key)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(errno.EACCES, "belongs to somebody else", str(folder))
    entry = folder / f"{key}-{_digest(built)}{built.suffix}"
    if entry.is_dir():
        _remove(entry)
    built.chmod(0o700)
    size = built.stat().st_size
    built.replace(entry)
    if place in _added and _added[place] + size <= LARGEST // 16:
        _added[place] += size
    else:
        _added[place] = 0
        _shrink(place, entry)
    return entry


def add_source(text: str, place: Path, key: str, suffix: str) -> None:
    """Make a text an entry; OSError if that is not possible."""
    add_bytes(text.encode("utf-8"), place, key, suffix)


def add_bytes(content: bytes, place: Path, key: str, suffix: str) -> None:
    """Make bytes an entry; OSError if that is not possible."""
    with scratch(place, key) as directory:
        file = directory / f"source{suffix}"
        file.write_bytes(content)
        add(file, place, key)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:32]


@contextlib.contextmanager
def scratch(place: Path, key: str) -> Iterator[Path]:
    """A directory to work in, on the same file system as the entries."""
    with tempfile.TemporaryDirectory(
        prefix=f"{key}-", dir=place, ignore_cleanup_errors=True
    ) as made:
        yield Path(made)


# ---------------------------------------------------------------------------- room
def _shrink(place: Path, newest: Path) -> None:
    """Remove what was left behind, and what was not used for longest if there is too much."""
    entries: list[tuple[float, int, Path]] = []
    for found in _listed(place):
        try:
            status = found.stat()
        except OSError:
            continue  # gone by now
        if stat.S_ISDIR(status.st_mode) and _SCRATCH.fullmatch(found.name):
            if time.time() - status.st_mtime > _HOUR:
                _remove(found)
        elif _ENTRY.fullmatch(found.name) and found.name != newest.name:
            entries.append((status.st_mtime, status.st_size, found))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total <= LARGEST:
            break
        _remove(entry)
        total -= size


def _listed(place: Path) -> Iterator[Path]:
    """All that is in a directory and its folders; once, entries had none."""
    for found in place.iterdir():
        yield found
        if _FOLDER.fullmatch(found.name):
            with contextlib.suppress(OSError):
                yield from found.iterdir()


def _remove(path: Path) -> None:
    """Remove a file or directory, or leave it if that is not possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()
