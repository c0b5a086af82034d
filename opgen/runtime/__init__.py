"""What a generated module imports: the standard library and torch only."""

from opgen.runtime import checks, eager
from opgen.runtime.description import (
    Attribute,
    Convolution,
    CudaKernels,
    Fault,
    Gradient,
    Input,
    Launch,
    Matrix,
    MatrixProduct,
    Output,
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
    "Product",
    "Shape",
    "Shapes",
    "Sources",
    "Special",
    "Temporary",
    "checks",
    "eager",
]
