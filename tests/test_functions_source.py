"""The functions of the C library that become vectors: how close they are, by PyTorch's doubles."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import opgen
from opgen.compiler import stage_text
from opgen.errors import Source
from opgen.runtime import prelude
from opgen.runtime.build import flags
from opgen.runtime.functions_source import NAMES, bound
from opgen.runtime.toolchain import find_compiler

REFERENCES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
}
ULPS = {"exp": 0.90, "expm1": 1.47, "log": 0.83, "log1p": 1.44, "tanh": 1.38, "erf": 1.02}
ULPS |= {"sin": 0.57, "cos": 0.57, "tan": 0.57}
"""What the docstring of the module says. Where no instruction multiplies and adds without rounding
in between, `exp` and `erf` are off by up to a third of a unit more."""


def every(step: int) -> Tensor:
    """Floats of every sign and exponent, and what is neither positive nor a number."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -1.0])
    edges = torch.tensor([88.72283, 88.72284, -87.33655, -103.97, -103.98, 2.0**-126, 2.0**-149])
    return torch.cat([torch.from_numpy(bits.view(np.float32)), special, edges])


def units(found: Tensor, wanted: Tensor) -> Tensor:
    """The errors of floats in units in the last place; infinite where one alone is finite."""
    rounded = wanted.float()
    magnitude = wanted.abs().clamp(2.0**-126, 2.0**127)
    errors = (found.double() - wanted).abs() / 2.0 ** (magnitude.log2().floor() - 23)
    is_same = (found == rounded) | (found.isnan() & wanted.isnan())
    return torch.where(is_same, torch.where(rounded.isfinite(), errors, 0.0), errors)


@pytest.fixture(scope="module")
def functions() -> Mapping[str, Callable[[Tensor], Tensor]]:
    text = "\n".join(f"op f_{name}(x[N]) -> y[N]\n  y[n] = {name}(x[n])\n" for name in REFERENCES)
    ops = opgen.compile(text)
    return {name: getattr(ops, f"f_{name}") for name in REFERENCES}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.sampled(4)
def test_how_close_they_are(name: str, functions: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
    x = every(step=1009)
    found, wanted = functions[name](x), REFERENCES[name](x.double())
    errors = units(found, wanted)
    assert not errors.isnan().any()
    assert errors.max() <= ULPS[name] + 0.34
    zeros = wanted == 0
    assert torch.equal(torch.signbit(found[zeros]), torch.signbit(wanted[zeros]))


@pytest.mark.parametrize("name", REFERENCES)
def test_cells_do_not_depend_on_their_neighbours(
    name: str, functions: Mapping[str, Callable[[Tensor], Tensor]]
) -> None:
    """What is computed in a vector, behind the last one, and with steps in memory is one number."""
    x = every(step=2**26 + 1)
    whole = functions[name](x)
    spread = functions[name](x.repeat_interleave(2)[::2])
    single = torch.cat([functions[name](each) for each in x.split(1)])
    for other in (spread, single):
        assert torch.equal(whole.view(torch.int32), other.view(torch.int32)) or torch.equal(
            whole.nan_to_num(7), other.nan_to_num(7)
        )


def test_what_gelu_is_made_of() -> None:
    """1 + erf(a) has no digits left where a is -4."""
    gelu = opgen.compile("op f(x[N]) -> y[N]\n  y[n] = gelu(x[n])\n").f
    x = torch.linspace(-12, 12, 100_001)
    wanted = torch.nn.functional.gelu(x.double())
    torch.testing.assert_close(gelu(x).double(), wanted, rtol=1.2e-4, atol=1e-9)


WHOLE = (-4, -3, -2, -1, 3, 4)
"""Exponents of powers that are products."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_powers(dtype: torch.dtype) -> None:
    """A product is rounded up to three times, an inverse once more for each factor."""
    text = "\n".join(
        f"op f{at}(x: float[N]) -> y[N]\n  y[n] = x[n]**{exponent}\n"
        for at, exponent in enumerate(WHOLE)
    )
    ops, x = opgen.compile(text), every(step=20_011).to(dtype)
    for at, exponent in enumerate(WHOLE):
        found = getattr(ops, f"f{at}")(x)
        with np.errstate(all="ignore"):
            wanted = np.power(x.numpy().astype(np.longdouble), np.longdouble(exponent))
            rounded = torch.from_numpy(wanted.astype(x.numpy().dtype))
        limits = torch.finfo(dtype)
        plain = (rounded.abs() > limits.tiny) & rounded.isfinite()
        # An inverse that is subnormal has fewer digits, and powers of it are zero in the end.
        torch.testing.assert_close(
            found[plain], rounded[plain], rtol=4 * limits.eps, atol=limits.tiny
        )
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
        got, exact = getattr(ops, f"f{at}")(special), special**exponent
        torch.testing.assert_close(got, exact, rtol=0, atol=0, equal_nan=True)
        numbers = slice(0, 4)
        assert torch.equal(torch.signbit(got[numbers]), torch.signbit(exact[numbers]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_roots(dtype: torch.dtype) -> None:
    """A half is a root, whose inverse is rounded once more; what is no number is as in C."""
    text = "op f(x: float[N]) -> y[N]\n  y[n] = x[n]**0.5\n\nop g(x: float[N]) -> y[N]\n"
    ops, x = opgen.compile(f"{text}  y[n] = x[n]**-0.5\n"), every(step=20_011).to(dtype)
    for op, exponent in ((ops.f, 0.5), (ops.g, -0.5)):
        found, wanted = op(x), x.double() ** torch.full_like(x, exponent, dtype=torch.float64)
        torch.testing.assert_close(
            found.double(), wanted, rtol=1.5 * torch.finfo(dtype).eps, atol=0, equal_nan=True
        )
        assert torch.equal(torch.signbit(found[wanted == 0]), torch.signbit(wanted[wanted == 0]))


@pytest.fixture(scope="module")
def power() -> Callable[[Tensor, Tensor], Tensor]:
    op: Callable[[Tensor, Tensor], Tensor]
    op = opgen.compile("op f(x: float[N], p[N]) -> y[N]\n  y[n] = x[n]**p[n]\n").f
    return op


def test_powers(power: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Of bases of every size, and of those near 1 with exponents as large as they may be."""
    generator = np.random.default_rng(0)
    x = every(step=20_011)
    near = 1 + torch.from_numpy(generator.uniform(-1, 1, len(x))).float().pow(9)
    for base in (x, near):
        for bits in (152.0, 8.0):
            # The power's logarithm is spread evenly, a little farther than floats go.
            logarithms = torch.from_numpy(generator.uniform(-bits, bits, len(x)))
            exponents = (logarithms / base.double().abs().log2()).float()
            whole = torch.from_numpy(generator.integers(-9, 10, len(x))).float()
            for each in (exponents, whole):
                errors = units(power(base, each), base.double() ** each.double())
                assert errors.max() <= 0.54


SPECIAL = (0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, torch.inf, 1e-45, 1e-40, 2.0**-126, 3.4e38, 1e10)
SPECIAL += (16777215.0, 16777216.0, 16777217.0, 0.99999994, 1.0000001, 2.0**31, 2.0**63)


def test_special_powers(power: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Zeros, infinities, numbers below zero and NaN; exponents that are odd, even or broken."""
    values = torch.tensor([*SPECIAL, *(-each for each in SPECIAL), torch.nan])
    x, p = (each.reshape(-1) for each in torch.meshgrid(values, values, indexing="ij"))
    found, wanted = power(x, p), x.double() ** p.double()
    assert units(found, wanted).max() <= 0.54
    numbers = ~wanted.isnan()
    assert torch.equal(torch.signbit(found[numbers]), torch.signbit(wanted[numbers]))
    for at in range(0, len(x), 7):
        alone = power(x[at : at + 1], p[at : at + 1])
        assert alone.view(torch.int32) == found[at].view(torch.int32) or alone.isnan()


def test_angles_near_a_whole_number_of_quarters() -> None:
    """Floats that are closest to a multiple of half of pi, among them the worst of all."""
    ops = opgen.compile(
        "op f(x[N]) -> y[N]\n  y[n] = sin(x[n])\n\nop g(x[N]) -> y[N]\n  y[n] = cos(x[n])\n"
    )
    turns = torch.arange(1, 4001, dtype=torch.float64) * (torch.pi / 2)
    worst = torch.tensor([16367173 * 2.0**72, 2.0**127, 3.4e38, 1e22, 2.0**28, 355, 710])
    x = torch.cat([turns.float(), -turns.float(), worst])
    for found, wanted in ((ops.f(x), x.double().sin()), (ops.g(x), x.double().cos())):
        assert units(found, wanted).max() <= 0.57


NESTED: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "mish": ("x[n]*tanh(log(1 + exp(x[n])))", torch.nn.functional.mish),
    "gelu": (
        "0.5*x[n]*(1 + tanh(0.7978845608028654*(x[n] + 0.044715*x[n]**3)))",
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "waves": (
        "sin(3*x[n])*cos(x[n]) + tan(x[n]*0.1)",
        lambda x: torch.sin(3 * x) * torch.cos(x) + torch.tan(x * 0.1),
    ),
    "entropy": (
        "-sigmoid(x[n])*log(sigmoid(x[n])) - log(erf(abs(x[n])) + 1)",
        lambda x: -torch.sigmoid(x) * torch.log(torch.sigmoid(x)) - torch.log(x.abs().erf() + 1),
    ),
    "powers": (
        "max(x[n], 0.001)**2.5 + relu(x[n])**(1 - 0.1*x[n])",
        lambda x: x.clamp(0.001) ** 2.5 + x.relu() ** (1 - 0.1 * x),
    ),
}
"""Functions of what is chosen by a function."""


@pytest.mark.parametrize("name", NESTED)
def test_functions_of_functions(name: str) -> None:
    text, reference = NESTED[name]
    op = opgen.compile(f"op f(x: float[N]) -> y[N]\n  y[n] = {text}\n").f
    x = torch.linspace(-9, 9, 10_001)
    torch.testing.assert_close(op(x).double(), reference(x.double()), rtol=1e-5, atol=1e-6)


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The heads of those loops of a C source that a compiler says it makes vectors of."""
    monkeypatch.delenv("OPGEN_CFLAGS", raising=False)  # tests are compiled more quickly
    build = [*find_compiler(), *(flag for flag in flags() if flag != "-w")]
    version = subprocess.run([*build, "--version"], capture_output=True, text=True, check=True)
    if "clang" in version.stdout or platform.machine() != "x86_64":
        pytest.skip("another compiler words it otherwise")

    def heads(text: str) -> list[str]:
        source = tmp_path / "f.c"
        bindings = prelude.bindings("f32", "f32", {"r": "i64"})
        source.write_text(f"{prelude.C}{bindings}{text}", encoding="utf-8")
        command = [*build, "-fopt-info-vec-optimized", "-o", str(tmp_path / "f.so"), str(source)]
        said = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=True).stderr
        lines = source.read_text(encoding="utf-8").splitlines()
        found = {int(line.split(":")[1]) for line in said.splitlines() if "loop vectorized" in line}
        return [lines[number - 1].strip() for number in sorted(found)]

    return heads


@pytest.mark.parametrize("name", NESTED)
def test_loops_over_them_are_vectors(name: str, vectors: Callable[[str], list[str]]) -> None:
    """Scalars took up to a hundred times as long."""
    text, _ = NESTED[name]
    op = opgen.compile(f"op f(x: float[N]) -> y[N]\n  y[n] = {text}\n")._f
    assert any("for (int64_t n = " in head for head in vectors(op.sources.c))


MEAN = """op f(x: float[N,C,W], p[C]) -> y[N,C]
  y[n,c] = (mean(w) max(x[n,c,w], 1e-6)**p[c])**(1/p[c])
"""
FOCAL = """op f(x: float[N,W], nograd t[N,W]; gamma = 2.0) -> y[]
  p[n,w] = sigmoid(x[n,w])*t[n,w] + (1 - sigmoid(x[n,w]))*(1 - t[n,w])
  y[] = mean(n,w) (1 - p[n,w])**gamma*(softplus(x[n,w]) - x[n,w]*t[n,w])
"""
PAIRS = """op f(s: float[B,N], r: int[B,N]) -> y[B]
  y[b] = sum(i in N, w in N if r[b,i] > r[b,w]) softplus(s[b,w] - s[b,i])
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "program", "head"),
    [
        (MEAN, "f", "for (int64_t at = "),
        (MEAN, "f_grad_x", "for (int64_t w = "),
        (FOCAL, "f", "for (int64_t at = "),
        (FOCAL, "f_grad_x", "for (int64_t w = "),
        (PAIRS, "f", "IN_ANY_ORDER"),
    ],
    ids=("mean", "gradient of mean", "focal", "gradient of focal", "pairs"),
)
def test_sums_and_choices_of_them_are_vectors(
    text: str, program: str, head: str, vectors: Callable[[str], list[str]]
) -> None:
    """Of what was chosen before, beside another choice, and under a condition."""
    source = stage_text(Source(text, "f.op"), "c")
    begin = source.index(f"// {program}\n//\n")
    end = source.find("\n//\n// Printed", source.index("KERNEL", begin))
    found = vectors(source[begin : source.rindex("\n// ", begin, end)])
    assert any(head in each for each in found), found


def test_terms_that_a_condition_chooses() -> None:
    """A term that is not chosen may be infinite or NaN; of doubles it is not computed."""
    op = opgen.compile(PAIRS).f
    rank = torch.randint(0, 4, (3, 50))
    for dtype in (torch.float32, torch.float64):
        s = torch.randn(3, 50, dtype=dtype)
        s[0, 0], rank[0, :] = torch.nan, 1
        before = (rank[:, :, None] > rank[:, None, :]).to(dtype)
        terms = torch.nn.functional.softplus(s[:, None, :] - s[:, :, None])
        wanted = torch.where(before > 0, terms, 0).sum((1, 2))
        torch.testing.assert_close(op(s, rank), wanted)


def test_what_a_condition_keeps_inside_is_not_read() -> None:
    """Both sides of a choice by values are computed, but none of one by an index."""
    for side in ("max(x[i - 1], 0.5)", "x[i - 1]**2.5"):
        text = f"op f(x: float[N]) -> y[N]\n  y[i] = select(i >= 1, {side}, x[0])\n"
        assert "opgen_select" not in stage_text(Source(text, "f.op"), "c").split("f_grad")[0]
    text = "op f(x: float[N]) -> y[N]\n  y[i] = select(x[i] > 1, max(x[i], 2)**2.5, x[0])\n"
    assert "opgen_select" in stage_text(Source(text, "f.op"), "c")


def test_doubles_are_those_of_the_library() -> None:
    assert bound("f64") == ["#undef pow", "#define pow f64_pow"]
    assert set(NAMES) == {*REFERENCES, "erfc"}
    ops = opgen.compile("op f(x[N]) -> y[N]\n  y[n] = exp(x[n])\n")
    x = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    torch.testing.assert_close(ops.f(x), x.exp(), rtol=1e-15, atol=0)
