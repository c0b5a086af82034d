"""Kernels as text, for people."""

from __future__ import annotations

from typing import assert_never

from opgen.algebra.poly import Poly
from opgen.ir import loops
from opgen.ir.contraction import Contraction
from opgen.ir.loops import Kernel, Node, Program
from opgen.ir.notation import Reducer
from opgen.ir.primitives import PRIMITIVES, Precedence


def show_program(program: Program) -> str:
    """All kernels of an op, ending with a newline."""
    return "\n".join([f"program {program.name}", *map(show_kernel, program.kernels)])


def show_kernel(kernel: Kernel) -> str:
    """A kernel, indented below its parallel axes."""
    lines = [f"  kernel {kernel.name}", *(f"    # {line}" for line in kernel.spec)]
    lines += [f"    {define.name} = {define.value}" for define in kernel.prologue]
    counters = [f"{axis.name} < {axis.extent}" for axis in kernel.axes]
    for row in kernel.stretched:
        stretch = f"{row.first} .. {row.last} of {row.axis.name} < {row.axis.extent}"
        counters.insert(len(counters) - row.within, stretch)
    lines.append(f"    parallel {', '.join(counters) or 'one point'}")
    match kernel.only:
        case loops.Finite(tensor=tensor, holds=holds):
            lines.append(f"    only if {tensor} {'is finite' if holds else 'is not finite'}")
        case loops.Blocks(holds=holds):
            lines.append(
                f"    only if {'there are' if holds else 'there are no'} {_blocks(kernel.only)}"
            )
        case loops.Short(extent=extent, most=most, holds=holds):
            lines.append(f"    only if {extent} {'<=' if holds else '>'} {most}")
        case loops.Planes(tensors=tensors):
            lines.append(
                f"    only if planes of {', '.join(name for name, _ in tensors)} are dense"
            )
        case loops.Fitting():
            lines.append(f"    only if {_fitting(kernel.only)}")
        case None:
            pass
        case unexpected:
            assert_never(unexpected)
    match kernel.unless:
        case loops.Planes(tensors=tensors):
            names = ", ".join(name for name, _ in tensors)
            lines.append(f"    unless planes of {names} are dense")
        case loops.Blocks():
            lines.append(f"    unless there are {_blocks(kernel.unless)}")
        case loops.Fitting():
            lines.append(f"    unless {_fitting(kernel.unless)}")
        case None:
            pass
        case unexpected:
            assert_never(unexpected)
    if kernel.guest is not None:
        guest = kernel.guest
        run = f"{guest.count} points of {guest.kernel} from {guest.first}"
        lines.append(f"    at every {guest.loop}, {run}")
        if guest.point:
            places = ", ".join(f"{name} = {value}" for name, value in guest.point)
            lines.append(f"    as a part of it, {places}")
    for name in kernel.local:
        lines.append(f"      local {name}" + (", zero at first" if name in kernel.zeroed else ""))
    for move in kernel.moves:
        axes = ", ".join(f"{axis.name} < {axis.extent}" for axis in move.axes)
        where = " and ".join(map(str, move.conditions))
        lines.append(f"    or as a copy along {axes}" + (f" if {where}" if where else ""))
    if kernel.framed is not None:
        axes = ", ".join(f"{axis.name} < {axis.extent}" for axis in kernel.framed.axes)
        lines.append(f"    or as a copy into frames along {axes}")
    if kernel.contraction is not None:
        lines += _contraction(kernel.contraction)
    lines += _nodes(kernel.body, "      ")
    return "\n".join(lines) + "\n"


def _blocks(condition: loops.Blocks) -> str:
    text = "blocks of lanes" + ("" if condition.together is None else ", for all threads")
    return text + (" in pairs" if condition.is_paired else "")


def _fitting(condition: loops.Fitting) -> str:
    size = f"{condition.extent} <= {condition.most}"
    return f"{condition.stretches} == 1 and {size}, for all threads"


def _contraction(found: Contraction) -> list[str]:
    """The matrices whose product a kernel is."""
    groups = (
        ("for each", found.batch),
        ("rows", found.rows),
        ("columns", found.columns),
        ("terms", found.terms),
    )
    parts = (
        f"{what} {', '.join(f'{axis.name} < {axis.extent}' for axis in axes)}"
        for what, axes in groups
        if axes
    )
    lines = [f"    or as a product of matrices: {'; '.join(parts)}"]
    for factor in (found.left, found.right):
        tests = " and ".join(map(str, factor.conditions))
        lines.append(f"      {show_scalar(factor.load)}{f' if {tests}' if tests else ''}")
    if found.cells:
        lines.append(f"      of cells with {' and '.join(map(str, found.cells))}")
    return lines


def _nodes(nodes: tuple[Node, ...], indent: str) -> list[str]:
    return [line for node in nodes for line in _node(node, indent)]


def _node(node: Node, indent: str) -> list[str]:
    match node:
        case loops.Define(name=name, value=value):
            return [f"{indent}{name} = {value}"]
        case loops.For(name=name, lower=lower, upper=upper, body=body):
            head = f"{indent}for {name} in {_extreme('max', lower)} .. {_extreme('min', upper)}"
            head += " in any order" if node.any_order else ""
            return [head, *_nodes(body, indent + "  ")]
        case loops.Lanes(lower=lower, upper=upper, body=body):
            bounds = [f" from {_extreme('max', lower)}"] if lower else []
            bounds += [f" to {_extreme('min', upper)}"] if upper else []
            return [f"{indent}lanes{''.join(bounds)}", *_nodes(body, indent + "  ")]
        case loops.If(conditions=conditions, body=body, test=test):
            tests = [str(condition) for condition in conditions]
            tests += [] if test == loops.Always() else [show_test(test)]
            return [f"{indent}if {' and '.join(tests)}", *_nodes(body, indent + "  ")]
        case loops.Start(accumulator=name, reducer=reducer, value=value):
            initial = f"identity of {reducer.name.lower()}" if value is None else show_scalar(value)
            return [f"{indent}{name} = {initial}"]
        case loops.Accumulate(accumulator=name, reducer=reducer, value=value):
            line = f"{indent}{name} {reducer.name.lower()}= {show_scalar(value)}"
            if node.position is not None:
                line += f" at {node.position}"
            if node.order:
                line += f", ordered by ({', '.join(map(str, node.order))})"
            if node.present != loops.Always():
                line += f" if {show_test(node.present)}"
            return [line]
        case loops.Store(tensor=tensor, indices=indices, value=value):
            return [f"{indent}{tensor}[{_list(indices)}] = {show_scalar(value)}"]
        case loops.AtomicAdd(tensor=tensor, indices=indices, value=value, reducer=reducer):
            sign = "+=" if reducer is Reducer.ADD else f"{reducer.name.lower()}="
            return [f"{indent}atomic {tensor}[{_list(indices)}] {sign} {show_scalar(value)}"]
        case unexpected:
            assert_never(unexpected)


def _list(values: tuple[Poly, ...]) -> str:
    return ", ".join(map(str, values))


def _extreme(function: str, bounds: tuple[Poly, ...]) -> str:
    return str(bounds[0]) if len(bounds) == 1 else f"{function}({_list(bounds)})"


def show_scalar(value: loops.Scalar) -> str:
    """A scalar; operators are parenthesised, since nobody parses this again."""
    match value:
        case loops.Number(value=number):
            return str(number)
        case loops.Argument(name=name) | loops.Result(accumulator=name):
            return name
        case loops.Integer(value=number):
            return f"({number})" if len(number.terms) > 1 else str(number)
        case loops.Load(tensor=tensor, indices=indices):
            return f"{tensor}[{_list(indices)}]"
        case loops.Call(primitive=name, arguments=arguments):
            row = PRIMITIVES[name]
            texts = [show_scalar(argument) for argument in arguments]
            if row.precedence is Precedence.PRIMARY:
                return f"{row.symbol}({', '.join(texts)})"
            if len(texts) == 1:
                return f"({row.symbol} {texts[0]})"
            return f"({f' {row.symbol} '.join(texts)})"
        case loops.Choose(test=test, then=then, otherwise=otherwise):
            return f"({show_scalar(then)} if {show_test(test)} else {show_scalar(otherwise)})"
        case unexpected:
            assert_never(unexpected)


def show_test(test: loops.Test) -> str:
    """A test."""
    match test:
        case loops.Always():
            return "true"
        case loops.Inside(index=index, extent=extent, fault=fault):
            checked = "" if fault is None else f" (else fault {fault})"
            return f"0 <= {index} < {extent}{checked}"
        case loops.Nonzero(value=value):
            return f"{show_scalar(value)} != 0"
        case loops.All(tests=tests):
            return f"({' and '.join(map(show_test, tests))})"
        case loops.Any(tests=tests):
            return f"({' or '.join(map(show_test, tests))})"
        case loops.Either(condition=condition, then=then, otherwise=otherwise):
            return f"({show_test(then)} if {show_test(condition)} else {show_test(otherwise)})"
        case unexpected:
            assert_never(unexpected)
