"""What machine code computes with integers of 32 bits and predicates; all else is unknown.

    registers = Registers(constants, special)
    registers.execute(instruction)

The instructions are those of NVIDIA's "CUDA Binary Utilities", section "Instruction Set Reference".
One that is not computed here makes what it sets unknown, so what is known is right.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from opgen.testing.sass import Instruction

_MASK: Final = 2**32 - 1

Value = int | None
"""The 32 bits of a register, unsigned, or one bit of a predicate; None is unknown."""

_REGISTER: Final = re.compile(r"(?P<sign>[-~!]?)(?P<name>U?[RP](?:\d+|Z|T))(?:\.reuse)?")
_CONSTANT: Final = re.compile(r"(?P<sign>[-~]?)c\[0x0\]\[(?P<at>0x[0-9a-f]+|RZ)\]")
_NUMBER: Final = re.compile(r"-?0x[0-9a-f]+")
_COMPARE: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}


@dataclass
class Registers:
    """What is known of registers and predicates.

    `constants` are the words of constant bank 0 by address, `special` such as `SR_TID.X`.
    """

    constants: Mapping[int, int]
    special: Mapping[str, int]
    known: dict[str, Value] = field(default_factory=dict)

    def execute(self, instruction: Instruction) -> None:
        """Set what the instruction sets, to None where that is not computed."""
        holds = self.predicate(instruction.predicate or "PT")
        if holds == 0:
            return
        kind, *parts = instruction.opcode.split(".")
        operands = [each.strip() for each in instruction.operands.split(",")]
        if kind in _WITHOUT_RESULT:
            return
        # The uniform ones, of which there is one for all threads of a warp, are the same.
        compute = _COMPUTE.get(kind) or _COMPUTE.get(kind.removeprefix("U"))
        results = compute(self, parts, operands) if compute is not None else None
        if results is None:
            results = dict.fromkeys(_targets(kind, parts, operands))
        for name, value in results.items():
            if name not in ("RZ", "URZ", "PT", "UPT"):
                self.known[name] = value if holds else None

    def predicate(self, text: str) -> Value:
        """One bit, perhaps negated."""
        match = _REGISTER.fullmatch(text)
        if match is None:
            return None
        value = 1 if match["name"].endswith("T") else self.known.get(match["name"])
        return value if value is None or match["sign"] != "!" else 1 - value

    def word(self, text: str) -> Value:
        """32 bits of a register, a constant or a number."""
        if _NUMBER.fullmatch(text):
            return int(text, 16) & _MASK
        match = _REGISTER.fullmatch(text)
        if match is not None:
            name = match["name"]
            value = 0 if name.endswith("Z") else self.known.get(name)
        else:
            match = _CONSTANT.fullmatch(text)
            if match is None:
                return None
            value = self.constants.get(_address(match["at"]))
        if value is None or not match["sign"]:
            return value
        return (-value if match["sign"] == "-" else ~value) & _MASK

    def words(self, texts: Sequence[str]) -> list[int] | None:
        """All of them, None if one is unknown."""
        found = [self.word(text) for text in texts]
        known = [value for value in found if value is not None]
        return known if len(known) == len(found) else None


def _address(text: str) -> int:
    return 0 if text == "RZ" else int(text, 16)


_WITHOUT_RESULT: Final = frozenset(
    {"STG", "STS", "STL", "ST", "RED", "BSSY", "BSYNC", "BAR", "WARPSYNC", "MEMBAR", "YIELD"}
)


def _targets(kind: str, parts: Sequence[str], operands: Sequence[str]) -> list[str]:
    """What an instruction may set: predicates, a register, as many as are loaded, and carries."""
    found: list[str] = []
    registers: list[str] = []
    for text in operands:
        match = re.fullmatch(r"U?(?P<kind>[RP])(?:\d+|Z|T)", text)
        if match is None or (match["kind"] == "R" and registers):
            break
        (registers if match["kind"] == "R" else found).append(text)
    count = 4 if "128" in parts else 2 if {"64", "WIDE", "U64", "S64"} & {*parts} else 1
    if kind in ("CS2R", "DADD", "DMUL", "DFMA"):
        count = 2
    return [*found, *(_next(name, more) for name in registers for more in range(count))]


def _next(name: str, more: int) -> str:
    """The register that many behind."""
    if more == 0 or name.endswith("Z"):
        return name
    stem = name.rstrip("0123456789")
    return f"{stem}{int(name.removeprefix(stem)) + more}"


Results = dict[str, Value] | None
"""What is set; None where the instruction is not computed."""


def _signed(value: int) -> int:
    return value - 2**32 if value >> 31 else value


def _unsigned(value: int) -> int:
    return value


def _split(operands: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """The register that is set, the predicates that are set beside it, what is read."""
    target, *rest = operands
    carries = []
    while rest and re.fullmatch(r"U?P[T\d]+", rest[0]):
        carries.append(rest.pop(0))
    return target, carries, rest


def _low(
    registers: Registers, operands: Sequence[str], formula: Callable[..., int], count: int
) -> dict[str, Value] | None:
    """The low word of a formula of so many operands; carries are unknown."""
    target, carries, rest = _split(operands)
    values = registers.words(rest[:count])
    result = None if values is None else formula(*values) & _MASK
    return {target: result, **dict.fromkeys(carries)}


def _imad(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    if "X" in parts:
        return None
    values, sign = registers.words(operands[1:4]), _unsigned if "U32" in parts else _signed
    adds = operands[3] not in ("RZ", "URZ")  # a pair of registers, where the product is wide
    target, result = operands[0], dict[str, Value]()
    product = None if values is None else sign(values[0]) * sign(values[1])
    if "HI" in parts:
        return None if adds or product is None else {target: product >> 32 & _MASK}
    if "WIDE" in parts:
        result[_next(target, 1)] = None if adds or product is None else product >> 32 & _MASK
    result[target] = None if product is None or values is None else (product + values[2]) & _MASK
    return result


def _iadd3(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    return None if "X" in parts else _low(registers, operands, lambda a, b, c: a + b + c, 3)


def _lea(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    if "X" in parts:
        return None
    if "HI" not in parts:
        return _low(registers, operands, lambda a, b, shift: (a << shift) + b, 3)
    if "SX32" in parts:
        return _low(registers, operands, lambda a, b, shift: (_signed(a) << shift >> 32) + b, 3)
    return _low(registers, operands, lambda a, b, c, shift: ((c << 32 | a) << shift >> 32) + b, 4)


def _shf(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    match parts:
        case ["R", "S32", "HI"]:
            return _low(registers, operands, lambda low, shift, high: _signed(high) >> shift, 3)
        case ["R", "U32", "HI"]:
            return _low(registers, operands, lambda low, shift, high: high >> shift, 3)
        case ["L", "U32"]:
            return _low(registers, operands, lambda low, shift, high: low << shift, 3)
        case _:
            return None


def _move(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    return {operands[0]: registers.word(operands[1])}


def _special_register(
    registers: Registers, parts: Sequence[str], operands: Sequence[str]
) -> Results:
    value = registers.special.get(operands[1])
    found: dict[str, Value] = {operands[0]: value}
    if operands[1] == "SRZ" and "32" not in parts:
        found[_next(operands[0], 1)] = value
    return found


def _load_constant(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    match = _CONSTANT.fullmatch(operands[1])
    if match is None or not {*parts} <= {"64"}:
        return None
    at = _address(match["at"])
    return {
        _next(operands[0], more): registers.constants.get(at + 4 * more)
        for more in range(2 if "64" in parts else 1)
    }


def _isetp(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    if "EX" in parts:
        return None
    compare, *_, join = parts
    values = registers.words(operands[2:4])
    other = registers.predicate(operands[4])
    if values is None:
        return {operands[0]: None, operands[1]: None}
    first, second = values if "U32" in parts else map(_signed, values)
    holds = int(_COMPARE[compare](first, second))
    return {
        operands[0]: _joined(join, holds, other),
        operands[1]: _joined(join, 1 - holds, other),
    }


def _joined(join: str, first: int, second: Value) -> Value:
    """`first AND second` and the like; known where the first one decides."""
    if join == "AND":
        return 0 if first == 0 else second
    if join == "OR":
        return 1 if first == 1 else second
    return None if second is None else first ^ second


def _lop3(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    predicate = operands[0] if re.fullmatch(r"U?P[T\d]+", operands[0]) else None
    target, *rest = operands[1:] if predicate else operands
    values = registers.words(rest[:3])
    table = int(rest[3], 16)
    result = None
    if values is not None:
        result = _looked_up(table, *values)
    found: dict[str, Value] = {target: result}
    if predicate is not None:
        found[predicate] = None if result is None else int(result != 0)
    return found


def _looked_up(table: int, first: int, second: int, third: int) -> int:
    """The function of three bits with that table, for all bits of three words."""
    result = 0
    for row in range(8):
        if table >> row & 1:
            terms = zip((first, second, third), (4, 2, 1), strict=True)
            chosen = _MASK
            for word, bit in terms:
                chosen &= word if row & bit else ~word
            result |= chosen
    return result & _MASK


def _plop3(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    bits = [registers.predicate(text) for text in operands[2:5]]
    known = [bit for bit in bits if bit is not None]
    if len(known) < 3:
        return {operands[0]: None, operands[1]: None}
    return {
        target: _looked_up(int(table, 16), *known) & 1
        for target, table in zip(operands[:2], operands[5:7], strict=True)
    }


def _select(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    holds = registers.predicate(operands[3])
    return {operands[0]: None if holds is None else registers.word(operands[1 if holds else 2])}


def _least(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    return {operands[0]: _extreme(registers, parts, registers.words(operands[1:3]), operands[3])}


def _sum_least(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    values = registers.words(operands[1:4])
    pair = None if values is None else [(values[0] + values[1]) & _MASK, values[2]]
    return {operands[0]: _extreme(registers, parts, pair, operands[4])}


def _extreme(
    registers: Registers, parts: Sequence[str], values: list[int] | None, way: str
) -> Value:
    """The least of two where the predicate holds, else the greatest; RELU: 0 if negative."""
    is_least = registers.predicate(way)
    if values is None or is_least is None:
        return None
    ordered = sorted(values, key=None if "U32" in parts else _signed)
    found = ordered[0 if is_least else 1]
    return 0 if "RELU" in parts and _signed(found) < 0 else found


def _add(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    return _low(registers, operands, lambda a, b: a + b, 2)


def _halves(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    """A constant as two halves, which is how some registers are set."""
    target, *factors, high, low = operands
    if factors != ["-RZ", "RZ"]:
        return None
    try:
        word = int.from_bytes(struct.pack("<ee", float(low), float(high)), "little")
    except ValueError:  # what is added is no constant
        return None
    return {target: word}


def _predicates(registers: Registers, parts: Sequence[str], operands: Sequence[str]) -> Results:
    """The bits of predicates where the mask has a 1, else those of a register."""
    target, source, other, mask = operands
    given, chosen = registers.words([other, mask]) or (None, None)
    bits = [registers.predicate(f"P{number}") for number in range(7)]
    if source != "PR" or parts or given is None or chosen is None:
        return None
    if any(bit is None and chosen >> number & 1 for number, bit in enumerate(bits)):
        return {target: None}
    word = sum((bit or 0) << number for number, bit in enumerate(bits))
    return {target: word & chosen | given & ~chosen}


_COMPUTE: Final[Mapping[str, Callable[[Registers, Sequence[str], Sequence[str]], Results]]] = {
    "IMAD": _imad,
    "IADD3": _iadd3,
    "VIADD": _add,
    "LEA": _lea,
    "SHF": _shf,
    "MOV": _move,
    "R2UR": _move,
    "S2R": _special_register,
    "S2UR": _special_register,
    "CS2R": _special_register,
    "LDC": _load_constant,
    "ULDC": _load_constant,
    "ISETP": _isetp,
    "LOP3": _lop3,
    "HFMA2": _halves,
    "P2R": _predicates,
    "PLOP3": _plop3,
    "SEL": _select,
    "VIMNMX": _least,
    "VIADDMNMX": _sum_least,
}
