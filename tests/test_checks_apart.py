"""Sums of what is looked up at the same place for all of their terms; numbers are PyTorch's."""

from __future__ import annotations

import pytest
import torch

import opgen
from opgen.ir.show_loops import show_program
from opgen.programs import along_rows, for_cpu, scheduled
from written_anew import read

PAIRS = (
    "op f(x[B,N,D], i: int[P], j: int[P]) -> y[B,P]\n  y[b,p] = sum(d) x[b,i[p],d]*x[b,j[p],d]\n"
)
LARGEST = (
    "op f(x[N,D], i: int[P,K]) -> y[P]\n  where K >= 1, D >= 1\n  y[p] = max(k,d) x[i[p,k],d]\n"
)


def test_pairs() -> None:
    function = opgen.compile(PAIRS).f
    torch.manual_seed(0)
    for batches, points, width, pairs in ((1, 1, 1, 1), (3, 5, 40, 30), (2, 4, 0, 6), (2, 4, 7, 0)):
        x = torch.randn(batches, points, width, dtype=torch.float64, requires_grad=True)
        i, j = (torch.randint(points, (pairs,)) for _ in range(2))
        y, wanted = function(x, i, j), (x[:, i] * x[:, j]).sum(2)
        torch.testing.assert_close(y, wanted)
        along = torch.randn_like(wanted)
        found, theirs = (torch.autograd.grad(each, x, along)[0] for each in (y, wanted))
        torch.testing.assert_close(found, theirs)


@pytest.mark.parametrize("at", [0, 1])
def test_an_index_outside_is_refused_where_it_is_looked_at(at: int) -> None:
    function, both = opgen.compile(PAIRS).f, [torch.tensor([0, 1, 2]), torch.tensor([2, 1, 0])]
    both[at][1] = 3
    with pytest.raises(IndexError, match="index 3 is outside of dimension 1 of 'x'"):
        function(torch.ones(2, 3, 40), *both)
    assert torch.equal(function(torch.ones(2, 3, 0), *both), torch.zeros(2, 3))
    assert function(torch.ones(0, 3, 40), *both).shape == (0, 3)


def test_checks_are_between_the_loops() -> None:
    op = for_cpu(read(LARGEST))
    text = show_program(along_rows(op, scheduled(op)))
    lines = [line.strip() for line in text.splitlines()]
    check = next(at for at, line in enumerate(lines) if "else fault" in line)
    assert lines[check - 1] == "if D - 1 >= 0"
    assert lines[check + 1].startswith("for d in 0 .. D - 1")
    function, i = opgen.compile(LARGEST).f, torch.randint(6, (9, 4))
    x = torch.randn(6, 33, requires_grad=True)
    y, wanted = function(x, i), x[i].flatten(1).amax(1)
    assert torch.equal(y, wanted)
    found, theirs = (torch.autograd.grad(each.sum(), x)[0] for each in (y, wanted))
    assert torch.equal(found, theirs)
