"""Whether tensors are what they should be, and the sentence that says where they are not."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from opgen.ir.binding import Array

_SLACK: Final = 256  # roundings in a row that add up; far below what a wrong term makes


class Mismatch(AssertionError):  # noqa: N818  # what it is called in a sentence
    """A result differs from what was expected; the text says where and by how much."""


def compare(
    what: str, got: torch.Tensor, wanted: Array, scale: Array, computed: torch.dtype
) -> None:
    """Raise Mismatch unless `got` is `wanted`, up to rounding in the type `computed`.

    `scale` is the magnitude of every cell (see `testing.magnitude`). Integers must be equal.
    """
    if tuple(got.shape) != wanted.shape:
        raise Mismatch(f"{what} has shape {tuple(got.shape)}, expected {wanted.shape}")
    if got.numel() == 0:
        return
    found = got.detach().cpu()
    if not found.is_floating_point():
        rounded = torch.from_numpy(np.asarray(wanted)).to(found.dtype)
        wrong = found != rounded
        if bool(wrong.any()):
            at = tuple(wrong.nonzero()[0].tolist())
            raise Mismatch(f"{what}{list(at)} is {found[at].item()}, expected {rounded[at].item()}")
        return
    own = torch.finfo(found.dtype)
    ours = found.double().numpy()
    theirs = np.asarray(wanted, np.float64)
    size = np.asarray(scale, np.float64)
    narrowed = torch.from_numpy(theirs).to(found.dtype).double().numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = (
            _SLACK * torch.finfo(computed).eps * size
            + 2 * own.eps * np.abs(theirs)
            + own.smallest_normal * own.eps
        )
        same = (np.isnan(ours) & np.isnan(theirs)) | (ours == theirs) | (ours == narrowed)
        error = np.where(same, 0.0, np.abs(ours - theirs))
        wrong_cells = ~(same | (error <= allowed))
    if not wrong_cells.any():
        return
    excess = np.where(wrong_cells, np.nan_to_num(error - allowed, nan=np.inf), -np.inf)
    at = tuple(int(n) for n in np.unravel_index(np.argmax(excess), excess.shape))
    raise Mismatch(
        f"{what}{list(at)} is {ours[at]:.9g}, expected {theirs[at]:.9g} "
        f"(rounding explains {allowed[at]:.2g}); {int(wrong_cells.sum())} of {ours.size} cells"
    )
