"""Instructions to lines of the kernel's source, by addr2line."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from opgen.testing.cuda_on_cpu.compiler import EmulatorError

_RECORD = re.compile(r"(?m)^0x[0-9a-f]+\n")
_FRAME = re.compile(r"kernel\.cu:(\d+)")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of `kernel.cu`, 0 if it is not known, and the lines from which it was inlined."""

    line: int
    callers: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.line == 0:
            return "an unknown line of kernel.cu"
        inlined = "".join(f", called at kernel.cu:{line}" for line in self.callers)
        return f"kernel.cu:{self.line}{inlined}"


def places(library: str, return_addresses: Iterable[int]) -> dict[int, Place]:
    """The place of every call, given the address that follows it."""
    wanted = sorted(set(return_addresses))
    if not wanted:
        return {}
    program = shutil.which("addr2line")
    if program is None:
        raise EmulatorError("addr2line, which comes with g++ (package binutils), is not installed")
    found: dict[int, Place] = {}
    for start in range(0, len(wanted), 512):
        some = wanted[start : start + 512]
        command = [program, "-a", "-i", "-e", library, *(hex(max(each - 1, 0)) for each in some)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for address, record in zip(some, _RECORD.split(said)[1:], strict=True):
            # Innermost first; frames of the shim's own headers are left out.
            lines = [int(line) for line in _FRAME.findall(record)]
            found[address] = Place(lines[0], tuple(lines[1:])) if lines else Place(0)
    return found
