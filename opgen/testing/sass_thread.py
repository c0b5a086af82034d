"""What one thread executes of a kernel's machine code, without a GPU.

    for instruction in executed(code, launch, block=(0, 3, 1), thread=(7, 0, 0)): ...

A static count knows neither how often loops run nor which branches the inside of a tensor takes.
Here one thread is followed from its block, its number in it and the arguments of the launch. Only
integers of 32 bits and predicates are computed, since nothing else decides where a kernel with
32-bit indices goes: what is loaded, floating-point numbers and the upper halves of addresses are
unknown, and a branch that depends on them is an error.
"""

from __future__ import annotations

import re
from typing import Final

from opgen.runtime.cuda import KernelLaunch
from opgen.testing.nvrtc import NvrtcError
from opgen.testing.sass import Code, Instruction
from opgen.testing.sass_registers import Registers

_FIRST_ARGUMENT: Final = 0x210
"""Where the arguments of a kernel begin in constant bank 0, for sm_90."""
_MOST: Final = 100_000
"""The most instructions of a thread."""

Place = tuple[int, int, int]


def executed(code: Code, launch: KernelLaunch, block: Place, thread: Place) -> list[Instruction]:
    """The instructions that a thread of a block issues, in order; predicated ones count.

    NvrtcError where the way depends on something that is not computed, or has no end.
    """
    registers = Registers(_constants(launch), _special(block, thread))
    found: list[Instruction] = []
    at = 0
    while at < len(code.instructions):
        instruction = code.instructions[at]
        found.append(instruction)
        if len(found) > _MOST:
            raise NvrtcError(f"{code.name}: a thread executes more than {_MOST} instructions")
        at += 1
        kind = instruction.opcode.partition(".")[0]
        if kind in _JUMPS:
            jump = _jump(code, instruction, registers)
            if jump == _END:
                return found
            at = at if jump is None else jump
        else:
            registers.execute(instruction)
    return found


_JUMPS: Final = frozenset({"BRA", "EXIT", "CALL", "RET", "BRX", "JMP", "JMX", "BREAK"})
_END: Final = -1


def _jump(code: Code, instruction: Instruction, registers: Registers) -> int | None:
    """Where it goes on: at another instruction, nowhere (_END), or with the next one (None)."""
    kind, *parts = instruction.opcode.split(".")
    *conditions, target = instruction.operands.split(",")
    if "DIV" in parts:
        return None  # where the threads of a warp part
    tests = [
        registers.predicate(text.strip()) for text in (instruction.predicate or "PT", *conditions)
    ]
    if (0 not in tests and None in tests) or kind not in ("BRA", "EXIT"):
        text = f"{instruction.predicate} {instruction.opcode} {instruction.operands}".strip()
        raise NvrtcError(f"{code.name}: it is not known where {text} goes")
    if 0 in tests:
        return None
    if kind == "EXIT":
        return _END
    label = re.search(r"\.L_x_\d+", target)
    if label is None or label[0] not in code.labels:
        raise NvrtcError(f"{code.name}: there is no place {target.strip()}")
    return code.labels[label[0]]


def _constants(launch: KernelLaunch) -> dict[int, int]:
    """The words of constant bank 0: sizes of blocks and grid, arguments."""
    found = {4 * at: size for at, size in enumerate((*launch.threads, *launch.blocks))}
    for number, argument in enumerate(launch.arguments):
        if isinstance(argument, int):
            found[_FIRST_ARGUMENT + 8 * number] = argument % 2**32
            found[_FIRST_ARGUMENT + 8 * number + 4] = (argument >> 32) % 2**32
    return found


def _special(block: Place, thread: Place) -> dict[str, int]:
    found = {"SRZ": 0}
    for letter, at, number in zip("XYZ", block, thread, strict=True):
        found |= {f"SR_CTAID.{letter}": at, f"SR_TID.{letter}": number}
    return found
