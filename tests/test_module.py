"""Generated modules: they stand alone, hold their derivatives, and survive hostile specs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import opgen
from opgen import compiler
from opgen.emit.python_text import call, dict_of, docstring, layout, string, strings, tuple_of
from opgen.errors import Source

SPEC = """
## Weighted window sums.
##
## The weight may be left out.
op window(x: float[...,N], w[K] = 1; K: size = 2, p = 0, mode = "sum" | "mean", scale: int[2] = 1)
    -> y[...,M]
  where p >= 0, K >= 1
  let M = N + 2*p - K + 1
  y[...,m] = sum(k) w[k] * x[..., m - p + k ?0] * scale[0]  for m in M  if mode == "sum"
  y[...,m] = sum(k) w[k] * x[..., m - p + k ?0] * scale[1] / K  for m in M  if mode == "mean"

op both(x[N]) -> y[N], z: i64[1]
  y[n] = x[n]
  z[0] = argmax(n) x[n]
"""


def written(tmp_path: Path, text: str, name: str = "spec") -> Path:
    """The generated file of a spec."""
    spec = tmp_path / f"{name}.op"
    spec.write_text(text, encoding="utf-8")
    return opgen.build(spec, tmp_path / "out")


def imported(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return imported(written(tmp_path_factory.mktemp("generated"), SPEC))


# ---------------------------------------------------------------------------- the public face
def test_signature_and_docstring(module: ModuleType) -> None:
    assert str(inspect.signature(module.window)) == (
        "(x: 'Tensor', w: 'Tensor | None' = None, *, K: 'int' = 2, p: 'int' = 0, "
        "mode: \"Literal['sum', 'mean']\" = 'sum', scale: 'int | tuple[int, int]' = (1, 1)) "
        "-> 'Tensor'"
    )
    assert str(inspect.signature(module.both)).endswith("-> 'tuple[Tensor, Tensor]'")
    assert inspect.getdoc(module.window) == (
        "Weighted window sums.\n"
        "\n"
        "The weight may be left out.\n"
        "\n"
        "Shapes:\n"
        "    x[..., N]: float\n"
        "    w[K]: float, optional, 1 if absent\n"
        "    returns y[..., M]: float\n"
        "\n"
        "where:\n"
        "    M = N + 2*p - K + 1"
    )


def test_tensors_by_position_or_name(module: ModuleType) -> None:
    x, w = torch.randn(5), torch.randn(2)
    assert torch.equal(module.window(x, w), module.window(w=w, x=x))
    torch.testing.assert_close(module.window(x, w), w[0] * x[:-1] + w[1] * x[1:])
    torch.testing.assert_close(module.window(x), x[:-1] + x[1:])
    torch.testing.assert_close(module.window(x, mode="mean", scale=(1, 3)), (x[:-1] + x[1:]) * 1.5)


def test_the_class_fixes_attributes(module: ModuleType) -> None:
    x = torch.randn(2, 5)
    layer = module.Window(K=3, mode="mean")
    assert torch.equal(layer(x), module.window(x, K=3, mode="mean"))
    assert "K=3" in repr(layer)
    assert "mode='mean'" in repr(layer)
    assert not list(layer.parameters())


def test_several_outputs_are_a_tuple(module: ModuleType) -> None:
    y, z = module.both(torch.tensor([1.0, 3.0, 2.0]))
    assert y.tolist() == [1.0, 3.0, 2.0]
    assert z.tolist() == [1]


# ---------------------------------------------------------------------------- standing alone
def run_without(packages: str, program: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter in which some packages cannot be imported.

    Nothing is in the cache: a derivative that was made before needs no opgen any more.
    """
    head = f"import sys\nfor name in {packages.split()!r}: sys.modules[name] = None\n"
    return subprocess.run(
        [sys.executable, "-c", head + program],
        cwd=path.parent,
        env={**os.environ, "OPGEN_CACHE": str(path.parent / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_module_needs_neither_the_parser_nor_the_templates(tmp_path: Path) -> None:
    path = written(tmp_path, SPEC)
    result = run_without(
        "lark jinja2 numpy rich",
        "import torch, spec\n"
        "x = torch.ones(4, requires_grad=True)\n"
        "(g,) = torch.autograd.grad(spec.window(x).sum(), x, create_graph=True)\n"
        "print(g.tolist(), any(name.startswith('opgen.lang') for name in sys.modules))\n",
        path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[1.0, 2.0, 2.0, 1.0] False\n"


def test_a_spec_that_is_known_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    first = opgen.compile(SPEC)
    monkeypatch.setitem(sys.modules, "opgen.on_demand", None)
    x = torch.ones(4)
    assert opgen.compile(SPEC).window(x).tolist() == first.window(x).tolist()
    with pytest.raises(ImportError):
        opgen.compile(SPEC + "# another\n")


THIRD = (
    "import torch, spec\n"
    "x = torch.full((1,), 2.0, requires_grad=True)\n"
    "y = spec.cube(x)\n"
    "for _ in range(4):\n"
    "    (y,) = torch.autograd.grad(y, x, create_graph=True)\n"
    "    print(y.item())\n"
)
CUBE = "op cube(x: float[N]) -> y[N]\n  y[n] = x[n] * x[n] * x[n] * x[n]\n"


def test_with_a_compiler_nothing_is_loaded_that_does_without_one(tmp_path: Path) -> None:
    result = run_without(
        "numpy",
        "import torch, spec\n"
        "spec.window(torch.ones(4))\n"
        "print([name for name in sys.modules if name.startswith('opgen.runtime.eager.')])\n",
        written(tmp_path, SPEC),
    )
    assert result.stdout == "[]\n", result.stderr


@pytest.fixture(scope="module")
def third(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A module whose third derivatives were derived in a process, and what that did."""
    path = written(tmp_path_factory.mktemp("third"), CUBE)
    return path, run_without("", THIRD, path)


def test_orders_beyond_two_are_derived_where_opgen_is(
    third: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, result = third
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["32.0", "48.0", "48.0", "24.0"]


@pytest.mark.slow  # a vendored module says so at once, in test_output
def test_orders_beyond_two_say_so_where_opgen_is_not(tmp_path: Path) -> None:
    result = run_without("lark", THIRD, written(tmp_path, CUBE))
    assert result.stdout.split() == ["32.0", "48.0"]
    assert "is not part of the generated module, and opgen, which would derive it" in result.stderr


def test_a_derivative_is_derived_once(
    third: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    path, before = third
    after = run_without("lark opgen.on_demand", THIRD, path)
    assert after.returncode == 0, after.stderr
    assert after.stdout == before.stdout


def test_a_family_that_closes_needs_no_third_order(tmp_path: Path) -> None:
    path = written(tmp_path, "op flip(x[N]; s=1) -> y[N]\n  y[n] = x[n - s ?wrap]  for n in N\n")
    family = imported(path).FAMILY
    assert all(operation.gradients for operation in family.operations.values())


def test_hand_written_gradients_are_used() -> None:
    module = opgen.compile(
        "op sign(x: float[N]) -> y[N]\n"
        "  gradient x by straight_through\n"
        "  y[n] = select(x[n] < 0, -1, 1)\n"
        "op straight_through(grad_y: float[N]) -> g[N]\n"
        "  g[n] = grad_y[n]\n"
    )
    x = torch.randn(4, requires_grad=True)
    (gradient,) = torch.autograd.grad(module.sign(x).sum(), x)
    assert gradient.tolist() == [1, 1, 1, 1]


def test_a_user_op_may_have_the_name_of_a_derived_one(tmp_path: Path) -> None:
    text = (
        "op f(x[N]) -> y[N]\n  y[n] = 2*x[n]\n"
        "op f_grad_x(grad_y[N]) -> grad_x[N]\n  grad_x[n] = 100*grad_y[n]\n"
    )
    for module in (imported(written(tmp_path, text)), opgen.compile(text)):
        x = torch.ones(2, requires_grad=True)
        (gradient,) = torch.autograd.grad(module.f(x).sum(), x)
        assert gradient.tolist() == [2, 2]
        assert module.f_grad_x(x).tolist() == [100, 100]


# ---------------------------------------------------------------------------- hostile text
HOSTILE = '''
## A doc comment with """ quotes, a \\backslash and {{ braces }} {% if %}
##   # and */ the end of a comment // ??/
op lambda(def[N], Tensor[N]; mode = "*/ \\n #" | "\\"\\"\\" + exit()" | "{{ 7*7 }}", torch=1)
    -> None[N]
  None[n] = def[n] * torch  if mode == "*/ \\n #"  # a comment """ \\
  None[n] = Tensor[n] * torch  if mode != "*/ \\n #"
'''


def test_attributes_have_their_names_whatever_the_op_is_called() -> None:
    """Also that of the op's class, as F is, or of the op."""
    module = opgen.compile(
        "op f(x[N]; F: size, f = 2) -> y[F,N]\n  y[k,n] = f*k*x[n] for k in F\n"
        "op g(g[N]; G = 2) -> y[N]\n  y[n] = G*g[n]\n"
    )
    x = torch.arange(3.0)
    wanted = 3 * torch.outer(torch.arange(4.0), x)
    assert torch.equal(module.f(x, F=4, f=3), wanted)
    assert torch.equal(module.F(F=4, f=3)(x), wanted)
    assert torch.equal(module.g(x, G=5), 5 * x)
    assert torch.equal(module.G(G=5)(x), 5 * x)


def test_hostile_names_and_strings(tmp_path: Path) -> None:
    text = HOSTILE.replace('\\"\\"\\" + exit()', "''' + exit()")
    path = written(tmp_path, text, "hostile")
    module = imported(path)
    x, y = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    assert module.lambda_(x, y, torch_=2).tolist() == [2, 2]
    assert module.lambda_(x, y, mode="{{ 7*7 }}").tolist() == [3, 3]
    module.lambda_(x, y, torch_=2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]
    assert text == module.SPEC
    assert '"""' in (module.lambda_.__doc__ or "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        'ends with "',
        '"""',
        "back\\slash",
        "a\nb\n",
        "\x00\x1b",
        "é\u2028x",
        "\r\n",
        "{{",
    ],
)
def test_strings_are_exact(text: str) -> None:
    assert ast.literal_eval(string(text)) == text
    assert ast.literal_eval(string(text, "    ")) == text


def test_docstrings_are_single_literals() -> None:
    for text in ("one line", 'a\n\n"""b\n  c', "back\\slash\nx"):
        tree = ast.parse(f"def f():\n{docstring(text, '    ')}\n")
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function) == text


def test_brackets() -> None:
    assert strings(("a",)).flat == '("a",)'
    for strange in (('"', "\\", "'\n"), (), ("a", "b")):
        assert ast.literal_eval(strings(strange).flat) == strange
    assert layout(tuple_of((), tall=True)) == "()"
    assert layout(tuple_of(("1", "2"), tall=True)) == "(\n    1,\n    2,\n)"
    assert layout(dict_of({"k": tuple_of(("1",))})) == '{"k": (1,)}'
    long = ["x" * 30] * 4
    assert layout(call("f", long[:3]), "", "y = ").count("\n") == 2
    assert layout(call("f", long), "", "y = ").count("\n") == 5


# ---------------------------------------------------------------------------- the compiler
def test_stages_come_in_order() -> None:
    source = Source(SPEC, "spec.op")
    stages = list(compiler.stages(source))
    assert tuple(stage.name for stage in stages) == compiler.STAGES
    assert all(stage.text() for stage in stages)
    assert compiler.stage_text(source, "c") == next(s for s in stages if s.name == "c").text()


def test_building_twice_gives_the_same_bytes_wherever_the_spec_lies(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    first = written(tmp_path, SPEC).read_bytes()
    assert written(tmp_path / "elsewhere", SPEC).read_bytes() == first


def test_load_names_the_file_in_faults(tmp_path: Path) -> None:
    spec = tmp_path / "bad.op"
    spec.write_text("op f(x[N]) -> y[N]\n  y[n] = x[n + 1]\n")
    with pytest.raises(opgen.OpgenError, match=r"bad\.op:2:"):
        opgen.load(spec)


def test_importing_opgen_loads_no_compiler() -> None:
    program = "import opgen, sys; print('lark' in sys.modules, 'torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False False\n"


def test_unknown_attributes_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = opgen.nonsense  # type: ignore[attr-defined]
