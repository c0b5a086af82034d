"""Kernels for the attributes and some sizes of a call, where they can be had, else for all.

A kernel for `stride = 1, K = 3` is several times faster than one for every stride and window; so is
one for rows of 8 cells, or for a sum of one term. The module holds those for default attributes;
opgen, if it can be imported, makes others as they are met, up to a number; everything else runs on
the kernels that take all values.

Sizes of rows change more freely than attributes, so a kernel for them is made when they come for
the second time, and for few of them. Longer rows, batch sizes and numbers of channels never ask
for a kernel.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opgen.runtime import cache, checks
from opgen.runtime.description import LARGEST_WINDOW, LONGEST_ROW, CudaKernels, Launch

if TYPE_CHECKING:
    from opgen.runtime.operation import Operation

MOST = 16
"""How many sets of values kernels of one op are made for in one process; `$OPGEN_SPECIAL_KERNELS`
sets another number."""

MOST_LENGTHS = 3
"""How many sets of lengths kernels are made for beside the same values of everything else."""

Values = tuple[int | None, ...]


@dataclass
class Met:
    """The lengths of rows that calls of an op came with, by the values of everything else."""

    once: set[tuple[Values, Values]] = field(default_factory=set)
    again: dict[Values, list[Values]] = field(default_factory=dict)

    def choose(self, values: Values, lengths: Values) -> bool:
        """Whether kernels are made for these lengths: they were met before."""
        chosen = self.again.setdefault(values, [])
        if lengths in chosen:
            return True
        if len(chosen) >= MOST_LENGTHS:
            return False
        if (values, lengths) not in self.once:
            self.once.add((values, lengths))
            return False
        chosen.append(lengths)
        return True

    def is_settled(self, values: Values, lengths: Values) -> bool:
        """Whether the next call with these lengths gets the same kernels."""
        chosen = self.again.get(values, [])
        return lengths in chosen or len(chosen) >= MOST_LENGTHS


def values_of(operation: Operation, integers: Mapping[str, int]) -> Values:
    """The values that kernels for this call are made for; None for one that is left open."""
    if not _most():
        return ()
    values, lengths = _split(operation, integers)
    if all(length is None for length in lengths) or not operation.met.choose(values, lengths):
        return (*values, *(None for _ in lengths))
    return (*values, *lengths)


def is_settled(operation: Operation, integers: Mapping[str, int]) -> bool:
    """Whether the next call like this one gets the same kernels."""
    if not _most():
        return True
    values, lengths = _split(operation, integers)
    return all(length is None for length in lengths) or operation.met.is_settled(values, lengths)


def _split(operation: Operation, integers: Mapping[str, int]) -> tuple[Values, Values]:
    """The values of everything but lengths, and the lengths; None for what is left open."""
    special = operation.special
    values = [integers[name] for name in special.names]
    windows = (_up_to(LARGEST_WINDOW, integers[name]) for name in special.windows)
    factors = (_up_to(1, integers[name]) for name in special.factors)
    lengths = (_up_to(LONGEST_ROW, integers[name]) for name in special.lengths)
    return (*values, *windows, *factors), tuple(lengths)


def _up_to(most: int, size: int) -> int | None:
    """The size; None for one that is large, and for 0, where formulas divide by it."""
    return size if 1 <= size <= most else None


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
        known = sources.get(_attributes_alone(operation, values))
    return operation.sources.c if known is None else known


def cuda_of(operation: Operation, integers: Mapping[str, int]) -> CudaKernels:
    """The CUDA kernels for a call; none are made for lengths of rows."""
    if not _most():
        return operation.cuda
    values, lengths = _split(operation, integers)
    values = (*values, *(None for _ in lengths))
    found = operation.special_cuda.get(values)
    if found is None:
        found = operation.special_cuda[values] = _cuda_of(operation, values)
    return found


def _cuda_of(operation: Operation, values: Values) -> CudaKernels:
    given = dict(operation.special.cuda)
    if all(value is None for value in values):
        return operation.cuda
    if values in given:
        return given[values]
    if len(operation.special_cuda) < _most():
        text = _made(operation, values, "special_cuda")
        if text is not None:
            return _defined(text)
    return given.get(_attributes_alone(operation, values), operation.cuda)


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


def _attributes_alone(operation: Operation, values: Values) -> Values:
    """The values with all sizes left open."""
    attributes = len(operation.special.names)
    return (*values[:attributes], *(None for _ in values[attributes:]))


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
    given = {
        name: value
        for name, value in zip(operation.special.integers, values, strict=True)
        if value is not None
    }
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
