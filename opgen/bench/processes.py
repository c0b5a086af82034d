"""Rows measured each in a process of its own: what a program of that row alone would see.

What earlier rows left decides whether the C library has memory for a result or asks the system for
new pages, and both states are there in programs. After a hundred other rows most memory is there,
and kernels are what is compared: depthwise 5x5 with padding 4 was at 0.9. Alone, new pages are most
of the time, and whose results meet them is much of the ratio: the same row was at 2.1, ten layers
of depthwise convolutions at 0.7 in place of 1.6. So all rows share one process unless it is asked
otherwise, which also takes half the time.

A row that crashes ends nothing but itself. The processes are forked from one that has loaded
PyTorch and has no threads yet.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Concatenate, Final, ParamSpec, TypeVar

import torch

from opgen.bench.faults import BenchError
from opgen.bench.measure import Result, measure
from opgen.bench.row import Row, Shape, Workload, text
from opgen.bench.rows import every_row

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")

_CLEAN: Final = "forkserver"
_ANYWHERE: Final = "spawn"


def _context() -> BaseContext:
    """How processes begin: forked from one that loads this module once, where the system can."""
    if _CLEAN not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context(_ANYWHERE)
    context = multiprocessing.get_context(_CLEAN)
    context.set_forkserver_preload([__name__])
    return context


def in_its_own(
    function: Callable[_Given, _Found], *arguments: _Given.args, **named: _Given.kwargs
) -> _Found:
    """What a function gives in a new process with as many threads, which ends after it.

    Function, arguments and result must be such as can be pickled. Raises what it raises, and
    BenchError if the process dies.
    """
    threads = torch.get_num_threads()
    with ProcessPoolExecutor(
        1, mp_context=_context(), initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        try:
            return pool.submit(function, *arguments, **named).result()
        except BrokenProcessPool as error:
            raise BenchError("its process died: killed, or it crashed") from error


def _alone(
    measured: Callable[Concatenate[Row, _Given], Result],
) -> Callable[Concatenate[Row, _Given], Result]:
    """What measures a row of the benchmark, in a process of its own.

    Raises what it does, and BenchError if the process dies.
    """

    def alone(row: Row, /, *arguments: _Given.args, **named: _Given.kwargs) -> Result:
        found = in_its_own(functools.partial(_found, measured, row.name, *arguments, **named))
        return dataclasses.replace(found, row=row)

    return alone


def _found(
    measured: Callable[Concatenate[Row, _Given], Result],
    name: str,
    *arguments: _Given.args,
    **named: _Given.kwargs,
) -> Result:
    """The result of the row with a name, whose `make` cannot be pickled and stays here."""
    row = next(row for row in every_row() if row.name == name)
    found = measured(row, *arguments, **named)
    return dataclasses.replace(found, row=dataclasses.replace(row, make=_left_behind))


def _left_behind(shape: Shape, device: torch.device) -> Workload:
    """What a row that came from another process has for its `make`."""
    raise AssertionError(f"a row at {text(shape)} on {device} is made from its name")


measure_alone = _alone(measure)
