"""A spec is data: nothing in it becomes code of its own, or a file elsewhere.

Each payload is put where a spec may hold text of its author: comments, doc comments, strings, the
name of the file. The generated Python, without its strings, must be the very same tree as with a
harmless text, and the generated C and CUDA, without comments, the very same tokens.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import opgen
from opgen import compiler
from opgen.__main__ import main
from opgen.errors import OpgenError, Source
from opgen.runtime import build
from opgen.testing.calls import Call
from opgen.testing.cases import Case
from opgen.testing.replay import script
from opgen.testing.session import Failure, Outcome

PAYLOADS = (
    "*/ int evil(void) { return 1; } /*",
    "// \\",
    "??/",
    '"""\nimport os\n"""'.replace("\n", "\\n"),
    "'''; import os #",
    "\\",
    "\\\\",
    "\\u000aint evil;",
    "\\x0aimport os",
    "{{ 7*7 }}{% set k = 1 %}{# gone #}",
    "{{ k.__class__.__mro__ }}",
    "${HOME} `id` $(id) %s %n {0.__class__} {evil}",
    "#include </etc/passwd>",
    "\u2028import os\u2029",
    "\x0bimport os\x0c",
    "\x85import os\x1c\x1d\x1e",
    "\x1b[2J",
    "\u202e evil \u2066",
    "*/\x00/*",
    "]]>--></script>",
    'R"x( )x" #undef T',
    "\N{FULLWIDTH QUOTATION MARK}é\U0001f600",
)
HARMLESS = "harmless"
SAME = "op same(x[N]) -> y[N]\n  y[n] = x[n]\n"


def spec(comment: str = HARMLESS, doc: str = HARMLESS, choice: str = HARMLESS) -> str:
    """An op with text in every place that takes some; the choice is also part of a statement."""
    return (
        f"# {comment}\n"
        f"## {doc}\n"
        f'op f(x[N,M]; mode = "{choice}" | "other", p = 1) -> y[N,M]\n'
        f"  where p >= 0  # {comment}\n"
        f'  y[n,m] = x[n, m - p ?0]  if mode == "{choice}"  # {comment}\n'
        f'  y[n,m] = x[n,m] * p  if mode != "{choice}"\n'
    )


# ---------------------------------------------------------------------------- what is compared
def python_skeleton(text: str) -> str:
    """The tree of a module without the content of its strings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def kernel_sources(text: str) -> list[str]:
    """The C and CUDA texts of a module."""
    return [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and re.search(r"_(C|CUDA)(_\d+)?(_SOURCE)?$", node.targets[0].id)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def without_comments(sources: list[str]) -> str:
    """C as a compiler sees it once comments are gone; trigraphs are translated, as in strict C."""
    done = subprocess.run(
        [
            *build.find_compiler(),
            *("-x", "c", "-std=c11", "-trigraphs", "-fpreprocessed", "-dD", "-E", "-P", "-w", "-"),
        ],
        input="\n".join(sources).encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    return done.stdout.decode()


def generated(text: str, name: str = "spec.op") -> str:
    *_, module = compiler.stages(Source(text, name), 1)
    return module.text()


def skeleton(text: str, name: str = "spec.op") -> tuple[str, str]:
    module = generated(text, name)
    return python_skeleton(module), without_comments(kernel_sources(module))


PLAIN = skeleton(spec())


def test_the_skeletons_see_code() -> None:
    """Negative control: one more statement, of Python or of C, is a difference."""
    module = generated(spec())
    assert python_skeleton(module + "\nimport os\n") != PLAIN[0]
    escaped_string = module.replace("SPEC = ", "SPEC = ''; import os; x = ", 1)
    assert python_skeleton(escaped_string) != PLAIN[0]
    sources = kernel_sources(module)
    # C and CUDA of the op and its gradient, for all attributes and for the default ones.
    assert len(sources) >= 8
    assert without_comments(sources) == PLAIN[1]
    escaped = [source.replace("// ", "// \\\n int evil; //", 1) for source in sources]
    assert without_comments(escaped) != PLAIN[1]


# ---------------------------------------------------------------------------- text in the spec
@pytest.mark.sampled(4)
@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
@pytest.mark.parametrize("places", [("comment", "doc"), ("choice",)], ids="+".join)
def test_text_stays_text(places: tuple[str, ...], payload: str) -> None:
    """A spec with the payload is refused with a diagnostic, or differs in texts only."""
    try:
        found = skeleton(spec(**dict.fromkeys(places, payload)))
    except OpgenError:
        return
    assert found == PLAIN


def test_most_payloads_are_not_refused() -> None:
    """Or the test above would test nothing."""
    accepted = 0
    for payload in PAYLOADS:
        try:
            compiler.check_source(Source(spec(payload, payload, payload.replace('"', "'"))))
        except OpgenError:
            continue
        accepted += 1
    assert accepted >= len(PAYLOADS) // 2


@given(
    place=st.sampled_from(["comment", "doc", "choice"]),
    payload=st.lists(
        st.sampled_from(
            [
                *("\\", '"', "'", "*/", "/*", "//", "#", "\n", "{{", "}}", "{%", "??/", " ", "x"),
                *('"""', "'''", "\t", "\x00", "\u2028", "\x85", "%", "$", "`", "\ud800", "N", ";"),
                "\r",
            ]
        ),
        max_size=8,
    ).map("".join),
)
def test_random_text_stays_text(place: str, payload: str) -> None:
    text = spec(**{place: payload})
    try:
        compiler.check_source(Source(text))
    except OpgenError:
        return
    if "\n" in payload or "\r" in payload:
        return  # the next line is spec text then, and may well be another op
    assert skeleton(text) == PLAIN


@pytest.mark.parametrize("payload", [p for p in PAYLOADS if '"' not in p], ids=ascii)
@pytest.mark.sampled(6)
def test_a_choice_means_itself(payload: str) -> None:
    """The string arrives at the call unchanged, and the generated module runs."""
    text = spec(choice=payload, doc=payload, comment=payload)
    try:
        compiler.check_source(Source(text))
    except OpgenError:
        return
    module = opgen.compile(text)
    x = torch.arange(6.0).reshape(2, 3)
    assert module.f(x, mode="other", p=2).tolist() == (2 * x).tolist()
    assert module.f(x, mode=payload).tolist() == [[0, 0, 1], [0, 3, 4]]
    assert text == module.SPEC


# ---------------------------------------------------------------------------- numbers and names
@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "1e-999", "0.1e-3", "123456789.123456789", "-0.0", "inf", "-inf"]
)
def test_numbers_are_numbers(number: str) -> None:
    text = f"op f(x: float[N], w[N] = {number}; s = 1.0) -> y[N]\n  y[n] = x[n] * w[n] * s\n"
    try:
        module = opgen.compile(text)
    except OpgenError:
        return
    result = module.f(torch.ones(1, dtype=torch.float64))
    assert result.tolist() == [float(number)]


MEANINGS = (
    *("__import__", "__builtins__", "__name__", "__init__", "__class__", "exec", "eval", "os"),
    *("system", "main", "_start", "printf", "T", "wide", "real", "int64_t", "restrict", "asm"),
    *("SPEC", "FAMILY", "CERTIFICATE", "torch", "Tensor", "Any", "annotations", "self", "cls"),
    *("begin", "end", "task", "share", "arguments", "FIRST", "PRAGMA", "total", "rest"),
    *("threadIdx", "KERNEL", "call", "n", "fault", "integers", "tensors", "numbers", "None"),
)
"""Names that mean something in generated Python, C or CUDA, or in what these include."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(at, id=name, marks=[] if at % 3 == 0 else [pytest.mark.slow])
        for at, name in enumerate(MEANINGS)
    ],
)
def test_names_with_a_meaning_elsewhere(place: int) -> None:
    """As op, input and iterator; beside it, one of the others each as size, attribute that a like
    output stands beside, and temporary: over all cases every name is everything, and something in
    the third of them that does not wait for the longer tiers."""
    name, size, attribute, temporary = (MEANINGS[(place + k) % len(MEANINGS)] for k in range(4))
    module = opgen.compile(
        f"op {name}({name}[{size}]; {attribute} = 2) -> {attribute}_[{size}]\n"
        f"  {temporary}[{name}] = {name}[{name}] * {attribute}\n"
        f"  {attribute}_[{name}] = {temporary}[{name}]\n"
    )
    (function,) = [
        value
        for value in vars(module).values()
        if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Tensor"
    ]
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    result = function(x)
    assert result.tolist() == [2.0, 2.0, 2.0]
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert gradient.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("op", "tensor"),
    [
        *(("take", "chunks"), ("in_", "parallel"), ("watch", "forks"), ("floor", "div")),
        *(("pthread", "create"), ("GOMP", "parallel"), ("omp_get_max", "threads")),
        *(("inside_or", "fault"), ("bf16_to", "f32"), ("modular", "inverse"), ("run", "run")),
        *(("clock", "gettime"), ("sched", "yield_"), ("f", "y_task"), ("run", "f")),
    ],
)
def test_op_and_tensor_together_are_a_name_in_c(op: str, tensor: str) -> None:
    """Kernels are called after both."""
    module = opgen.compile(
        f"op {op}(x[N]) -> y[N], {tensor}[N]\n  y[n] = x[n]\n  {tensor}[n] = 2 * x[n]\n"
    )
    _, doubled = getattr(module, op)(torch.ones(2))
    assert doubled.tolist() == [2.0, 2.0]


# ---------------------------------------------------------------------------- files
NAMES = (
    *("..", "...", "a.b", "a b", "-o", "x\ny", "a;b", "$(id)", "x'y", 'x"y', "é", "a\\b", "CON"),
    *("import", "torch", "opgen", "__init__", "a\u202eb"),
)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("options", [(), ("--vendor",)])
def test_file_names(
    name: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written lies in the folder that was asked for, and the name is in no code."""
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / f"{name}.op"
    path.write_text(SAME, encoding="utf-8")
    out = tmp_path / "deep" / "out"
    status = main(["build", "-o", str(out), *options, "--", str(path)])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    new = {p for p in tmp_path.rglob("*") if p.is_file()} - {path}
    assert all(out in p.parents for p in new)
    if status:
        assert status == 2
        assert not new
        return
    (module,) = (p for p in out.iterdir() if p.is_file())
    text = module.read_text(encoding="utf-8")
    python, kernels = same()
    if not options:
        assert python_skeleton(text) == python
    assert without_comments(kernel_sources(text)) == kernels


@functools.cache
def same() -> tuple[str, str]:
    """What `opgen build` makes of a harmless file."""
    *_, module = compiler.stages(Source(SAME, "spec.op"))
    return python_skeleton(module.text()), without_comments(kernel_sources(module.text()))


def test_a_name_in_the_title_stays_in_the_title() -> None:
    """`opgen.compile(text, name)` takes any name."""
    plain = python_skeleton(generated(SAME))
    for payload in PAYLOADS:
        assert python_skeleton(generated(SAME, payload)) == plain, payload


def test_links_in_the_output_folder_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim.py"
    victim.write_text("mine\n", encoding="utf-8")
    path, out = tmp_path / "f.op", tmp_path / "out"
    path.write_text(spec(), encoding="utf-8")
    out.mkdir()
    (out / "f.py").symlink_to(victim)
    assert main(["build", str(path), "-o", str(out)]) in (0, 2)
    assert victim.read_text(encoding="utf-8") == "mine\n"


def test_a_replay_script_is_data_too(tmp_path: Path) -> None:
    """The path of a spec and its strings are literals in it."""
    folder = tmp_path / "a'''\"\"\"\nimport os\n#"
    case = Case({"N": 1, "M": 1}, {"mode": "'\"\n*/", "p": 1})
    failure = Failure(Call(case), "text")
    text = script(folder / "f.op", Outcome("f", "forward", failure=failure), failure)
    tree = ast.parse(text)
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert all(isinstance(n, ast.ImportFrom) for n in imports)
    assert len(imports) == 3
    assert any(
        isinstance(n, ast.Constant) and n.value == str((folder / "f.op").resolve())
        for n in ast.walk(tree)
    )


# ---------------------------------------------------------------------------- the cache
SOURCE = "#include <stdint.h>\nint64_t forty_two(void) { return 42; }\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("OPGEN_CACHE", str(directory))
    return directory


def test_a_directory_of_somebody_else_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owns a directory can put libraries there."""
    cache.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + 1)
    used = build.cache_directory()
    assert used != cache
    assert stat.S_IMODE(used.stat().st_mode) == 0o700


def test_a_planted_library_is_not_loaded(cache: Path) -> None:
    """Under the key of a source, but not with the digest of its own bytes."""
    build.library(SOURCE)
    (entry,) = cache.glob("*/*.so")
    key = entry.stem.partition("-")[0]
    entry.unlink()
    build.library(SOURCE.replace("42", "13").replace("forty_two", "planted"))
    (other,) = cache.glob("*/*.so")
    planted = cache / f"{key}-{'0' * 32}.so"
    other.rename(planted)
    assert build.library(SOURCE).forty_two() == 42


def test_entries_are_private_whatever_the_umask(cache: Path) -> None:
    before = os.umask(0)
    try:
        build.library(SOURCE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) & 0o022 == 0
