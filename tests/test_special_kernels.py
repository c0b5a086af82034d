"""Kernels for the attributes and windows of a call: made once, kept, bounded in number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

import opgen
from opgen import compiler
from opgen.runtime import Operation, special

SPEC = """
op {name}(x[N,W], k[K]; stride = 1, padding = 0) -> y[N,V]
  where stride >= 1, padding >= 0
  let V = (W + 2*padding - K)//stride + 1
  y[n,v] = sum(l) x[n, v*stride + l - padding ?0] * k[l]
"""


def fresh(name: str) -> Op:
    """The op under a name that no other test uses: ops that are the same share their kernels."""
    return Op(opgen.compile(SPEC.replace("{name}", name)), name)


@dataclass(frozen=True)
class Op:
    """A module and the name of its op."""

    module: ModuleType
    name: str

    def __call__(self, *tensors: torch.Tensor, **attributes: int) -> torch.Tensor:
        result: torch.Tensor = getattr(self.module, self.name)(*tensors, **attributes)
        return result

    @property
    def operation(self) -> Operation:
        found: Operation = self.module.FAMILY.operations[self.name]
        return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPGEN_CACHE", str(tmp_path))
    return tmp_path


def call(op: Op, stride: int, padding: int, window: int) -> None:
    """A call, against PyTorch."""
    x, k = torch.randn(3, 40), torch.randn(window)
    got = op(x, k, stride=stride, padding=padding)
    weight = k[None, None]
    wanted = torch.nn.functional.conv1d(x[:, None], weight, stride=stride, padding=padding)[:, 0]
    torch.testing.assert_close(got, wanted)


def made(op: Op) -> set[special.Values]:
    return {values for _, values in op.operation.compiled}


def test_one_kernel_for_each_set_of_values() -> None:
    op = fresh("filtered_1")
    for stride, padding, window in ((1, 0, 3), (2, 1, 3), (1, 0, 5), (1, 0, 3), (3, 2, 17)):
        call(op, stride, padding, window)
    # A window of 17 is left open.
    assert made(op) == {(1, 0, 3), (2, 1, 3), (1, 0, 5), (3, 2, None)}


def test_sizes_need_no_kernels_of_their_own() -> None:
    op = fresh("filtered_2")
    for rows in range(1, 30):
        x = torch.randn(rows, 5 + 7 * rows)
        wanted = torch.nn.functional.conv1d(x[:, None], torch.ones(1, 1, 3))[:, 0]
        torch.testing.assert_close(op(x, torch.ones(3)), wanted)
    assert made(op) == {(1, 0, 3)}


def test_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "2")
    op = fresh("filtered_3")
    asked = []
    source = compiler.special_source
    monkeypatch.setattr(
        compiler, "special_source", lambda *given: asked.append(given[3]) or source(*given)
    )
    for stride in (1, 2, 3, 4):
        call(op, stride, 0, 3)
    assert len(asked) == 2


def test_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "0")
    op = fresh("filtered_4")
    call(op, 2, 1, 3)
    assert made(op) == {()}


def test_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPGEN_SPECIAL_KERNELS", "many")
    op = fresh("filtered_5")
    with pytest.raises(RuntimeError, match="OPGEN_SPECIAL_KERNELS must be a number, got 'many'"):
        call(op, 1, 0, 3)


def test_a_source_is_made_once(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    op = fresh("filtered_once")
    call(op, 2, 1, 3)
    assert len(list(own_cache.glob("*.c"))) == 1

    def fails(*_: object) -> str:
        raise AssertionError("made again")

    monkeypatch.setattr(compiler, "special_source", fails)
    source = special.source_of(op.operation, (2, 1, 3))
    (entry,) = own_cache.glob("*.c")
    assert source == entry.read_text()
    entry.write_text(source + "int broken;")
    with pytest.raises(AssertionError, match="made again"):
        special.source_of(op.operation, (2, 1, 3))
    assert not list(own_cache.glob("*.c"))


def test_a_module_alone_uses_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without opgen: kernels for the default attributes, and those for all."""
    op = fresh("filtered_6")
    monkeypatch.setattr(special, "_generator", lambda: None)
    operation = op.operation
    names = (operation.special.names, operation.special.windows)
    assert names == (("stride", "padding"), ("K",))
    held = dict(operation.special.sources)
    assert special.source_of(operation, (1, 0, 3)) == held[1, 0, None]
    assert special.source_of(operation, (2, 0, 3)) == operation.sources.c
    call(op, 1, 0, 3)
    call(op, 2, 1, 3)
