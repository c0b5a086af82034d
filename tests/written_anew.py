"""Ops that are computed in another form than they are written in, beside what they are to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opgen.compiler import check_source
from opgen.errors import Source
from opgen.ir.notation import Op
from opgen.passes.plain_products import with_plain_products


def read(spec: str) -> Op:
    """The op of a spec."""
    (op,) = check_source(Source(spec, "<test>"))
    return op


def changed(spec: str) -> Op:
    """The op in the form in which it is computed: another one, which stays as it is."""
    op = read(spec)
    found = with_plain_products(op)
    assert found is not op
    assert with_plain_products(found) is found
    return found


def check_numbers(
    function: Callable[..., Any],
    reference: Callable[..., Tensor],
    shapes: Sequence[tuple[int, ...]],
    *,
    twice: bool = False,
) -> None:
    """The numbers of a function, and its gradients, of the second order too if `twice`."""
    torch.manual_seed(0)
    given = [torch.rand(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    y, wanted = function(*given), reference(*given)
    torch.testing.assert_close(y, wanted)
    along = torch.randn_like(wanted)
    found = torch.autograd.grad(y, given, along)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, given, along))
    if twice:
        assert torch.autograd.gradgradcheck(function, given)
