"""One of two processes that try an op together: `python -m ... SPEC OP RANK PORT`.

Prints, as its last line, what went wrong with each attempt, nothing where it passed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from opgen.testing.subject import subjects
from opgen.testing.support.probe import Probe, agree, probe

_dist = cast(Any, torch.distributed)


class Net(nn.Module):
    """A net whose parameters are the variables of an op; a batch of it is a vector of scales."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.loss = probe.loss
        self.variables = nn.ParameterList(
            nn.Parameter(tensor.clone(), requires_grad=True) for tensor in probe.tensors
        )

    def forward(self, scales: Tensor) -> Tensor:
        """The loss of each sample."""
        losses = [self.loss(*(scale * x for x in self.variables)) for scale in scales]
        return torch.stack(losses)


def gradients(net: nn.Module, scales: Tensor) -> list[Tensor]:
    """The gradients of the mean over a batch, by parameter."""
    net(scales).mean().backward()
    return [cast(Tensor, parameter.grad) for parameter in net.parameters()]


_SCALES: Final = (1.0, 0.5, 0.25, 1.5)


def _batch(rank: int | None = None) -> Tensor:
    """The samples of one process, or of both."""
    mine = slice(None) if rank is None else slice(2 * rank, 2 * rank + 2)
    return torch.tensor(_SCALES[mine], dtype=torch.float64)


def distributed_data_parallel(probe: Probe, _mesh: Any) -> None:
    """The gradients of each half of a batch, averaged."""
    if not probe.has_derivative:
        return
    wanted = gradients(Net(probe), _batch())
    net = nn.parallel.DistributedDataParallel(Net(probe))
    agree("the gradient", gradients(net, _batch(_dist.get_rank())), wanted)


def fully_sharded_data_parallel(probe: Probe, mesh: Any) -> None:
    """The same with parameters spread over both processes."""
    from torch.distributed.fsdp import fully_shard

    if not probe.has_derivative:
        return
    net = Net(probe)
    cast(Any, fully_shard)(net, mesh=mesh)
    found = [cast(Any, each).full_tensor() for each in gradients(net, _batch(_dist.get_rank()))]
    agree("the gradient", found, gradients(Net(probe), _batch()))


def dtensor(probe: Probe, mesh: Any) -> None:
    """Every input spread along each of its dims, forward and backward."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    values, tensors = probe.values, probe.inputs
    for name, tensor in tensors.items():
        for axis in range(tensor.dim()):
            placements = {each: Shard(axis) if each == name else Replicate() for each in tensors}
            spread = {
                each: distribute_tensor(x.clone(), mesh, [placements[each]])
                for each, x in tensors.items()
            }
            what = f"{name} spread along dim {axis}"
            found = probe.subject.run(probe.call, cast(Any, spread))
            full = tuple(cast(Any, each).full_tensor() for each in found)
            agree(f"the result with {what}", full, values)
            if not probe.has_derivative:
                continue
            leaves = [spread[each].requires_grad_() for each in probe.names]
            found = probe.subject.run(probe.call, cast(Any, spread))
            losses = [each.pow(3).sum() for each in found if each.is_floating_point()]
            total = sum(losses[1:], losses[0])
            got = torch.autograd.grad(total, cast(Any, leaves), allow_unused=True)
            for x, gradient, wanted in zip(probe.names, got, probe.gradients, strict=True):
                whole = torch.zeros_like(wanted)
                if gradient is not None:
                    assert isinstance(gradient, DTensor)
                    whole = cast(Any, gradient).full_tensor()
                agree(f"the gradient of {x} with {what}", whole, wanted)


ATTEMPTS: Final[dict[str, Callable[[Probe, Any], None]]] = {
    "ddp": distributed_data_parallel,
    "fsdp2": fully_sharded_data_parallel,
    "dtensor": dtensor,
}


def run(path: Path, op: str, rank: int, port: str) -> dict[str, str]:
    """Try everything, in step with the other process: the error of each attempt, or nothing."""
    from torch.distributed.device_mesh import init_device_mesh

    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if loopback is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    torch.set_num_threads(1)
    (subject,) = (each for each in subjects(path) if each.op.name == op)
    tried = probe(subject, path)
    # A process that failed alone would leave the other one waiting.
    patience = timedelta(seconds=60)
    _dist.init_process_group("gloo", rank=rank, world_size=2, timeout=patience)
    mesh = init_device_mesh("cpu", (2,))
    found: dict[str, str] = {}
    for name, attempt in ATTEMPTS.items():
        try:
            attempt(tried, mesh)
        except Exception as error:
            traceback.print_exc()
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            found[name] = ""
        _dist.barrier()
    _dist.destroy_process_group()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])))
