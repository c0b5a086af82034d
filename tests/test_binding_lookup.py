"""Eager calls through the table of calls that were checked before: the same as calls in full."""

from __future__ import annotations

import resource
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import binding_cases as cases
import forks
import opgen
from binding_cases import OPS, Op, real, spec
from catalogue import SPECS
from opgen.runtime import build, checks, lookup, lookup_library, registration
from opgen.runtime.lookup_table import MAX_ENTRIES, SLOTS
from opgen.testing.transforms import loss

close = torch.testing.assert_close
every_op = pytest.mark.parametrize("op", OPS, ids=repr)


def answered(module: Any, op: str, *call: object) -> bool:
    """Whether the twin of an op knows a call; attributes as single numbers."""
    twin = registration.twin(getattr(module, f"_{op}").registered_name)
    assert twin is not None
    return lookup_library.is_answered(twin.call(*call))


def test_the_table_is_there() -> None:
    assert lookup_library.is_available()


@every_op
def test_a_known_call_gives_what_a_call_in_full_gives(op: Op) -> None:
    with lookup_library.suspended():
        wanted = op.ours(*op.tensors)
        gradients = torch.autograd.grad(loss(op.ours)(*(leaves := op.leaves)), leaves)
    for _ in range(3):
        got = op.ours(*op.tensors)
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride()
        found = torch.autograd.grad(loss(op.ours)(*(leaves := op.leaves)), leaves)
        assert all(map(torch.equal, found, gradients))


def test_what_is_known_is_exact() -> None:
    module = opgen.compile("op take(x[N,M]; s: int, f = 0.5) -> y[N,M]\n  y[n,m] = f*x[n,m] + s\n")
    x = real(3, 4)
    assert not answered(module, "take", x, 2, 0.5)
    module.take(x, s=2)
    module.take(x, s=2)
    assert answered(module, "take", x, 2, 0.5)
    assert answered(module, "take", x + 1, 2, 0.25)  # numbers and floats are no part of it
    others = (x[:2], x.t().contiguous().t(), x.float(), x[:, ::2], real(4, 3), x.to("meta"))
    for other in others:
        assert not answered(module, "take", other, 2, 0.5)
    assert not answered(module, "take", x, 3, 0.5)
    for s in (2, 3, 2, -1):
        for f in (0.5, -2.0, 0.0, -0.0):
            close(module.take(x, s=s, f=f), f * x + s)
            assert torch.equal(module.take(0 * x, s=0, f=f).signbit(), (f * (0 * x) + 0).signbit())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_autocast_is_left_to_python(device: str) -> None:
    """A call that is known is none where tensors are to be cast, and nothing of it is kept."""
    text = """op both(x[N,M], bias[M] = 0; s: int, f = 0.5) -> y[N,M], z[N,M]
  y[n,m] = f*x[n,m] + bias[m]
  z[n,m] = s*x[n,m]
"""
    module = opgen.compile(text)
    x, bias = torch.ones(3, 4), torch.ones(4)
    for each in (None, bias):
        for _ in range(2):
            module.both(x, each, s=2)
        assert answered(module, "both", x, each, 2, 0.5)
        given = x.to(device), None if each is None else each.to(device)
        before = given[0]._use_count(), bias._use_count()
        for _ in range(5):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert not answered(module, "both", *given, 2, 0.5)
                y, z = module.both(x, each, s=2)
            assert y.dtype == z.dtype == torch.bfloat16
            assert torch.equal(y.float(), 0.5 * x + (0 if each is None else 1))
            assert torch.equal(z.float(), 2 * x)
        assert (given[0]._use_count(), bias._use_count()) == before
        assert answered(module, "both", x, each, 2, 0.5)


def test_values_that_are_equal_to_python_are_told_apart() -> None:
    module = opgen.compile(
        "op add(x[N]; s: int, k: int[2] = 0) -> y[N]\n  y[n] = x[n] + s + k[0]\n"
    )
    x = torch.ones(2)
    for _ in range(2):
        assert module.add(x, s=1, k=(1, 1)).tolist() == [3, 3]
        for wrong in (True, 1.0):
            with pytest.raises(TypeError, match="attribute 's' must be an int"):
                module.add(x, s=wrong)
            with pytest.raises(TypeError, match=r"attribute 'k\[1\]' must be an int"):
                module.add(x, s=1, k=(1, wrong))


def test_zeros_of_both_signs_are_told_apart() -> None:
    module = opgen.compile("op part(x: float[N]; s = 1.0) -> y[N]\n  y[n] = x[n] / s\n")
    for count in (3, 300_000):
        x = torch.ones(count, requires_grad=True)
        for _ in range(3):
            for zero, wanted in ((0.0, float("inf")), (-0.0, -float("inf"))):
                for is_narrow in (False, True):
                    with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
                        y = module.part(x, s=zero)
                    (gradient,) = torch.autograd.grad(y.sum(), x)
                    assert y[0].item() == gradient[0].item() == wanted


def test_lists_are_looked_up_as_tuples_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module = opgen.compile("op add(x[N]; k: int[2] = 0) -> y[N]\n  y[n] = x[n] + k[0] - 2*k[1]\n")
    x = torch.ones(2)
    for _ in range(2):
        module.add(x, k=(1, 2))
        module.add(x, k=3)
    in_full: list[object] = []
    check = checks.attribute_value

    def listening(*given: Any) -> Any:
        in_full.append(given)
        return check(*given)

    monkeypatch.setattr(checks, "attribute_value", listening)
    changing = [1, 2]
    for k in ((1, 2), [1, 2], changing):
        assert module.add(x, k=k).tolist() == [-2, -2]
    for k in (3, [3, 3]):
        assert module.add(x, k=k).tolist() == [-2, -2]
    assert not in_full
    with pytest.raises(ValueError, match="attribute 'k' must be an int or 2 of them"):
        module.add(x, k=[1])
    changing[:] = 5, 1
    assert module.add(x, k=changing).tolist() == [4, 4]
    with pytest.raises(TypeError, match=r"attribute 'k\[1\]' must be an int"):
        module.add(x, k=[1, True])
    assert len(in_full) == 3


def test_a_fault_in_a_known_call_is_raised() -> None:
    weight = torch.ones(4, 2)
    embedding = spec("embedding").embedding
    for _ in range(2):
        assert embedding(torch.tensor([3, 0]), weight).shape == (2, 2)
        with pytest.raises(IndexError, match="embedding: index 4 is outside of dimension 0"):
            embedding(torch.tensor([3, 4]), weight)


def test_many_shapes_and_attributes() -> None:
    roll = opgen.compile(
        "op roll(x[N]; s: int) -> y[N]\n  y[n] = x[n - s ?wrap]  for n in N\n"
    ).roll
    for size in range(1, 40):
        x = torch.arange(float(size))
        for s in range(20):
            assert torch.equal(roll(x, s=s), x.roll(s))


FIRST_CALL = """
import threading, torch, opgen
from opgen.runtime import lookup_library, registration
ops = opgen.compile("op double(x[N]) -> y[N]\\n  y[n] = 2*x[n]\\n")
x = torch.ones(3)
print(ops.double(x).tolist(), lookup_library.build_meanwhile())
twin = registration.twin(ops._double.registered_name)
print(lookup_library.is_answered(twin.call(x)), [each.name for each in threading.enumerate()])
"""


def test_the_first_call_of_all_is_known_afterwards(tmp_path: Path) -> None:
    """Its kernel and the library are built side by side."""
    said = forks.printed(FIRST_CALL, OPGEN_CACHE=str(tmp_path))
    assert said.splitlines() == ["[2.0, 2.0, 2.0] False", "True ['MainThread']"]


FIRST_AUTOCAST_CALL = """
import sys, threading, torch, opgen
from opgen.runtime import build, lookup_library, unrounded
library, others = build.library, threading.Event()
in_time = []
def in_turn(source):
    if threading.current_thread().name == "opgen-build":
        in_time.append(others.wait(30))
    else:
        others.set()
    return library(source)
build.library = in_turn
conv, up = opgen.load(sys.argv[1] + "/conv.op"), opgen.load(sys.argv[1] + "/upsample_nearest.op")
x, weight = torch.randn(8, 64, 8, 8), torch.randn(64, 1, 3, 3)
calls = {
    "kernels": lambda: up.upsample_nearest(x),
    "casts": lambda: conv.conv2d(x, weight, padding=1, groups=64),
}
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    found = [calls[sys.argv[2]]() for _ in range(3)]
(kernels,) = unrounded._KERNELS.values()
print(in_time, all(torch.equal(each, found[0]) for each in found), kernels.twin is not None)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["kernels", "casts"])
def test_the_first_call_under_autocast(tmp_path: Path, way: str) -> None:
    """Nor does this one wait for the library before its kernels are built."""
    said = forks.printed(FIRST_AUTOCAST_CALL, str(SPECS), way, OPGEN_CACHE=str(tmp_path))
    assert said.splitlines() == ["[True] True True"]


def test_ops_that_meet_no_compiler_cost_later_ones_nothing(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Also where the next ops need a library of their own, which cannot be built meanwhile."""

    def called(name: str) -> bool:
        module = opgen.compile(f"op {name}(x[N]) -> y[N]\n  y[n] = 2*x[n]\n")
        x = torch.ones(3)
        close(getattr(module, name)(x), 2 * x)
        twin = registration.twin(getattr(module, f"_{name}").registered_name)
        return twin is not None and lookup_library.is_answered(twin.call(x))

    monkeypatch.setattr(lookup_library, "_slots", 1000 * SLOTS)  # no test needs as many
    with monkeypatch.context() as patch:
        patch.setenv("OPGEN_CC", "/no/such/compiler")
        assert not called("without_compiler")
    assert called("with_compiler")


def test_a_compiler_that_fails_costs_later_ops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another one is asked for the library that it did not make; itself it is asked but once."""
    broken, asked = tmp_path / "cc", tmp_path / "asked"
    broken.write_text(f'#!/bin/sh\ncase "$*" in *op.c*) echo >> {asked};; esac\nexit 1\n')
    broken.chmod(0o755)
    names = ("early", "soon", "late")
    early, soon, late = (
        opgen.compile(f"op {each}(x[N]) -> y[N]\n  y[n] = 2*x[n]\n") for each in names
    )
    monkeypatch.setattr(lookup_library, "_slots", 2000 * SLOTS)  # no test needs as many
    lookup_library.build_meanwhile()  # not by the broken one
    assert lookup_library.is_available()
    with monkeypatch.context() as patch:
        patch.setenv("OPGEN_CC", str(broken))
        for call, wanted in ((early.early, 2), (early.early, 3), (soon.soon, 4)):
            # The library and kernels, then kernels alone, those of another op as well.
            with pytest.raises(build.BuildError):
                call(torch.ones(3))
            assert len(asked.read_text()) == wanted
    x = torch.ones(3)
    for call in (early.early, late.late, late.late):
        close(call(x), 2 * x)
    twin = registration.twin(late._late.registered_name)
    assert twin is not None and lookup_library.is_answered(twin.call(x))


def test_more_values_of_attributes_than_there_are_ops_for() -> None:
    module = opgen.compile(
        "op mix(x[N]; f = 0.5, s: int, g = 0.25, k: int[2] = 0) -> y[N]\n"
        "  y[n] = f*x[n - s ?wrap] + g*k[0] + k[1]  for n in N\n"
    )
    twin = registration.twin(module._mix.registered_name)
    assert twin is not None
    x = torch.arange(5.0, requires_grad=True)
    for _ in range(2):
        for s in range(40):
            y = module.mix(x, s=s, g=s / 2, k=(s, 3))
            close(y, 0.5 * x.roll(s) + s / 2 * s + 3)
            (gradient,) = torch.autograd.grad(y, x, x.detach())
            close(gradient, 0.5 * x.detach().roll(-s))
    known = twin.for_integers((39, 39, 3))
    assert known is not None and lookup_library.is_answered(known(x.detach(), 0.5, 0.25))
    other = twin.for_integers((40, 39, 3))
    assert other is not None and not lookup_library.is_answered(other(x.detach(), 0.5, 0.25))


@pytest.mark.slow
def test_more_values_of_attributes_than_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_MOST_KNOWN", 20)
    module = opgen.compile("op plus(x[N]; s: int) -> y[N]\n  y[n] = x[n] + s\n")
    for s in [*range(30), *range(30)]:
        assert module.plus(torch.zeros(1), s=s).item() == s
    twin = registration.twin(module._plus.registered_name)
    assert twin is not None and twin.for_integers((29,)) is None


def test_more_calls_than_the_table_holds() -> None:
    """Those that it holds are all looked up, also where many share a bucket."""
    module = opgen.compile("op double(x[N]) -> y[N]\n  y[n] = 2*x[n]\n")
    sizes = range(1, MAX_ENTRIES + 30)
    for size in sizes:
        x = torch.arange(float(size))
        assert torch.equal(module.double(x), 2 * x)
    known = [answered(module, "double", torch.zeros(size)) for size in sizes]
    assert known == [True] * MAX_ENTRIES + [False] * 29
    for size in (1, 700, *sizes[-40:]):
        x = torch.arange(float(size))
        assert torch.equal(module.double(x), 2 * x)


def test_threads_that_meet_new_calls() -> None:
    shift = opgen.compile("op shift(x[N,M]) -> y[N,M]\n  y[n,m] = x[n,m - 1 ?0]\n").shift
    wrong = []

    def work() -> None:
        for size in range(1, 60):
            x = torch.arange(float(3 * size)).reshape(3, size)
            if not torch.equal(shift(x)[:, 1:], x[:, :-1]):
                wrong.append(size)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_outputs_are_new_and_inference_mode_is_kept() -> None:
    op = cases.op("softmax")
    first, second = op.ours(*op.tensors), op.ours(*op.tensors)
    assert first.data_ptr() != second.data_ptr()
    first.zero_()
    close(second, op.reference(*op.tensors))
    with torch.inference_mode():
        assert op.ours(*op.tensors).is_inference()
    assert not op.ours(*op.tensors).is_inference()


@pytest.mark.slow
def test_memory_does_not_grow() -> None:
    x = torch.ones(64, 1024)  # a quarter of a megabyte
    softmax = spec("softmax").softmax
    most: list[int] = []  # kilobytes
    for _ in range(3):
        for _ in range(400):
            softmax(x)
            softmax(x.clone().requires_grad_()).sum().backward()
        most.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert most[2] - most[1] < 20 * 256


def test_without_the_table_everything_is_computed_in_full() -> None:
    program = (
        "import torch, opgen\n"
        "from opgen.runtime import lookup_library\n"
        "lookup_library.FUNCTIONS = ('no_such_function',)\n"
        "ops = opgen.compile('op sq(x: float[N]) -> y[N]\\n  y[n] = x[n]*x[n]\\n')\n"
        "x = torch.full((2,), 3.0, requires_grad=True)\n"
        "for _ in range(2):\n"
        "    y = ops.sq(x)\n"
        "    (g,) = torch.autograd.grad(y.sum(), x)\n"
        "print(lookup_library.is_available(), y.tolist(), g.tolist())\n"
    )
    assert forks.printed(program) == "False [9.0, 9.0] [6.0, 6.0]\n"


def test_a_graph_on_disk_finds_derivatives_by_name() -> None:
    module = opgen.compile("op cube(x: float[N]) -> y[N]\n  y[n] = x[n]*x[n]*x[n]\n")
    other = opgen.compile("op cube(x: float[N]) -> y[N]\n  y[n] = x[n]*x[n]*x[n]\n# again\n")
    gradient, _ = other._cube.gradient("x")
    second, _ = gradient.gradient("x")
    for derived in (gradient, second):
        assert getattr(torch.ops.opgen, derived.registered_name).default is derived.overload
    with pytest.raises(AttributeError):
        _ = torch.ops.opgen.cube_grad_x_000000000000
    with pytest.raises(AttributeError):
        _ = torch.ops.opgen.nothing_like_it
    x: Tensor = real(3)
    close(module.cube(x), x**3)


@pytest.mark.parametrize(
    "place",
    [
        "torch.func.grad",
        *(
            pytest.param(place, marks=pytest.mark.slow)
            for place in ("FakeTensorMode()", "torch.device('meta')", "torch.inference_mode()")
        ),
    ],
)
def test_a_module_may_be_loaded_anywhere(place: str) -> None:
    """What the table answers with is a plain tensor even where no other tensor is."""
    load = f"ops = opgen.load({str(SPECS / 'depth_to_space.op')!r})"
    if place == "torch.func.grad":
        within = f"def f(x):\n    global ops\n    {load}\n    return ops.depth_to_space(x).sum()\n"
        within += "torch.func.grad(f)(torch.rand(1, 4, 2, 3))"
    else:
        within = f"with {place}:\n    {load}"
    program = (
        "import torch, opgen\n"
        "from torch._subclasses import FakeTensorMode\n"
        f"{within}\n"
        "x = torch.rand(1, 4, 2, 3, requires_grad=True)\n"
        "for _ in range(3):\n"
        "    ops.depth_to_space(x).sum().backward()\n"
        "assert x.grad.eq(3).all()\n"
    )
    assert not forks.printed(program)
