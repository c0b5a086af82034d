"""What two processes check together; `test_binding_distributed` starts them.

Each check is a function of the mesh that asserts. The first process prints the name of every check
that passed.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import binding_cases as cases
from binding_cases import real, spec
from opgen.testing.transforms import loss

close = torch.testing.assert_close
dist = cast(Any, torch.distributed)
Check = Callable[[Any], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Register a check."""
    CHECKS.append(function)
    return function


def spread(x: Tensor, mesh: Any, placement: Any) -> Tensor:
    return cast(Tensor, distribute_tensor(x, mesh, [placement]))


def full(x: Tensor) -> Tensor:
    assert isinstance(x, DTensor)
    return cast(Tensor, cast(Any, x).full_tensor())


def placement(x: Tensor) -> Any:
    assert isinstance(x, DTensor)
    (found,) = cast(Any, x).placements
    return found


# ---------------------------------------------------------------------------- DTensor
@check
def every_shard_gives_the_right_numbers(mesh: Any) -> None:
    for op in cases.OPS:
        wanted = op.reference(*op.tensors)
        for at, tensor in enumerate(op.tensors):
            ways: list[Any] = [Shard(dim) for dim in range(tensor.dim())]
            for way in (*ways, Replicate()):
                given = [
                    spread(x, mesh, way if k == at else Replicate())
                    for k, x in enumerate(op.tensors)
                ]
                if op.name == "embedding":
                    indices = spread(cases.INDICES, mesh, Replicate())
                    got = spec("embedding").embedding(indices, *given)
                else:
                    got = op.ours(*given)
                close(full(got), wanted, msg=f"{op} {at} {way}")


@check
def parallel_dims_stay_spread(mesh: Any) -> None:
    x = real(4, 8, 6, 6)
    pool = spec("pool").avg_pool2d
    for dim, kept in ((0, Shard(0)), (1, Shard(1)), (2, Replicate())):
        y = pool(spread(x, mesh, Shard(dim)), kernel_size=2, stride=2)
        assert placement(y) == kept, (dim, placement(y))
        close(full(y), F.avg_pool2d(x, 2))
    conv = spec("conv").conv2d
    weight = spread(real(3, 8, 3, 3), mesh, Replicate())
    assert placement(conv(spread(x, mesh, Shard(0)), weight)) == Shard(0)
    rows = real(4, 6, 8)
    for dim in (0, 2):
        y = spec("softmax").softmax(spread(rows, mesh, Shard(dim)))
        assert placement(y) == (Shard(0) if dim == 0 else Replicate())
        close(full(y), F.softmax(rows, -1))


@check
def uneven_shards_are_gathered(mesh: Any) -> None:
    x = real(3, 4, 4, 4)
    y = spec("pool").avg_pool2d(spread(x, mesh, Shard(0)), kernel_size=2, stride=2)
    assert placement(y) == Replicate()
    close(full(y), F.avg_pool2d(x, 2))


@check
def attributes_are_part_of_a_call(mesh: Any) -> None:
    x = spread(real(2, 3, 4, 5), mesh, Shard(0))
    for step in (1, 2, 0):
        y = spec("shift_sum").shift_sum(x, step=step)
        close(full(y), spec("shift_sum").shift_sum(full(x), step=step))


@check
def sums_pass_through_linear_ops(mesh: Any) -> None:
    x = real(2, 4, 3, 3)
    partial = cast(Tensor, cast(Any, DTensor).from_local(x, mesh, [Partial()]))
    shuffled = spec("depth_to_space").depth_to_space(partial, r=2)
    assert placement(shuffled) == Partial()
    close(full(shuffled), 2 * F.pixel_shuffle(x, 2))
    close(full(spec("softmax").softmax(partial)), F.softmax(2 * x, -1))  # gathered first
    # A sum passes through a convolution together with its bias, or where there is none.
    weight = spread(real(2, 4, 2, 2), mesh, Replicate())
    bias = spread(real(2), mesh, Replicate())
    conv = spec("conv").conv2d
    close(full(conv(partial, weight)), F.conv2d(2 * x, full(weight)))
    close(full(conv(partial, weight, bias)), F.conv2d(2 * x, full(weight), full(bias)))


@check
def gradients_of_spread_tensors(mesh: Any) -> None:
    for op in cases.OPS:
        if op.name == "embedding":
            continue
        for dim in range(op.tensors[0].dim()):
            first = spread(op.tensors[0], mesh, Shard(dim)).requires_grad_()
            rest = [spread(x, mesh, Replicate()).requires_grad_() for x in op.tensors[1:]]
            got = torch.autograd.grad(loss(op.ours)(first, *rest), [first, *rest])
            leaves = op.leaves
            wanted = torch.autograd.grad(loss(op.reference)(*leaves), leaves)
            close([full(each) for each in got], list(wanted), msg=f"{op} {dim}")


@check
def compiled_calls(mesh: Any) -> None:
    x = real(4, 4, 3, 3)
    function = torch.compile(
        lambda x: spec("depth_to_space").depth_to_space(x * 2, r=2).relu(),
        backend="aot_eager",
        fullgraph=True,
    )
    close(full(function(spread(x, mesh, Shard(0)))), F.pixel_shuffle(2 * x, 2).relu())


# ---------------------------------------------------------------------------- data parallel
class Net(nn.Module):
    """A convolution of PyTorch and one of ours."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Conv2d(2, 4, 1).double()
        self.weight = nn.Parameter(real(4, 4, 3, 3))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(real(*parameter.shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x), self.weight)


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    net(x).pow(2).mean().backward()
    return [cast(Tensor, parameter.grad) for parameter in net.parameters()]


BATCH = real(4, 2, 5, 5)


def mine() -> Tensor:
    rank = dist.get_rank()
    return BATCH[2 * rank : 2 * rank + 2]


def ours() -> Net:
    return Net(lambda *given: spec("conv").conv2d(*given))


@check
def distributed_data_parallel(mesh: Any) -> None:
    wanted = gradients(Net(F.conv2d), BATCH)
    parallel = nn.parallel.DistributedDataParallel(ours())
    close(gradients(parallel, mine()), wanted)
    parallel = nn.parallel.DistributedDataParallel(ours())
    net = cast(nn.Module, torch.compile(parallel, backend="aot_eager"))
    close(gradients(net, mine()), wanted)


@check
def fully_sharded_data_parallel(mesh: Any) -> None:
    net = ours()
    cast(Any, fully_shard)(net.first, mesh=mesh)
    cast(Any, fully_shard)(net, mesh=mesh)
    found = [full(gradient) for gradient in gradients(net, mine())]
    close(found, gradients(Net(F.conv2d), BATCH))


def run(arguments: Sequence[str]) -> int:
    """Run the checks of one process."""
    rank, port = int(arguments[0]), arguments[1]
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    failed = 0
    for function in CHECKS:
        try:
            function(mesh)
        except Exception:
            failed = 1
            print(f"FAILED {function.__name__} in process {rank}\n{traceback.format_exc()}")
        else:
            if rank == 0:
                print(f"passed {function.__name__}")
        sys.stdout.flush()
        dist.barrier()
    dist.destroy_process_group()
    return failed


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
