"""Kernels for the attributes and windows of a call, where they can be had, else for all.

A kernel for `stride = 1, K = 3` is several times faster than one for every stride and window. The
module holds those for default attributes; opgen, if it can be imported, makes others as they are
met, up to a number; everything else runs on the kernels that take all values.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opgen.runtime import cache, checks
from opgen.runtime.description import LARGEST_WINDOW, CudaKernels, Launch

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

MOST = 16
"""How many sets of values kernels of one op are made for in one process; `$OPGEN_SPECIAL_KERNELS`
sets another number."""

Values = tuple[int | None, ...]


def values_of(operation: Operation, integers: Mapping[str, int]) -> Values:
    """The values that kernels for this call may be made for; None for one that is left open."""
    if not _most():
        return ()
    special = operation.special
    values = [integers[name] for name in special.names]
    windows = (integers[name] for name in special.windows)
    return (*values, *(size if size <= LARGEST_WINDOW else None for size in windows))


def _most() -> int:
    """How many kernels may be made; RuntimeError if the variable is no number."""
    chosen = os.environ.get("OPGEN_SPECIAL_KERNELS")
    if chosen is None:
        return MOST
    if not chosen.isdecimal():
        raise RuntimeError(f"$OPGEN_SPECIAL_KERNELS must be a number, got {chosen!r}")
    return int(chosen)


def source_of(operation: Operation, values: Values) -> str:
    """The C source for these values."""
    special = operation.special
    sources = dict(special.sources)
    if not values:
        return operation.sources.c
    known = sources.get(values)
    if known is None and len(operation.compiled) < _most():
        known = _made(operation, values, "special_source")
    if known is None:
        known = sources.get(_without_windows(operation, values))
    return operation.sources.c if known is None else known


def cuda_of(operation: Operation, values: Values) -> CudaKernels:
    """The CUDA kernels for these values."""
    found = operation.special_cuda.get(values)
    if found is None:
        found = operation.special_cuda[values] = _cuda_of(operation, values)
    return found


def _cuda_of(operation: Operation, values: Values) -> CudaKernels:
    given = dict(operation.special.cuda)
    if not values:
        return operation.cuda
    if values in given:
        return given[values]
    if len(operation.special_cuda) < _most():
        text = _made(operation, values, "special_cuda")
        if text is not None:
            return _defined(text)
    return given.get(_without_windows(operation, values), operation.cuda)


def _defined(text: str) -> CudaKernels:
    """The kernels that a Python source of `opgen.compiler.special_cuda` defines."""
    names: dict[str, Any] = {
        "CudaKernels": CudaKernels,
        "Launch": Launch,
        "checks": checks,
        "math": math,
    }
    exec(compile(text, "<opgen CUDA kernels>", "exec"), names)
    found: CudaKernels = names["kernels"]
    return found


def _without_windows(operation: Operation, values: Values) -> Values:
    special = operation.special
    return (*values[: len(special.names)], *(None for _ in special.windows))


def _made(operation: Operation, values: Values, maker: str) -> str | None:
    """A source made now by that function of `opgen.compiler`; None where opgen is not installed."""
    generator = _generator()
    if generator is None:
        return None
    key = _key(operation, values, f"{generator} {maker}")
    known = cache.find_source(cache.directory(), key)
    if known is not None:
        return known
    try:
        compiler = importlib.import_module("opgen.compiler")
    except ImportError:
        return None
    special = operation.special
    names = (*special.names, *special.windows)
    given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    family = operation.family
    make = getattr(compiler, maker)
    source: str = make(family.spec, family.spec_name, operation.path, given)
    _keep(source, key)
    return source


def _key(operation: Operation, values: Values, generator: str) -> str:
    """What the source of a special kernel is made from, as a name of the cache."""
    parts = (generator, operation.family.spec, *operation.path, repr(values))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _generator() -> str | None:
    """A name for the opgen that is installed, which changes with its files; None if none is."""
    found = importlib.util.find_spec("opgen")
    if found is None or not found.submodule_search_locations:
        return None
    files = hashlib.sha256()
    for place in found.submodule_search_locations:
        for path in sorted((*Path(place).rglob("*.py"), *Path(place).rglob("*.j2"))):
            status = path.stat()
            files.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return files.hexdigest()


def _keep(source: str, key: str) -> None:
    """Put a source into the cache; where there is no room, it is made again another time."""
    with contextlib.suppress(OSError), cache.scratch(cache.directory(), key) as scratch:
        text = scratch / "op.c"
        text.write_text(source, encoding="utf-8")
        cache.add(text, cache.directory(), key)
