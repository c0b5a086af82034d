"""GPUs as the few numbers that limit a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a whole GPU, in units a second.

    `bandwidth` is what a copy reaches, bytes read and written together; `instructions` counts those
    of threads, of which a kernel reaches the share `issue`. `tensor_multiply_adds` are those of
    tensor cores on 16 bits that `mma.sync` reaches; on TF32 it is half as many.
    """

    name: str
    bandwidth: float
    multiprocessors: int
    clock: float
    launch: float
    tensor_multiply_adds: float
    issue: float = 0.85

    @property
    def instructions(self) -> float:
        """Instructions of threads: four schedulers of 32 lanes in each multiprocessor."""
        return self.multiprocessors * 128 * self.clock

    @property
    def multiply_adds(self) -> float:
        """Fused multiply-adds of 32-bit numbers; as many as there are instructions."""
        return self.instructions


MACHINES: Final[Mapping[str, Machine]] = {
    # The copy bandwidth and the clock of the H200 are measured, the other two are data sheets' at
    # 90 % of the memory's peak. Tensor cores are data sheets', of which newer GPUs reach about 62 %
    # by this instruction.
    "h200": Machine("NVIDIA H200", 4.3e12, 132, 1.98e9, 3e-6, 3.0e14),
    "h100": Machine("NVIDIA H100 SXM", 3.0e12, 132, 1.98e9, 3e-6, 3.0e14),
    "a100": Machine("NVIDIA A100 80GB", 1.8e12, 108, 1.41e9, 3e-6, 1.56e14),
}
"""Machines by the name that `--arch` takes."""
