"""Each invariant broken once, and the checks that notice."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace

import pytest

from opgen.algebra.condition import Condition
from opgen.algebra.poly import load, poly, symbol
from opgen.ir import verify as module
from opgen.ir.notation import (
    BATCH,
    BATCH_ITERATOR,
    Access,
    Apply,
    Attribute,
    AttributeType,
    Boundary,
    Constant,
    Constraint,
    Dim,
    DType,
    Expr,
    Gradient,
    Index,
    Iterator,
    Let,
    Op,
    Parameter,
    Read,
    Reducer,
    Statement,
    Table,
    Tensor,
    Value,
)
from opgen.ir.verify import verify

B, N, M, P, i, k = (symbol(name) for name in (BATCH, "N", "M", "P", "i", "k"))
DOTS = symbol(BATCH_ITERATOR)
READ = Read(Access("x", (Index(DOTS), Index(i), Index(k - symbol("pad[0]"), Boundary.ZERO))))
TEMPORARY = Read(Access("t", (Index(i),)))

SUM = Statement(
    Access("t", (Index(i),)),
    Reducer.ADD,
    (Iterator("i", N), Iterator("k", M)),
    (Condition(load("index", [k])),),
    Apply("mul", (Read(Access("table", (Index(k % 2),))), Parameter("scale"))),
)
OUTPUT = Statement(
    Access("y", (Index(DOTS), Index(i, Boundary.DROP), Index(k))),
    Reducer.ASSIGN,
    (Iterator(BATCH_ITERATOR, B), Iterator("i", N), Iterator("k", P)),
    (),
    Apply("add", (READ, Apply("mul", (TEMPORARY, Value(i + symbol("flag")))))),
)
BEST = Statement(
    Access("best", ()),
    Reducer.ARGMAX,
    (Iterator("i", N),),
    (),
    TEMPORARY,
    position=i,
)
OP = Op(
    name="sound",
    inputs=(
        Tensor("x", (Dim(B), Dim(N), Dim(M)), DType.FLOAT, nograd=True),
        Tensor("index", (Dim(M),), DType.INT),
        Tensor("w", (Dim(N * M, (N, M)),), DType.FLOAT, default=1.0),
    ),
    attributes=(
        Attribute("pad", AttributeType.INT, (0, 1), length=2),
        Attribute("scale", AttributeType.FLOAT, 0.5),
        Attribute("flag", AttributeType.BOOL, False),
        Attribute("mode", AttributeType.CHOICE, "sum", ("sum", "mean")),
        Attribute("extra", AttributeType.SIZE, 3),
    ),
    outputs=(
        Tensor("y", (Dim(B), Dim(N), Dim(P)), DType.FLOAT),
        Tensor("best", (), DType.I64),
    ),
    sizes=(BATCH, "N", "M"),
    lets=(Let("P", M + symbol("pad[1]")), Let("Q", P + 1)),
    constraints=(Constraint(Condition(N - 1)),),
    tables=(Table("table", (2,), (0.5, 2)),),
    temporaries=(Tensor("t", (Dim(N),), DType.FLOAT),),
    statements=(SUM, OUTPUT, BEST),
    gradients=(Gradient("x", "other"),),
)


def with_statement(number: int, **changes: object) -> Op:
    statements = list(OP.statements)
    statements[number] = replace(statements[number], **changes)
    return replace(OP, statements=tuple(statements))


def with_body(body: Expr) -> Op:
    return with_statement(1, body=body)


def with_input(number: int, **changes: object) -> Op:
    inputs = list(OP.inputs)
    inputs[number] = replace(inputs[number], **changes)
    return replace(OP, inputs=tuple(inputs))


def with_attribute(attribute: Attribute) -> Op:
    return replace(OP, attributes=(*OP.attributes, attribute))


def with_output(tensor: Tensor, *statements: Statement) -> Op:
    """A further output."""
    return replace(OP, outputs=(*OP.outputs, tensor), statements=(*OP.statements, *statements))


def write(name: str, reducer: Reducer, body: Expr = TEMPORARY, mode: Boundary = Boundary.NONE):
    """A statement for an output over N."""
    position = i if reducer.is_argument else None
    return Statement(
        Access(name, (Index(i, mode),)), reducer, (Iterator("i", N),), (), body, position
    )


Z = Tensor("z", (Dim(N),), DType.FLOAT)
COUNT = Tensor("z", (Dim(N),), DType.I32)

SOUND = {
    "as it is": OP,
    "iterators may be named like tensors": with_statement(
        2,
        iterators=(Iterator("x", N),),
        position=symbol("x"),
        body=Read(Access("t", (Index(symbol("x")),))),
    ),
    "sums of several statements": with_output(
        Z, write("z", Reducer.ASSIGN), write("z", Reducer.ADD), write("z", Reducer.ADD)
    ),
    "a clamped sum": with_output(Z, write("z", Reducer.ADD, mode=Boundary.CLAMP)),
    "a count": with_output(COUNT, write("z", Reducer.ADD, Apply("lt", (TEMPORARY, Constant(0))))),
    "a whole fill": with_output(
        COUNT,
        write("z", Reducer.ADD, Read(Access("index", (Index(i, Boundary.FILL, -1.0),)))),
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_ops_pass(name: str) -> None:
    verify(SOUND[name])


BROKEN: dict[str, list[tuple[Op, str]]] = {
    "op is hashable": [
        (with_statement(0, guards=[]), "unhashable type: 'list'"),
        (replace(OP, sizes=["N"]), "unhashable type: 'list'"),
    ],
    "names are identifiers": [
        (replace(OP, name="not a name"), "'not a name'"),
        (with_input(0, name="x.1"), "'x.1'"),
        (with_statement(0, iterators=(Iterator("i'", N), Iterator("k", M))), 'statement 1: "i\'"'),
    ],
    "names are unique": [
        (with_input(1, name="x"), "'x' is declared twice"),
        (with_input(0, name="M"), "'M' is declared twice"),
        (replace(OP, lets=(*OP.lets, Let("P", M))), "'P' is declared twice"),
        (with_attribute(Attribute("N", AttributeType.INT)), "'N' is declared twice"),
    ],
    "attributes are well formed": [
        (with_attribute(Attribute("a", AttributeType.CHOICE)), r"'a' has the choices \(\)"),
        (with_attribute(Attribute("a", AttributeType.INT, choices=("b",))), "'a' has the choices"),
        (
            with_attribute(Attribute("a", AttributeType.FLOAT, length=2)),
            "'a' is a tuple of type float",
        ),
        (with_attribute(Attribute("a", AttributeType.INT, 0.5)), "'a' has the default 0.5"),
        (with_attribute(Attribute("a", AttributeType.INT, True)), "'a' has the default True"),
        (with_attribute(Attribute("a", AttributeType.SIZE, -1)), "'a' has the default -1"),
        (with_attribute(Attribute("a", AttributeType.BOOL, 1)), "'a' has the default 1"),
        (with_attribute(Attribute("a", AttributeType.FLOAT, "b")), "'a' has the default 'b'"),
        (with_attribute(Attribute("a", AttributeType.INT, (1,), length=2)), r"default \(1,\)"),
        (with_attribute(Attribute("a", AttributeType.INT, (1,))), r"default \(1,\)"),
        (with_attribute(Attribute("a", AttributeType.CHOICE, "c", ("b",))), "default 'c'"),
    ],
    "only inputs have defaults and nograd": [
        (with_output(replace(Z, default=0.0), write("z", Reducer.ADD)), "'z'"),
        (replace(OP, temporaries=(replace(OP.temporaries[0], nograd=True),)), "'t'"),
    ],
    "tables are filled": [
        (replace(OP, tables=(Table("table", (3,), (1, 2)),)), r"2 values for the shape \(3,\)"),
    ],
    "gradients are of inputs": [
        (replace(OP, gradients=(Gradient("y", "other"),)), "'y'"),
        (replace(OP, gradients=(*OP.gradients, Gradient("x", "third"))), "'x' has two"),
    ],
    "lets refer to what comes before": [
        (replace(OP, lets=OP.lets[::-1]), "nothing defines 'P' of let Q"),
        (replace(OP, lets=(*OP.lets, Let("S", symbol("scale")))), "nothing defines 'scale'"),
        (
            replace(OP, lets=(*OP.lets, Let("S", load("index", [poly(0)])))),
            "let S depends on elements",
        ),
    ],
    "shapes are in scope": [
        (
            with_input(0, dims=(Dim(B), Dim(symbol("K")), Dim(M))),
            "nothing defines 'K' of dimension 1 of 'x'",
        ),
        (
            with_input(1, dims=(Dim(load("index", [poly(0)])),)),
            "dimension 0 of 'index' depends on elements",
        ),
        (with_input(2, dims=(Dim(N * M, (N, N)),)), "dimension 0 of 'w' is M.N, not the product"),
        (with_input(0, dims=(Dim(N), Dim(B), Dim(M))), "dimension 1 of 'x' stands for the batch"),
    ],
    "constraints are in scope": [
        (replace(OP, constraints=(Constraint(Condition(i)),)), "nothing defines 'i'"),
        (
            replace(OP, constraints=(Constraint(Condition(load("index", [poly(0)]))),)),
            "depends on elements",
        ),
    ],
    "iterators are in scope": [
        (
            with_statement(2, iterators=(Iterator("i", N), Iterator("i", M))),
            "'i' is iterated twice",
        ),
        (with_statement(2, iterators=(Iterator("i", N), Iterator("M", N))), "'M' hides a size"),
        (
            with_statement(2, iterators=(Iterator("i", N), Iterator("k", i))),
            "nothing defines 'i' of .* extent of 'k'",
        ),
        (
            with_statement(2, iterators=(Iterator("i", load("index", [poly(0)])),)),
            "depends on elements",
        ),
    ],
    "symbols are in scope": [
        (with_statement(2, iterators=()), "statement 3: nothing defines 'i' of 'i'"),
        (with_statement(2, position=k), "nothing defines 'k'"),
        (with_statement(0, guards=(Condition(symbol("j")),)), "nothing defines 'j'"),
        (with_body(Value(symbol("scale"))), "nothing defines 'scale'"),
        (with_body(Value(symbol("pad"))), "nothing defines 'pad'"),
        (
            with_body(Read(Access("t", (Index(load("index", [symbol("j")])),)))),
            "nothing defines 'j'",
        ),
    ],
    "accesses have the rank of their tensor": [
        (with_body(Read(Access("t", ()))), "'t' has rank 1, not 0"),
        (with_body(Read(Access("u", (Index(i),)))), "there is no tensor 'u'"),
        (with_body(Value(load("index", [i, i]))), "'index' has rank 1, not 2"),
        (with_statement(1, target=Access("y", (Index(i),))), "'y' has rank 3, not 1"),
    ],
    "boundary modes fit the side": [
        (with_body(Read(Access("t", (Index(i, Boundary.DROP),)))), r"'t' is read with \?drop"),
        (with_output(Z, write("z", Reducer.ADD, mode=Boundary.ZERO)), r"'z' is written with \?0"),
        (
            with_output(Z, write("z", Reducer.ASSIGN, mode=Boundary.WRAP)),
            r"'z' is assigned with \?wrap",
        ),
        (with_body(Read(Access("t", (Index(i, Boundary.FILL),)))), "fill value None of 't'"),
        (with_body(Read(Access("t", (Index(i, fill=1.0),)))), "fill value 1.0 of 't'"),
    ],
    "indices load integers only": [
        (with_body(Value(load("t", [i]))), "'t' is not an integer tensor"),
        (
            with_statement(0, guards=(Condition(load("table", [poly(0)])),)),
            "'table' is not an integer",
        ),
    ],
    "primitives are in the table": [
        (with_body(Apply("madd", (READ, READ))), "statement 2: 'madd'"),
        (with_body(Apply("mul", (READ, Apply("add", (READ,))))), "'add' of 1 arguments"),
    ],
    "parameters are float attributes": [
        (with_body(Parameter("pad[0]")), r"'pad\[0\]'"),
        (with_body(Apply("neg", (Parameter("eps"),))), "'eps'"),
    ],
    "literals are numbers": [
        (with_body(Constant(float("nan"))), "nan"),
        (with_body(Constant(True)), "True"),
    ],
    "targets are outputs or temporaries": [
        (
            replace(OP, statements=(*OP.statements, write("index", Reducer.ADD, Constant(1)))),
            "writes to 'index'",
        ),
    ],
    "outputs and temporaries are written": [
        (with_output(Z), "nothing writes 'z'"),
        (replace(OP, temporaries=(*OP.temporaries, Z)), "nothing writes 'z'"),
    ],
    "tensors are read after they are written": [
        (replace(OP, statements=(OUTPUT, SUM, BEST)), "statement 1 reads 't' before"),
        (replace(OP, statements=(*OP.statements, SUM)), "statement 2 reads 't' before"),
        (
            with_output(Z, write("z", Reducer.ADD, Read(Access("z", (Index(i),))))),
            "statement 4 reads 'z'",
        ),
    ],
    "only argmax and argmin have a position": [
        (with_statement(2, position=None), "statement 3 is argmax with position None"),
        (with_statement(0, position=i), "statement 1 is sum with position i"),
        (
            with_output(Z, write("z", Reducer.ARGMIN)),
            "writes an index to 'z', which holds no integers",
        ),
    ],
    "integer tensors hold integers": [
        (with_output(COUNT, write("z", Reducer.ADD)), "statement 4 writes a real value to 'z'"),
        (with_output(COUNT, write("z", Reducer.ADD, Constant(0.5))), "statement 4 writes a real"),
    ],
    "statements of a tensor reduce alike": [
        (
            with_output(Z, write("z", Reducer.ADD), write("z", Reducer.MAX)),
            "'z' is written with sum and max",
        ),
        (with_output(Z, *[write("z", Reducer.MULTIPLY)] * 2), "'z' is written with prod and prod"),
        (
            with_output(COUNT, *[write("z", Reducer.ARGMAX)] * 2),
            "'z' is written with argmax and argmax",
        ),
    ],
}
CASES = [(name, op, text) for name, cases in BROKEN.items() for op, text in cases]


@pytest.mark.parametrize(
    ("invariant", "op", "text"), CASES, ids=[f"{name}-{n}" for n, (name, *_) in enumerate(CASES)]
)
def test_broken_ops_are_reported(invariant: str, op: Op, text: str) -> None:
    with pytest.raises(AssertionError, match=f"^op '.*': {invariant}: .*{text}"):
        verify(op)


def checks() -> list[Callable[..., object]]:
    """Every generator of faults that the module defines."""
    tree = ast.parse(inspect.getsource(module))
    names = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "Faults"
        and len(node.args.args) == 1
    ]
    return [getattr(module, name) for name in names]


def test_every_invariant_is_broken_here() -> None:
    names = {check.__name__.strip("_").replace("_", " ") for check in checks()}
    assert names == BROKEN.keys()
    assert set(module._CHECKS) == set(checks())
