"""An op under test: the compiled function, and the references that say what it should give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from opgen import compiler, loading
from opgen.emit.names import python_names
from opgen.emit.types import Types
from opgen.ir.binding import Array
from opgen.ir.notation import Op, Tensor
from opgen.passes.derive import differentiable
from opgen.passes.differentiate import Derivative, Tangent, adjoint, tangent
from opgen.programs import scheduled
from opgen.testing.calls import FLOATING, INTEGERS, Call, arrays, is_floating
from opgen.testing.interpret import interpret
from opgen.testing.magnitude import widened
from opgen.testing.references import (
    Loops,
    LoopsError,
    check_names,
    load_references,
    loops_of,
    references_path,
)


@dataclass
class Subject:
    """One op of a spec. `loops` is None where no plain loops stand beside the spec."""

    op: Op
    ops: Mapping[str, Op]
    function: Callable[..., object]
    loops: Loops | None
    _adjoints: dict[tuple[Op, str], Derivative] = field(default_factory=dict)

    # ------------------------------------------------------------ the compiled op
    def run(self, call: Call, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The outputs of the compiled op."""
        tensors = [inputs.get(tensor.name) for tensor in self.op.inputs]
        attributes = [call.case.attributes[each.name] for each in self.op.attributes]
        # A name of the spec may have had to change to be one of Python; the order is the same.
        names = inspect.signature(self.function).parameters
        result = self.function(**dict(zip(names, [*tensors, *attributes], strict=True)))
        values = result if isinstance(result, tuple) else (result,)
        assert all(isinstance(value, torch.Tensor) for value in values)
        return values

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The types that undeclared tensors may have."""
        if not self._is_generic:
            return ("float64",)
        if Types(scheduled(self.op)).is_floating:
            return FLOATING
        return (*FLOATING, *INTEGERS)

    @cached_property
    def numeric(self) -> tuple[Tensor, ...]:
        """The inputs that have a gradient."""
        return differentiable(self.op)

    @cached_property
    def stated_gradients(self) -> frozenset[str]:
        """The inputs whose gradient the author wrote: it need not be the derivative."""
        return frozenset(gradient.input for gradient in self.op.gradients)

    # ------------------------------------------------------------ references
    def outputs(self, call: Call, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """What the op should give: by the plain loops if there are any, else the interpreter."""
        if self.loops is None or self.is_integral(call):
            return self.interpreted(widened(self.op), call, inputs)
        with np.errstate(all="ignore"):
            try:
                result = self.loops(**inputs, **call.case.attributes)
            except Exception as error:  # whatever somebody's loops raise
                raise LoopsError(
                    f"the reference of {self.op.name} raised {type(error).__name__}: {error}"
                ) from error
        values = result if isinstance(result, tuple) else (result,)
        if len(values) != len(self.op.outputs):
            raise LoopsError(
                f"the reference of {self.op.name} gives {len(values)} results, "
                f"but the op has {len(self.op.outputs)} outputs"
            )
        return {
            tensor.name: np.asarray(value)
            for tensor, value in zip(self.op.outputs, values, strict=True)
        }

    def is_integral(self, call: Call) -> bool:
        """Whether undeclared tensors hold integers; plain loops do not say how those overflow."""
        return self._is_generic and not is_floating(call.dtype)

    @cached_property
    def _is_generic(self) -> bool:
        return any(tensor.dtype.is_generic for tensor in self.op.inputs)

    def interpreted(
        self, op: Op, call: Call, inputs: Mapping[str, Array], *, measure: bool = False
    ) -> dict[str, Array]:
        """Outputs of the op or of a derivative of it by the interpreter, or their magnitudes."""
        case = call.case
        return interpret(
            op, case.symbols(self.op), inputs, case.attributes, case.batch, measure=measure
        )

    def completed(self, call: Call, inputs: Mapping[str, torch.Tensor]) -> dict[str, Array]:
        """The inputs as arrays, absent ones filled in, as a derived op takes them."""
        found = arrays(inputs)
        for tensor in self.op.inputs:
            if tensor.name not in found:
                shape = call.case.shape(self.op, tensor)
                kind = np.int64 if tensor.dtype.is_integer else np.float64
                found[tensor.name] = np.full(shape, tensor.default, kind)
        return found

    # ------------------------------------------------------------ derived ops
    def adjoint(self, op: Op, name: str) -> Derivative:
        """The gradient of an input of the op, or of an op derived from it."""
        key = (op, name)
        if key not in self._adjoints:
            self._adjoints[key] = adjoint(op, name, self.ops)
        return self._adjoints[key]

    @cached_property
    def tangent_exists(self) -> bool:
        """Whether an output depends on a numeric input in a way that has a derivative."""
        return bool(self.numeric) and any(not t.dtype.is_integer for t in self.op.outputs)

    @cached_property
    def tangent(self) -> Tangent:
        """The derivative along all numeric inputs."""
        return tangent(self.op, tuple(tensor.name for tensor in self.numeric))


def subjects(spec: Path) -> tuple[Subject, ...]:
    """The ops of a spec file, compiled. Raises OpgenError, OSError or LoopsError."""
    source = compiler.read_source(spec)
    ops = compiler.check_source(source)
    module = loading.compile(source.text, source.name)
    references = load_references(spec)
    names = python_names(op.name for op in ops)
    if references is not None:
        check_names(references, references_path(spec), names.values())
    return tuple(
        Subject(
            op,
            {each.name: each for each in ops},
            getattr(module, names[op.name]),
            loops_of(references, op, names[op.name]),
        )
        for op in ops
    )
