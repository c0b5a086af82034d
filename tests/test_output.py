"""What `opgen build` writes: modules, copies of the runtime, and nothing over a stranger's file."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import forks
import opgen
from opgen import output
from opgen.__main__ import main

SPEC = "op cube(x: float[N]) -> y[N]\n  y[n] = x[n] * x[n] * x[n] * x[n]\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "cube.op"
    path.write_text(SPEC)
    return path


# ---------------------------------------------------------------------------- torch alone
@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages that holds torch and what torch itself requires, as links."""
    site = tmp_path_factory.mktemp("site")
    pending, done = ["torch"], set[str]()
    while pending:
        name = pending.pop()
        distribution = importlib.metadata.distribution(name)
        done.add(name)
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
        for requirement in distribution.requires or ():
            wanted = re.match(r"[\w.-]+", requirement)
            assert wanted is not None
            if "extra ==" not in requirement and wanted[0] not in done:
                pending.append(wanted[0])
    return site


def run_alone(site: Path, program: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program where nothing but torch can be imported, and modules in the given places."""
    places = [str(site), *map(str, path)]
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys\nsys.path += {places!r}\n{program}"],
        capture_output=True,
        text=True,
        check=False,
    )


USE = """
import torch
x = torch.full((1,), 2.0, requires_grad=True)
y = {module}.cube(x)
for _ in range(3):
    (y,) = torch.autograd.grad(y, x, create_graph=True)
    print(y.item())
"""
LOADED = "print([n for n in ('opgen', 'lark', 'jinja2', 'numpy') if sys.modules.get(n)])\n"


def test_the_harness_hides_opgen(torch_alone: Path, spec: Path) -> None:
    """Negative control: without `--vendor` the module cannot be imported there."""
    opgen.build(spec, spec.parent / "out")
    result = run_alone(torch_alone, "import torch, cube", spec.parent / "out")
    assert "No module named 'opgen'" in result.stderr
    result = run_alone(torch_alone, "import lark")
    assert "No module named 'lark'" in result.stderr


@pytest.mark.parametrize(
    "module", [pytest.param("cube", marks=pytest.mark.slow), "package.inner.cube"]
)
def test_a_vendored_module_works_with_torch_alone(
    torch_alone: Path, spec: Path, module: str
) -> None:
    """At the top level and inside of a package; a third derivative would need opgen and says so."""
    *parents, _ = module.split(".")
    directory = spec.parent.joinpath("root", *parents)
    directory.mkdir(parents=True)
    opgen.build(spec, directory, vendor=True)
    program = f"import {module}\n{LOADED}{USE.format(module=module)}"
    result = run_alone(torch_alone, program, spec.parent / "root")
    assert result.stdout.splitlines() == ["[]", "32.0", "48.0"]
    assert "its gradient with respect to 'x' is not part of the generated module" in result.stderr


def test_a_vendored_module_asks_an_installed_opgen_for_more(spec: Path) -> None:
    opgen.build(spec, spec.parent, vendor=True)
    result = subprocess.run(
        [sys.executable, "-c", f"import cube\n{USE.format(module='cube')}"],
        cwd=spec.parent,
        env={**os.environ, "PYTHONPATH": str(Path(opgen.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == ["32.0", "48.0", "48.0"], result.stderr


COPIES = """
import sys, torch, opgen
own = opgen.compile("op twice(x[N]) -> y[N]\\n  y[n] = 2 * x[n]\\n").twice
x = torch.full((3,), 2.0)
def calls(*ops):
    print([op(x).tolist() == [value] * 3 for op, value in ops for _ in range(3)])
calls((own, 4.0))
import first.cube
calls((own, 4.0), (first.cube.cube, 8.0), (own, 4.0))
import second.square
calls((own, 4.0), (first.cube.cube, 8.0), (second.square.square, 4.0), (own, 4.0))
cube = first.cube.cube
for name in [name for name in sys.modules if name.startswith("first")]:
    del sys.modules[name]
import first.sum
calls((own, 4.0), (second.square.square, 4.0), (first.sum.sum, 5.0), (cube, 8.0), (own, 4.0))
"""


def test_copies_of_the_runtime_keep_their_ops_apart(spec: Path) -> None:
    """Also where one of them is loaded twice."""
    for name, text, package in (
        ("cube", "x[n] * x[n] * x[n]", "first"),
        ("square", "x[n] * x[n]", "second"),
        ("sum", "x[n] + 3", "first"),
    ):
        path = spec.parent / f"{name}.op"
        path.write_text(f"op {name}(x[N]) -> y[N]\n  y[n] = {text}\n")
        (spec.parent / package).mkdir(exist_ok=True)
        opgen.build(path, spec.parent / package, vendor=True)
    said = forks.printed(forks.within(spec.parent, COPIES))
    found = [line for line in said.splitlines() if line.startswith("[")]
    assert len(found) == 4 and "False" not in said, said


@pytest.mark.slow  # others are called without one at once, in test_eager
def test_a_vendored_module_works_without_a_compiler(torch_alone: Path, spec: Path) -> None:
    opgen.build(spec, spec.parent, vendor=True)
    program = (
        "import os\nos.environ['PATH'] = ''\nimport torch, cube\nprint(cube.cube(torch.ones(2)))"
    )
    result = run_alone(torch_alone, program, spec.parent)
    assert result.stdout == "tensor([1., 1.])\n"
    assert "plain PyTorch operations" in result.stderr


# ---------------------------------------------------------------------------- the copy
def test_the_copy_imports_nothing_of_opgen(tmp_path: Path) -> None:
    package = output.write_runtime(tmp_path)
    files = sorted(package.rglob("*.py"))
    assert len(files) == len(sorted((Path(opgen.__file__).parent / "runtime").rglob("*.py")))
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import(names=names):
                    assert not any(alias.name.split(".")[0] == "opgen" for alias in names), file
                case ast.ImportFrom(module=module, level=0):
                    assert (module or "").split(".")[0] != "opgen", file
                case _:
                    pass


def test_versions_of_the_runtime_lie_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = output.write_runtime(tmp_path)
    files = dict(output._runtime_files())
    files["__init__.py"] += "\nNEWER = True\n"
    monkeypatch.setattr(output, "_runtime_files", lambda: files)
    second = output.write_runtime(tmp_path)
    assert first != second
    assert "NEWER" not in (first / "__init__.py").read_text()
    assert "NEWER" in (second / "__init__.py").read_text()


def test_a_copy_that_is_there_stays(tmp_path: Path) -> None:
    package = output.write_runtime(tmp_path)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "build.cpython-311.pyc").write_bytes(b"\x00")
    before = (package / "build.py").stat().st_mtime_ns
    assert output.write_runtime(tmp_path) == package
    assert (package / "build.py").stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["altered", "missing", "added", "file", "dangling"])
def test_a_folder_that_opgen_did_not_write_is_refused(
    spec: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    directory = spec.parent / "out"
    package = directory / output.runtime_package()
    if change == "file":
        directory.mkdir()
        package.write_text("mine")
    elif change == "dangling":
        directory.mkdir()
        package.symlink_to(directory / "nowhere")
    else:
        output.write_runtime(directory)
        match change:
            case "altered":
                (package / "build.py").write_text("mine")
            case "missing":
                (package / "build.py").unlink()
            case "added":
                (package / "notes.txt").write_text("mine")
    assert main(["build", str(spec), "-o", str(directory), "--vendor"]) == 2
    error = capsys.readouterr().err
    assert "this is not the copy of the runtime that opgen writes here; move it away" in error
    assert str(package) in error
    assert not (directory / "cube.py").exists()  # no module without its runtime
    assert {path.name for path in directory.iterdir()} == {package.name}


def test_many_may_write_the_runtime_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        packages = set(pool.map(output.write_runtime, [tmp_path] * 32))
    assert packages == {tmp_path / output.runtime_package()}
    assert list(tmp_path.iterdir()) == list(packages)


# ---------------------------------------------------------------------------- modules
def test_a_module_is_a_plain_file_and_nothing_stays_behind(spec: Path) -> None:
    target = opgen.build(spec, spec.parent / "deep" / "er")
    plain = spec.parent / "plain"
    plain.touch()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert opgen.build(spec, target.parent) == target  # its own file it does overwrite
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("content", ["", "print('mine')\n", "\x00"])
def test_a_file_of_someone_else_stays(
    spec: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    target = spec.parent / "cube.py"
    target.write_text(content)
    assert main(["build", str(spec), "-o", str(spec.parent)]) == 2
    assert capsys.readouterr().err == (
        f"opgen: opgen did not write this file, and does not overwrite it: {target}\n"
    )
    assert target.read_text() == content
    target.unlink()
    target.mkdir()
    assert main(["build", str(spec), "-o", str(spec.parent)]) == 2


def test_a_link_is_replaced_and_not_followed(spec: Path) -> None:
    elsewhere = opgen.build(spec, spec.parent / "elsewhere")
    before = elsewhere.read_text()
    spec.write_text(SPEC.replace("* x[n]\n", "\n"))
    (spec.parent / "out").mkdir()
    link = spec.parent / "out" / "cube.py"
    link.symlink_to(elsewhere)
    opgen.build(spec, link.parent)
    assert not link.is_symlink()
    assert elsewhere.read_text() == before


@pytest.mark.parametrize(
    "name", ["my-op.op", "..op", "a.b.op", "class.op", "1.op", "torch.op", "opgen.op", " .op"]
)
def test_a_name_that_no_program_could_import_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    spec = tmp_path / name
    spec.write_text(SPEC)
    assert main(["build", str(spec), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"rename the spec: {spec}\n")
    assert not (tmp_path / "out").exists()


def test_a_directory_that_cannot_be_made_is_an_error(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", str(spec), "-o", str(spec / "below_a_file")]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_a_failed_write_leaves_nothing(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = opgen.build(spec, spec.parent / "out")
    before = target.read_text()

    def full(path: Path, *arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    for vendor in (False, True):
        with pytest.raises(OSError, match="No space left"):
            opgen.build(spec, target.parent, vendor=vendor)
    assert target.read_text() == before
    assert list(target.parent.iterdir()) == [target]
