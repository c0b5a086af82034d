"""Which calls go to PyTorch's libraries on a GPU: by sizes, types and settings alone.

So none of it takes a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from library_cuda_specs import (
    ALL_TF32,
    BLOCKS,
    BRAIN,
    CONVOLUTION,
    FLOAT,
    HALF,
    IEEE,
    LAST,
    LINE,
    PLAIN,
    PRODUCT,
    PRODUCTS_ONLY,
    TF32,
    ops,
)
from opgen.runtime import evaluation, library_call, library_cuda
from opgen.runtime.description import Convolution
from opgen.runtime.library import Case
from opgen.runtime.library_cuda import Settings
from opgen.runtime.record import replaced
from opgen.runtime.schema import unflatten

NEAR_MISSES = {
    "a third factor": (CONVOLUTION, ("?0]\n", "?0] * 2\n")),
    "edges repeated": (CONVOLUTION, ("?0", "?clamp")),
    "a maximum": (CONVOLUTION.replace("?0", "?clamp"), ("sum(", "max(")),
    "a sum of terms": (PRODUCT, ("a[i,m,k] * b[i,k,n]", "(a[i,m,k] + b[i,k,n])")),
}


def case(
    batch: int, channels: int, side: int, groups: int = 1, format_: Any = PLAIN, taps: int = 3
) -> Case:
    """As many results as channels, through a window, with padding."""
    images = (batch, channels, side, side)
    weight = (channels, channels // groups, taps, taps)
    ones, padding = (1, 1), (taps // 2, taps // 2)
    return Case(groups, ones, padding, ones, images, images, weight, format_)


FORWARD, BACKWARD = Convolution("y", "y", "x", "w"), Convolution("x", "y", "x", "w")
LAYER, GROUPS_4 = case(8, 256, 28), case(8, 256, 28, 4)
GROUPS_16, GROUPS_32 = case(8, 256, 56, 16), case(8, 256, 56, 32)
DEPTHWISE, UNFOLDED = case(8, 256, 28, 256), case(512, 10, 50)
NET, NET_LAST = case(1, 64, 180), case(1, 64, 180, 1, LAST)


@pytest.mark.parametrize(
    ("case", "settings", "forward", "backward"),
    [
        (LAYER, IEEE, True, True),
        (GROUPS_4, IEEE, True, True),
        (UNFOLDED, IEEE, True, True),
        (NET, IEEE, True, True),
        (NET_LAST, IEEE, True, True),
        (case(1, 64, 50, 1, LAST), IEEE, True, True),
        (case(1, 63, 50, 1, LAST), IEEE, False, True),
        (case(8, 256, 56, 32, LAST), IEEE, True, False),
        (case(8, 256, 56, 16, LAST), IEEE, True, False),
        (case(8, 128, 56, 32, LAST), IEEE, False, False),
        (NET_LAST, TF32, True, True),
        (GROUPS_16, IEEE, False, False),
        (GROUPS_16, TF32, True, True),
        (GROUPS_16, ALL_TF32, True, True),
        (GROUPS_32, TF32, False, False),
        (case(8, 256, 56, 32, LAST), TF32, True, True),
        (case(8, 256, 56, 64, LAST), TF32, False, False),
        (DEPTHWISE, TF32, False, False),
        (case(8, 1024, 20, 1024, taps=31), TF32, False, False),
        # Other settings: opgen's own tiles have TF32, cuDNN has not; there is no cuDNN; all is off.
        (LAYER, PRODUCTS_ONLY, False, False),
        (LAYER, Settings(False, True, True), False, False),
        (LAYER, None, False, False),
        # Two images of 10 channels are work enough on the way forward, one is not.
        (case(2, 10, 50), IEEE, True, False),
        (case(1, 10, 50), IEEE, False, False),
        (case(512, 3, 50), TF32, True, True),
        (case(512, 2, 50, taps=5), TF32, False, False),
        (case(512, 6, 50, taps=2), TF32, False, False),
        (case(512, 7, 50, taps=2), TF32, True, True),
        (case(512, 10, 50, taps=2), IEEE, False, False),
        (case(512, 71, 50, taps=1), TF32, False, False),
        (case(512, 72, 50, taps=1), TF32, True, True),
        (case(8, 252, 28, 4), IEEE, False, False),
        (case(8, 240, 56, 16), TF32, False, False),
    ],
)
def test_which_convolutions_go_there(
    case: Case, settings: Settings | None, forward: bool, backward: bool
) -> None:
    for names, expected in ((FORWARD, forward), (BACKWARD, backward)):
        assert library_cuda.takes_convolution(case, FLOAT, names, settings, 0) == expected


def few(
    channels: int, results: int, taps: int, stride: int = 1, format_: Any = PLAIN, side: int = 128
) -> Case:
    """A convolution with few channels or results, of 8 images."""
    ones, weight = (1, 1), (results, channels, taps, taps)
    image, result = (8, channels, side, side), (8, results, side // stride, side // stride)
    padding = (taps // 2, taps // 2)
    return Case(1, (stride, stride), padding, ones, result, image, weight, format_)


@pytest.mark.parametrize(
    ("case", "forward", "of_image", "of_weight"),
    [
        (few(3, 64, 7, 2), True, True, True),
        (few(3, 64, 3), True, True, False),
        (few(3, 64, 3, format_=LAST), True, True, False),
        (few(3, 32, 3, 2), True, True, True),
        (few(3, 31, 3, 2), False, False, False),
        (few(3, 64, 2), False, True, False),
        (few(2, 64, 5), True, True, True),
        (few(3, 64, 16, 16), False, True, True),
        (few(1, 32, 3), False, False, False),
        (few(1, 32, 3, 2), False, True, False),
        (few(1, 64, 4, 2), False, True, True),
        (few(8, 8, 3), False, False, False),
        (few(8, 8, 4), False, False, False),
        (few(64, 3, 3), False, False, False),
        (few(64, 3, 9), False, False, False),
        (few(320, 4, 3, side=64), False, False, False),
        (few(320, 4, 3, format_=LAST, side=64), True, False, False),
        (few(320, 4, 3, format_=LAST), False, False, False),
        (few(64, 4, 3, format_=LAST, side=64), False, False, False),
        (few(10, 10, 3), True, True, True),
    ],
)
def test_few_channels_or_results(
    case: Case, forward: bool, of_image: bool, of_weight: bool
) -> None:
    roles = {"y": forward, "x": of_image, "w": of_weight}
    for target, expected in roles.items():
        names = Convolution(target, "y", "x", "w")
        assert library_cuda.takes_convolution(case, FLOAT, names, IEEE, 0) == expected
        assert library_cuda.format_of(case, FLOAT, IEEE) == case.format
        # Tiles of opgen have TF32 then.
        assert not library_cuda.takes_convolution(case, FLOAT, names, PRODUCTS_ONLY, 0)


def singles(images: int, channels: int, side: int, taps: int = 3, format_: Any = LAST) -> Case:
    """A depthwise convolution."""
    return case(images, channels, side, channels, format_, taps)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (singles(4, 144, 56), True),
        (singles(8, 1024, 20), True),
        (singles(8, 2048, 16), False),
        (singles(4, 144, 56, format_=PLAIN), False),
        (singles(1, 144, 28), False),
        (singles(4, 240, 28, 5), True),
        (singles(8, 1024, 20, 5), True),
        (singles(64, 1024, 20, 5), False),
        (singles(1, 768, 7, 7), False),
        (replaced(singles(4, 144, 56), weight=(288, 1, 3, 3)), False),
    ],
)
@pytest.mark.parametrize("settings", [IEEE, TF32])
def test_single_channels(case: Case, expected: bool, settings: Settings) -> None:
    assert library_cuda.takes_convolution(case, FLOAT, FORWARD, settings, 0) == expected
    assert not library_cuda.takes_convolution(case, FLOAT, FORWARD, settings, 1)
    assert not library_cuda.takes_convolution(case, FLOAT, BACKWARD, settings, 0)
    assert not library_cuda.takes_convolution(case, HALF, FORWARD, settings, 0)
    assert not library_cuda.takes_convolution(case, BRAIN, FORWARD, settings, 0)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("settings", [IEEE, TF32, PRODUCTS_ONLY])
def test_types_of_16_bits(dtype: torch.dtype, settings: Settings) -> None:
    for subject, expected in (
        *((LAYER, True), (GROUPS_4, True), (NET_LAST, True), (UNFOLDED, True), (GROUPS_16, True)),
        *((case(8, 256, 28, 32), True), (case(8, 256, 28, 32, LAST), True)),
        *((case(8, 256, 28, 64), False), (case(8, 256, 28, 64, LAST), True), (DEPTHWISE, False)),
        *((case(512, 3, 50), True), (case(512, 2, 50, taps=5), False)),
        *((case(8, 256, 28, 256, LAST), False), (case(8, 256, 28, 128, LAST), False)),
    ):
        assert library_cuda.takes_convolution(subject, dtype, FORWARD, settings, 0) == expected
    assert not library_cuda.takes_convolution(LAYER, torch.float64, FORWARD, settings, 0)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (case(8, 256, 28, 1, LAST), LAST),
        (case(8, 256, 28, 2, LAST), LAST),
        (case(8, 256, 28, 4, LAST), LAST),
        (NET_LAST, LAST),
        (case(8, 256, 56, 16, LAST), PLAIN),
        (case(8, 256, 56, 32, LAST), PLAIN),
        (case(512, 10, 50, 1, LAST), PLAIN),
        # Not enough to do for each element: single taps; not enough in all.
        (case(512, 16, 50, 1, LAST, taps=1), LAST),
        (case(1, 48, 60, 1, LAST), LAST),
        (LAYER, PLAIN),
    ],
)
def test_which_format_images_have_there(case: Case, expected: Any) -> None:
    assert library_cuda.format_of(case, FLOAT, IEEE) == expected
    for dtype, settings in (
        *((FLOAT, TF32), (FLOAT, PRODUCTS_ONLY), (FLOAT, None)),
        *((HALF, IEEE), (BRAIN, IEEE), (torch.float64, IEEE)),
    ):
        assert library_cuda.format_of(case, dtype, settings) == case.format


def test_products_where_pytorch_is_to_be_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises for those of cuBLAS, unless a variable is set; opgen's own are."""
    shapes: list[tuple[int, ...]] = [(16, 64, 64), (16, 64, 64)]
    for deterministic in (False, True):
        settings = IEEE._replace(deterministic=deterministic)
        monkeypatch.setattr(library_cuda, "settings", lambda found=settings: found)
        assert goes(PRODUCT, "product_on_gpu", shapes, ()) is not deterministic


def test_copies_and_images_of_three_dims() -> None:
    worth = LAYER.work // 256
    assert library_cuda.takes_convolution(LAYER, FLOAT, FORWARD, TF32, worth)
    assert not library_cuda.takes_convolution(LAYER, FLOAT, FORWARD, TF32, worth + 1)
    images, ones = (8, 64, 28, 28, 28), (1, 1, 1)
    volume = Case(1, ones, ones, ones, images, images, (64, 64, 3, 3, 3), PLAIN)
    assert not library_cuda.takes_convolution(volume, FLOAT, FORWARD, TF32, 0)


def goes(
    text: str, name: str, shapes: list[tuple[int, ...]], numbers: tuple[int, ...], **how: Any
) -> bool:
    """Whether a call of tensors on a GPU, which have no memory here, is a library's."""
    operation = ops(text).FAMILY.operations[name]
    with FakeTensorMode():
        tensors = [torch.empty(shape, device="cuda", **how) for shape in shapes]
        missing = [None] * (len(operation.inputs) - len(tensors))
        values = unflatten(operation.attributes, numbers)
        call = evaluation.prepare(operation, [*tensors, *missing], values)
        assert call.device.type == "cuda"
        return library_call.is_asked(call)


def test_calls_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_cuda, "settings", lambda: IEEE)
    numbers, weight = (1, 1, 1, 1, 1), (64, 64, 3, 3)
    images = (4, 64, 28, 28)
    assert goes(CONVOLUTION, "conv_on_gpu", [images, weight], numbers)
    assert goes(CONVOLUTION, "conv_on_gpu", [images, weight], numbers, memory_format=LAST)
    few = [(4, 48, 28, 28), (48, 48, 3, 3)]
    assert not goes(CONVOLUTION, "conv_on_gpu", few, numbers, memory_format=LAST)
    assert not goes(CONVOLUTION, "conv_on_gpu", [images, weight], numbers, dtype=torch.float64)
    assert goes(BLOCKS, "blocks_on_gpu", [images, weight], ())
    assert goes(LINE, "line_on_gpu", [(16, 64, 500), (64, 64, 3)], (1,))
    assert goes(PRODUCT, "product_on_gpu", [(16, 64, 64), (16, 64, 64)], ())
    assert not goes(PRODUCT, "product_on_gpu", [(16, 63, 64), (16, 64, 128)], ())
    assert not goes(PRODUCT, "product_on_gpu", [(15, 64, 64), (15, 64, 64)], ())
    monkeypatch.setattr(library_cuda, "settings", lambda: None)
    assert not goes(CONVOLUTION, "conv_on_gpu", [images, weight], numbers)
    assert not goes(PRODUCT, "product_on_gpu", [(16, 64, 64), (16, 64, 64)], ())


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Almost a convolution, almost a product: of other index maps or operations."""
    monkeypatch.setattr(library_cuda, "settings", lambda: TF32)
    right, (before, after) = NEAR_MISSES[name]
    assert right.count(before)
    wrong = right.replace(before, after)
    if right is PRODUCT:
        assert not goes(wrong, "product_on_gpu", [(16, 64, 64), (16, 64, 64)], ())
    else:
        shapes = [(4, 64, 28, 28), (64, 64, 3, 3)]
        assert not goes(wrong, "conv_on_gpu", shapes, (1, 1, 1, 1, 1))


def test_what_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_cuda, "_has_cudnn", lambda: True)
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    try:
        for tf32, of_products in ((True, False), (False, True), (False, False)):
            convolutions.allow_tf32, products.allow_tf32 = tf32, of_products
            assert library_cuda.settings() == Settings(True, tf32, of_products)
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before
    monkeypatch.setattr(convolutions, "enabled", False)
    found = library_cuda.settings()
    assert found is not None and not found.has_convolutions


@pytest.fixture
def variable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment variable is read anew."""
    library_cuda._is_wanted.cache_clear()
    yield lambda value: monkeypatch.setenv("OPGEN_CUDA_LIBRARY", value)
    library_cuda._is_wanted.cache_clear()


def test_the_variable(variable: Callable[[str], None]) -> None:
    assert library_cuda.settings() is not None
    variable("0")
    library_cuda._is_wanted.cache_clear()
    assert library_cuda.settings() is None
    variable("no")
    library_cuda._is_wanted.cache_clear()
    with pytest.raises(RuntimeError, match="OPGEN_CUDA_LIBRARY must be 0 or 1, got 'no'"):
        library_cuda.settings()
