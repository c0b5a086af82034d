"""Programs, each in a process of its own that begins with PyTorch and opgen loaded.

To load them takes longer than most programs of tests do. One process loads them, and calls nothing
of them; each program runs in a child of it, and ends as a program does. What is loaded, and when,
is tested in new processes.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

_SERVER = """
import os, sys, threading, torch, opgen, opgen.on_demand
for line in sys.stdin:
    program, arguments, environment = eval(line)
    assert threading.active_count() == 1
    if not os.fork():
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        exec(program, {"__name__": "__main__"})
        break
    _, status = os.wait()
    print(end=f"\\0{os.waitstatus_to_exitcode(status)}\\n", flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    """It ends when nobody can ask it any more."""
    return subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parent.parent,
    )


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a program prints, in both its streams, and the status with which it ends."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(f"{(program, arguments, {**os.environ, **environment})!r}\n")
    server.stdin.flush()
    said = ""
    while not said.endswith("\0"):
        more = server.stdout.read(1)
        assert more, said
        said += more
    return subprocess.CompletedProcess(program, int(server.stdout.readline()), said[:-1])


def within(place: Path, program: str) -> str:
    """A program that begins in a directory, whose modules it can import."""
    return (
        f"import os, sys\nos.chdir({str(place)!r})\nsys.path.insert(0, {str(place)!r})\n{program}"
    )


def printed(program: str, *arguments: str, **environment: str) -> str:
    """What a program prints that ends well."""
    done = run(program, *arguments, **environment)
    assert done.returncode == 0, done.stdout
    return done.stdout
