"""Libraries of ops for programs without Python: the same results and the same refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import library_child
from catalogue import SPECS
from opgen import library
from opgen.__main__ import main
from opgen.emit.library_shapes import c_string
from opgen.runtime import Operation, checks
from opgen.runtime.schema import flatten
from opgen.runtime.toolchain import BuildError
from opgen.testing.calls import Call
from opgen.testing.cases import cases
from opgen.testing.layouts import LAYOUTS
from opgen.testing.subject import Subject, subjects

close = torch.testing.assert_close
Arguments = tuple[Any, ...]


@pytest.fixture(autouse=True)
def general_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of a library serve all attributes: compare them with the same ones."""
    monkeypatch.setattr("opgen.runtime.special.MOST", 0)


def operation(subject: Subject) -> Operation:
    found: Operation = sys.modules[subject.function.__module__].FAMILY.operations[subject.op.name]
    return found


def arguments(subject: Subject, call: Call) -> Arguments:
    """A call as the dispatcher takes it."""
    inputs, op = call.inputs(subject.op), operation(subject)
    values = [
        checks.attribute_value(op.name, attribute, call.case.attributes[attribute.name])
        for attribute in op.attributes
    ]
    return (*(inputs.get(tensor.name) for tensor in subject.op.inputs), *flatten(values))


def changed(call: Arguments) -> Iterator[Arguments]:
    """Calls that may not fit: of other sizes, ranks and element types, and other numbers."""
    for at, value in enumerate(call):
        others: list[object] = []
        if isinstance(value, Tensor):
            others += [value.unsqueeze(0), value.bool()]
            others += [value.half()] if value.is_floating_point() else [value.to(torch.int16)]
            others += [torch.cat([value, value], axis) for axis in range(value.dim())]
            others += [value.narrow(axis, 0, 0) for axis in range(value.dim())]
            others += [value + 1000] if not value.is_floating_point() else []
        elif isinstance(value, int):
            others += [value + 1, -1, 0, 7]
        for other in others:
            yield (*call[:at], other, *call[at + 1 :])


def drawn(subject: Subject, dtypes: tuple[str, ...]) -> Iterator[Arguments]:
    """Calls of all kinds, in several layouts and types."""
    found = cases(subject.op)
    count = len(subject.op.inputs)
    for at, case in enumerate(found[:: max(1, len(found) // 12)]):
        for layout in ("contiguous", LAYOUTS[at % len(LAYOUTS)]):
            call = Call(case, dtypes[at % len(dtypes)], (layout,) * count, seed=at)
            yield arguments(subject, call)
    yield from changed(arguments(subject, Call(found[len(found) // 2], dtypes[0])))


def python(op: Operation, call: Arguments) -> Any:
    """The outputs, or the text of what is raised."""
    try:
        result: Any = op.overload(*call)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        return str(error)
    return result if isinstance(result, tuple) else (result,)


def alone(path: Path, calls: list[tuple[str, Arguments]], directory: Path) -> list[Any]:
    """The results of a process that has the library, and opgen not."""
    torch.save(calls, directory / "calls.pt")
    program = [sys.executable, "-P", library_child.__file__, str(path), str(directory)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results: list[Any] = torch.load(directory / "results.pt")
    return results


def said(text: str) -> str:
    """A refusal as far as both sides say it alike."""
    if "negative dimension" in text or "negative extent" in text:
        return "negative"  # said by PyTorch itself on one side
    # Types are listed shorter without Python.
    return text.partition(" must be ")[0] if ", got " in text else text


def compare(spec: Path, directory: Path, dtypes: tuple[str, ...]) -> tuple[int, int]:
    """How many calls gave the same numbers, and how many the same refusal."""
    short = {"float32": "f32", "float64": "f64", "bfloat16": "bf16"}
    path = library.build_library(spec, directory, [short[each] for each in dtypes])
    calls, wanted = [], []
    for subject in subjects(spec):
        op = operation(subject)
        for call in drawn(subject, dtypes):
            calls.append((op.registered_name, call))
            wanted.append(python(op, call))
    numbers = refusals = 0
    for (name, call), result, expected in zip(
        calls, alone(path, calls, directory), wanted, strict=True
    ):
        if isinstance(expected, str) or isinstance(result, str):
            assert isinstance(result, str), (name, call, expected)
            if "no kernels for" in result:
                continue  # nothing is said of the shapes then
            assert isinstance(expected, str), (name, call, result)
            assert said(result) == said(expected), name
            refusals += 1
            continue
        for ours, theirs in zip(result, expected, strict=True):
            close(ours, theirs, rtol=0, atol=0, equal_nan=True, check_stride=True)
        numbers += 1
    return numbers, refusals


def test_a_library_gives_what_python_gives(tmp_path: Path) -> None:
    numbers, refusals = compare(SPECS / "embedding.op", tmp_path, ("float32",))
    assert numbers > 20
    assert refusals > 3


CROP = """
op crop(x[N]; p: size, q: size[2]) -> y[M]
  let M = N - p - q[1]
  y[i] = x[i + p] + q[0]
"""


@pytest.mark.slow
def test_negative_sizes(tmp_path: Path) -> None:
    """They would let indices leave their tensors."""
    spec = tmp_path / "crop.op"
    spec.write_text(CROP.lstrip(), encoding="utf-8")
    path = library.build_library(spec, tmp_path, ("f32",))
    op = operation(subjects(spec)[0])
    x = torch.randn(5)
    calls: list[Arguments] = [(x, 2, 1, 1), (x, -1, 1, 1), (x, 2, 1, -1)]
    results = alone(path, [(op.registered_name, call) for call in calls], tmp_path)
    close(results[0], (x[2:4] + 1,))
    assert results[1] == "crop: attribute 'p' is a size and cannot be negative, got -1"
    assert results[2] == "crop: attribute 'q[1]' is a size and cannot be negative, got -1"
    assert results[1:] == [python(op, call) for call in calls[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["depth_to_space", "pool"])
def test_libraries_of_other_specs(spec: str, tmp_path: Path) -> None:
    numbers, refusals = compare(SPECS / f"{spec}.op", tmp_path, ("bfloat16",))
    assert numbers > 20
    assert refusals > 3


@pytest.mark.slow  # what compares is as it was when libraries change
def test_a_difference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "twice.op"
    spec.write_text("op twice(x: float[N]) -> y[N]\n  y[n] = x[n] + x[n]\n", encoding="utf-8")
    right = library._variants
    monkeypatch.setattr(
        library,
        "_variants",
        lambda *about: [(v, text.replace("+ ", "- ")) for v, text in right(*about)],
    )
    with pytest.raises(AssertionError, match="not equal"):
        compare(spec, tmp_path, ("float32",))


def test_what_a_library_does_not_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "same.op"
    spec.write_text("op same(x[N]) -> y[N]\n  y[n] = x[n]\n", encoding="utf-8")
    target = tmp_path / "libsame.so"
    target.write_bytes(b"mine")
    with pytest.raises(OSError, match="opgen did not write this file"):
        library.build_library(spec, tmp_path, ("f32",))
    assert target.read_bytes() == b"mine"
    target.unlink()
    monkeypatch.setattr(library, "_linked", lambda texts: texts["ops.cpp"].encode())
    for _ in range(2):
        assert library.build_library(spec, tmp_path, ("f32",)) == target


def test_without_a_compiler_of_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "same.op"
    spec.write_text("op same(x[N]) -> y[N]\n  y[n] = x[n]\n", encoding="utf-8")
    monkeypatch.setenv("OPGEN_CXX", "/nowhere/c++")
    with pytest.raises(BuildError, match="/nowhere/c\\+\\+"):
        library.build_library(spec, tmp_path, ("f32",))
    assert not (tmp_path / "libsame.so").exists()


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "_linked", lambda texts: texts["ops.cpp"].encode())
    spec = str(SPECS / "depth_to_space.op")
    assert main(["build", spec, "--library", "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{tmp_path}/depth_to_space.py\n{tmp_path}/libdepth_to_space.so\n"
    first = (tmp_path / "libdepth_to_space.so").read_bytes()
    assert main(["build", spec, "--library", "-o", str(tmp_path)]) == 0
    assert (tmp_path / "libdepth_to_space.so").read_bytes() == first
    monkeypatch.undo()
    monkeypatch.setenv("OPGEN_CXX", "/nowhere/c++")
    assert main(["build", spec, "--library", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("opgen: the C compiler '/nowhere/c++' cannot be run")


def test_text_of_a_spec_stays_text() -> None:
    text = 'a"b\\c\n%s{{}}??/é'
    literal = c_string(text)
    assert "\n" not in literal
    assert "?" not in literal
    quoted = literal.encode().decode("unicode_escape").encode("latin-1")
    assert quoted == b'"' + text.encode() + b'"'


@pytest.mark.slow
def test_a_package_runs_in_a_program_without_python(tmp_path: Path) -> None:
    spec = SPECS / "depth_to_space.op"
    module = subjects(spec)[0].function

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return cast(Any, module)(2 * x, r=2) + 1

    program = torch.export.export(
        Net(), (torch.zeros(2, 8, 3, 5),), dynamic_shapes=({0: torch.export.Dim("n", max=64)},)
    )
    package = str(tmp_path / "net.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=package)
    built = library.build_library(spec, tmp_path, ("f32",))
    home = Path(torch.__file__).parent
    binary = str(tmp_path / "without_python")
    compiled = subprocess.run(
        [
            *("g++", "-std=c++20", "-O1", "-o", binary),
            str(SPECS.parent / "examples" / "without_python.cpp"),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include"),
            *(f"-L{home}/lib", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{home}/lib"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    used = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    assert "libpython" not in used
    result = subprocess.run(
        [binary, package, str(built)], capture_output=True, text=True, check=True, env={}
    )
    shape, *numbers = result.stdout.splitlines()
    assert shape == "[1, 2, 6, 10]"
    x = torch.arange(120.0).reshape(1, 8, 3, 5)
    close(torch.tensor([float(n) for n in numbers]), F.pixel_shuffle(2 * x, 2).flatten() + 1)
    without = subprocess.run([binary, package, "libm.so.6"], capture_output=True, text=True)
    assert without.returncode != 0


@pytest.mark.slow
def test_leading_dims_in_every_layout(tmp_path: Path) -> None:
    spec = SPECS / "softmax.op"
    path = library.build_library(spec, tmp_path, ("f32",))
    op = operation(subjects(spec)[0])
    x = torch.randn(2, 3, 4, 5)
    calls: list[Arguments] = [
        (x.contiguous(memory_format=torch.channels_last),),
        (x.transpose(1, 2),),
        (torch.randn(4, 6, 8, 5)[::2, ::2, ::2],),
        (x.permute(3, 2, 1, 0),),
        (torch.randn(1, 3, 1, 5).expand(2, 3, 4, 5),),
        (torch.randn(2, 1, 4, 5).contiguous(memory_format=torch.channels_last),),
        (torch.randn(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),),
        (torch.randn(5),),
    ]
    results = alone(path, [(op.registered_name, call) for call in calls], tmp_path)
    for (given,), (result,) in zip(calls, results, strict=True):
        close(result, python(op, (given,))[0], rtol=0, atol=0, check_stride=True)
        close(result, given.softmax(-1))
