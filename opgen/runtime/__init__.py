"""What a generated module imports: the standard library and torch only."""

from opgen.runtime import checks, eager
from opgen.runtime.description import (
    Attribute,
    Chain,
    Convolution,
    CudaKernels,
    Fault,
    Gradient,
    Input,
    Launch,
    Matrix,
    MatrixProduct,
    Output,
    Phase,
    Product,
    Shape,
    Shapes,
    Sources,
    Special,
    Temporary,
)
from opgen.runtime.family import Family
from opgen.runtime.operation import Operation

__all__ = [
    "Attribute",
    "Chain",
    "Convolution",
    "CudaKernels",
    "Family",
    "Fault",
    "Gradient",
    "Input",
    "Launch",
    "Matrix",
    "MatrixProduct",
    "Operation",
    "Output",
    "Phase",
    "Product",
    "Shape",
    "Shapes",
    "Sources",
    "Special",
    "Temporary",
    "checks",
    "eager",
]
