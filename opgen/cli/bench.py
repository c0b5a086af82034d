"""`opgen bench`: the rows of the benchmark, or an op of one's own, beside what else there is."""

from __future__ import annotations

import argparse
from pathlib import Path

from opgen.cli import arguments

DESCRIPTION = """\
Times ops of opgen beside the formulations of PyTorch's users, the best eager ones known, and the
limit of the machine, call by call in turn in one process. All must agree before they are timed.
With SPEC an op of your own is measured the same way.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench", help="time ops beside what else there is", description=DESCRIPTION
    )
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC", help="an op of your own")
    rows = parser.add_argument_group("the rows of the benchmark")
    rows.add_argument("--rows", default="", metavar="PATTERN", help="those whose name has this")
    rows.add_argument("--list", action="store_true", help="print their names")
    rows.add_argument("--quick", action="store_true", help="some of them, within two minutes")
    rows.add_argument(
        "--compile",
        action="append",
        metavar="PATTERN",
        help="rows in which torch.compile takes part",
    )
    rows.add_argument("--tiny", action="store_true", help="try the runner: times mean nothing")
    rows.add_argument("--apart", action="store_true", help="each in a process of its own")
    mine = parser.add_argument_group("an op of your own")
    mine.add_argument("--op", help="which one, if the spec has several")
    arguments.add_to(mine)
    mine.add_argument(
        "--against", action="append", default=[], metavar="MODULE:FUNCTION", help="called alike"
    )
    mine.add_argument("--channels-last", action="store_true")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--forward", action="store_true", help="without gradients")
    only.add_argument("--backward", action="store_true", help="gradients only")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="in all (45, or 1.7 with --quick)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="with 1 processor time is measured"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="the GPU where there is one")
    parser.add_argument(
        "--tf32", action="store_true", help="products of float32 in TF32 on a GPU, opgen's too"
    )
    parser.add_argument("--growth", action="store_true", help="rows at three sizes, and memory")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="write a picture (SVG)")
    parser.add_argument(
        "--write-readme",
        type=Path,
        nargs="?",
        const=Path("benchmarks/README.md"),
        metavar="PATH",
        help="put the tables into a file (benchmarks/README.md)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """0 if all contenders agreed, 1 if not, 2 for a call that cannot be measured."""
    from opgen.cli import bench_run

    return bench_run.run(options)
