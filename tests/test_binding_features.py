"""What else PyTorch does with its ops, with ours: memory, modes, subclasses, threads, files."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import binding_cases as cases
import opgen
from binding_cases import OPS, Op, real
from catalogue import SPECS
from opgen.runtime import compat, lookup_library
from opgen.testing.transforms import loss

close = torch.testing.assert_close
every_op = pytest.mark.parametrize("op", OPS, ids=repr)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Torch warns about anomaly mode, and about what it calls itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def gradients(function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> Any:
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)
    function(*leaves).backward()
    return [leaf.grad for leaf in leaves]


# ---------------------------------------------------------------------------- autograd around them
@every_op
@pytest.mark.sampled(8)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(op: Op, reentrant: bool) -> None:
    def function(*tensors: Tensor) -> Tensor:
        result: Tensor = checkpoint(loss(op.ours), *tensors, use_reentrant=reentrant)
        return result

    close(gradients(function, op.tensors), gradients(loss(op.reference), op.tensors))


def test_selective_checkpoint_by_op() -> None:
    op = cases.op("depth_to_space")
    overload, _ = op.registered()
    calls = []

    def policy(context: Any, called: object, *arguments: Any, **options: Any) -> CheckpointPolicy:
        if called is overload:
            calls.append(called)
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    got = gradients(
        lambda x: checkpoint(loss(op.ours), x, use_reentrant=False, context_fn=contexts),
        op.tensors,
    )
    close(got, gradients(loss(op.reference), op.tensors))
    assert calls


@pytest.mark.sampled(3)
@every_op
def test_anomaly_mode(op: Op) -> None:
    with torch.autograd.detect_anomaly():
        close(
            gradients(lambda *t: op.ours(*t).sum(), op.tensors),
            gradients(lambda *t: op.reference(*t).sum(), op.tensors),
        )


@every_op
def test_inference_mode(op: Op) -> None:
    with torch.inference_mode():
        result = op.ours(*op.tensors)
        assert result.is_inference()
        close(result, op.reference(*op.tensors))


@pytest.mark.parametrize("rows", [4, 512])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_nothing_is_recorded_in_inference_mode(rows: int, dtype: torch.dtype | None) -> None:
    """Even where gradients are enabled within it, as by PyTorch's ops; large calls keep something.

    What is changed in place there would be unknown to gradients, which would be wrong.
    """
    softmax = opgen.load(SPECS / "softmax.op").softmax
    x = torch.randn(rows, 100, requires_grad=True)
    for _ in range(3):
        with (
            torch.inference_mode(),
            torch.enable_grad(),
            torch.autocast("cpu", dtype=dtype, enabled=dtype is not None),
        ):
            y = softmax(softmax(x))
            assert torch.softmax(x, -1).requires_grad == y.requires_grad is False
            y.mul_(3)
        with pytest.raises(RuntimeError, match="does not require grad"):
            y.sum().backward()
    assert softmax(x).requires_grad


def test_nothing_is_recorded_without_need() -> None:
    op = cases.op("conv2d")
    assert op.ours(*op.tensors).grad_fn is None
    with torch.no_grad():
        assert op.ours(*op.leaves).grad_fn is None
    assert op.ours(*op.leaves).grad_fn is not None


@every_op
def test_parameters_and_the_sum_of_their_gradients(op: Op) -> None:
    parameters = [nn.Parameter(x.clone()) for x in op.tensors]
    for _ in range(2):
        loss(op.ours)(*parameters).backward()
    wanted = gradients(loss(op.reference), op.tensors)
    close([cast(Tensor, each.grad) for each in parameters], [2 * each for each in wanted])


# ---------------------------------------------------------------------------- modes and subclasses
@every_op
def test_fake_tensors(op: Op) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = [mode.from_tensor(x).requires_grad_() for x in op.tensors]
        result = op.ours(*given)
        assert isinstance(result, FakeTensor)
        assert result.shape == op.reference(*op.tensors).shape
        for gradient, x in zip(torch.autograd.grad(result.sum(), given), op.tensors, strict=True):
            assert isinstance(gradient, FakeTensor)
            assert gradient.shape == x.shape


@every_op
def test_meta_tensors(op: Op) -> None:
    result = op.ours(*(x.to("meta") for x in op.tensors))
    assert result.is_meta
    assert result.shape == op.reference(*op.tensors).shape


@every_op
def test_a_subclass_that_dispatches(op: Op) -> None:
    given = [TwoTensor(x, 2 * x) for x in op.tensors]
    result = op.ours(*given)
    assert isinstance(result, TwoTensor)
    close(result.a, op.reference(*op.tensors))
    close(result.b, op.reference(*(2 * x for x in op.tensors)))


def test_a_function_mode_sees_the_op() -> None:
    op = cases.op("conv2d")
    overload, _ = op.registered()
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        op.ours(*op.tensors)
    assert overload in seen


def test_a_subclass_with_its_own_functions() -> None:
    class Named(Tensor):
        pass

    op = cases.op("softmax")
    x = op.tensors[0].as_subclass(Named)
    result = op.ours(x)
    assert isinstance(result, Named)
    close(result.as_subclass(Tensor), op.reference(*op.tensors))


def test_negative_views() -> None:
    x = torch.complex(real(1, 4, 2, 2), real(1, 4, 2, 2, seed=1)).conj().imag
    assert x.is_neg()
    op = cases.op("depth_to_space")
    close(op.ours(x), op.reference(x))


# ---------------------------------------------------------------------------- around the process
def test_a_profile_shows_names_to_recognise() -> None:
    op = cases.op("conv2d")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        loss(op.ours)(*op.leaves).backward()
    names = {event.key for event in profiler.key_averages()}
    for wanted in ("conv2d_", "conv2d_grad_x_", "conv2d_grad_weight_"):
        assert any(wanted in name and "opgen" in name for name in names), (wanted, names)
    assert any("conv2d" in name and "Backward" in name for name in names), names


def test_threads() -> None:
    op = cases.op("conv2d")
    wanted = gradients(loss(op.reference), op.tensors)
    failures = []

    def work() -> None:
        try:
            for _ in range(20):
                close(gradients(loss(op.ours), op.tensors), wanted)
        except Exception as error:  # reported below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_fork_while_another_thread_makes_a_twin() -> None:
    held, hold = threading.Event(), threading.Event()

    def work() -> None:
        with lookup_library.LOCK:
            held.set()
            hold.wait(timeout=0.2)

    op = cases.op("softmax")
    wanted = op.ours(*op.tensors)
    thread = threading.Thread(target=work)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        lookup_library.build_meanwhile()
        os._exit(0 if torch.equal(op.ours(*op.tensors), wanted) else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_modules_are_copied_and_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    opgen.build(SPECS / "depth_to_space.op", tmp_path)
    x = real(1, 4, 2, 3)
    import depth_to_space  # type: ignore[import-not-found]

    text = (SPECS / "depth_to_space.op").read_text(encoding="utf-8")
    for module in (depth_to_space, opgen.compile(f"{text}\n# in memory\n")):
        layer = nn.Sequential(nn.Conv2d(4, 4, 1).double(), module.DepthToSpace(r=2))
        wanted = layer(x)
        close(copy.deepcopy(layer)(x), wanted)
        close(pickle.loads(pickle.dumps(layer))(x), wanted)
    del sys.modules["depth_to_space"]


EMPTY: tuple[tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[int, ...]], ...] = (
    (cases.op("depth_to_space").ours, cases.op("depth_to_space").reference, (0, 4, 2, 2)),
    (cases.op("depth_to_space").ours, cases.op("depth_to_space").reference, (2, 4, 0, 3)),
    (cases.op("softmax").ours, cases.op("softmax").reference, (0, 3)),
    (cases.op("softmax").ours, cases.op("softmax").reference, (2, 0)),
    (cases.op("shift_sum").ours, cases.op("shift_sum").reference, (2, 3, 0, 4)),
)


@pytest.mark.parametrize(("ours", "reference", "shape"), EMPTY)
def test_empty_tensors(
    ours: Callable[..., Tensor], reference: Callable[..., Tensor], shape: tuple[int, ...]
) -> None:
    x = torch.zeros(shape, dtype=torch.float64)
    close(ours(x), reference(x))
    (gradient,) = gradients(loss(ours), (x,))
    assert gradient.shape == x.shape


# ---------------------------------------------------------------------------- one op, two modules
def test_two_modules_of_one_spec_share_an_op_and_others_do_not() -> None:
    text = "op twice(x[N]) -> y[N]\n  y[n] = 2*x[n]\n"
    first, second = opgen.compile(text), opgen.compile(text + "\n# a comment\n")
    other = opgen.compile(text.replace("2*", "3*"))
    assert first._twice.overload is second._twice.overload
    assert first._twice.overload is not other._twice.overload
    x = torch.ones(2)
    assert first.twice(x).tolist() == second.twice(x).tolist() == [2, 2]
    assert other.twice(x).tolist() == [3, 3]


def test_a_gradient_by_hand_is_part_of_what_an_op_is() -> None:
    text = (
        "op same(x: float[N]) -> y[N]\n  gradient x by other\n  y[n] = x[n]\n"
        "op other(grad_y: float[N]) -> g[N]\n  g[n] = 2*grad_y[n]\n"
    )
    first, second = opgen.compile(text), opgen.compile(text.replace("2*", "5*"))
    x = torch.ones(2, requires_grad=True)
    for module, factor in ((first, 2.0), (second, 5.0)):
        (gradient,) = torch.autograd.grad(module.same(x).sum(), x)
        assert gradient.tolist() == [factor, factor]


def test_a_release_without_a_private_name_is_refused_with_the_name() -> None:
    assert compat.find("torch", "Tensor.shape") is Tensor.shape
    with pytest.raises(ImportError, match=r"opgen needs torch\._C\.nonsense, which PyTorch "):
        compat.find("torch._C", "nonsense")
    with pytest.raises(ImportError, match=r"torch\.nonsense\.x"):
        compat.find("torch.nonsense", "x")


def test_a_net_learns_as_with_ops_of_pytorch() -> None:
    def train(shuffle: Callable[[Tensor], Tensor]) -> list[float]:
        torch.manual_seed(0)
        net = nn.Conv2d(2, 8, 3, padding=1).double()
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        x, target = real(2, 2, 4, 4), real(2, 2, 8, 8)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            value = F.mse_loss(shuffle(net(x)), target)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        return losses

    op = cases.op("depth_to_space")
    assert train(op.ours) == pytest.approx(train(op.reference), rel=1e-12)


def test_checkpoint_of_an_op_that_two_modules_share() -> None:
    """One of them knows its derivatives already; the same tensors are kept however it is called."""
    text = (SPECS / "conv.op").read_text(encoding="utf-8")
    modules = [opgen.compile(text + f"# copy {number}\n", "conv.op") for number in range(2)]
    tensors = (torch.randn(2, 3, 9, requires_grad=True), torch.randn(4, 3, 2, requires_grad=True))

    def square(module: Any) -> Any:
        return lambda *tensors: module.conv1d(*tensors).square().sum()

    square(modules[1])(*tensors).backward()
    for module in (*modules, *modules):
        wanted = torch.autograd.grad(square(module)(*tensors), tensors)
        result = checkpoint(square(module), *tensors, use_reentrant=False)
        close(torch.autograd.grad(result, tensors), wanted)


@pytest.mark.parametrize("is_cast", [False, True])
def test_checkpoints_of_an_op_that_nobody_has_differentiated(is_cast: bool) -> None:
    """The backward pass of the second one finds a derivative before the first one runs again."""
    name = f"copied_{is_cast}"
    text = f"op {name}(x[N,C]) -> y[N,C]\n  y[n,c] = 2*x[n,c]\n"
    op = getattr(opgen.compile(text, "copied.op"), name)
    x = torch.randn(300, 200, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast):
        y = checkpoint(op, checkpoint(op, x, use_reentrant=False).float(), use_reentrant=False)
    y.float().sum().backward()
    assert x.grad is not None
    close(x.grad, torch.full_like(x, 4.0))
