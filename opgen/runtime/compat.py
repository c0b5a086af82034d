"""Every private name of PyTorch that the binding uses, in one place.

Supported are PyTorch 2.10 and newer. A release that moved one of these names is refused when the
runtime is imported, with the name, instead of failing in the middle of a training.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch


class UnsupportedError(ImportError):
    """This release of PyTorch lacks something that the binding is built on."""


def find(module: str, path: str) -> Any:
    """An object by the module it is in and its name there; UnsupportedError if it is not."""
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"opgen needs {module}.{path}, which PyTorch {torch.__version__} does not have; "
            "opgen supports PyTorch 2.10 and newer, and is tested with 2.13"
        ) from error


# ---------------------------------------------------------------------------- what is active
transforms_are_active = cast(
    Callable[[], bool], find("torch._C", "_are_functorch_transforms_active")
)
"""Whether a call is inside of vmap, grad, jvp or another transform of torch.func."""

dispatch_modes = cast(Callable[[], int], find("torch._C", "_len_torch_dispatch_stack"))
"""How many modes such as FakeTensorMode or a tracer are active."""

function_modes_are_active = cast(
    Callable[[], bool], find("torch._C", "_is_torch_function_mode_enabled")
)
_is_batched = cast(Callable[[Any], bool], find("torch._C", "_functorch.is_legacy_batchedtensor"))
_is_functional = cast(Callable[[Any], bool], find("torch", "_is_functional_tensor"))


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor of no subclass is none of those that stand for others without saying so.

    `is_grads_batched` and `vectorize` of `torch.autograd` are a vmap that is not one of torch.func:
    its tensors look like one sample, and no transform is active.
    """
    return not _is_batched(tensor) and not _is_functional(tensor)


is_jit_tracing = cast(Callable[[], bool], find("torch._C", "_is_tracing"))
autocast_is_active = cast(Callable[[], bool], find("torch._C", "_is_any_autocast_enabled"))
any_requires_grad = cast(Callable[..., bool], find("torch._C", "_any_requires_grad"))


def are_recorded(*tensors: torch.Tensor | None) -> bool:
    """Whether a call with these tensors is recorded for gradients.

    In inference mode none is, even where gradients are enabled within it: autograd would not see
    what is changed in place, nor could anything be saved for it.
    """
    wanted = torch.is_grad_enabled() and any_requires_grad(*tensors)
    return wanted and not torch.is_inference_mode_enabled()


forward_ad = cast(Any, find("torch.autograd", "forward_ad"))
find("torch.autograd", "forward_ad._current_level")


_saved_tensors_hooks = cast(
    Callable[[bool], object], find("torch._C", "_autograd._top_saved_tensors_default_hooks")
)


graph_is_kept = cast(
    Callable[[], bool], find("torch._C", "_autograd._get_current_graph_task_keep_graph")
)
"""Whether the graph of the backward pass that is running is kept for another one."""


def saved_tensors_are_hooked() -> bool:
    """Whether somebody, such as `torch.utils.checkpoint`, looks at what is saved."""
    return _saved_tensors_hooks(True) is not None


def dual_level_is_active() -> bool:
    """Whether a call is inside of `forward_ad.dual_level()`; not kept up to date by compilers."""
    return bool(forward_ad._current_level >= 0)


check_later = cast(Callable[[torch.SymBool], None], find("torch", "_check"))
"""Make a condition one of the program that is being traced."""


def is_unknown(value: torch.SymInt | torch.SymBool) -> bool:
    """Whether a size or condition depends on numbers that only a running program has."""
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    return has_free_unbacked_symbols(value)


def holds(condition: bool | torch.SymBool) -> bool:
    """Whether a condition is known to hold; one that only a running program can decide is not."""
    if torch.compiler.is_compiling() or isinstance(condition, torch.SymBool):
        from torch.fx.experimental.symbolic_shapes import guard_or_false

        return bool(guard_or_false(condition))
    return condition


# ---------------------------------------------------------------------------- what can be changed
below_autograd = cast(
    Callable[[], AbstractContextManager[None]], find("torch._C", "_AutoDispatchBelowAutograd")
)
"""Within it, ops are not recorded for autograd."""

single_level_autograd = cast(
    Callable[[], AbstractContextManager[None]],
    find("torch._functorch.utils", "enable_single_level_autograd_function"),
)
"""Allows `Function.apply` on one level of torch.func transforms."""

_unpack_dual = cast(Callable[..., tuple[torch.Tensor, object]], find("torch._VF", "_unpack_dual"))
_set_forward_grad_enabled = cast(
    Callable[[bool], AbstractContextManager[None]],
    find("torch.autograd.forward_ad", "_set_fwd_grad_enabled"),
)
_exclude_keys = cast(
    Callable[[Any], AbstractContextManager[None]], find("torch._C", "_ExcludeDispatchKeyGuard")
)
_keys = find("torch._C", "DispatchKeySet")
_key = find("torch._C", "DispatchKey")


@contextlib.contextmanager
def outer_levels_recorded() -> Any:
    """Undo what `Function.apply` switches off for its own level: outer levels differentiate too."""
    with torch.enable_grad(), _set_forward_grad_enabled(True), below_autograd():
        yield


def outer_levels_differentiated() -> AbstractContextManager[None]:
    """Undo what a call of `Function.jvp` switches off for outer levels, which go on above it."""
    return _set_forward_grad_enabled(True)


def primal(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its tangent of the innermost level; those of outer levels stay."""
    # PyTorch has one level, 0, and nests by wrapping. `forward_ad.unpack_dual` would ask for the
    # current level, of which nothing is known where a compiler traces.
    return _unpack_dual(tensor, level=0)[0]


def without_autocast(device_type: str) -> AbstractContextManager[None]:
    """Within it, ops on tensors of a device do not cast."""
    return _exclude_keys(_keys(getattr(_key, f"Autocast{device_type.upper()}")))


def fast_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without the layer that binds arguments by name in every call."""
    base = cast(Any, super(torch.autograd.Function, function))
    return cast(Callable[..., Any], base.apply)


library_has_convolutions = cast(bool, find("torch._C", "_has_mkldnn"))
"""Whether PyTorch was built with oneDNN, its library of convolutions."""

is_zero_tensor = cast(Callable[[torch.Tensor], bool], find("torch", "Tensor._is_zerotensor"))
"""Whether a tensor of zeros that autograd made has no memory."""


@functools.cache
def library_has_float16() -> bool:
    """Whether the library of convolutions has kernels for float16 on this processor."""
    return bool(find("torch", "ops.mkldnn._is_mkldnn_fp16_supported")())
