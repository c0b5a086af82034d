"""Texts that opgen makes while a program runs: kept on disk until a file of opgen changes.

Proofs and derivations take longer than anything else here, and give the same text every time. What
Python compiles a module to is kept too: most of the time of loading one whose text is known.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.util
import linecache
import marshal
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from opgen.runtime import cache

MAKERS = {
    "module_source": ".py",
    "derived_source": ".py",
    "leading_source": ".py",
    "stages_source": ".py",
    "halves_source": ".py",
    "kept_source": ".py",
    "keeping_source": ".py",
    "special_source": ".c",
    "unrounded_source": ".c",
    "special_cuda": ".py",
    "unrounded_cuda": ".py",
    "one_pass": ".txt",
}
"""Functions of `opgen.on_demand` that make texts, and what these are."""

_CODE = ".pyc"


def source(maker: str, *given: object) -> str:
    """The text that a function of `opgen.on_demand` returns for arguments that their repr tells.

    ImportError where opgen is not installed; what the function raises if it refuses.
    """
    generator = _generator()
    if generator is None:
        raise ModuleNotFoundError("No module named 'opgen'")
    made_from = "\0".join((generator, maker, *map(repr, given)))
    key = hashlib.sha256(made_from.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    suffix = MAKERS[maker]
    known = cache.find_source(cache.directory(), key, suffix)
    if known is not None:
        return known
    with _without_collections():
        make = getattr(importlib.import_module("opgen.on_demand"), maker, None)
        if make is None:
            raise ImportError(f"the opgen that is installed has no {maker}: it is an older one")
        text: str = make(*given)
    with contextlib.suppress(OSError):  # where there is no room, it is made again another time
        cache.add_source(text, cache.directory(), key, suffix)
    return text


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Nobody looks for unreachable objects meanwhile, if somebody would.

    To make a text takes many objects, of which few are in cycles, and Python looks at all objects
    of PyTorch when there are many new ones: a fifth of the time of a first call.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_installed() -> bool:
    """Whether opgen is there to make texts."""
    return _generator() is not None


def load(text: str, name: str) -> types.ModuleType:
    """The module of a generated text; its lines are known to tracebacks.

    It is found by importing it, as `torch.compile` and `pickle` do with what belongs to a module.
    """
    stem = "".join(c if c.isalnum() else "_" for c in Path(name).stem)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    filename = f"<opgen {digest} {stem}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType(f"opgen_module_{stem}_{digest}")
    module.__file__ = filename
    sys.modules[module.__name__] = module
    exec(_code(text, filename), module.__dict__)
    return module


def _code(text: str, filename: str) -> types.CodeType:
    """A text compiled by this Python, which writes its own form of it with its own flags."""
    python = (sys.version, importlib.util.MAGIC_NUMBER.hex(), str(sys.flags.optimize))
    made_from = "\0".join((*python, filename, text))
    key = hashlib.sha256(made_from.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    place = cache.directory()
    known = cache.find_file(place, key, _CODE)
    if known is not None:
        # Another process may just have made room, or cut it short.
        with contextlib.suppress(OSError, EOFError, TypeError, ValueError):
            kept: types.CodeType = marshal.loads(known.read_bytes())
            return kept
    code = builtins.compile(text, filename, "exec")
    with contextlib.suppress(OSError):
        cache.add_bytes(marshal.dumps(code), place, key, _CODE)
    return code


@functools.cache
def _generator() -> str | None:
    """A name for the opgen that is installed, which changes with its files; None if none is."""
    found = importlib.util.find_spec("opgen")
    if found is None or not found.submodule_search_locations:
        return None
    files = hashlib.sha256()
    for place in map(Path, found.submodule_search_locations):
        # In a checkout the grammar and the templates lie beside the package.
        for folder in (place, place.parent / "grammar", place.parent / "templates"):
            for path in sorted(folder.rglob("*")):
                if path.suffix in (".py", ".j2", ".lark"):
                    status = path.stat()
                    files.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return files.hexdigest()
