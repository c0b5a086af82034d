"""Ops that are built by hand, for the tests of the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opgen.algebra.condition import Condition
from opgen.algebra.poly import Poly, poly, symbol
from opgen.ir.notation import (
    Access,
    Apply,
    Attribute,
    AttributeType,
    Boundary,
    Dim,
    DType,
    Expr,
    Index,
    Iterator,
    Let,
    Op,
    Read,
    Reducer,
    Statement,
    Tensor,
)
from opgen.ir.reference import evaluate
from opgen.ir.verify import verify

b, c, h, i, j, k, l, n, r, v = (symbol(name) for name in "bchijklnrv")
B, C, H, K, L, M, N, R, V, W = (symbol(name) for name in "BCHKLMNRVW")
p, s = symbol("p"), symbol("s")
Z = Boundary.ZERO


def tensor(name: str, *extents: Poly | int, dtype: DType = DType.SAME, **more: object) -> Tensor:
    return Tensor(name, tuple(Dim(poly(extent)) for extent in extents), dtype, **more)


def at(name: str, *indices: Poly | int | Index) -> Access:
    return Access(name, tuple(x if isinstance(x, Index) else Index(poly(x)) for x in indices))


def read(name: str, *indices: Poly | int | Index) -> Read:
    return Read(at(name, *indices))


def call(name: str, *arguments: Expr) -> Apply:
    return Apply(name, arguments)


def statement(
    target: Access,
    reducer: Reducer,
    box: Mapping[str, Poly | int],
    body: Expr,
    *guards: Condition,
    position: Poly | None = None,
) -> Statement:
    iterators = tuple(Iterator(name, poly(extent)) for name, extent in box.items())
    return Statement(target, reducer, iterators, guards, body, position)


def make_op(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], *statements: Statement, **more: object
) -> Op:
    """An op whose sizes are the capital letters of its inputs' dims."""
    dims = [dim.extent.symbols for t in inputs for dim in t.dims]
    sizes = sorted({name for symbols in dims for name in symbols if name.isupper()} | {"..."})
    lets = {let.name for let in more.get("lets", ())}
    fields = {"attributes": (), "lets": (), "constraints": (), "tables": (), "temporaries": ()}
    op = Op(
        name="handmade",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        sizes=tuple(name for name in sizes if name not in lets),
        statements=statements,
        **{**fields, **more},
    )
    verify(op)
    return op


def run(op: Op, tensors: Mapping[str, object], sizes: Mapping[str, int], **attributes: object):
    arrays = {name: np.asarray(array) for name, array in tensors.items()}
    return evaluate(op, sizes, arrays, attributes)["y"]


def integer(name: str, default: int | None = None, **more: object) -> Attribute:
    return Attribute(name, AttributeType.INT, default, **more)


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


# ---------------------------------------------------------------------------- ops
CONV2D = make_op(
    [tensor("x", B, C, H, W), tensor("w", K, C, R, R), tensor("bias", K, default=0.0)],
    [tensor("y", B, K, N, M)],
    statement(
        at("y", b, k, n, v),
        Reducer.ASSIGN,
        {"b": B, "k": K, "n": N, "v": M},
        read("bias", k),
    ),
    statement(
        at("y", b, k, n, v),
        Reducer.ADD,
        {"b": B, "k": K, "n": N, "v": M, "c": C, "i": R, "j": R},
        call(
            "mul",
            read(
                "x",
                b,
                c,
                Index(n * s + i * symbol("d") - p, Z),
                Index(v * s + j * symbol("d") - p, Z),
            ),
            read("w", k, c, i, j),
        ),
    ),
    attributes=(integer("s", 1), integer("d", 1), integer("p", 0)),
    lets=(
        Let("N", (H + 2 * p - symbol("d") * (R - 1) - 1) // s + 1),
        Let("M", (W + 2 * p - symbol("d") * (R - 1) - 1) // s + 1),
    ),
)


def softmax_op() -> Op:
    return make_op(
        [tensor("x", N, K)],
        [tensor("y", N, K)],
        statement(at("top", i), Reducer.MAX, {"i": N, "k": K}, read("x", i, k)),
        statement(
            at("total", i),
            Reducer.ADD,
            {"i": N, "k": K},
            call("exp", call("sub", read("x", i, k), read("top", i))),
        ),
        statement(
            at("y", i, k),
            Reducer.ASSIGN,
            {"i": N, "k": K},
            call(
                "div", call("exp", call("sub", read("x", i, k), read("top", i))), read("total", i)
            ),
        ),
        temporaries=(tensor("top", N), tensor("total", N)),
    )


def reduce_op(reducer: Reducer, dtype: DType = DType.SAME, **more: object) -> Op:
    position = k if reducer.is_argument else None
    kind = DType.I64 if reducer.is_argument else dtype
    body = read("x", i, k)
    box = {"i": N, "k": K}
    return make_op(
        [tensor("x", N, K, dtype=dtype)],
        [tensor("y", N, dtype=kind)],
        statement(at("y", i), reducer, box, body, position=position),
    )
