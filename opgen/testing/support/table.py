"""The features of PyTorch that an op is tried with, and what came out of each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from opgen.testing.subject import Subject
from opgen.testing.support import distributed, eager, functional, graphs, modes, processes
from opgen.testing.support.probe import NotTried, Probe, probe


@dataclass(frozen=True, slots=True)
class Feature:
    """Something to try: `attempt` raises what is wrong, or NotTried.

    `against` says what results are compared with.
    """

    name: str
    against: str
    attempt: Callable[[Probe], None]


class Status(Enum):
    """What came out."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of a feature; `reason` says why it did not pass."""

    op: str
    feature: Feature
    status: Status
    reason: str = ""


LOOPS: Final = "plain loops"
"""Stands for the interpreter where a spec has no plain loops."""

_DERIVED: Final = "interpreter of the derived ops"
_EAGER: Final = "eager"
_HARNESS: Final = "PyTorch's harness"

FEATURES: Final = (
    Feature("eager forward", LOOPS, eager.forward),
    Feature("eager backward", _DERIVED, eager.backward),
    Feature("double backward", _DERIVED, eager.double_backward),
    Feature("forward mode", _DERIVED, eager.forward_mode),
    Feature("strided inputs", LOOPS, eager.strided),
    Feature("channels_last inputs", LOOPS, eager.channels_last),
    Feature("func.grad", _EAGER, functional.grad),
    Feature("func.vjp", _EAGER, functional.vjp),
    Feature("func.jvp", _EAGER, functional.jvp),
    Feature("func.jacrev", _EAGER, functional.jacrev),
    Feature("func.jacfwd", _EAGER, functional.jacfwd),
    Feature("func.hessian", _EAGER, functional.hessian),
    Feature("nested torch.func", _EAGER, functional.nested),
    Feature("vectorized autograd", _EAGER, functional.vectorized),
    Feature("vmap", _EAGER, functional.vmap),
    Feature("vmap of grad", _EAGER, functional.vmap_of_grad),
    Feature("functionalize", _EAGER, graphs.functionalize),
    Feature("make_fx", _EAGER, graphs.traced),
    Feature("compile aot_eager", _EAGER, graphs.compiled("aot_eager", dynamic=False)),
    Feature("compile aot_eager dynamic", _EAGER, graphs.compiled("aot_eager", dynamic=True)),
    Feature("compile inductor", _EAGER, graphs.compiled("inductor", dynamic=False)),
    Feature("compile inductor dynamic", _EAGER, graphs.compiled("inductor", dynamic=True)),
    Feature("export, save, load", _EAGER, graphs.export),
    Feature("export dynamic", _EAGER, graphs.export_dynamic),
    Feature("AOTInductor in Python", _EAGER, graphs.package),
    Feature("AOTInductor without opgen", _EAGER, processes.without_opgen),
    Feature("checkpoint", _EAGER, modes.checkpoint),
    Feature("autocast", "eager on bfloat16", modes.autocast),
    Feature("inference mode", _EAGER, modes.inference_mode),
    Feature("meta tensors", _EAGER, modes.meta),
    Feature("fake tensors", _EAGER, modes.fake),
    Feature("tensor subclass", _EAGER, modes.subclass),
    Feature("opcheck", _HARNESS, modes.opcheck),
    Feature("pickle and deepcopy", _EAGER, modes.copies),
    Feature("threads", _EAGER, modes.threads),
    Feature("DataParallel", _EAGER, distributed.data_parallel),
    Feature("DDP", _EAGER, distributed.feature("ddp")),
    Feature("FSDP2", _EAGER, distributed.feature("fsdp2")),
    Feature("DTensor", _EAGER, distributed.feature("dtensor")),
    Feature("vendored", _EAGER, processes.vendored),
    Feature("without a compiler", _EAGER, processes.without_compiler),
    Feature("CUDA", _EAGER, modes.cuda),
)
"""Everything that is tried, in this order."""


def tried(subject: Subject, path: Path, features: tuple[Feature, ...]) -> Iterator[Outcome]:
    """What comes out of each feature for one op, while it is tried. Raises NoCaseError."""
    chosen = probe(subject, path)
    for feature in features:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield _outcome(chosen, feature)


def _outcome(chosen: Probe, feature: Feature) -> Outcome:
    name = chosen.subject.op.name
    try:
        feature.attempt(chosen)
    except NotTried as reason:
        return Outcome(name, feature, Status.NOT_TRIED, str(reason))
    except Exception as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        kind = "" if isinstance(error, AssertionError) and text else f"{type(error).__name__}: "
        return Outcome(name, feature, Status.FAILED, f"{kind}{text}".rstrip(": "))
    return Outcome(name, feature, Status.PASSED)
