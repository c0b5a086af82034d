"""What makes an op a product of matrices, for those who have a fast one at hand."""

from __future__ import annotations

from dataclasses import dataclass

from opgen.ir.arrangement import Arrangement


@dataclass(frozen=True, slots=True)
class Matrices:
    """A tensor as matrices."""

    tensor: str
    arrangement: Arrangement


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """The tensors of a product of matrices, one for each member of a batch.

        target[batch, rows, columns] = sum(terms)
            left[batch, rows, terms] * right[batch, terms, columns]

    Each of these dims may be several of a tensor, or a part of one. Without a batch there are two
    dims only. `bias` is added to each cell; of its dims, those that it has no part for are one
    element that all cells share. So may the left factor be the same for the whole batch.
    """

    target: Matrices
    left: Matrices
    right: Matrices
    bias: Matrices | None = None

    @property
    def operands(self) -> tuple[Matrices, ...]:
        """All of them, the target first."""
        rest = () if self.bias is None else (self.bias,)
        return (self.target, self.left, self.right, *rest)
