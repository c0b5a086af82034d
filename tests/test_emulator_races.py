"""Races by random programs: the emulator says that there is one exactly where the definition does.

Threads run programs from a table: at each step all wait at a barrier, all warps at one of their
own, or each reads or writes a cell, or does nothing. Two accesses of one cell by different threads
race if one is a write and nothing orders them: no barrier of the block between their steps, nor one
of the warp if they are of one warp. Blocks are never ordered.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opgen.testing.cuda_on_cpu import FindingKind, Kernel, RawKernel
from opgen.testing.cuda_on_cpu.launch import Order

THREADS, CELLS, WARP = 66, 3, 32  # of a block: two whole warps and two threads of a third
NOTHING, READ, WRITE, ATOMIC = range(4)
ACCESSES, WARP_BARRIER, BARRIER = range(3)

SOURCE = r"""
extern "C" __global__ void k(
    const int* kinds, const int* actions, const int* cells, int* memory, int* sums, int steps) {
    PLACE
    int t = threadIdx.x, thread = blockIdx.x * blockDim.x + t, sum = 0;
    START
    for (int step = 0; step < steps; step++) {
        int at = thread * steps + step;
        if (kinds[step] == 2) __syncthreads();
        else if (kinds[step] == 1) __syncwarp();
        else if (actions[at] == 1) sum += place[cells[at]];
        else if (actions[at] == 2) place[cells[at]] = thread;
        else if (actions[at] == 3) atomicAdd(place + cells[at], 1);
    }
    sums[thread] = sum;
}
"""


@cache
def kernel(is_shared: bool) -> Kernel:
    """The interpreter of programs over shared or over global memory."""
    place = "__shared__ int place[3];" if is_shared else "int* place = memory;"
    start = "if (t < 3) place[t] = 0; __syncthreads();" if is_shared else ""
    return RawKernel(SOURCE.replace("PLACE", place).replace("START", start), "k")


@dataclass(frozen=True)
class Program:
    """What every step is, and what threads do in steps of accesses: action and cell."""

    kinds: tuple[int, ...]
    accesses: tuple[tuple[int, int, int, int], ...]
    """Thread of the grid, step, action, cell."""
    blocks: int

    def has_race(self, is_shared: bool) -> bool:
        """By the definition."""
        return any(self._race(a, b, is_shared) for a, b in itertools.combinations(self.accesses, 2))

    def _race(
        self, a: tuple[int, int, int, int], b: tuple[int, int, int, int], is_shared: bool
    ) -> bool:
        thread, step, action, cell = a
        other, other_step, other_action, other_cell = b
        if thread == other or cell != other_cell or (action, other_action) == (READ, READ):
            return False
        if action == other_action == ATOMIC:
            return False
        if thread // THREADS != other // THREADS:
            return not is_shared
        between = self.kinds[min(step, other_step) : max(step, other_step)]
        same_warp = thread % THREADS // WARP == other % THREADS // WARP
        return BARRIER not in between and not (same_warp and WARP_BARRIER in between)

    def finds_race(self, is_shared: bool, order: Order) -> bool:
        """By the emulator; there must be no other finding."""
        steps, threads = len(self.kinds), THREADS * self.blocks
        actions, cells = (np.zeros((threads, steps), np.int32) for _ in range(2))
        for thread, step, action, cell in self.accesses:
            actions[thread, step], cells[thread, step] = action, cell
        kinds = np.array(self.kinds, np.int32)
        memory, sums = np.zeros(CELLS, np.int32), np.zeros(threads, np.int32)
        report = kernel(is_shared)(
            (self.blocks,), (THREADS,), (kinds, actions, cells, memory, sums, np.int32(steps)),
            order=order, seed=steps,
        )  # fmt: skip
        race = FindingKind.SHARED_RACE if is_shared else FindingKind.GLOBAL_RACE
        assert report.kinds <= {race}
        return bool(report.findings)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Few threads near the borders of warps and blocks access few cells."""
    kinds = draw(st.lists(st.sampled_from((ACCESSES, ACCESSES, 1, 2)), min_size=1, max_size=7))
    blocks = draw(st.sampled_from((1, 1, 2)))
    last = THREADS * blocks - 1
    threads = st.sampled_from([t for t in (0, 1, 31, 32, 33, 64, 65, 66, 97, 131) if t <= last])
    steps = [step for step, kind in enumerate(kinds) if kind == ACCESSES]
    if not steps:
        return Program(tuple(kinds), (), blocks)
    accesses = draw(
        st.lists(
            st.tuples(
                threads,
                st.sampled_from(steps),
                st.sampled_from((READ, READ, WRITE, ATOMIC)),
                st.integers(0, CELLS - 1),
            ),
            max_size=10,
            unique_by=lambda access: access[:2],
        )
    )
    return Program(tuple(kinds), tuple(accesses), blocks)


ORDERS = st.sampled_from(("forward", "reverse", "random"))
HIDDEN_READER = Program((0, 0), ((0, 0, READ, 0), (1, 0, READ, 0), (1, 1, WRITE, 0)), 1)
READ_THEN_ATOMIC = Program((0, 0), ((0, 0, READ, 0), (0, 1, ATOMIC, 0), (1, 0, ATOMIC, 0)), 1)
ORDERED = Program((0, 1, 0), ((0, 0, READ, 0), (1, 0, READ, 0), (1, 2, WRITE, 0)), 1)


@example(program=HIDDEN_READER, is_shared=True, order="forward")
@example(program=HIDDEN_READER, is_shared=False, order="forward")
@example(program=READ_THEN_ATOMIC, is_shared=True, order="forward")
@example(program=READ_THEN_ATOMIC, is_shared=False, order="forward")
@example(program=ORDERED, is_shared=True, order="forward")
@example(program=ORDERED, is_shared=False, order="forward")
@settings(max_examples=100)
@given(program=programs(), is_shared=st.booleans(), order=ORDERS)
def test_a_race_is_found_exactly_where_there_is_one(
    program: Program, is_shared: bool, order: Order
) -> None:
    assert program.finds_race(is_shared, order) == program.has_race(is_shared)


def test_both_answers_are_met() -> None:
    """The examples of the test above are of both kinds."""
    assert HIDDEN_READER.has_race(True) and HIDDEN_READER.has_race(False)
    assert not ORDERED.has_race(True) and not ORDERED.has_race(False)
