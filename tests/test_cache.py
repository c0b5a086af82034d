"""Compiled kernels on disk: many processes, killed compilers, damage, full disks, other hosts."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import opgen
from opgen.runtime import build, cache, toolchain

SOURCE = "int answer(void) { return 42; }\n"
ENTRY = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.so")
FOLDERS = [f"{number:02x}" for number in range(256)]
ROOT = Path(opgen.__file__).parent.parent


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory, which does not exist yet."""
    monkeypatch.delenv("OPGEN_CACHE", raising=False)
    monkeypatch.delenv("OPGEN_CC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "opgen"


def answer(number: int = 42) -> int:
    """Build a library, or find it, and ask it."""
    found: int = build.library(SOURCE.replace("42", str(number))).answer()
    return found


def entries(place: Path) -> list[Path]:
    return sorted(path for path in files(place) if ENTRY.fullmatch(path.name))


def files(place: Path) -> list[Path]:
    """All that is in the cache but the folders of its entries."""
    names = sorted(path for path in place.iterdir() if path.name not in FOLDERS)
    return names + sorted(path for name in FOLDERS for path in (place / name).glob("*"))


def compiler(tmp_path: Path, text: str) -> str:
    """A program in place of the compiler; `$@` are the arguments."""
    program = tmp_path / "compiler"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(program)


# ---------------------------------------------------------------------------- many at once
PROGRAM = """
import os, sys, torch, opgen, opgen.on_demand
parent = os.getpid()
children = [os.fork() for _ in range(int(sys.argv[1])) if os.getpid() == parent]
if os.getpid() == parent:
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
ops = opgen.compile("op square(x[N]) -> y[N]\\n  y[n] = x[n]*x[n]\\n")
print("ready", flush=True)
os.read(0, 1)
x = torch.arange(3.0, requires_grad=True)
y = ops.square(x)
y.sum().backward()
print(y.tolist(), x.grad.tolist())
"""


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_build_the_same_op_at_the_same_time(count: int, place: Path) -> None:
    workers = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(count)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert workers.stdout is not None
    for _ in range(count):
        assert workers.stdout.readline() == "ready\n"
    # Nobody begins before everybody is ready.
    assert workers.communicate("." * count)[0] == "[0.0, 1.0, 4.0] [0.0, 2.0, 4.0]\n" * count
    assert workers.returncode == 0
    keys = [path.name.split("-")[0] for path in entries(place)]
    assert len(keys) == 3  # the op, its gradient, the table of eager calls
    sources = sorted(place.glob("*/*.py"))
    assert len(sources) == 2  # the module, and that of the gradient
    codes = list(place.glob("*/*.pyc"))
    assert len(codes) == 2  # what Python compiles these to
    answers = list(place.glob("*/*.txt"))
    assert len(answers) == 1  # of the compiler
    assert sorted(files(place)) == sorted([*entries(place), *sources, *codes, *answers])


def test_a_killed_compile_leaves_no_entry(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = compiler(
        tmp_path, 'gcc "$@"; case "$*" in *op.c*) echo > "$TMPDIR/mark"; sleep 60;; esac'
    )
    program = f"from opgen.runtime import build\nbuild.library({SOURCE!r})\n"
    worker = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OPGEN_CC": slow},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (place.exists() and list(place.glob("*/mark"))):
        assert time.monotonic() < deadline
        assert worker.poll() is None
        time.sleep(0.02)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    (left,) = files(place)
    assert left.is_dir()
    assert not entries(place)
    assert answer() == 42
    assert left.exists()  # another process may be at work in it
    hours_ago = time.time() - 2 * 3600
    os.utime(left, (hours_ago, hours_ago))
    assert answer(43) == 43
    assert left.exists()  # this process has looked already
    monkeypatch.setattr(cache, "_added", {})  # as in another one
    assert answer(44) == 44
    assert not left.exists()
    assert len(entries(place)) == 3


# ---------------------------------------------------------------------------- damage
DAMAGES = (
    "empty",
    "truncated",
    "altered",
    "directory",
    "unreadable",
    "dangling link",
    "no library",
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_again(place: Path, damage: str) -> None:
    assert answer() == 42
    (entry,) = entries(place)
    content = entry.read_bytes()
    entry.unlink()  # the old one is mapped into this process
    match damage:
        case "empty":
            entry.touch()
        case "truncated":
            entry.write_bytes(content[:-100])
        case "altered":
            at = content.index(b"answer")
            entry.write_bytes(content[:at] + b"answfr" + content[at + 6 :])
        case "directory":
            (entry / "inside").mkdir(parents=True)
        case "unreadable":
            entry.write_bytes(content)
            entry.chmod(0)
        case "link":
            (place.parent / "elsewhere").write_bytes(content)
            entry.symlink_to(place.parent / "elsewhere")
        case "open to others":
            entry.write_bytes(content)
            entry.chmod(0o722)
        case "dangling link":
            entry.symlink_to(place / "nowhere")
        case "no library":  # its name is right, and still it cannot be loaded
            digest = "e3b0c44298fc1c149afbf4c8996fb924"  # of nothing
            (entry.parent / f"{entry.name.split('-')[0]}-{digest}.so").touch()
    assert answer() == 42
    (repaired,) = entries(place)
    assert repaired.read_bytes() == content
    assert not repaired.lstat().st_mode & 0o022
    assert files(place) == [repaired]


def test_entries_of_a_directory_that_was_open_are_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may have put files there, under names that anybody can compute."""
    assert answer() == 42
    (entry,) = entries(place)
    before = entry.stat().st_ino
    status = os.lstat(entry)
    real = Path.lstat
    stranger = os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))
    monkeypatch.setattr(Path, "lstat", lambda path: stranger if path == entry else real(path))
    place.chmod(0o777)
    assert answer() == 42
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert entry.stat().st_ino != before


def test_a_folder_of_somebody_else_is_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has it open may change what is in it, also while the directory is private again."""
    cache._made.cache_clear()  # another test may have compiled the same in this process
    assert answer() == 42
    (entry,) = entries(place)
    status = entry.parent.stat()
    real = Path.stat
    stranger = os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))

    def told(path: Path, **named: bool) -> os.stat_result:
        return stranger if path == entry.parent else real(path, **named)

    monkeypatch.setattr(Path, "stat", told)
    compiled: list[Path] = []
    compile_it = build._compile
    monkeypatch.setattr(
        build, "_compile", lambda *given: compiled.append(given[2]) or compile_it(*given)
    )
    assert answer() == 42
    assert compiled == [place, cache.private_directory()]
    assert entries(place) == [entry]


def test_entries_that_lie_in_no_folder_count_and_go(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions had no folders."""
    place.mkdir(mode=0o700, parents=True)
    old = place / f"{'0' * 32}-{'1' * 32}.so"
    old.write_bytes(b"\x00" * 2000)
    os.utime(old, (1, 1))
    cache.add_bytes(b"\x00" * 1000, place, "2" * 32, ".c")
    assert old.exists()
    monkeypatch.setattr(cache, "_added", {})
    monkeypatch.setattr(cache, "LARGEST", 2500)
    cache.add_bytes(b"\x00" * 1000, place, "3" * 32, ".c")
    assert not old.exists()
    assert len(files(place)) == 2


def test_a_child_outlives_the_directory_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CACHE", "/dev/null")
    first = cache.private_directory()
    shutil.rmtree(first)
    assert answer() == 42
    assert cache.private_directory() != first


def test_an_entry_is_not_trusted_for_its_name_alone(place: Path) -> None:
    """Negative control: another library under the name of an entry is not loaded."""
    assert answer(1) == 1
    (first,) = entries(place)
    assert answer(2) == 2
    (second,) = set(entries(place)) - {first}
    content = second.read_bytes()
    second.unlink()
    shutil.copy(first, second)
    assert answer(2) == 2
    assert second.read_bytes() == content


# ---------------------------------------------------------------------------- no room
def test_a_full_disk(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = compiler(
        tmp_path,
        f'case "$*" in *{place}*) '
        "echo 'fatal error: error writing to x.o: No space left on device' >&2; exit 1;; esac\n"
        'exec gcc "$@"',
    )
    monkeypatch.setenv("OPGEN_CC", full)
    assert answer() == 42
    assert not files(place)
    assert entries(cache.private_directory())


def test_a_disk_that_is_full_before_the_compiler_starts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("write_text", "write_bytes"):
        real = getattr(Path, way)

        def write(path: Path, *arguments: Any, real: Any = real, **named: Any) -> Any:
            if path.is_relative_to(place):
                raise OSError(28, "No space left on device", str(path))
            return real(path, *arguments, **named)

        monkeypatch.setattr(Path, way, write)
    assert answer(44) == 44
    assert not files(place)


def test_no_room_anywhere_is_an_error(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = compiler(tmp_path, "echo 'x.o: No space left on device' >&2; exit 1")
    monkeypatch.setenv("OPGEN_CC", full)
    with pytest.raises(build.BuildError, match=r"nowhere: .*No space left on device.*opgen"):
        answer()


@pytest.mark.parametrize("home", ["/proc/1/nonexistent", "/dev/null"])
def test_a_home_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.delenv("OPGEN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    assert cache.directory() == cache.private_directory()
    assert answer() == 42


def test_a_disk_that_must_not_hold_programs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ctypes.CDLL

    def load(name: str) -> ctypes.CDLL:
        if name.startswith(str(place)):
            raise OSError(f"{name}: failed to map segment from shared object")
        return real(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert answer(45) == 45


def test_the_directory_of_a_process_goes_with_it(tmp_path: Path) -> None:
    program = (
        "import os\nfrom opgen.runtime import build, cache\n"
        f"build.library({SOURCE!r})\n"
        "child = os.fork()\n"
        "if child == 0: raise SystemExit\n"
        "os.waitpid(child, 0)\n"
        "place = cache.private_directory()\n"
        "print(place, len(list(place.glob('*/*.so'))))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OPGEN_CACHE": "/dev/null"},
        capture_output=True,
        text=True,
        check=True,
    )
    directory, count = result.stdout.split()
    assert count == "1"  # also after the child of the process had ended
    assert not Path(directory).exists()


# ---------------------------------------------------------------------------- growth
def test_what_was_not_used_for_longest_goes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        answer(number)
        (newest,) = (path for path in entries(place) if path.stat().st_mtime > time.time() - 3600)
        age = (10 - number) * 3600
        os.utime(newest, (time.time() - age, time.time() - age))
    size = newest.stat().st_size
    foreign = place / "thesis.so"
    foreign.write_bytes(b"\x00" * 10 * size)
    answer(0)  # the oldest, now used again
    before = entries(place)
    monkeypatch.setattr(cache, "LARGEST", 3 * size)
    answer(4)
    assert len(entries(place)) == 4
    (removed,) = set(before) - set(entries(place))
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("it was removed"))
    for number in (0, 2, 3, 4):
        assert answer(number) == number
    assert not removed.exists()
    assert foreign.exists()


def test_room_is_made_once_a_process_and_after_a_sixteenth_of_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    make_room = cache._shrink

    def listening(directory: Path, newest: Path) -> None:
        looked.append(newest.name)
        make_room(directory, newest)

    monkeypatch.setattr(cache, "_shrink", listening)
    monkeypatch.setattr(cache, "LARGEST", 1600)
    place.mkdir(mode=0o700, parents=True)

    def add(size: int) -> bool:
        """Whether room is made for a source of that size, which nothing else holds."""
        before = len(looked)
        cache.add_bytes(bytes([len(files(place))]) * size, place, "0" * 32, ".c")
        return len(looked) > before

    assert [add(size) for size in (10, 60, 40, 1, 100, 101, 0)] == [
        *(True, False, False, True, False, True, False)
    ]
    for _ in range(200):
        add(90)
        # What there is room for, what was added since, and the newest.
        assert sum(path.stat().st_size for path in files(place)) <= 1600 + 100 + 90
    monkeypatch.setattr(cache, "_added", {})
    assert add(5)


# ---------------------------------------------------------------------------- other machines
@pytest.mark.parametrize("flag", ["-D__AVX1024__=1", "-funsigned-char"])
def test_entries_of_another_processor_are_not_used(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    """The compiler is called in the same way, but what it compiles for is not the same."""
    monkeypatch.setenv("OPGEN_CC", compiler(tmp_path, 'exec gcc $MACHINE "$@"'))
    for machine in ("", flag, "", flag):
        monkeypatch.setenv("MACHINE", machine)
        toolchain.identity.cache_clear()  # in truth each machine has processes of its own
        assert answer() == 42
    toolchain.identity.cache_clear()
    assert len(entries(place)) == 2


def test_a_compiler_without_macros_is_told_by_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiler(tmp_path, 'case "$*" in *-dM*) exit 1;; esac; exec gcc "$@"')
    text = toolchain.identity((program,), ())
    assert os.uname().machine in text
    monkeypatch.setattr(toolchain, "_processor", lambda: "another")
    toolchain.identity.cache_clear()
    assert toolchain.identity((program,), ()) != text


class Answers:
    """A program with a compiler's name, and how often it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.program = folder / name
        self.asked = 0
        self.program.write_bytes(b"\x7fELF")
        self.program.chmod(0o755)
        self.compiler = (str(self.program),)
        monkeypatch.setattr(toolchain, "run", self._run)

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked += 1
        return subprocess.CompletedProcess(command, 0, stdout=f"{self.asked}")

    def in_a_new_process(self, *flags: str) -> str:
        toolchain.identity.cache_clear()
        toolchain._processor.cache_clear()
        return toolchain.identity(self.compiler, flags)


def test_what_a_compiler_says_is_kept_until_something_changes(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(tmp_path, monkeypatch, "x86_64-linux-gnu-gcc-12")
    first = answers.in_a_new_process()
    assert (first, answers.asked) == ("1\0002", 2)
    assert answers.in_a_new_process() == first
    assert answers.in_a_new_process("-O1") == "3\0004"
    (entry, _) = sorted(place.glob("*/*.txt"), key=lambda path: path.stat().st_mtime_ns)
    entry.write_text("cut sh")
    assert answers.in_a_new_process() == "5\0006"
    answers.program.write_bytes(b"\x7fELF, a later version")
    assert answers.in_a_new_process() == "7\0008"
    monkeypatch.setenv("COMPILER_PATH", "/opt/gcc-13")
    assert answers.in_a_new_process() == "9\00010"
    monkeypatch.setattr(toolchain, "_processor", lambda: "another")
    toolchain.identity.cache_clear()
    assert toolchain.identity(answers.compiler, ()) == "11\00012"
    shutil.rmtree(place)
    place.write_text("no directory")
    toolchain.identity.cache_clear()
    assert toolchain.identity(answers.compiler, ()) == "13\00014"
    toolchain.identity.cache_clear()


@pytest.mark.parametrize("name", ["ccache", "icx", "gcc-wrapper"])
def test_what_may_be_any_compiler_is_always_asked(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    answers = Answers(tmp_path, monkeypatch, name)
    assert answers.in_a_new_process() != answers.in_a_new_process()
    script = Answers(tmp_path, monkeypatch, "gcc")
    script.program.write_text("#!/bin/sh\n")
    assert script.in_a_new_process() != script.in_a_new_process()
    toolchain.identity.cache_clear()


# ---------------------------------------------------------------------------- compilers
def test_the_compiler_of_ziglang_is_the_last_choice(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packages" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('nobody needs to import it')\n")
    (package / "__main__.py").write_text(
        "import os, sys\n"
        "assert sys.argv[1] == 'cc'\n"
        f"os.execv({shutil.which('gcc')!r}, ['gcc', *sys.argv[2:]])\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    assert "ziglang" not in " ".join(build.find_compiler())
    tools = str(Path(shutil.which("as") or "").parent)
    monkeypatch.setenv("PATH", "")
    assert build.find_compiler() == (sys.executable, str(package / "__main__.py"), "cc")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("PATH", tools)  # gcc itself needs the assembler
    assert answer() == 42
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(build.NoCompilerError, match="pip install ziglang"):
        build.find_compiler()


def test_a_compiler_that_cannot_be_run_is_an_error(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "cc"
    program.write_bytes(b"\x7fELF garbage")
    program.chmod(0o755)
    monkeypatch.setenv("OPGEN_CC", str(program))
    with pytest.raises(build.BuildError, match=r"cannot be run: .*Exec format error"):
        answer()
    with pytest.raises(build.BuildError) as caught:
        opgen.compile("op f(x[N]) -> y[N]\n  y[n] = 3*x[n]\n").f(torch.ones(2))
    assert not isinstance(caught.value, build.NoCompilerError)


# ---------------------------------------------------------------------------- options
def test_options_of_the_user_make_another_library(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        monkeypatch.setenv("OPGEN_CFLAGS", f"-O0 '-DNUMBER={number}'")
        assert build.library("int number(void) { return NUMBER; }").number() == number
    assert len(entries(place)) == 2


def test_options_that_are_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_CFLAGS", "'-O1")
    with pytest.raises(build.BuildError, match=r"\$OPGEN_CFLAGS cannot be split into words: No cl"):
        build.library(SOURCE)
