"""The machine code of compiled kernels: what a thread loads, stores and executes.

NVIDIA's disassembler comes from the package nvidia-cuda-nvdisasm; it needs neither GPU nor driver.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opgen.testing.nvrtc import NvrtcError, packaged


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `opcode` with its modifiers, such as `LDG.E.128.CONSTANT`."""

    predicate: str
    opcode: str
    operands: str


@dataclass(frozen=True, slots=True)
class Code:
    """The instructions of a kernel, those that only fill up left out.

    `labels` are the places that branches go to: the position of the instruction that follows.
    """

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]

    def count(self, kind: str) -> int:
        """How many instructions there are of a kind such as `FFMA`."""
        return sum(each.opcode.partition(".")[0] == kind for each in self.instructions)

    def widths(self, kind: str) -> Counter[int]:
        """The bytes of each access of a kind such as `LDG`, with how often each occurs."""
        return Counter(
            width(each.opcode)
            for each in self.instructions
            if each.opcode.partition(".")[0] == kind
        )

    @property
    def uses_local_memory(self) -> bool:
        """Whether a thread keeps anything in memory of its own."""
        return bool(self.count("LDL") + self.count("STL"))


_SECTION: Final = re.compile(r"^\s*\.section\s+\.text\.(\w+),", re.MULTILINE)
_LINE: Final = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+(?:@(?P<predicate>!?U?P\w+)\s+)?(?P<opcode>[A-Z][^\s;]*)\s*(?P<rest>[^;]*);"
)
_LABEL: Final = re.compile(r"^(?P<label>\.L_x_\d+):", re.MULTILINE)
_WIDTHS: Final[Mapping[str, int]] = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def width(opcode: str) -> int:
    """The bytes of one access; 4 unless a modifier says otherwise."""
    return next((_WIDTHS[part] for part in opcode.split(".") if part in _WIDTHS), 4)


def disassemble(cubin: bytes) -> dict[str, Code]:
    """The kernels of a compiled module by name; NvrtcError if it is not understood."""
    tool = packaged("bin/nvdisasm")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kernels.cubin"
        file.write_bytes(cubin)
        command = [str(tool), "-c", str(file)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise NvrtcError(f"nvdisasm: {result.stderr.strip()}")
    _, *parts = _SECTION.split(result.stdout)
    found = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        found[name] = _code(name, text)
    if not found:
        raise NvrtcError("there is no kernel in what was disassembled")
    return found


def _code(name: str, text: str) -> Code:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label, match = _LABEL.match(line), _LINE.search(line)
        if label is not None:
            labels[label["label"]] = len(instructions)
        elif match is not None and match["opcode"] != "NOP":
            predicate, rest = match["predicate"] or "", match["rest"].strip()
            instructions.append(Instruction(predicate, match["opcode"], rest))
    if not instructions:
        raise NvrtcError(f"the machine code of {name} is not understood:\n{text[:500]}")
    return Code(name, tuple(instructions), labels)
