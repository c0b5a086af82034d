"""A kernel as the signature and statements of one function; C and CUDA differ in how it starts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from opgen.algebra.poly import Poly, poly, symbol
from opgen.emit.expression import Names, Printer, type_name
from opgen.emit.names import CNames
from opgen.emit.polynomial import Text
from opgen.emit.templates import comment
from opgen.emit.types import Type, Types
from opgen.ir.loops import (
    Accumulate,
    Always,
    AtomicAdd,
    Choose,
    Define,
    For,
    If,
    Kernel,
    Node,
    Number,
    Program,
    Scalar,
    Start,
    Store,
    uses,
    walk,
)
from opgen.ir.notation import Reducer
from opgen.ir.primitives import Level


@dataclass(frozen=True, slots=True)
class Signature:
    """What a kernel is called with, in this order, and whether it can report a fault at the end."""

    tensors: tuple[str, ...]
    integers: tuple[str, ...]
    numbers: tuple[str, ...]
    faults: bool


@dataclass(frozen=True, slots=True)
class Function:
    """The text of one kernel. `lines` are indented by one level."""

    name: str
    comment: tuple[str, ...]
    signature: Signature
    parameters: tuple[str, ...]
    lines: tuple[str, ...]
    cells: Poly  # the number of points of its axes
    written: str


def print_function(
    kernel: Kernel,
    program: Program,
    types: Types,
    helpers: dict[tuple[str, Type], None],
    cuda: bool,
) -> Function:
    """The function of a kernel. The helper functions that it calls join `helpers`."""
    signature = signature_of(kernel, program)
    scope = CNames({k.name for k in program.kernels})
    parameters, names = declare_parameters(signature, kernel, program, scope, cuda)
    printer = Printer(program, types, names, cuda, helpers)
    emitter = _Emitter(printer, scope, kernel)
    if cuda:
        emitter.thread_index()
        emitter.prologue()
        emitter.nodes(kernel.body)
    else:
        emitter.prologue()
        emitter.loops_over_axes()
    cells = poly(1)
    for axis in kernel.axes:
        cells = cells * axis.extent
    spec = tuple(line for text in kernel.spec for line in _comment(text))
    lines = tuple(emitter.lines)
    return Function(kernel.name, spec, signature, parameters, lines, cells, kernel.written)


def signature_of(kernel: Kernel, program: Program) -> Signature:
    """The arguments of a kernel, in the order of the program's."""
    used = uses(kernel)
    # An integer is loaded only where its index is inside, so the extents are needed as well.
    symbols = used.symbols.union(
        *(
            extent.symbols
            for operand in program.operands
            if operand.name in used.loaded
            for extent in operand.extents
        )
    )
    return Signature(
        tuple(o.name for o in program.operands if o.name in used.tensors),
        tuple(name for name in program.integers if name in symbols),
        tuple(name for name in program.numbers if name in used.numbers),
        used.faults,
    )


def declare_parameters(
    signature: Signature, kernel: Kernel, program: Program, scope: CNames, cuda: bool
) -> tuple[tuple[str, ...], Names]:
    """The parameter declarations of a kernel, and what its names are called in them."""
    # Integers first: they are read most, so they keep their names where a tensor has the same.
    symbols = {name: scope.fresh(name) for name in signature.integers}
    numbers = {name: scope.fresh(name) for name in signature.numbers}
    tensors: dict[str, str] = {
        table.name: scope.first_free(table.name, f"{table.name}_data") for table in program.tables
    }
    strides: dict[tuple[str, int], str] = {}
    parameters: list[str] = []
    restrict = "__restrict__ " if cuda else "restrict "
    for name in signature.tensors:
        operand = program.operand(name)
        tensors[name] = scope.first_free(name, f"{name}_data")
        constant = "" if name == kernel.written else "const "
        group = [f"{constant}{type_name(operand)} *{restrict}{tensors[name]}"]
        for axis in range(operand.rank):
            strides[name, axis] = scope.fresh(f"{name}_s{axis}")
            group.append(f"int64_t {strides[name, axis]}")
        parameters += wrapped(group)
    group = [f"int64_t {symbols[name]}" for name in signature.integers]
    group += [f"double {numbers[name]}" for name in signature.numbers]
    if signature.faults:
        group.append("int64_t *fault")
    parameters += wrapped(group)
    return tuple(parameters), Names(tensors, strides, symbols, numbers)


def wrapped(pieces: Sequence[str], width: int = 92) -> list[str]:
    """Pieces separated by commas, in lines of about that width."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(piece) + 2 <= width:
            lines[-1] += f", {piece}"
        else:
            lines.append(piece)
    return lines


_WIDTH: Final = 100
_BREAK: Final = re.compile(r"(?<=[,;])\s|\s(?=([-+*?:<>=&|]{1,2})\s)")
_LOOSENESS: Final = {
    None: 0,
    "=": 1,
    "+=": 1,
    "?": 2,
    ":": 2,
    "||": 2,
    "&&": 3,
    "+": 5,
    "-": 5,
    "*": 6,
}


def broken(line: str) -> list[str]:
    """A line of C, continued on further lines where it is too long.

    It is broken after a comma or before an operator: where the fewest brackets are open, at the
    loosest operator, as far to the right as possible.
    """
    indent = len(line) - len(line.lstrip())
    continuation = " " * (indent + 8)
    lines = []
    while len(line) > _WIDTH:
        best: tuple[int, int, int] | None = None
        for match in _BREAK.finditer(line, len(continuation) + 20, _WIDTH + 1):
            place = (_depth(line, match.start()), _LOOSENESS.get(match[1], 4), -match.start())
            best = place if best is None else min(best, place)
        if best is None:
            break
        lines.append(line[: -best[2]])
        line = continuation + line[-best[2] + 1 :]
    return [*lines, line]


def _depth(line: str, place: int) -> int:
    head = line[:place]
    return sum(map(head.count, "([")) - sum(map(head.count, ")]"))


def _comment(text: str) -> list[str]:
    """A spec line for a comment."""
    return [
        part
        for line in comment(text)
        for part in textwrap.wrap(
            line,
            _WIDTH - 3,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


# ---------------------------------------------------------------------------- statements
@dataclass
class _State:
    """The variables of an accumulator of argmax or argmin beside its position."""

    best: str
    found: str
    first: tuple[str, ...]


@dataclass
class _Emitter:
    """Prints nodes as statements, one scope of C at a time."""

    printer: Printer
    scope: CNames
    kernel: Kernel
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    kinds: dict[str, Type] = field(default_factory=dict)
    states: dict[str, _State] = field(default_factory=dict)

    def write(self, line: str) -> None:
        self.lines += broken("    " * self.depth + line)

    def text(self, value: Poly) -> str:
        return self.printer.poly(value).text

    def block(self, head: str, nodes: Sequence[Node]) -> None:
        """`head { nodes }`, in a scope of its own."""
        self.write(f"{head} {{")
        self.inner().nodes(nodes)
        self.write("}")

    def inner(self) -> _Emitter:
        """The emitter of a nested scope; it appends to the same lines."""
        names = self.printer.names
        inner_names = replace(
            names, symbols=dict(names.symbols), accumulators=dict(names.accumulators)
        )
        printer = replace(self.printer, names=inner_names, bounded=set(self.printer.bounded))
        return _Emitter(
            printer,
            self.scope.inner(),
            self.kernel,
            self.lines,
            self.depth + 1,
            self.kinds,
            self.states,
        )

    # ------------------------------------------------------------ how a function starts
    def prologue(self) -> None:
        for define in self.kernel.prologue:
            self.define(define.name, define.value)

    def loops_over_axes(self) -> None:
        """Nested loops over the axes, around the body."""
        axes = self.kernel.axes
        if not axes:
            self.nodes(self.kernel.body)
            return
        extents = [self.text(axis.extent) for axis in axes]
        emitter = self.inner()
        for axis, extent in zip(axes, extents, strict=True):
            name = emitter.scope.fresh(axis.name)
            emitter.printer.names.symbols[axis.name] = name
            emitter.printer.bounded.add((symbol(axis.name), axis.extent))
            brace = " {" if axis is axes[-1] else ""
            self.write(f"for (int64_t {name} = 0; {name} < {extent}; {name}++){brace}")
        emitter.nodes(self.kernel.body)
        self.write("}")

    def thread_index(self) -> None:
        """The point of this thread: the axes as digits of its number, last axis fastest."""
        axes = self.kernel.axes
        rest = self.scope.fresh("rest")
        self.write(f"int64_t {rest} = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;")
        extents = [self.printer.poly(axis.extent) for axis in axes]
        total = " * ".join(
            extent.at(Level.MULTIPLICATIVE if at == 0 else Level.UNARY)
            for at, extent in enumerate(extents)
        )
        self.write(f"if ({rest} >= {total or '1'}) return;")
        names = {axis.name: self.scope.fresh(axis.name) for axis in axes}
        for axis, extent in reversed(list(zip(axes, extents, strict=True))):
            name = names[axis.name]
            if axis is axes[0]:
                self.write(f"const int64_t {name} = {rest};")
            else:
                self.write(f"const int64_t {name} = {rest} % {extent.at(Level.UNARY)};")
                self.write(f"{rest} /= {extent.text};")
        for axis in axes:
            self.printer.names.symbols[axis.name] = names[axis.name]
            self.printer.bounded.add((symbol(axis.name), axis.extent))

    # ------------------------------------------------------------ nodes
    def nodes(self, nodes: Sequence[Node]) -> None:
        """The nodes in this scope."""
        for node in nodes:
            self.node(node)

    def define(self, name: str, value: Poly) -> None:
        text = self.text(value)
        self.printer.names.symbols[name] = self.scope.fresh(name)
        self.write(f"const int64_t {self.printer.names.symbols[name]} = {text};")

    def node(self, node: Node) -> None:
        match node:
            case Define(name=name, value=value):
                self.define(name, value)
            case For():
                self.loop(node)
            case If():
                self.condition(node)
            case Start():
                self.start(node)
            case Accumulate():
                self.accumulate(node)
            case Store(tensor=tensor, indices=indices, value=value):
                operand = self.printer.program.operand(tensor)
                stored = self.printer.stored(operand, self.printer.scalar(value))
                self.write(f"{self.printer.cell(tensor, indices)} = {stored};")
            case AtomicAdd(tensor=tensor, indices=indices, value=value):
                cell = self.printer.cell(tensor, indices)
                term = self.printer.scalar(value).text
                if self.printer.cuda:
                    self.write(f"atomic_add(&{cell}, {term});")
                else:
                    self.write(f"{cell} += {term};")
            case unexpected:
                assert_never(unexpected)

    def loop(self, node: For) -> None:
        lower = _extreme("greatest", [self.text(bound) for bound in node.lower])
        upper = [self.printer.poly(bound + 1) for bound in node.upper]
        inner = self.inner()
        name = inner.scope.fresh(node.name)
        inner.printer.names.symbols[node.name] = name
        if node.lower == (poly(0),):
            bounded = ((symbol(node.name), bound + 1) for bound in node.upper)
            inner.printer.bounded.update(bounded)
        if len(upper) == 1 and "(" not in upper[0].text:
            end = upper[0].at(Level.ADDITIVE)
        else:
            end = self.scope.fresh(f"{node.name}_end")
            value = _extreme("least", [bound.text for bound in upper])
            self.write(f"const int64_t {end} = {value};")
        self.write(f"for (int64_t {name} = {lower}; {name} < {end}; {name}++) {{")
        inner.nodes(node.body)
        self.write("}")

    def condition(self, node: If) -> None:
        texts = [self.printer.condition(condition) for condition in node.conditions]
        if node.test != Always():
            texts.append(self.printer.test(node.test))
        text = _conjunction(texts)
        if node.body:
            self.block(f"if ({text})", node.body)
        else:
            self.write(f"(void)({text});  // only checked")

    # ------------------------------------------------------------ accumulators
    def start(self, node: Start) -> None:
        printer = self.printer
        kind = printer.types.of_accumulator(node.tensor, node.accumulator, self.kernel.body)
        name = self.scope.fresh(node.accumulator)
        printer.names.accumulators[node.accumulator] = name
        self.kinds[node.accumulator] = kind
        if node.reducer.is_argument:
            self.start_argument(node, name, kind)
            return
        if node.value is None:
            initial = self.identity(node.tensor, node.reducer)
        else:
            initial = printer.scalar(node.value).text
        self.write(f"{kind.value} {name} = {initial};")

    def start_argument(self, node: Start, name: str, kind: Type) -> None:
        assert node.value is None, "argmax and argmin into one tensor have one kernel"
        orders = [
            each.order
            for each in walk(self.kernel.body)
            if isinstance(each, Accumulate) and each.accumulator == node.accumulator
        ]
        length = max(map(len, orders), default=0)
        assert all(len(order) == length for order in orders)
        state = _State(
            self.scope.fresh("best"),
            self.scope.fresh("found"),
            tuple(self.scope.fresh(f"first_{at}") for at in range(length)),
        )
        self.states[node.accumulator] = state
        self.write(f"int64_t {name} = -1;")
        self.write(f"{kind.value} {state.best} = 0;")
        self.write(f"int {state.found} = 0;")
        for first in state.first:
            self.write(f"int64_t {first} = 0;")

    def identity(self, tensor: str, reducer: Reducer) -> str:
        """The value of a cell that nothing has joined."""
        match reducer:
            case Reducer.ASSIGN | Reducer.ADD:
                return "0"
            case Reducer.MULTIPLY:
                return "1"
            case Reducer.MAX | Reducer.MIN:
                end = "least" if reducer is Reducer.MAX else "greatest"
                operand = self.printer.program.operand(tensor)
                for workspace in self.printer.program.workspaces:
                    if workspace.name == tensor:
                        operand = self.printer.program.operand(workspace.output)
                name = type_name(operand)
                return f"{'i64' if name == 'int64_t' else name}_{end}"
            case Reducer.ARGMAX | Reducer.ARGMIN:
                return "-1"
            case unexpected:
                assert_never(unexpected)

    def accumulate(self, node: Accumulate) -> None:
        total = self.printer.names.accumulators[node.accumulator]
        always = node.present == Always()
        if node.reducer in (Reducer.ASSIGN, Reducer.MULTIPLY):
            value: Scalar = node.value
            if not always:
                value = Choose(node.present, value, Number(0))
            sign = "=" if node.reducer is Reducer.ASSIGN else "*="
            self.write(f"{total} {sign} {self.printer.scalar(value).text};")
            return
        emitter = self
        if not always:
            self.write(f"if ({self.printer.test(node.present).text}) {{")
            emitter = self.inner()
        emitter.join(node, total)
        if not always:
            self.write("}")

    def join(self, node: Accumulate, total: str) -> None:
        """Join a term that is present."""
        text = self.printer.scalar(node.value).text
        if node.reducer is Reducer.ADD:
            self.write(f"{total} += {text};")
            return
        kind = self.kinds[node.accumulator]
        term = self.scope.fresh("term")
        self.write(f"const {kind.value} {term} = {text};")
        sign = ">" if node.reducer in (Reducer.MAX, Reducer.ARGMAX) else "<"
        if not node.reducer.is_argument:
            nan = "" if kind is Type.INTEGER else f" || {term} != {term}"
            self.write(f"if ({term} {sign} {total}{nan}) {total} = {term};")
            return
        self.join_argument(node, total, term, sign)

    def join_argument(self, node: Accumulate, total: str, term: str, sign: str) -> None:
        state = self.states[node.accumulator]
        best, found = state.best, state.found
        better = f"!{found} || {term} {sign} {best} || ({term} != {term} && {best} == {best})"
        updates = [f"{found} = 1;", f"{best} = {term};"]
        if node.order:
            same = f"{term} == {best} || ({term} != {term} && {best} != {best})"
            better += f" || (({same}) && ({self.earlier(node.order, state.first)}))"
            updates += [
                f"{first} = {self.text(value)};"
                for first, value in zip(state.first, node.order, strict=True)
            ]
        assert node.position is not None
        updates.append(f"{total} = {self.text(node.position)};")
        self.write(f"if ({better}) {{")
        for update in updates:
            self.write(f"    {update}")
        self.write("}")

    def earlier(self, order: Sequence[Poly], first: Sequence[str]) -> str:
        """Whether `order` is lexicographically less than the values in `first`."""
        value, *rest = (self.printer.poly(each) for each in order)
        text = f"{value.at(Level.ADDITIVE)} < {first[0]}"
        if rest:
            tail = self.earlier(order[1:], first[1:])
            equal = f"{value.at(Level.ADDITIVE)} == {first[0]}"
            text += f" || ({equal} && ({tail}))" if len(rest) > 1 else f" || ({equal} && {tail})"
        return text


def _extreme(function: str, texts: Sequence[str]) -> str:
    out = texts[0]
    for text in texts[1:]:
        out = f"{function}({out}, {text})"
    return out


def _conjunction(texts: Sequence[Text]) -> str:
    if len(texts) == 1:
        return texts[0].text
    return " && ".join(text.at(Level.EQUALITY) for text in texts)
