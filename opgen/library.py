"""A shared library with the ops of a spec, for programs in which there is no Python."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import torch

from opgen import compiler, loading, output, programs
from opgen.emit.library import LibraryOp, Variant, library_source
from opgen.passes.plain_products import with_plain_products
from opgen.runtime import Operation, build, checks, prelude
from opgen.runtime.description import GENERIC
from opgen.runtime.schema import schema
from opgen.runtime.toolchain import run

DTYPES: Final = ("f32", "f64", "f16", "bf16")
"""The types of undeclared tensors that a library has kernels for."""


def build_library(
    path: str | os.PathLike[str],
    out_dir: str | os.PathLike[str] = "generated",
    dtypes: Sequence[str] = DTYPES,
) -> Path:
    """Compile the ops of a spec file to `libNAME.so` in a directory, and return where that is.

    The program that loads it has LibTorch of the release that is installed here, or a newer one,
    and runs on a processor like this one. `dtypes` are those of tensors declared without one.
    BuildError if a compiler is missing or fails, OSError if a file is in the way that opgen did not
    write.
    """
    spec, directory = Path(path), Path(out_dir)
    source = compiler.read_source(path)
    module = loading.compile(source.text, source.name)
    target = output.module_path(spec, directory).with_name(f"lib{spec.stem}.so")
    texts: dict[str, str] = {}
    ops = []
    for number, op in enumerate(map(with_plain_products, compiler.check_source(source))):
        operation: Operation = module.FAMILY.operations[op.name]
        variants = []
        for variant, text in _variants(operation, f"opgen_kernels_{number}", dtypes):
            variants.append(variant)
            texts[f"{variant.kernel}.c"] = text
        program = programs.scheduled(programs.for_cpu(op))
        ops.append(
            LibraryOp(op, program, operation.registered_name, schema(operation), tuple(variants))
        )
    texts["ops.cpp"] = library_source(ops, spec.name)
    output.write_library(target, _linked(texts))
    return target


def _variants(
    operation: Operation, kernel: str, dtypes: Sequence[str]
) -> Iterator[tuple[Variant, str]]:
    """The kernels of an op for each set of element types, and their C source."""
    declared = [(each.name, each.dtype) for each in operation.inputs]
    declared += [(each.name, each.dtype) for each in operation.outputs]
    generic = any(each.dtype in GENERIC for each in operation.inputs)
    inputs = {each.name for each in operation.inputs}
    names = [name for name, dtype in declared if dtype == "int"]
    choices = [("i32", "i64") if name in inputs else ("i64",) for name in names]
    number = 0
    for shared in dtypes if generic else ("f32",):
        for integers in itertools.product(*choices):
            is_double = "f64" in (shared, *(dtype for _, dtype in declared))
            real = "f64" if is_double else "f32"
            defaults = tuple(
                _element(
                    each.default,
                    {"same": shared, "float": shared, "int": "i64"}.get(each.dtype, each.dtype),
                )
                for each in operation.inputs
                if each.default is not None
            )
            name = f"{kernel}_{number}"
            text = "".join(
                (
                    prelude.C,
                    prelude.bindings(shared, real, dict(zip(names, integers, strict=True))),
                    f"#define {operation.sources.entry} {name}\n",
                    operation.sources.c,
                )
            )
            yield Variant(name, shared, real, integers, defaults), text
            number += 1


def _element(value: float, dtype: str) -> bytes:
    """The bytes of one element."""
    tensor = torch.full((1,), value, dtype=checks.TORCH_DTYPES[dtype])
    return bytes(tensor.view(torch.uint8).tolist())


# ---------------------------------------------------------------------------- compilers
def _linked(texts: dict[str, str]) -> bytes:
    """The library that is made of sources; BuildError with what the compiler said."""
    c, cpp = build.find_compiler(), _cpp_compiler()
    with tempfile.TemporaryDirectory(prefix="opgen-library-") as name:
        scratch = Path(name)

        def compiled(source: str) -> str:
            file = scratch / source
            file.write_text(texts[source], encoding="utf-8")
            made = str(file.with_suffix(".o"))
            if source.endswith(".c"):
                command = (*c, *build.flags(), "-fvisibility=hidden")
            else:
                command = (*cpp, "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden")
            _checked([*command, "-c", "-o", made, str(file)])
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, texts))
        libtorch = str(Path(torch.__file__).parent / "lib")
        library = str(scratch / "library.so")
        _checked([*cpp, "-shared", "-o", library, *objects, f"-L{libtorch}", "-ltorch_cpu", "-lm"])
        return Path(library).read_bytes()


def _cpp_compiler() -> tuple[str, ...]:
    """$OPGEN_CXX, else c++, g++ or clang++; NoCompilerError if there is none."""
    chosen = os.environ.get("OPGEN_CXX")
    if chosen:
        return tuple(shlex.split(chosen))
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    raise build.NoCompilerError(
        "no C++ compiler was found, and a library for programs without Python needs one; "
        "install g++ or clang++, or set $OPGEN_CXX to a compiler"
    )


def _checked(command: list[str]) -> None:
    result = run(command, {**os.environ, "LC_ALL": "C"})
    if result.returncode:
        raise build.BuildError(f"{shlex.join(command)} failed:\n{result.stderr.strip()}")
