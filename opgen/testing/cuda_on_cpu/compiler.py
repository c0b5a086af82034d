"""CUDA source to a loaded library, by g++ and through opgen's cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from opgen.runtime import cache, toolchain

_NATIVE = Path(__file__).parent / "native"
_RUNTIME = _NATIVE / "runtime" / "runtime.cpp"

SHARED_CAPACITY = 232_448
"""Bytes of shared memory that a block of a GPU of 2022 and later can ask for."""

_COMMON = (
    *("-std=c++17", "-fPIC", "-fno-strict-aliasing", "-fno-math-errno", "-ffp-contract=off"),
    # The kernel's own symbols, even where another library of the process has the same names.
    *("-fvisibility=hidden", "-fno-gnu-unique", "-fno-extern-tls-init"),
    # As under NVRTC there are no headers but those of CUDA.
    *("-nostdinc", "-nostdinc++"),
    *("-g1", "-gdwarf-4"),  # addr2line confuses files in the DWARF 5 of g++ 12
    *("-Wall", "-Wno-unknown-pragmas", "-Wno-unused", "-Wno-attributes", "-Werror=uninitialized"),
)
_MODES = {
    "fast": ("-O2",),
    "check": (
        "-O1",
        # Every access calls a hook, which the run time defines. Shifts of negative numbers are
        # fine in C++20 and for NVIDIA's compiler.
        "-fsanitize=thread,signed-integer-overflow,shift-exponent,integer-divide-by-zero,bounds",
        "--param=tsan-instrument-func-entry-exit=0",
        # Accesses stay as wide as they are written: these would split a float4, or merge floats.
        *("-fno-tree-sra", "-fno-tree-vectorize", "-fno-store-merging"),
        # These copy code, and one barrier would become two.
        *("-fno-thread-jumps", "-fno-tree-ch"),
    ),
}


class EmulatorError(RuntimeError):
    """A kernel cannot be compiled or run by the emulator."""


@functools.cache
def find_compiler() -> str:
    """The g++ of this machine. EmulatorError says what to install."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise EmulatorError(
            f"CUDA kernels are emulated on Linux and x86-64; this is {sys.platform} on "
            f"{platform.machine()}"
        )
    found = shutil.which("g++")
    if found is None:
        raise EmulatorError(
            "CUDA kernels are emulated by compiling them with g++, and there is no g++ on the "
            "PATH; install it (Debian and Ubuntu: apt install g++, Fedora: dnf install gcc-c++)"
        )
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = subprocess.run([found, "-dumpversion"], capture_output=True, text=True, check=False)
    major = version.stdout.split(".")[0].strip()
    if "Free Software Foundation" not in said or not major.isdigit() or int(major) < 10:
        raise EmulatorError(
            f"CUDA kernels are emulated by g++ 10 or newer; {found} says "
            f"{said.splitlines()[0] if said else 'nothing'!r}"
        )
    return found


# ---------------------------------------------------------------------------- the run time
@functools.cache
def runtime() -> ctypes.CDLL:
    """The run time, loaded so that kernels find it."""
    compiler = find_compiler()
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")
    sources = [path.read_bytes() for path in sorted(_RUNTIME.parent.iterdir())]

    def build(scratch: Path) -> Path:
        built = scratch / "runtime.so"
        _run([compiler, *flags, str(_RUNTIME), "-o", str(built)], "the run time of the emulator")
        return built

    loaded = _cached(_key("runtime", flags, *sources), build)
    ctypes.CDLL(loaded._name, mode=ctypes.RTLD_GLOBAL)  # loading it again makes it global
    loaded.emu_launch.restype = ctypes.c_int
    return loaded


# ---------------------------------------------------------------------------- kernels
@functools.lru_cache(maxsize=256)
def library(
    source: str, names: tuple[str, ...], mode: str, options: tuple[str, ...]
) -> ctypes.CDLL:
    """The kernels of a source, with a launch stub for each of `names`.

    EmulatorError with what g++ said if it refuses the source.
    """
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}, expected one of {sorted(_MODES)}")
    runtime()
    compiler = find_compiler()
    flags = (*_COMMON, *_MODES[mode], *_translated(options))
    text = f'#line 1 "kernel.cu"\n{source}\n#line 1 "launch stubs"\n{_stubs(source, names)}'
    headers = [
        part
        for folder in ("shim", "include")
        for path in sorted((_NATIVE / folder).iterdir())
        for part in (path.name.encode(), path.read_bytes())
    ]

    def build(scratch: Path) -> Path:
        file, object_file, built = (scratch / f"kernel.{end}" for end in ("cpp", "o", "so"))
        file.write_text(text, encoding="utf-8")
        include = ["-I", str(_NATIVE / "include"), "-I", str(_NATIVE / "shim")]
        include += ["-include", str(_NATIVE / "shim" / "cuda_host.h")]
        _run([compiler, "-c", *flags, *include, str(file), "-o", str(object_file)], "the kernel")
        # Linked without -fsanitize, which would link the library whose hooks ours replace.
        _run(
            [compiler, "-shared", "-Wl,-Bsymbolic", str(object_file), "-lm", "-o", str(built)],
            "the kernel",
        )
        return built

    try:
        return _cached(_key("kernel", flags, text.encode(), *headers), build)
    except OSError as error:
        raise EmulatorError(f"the compiled kernel cannot be loaded: {error}") from error


def _stubs(source: str, names: Sequence[str]) -> str:
    lines = [f"EMU_STUB({number}, {name})" for number, name in enumerate(names)]
    dynamic = _dynamic_arrays(source)
    if dynamic:
        # Every `extern __shared__` array is the same memory, as on a GPU.
        lines.append('asm(".section .tbss,\\"awT\\",@nobits\\n.balign 1024\\n"')
        for name in dynamic:
            lines.append(
                f'    ".globl {name}\\n.type {name},@object\\n.hidden {name}\\n{name}:\\n"'
            )
        lines.append(f'    ".zero {SHARED_CAPACITY}\\n.text\\n");')
        lines.append(f'extern thread_local char emu_dynamic_array[] asm("{dynamic[0]}");')
        lines.append("EMU_EXPORT char *emu_dynamic() { return emu_dynamic_array; }")
    # A launch asks for its address, and so makes the thread-local storage of the library.
    lines.append("static thread_local char emu_anchor[16];")
    lines.append("EMU_EXPORT char *emu_storage() { return emu_anchor; }")
    return "\n".join(lines) + "\n"


_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?[\w:<>\s]*?"
    r"(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?(\w+)\s*\[\s*\]"
)


def _dynamic_arrays(source: str) -> list[str]:
    return sorted(set(_DYNAMIC.findall(source)))


# Options of NVRTC that say how fast or for which GPU, and nothing about what a kernel means here.
_IGNORED = re.compile(
    r"--?(fmad|use_fast_math|ftz|prec-div|prec-sqrt|generate-line-info|lineinfo|maxrregcount"
    r"|restrict|default-device|extra-device-vectorization|ptxas-options|Xptxas|device-debug|G)"
    r"(=.*)?|--?(std|gpu-architecture|arch)=.*"
)
_MACROS = re.compile(r"(?:--define-macro=|--undefine-macro=|-D|-U)(.+)")


def _translated(options: Sequence[str]) -> tuple[str, ...]:
    """Options of NVRTC as g++ has them. ValueError for one that is not known."""
    flags: list[str] = []
    for option in options:
        macro = _MACROS.fullmatch(option)
        if macro is not None:
            flags.append(("-U" if option.startswith(("-U", "--u")) else "-D") + macro[1])
        elif option.startswith(("-I", "--include-path=")):
            flags.append("-I" + option.removeprefix("--include-path=").removeprefix("-I"))
        elif _IGNORED.fullmatch(option) is None:
            raise ValueError(f"the emulator does not know the compiler option {option!r}")
        architecture = re.fullmatch(r"--?(?:gpu-architecture|arch)=(?:sm|compute)_(\d+)a?", option)
        if architecture is not None:
            flags.append(f"-D__CUDA_ARCH__={architecture[1]}0")
    return tuple(flags)


# ---------------------------------------------------------------------------- building
def _key(what: str, flags: Sequence[str], *parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in (what, *flags, toolchain.identity((find_compiler(),), ())):
        digest.update(part.encode() + b"\0")
    for content in parts:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:32]


def _cached(key: str, build: Callable[[Path], Path]) -> ctypes.CDLL:
    """A library from the cache, or built into it; where that has no room, for this process."""
    try:
        return _found_or_built(cache.directory(), key, build)
    except OSError:
        return _found_or_built(cache.private_directory(), key, build)


def _found_or_built(place: Path, key: str, build: Callable[[Path], Path]) -> ctypes.CDLL:
    found = cache.find(place, key)
    if found is not None:
        return found
    with cache.scratch(place, key) as scratch:
        return ctypes.CDLL(str(cache.add(build(scratch), place, key)))


_HINTS = {
    "Assembler messages": (
        "inline PTX is for GPUs: give it a twin in C++ that the emulator compiles, as in\n"
        "    #ifdef OPGEN_HOST_EMU\n    ...\n    #else\n    asm(...);\n    #endif"
    ),
    "No such file or directory": (
        "of CUDA's headers the emulator has cuda_fp16.h, cuda_bf16.h, cuda_pipeline.h and mma.h; "
        "others are found where an option -I says"
    ),
}
"""What to do about some complaints of g++."""


def _run(command: Sequence[str], what: str) -> None:
    result = toolchain.run(command, {**os.environ, "LC_ALL": "C"})
    if result.returncode != 0:
        hints = [advice for sign, advice in _HINTS.items() if sign in result.stderr]
        raise EmulatorError(
            "\n".join((f"g++ cannot compile {what}:", result.stderr.strip(), *hints))
        )
