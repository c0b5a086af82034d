"""The function that the runtime calls: what is found out about a call, and its kernels in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from opgen.algebra.poly import Poly
from opgen.emit import frames, moves, rows_ahead
from opgen.emit.c_layout import broken
from opgen.emit.coarse import coarse
from opgen.emit.entry_conditions import Condition, condition_sizes, declare_flag
from opgen.emit.entry_helpers import Orders, copied_inputs
from opgen.emit.entry_memory import MemoryWriter
from opgen.emit.expression import type_name
from opgen.emit.function import Function
from opgen.emit.joint import Joint, print_joint
from opgen.emit.lane_pairs import hold_pairs
from opgen.emit.names import CNames
from opgen.emit.streams import stored_beside, stores_lines
from opgen.emit.together import Together, together
from opgen.emit.zeros import makes_zeros
from opgen.ir.loops import Kernel, Operand, Program
from opgen.ir.primitives import Level
from opgen.ir.work import points, work

_SHARED: Final = 16
"""How many times as many cells a kernel must write for a look at an input to be worth its time."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The function that the runtime calls, and the tasks of several kernels that it runs."""

    name: str
    lines: tuple[str, ...]
    joint: tuple[Joint, ...] = ()


def entry_name(program: Program) -> str:
    """The exported symbol of a program's C source."""
    return f"run_{program.name}"


def _may_stream(kernel: Kernel, function: Function) -> bool:
    """Whether some way to run a kernel writes past the caches."""
    return function.signature.streams or moves.has_moves(kernel) or frames.has_frames(kernel)


def print_entry(
    program: Program,
    called_as: Program,
    orders: Orders,
    functions: Sequence[Function],
    own: Sequence[Operand] = (),
) -> Entry:
    """Run the kernels in order, each over all of its points.

    The last operands of `called_as` are `own` temporaries, which no call passes.
    """
    scope = CNames({function.name for function in functions} | {"arguments", "call", "n"})
    counts = [(points(kernel), work(kernel, program.integers)) for kernel in program.kernels]
    groups = {group.first: group for group in together(program)}
    writer = _Writer(program, called_as, orders, scope, own=tuple(each.name for each in own))
    for kernel in program.kernels:
        found = coarse(kernel, program)
        if found is not None:
            writer.coarse[kernel.name] = found.before
    values = [value for pair in counts for value in pair]
    values += [
        each for group in groups.values() for each in (group.count(program), group.work(program))
    ]
    writer.declare_integers([*values, *writer.sizes()])
    memory = writer.take_memory()
    writer.announce_outputs(
        {
            kernel.written
            for kernel, function in zip(program.kernels, functions, strict=True)
            if _may_stream(kernel, function) and stored_beside(kernel, program) is None
        },
        {name for group in groups.values() for name, _ in group.own(program)},
    )
    copies = writer.copy_inputs()
    writer.look_at_inputs()
    joint = writer.run_all(functions, counts, groups)
    writer.lines += [f"free({each});" for each in (*copies, *memory)]
    return Entry(entry_name(program), tuple(writer.lines), joint)


@dataclass(frozen=True, slots=True)
class _Guest:
    """Variables of a kernel that may run within another one.

    They say whether it does, how it is called, and its work at a point of the other one.
    """

    flag: str
    call: str
    work: str


@dataclass
class _Writer(MemoryWriter):
    """Writes the lines of an entry."""

    flags: dict[Condition, str] = field(default_factory=dict)
    guests: dict[str, _Guest] = field(default_factory=dict)  # by their names
    coarse: dict[str, tuple[str, ...]] = field(default_factory=dict)  # tensors, by kernels

    def sizes(self) -> Iterator[Poly]:
        """What the lines speak of beside the work of the kernels."""
        yield from (size for _, size in self.written())
        for name in self.own:
            yield from self.program.operand(name).extents
        if any(
            stores_lines(kernel, self.program) or self.beside(kernel)
            for kernel in self.program.kernels
        ):
            yield from (self.cells(operand.name) for operand in self.program.operands)
        for name in copied_inputs(self.program, self.orders):
            yield from self.program.operand(name).extents
        for kernel in self.program.kernels:
            if makes_zeros(kernel, self.program):
                yield from self.program.operand(kernel.written).extents
            if moves.has_moves(kernel):
                yield from moves.sizes(kernel)
            if frames.has_frames(kernel):
                yield from frames.sizes(kernel)
            ahead = rows_ahead.piece(kernel, self.program)
            if ahead is not None:
                yield from rows_ahead.sizes(ahead, self.program)
            for name in self.coarse.get(kernel.name, ()):
                yield from self.program.operand(name).extents
            if kernel.only is not None:
                yield from condition_sizes(kernel.only, self.program)

    def look_at_inputs(self) -> None:
        """What kernels are conditional on."""
        for kernel in self.program.kernels:
            condition = None if kernel.only is None else replace(kernel.only, holds=True)
            if condition is not None and condition not in self.flags:
                streams = self.streams.get(kernel.written, "")
                self.flags[condition] = declare_flag(self, kernel, condition, streams)

    def run_all(
        self,
        functions: Sequence[Function],
        counts: Sequence[tuple[Poly, Poly]],
        groups: Mapping[int, Together],
    ) -> tuple[Joint, ...]:
        """Call all kernels; `groups` go together, by the place of the first of each."""
        kernels = self.program.kernels
        hosts = {
            kernel.guest.kernel: (kernel, count)
            for kernel, (count, _) in zip(kernels, counts, strict=True)
            if kernel.guest is not None
        }
        joint: list[Joint] = []
        end = apart = 0
        for at, (kernel, function, (count, each)) in enumerate(
            zip(kernels, functions, counts, strict=True)
        ):
            if at in groups:
                group = groups[at]
                given = self.program, self.called_as, self.orders, functions, group
                joint.append(print_joint(*given))
                self.begin_joint(joint[-1], group, functions)
                end, apart = group.end, len(self.lines)
                self.ready(group)
            if kernel.name in hosts:
                self.invite(kernel, function, count, each, *hosts[kernel.name])
            else:
                self.run(kernel, function, count, each)
            if at + 1 == end:
                inner = [broken(f"    {line}") for line in self.lines[apart:]]
                self.lines[apart:] = [*itertools.chain.from_iterable(inner), "}"]
        return tuple(joint)

    def begin_joint(self, task: Joint, group: Together, functions: Sequence[Function]) -> None:
        """Run kernels together where there are enough points for all threads; open what else is."""
        kernels = group.kernels(self.program)
        count, each = group.count(self.program), group.work(self.program)
        most = self.printer.poly(points(kernels[-1])).text
        texts = [self.printer.poly(value).text for value in (count, each)]
        self.lines += broken(f"if (run_as_one({texts[0]}, {most})) {{")
        own = functions[group.first : group.end]
        streaming = [k for k, f in zip(kernels, own, strict=True) if _may_stream(k, f)]
        assert not any(k.written in self.unready or self.beside(k) for k in streaming)
        value = self.streams[streaming[-1].written] if len(streaming) == 1 else "0"
        self.lines.append(f"    {self.arguments}.streams = {value};")
        self.lines += broken(f"    in_parallel({task.name}, call, {', '.join(texts)});")
        self.lines.append("} else {")

    def ready(self, group: Together) -> None:
        """Make memory ready for temporaries of kernels that do not go together."""
        for name, _ in group.own(self.program):
            self.lines += broken(self.unready[name])

    def run(self, kernel: Kernel, function: Function, count: Poly, each: Poly) -> None:
        """Call a kernel, if it is one for this call."""
        self.look_before(kernel)
        if _may_stream(kernel, function):
            beside = self.beside(kernel)
            value = self.streams[kernel.written] if beside is None else self.past(kernel, beside)
            self.lines += broken(f"{self.arguments}.streams = {value};")
        self.ask_ahead(kernel)
        if kernel.name in self.guests:
            self.lines.append(f"const struct call {self.guests[kernel.name].call} = *call;")
        if kernel.unless is not None:
            self.lines.append(f"if (!{self.flags[kernel.unless]}) {{")
        if kernel.only is not None:
            flag = self.flags[replace(kernel.only, holds=True)]
            begin = " {" if kernel.guest is not None else ""  # several lines
            self.lines.append(f"if ({'' if kernel.only.holds else '!'}{flag}){begin}")
        for workspace in self.program.workspaces:
            if workspace.output == kernel.written:
                # A workspace of the output's own type is the output itself.
                pair = self.tensor(workspace.name), self.tensor(kernel.written)
                self.lines.append(f"if ({pair[0]} != {pair[1]})")
        if moves.has_moves(kernel) and kernel.only is None:
            self.move(kernel)
        if frames.has_frames(kernel):
            self.frames(kernel)
        if makes_zeros(kernel, self.program):
            self.zeros(kernel)
        count_text, work_text = self.printer.poly(count).text, self.printer.poly(each).text
        if kernel.name in self.guests:
            self.lines.append(f"if (!{self.guests[kernel.name].flag})")
        if kernel.guest is not None:
            guest = self.guests[kernel.guest.kernel]
            self.lines.append(f"{self.arguments}.guest = {guest.flag} ? &{guest.call} : 0;")
            both = f"{work_text} + {guest.flag} * {guest.work}"
            self.lines += broken(f"in_parallel({function.name}_task, call, {count_text}, {both});")
            self.lines.append(f"{self.arguments}.guest = 0;")
            if kernel.only is not None:
                self.lines.append("}")
        elif kernel.is_deterministic or not kernel.shares_cells:
            arguments = f"{function.name}_task, call, {count_text}, {work_text}"
            joins = kernel.row is not None and kernel.row.joined > 1
            way = "in_parallel_stretches" if joins else "in_parallel"
            self.lines += broken(f"{way}({arguments});")
        else:
            self.lines += broken(
                f"{function.name}_task(0, {count_text}, call);  // points share cells"
            )
        if kernel.unless is not None:
            self.lines.append("}")

    def past(self, kernel: Kernel, beside: str) -> str:
        """Whether the vectors that a kernel stores beside its sums go past the caches."""
        assert kernel.row is not None
        operand = self.program.operand(beside)
        steps = " | ".join(self.strides(beside)[:-1])
        places = f"(uintptr_t){self.tensor(beside)} | (uintptr_t)({steps}) * "
        places += f"sizeof({type_name(operand)})"
        extent = self.printer.poly(kernel.row.axis.extent).at(Level.MULTIPLICATIVE)
        pairs = "LANES * (1 + PAIRED_LANES)" if hold_pairs(kernel) else "LANES"
        tests = self.vectors[beside], "STORES_LINES", f"({places}) % LINE == 0"
        return f"{' && '.join(tests)} && {extent} % ({pairs}) == 0"

    def ask_ahead(self, kernel: Kernel) -> None:
        """Decide how many bytes points ask for of what the next ones read."""
        found = rows_ahead.piece(kernel, self.program)
        if found is not None:
            value = rows_ahead.decision(
                found,
                self.program,
                lambda each: self.printer.poly(each).at(Level.MULTIPLICATIVE),
                lambda dim: self.stride(found.tensor, dim),
            )
            self.lines += broken(f"{self.arguments}.ahead = {value};")

    def look_before(self, kernel: Kernel) -> None:
        """Find out whether tensors that all points of a kernel read are coarse."""
        if kernel.name not in self.coarse:
            return
        assert kernel.only is not None
        tests = [self.flags[replace(kernel.only, holds=True)], "ROUNDS_AT_ONCE"]
        cells = dict(self.written())[kernel.written]
        most = f"{self.printer.poly(cells).at(Level.MULTIPLICATIVE)} / {_SHARED}"
        for tensor in self.coarse[kernel.name]:
            name = self.scope.fresh(f"{tensor}_is_coarse")
            self.declare_array(f"const int64_t {name}_sizes", self.extents(tensor))
            steps = self.strides(tensor)
            self.declare_array(f"const int64_t {name}_steps", steps)
            arguments = f"{self.tensor(tensor)}, {len(steps)}, {name}_sizes, {name}_steps"
            tests.append(f"has_coarse({arguments}, {most})")
        self.lines += broken(f"{self.arguments}.coarse = {' && '.join(tests)};")

    def invite(
        self,
        kernel: Kernel,
        function: Function,
        count: Poly,
        each: Poly,
        host: Kernel,
        points_of_host: Poly,
    ) -> None:
        """Call a kernel if it does not run within the next one, and remember its call."""
        flag, call = (self.scope.fresh(f"{kernel.written}_{end}") for end in ("is_guest", "call"))
        texts = [self.printer.poly(value).text for value in (points_of_host, count)]
        tests = [f"run_as_one({', '.join(texts)})"]
        if host.row is not None and not host.row.stretches.is_constant:
            # Points of further stretches would run it again.
            stretches = self.printer.poly(host.row.stretches).at(Level.RELATIONAL)
            tests.insert(0, f"{stretches} == 1")
        if kernel.only is not None:
            tests.insert(0, self.flags[kernel.only])
        self.lines += broken(f"const int {flag} = {' && '.join(tests)};")
        whole = self.printer.poly(count * each).at(Level.MULTIPLICATIVE)
        work = self.scope.fresh(f"{kernel.written}_work")
        self.lines += broken(f"const int64_t {work} = {whole} / greatest(1, {texts[0]});")
        self.guests[kernel.name] = _Guest(flag, call, work)
        self.run(kernel, function, count, each)

    def move(self, kernel: Kernel) -> None:
        """Try to make a copy by blocks, in front of the line that runs the kernel.

        Small ones are not worth a look at their axes.
        """
        moved = self.scope.fresh(f"{kernel.written}_moved")
        self.lines.append(f"int {moved} = 0;")
        for move in kernel.moves:
            name = self.scope.fresh(f"{kernel.written}_move")
            texts = [self.printer.condition(each).at(Level.EQUALITY) for each in move.conditions]
            cells = self.printer.poly(moves.cells(move.axes)).at(Level.RELATIONAL)
            test = " && ".join([*texts, f"{cells} >= MOVE_FEWEST"])
            self.lines += broken(f"if ({test}) {{")
            declared = moves.declaration(name, move, self.printer.poly, self.tensor, self.stride)
            self.lines += broken(f"    {declared}")
            row = moves.row(kernel, move, self.printer.poly)
            self.lines += [f"    {moved} = move_made(&{name}, {row}, &{self.arguments});", "}"]
        self.lines.append(f"if (!{moved})")

    def zeros(self, kernel: Kernel) -> None:
        """Try to fill memory with zeros, in front of the line that runs the kernel."""
        tensor = kernel.written
        name = self.scope.fresh(f"{tensor}_zeros")
        self.declare_array(f"const int64_t {name}_sizes", self.extents(tensor))
        self.declare_array(f"const int64_t {name}_steps", self.strides(tensor))
        given = f"{self.tensor(tensor)}, sizeof({type_name(self.program.operand(tensor))})"
        given += f", {len(self.extents(tensor))}, {name}_sizes, {name}_steps"
        self.lines += broken(f"if (!zeros_made({given}))")

    def frames(self, kernel: Kernel) -> None:
        """Try to make a copy into frames, in front of the line that runs the kernel."""
        framed = kernel.framed
        assert framed is not None
        made = self.scope.fresh(f"{kernel.written}_framed")
        name = self.scope.fresh(f"{kernel.written}_frames")
        cells = self.printer.poly(moves.cells(framed.axes)).at(Level.RELATIONAL)
        declared = frames.declaration(name, framed, self.printer.poly, self.tensor, self.stride)
        self.lines += [f"int {made} = 0;", *broken(f"if ({cells} >= FRAMED_FEWEST) {{")]
        self.lines += broken(f"    {declared}")
        self.lines += [f"    {made} = framed_made(&{name}, &{self.arguments});", "}"]
        self.lines.append(f"if (!{made})")
