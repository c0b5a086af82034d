"""`opgen doctor`: what this machine offers, and what to do about what is missing."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import platform
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch

from opgen.cli.console import output
from opgen.runtime import build
from opgen.runtime.toolchain import HOW_TO_GET_ONE
from opgen.runtime.toolchain import run as run_program

OLDEST_TORCH: Final = (2, 10)


class Status(Enum):
    """How much a finding matters."""

    OK = "ok"
    ABSENT = "--"  # optional, and not there
    WARNING = "warn"  # works, but not as it should
    FAILURE = "FAIL"  # CPU kernels do not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` says what to do."""

    status: Status
    name: str
    text: str
    advice: str = ""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    text = "what this machine offers: compiler, threads, cache, GPU, each with what to do"
    parser = commands.add_parser("doctor", help=text, description=text)
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """0 if CPU kernels work here, else 1."""
    styles = {Status.OK: "green", Status.ABSENT: "dim", Status.WARNING: "yellow"}
    console, status = output(), 0
    for finding in findings():
        console.print(
            f"{finding.status.value:<5}{finding.name:<10}{finding.text}",
            style=styles.get(finding.status, "red"),
        )
        if finding.advice:
            console.print(f"{'':15}-> {finding.advice}")
        if finding.status is Status.FAILURE:
            status = 1
    console.print("CPU kernels work here" if status == 0 else _failure())
    return status


def _failure() -> str:
    """What it means for ops that CPU kernels do not work."""
    try:
        build.find_compiler()
    except build.NoCompilerError:
        return (
            "CPU kernels do not work here: ops run as plain PyTorch operations, which give the "
            "same results much more slowly"
        )
    return "CPU kernels do not work here: ops on CPU tensors raise an error"


def findings() -> Iterator[Finding]:
    """Everything that is looked at, in order."""
    checks: tuple[Callable[[], Finding], ...] = (
        software,
        compiler,
        kernels,
        threads,
        cache,
        gpu,
        cupy,
        property_tests,
    )
    for check in checks:
        yield check()


# ---------------------------------------------------------------------------- software
def software() -> Finding:
    """Python, opgen and PyTorch."""
    text = (
        f"opgen {version('opgen')}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {platform.machine()} {sys.platform}"
    )
    numbers = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return Finding(Status.FAILURE, "software", text, f"pip install 'torch>={oldest}'")
    return Finding(Status.OK, "software", text)


def property_tests() -> Finding:
    """What `opgen test` needs."""
    if importlib.util.find_spec("hypothesis") is None:
        advice = "pip install 'opgen[test]' for `opgen test`"
        return Finding(Status.ABSENT, "tests", "hypothesis is not installed", advice)
    return Finding(Status.OK, "tests", f"hypothesis {version('hypothesis')}")


# ---------------------------------------------------------------------------- compiler
def compiler() -> Finding:
    """Which C compiler compiles the kernels."""
    try:
        command = build.find_compiler()
        result = run_program([*command, "--version"])
    except build.NoCompilerError as error:
        text, _, advice = str(error).rpartition("; ")
        return Finding(Status.FAILURE, "compiler", text, advice)
    except build.BuildError as error:
        return Finding(Status.FAILURE, "compiler", str(error), HOW_TO_GET_ONE)
    about = (result.stdout.splitlines() or ["does not say its version"])[0]
    chosen = " (from $OPGEN_CC)" if os.environ.get("OPGEN_CC") else ""
    return Finding(Status.OK, "compiler", f"{' '.join(command)}{chosen}: {about}")


_PROBE: Final = """\
#include <stdint.h>
#include <math.h>
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
int64_t opgen_probe(int64_t value) { return (int64_t)sqrt((double)value) + 1; }
int64_t opgen_threads(void) { return GOMP_parallel != 0; }
"""


def kernels() -> Finding:
    """Whether a kernel can be compiled, loaded and called."""
    try:
        library = build.library(_PROBE)
        answer = library.opgen_probe(1764)
    except build.NoCompilerError:
        text = "none was tried: they take a compiler"
        return Finding(Status.FAILURE, "kernels", text, "see the advice on the compiler")
    except (build.BuildError, OSError) as error:
        text = str(error).strip()
        return Finding(Status.FAILURE, "kernels", text, _advice(text))
    if answer != 43:
        advice = "try another compiler with $OPGEN_CC"
        return Finding(Status.FAILURE, "kernels", f"a test kernel gave {answer}, not 43", advice)
    return Finding(Status.OK, "kernels", "a test kernel was compiled, loaded and called")


def _advice(text: str) -> str:
    """What to do about a kernel that could not be compiled or loaded."""
    options = os.environ.get("OPGEN_CFLAGS")
    if "$OPGEN_CFLAGS" in text:
        return "let $OPGEN_CFLAGS hold options of the compiler, such as -O1, or unset it"
    other = "try another compiler with $OPGEN_CC"
    if options:
        other = f"unset $OPGEN_CFLAGS, which adds {options!r}, or {other}"
    return f"the lines above come from the compiler; {other}" if "failed:\n" in text else other


def threads() -> Finding:
    """Whether kernels can run on the threads of PyTorch."""
    count, cores = torch.get_num_threads(), _cores()
    try:
        found = bool(build.library(_PROBE).opgen_threads())
    except (build.BuildError, OSError):
        text = "unknown: no kernel could be compiled"
        return Finding(Status.WARNING, "threads", text, "see the advice on kernels")
    text = f"{count} of PyTorch's on {cores} cores"
    if not found:
        return Finding(
            Status.WARNING,
            "threads",
            f"{text}, but GOMP_parallel is not found in this process: kernels run on one thread",
            "install a build of PyTorch with OpenMP from libgomp, as pip's for Linux are",
        )
    text += ", GOMP_parallel found"
    if count == 1 < cores:
        advice = "unset OMP_NUM_THREADS, or call torch.set_num_threads"
        return Finding(Status.WARNING, "threads", text, advice)
    return Finding(Status.OK, "threads", text)


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---------------------------------------------------------------------------- cache
def cache() -> Finding:
    """Where compiled kernels are kept."""
    directory = build.cache_directory()
    sizes = list(_sizes(directory))
    mode = stat.S_IMODE(directory.stat().st_mode)
    text = f"{directory}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB, mode {mode:o}"
    if directory.parent == Path(tempfile.gettempdir()) and directory.name.startswith("opgen-"):
        return Finding(
            Status.WARNING,
            "cache",
            f"{text}; temporary: every process compiles its kernels again",
            "let $OPGEN_CACHE name a directory of yours that nobody else may write to",
        )
    return Finding(Status.OK, "cache", text, f"it may be deleted at any time: rm -r {directory}")


def _sizes(directory: Path) -> Iterator[int]:
    """The sizes of all files; those that another process removes meanwhile are left out."""
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                yield Path(place, name).lstat().st_size


# ---------------------------------------------------------------------------- GPU
def gpu() -> Finding:
    """What PyTorch can use."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
        return Finding(Status.OK, "gpu", f"{', '.join(names)}, CUDA {torch.version.cuda}")
    if torch.version.cuda is None:
        advice = "for CUDA tensors install a CUDA build of PyTorch"
        return Finding(Status.ABSENT, "gpu", "this build of PyTorch has no CUDA", advice)
    advice = "check the driver with nvidia-smi"
    return Finding(Status.ABSENT, "gpu", "PyTorch finds no CUDA device", advice)


def cupy() -> Finding:
    """CuPy and the NVRTC compiler it brings, which compile and launch CUDA kernels."""
    major = (torch.version.cuda or "12").partition(".")[0]
    extra = f"opgen[cuda{major}]"
    has_gpu = torch.cuda.is_available()
    if importlib.util.find_spec("cupy") is None:
        status = Status.WARNING if has_gpu else Status.ABSENT
        advice = f"pip install '{extra}' to run ops on CUDA tensors"
        return Finding(status, "cupy", "not installed", advice)
    try:
        module = importlib.import_module("cupy")
        nvrtc = ".".join(map(str, importlib.import_module("cupy.cuda.nvrtc").getVersion()))
    except Exception as error:  # whatever a broken installation raises
        advice = f"reinstall it: pip install --force-reinstall '{extra}'"
        return Finding(Status.WARNING, "cupy", f"cannot be used: {error}", advice)
    return Finding(Status.OK, "cupy", f"{module.__version__}, NVRTC {nvrtc}")
