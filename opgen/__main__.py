"""The command line: `opgen check | show | grad | fmt | build`, and the commands of `opgen.cli`.

Exit status: 0 for success, 1 where a spec was refused (or `fmt --check` would change one), 2 for a
wrong call. Results go to standard output, diagnostics to standard error.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from opgen import compiler, library
from opgen.cli import bench, console, cost, doctor, new, support, test
from opgen.derivation import gradient_text
from opgen.errors import NotTextError, OpgenError
from opgen.lang.format import format_source
from opgen.runtime.toolchain import BuildError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return _told(lambda: run(options))
    except KeyboardInterrupt:
        return 130  # as a shell reports a program that was interrupted
    except BrokenPipeError:
        return 1


def _told(work: Callable[[], int]) -> int:
    """The exit status of some work, with its error on standard error."""
    try:
        return work()
    except BrokenPipeError:
        raise  # nobody reads on, whatever else there is to say
    except OpgenError as error:
        console.errors().print(console.diagnostics(error))
        return 1
    except BuildError as error:
        print(f"opgen: {error}", file=sys.stderr)
        return 1
    except NotTextError as error:
        print(f"opgen: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"opgen: {error.strerror}: {error.filename}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="opgen", description="Strided tensor ops for PyTorch from index notation."
    )
    parser.add_argument("--version", action="version", version=f"opgen {version('opgen')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="prove specs, or say what is wrong with them")
    check.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    check.set_defaults(run=_check)

    show = commands.add_parser("show", help="print one stage of the compilation of a spec")
    show.add_argument("spec", type=Path, metavar="SPEC")
    show.add_argument(
        "--stage",
        type=_stage,
        choices=compiler.STAGES,
        default="notation",
        help="which one (notation); cpu is another name for c",
    )
    show.set_defaults(run=_show)

    gradient = commands.add_parser("grad", help="print the derived gradients as specs")
    gradient.add_argument("spec", type=Path, metavar="SPEC")
    gradient.add_argument("--op", help="only the gradients of this op")
    gradient.add_argument(
        "--order",
        type=int,
        default=1,
        choices=(1, 2),
        help="with 2 the gradients of the gradients, too (1)",
    )
    gradient.set_defaults(run=_gradient)

    format_ = commands.add_parser("fmt", help="rewrite specs in the one canonical layout")
    format_.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    format_.add_argument("--check", action="store_true", help="change nothing; exit 1 if it would")
    format_.set_defaults(run=_format)

    build = commands.add_parser("build", help="write the Python module of a spec")
    build.add_argument("spec", type=Path, metavar="SPEC")
    build.add_argument("-o", "--output", type=Path, default=Path("generated"), metavar="DIR")
    build.add_argument(
        "--vendor",
        action="store_true",
        help="copy the runtime beside it: it then needs torch alone",
    )
    build.add_argument(
        "--library",
        action="store_true",
        help="compile libNAME.so beside it: the ops for programs without Python",
    )
    build.add_argument(
        "--certify",
        action="store_true",
        help="run the property tests of `opgen test` first, and state them in the module",
    )
    build.add_argument(
        "--examples", type=test.positive, default=100, metavar="N", help="calls for each property"
    )
    build.set_defaults(run=_build)

    for command in (new, test, support, bench, cost, doctor):
        command.add_to(commands)
    return parser


def _stage(name: str) -> str:
    """The name of a stage; `cpu` is another one for that of the CPU kernels."""
    return "c" if name == "cpu" else name


def _each(paths: Sequence[Path], work: Callable[[Path], int]) -> int:
    """Work on every file, also after one was refused or cannot be read: the worst exit status."""
    return max(_told(functools.partial(work, path)) for path in paths)


def _check(options: argparse.Namespace) -> int:
    def check(path: Path) -> int:
        source = compiler.read_source(path)
        ops = compiler.check_source(source)
        print(f"{source.name}: {', '.join(op.name for op in ops)}")
        return 0

    return _each(options.specs, check)


def _show(options: argparse.Namespace) -> int:
    source = compiler.read_source(options.spec)
    print(compiler.stage_text(source, options.stage), end="")
    return 0


def _gradient(options: argparse.Namespace) -> int:
    source = compiler.read_source(options.spec)
    ops = compiler.check_source(source)
    if options.op is not None and options.op not in [op.name for op in ops]:
        names = ", ".join(op.name for op in ops)
        print(f"opgen: {source.name} defines no op '{options.op}', only {names}", file=sys.stderr)
        return 2
    chosen = [op for op in ops if options.op in (None, op.name)]
    print(gradient_text(chosen, ops, options.order), end="")
    return 0


def _format(options: argparse.Namespace) -> int:
    def rewrite(path: Path) -> int:
        source = compiler.read_source(path)
        text = format_source(source)
        if text == source.text:
            return 0
        if options.check:
            print(f"{path}: would be changed", file=sys.stderr)
            return 1
        path.write_text(text, encoding="utf-8")
        print(path)
        return 0

    return _each(options.specs, rewrite)


def _build(options: argparse.Namespace) -> int:
    trials = None
    if options.certify:
        trials = test.certified(options.spec, options.examples)
        if trials is None:
            return 1
    print(compiler.build(options.spec, options.output, trials, vendor=options.vendor))
    if options.library:
        print(library.build_library(options.spec, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
