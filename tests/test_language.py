"""LANGUAGE.md keeps its word: every example is accepted, refused or computed as the page says.

An `opgen` block must check. An `opgen-error CODE` block must be refused with that code, and a
comment in it that is no part of the message is a fault of the page. What the text claims of values
is evaluated by the reference interpreter and compared with numbers worked out by hand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pytest

from opgen import resources
from opgen.errors import OpgenError, Source
from opgen.ir.functions import Number
from opgen.ir.notation import Apply, AttributeType, Boundary, Constant, DType, Expr, Op
from opgen.ir.primitives import PRIMITIVES, Precedence
from opgen.ir.reference import evaluate
from opgen.lang.check import check
from opgen.lang.parse import parse
from opgen.lang.syntax import REDUCERS
from opgen.passes.differentiate import adjoint

PAGE = resources.GRAMMAR.with_name("LANGUAGE.md").read_text(encoding="utf-8")
GRAMMAR = resources.GRAMMAR.read_text(encoding="utf-8")
INF, NAN = math.inf, math.nan


# ---------------------------------------------------------------------------- the page
@dataclass(frozen=True)
class Example:
    """A fenced block; `code` is that of the diagnostic it must cause, empty if it must check."""

    line: int
    text: str
    code: str = ""

    def __repr__(self) -> str:
        return f"line {self.line}{self.code and ': ' + self.code}"


def examples(page: str) -> list[Example]:
    found = []
    for block in re.finditer(r"^```(\S*) ?(\S*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        kind, code, text = block.groups()
        line = page.count("\n", 0, block.start()) + 2
        assert (kind, bool(code)) in {("opgen", False), ("opgen-error", True)}, f"line {line}"
        found.append(Example(line, text, code))
    return found


def fault_of(example: Example) -> str:
    """What is wrong with an example; empty if it does what the page says."""
    try:
        compiled(example.text)
    except OpgenError as error:
        codes = [diagnostic.code for diagnostic in error.diagnostics]
        if not example.code:
            return f"is refused:\n{error}"
        if example.code not in codes:
            return f"is refused with {codes}"
        spoken = " ".join(d.headline for d in error.diagnostics)
        comments = [line.split("# ", 1)[1] for line in example.text.splitlines() if "# " in line]
        missing = [comment for comment in comments if comment not in spoken]
        return f"shows a message that is not given: {missing}" if missing else ""
    return "is accepted" if example.code else ""


def compiled(text: str) -> tuple[Op, ...]:
    source = Source(text)
    return check(parse(source), source)


EXAMPLES = examples(PAGE)
OPS = {op.name: op for e in EXAMPLES if not e.code for op in compiled(e.text)}


@pytest.mark.parametrize("example", EXAMPLES, ids=repr)
def test_example(example: Example) -> None:
    assert not fault_of(example)


@pytest.mark.parametrize(
    ("example", "fault"),
    [
        (Example(1, "op f(x[N]) -> y[N]\n  y[i] = x[i + 1]\n"), "is refused:"),
        (Example(1, "op f(x[N]) -> y[N]\n  y[i] = x[i]\n", "out-of-range"), "is accepted"),
        (Example(1, "op f(x[N]) -> y[N]\n  y[i] = x[i + 1]\n", "syntax"), "is refused with"),
        (
            Example(1, "op f(x[N]) -> y[N]\n  y[i] = x[i + 1]  # all is well\n", "out-of-range"),
            "shows a message that is not given",
        ),
    ],
)
def test_wrong_examples_are_noticed(example: Example, fault: str) -> None:
    assert fault_of(example).startswith(fault)


def test_names_of_example_ops_are_unique() -> None:
    names = re.findall(r"^op (\w+)", "".join(e.text for e in EXAMPLES), re.MULTILINE)
    assert sorted(names) == sorted(set(names))


# ---------------------------------------------------------------------------- completeness
def prose(page: str) -> str:
    """The page without its examples."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def spans(text: str) -> set[str]:
    """The words that are set as code."""
    return set(re.findall(r"[\w?*/%.=+-]+", " ".join(re.findall(r"`([^`]*)`", text))))


def function_table() -> dict[str, str]:
    """What the page says of the derivative of each function."""
    found = {}
    for line in prose(PAGE).split("| function |")[1].split("\n\n")[0].splitlines()[2:]:
        first, _, derivative = (cell.strip() for cell in line.split("|")[1:4])
        for name in re.findall(r"`(\w+)\(", first):
            found[name] = derivative
    return found


def test_every_function_is_in_the_table() -> None:
    functions = {r.name for r in PRIMITIVES.values() if r.precedence is Precedence.PRIMARY}
    assert function_table().keys() == functions


@pytest.mark.parametrize("name", function_table())
def test_table_says_which_functions_pass_no_gradient(name: str) -> None:
    derivative = function_table()[name]
    passes_none = derivative == "none" or f"`{name}`: none" in derivative
    assert passes_none == (not PRIMITIVES[name].differentiable)


def test_every_operator_is_on_the_page() -> None:
    operators = {row.symbol for row in PRIMITIVES.values()}
    assert not {o for o in operators if o not in PAGE}


def test_reserved_words_are_those_of_the_grammar() -> None:
    listed = re.search(r"Reserved: `([^`]*)`", PAGE)
    assert listed is not None
    assert sorted(listed[1].split()) == sorted(set(re.findall(r'"([a-z]+)"', GRAMMAR)))


@pytest.mark.parametrize(
    "words",
    [
        [f"{b.value}v)" if b is Boundary.FILL else b.value for b in Boundary if b.value],
        list(REDUCERS),
        [dtype.value for dtype in DType if dtype is not DType.SAME],
        [t.value for t in AttributeType if t is not AttributeType.CHOICE],
        ["=", "+=", "max=", "min="],
        re.findall(r"^_clause: (.*)$", GRAMMAR, re.MULTILINE)[0].split(" | ")[:-1],
    ],
    ids=["modes", "reductions", "types", "attributes", "statements", "clauses"],
)
def test_every_word_is_explained(words: Sequence[str]) -> None:
    shortened = {"temporaries": "tmp", "?(v)": "?"}
    known = spans(prose(PAGE)) | set(re.findall(r"\*\*`(\w+)", PAGE))
    assert not {word for word in words if shortened.get(word, word) not in known}


# ---------------------------------------------------------------------------- values
Data = Mapping[str, object]


@dataclass(frozen=True)
class Case:
    """A call of an op, usually one of the page, and the outputs worked out by hand."""

    op: str | Op
    sizes: Mapping[str, int]
    inputs: Data
    outputs: Data
    attributes: Mapping[str, int | float | str | bool | tuple[int, ...]] = field(
        default_factory=dict
    )

    def __repr__(self) -> str:
        return self.op if isinstance(self.op, str) and self.op in OPS else self.spec.name

    @property
    def spec(self) -> Op:
        match self.op:
            case Op():
                return self.op
            case str():
                return OPS[self.op] if self.op in OPS else compiled(self.op)[0]
            case unexpected:
                assert_never(unexpected)


def array(op: Op, name: str, values: object) -> npt.NDArray[np.generic]:
    if isinstance(values, np.ndarray):
        return values
    tensor = next(t for t in op.inputs if t.name == name)
    return np.array(values, np.int64 if tensor.dtype is DType.INT else np.float32)


def results(case: Case) -> dict[str, object]:
    op = case.spec
    inputs = {name: array(op, name, values) for name, values in case.inputs.items()}
    outputs = evaluate(op, case.sizes, inputs, case.attributes)
    return {name: values.tolist() for name, values in outputs.items()}


def assert_close(found: Mapping[str, object], expected: Data) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(
            np.array(found[name], float), np.array(values, float), 1e-6, err_msg=name
        )


CASES = [
    Case(
        "shift_sum",
        {"B": 1, "C": 2, "H": 1, "W": 2},
        {"x": [[[[1, 2]], [[10, 20]]]]},
        {"y": [[[[1, 12, 20]]]]},
    ),
    Case(
        "affine",
        {"N": 2, "C": 1},
        {"x": [1, 2], "w": [[3], [4]], "b": [5]},
        {"y": [16]},
    ),
    Case(
        "depth_to_space",
        {"N": 1, "C": 1, "H": 1, "W": 2},
        {"x": [[[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]]},
        {"y": [[[[0, 2, 1, 3], [4, 6, 5, 7]]]]},
    ),
    Case("even", {"N": 2}, {"x": [1, 2, 3, 4]}, {"y": [1, 3]}),
    Case(
        "normalise",
        {"...": 2, "D": 2},
        {"x": [[1, 2], [3, 4]], "shift": [1, 1]},
        {"y": [[0, 1], [2, 3]]},
    ),
    Case("binomial", {"N": 4}, {"x": [1, 2, 4, 8]}, {"y": [2.25, 4.5]}),
    Case("binomial", {"N": 5}, {"x": [1, 0, 2, 0, 4]}, {"y": [2.25]}, {"dilation": (2,)}),
    Case("unflat", {"H": 2, "W": 2}, {"x": [1, 2, 3, 4]}, {"y": [[1, 2], [3, 4]]}),
    Case("concatenate", {"N": 1, "M": 2}, {"a": [1], "b": [2, 3]}, {"y": [1, 2, 3]}),
    Case(
        "triangles",
        {"N": 2, "M": 3},
        {"x": [[1, 2, 3], [4, 5, 6]]},
        {"y": [[1, -2, -3], [4, 5, -6]]},
    ),
    Case("variance", {"N": 1, "D": 2}, {"x": [[1, 3]]}, {"y": [1]}),
    Case(
        "coverage",
        {"C": 2, "W": 2, "step": 1},
        {"x": [[4, 4], [4, 4]]},
        {"y": [[4, 2], [2, 4]]},
        {"step": 1},
    ),
    Case(
        "masked",
        {"C": 2, "W": 2},
        {"x": [[1, 2], [3, 4]], "mask": [1, 10]},
        {"y": [1, 20 + 3]},
    ),
    Case(
        "take",
        {"V": 2, "E": 2, "N": 3},
        {"table": [[1, 2], [3, 4]], "row": [1, 0, 1]},
        {"y": [[3, 4], [1, 2], [3, 4]]},
    ),
    Case("histogram", {"N": 4, "bins": 2}, {"x": [1, -1, 1, 2]}, {"y": [0, 2]}, {"bins": 2}),
    Case(
        "ragged",
        {"N": 2, "L": 2},
        {"x": [[1, NAN], [3, 4]], "length": [1, 2]},
        {"y": [1, 7]},
    ),
    Case("pad_edge", {"N": 2, "p": 2}, {"x": [1, 2]}, {"y": [1, 1, 1, 2, 2, 2]}, {"p": 2}),
    Case(
        "pad_edge_transposed",
        {"N": 2, "p": 1},
        {"grad_y": [1, 2, 3, 4]},
        {"grad_x": [3, 7]},
        {"N": 2, "p": 1},
    ),
    Case("weigh", {"N": 2}, {"x": [1, 2], "w": [INF, 3]}, {"y": [0, 3]}),
    Case("dilate", {"N": 3}, {"x": [-5, -1, -2]}, {"y": [-1, -1, -1]}),
    Case("covered", {"N": 2}, {"x": [2, 7], "m": [3, 9]}, {"y": [0, 6]}),
    Case("soft", {"N": 1, "K": 2}, {"x": [[0, math.log(3)]]}, {"y": [[0.25, 0.75]]}),
    Case(
        "peak",
        {"N": 2, "H": 2, "W": 2},
        {"x": [[[1, 5], [5, 2]], [[1, NAN], [9, NAN]]]},
        {"value": [5, NAN], "index": [1, 1]},
    ),
    Case("leaky", {"N": 2}, {"x": [2, -2]}, {"y": [2, -0.02]}),
    Case("previous", {"N": 3}, {"x": [1, 2, 3]}, {"y": [1, 1, 2]}),
    Case("fixed", {"N": 3}, {"x": [1, 2, 3]}, {"y": 3}, {"k": 2}),
    Case("mirror", {"N": 3}, {"x": [1, 2, 3]}, {"y": [2, 3, 2]}),
    Case("hard_sign", {"N": 3}, {"x": [-2, 0, NAN]}, {"y": [-1, 0, 0]}),
    Case(
        "hard_sign_grad",
        {"N": 3},
        {"x": [-2, 0, 1], "grad_y": [1, 2, 3]},
        {"grad_x": [0, 2, 3]},
    ),
    # ------------------------------------------------------------ statements
    Case(
        "op unwritten(x[N]) -> a[N], b[N], c[N], d[N], e[N]\n"
        "  a[i] = x[i]  if i >= 1\n"
        "  b[i] += x[i]  if i >= 1\n"
        "  c[i] max= x[i]  if i >= 1\n"
        "  d[i] min= x[i]  if i >= 1\n"
        "  e[i] = max(k) x[k]  if i >= 1\n",
        {"N": 2},
        {"x": [1, 2]},
        {"a": [0, 2], "b": [0, 2], "c": [-INF, 2], "d": [INF, 2], "e": [0, 2]},
    ),
    Case(
        "op scattered_maximum(x[N]) -> y[2*N]\n  y[2*i] = max(k) x[k]  for i in N\n",
        {"N": 1},
        {"x": [3]},
        {"y": [3, 0]},
    ),
    Case(
        "op joined(x[N]) -> y[N]\n  y[i] = 10\n  y[i] += x[k]\n",
        {"N": 2},
        {"x": [1, 2]},
        {"y": [13, 13]},
    ),
    Case(
        "op greatest(x[N]) -> y[1]\n  y[0] max= x[i]\n  y[0] max= 2\n",
        {"N": 2},
        {"x": [1, NAN]},
        {"y": [NAN]},
    ),
    Case(
        'op chosen(x[N]; mode = "a" | "b") -> y[N]\n'
        '  y[i] = x[i]   if mode == "a"\n'
        '  y[i] = -x[i]  if mode == "b"\n',
        {"N": 1},
        {"x": [1]},
        {"y": [-1]},
        {"mode": "b"},
    ),
    Case(
        "op conditional(x[N], m: bool[N]; flag = false) -> y[N]\n"
        "  y[i] += x[i]  if m[i]\n"
        "  y[i] += 10    if not flag and 0 <= i < 1\n"
        "  y[i] += 5     if not m[i]\n",
        {"N": 3},
        {"x": [1, 2, NAN], "m": np.array([True, True, False])},
        {"y": [11, 2, 5]},
    ),
    Case(
        "op batch_sum(x[...,C]) -> y[C]\n  y[c] += x[...,c]\n",
        {"...": 2, "C": 2},
        {"x": [[1, 2], [3, 4]]},
        {"y": [4, 6]},
    ),
    # ------------------------------------------------------------ indices
    Case(
        "op rounded(x[N]) -> y[N], z[N], s[N]\n"
        "  y[i] = x[i] + (i - 3)//2\n"
        "  z[i] = x[i] + (i - 3)%2\n"
        "  s[i] = x[i] + (-i//2)\n",
        {"N": 3},
        {"x": [0, 0, 0]},
        {"y": [-2, -1, -1], "z": [1, 0, 1], "s": [0, 0, -1]},
    ),
    # ------------------------------------------------------------ outside
    *(
        Case(
            f"op {name}(x[N]) -> y[M]\n  where N >= 3\n  let M = N + 4\n  y[i] = x[i - 2 {mode}]\n",
            {"N": 3},
            {"x": [1, 2, 3]},
            {"y": expected},
        )
        for name, mode, expected in [
            ("zero", "?0", [0, 0, 1, 2, 3, 0, 0]),
            ("filled", "?(-7)", [-7, -7, 1, 2, 3, -7, -7]),
            ("infinite", "?(-inf)", [-INF, -INF, 1, 2, 3, -INF, -INF]),
            ("clamped", "?clamp", [1, 1, 1, 2, 3, 3, 3]),
            ("reflected", "?reflect", [3, 2, 1, 2, 3, 2, 1]),
            ("symmetric", "?symmetric", [2, 1, 1, 2, 3, 3, 2]),
            ("wrapped", "?wrap", [2, 3, 1, 2, 3, 1, 2]),
        ]
    ),
    *(
        Case(
            f"op writes_{mode}(x[M]; N: size) -> y[N]\n"
            "  where N >= 3\n"
            "  let M = N + 4\n"
            f"  y[i - 2 ?{mode}] += x[i]\n",
            {"N": 3},
            {"x": [1, 10, 100, 1000, 10000, 10, 1]},
            {"y": expected},
            {"N": 3},
        )
        for mode, expected in [
            ("drop", [100, 1000, 10000]),
            ("clamp", [111, 1000, 10011]),
            ("reflect", [101, 1020, 10001]),
            ("symmetric", [110, 1002, 10010]),
            ("wrap", [110, 1002, 10010]),
        ]
    ),
    Case(
        "op both_outside(x[N,M]) -> y[N]\n  y[i] = x[i - 1 ?0, i + 5 ?(3)]\n",
        {"N": 2, "M": 2},
        {"x": [[1, 2], [3, 4]]},
        {"y": [0, 3]},
    ),
    Case(
        "op absent(x[N]; n = 9) -> s[N], d[N], g[N], q[N], r[N], e[N], p[N], f[N], c[N]\n"
        "  s[i] = x[i - n ?0] + 2\n"
        "  d[i] = 3 - x[i - n ?0]\n"
        "  g[i] = -x[i - n ?0] * inf\n"
        "  q[i] = x[i - n ?0] / 0\n"
        "  r[i] = 1 / (2 + x[i - n ?0])\n"
        "  e[i] = exp(x[i - n ?0])\n"
        "  p[i] = x[i - n ?0] ** 0\n"
        "  f[i] = max(x[i - n ?0], x[i])\n"
        "  c[i] = select(x[i - n ?0], 5, x[i - n ?0] * inf)\n",
        {"N": 1},
        {"x": [-4]},
        {
            "s": [2],
            "d": [3],
            "g": [0],
            "q": [0],
            "r": [0.5],
            "e": [1],
            "p": [1],
            "f": [0],
            "c": [0],
        },
    ),
    Case(
        "op absent_joined(x[N]; n = 9) -> s[N], m[N], h[N], l[N], p[N], a: i64[N]\n"
        "  s[i] = sum(k in 2) x[i + k*n ?0]\n"
        "  m[i] = mean(k in 2) x[i + k*n ?0]\n"
        "  h[i] = max(k in 2) x[i + k*n ?0]\n"
        "  l[i] = min(k in 2) -x[i + k*n ?0]\n".replace("-x[i + k*n ?0]", "(-x[i + k*n ?0])")
        + "  p[i] = prod(k in 2) x[i + k*n ?0]\n"
        "  a[i] = argmax(k in 2) x[i + k*n ?0]\n",
        {"N": 1},
        {"x": [-4]},
        {"s": [-4], "m": [-2], "h": [-4], "l": [4], "p": [0], "a": [0]},
    ),
    # ------------------------------------------------------------ reductions
    Case(
        "op empty(x[N,K]) -> s[N], h[N], l[N], p[N], m[N], a: i64[N], b: i64[N]\n"
        "  s[n] = sum(k) x[n,k]\n"
        "  h[n] = max(k) x[n,k]\n"
        "  l[n] = min(k) x[n,k]\n"
        "  p[n] = prod(k) x[n,k]\n"
        "  m[n] = mean(k) x[n,k]\n"
        "  a[n] = argmax(k) x[n,k]\n"
        "  b[n] = argmin(k) x[n,k]\n",
        {"N": 1, "K": 0},
        {"x": [[]]},
        {"s": [0], "h": [-INF], "l": [INF], "p": [1], "m": [NAN], "a": [-1], "b": [-1]},
    ),
    Case(
        "op empty_integers(x: i32[N]) -> h: i32[], l: i32[]\n"
        "  h[] = max(k) x[k]\n"
        "  l[] = min(k) x[k]\n",
        {"N": 0},
        {"x": np.zeros(0, np.int32)},
        {"h": -(2**31), "l": 2**31 - 1},
    ),
    Case(
        "op swallowed(x[N]) -> a[], b[], c[]\n"
        "  a[] = sum(k) x[k] * 2 + 100\n"
        "  b[] = sum(k) x[k] / 2\n"
        "  c[] = 2 * sum(k) x[k] * x[k]\n",
        {"N": 2},
        {"x": [1, 3]},
        {"a": 108, "b": 2, "c": 20},
    ),
    Case(
        "op guarded(x[N]) -> a[N], b[N]\n"
        "  a[i] = sum(k if k < i) x[k]\n"
        "  b[i] = mean(k if k <= i) x[k]\n",
        {"N": 3},
        {"x": [1, 3, 5]},
        {"a": [0, 1, 4], "b": [1, 2, 3]},
    ),
    Case(
        "op equals(x[N]) -> a: i64[], b: i64[], h[], l[]\n"
        "  a[] = argmax(k) x[k]\n"
        "  b[] = argmin(k; 10*k + N) x[k]\n"
        "  h[] = max(k) x[k]\n"
        "  l[] = min(k) x[k]\n",
        {"N": 4},
        {"x": [1, 2, 2, 1]},
        {"a": 1, "b": 4, "h": 2, "l": 1},
    ),
    # ------------------------------------------------------------ values and types
    Case(
        "op precedence(x[N]) -> a[N], b[N], c[N], d[N]\n"
        "  a[i] = -x[i]**2\n"
        "  b[i] = 2 + 3*x[i] / 2\n"
        "  c[i] = not x[i] == 3 or x[i] > 9 and x[i] < 1\n"
        "  d[i] = 1 < x[i] <= 3\n",
        {"N": 1},
        {"x": [3]},
        {"a": [-9], "b": [6.5], "c": [0], "d": [1]},
    ),
    Case(
        "op several(x[N]) -> a[N], b[N]\n"
        "  a[i] = max(x[i], 1, 2)\n"
        "  b[i] = round(x[i]) + relu(x[i])\n",
        {"N": 2},
        {"x": [0.5, -2.5]},
        {"a": [2, 2], "b": [0.5, -2]},
    ),
    Case(
        "op narrow(x: i8[N]) -> y: i8[N], b: bool[N], w: int[N]\n"
        "  y[i] = x[i] * 2\n"
        "  b[i] = x[i] - 100\n"
        "  w[i] = x[i] * 1000000\n",
        {"N": 2},
        {"x": np.array([100, -7], np.int8)},
        {"y": [200 - 256, -14], "b": [0, 1], "w": [100000000, -7000000]},
    ),
    Case(
        "op half_sum(x: f16[N]) -> y: f16[]\n  y[] = sum(i) x[i]\n",
        {"N": 4096},
        {"x": np.ones(4096, np.float16)},
        {"y": 4096},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_value(case: Case) -> None:
    assert_close(results(case), case.outputs)


def test_every_example_op_is_evaluated() -> None:
    assert {case.op for case in CASES if isinstance(case.op, str)} >= OPS.keys()


def test_wrong_values_are_noticed() -> None:
    with pytest.raises(AssertionError, match="Not equal"):
        assert_close(results(CASES[0]), {"y": [[[[1, 12, 21]]]]})


def test_int_output_is_wide() -> None:
    (op,) = compiled("op f(x: int[N]) -> y: int[N]\n  y[i] = x[i]\n")
    assert op.outputs[0].dtype is DType.I64


# ---------------------------------------------------------------------------- checks of a call
@pytest.mark.parametrize("k", [-1, 3])
def test_fixed_cell_is_checked_at_launch(k: int) -> None:
    assert any(constraint.derived for constraint in OPS["fixed"].constraints)
    with pytest.raises(ValueError, match="must lie inside"):
        results(Case("fixed", {"N": 3}, {"x": [1, 2, 3]}, {}, {"k": k}))


def test_stated_condition_is_checked_at_launch() -> None:
    with pytest.raises(ValueError, match="p < N"):
        results(Case("mirror", {"N": 3}, {"x": [1, 2, 3]}, {}, {"p": 3}))


def test_mode_that_moves_needs_a_cell() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        results(Case("pad_edge", {"N": 0, "p": 1}, {"x": []}, {}, {"p": 1}))


@pytest.mark.parametrize("row", [-1, 2])
def test_loaded_index_is_checked_at_run_time(row: int) -> None:
    inputs = {"table": [[1], [2]], "row": [row]}
    with pytest.raises(IndexError):
        results(Case("take", {"V": 2, "E": 1, "N": 1}, inputs, {}))


# ---------------------------------------------------------------------------- gradients
def gradient(text: str, name: str = "x") -> Op:
    return adjoint(OPS[text] if text in OPS else compiled(text)[0], name).op


GRADIENTS = [
    Case(
        gradient("op largest(x[N]) -> y[]\n  y[] = max(k) x[k]\n"),
        {"N": 4},
        {"x": [1, 2, 2, 0], "grad_y": 3},
        {"grad_x": [0, 3, 0, 0]},
    ),
    Case(
        gradient("op smallest(x[N]) -> y[]\n  y[] min= x[k]\n"),
        {"N": 4},
        {"x": [1, NAN, 2, NAN], "grad_y": 3},
        {"grad_x": [0, 3, 0, 0]},
    ),
    Case(
        gradient("op product(x[N]) -> y[]\n  y[] = prod(k) x[k]\n"),
        {"N": 3},
        {"x": [0, 2, 3], "grad_y": 1},
        {"grad_x": [6, 0, 0]},
    ),
    Case(
        gradient("op average(x[N]) -> y[]\n  y[] = mean(k) x[k]\n"),
        {"N": 4},
        {"grad_y": 1},
        {"grad_x": [0.25] * 4},
    ),
    Case(
        gradient("op window(x[N]; n = 9) -> y[N]\n  y[i] = max(k in 1) x[i + n ?0]\n"),
        {"N": 1},
        {"x": [5], "grad_y": [1]},
        {"grad_x": [0]},
    ),
    Case(
        gradient("op fill(x[N]) -> y[N]\n  y[i] = x[i - 1 ?(8)]\n"),
        {"N": 2},
        {"grad_y": [1, 2]},
        {"grad_x": [2, 0]},
    ),
    Case(
        gradient("op lazy(x[N]) -> y[N]\n  y[i] = select(x[i] > 0, log(x[i]), 1)\n"),
        {"N": 2},
        {"x": [0, 2], "grad_y": [1, 1]},
        {"grad_x": [0, 0.5]},
    ),
    Case(
        gradient("weigh"),
        {"N": 2},
        {"w": [INF, 3], "grad_y": [1, 1]},
        {"grad_x": [3, 0]},
    ),
]


@pytest.mark.parametrize("case", GRADIENTS, ids=repr)
def test_gradient(case: Case) -> None:
    read = {tensor.name for tensor in case.spec.inputs}
    used = {name: values for name, values in case.inputs.items() if name in read}
    assert_close(results(Case(case.op, case.sizes, used, {})), case.outputs)


def test_reading_and_accumulating_with_a_mode_are_transposes() -> None:
    forward, transposed = OPS["pad_edge"], OPS["pad_edge_transposed"]
    sizes, attributes = {"N": 3, "p": 2}, {"N": 3, "p": 2}
    x, g = np.arange(3.0) ** 2 + 1, np.arange(7.0) - 2.5
    y = np.array(evaluate(forward, sizes, {"x": x}, {"p": 2})["y"], float)
    back = np.array(evaluate(transposed, sizes, {"grad_y": g}, attributes)["grad_x"], float)
    np.testing.assert_allclose(np.dot(y, g), np.dot(x, back))


def test_hand_written_gradient_is_taken() -> None:
    ops = {op.name: op for op in OPS.values()}
    assert adjoint(OPS["hard_sign"], "x", ops).op.statements == OPS["hard_sign_grad"].statements


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("abs", [0.0], [0]),
        ("relu", [0.0], [0]),
        ("relu", [NAN], [1]),
        ("log", [0.0], [INF]),
        ("log1p", [-1.0], [INF]),
        ("sqrt", [0.0], [INF]),
        ("min", [2.0, 2.0], [1, 0]),
        ("max", [2.0, 2.0], [1, 0]),
        ("pow", [0.0, 0.0], [0, 0]),
        ("pow", [0.0, 2.0], [0, 0]),
        ("select", [1.0, 2.0, 3.0], [None, 1, 0]),
    ],
)
def test_derivative_where_there_is_none(
    name: str, arguments: list[float], expected: list[float | None]
) -> None:
    partials = PRIMITIVES[name].partials
    assert partials is not None
    found = partials(*map(Constant, arguments))
    assert [None if partial is None else number(partial) for partial in found] == expected


def number(expr: Expr) -> Number:
    """The value of an expression of constants."""
    match expr:
        case Constant(value=value):
            return value
        case Apply(primitive="select", arguments=(condition, chosen, otherwise)):
            return number(chosen if number(condition) else otherwise)
        case Apply(primitive=name, arguments=arguments):
            return PRIMITIVES[name].function(*map(number, arguments))
        case _:
            raise AssertionError(expr)
