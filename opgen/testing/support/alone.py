"""Runs one call of a vendored module: `python alone.py MODULE DIRECTORY`, without opgen.

DIRECTORY holds the call, and gets the result. Nothing but torch is imported here.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import torch


def run(path: Path, directory: Path) -> None:
    """Load a module where opgen and its libraries are not there, and call its op."""
    for name in ("opgen", "lark", "jinja2"):
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    sys.path.insert(0, str(path.parent))
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    call: dict[str, Any] = torch.load(directory / "call.pt")
    arguments = [
        tensor.requires_grad_() if at in call["variables"] else tensor
        for at, tensor in enumerate(call["arguments"])
    ]
    result = getattr(module, call["function"])(*arguments, **call["attributes"])
    outputs = result if isinstance(result, tuple) else (result,)
    gradients: tuple[torch.Tensor, ...] = ()
    if call["variables"]:
        parts = [each.reshape(-1) for each in outputs if each.is_floating_point()]
        gradients = torch.autograd.grad(
            torch.cat(parts).pow(3).sum(),
            [arguments[at] for at in call["variables"]],
            allow_unused=True,
            materialize_grads=True,
        )
    found_outputs = tuple(each.detach() for each in outputs)
    torch.save({"outputs": found_outputs, "gradients": gradients}, directory / "result.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(Path(sys.argv[1]), Path(sys.argv[2]))
