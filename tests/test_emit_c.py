"""Printed C and CUDA: expressions mean what they print, kernels what the notation says."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from collections.abc import Sequence

import jinja2
import jinja2.meta
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import notation_strategies
import opgen
from opgen import on_demand, resources
from opgen.algebra.condition import Condition, Relation
from opgen.algebra.poly import (
    Poly,
    floor_div,
    gcd,
    load,
    maximum,
    minimum,
    modular_inverse,
    poly,
    select_zero,
    symbol,
)
from opgen.emit.c import c_source
from opgen.emit.expression import Names, Printer
from opgen.emit.names import IMPORTED, CNames, is_reserved_in_c, python_names
from opgen.emit.polynomial import python_condition, python_text
from opgen.emit.types import Types
from opgen.errors import Source
from opgen.ir import loops
from opgen.ir.context import facts_of
from opgen.ir.loops import Operand, Program
from opgen.ir.notation import BATCH, DType, Op
from opgen.ir.reference import evaluate
from opgen.lang.read import read
from opgen.passes.gather import gather
from opgen.passes.rows import rows
from opgen.passes.schedule import schedule
from opgen.runtime import build, cuda_source, cuda_tiles, prelude
from opgen.testing.cuda_on_cpu.emulated import Products, emulated

SYMBOLS = ("a", "b", "n", "stride[0]")
A, B, N, S = map(symbol, SYMBOLS)


def op_of(text: str) -> Op:
    """The last op of a spec."""
    return read(Source(text))[-1]


def printer(operands: tuple[Operand, ...] = ()) -> Printer:
    """A printer for expressions over a few symbols and tensors."""
    program = Program("p", operands, (), SYMBOLS, ("alpha",), (), (), ())
    names = Names(
        tensors={operand.name: operand.name for operand in operands},
        strides={(o.name, axis): f"{o.name}_s{axis}" for o in operands for axis in range(o.rank)},
        symbols={name: name.replace("[", "_").replace("]", "") for name in SYMBOLS},
        numbers={"alpha": "alpha"},
    )
    return Printer(program, Types(program), names)


# ---------------------------------------------------------------------------- polynomials
@st.composite
def polynomials(draw: st.DrawFn, depth: int = 3) -> Poly:
    """Polynomials with every kind of atom but loads; divisors are positive at `VALUES`."""
    if depth == 0:
        return draw(st.sampled_from([A, B, N, S, poly(3), poly(-2), poly(1)]))
    left, right = draw(polynomials(depth - 1)), draw(polynomials(depth - 1))
    divisor = draw(st.sampled_from([N, poly(4), N * S, N + 1]))
    match draw(st.integers(0, 8)):
        case 0 | 1:
            return left + right
        case 2:
            return left - right
        case 3:
            return left * right if len(left.terms) * len(right.terms) <= 9 else left
        case 4:
            return floor_div(left, divisor)
        case 5:
            return left % divisor
        case 6:
            return minimum(left, right) if draw(st.booleans()) else maximum(left, right, 2)
        case 7:
            return gcd(divisor, N * 2) if draw(st.booleans()) else modular_inverse(N, N * N + 1)
        case _:
            return select_zero(left - right, right, left)


VALUES = [
    dict(zip(SYMBOLS, values, strict=True))
    for values in itertools.product((-7, 0, 2), (-3, 5), (1, 4), (1, 3))
]

conditions = st.builds(Condition, polynomials(), st.sampled_from(Relation))


def evaluate_in_c(texts: Sequence[str]) -> list[list[int]]:
    """The values of C expressions at VALUES."""
    parameters = ", ".join(f"int64_t {printer().names.symbols[name]}" for name in SYMBOLS)
    lines = [prelude.C, prelude.bindings("f32", "f32", {})]
    lines.append(f"void evaluate({parameters}, int64_t *out)\n{{")
    lines += [f"    out[{at}] = {text};" for at, text in enumerate(texts)]
    library = build.library("\n".join([*lines, "}\n"]))
    library.evaluate.argtypes = [*[ctypes.c_int64] * len(SYMBOLS), ctypes.c_void_p]
    out = []
    for values in VALUES:
        buffer = (ctypes.c_int64 * len(texts))()
        library.evaluate(*values.values(), buffer)
        out.append(list(buffer))
    return out


@settings(max_examples=2)
@given(
    polys=st.lists(polynomials(), min_size=60, max_size=60),
    tests=st.lists(conditions, min_size=30, max_size=30),
)
def test_printed_polynomials_and_conditions_mean_the_same_in_c(
    polys: list[Poly], tests: list[Condition]
) -> None:
    texts = [printer().poly(value).text for value in polys]
    texts += [printer().condition(test).text for test in tests]
    for values, found in zip(VALUES, evaluate_in_c(texts), strict=True):
        wanted = [value.evaluate(values) for value in polys]
        wanted += [int(test.holds(values)) for test in tests]
        assert dict(zip(texts, found, strict=True)) == dict(zip(texts, wanted, strict=True))


def test_a_missing_parenthesis_is_noticed() -> None:
    """The control for the test above."""
    assert evaluate_in_c(["a - b + n"]) != evaluate_in_c(["a - (b + n)"])


@given(value=polynomials(), test=conditions)
def test_printed_polynomials_and_conditions_mean_the_same_in_python(
    value: Poly, test: Condition
) -> None:
    class Checks:
        @staticmethod
        def modular_inverse(a: int, n: int) -> int:
            return 0 if n == 1 else pow(a, -1, n)

    text = python_text(value, str).text
    condition = python_condition(test, str).text
    for values in VALUES:
        scope: dict[str, object] = {"math": math, "checks": Checks, "stride": [values["stride[0]"]]}
        scope |= values
        assert eval(text, scope) == value.evaluate(values)
        assert eval(condition, scope) == test.holds(values)


# ---------------------------------------------------------------------------- readable text
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (A - B - 1, "a - b - 1"),
        (-A, "-a"),
        (2 * A * (B + N), "2 * a * b + 2 * a * n"),
        (A - N * (B // N), "a - n * floor_div(b, n)"),
        (minimum(A, B, N) * S, "stride_0 * least(least(a, b), n)"),
        (A + select_zero(B, A, N), "a + (b == 0 ? a : n)"),
        (poly(2**40) * A, "1099511627776LL * a"),
    ],
)
def test_polynomials_have_no_more_parentheses_than_c_needs(value: Poly, text: str) -> None:
    assert printer().poly(value).text == text


@pytest.mark.parametrize(
    ("test", "text"),
    [
        (Condition(A - 1), "a >= 1"),
        (Condition(N - 1 - A), "n > a"),
        (Condition(N - A), "n >= a"),
        (Condition(A - B, Relation.EQ), "a == b"),
        (Condition(A % N, Relation.NE), "a != n * floor_div(a, n)"),
    ],
)
def test_conditions_have_no_negative_terms(test: Condition, text: str) -> None:
    assert printer().condition(test).text == text


def _load(name: str) -> loops.Load:
    return loops.Load(name, (A, B))


_HALF = loops.Number(0.5)

OPERANDS = (
    Operand("x", DType.SAME, (N, N)),
    Operand("h", DType.BF16, (N, N)),
    Operand("i", DType.I32, (N, N)),
    Operand("t", DType.SAME, (N, N), widened=True),
)


@pytest.mark.parametrize(
    ("scalar", "text"),
    [
        (_load("x"), "from_T(x[a * x_s0 + b * x_s1])"),
        (loops.Load("x", (poly(0), poly(1))), "from_T(x[x_s1])"),
        (loops.Load("x", (poly(0), poly(0))), "from_T(x[0])"),
        (loops.Load("x", (A + B, N)), "from_T(x[(a + b) * x_s0 + n * x_s1])"),
        (_load("t"), "t[a * t_s0 + b * t_s1]"),
        (_load("h"), "from_bf16(h[a * h_s0 + b * h_s1])"),
        (_load("i"), "(int64_t)i[a * i_s0 + b * i_s1]"),
        (
            loops.Call("sub", (loops.Number(1), loops.Call("sub", (_load("t"), _load("t"))))),
            "1 - (t[a * t_s0 + b * t_s1] - t[a * t_s0 + b * t_s1])",
        ),
        (loops.Call("neg", (loops.Call("neg", (loops.Integer(A),)),)), "-(-a)"),
        (loops.Call("div", (loops.Integer(A), loops.Integer(B + 1))), "(real)a / (real)(b + 1)"),
        (loops.Call("mul", (loops.Argument("alpha"), _HALF)), "(real)alpha * (real)0.5"),
        (loops.Call("abs", (loops.Integer(A),)), "llabs(a)"),
        (loops.Number(-math.inf), "-(real)INFINITY"),
        (
            loops.Choose(loops.Inside(A, N), loops.Integer(A), loops.Number(0)),
            "inside(a, n) ? a : 0",
        ),
        (
            loops.Choose(
                loops.Nonzero(loops.Call("lt", (loops.Integer(A), loops.Integer(B)))),
                loops.Number(1),
                loops.Number(2),
            ),
            "a < b ? 1 : 2",
        ),
    ],
)  # fmt: skip
def test_scalars(scalar: loops.Scalar, text: str) -> None:
    assert printer(OPERANDS).scalar(scalar).text == text


def test_a_speculative_load_is_guarded() -> None:
    text = printer(OPERANDS).poly(load("i", (A, B)) + 1).text
    assert text == ("(inside(a, n) && inside(b, n) ? (int64_t)i[a * i_s0 + b * i_s1] : 0) + 1")


def test_kernel() -> None:
    op = op_of(
        "op f(x[B,C,W]; step=1) -> y[B,V]\n  where step >= 1\n  let V = W + (C-1)*step\n"
        "  y[b,v] = sum(c) x[b,c, v - c*step ?0]  for v in V"
    )
    text = c_source(rows(schedule(op, gather(op)), facts_of(op)))
    start, end = text.index("// y["), text.index("// Called")
    assert text[start:end].strip() == KERNEL.strip()


KERNEL = """
// y[b,v] = sum(c) x[b,c, v - c*step ?0]
KERNEL void f_y(
    const T *restrict x, int64_t x_s0, int64_t x_s1, int64_t x_s2,
    T *restrict y, int64_t y_s0, int64_t y_s1,
    int64_t B, int64_t C, int64_t W, int64_t V, int64_t step,
    int streams,
    int64_t begin, int64_t end)
{
    if (begin >= end) return;
    int64_t rest = begin;
    int64_t v_part = rest % floor_div(V + 1023, 1024);
    rest /= floor_div(V + 1023, 1024);
    int64_t b = rest;
    for (int64_t point = begin; point < end; point++) {
        const int64_t v_first = v_part * 1024;
        const int64_t v_last = least(v_first + 1024, V) - 1;
        wide total[1024];
        INDEPENDENT
        for (int64_t v = v_first; v <= v_last; v++) {
            total[v - v_first] = 0;
        }
        const int64_t c_end = least(C, floor_div(v_last, step) + 1);
        for (int64_t c = greatest(0, floor_div(v_first - W, step) + 1); c < c_end; c++) {
            NOT_A_VECTOR;
            const int64_t v_begin = greatest(v_first, c * step);
            const int64_t v_end = least(v_last, c * step + W - 1);
            if (x_s2 == 1)
                for (int64_t v = v_begin; v <= v_end; v += 64 / (int64_t)sizeof(T))
                    FETCH(&x[b * x_s0 + (c + 1) * x_s1 + (v - c * step - step) * x_s2]);
            INDEPENDENT
            for (int64_t v = v_begin; v <= v_end; v++) {
                total[v - v_first] += from_T(x[b * x_s0 + c * x_s1 + (v - c * step) * x_s2]);
            }
        }
        T y_buffer[1024];
        const int y_streams = streams && y_s1 == 1
                && is_of_lines(&y[b * y_s0 + v_first * y_s1],
                (v_last - v_first + 1) * (int64_t)sizeof(T));
        T *const y_line = y_streams ? y_buffer : &y[b * y_s0 + v_first * y_s1];
        INDEPENDENT
        for (int64_t v = v_first; v <= v_last; v++) {
            y_line[(v - v_first) * y_s1] = to_T(total[v - v_first]);
        }
        if (y_streams) stream(&y[b * y_s0 + v_first * y_s1], y_buffer,
                (v_last - v_first + 1) * (int64_t)sizeof(T));
        if (++v_part < floor_div(V + 1023, 1024)) continue;
        v_part = 0;
        ++b;
    }
}

ANY_STEPS void f_y_any_steps(
    int64_t begin, int64_t end, const struct call *call)
{
    const int64_t *n = call->integers;
    (void)n;
    f_y(
        call->tensors[0], n[5], n[6], n[7],
        call->tensors[1], n[8], n[9],
        n[0], n[1], n[2], n[3], n[4], 0,
        begin, end);
}

static void f_y_task(int64_t begin, int64_t end, const struct call *call)
{
    const int64_t *n = call->integers;
    (void)n;
    if (n[7] == 1 && n[9] == 1) {
        f_y(
            call->tensors[0], n[5], n[6], 1,
            call->tensors[1], n[8], 1,
            n[0], n[1], n[2], n[3], n[4], call->streams,
            begin, end);
        return;
    }
    f_y_any_steps(begin, end, call);
}
"""


# ---------------------------------------------------------------------------- names
@pytest.mark.parametrize(
    "word", ["int", "double", "class", "restrict", "exp", "T", "real", "_x", "x_t", "from_x", "I"]
)
def test_reserved_words(word: str) -> None:
    assert is_reserved_in_c(word)
    assert CNames().fresh(word) != word


def test_what_preludes_define_is_reserved() -> None:
    """A size may be called like a type, a macro or a function that kernels use."""
    texts = [prelude.C, prelude.cuda(narrow=False), prelude.cuda(narrow=True, whole=True)]
    texts += [cuda_tiles.SOURCE, cuda_source.UNROUNDED]
    texts += [
        prelude.bindings(shared, "f32", {"k": "i64"}) for shared in ("f32", "f16", "bf16", "i32")
    ]
    defined = set[str]()
    for text in texts:
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        code = re.sub(r"template\s*<[^<>]*>\s*", "", code)
        defined.update(re.findall(r"# *define +(\w+)", code))
        defined.update(
            re.findall(r"^typedef [^;(]*?(\w+)(?: __attribute__[^;]*)?;", code, re.MULTILINE)
        )
        defined.update(re.findall(r"^(?:struct|enum) (\w+)", code, re.MULTILINE))
        # A function: its result's type, its name, its parameters, at the start of a line.
        defined.update(re.findall(r"^(?:\w+[ *]+)+(\w+)\(", code, re.MULTILINE))
    assert {"wide", "wide_lanes", "THREADS", "from_T", "load_run", "call"} <= defined
    assert {"METHOD", "multiply_matrices", "product_sums"} <= defined
    assert {name for name in defined if not is_reserved_in_c(name)} == set()


def test_names_are_unique_and_c_identifiers() -> None:
    scope = CNames()
    wanted = ["x", "x", "x_2", "stride[0]", "stride_0", BATCH, "_t1", "t1", "for", "_", "é", "a_t"]
    given = [scope.fresh(name) for name in wanted]
    assert len(set(given)) == len(given)
    assert all(name.isidentifier() and name.isascii() and name[0] != "_" for name in given)


def test_python_names() -> None:
    assert list(python_names(["x", "lambda", "torch", BATCH, "checks"]).values()) == [
        "x", "lambda_", "torch_", "batch", "checks_",
    ]  # fmt: skip


def test_names_of_c_and_of_the_prelude_are_legal_in_specs() -> None:
    text = """
op exp(int[double,void], b[b_s0]; T=1, real=0.5, restrict: int[2] = 1, fault=true)
    -> main[double,void], n: i32[1]
  where T >= 1
  main[total,b] = int[total,b] * real + (sum(k) b[k]) * restrict[0] + T*fault
  n[0] = sum(term in double, c in void) restrict[1]
"""
    exp = opgen.compile(text).exp
    x, y = torch.randn(2, 3), torch.randn(4)
    got, count = exp(x, y, T=2, real=0.25, restrict=(3, 5))
    torch.testing.assert_close(got, x * 0.25 + y.sum() * 3 + 2)
    assert count.tolist() == [30]
    with emulated():
        torch.testing.assert_close(exp(x, y, T=2, real=0.25, restrict=(3, 5))[0], got)


@pytest.mark.parametrize(
    ("op", "a", "b", "n", "output"),
    [
        ("product", "a", "METHOD", "N", "sums"),
        ("product", "multiply_matrices", "b", "METHOD", "plan"),
        ("multiply", "words", "b", "multiply_matrices", "matrices"),
    ],
)
def test_names_of_tiles_are_legal_in_products(op: str, a: str, b: str, n: str, output: str) -> None:
    function = getattr(
        opgen.compile(
            f"op {op}({a}[{n},K], {b}[K,M]) -> {output}[{n},M]\n"
            f"  {output}[i,m] = sum(k) {a}[i,k] * {b}[k,m]\n"
        ),
        op,
    )
    left, right = torch.randn(20, 17), torch.randn(17, 19)
    with emulated(products=Products.ALWAYS):
        torch.testing.assert_close(function(left, right), left @ right)


PRODUCT = "(a[N,K], b[K,M]) -> y[N,M]\n  y[n,m] = sum(k) a[n,k] * b[k,m]\n"
SOFTMAX = """(x[N,K]) -> y[N,K]
  tmp m[N], e[N,K], s[N]
  m[n] max= x[n,k]
  e[n,k] = exp(x[n,k] - m[n])
  s[n] += e[n,k]
  y[n,k] = e[n,k] / s[n]
"""


# The language has the word `gradient` for itself.
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [n for n in IMPORTED if n[0].isupper() and n != "Gradient"])
def test_classes_may_be_called_like_what_a_module_imports(name: str) -> None:
    """A module imports most where it has a product, a softmax and a convolution."""
    own = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    ops = opgen.compile(
        f"op {own}{PRODUCT}\nop {own}s{SOFTMAX}\nop another(x[N,I,H], w[O,I,3]) -> y[N,O,H]\n"
        "  y[n,o,h] = sum(i,k) x[n,i,h + k - 1 ?0] * w[o,i,k]\n"
    )
    left, right = torch.randn(4, 5), torch.randn(5, 3)
    torch.testing.assert_close(getattr(ops, own)(left, right), left @ right)
    torch.testing.assert_close(getattr(ops, f"{own}s")(left), left.softmax(1))


# ---------------------------------------------------------------------------- templates
@pytest.mark.parametrize("template", sorted(path.name for path in resources.TEMPLATES.iterdir()))
def test_templates_receive_one_object(template: str) -> None:
    text = (resources.TEMPLATES / template).read_text(encoding="utf-8")
    tree = jinja2.Environment().parse(text)
    assert jinja2.meta.find_undeclared_variables(tree) <= {"k"}


# ---------------------------------------------------------------------------- random ops
def outputs_of(op: Op, call: notation_strategies.Call) -> list[torch.Tensor]:
    """The outputs of an op through its C kernels."""
    operation = on_demand.operation(op)
    tensors = [
        torch.from_numpy(np.asarray(call.tensors[tensor.name]).copy())
        if tensor.name in call.tensors
        else None
        for tensor in op.inputs
    ]
    values = [call.attributes.get(a.name, a.default) for a in op.attributes]
    result = operation.call(*tensors, *values)
    return [result] if isinstance(result, torch.Tensor) else list(result)


def assert_same(got: torch.Tensor, wanted: np.ndarray) -> None:
    tolerance = {torch.float16: 2e-2, torch.float64: 1e-9}.get(got.dtype, 1e-3)
    expected = torch.from_numpy(np.asarray(wanted))
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


KINDS = (np.float64, np.float32, np.int64, np.int32)


def assert_computes_what_the_notation_says(data: st.DataObject) -> None:
    op = data.draw(notation_strategies.ops())
    tensors = (*op.inputs, *op.outputs, *op.temporaries)
    floating = any(tensor.dtype is DType.FLOAT for tensor in tensors)
    kind = data.draw(st.sampled_from(KINDS[:2] if floating else KINDS))
    call = data.draw(notation_strategies.calls(op, kind))
    wanted = evaluate(op, call.sizes, call.tensors, call.attributes)
    for tensor, got in zip(op.outputs, outputs_of(op, call), strict=True):
        assert_same(got, wanted[tensor.name])


@settings(max_examples=12)
@given(data=st.data())
def test_c_computes_what_the_notation_says(data: st.DataObject) -> None:
    assert_computes_what_the_notation_says(data)


@settings(max_examples=8)
@given(data=st.data())
def test_cuda_computes_what_the_notation_says(data: st.DataObject) -> None:
    with emulated():
        assert_computes_what_the_notation_says(data)


def test_a_wrong_cuda_kernel_is_reported() -> None:
    op = op_of("op f(x[N], w[N]) -> y[N]\n  y[n] = x[n] - w[n]")
    operation = on_demand.operation(op)
    x, w = torch.randn(9), torch.randn(9)
    wrong = operation.cuda.source.replace("]) - from_T", "]) + from_T")
    assert wrong != operation.cuda.source
    object.__setattr__(operation.cuda, "source", wrong)
    with emulated():
        assert not torch.allclose(operation.call(x, w), x - w)
    assert torch.allclose(operation.call(x, w), x - w)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_only_copied_is_not_converted(dtype: torch.dtype) -> None:
    """A NaN keeps its bits, which a conversion from 16 bits and back would not."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    module = opgen.compile("op f(x[N]) -> y[N]\n  y[n] = x[n]")
    assert torch.equal(module.f(bits.view(dtype)).view(torch.int16), bits)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 5, 33, 70])
def test_interleaved_copies_keep_their_bits(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all optimisations: compilers shuffle vectors of them."""
    monkeypatch.delenv("OPGEN_CFLAGS", raising=False)
    op = f"zip_{size}_{str(dtype).removeprefix('torch.')}"
    module = opgen.compile(f"op {op}(x[C,4,W]) -> y[C,(W 4)]\n  y[c,(w j)] = x[c,j,w]")
    bits = torch.arange(-(2**15), 2**15).to(torch.int16).repeat(2)[: 3 * 4 * size].view(3, 4, size)
    for x in (bits, bits.flip(2).transpose(1, 2).contiguous().transpose(1, 2)):
        found = getattr(module, op)(
            x.view(dtype) if x.is_contiguous() else x.transpose(1, 2).view(dtype).transpose(1, 2)
        )
        assert torch.equal(found.view(torch.int16), x.transpose(1, 2).reshape(3, -1))


@pytest.mark.parametrize(
    "op", ["f(x: i32[N]) -> y: f32[N]\n  y[n] = x[n]", "f(x[N]) -> y[N]\n  y[n] = -x[n]"]
)
def test_what_is_not_only_copied_is_converted(op: str) -> None:
    checked = op_of(f"op {op}")
    program = rows(schedule(checked, gather(checked)), facts_of(checked))
    assert "stored_T" not in c_source(program)
