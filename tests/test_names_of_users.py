"""Sizes, attributes and iterators may have the names that passes give: nothing mixes them up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opgen
from catalogue import SPECS
from opgen import programs
from opgen.compiler import check_source, read_source
from opgen.ir.loops import Define, For, Kernel, Program, walk
from opgen.ir.notation import Attribute, AttributeType, Op
from opgen.passes.derive import derive
from opgen.testing.cuda_on_cpu.emulated import emulated

# Where a size is a factor of terms, a stretch that begins at 0 gives other numbers.
SOURCE = """
op shifted(x[B,n_first]; n_last = 0) -> y[B,n_first]
  y[b,n] = x[b, n - n_last ?0] * (n + n_first)

op windows(x[B,c_stretch,h_first,w_first], t[c_stretch,w_last,h_last]) -> y[B,h_part,w_part]
  let h_part = h_first - w_last + 1, w_part = w_first - h_last + 1
  y[b,h,w] = sum(c,k,l) x[b,c,h + k,w + l] * t[c,k,l]

op tiled(x[C,L], t[O,C], s[o_block]) -> y[O,L]
  y[o,l] = sum(c) abs(x[c,l]) * t[o,c] * o_block + s[0 ?0]

op planes(x[B,C,H,W], s[c_pair]) -> y[H,W]
  y[h,w] = sum(b,c) x[b,c,h,w] * c_pair + s[0 ?0]

op groups(x[B,C,H,W], s[h_first], t[h_last]; step = 1) -> y[B,H,V]
  where step >= 0
  let V = W + (C - 1)*step
  y[b,h,v] = sum(c) x[b,c,h,v - c*step ?0] * h_last + s[0 ?0] * h_first + t[0 ?0]

op masked(x[N,j_first], t[j_last]; c_block = 0) -> y[N,j_first]
  y[n,j] = sum(l) x[n, j + l - c_block ?0] * t[l]

op depthwise(x[at_0,c_first,at_1,j_part], t[c_first,h_block,w_block];
             top = 0, left = 0, c_last = 1)
    -> y[at_0,c_first,h_part,w_part]
  where c_last >= 1
  let h_part = (at_1 + 2*top - h_block)//c_last + 1
  let w_part = (j_part + 2*left - w_block)//c_last + 1
  y[n,c,i,j] = sum(k,l) x[n,c,i*c_last + k - top ?0,j*c_last + l - left ?0] * t[c,k,l]

op pooled(x[N,C,i_first,j_first]; i_block: size, j_block: size, i_last = 1, j_last = 1)
    -> y[N,C,i_part,j_part]
  where i_block >= 1, j_block >= 1, i_last >= 1, j_last >= 1
  let i_part = (i_first - i_block)//i_last + 1, j_part = (j_first - j_block)//j_last + 1
  y[n,c,i,j] = max(k in i_block, l in j_block) x[n,c,i*i_last + k,j*j_last + l]

op summed(x[n_stretch,c_first]; c_last = 0, total = 1) -> y[c_first]
  y[c] = sum(n) x[n,c + c_last ?0] * total

op joined(x[y_row,y_step]; y_column = 1) -> y[]
  y[] = sum(y_rows,n) x[y_rows,n] * y_column

op gathered(which: int[b_first,e_last], x[v_first,e_first]) -> y[b_first,e_last,e_first]
  y[b,l,e] = x[which[b,l],e]

op turned(x[n_turn]; n_first = 0) -> y[n_last]
  where n_turn >= 1
  let n_last = 3*n_turn
  y[n] = x[(n + n_first) % n_turn]

op iterated(x[n,turn]; n_first = 0, n_last = 0) -> y[n]
  y[at_0] = sum(at_0_first) x[at_0, at_0_first] * (at_0_first + n_first + n_last)
"""


def shifted(x: Tensor, n_last: int) -> Tensor:
    moved = F.pad(x, (n_last, 0))[:, : x.shape[1]]
    return moved * (torch.arange(x.shape[1]) + x.shape[1])


def windows(x: Tensor, t: Tensor) -> Tensor:
    return F.conv2d(x, t[None])[:, 0]


def tiled(x: Tensor, t: Tensor, s: Tensor) -> Tensor:
    return t @ x.abs() * len(s) + s[0]


def planes(x: Tensor, s: Tensor) -> Tensor:
    return x.sum((0, 1)) * len(s) + s[0]


def groups(x: Tensor, s: Tensor, t: Tensor, step: int) -> Tensor:
    count = x.shape[1]
    moved = (F.pad(x[:, c], (c * step, (count - 1 - c) * step)) for c in range(count))
    return sum(moved) * len(t) + s[0] * len(s) + t[0]


def masked(x: Tensor, t: Tensor, c_block: int) -> Tensor:
    padded = F.pad(x, (c_block, len(t)))
    return F.conv1d(padded[:, None], t[None, None])[:, 0, : x.shape[1]]


def depthwise(x: Tensor, t: Tensor, top: int, left: int, c_last: int) -> Tensor:
    return F.conv2d(x, t[:, None], None, c_last, (top, left), 1, x.shape[1])


def pooled(x: Tensor, i_block: int, j_block: int, i_last: int, j_last: int) -> Tensor:
    return F.max_pool2d(x, (i_block, j_block), (i_last, j_last))


def summed(x: Tensor, c_last: int, total: int) -> Tensor:
    return F.pad(x, (0, c_last))[:, c_last:].sum(0) * total


def joined(x: Tensor, y_column: int) -> Tensor:
    return x.sum() * y_column


def gathered(which: Tensor, x: Tensor) -> Tensor:
    return x[which]


def turned(x: Tensor, n_first: int) -> Tensor:
    return x.roll(-n_first).repeat(3)


def iterated(x: Tensor, n_first: int, n_last: int) -> Tensor:
    return (x * (torch.arange(x.shape[1]) + n_first + n_last)).sum(1)


@dataclass(frozen=True)
class Case:
    """A call: what it means, the shapes of its inputs, and its attributes."""

    reference: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, int] = field(default_factory=dict)
    format: torch.memory_format = torch.contiguous_format

    def inputs(self) -> list[Tensor]:
        """Numbers, and places in the second input for the first one of `gathered`."""
        generator = torch.Generator().manual_seed(0)
        found = [
            torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes
        ]
        found[0] = found[0].contiguous(memory_format=self.format)
        if self.reference is gathered:
            found[0] = torch.randint(0, self.shapes[1][0], self.shapes[0], generator=generator)
        return [each.requires_grad_(each.dtype.is_floating_point) for each in found]


LAST = torch.channels_last

CASES = {
    "row": Case(shifted, ((3, 1500),), {"n_last": 5}),
    "windows": Case(windows, ((2, 3, 19, 21), (3, 3, 3))),
    "tiles": Case(tiled, ((6, 40), (9, 6), (5,))),
    "planes": Case(planes, ((3, 4, 7, 9), (5,))),
    "groups": Case(groups, ((2, 5, 9, 21), (5,), (3,)), {"step": 2}),
    "masked rows": Case(masked, ((40, 21), (5,)), {"c_block": 2}),
    "depthwise": Case(depthwise, ((2, 40, 9, 9), (40, 3, 3)), {"top": 1, "left": 1, "c_last": 1}),
    "depthwise, blocks": Case(
        depthwise, ((2, 40, 9, 9), (40, 3, 3)), {"top": 1, "left": 1, "c_last": 1}, LAST
    ),
    "depthwise, strided blocks": Case(
        depthwise, ((2, 40, 9, 9), (40, 3, 3)), {"top": 1, "left": 0, "c_last": 2}, LAST
    ),
    "depthwise, copies": Case(
        depthwise, ((1, 32, 14, 14), (32, 7, 7)), {"top": 3, "left": 3, "c_last": 1}
    ),
    "depthwise, copied blocks": Case(
        depthwise, ((1, 32, 14, 14), (32, 7, 7)), {"top": 3, "left": 3, "c_last": 1}, LAST
    ),
    "pooled": Case(
        pooled, ((2, 3, 11, 13),), {"i_block": 3, "j_block": 2, "i_last": 2, "j_last": 2}
    ),
    "stretches": Case(summed, ((1100, 20),), {"c_last": 3, "total": 2}),
    "parts": Case(joined, ((70, 900),), {"y_column": 2}),
    "gathered": Case(gathered, ((4, 3), (7, 19))),
    "turns": Case(turned, ((600,),), {"n_first": 7}),
    "iterators": Case(iterated, ((5, 40),), {"n_first": 7, "n_last": 9}),
}


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return opgen.compile(SOURCE)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(compiled: ModuleType, name: str) -> None:
    """A size named `o_block` was taken for where a tile stands, `h_first` for where rows begin."""
    case = CASES[name]
    inputs = case.inputs()
    found = getattr(compiled, case.reference.__name__)(*inputs, **case.attributes)
    wanted = case.reference(*inputs, **case.attributes)
    torch.testing.assert_close(found, wanted)
    back = torch.randn_like(wanted)
    of = [each for each in inputs if each.requires_grad]
    torch.testing.assert_close(
        torch.autograd.grad(found, of, back), torch.autograd.grad(wanted, of, back)
    )


def test_threads_of_a_gpu() -> None:
    """Their stretches have such names as well: wrong numbers too."""
    row = opgen.compile("""op row(x[B,W], s[w_part], r[b_last], q[w_first]) -> y[B,W]
      y[b,w] = x[b,w] * w_part + s[0 ?0] * w_first + r[0 ?0] * b_last + q[0 ?0]
    """).row
    x, s, r, q = (torch.randn(shape) for shape in ((7, 40), (5,), (3,), (4,)))
    with emulated():
        found = row(x, s, r, q)
    torch.testing.assert_close(found, x * 5 + s[0] * 4 + r[0] * 3 + q[0])


# ---------------------------------------------------------------------------- all names of a pass
OPS = (
    ("conv", "conv2d"),
    ("conv_transpose", "conv_transpose1d"),
    ("pool", "max_pool2d"),
    ("shift_sum", "shift_sum"),
    ("softmax", "softmax"),
)


def bound(kernel: Kernel) -> set[str]:
    """The names that a kernel gives to integers of its own."""
    names = {axis.name for axis in kernel.axes}
    for row in kernel.stretched:
        names |= {row.axis.name, row.first, row.last, *(row.around or ())}
    for move in kernel.moves:
        names |= {axis.name for axis in move.axes}
    if (found := kernel.contraction) is not None:
        names |= {each.name for each in (*found.batch, *found.rows, *found.columns, *found.terms)}
    nodes = (*kernel.prologue, *walk(kernel.body))
    return names | {node.name for node in nodes if isinstance(node, Define | For)}


def forms(op: Op, public: Op) -> Iterator[Program]:
    """The programs of an op for the CPU and for threads; those for windows of known sizes too."""
    on_cpu, on_gpu = programs.for_cpu(op), programs.for_gpu(op)
    yield programs.along_rows(on_cpu, programs.scheduled(on_cpu))
    yield programs.threads(on_gpu, programs.scheduled(on_gpu))
    for size, layout in ((3, 0), (3, 1)):
        values = dict.fromkeys(programs.window_sizes(op, public), size)
        for attribute in op.attributes:
            if attribute.type is AttributeType.INT and isinstance(attribute.default, int):
                values |= dict.fromkeys(attribute.symbols, attribute.default)
        if values:
            yield programs.special_along_rows(op, public, values, layout)[0]
            yield programs.special_threads(op, values, layout)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("stem", "name"), OPS)
def test_no_pass_gives_a_name_that_a_size_has(stem: str, name: str) -> None:
    """The op has an attribute of every name that its kernels had without them."""
    ops = check_source(read_source(SPECS / f"{stem}.op"))
    (public,) = (op for op in ops if op.name == name)
    for member in derive((public,), 1):
        op = member.op
        iterators = {each.name for statement in op.statements for each in statement.iterators}
        given = {
            name
            for program in forms(op, public)
            for kernel in program.kernels
            for name in bound(kernel) - iterators
            if name.isidentifier()
        }
        more = (Attribute(name, AttributeType.SIZE, 1) for name in sorted(given))
        named = replace(op, attributes=(*op.attributes, *more))
        for program in forms(named, public):
            for kernel in program.kernels:
                assert bound(kernel).isdisjoint(given), (op.name, kernel.name)
