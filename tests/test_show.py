"""`read(show(op)) == op`: the printed spec is the op, derived ops of two orders included."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings

import notation_strategies
from catalogue import CATALOGUE, Entry, each_but_long
from opgen.errors import OpgenError, Source
from opgen.ir.notation import DType, Op, Tensor
from opgen.ir.show import show, show_file
from opgen.lang.read import read
from opgen.passes.derive import differentiable
from opgen.passes.gathered_form import gathered_form
from opgen.passes.simplify import simplify
from spec_calls import checked, directional, gradient


def derivatives(op: Op) -> Iterator[Op]:
    """The op, its tangent, its gradients and theirs."""
    names = tuple(tensor.name for tensor in differentiable(op))
    yield op
    yield directional(op, names).op
    for name in names:
        first = gradient(op, name).op
        yield first
        for tensor in differentiable(first):
            yield gradient(first, tensor.name).op


def stated(op: Op) -> Op:
    """Without launch checks, which are no text: the checker derives them anew."""
    return replace(op, constraints=tuple(c for c in op.constraints if not c.derived))


@pytest.mark.sampled(4)
@each_but_long(CATALOGUE)
def test_printed_specs_read_back_as_the_same_op(subject: Entry) -> None:
    for op in derivatives(checked(subject)):
        (again,) = read(Source(show(op)))
        assert stated(again) == stated(op), show(op)


@pytest.mark.sampled(4, 1)
@each_but_long(CATALOGUE)
def test_gathered_forms_read_back_as_the_same_op(subject: Entry) -> None:
    for op in derivatives(checked(subject)):
        form = gathered_form(op)
        (again,) = read(Source(show(form)))
        assert stated(again) == stated(form), show(form)


def test_a_file_of_several_ops() -> None:
    ops = tuple(checked(subject) for subject in CATALOGUE[:3])
    assert read(Source(show_file(ops))) == ops


def test_a_changed_spec_reads_as_another_op() -> None:
    """Negative control."""
    op = checked(CATALOGUE[0])
    text = show(op)
    assert read(Source(text.replace("step = 1", "step = 2"))) != (op,)


def untyped(op: Op) -> Op:
    """Without element types, which the checker of a drawn op may still have to settle."""

    def plain(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(replace(tensor, dtype=DType.SAME) for tensor in tensors)

    return replace(
        stated(op),
        inputs=plain(op.inputs),
        outputs=plain(op.outputs),
        temporaries=plain(op.temporaries),
    )


def without_unused(op: Op) -> Op:
    """The op without what a spec may not declare, since nothing in it says its name."""
    try:
        read(Source(show(op)))
    except OpgenError as error:
        unused = set(re.findall(r"error\[unused-name\]: the \w+ '(\w+)'", str(error)))
        return replace(
            op,
            inputs=tuple(each for each in op.inputs if each.name not in unused),
            attributes=tuple(each for each in op.attributes if each.name not in unused),
            tables=tuple(each for each in op.tables if each.name not in unused),
            lets=tuple(each for each in op.lets if each.name not in unused),
        )
    return op


@pytest.mark.slow
def test_random_ops_read_back_as_the_same_op() -> None:
    """Drawn ops need not be specs: those that are, and print as one, must survive unchanged."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=200, derandomize=True)
    @given(notation_strategies.ops())
    def explore(drawn: Op) -> None:
        try:
            op = without_unused(simplify(drawn))
            (first,) = read(Source(show(op)))
        except (AssertionError, OpgenError):
            outcomes["is no spec"] += 1  # such as a choice in an index, or an unproved access
            return
        assert untyped(first) == untyped(op)
        (again,) = read(Source(show(first)))
        assert again == first
        outcomes["read back"] += 1

    explore()
    assert outcomes["read back"] >= 60, outcomes
