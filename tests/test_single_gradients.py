"""The gradient of an image alone, or of a filter alone: no Python runs in a call like earlier ones.

That of the filter alone is what the first layer of a net has, that of the image alone what frozen
filters have.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from opgen.runtime import library_call
from opgen.runtime.library_plan import Plan, Tensors
from opgen.runtime.lookup_convolution_source import OF_IMAGE, OF_WEIGHT, Convolved
from witness_calls import LAST, PLANES, Gradients, listening, spoiled

GEOMETRIES = [
    ((4, 16, 4, 5), (16, 16, 3, 3), 1, 1, 1, 1),
    ((4, 32, 4, 5), (64, 16, 3, 3), 1, 1, 1, 2),
    ((2, 24, 5, 4), (30, 24, 2, 3), 1, 0, 1, 1),
    ((1, 24, 5, 5), (24, 24, 3, 3), 1, 2, 2, 1),
    ((1, 48, 6, 7), (24, 24, 3, 3), 2, 1, 1, 2),
    ((2, 3, 9, 8), (24, 3, 3, 3), 2, 1, 1, 1),
    ((1, 25, 4, 5), (25, 25, 3, 3), 1, 1, 1, 1),
]
"""Shapes of image and weight, stride, padding, dilation and groups; of no other test: a call that
is looked up already is not entered again."""

CASES = [
    (geometry, format_, dtype)
    for geometry in GEOMETRIES
    for format_ in (PLANES, LAST)
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[Convolved]:
    return listening(monkeypatch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each time that Python was asked for a gradient: whether the library gave it."""
    for plans in library_call._KNOWN.values():
        plans.clear()  # calls that are known from other tests would not be entered again
    heard = []
    computed = library_call.computed

    def heard_of(plan: Plan, tensors: Tensors) -> Tensor | None:
        found = computed(plan, tensors)
        if not plan.is_forward:
            heard.append(found is not None)
        return found

    monkeypatch.setattr(library_call, "computed", heard_of)
    return heard


@pytest.mark.sampled(18)
@pytest.mark.parametrize("wanted", [0, 1], ids=["image", "weight"])
@pytest.mark.parametrize(("geometry", "format_", "dtype"), CASES)
def test_one_gradient_of_a_known_call(
    geometry: tuple[Any, ...],
    format_: torch.memory_format,
    dtype: torch.dtype,
    wanted: int,
    entered: list[Convolved],
    asked: list[bool],
) -> None:
    """As naive loops have it, also beside what is not finite, for which Python may be asked."""
    found = Gradients(geometry, format_, dtype, (wanted,))
    if not asked:
        assert not any(about.gradient for about in entered)
        return  # generated kernels have such a gradient
    assert entered[-1].gradient == (OF_WEIGHT if wanted else OF_IMAGE)
    for image in spoiled(found.image):
        found.check(image, found.cotangent)
    for cotangent in spoiled(found.cotangent):
        found.check(found.image, cotangent)
    weight = found.weight.clone()
    weight[-1, 0, 0, -1] = torch.inf
    found.check(found.image, found.cotangent, weight)
    asked.clear()
    for _ in range(2):
        found.check(found.image, found.cotangent)
    assert asked == []


def test_most_of_them_are_the_library_s(entered: list[Convolved], asked: list[bool]) -> None:
    """So that the test above is one of these."""
    found = []
    for (_, *shape), *rest in GEOMETRIES:
        for wanted in (0, 1):
            geometry = (3, *shape), *rest  # of no other test
            Gradients(geometry, LAST, torch.float32, (wanted,))
            found.append(bool(asked))
            asked.clear()
    assert sum(found) >= len(found) - 2


def test_a_filter_that_is_not_finite_is_noticed(
    entered: list[Convolved], asked: list[bool]
) -> None:
    """Its zeros of the padding are no terms: kernels that have none compute that gradient."""
    geometry = (5, 16, 4, 5), (16, 16, 3, 3), 1, 1, 1, 1
    found = Gradients(geometry, LAST, torch.float32, (0,))
    assert entered[-1].checks_weight and entered[-1].gradient == OF_IMAGE
    for number in (torch.inf, -torch.inf, torch.nan):
        weight = found.weight.clone()
        weight[3, 5, 0, 2] = number
        asked.clear()
        found.check(found.image, found.cotangent, weight)
        assert asked and not any(asked)
