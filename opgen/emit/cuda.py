"""The CUDA source of a program, and what its kernels are launched with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opgen.algebra.poly import Poly
from opgen.emit.cuda_chain import ChainFunction, chain_function
from opgen.emit.cuda_function import Function, Helpers, Sums, Tile, print_function
from opgen.emit.cuda_product import Matrix, ProductFunction
from opgen.emit.names import python_names
from opgen.emit.polynomial import python_text
from opgen.emit.python_text import (
    Chain,
    Group,
    call,
    dict_of,
    layout,
    quoted,
    string,
    strings,
    tuple_of,
)
from opgen.emit.source import helper_lines, table_lines
from opgen.emit.templates import comment, render
from opgen.emit.types import Types
from opgen.ir.loops import Program


# ---------------------------------------------------------------------------- CUDA
@dataclass(frozen=True, slots=True)
class Source:
    """What `cuda.cu.j2` prints."""

    title: str
    helpers: tuple[str, ...]
    tables: tuple[str, ...]
    kernels: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class _Printed:
    """The functions of a program, of its kernels and of its chains, and helpers that they call."""

    functions: tuple[Function, ...]
    chains: tuple[ChainFunction, ...]
    helpers: Helpers

    @classmethod
    def of(cls, program: Program) -> _Printed:
        """Those of a program, each printed once."""
        types = Types(program)
        helpers: Helpers = {}
        functions = (print_function(each, program, types, helpers) for each in program.kernels)
        chains = (chain_function(each, program, types, helpers) for each in program.chains)
        return cls(tuple(functions), tuple(chains), helpers)

    def source(self, program: Program) -> str:
        """The source of all kernels."""
        (title,) = comment(program.name)
        helpers, tables = helper_lines(self.helpers), table_lines(program)
        return render("cuda.cu.j2", Source(title, helpers, tables, self.functions))


def cuda_source(program: Program) -> str:
    """The CUDA source; it is compiled behind `opgen.runtime.prelude` and the bindings of a call."""
    return _Printed.of(program).source(program)


def cuda_text(program: Program) -> str:
    """The CUDA source with the products of matrices and the chains that its kernels may be instead,
    for people."""
    printed = _Printed.of(program)
    products = (each.text for each in _products(printed.functions))
    chains = (each.text for each in printed.chains)
    return "\n".join((printed.source(program), *products, *chains))


# ---------------------------------------------------------------------------- Python
@dataclass(frozen=True, slots=True)
class Launcher:
    """What `cuda_kernels.py.j2` prints: the kernels of an op as a `CudaKernels`."""

    name: str
    source_name: str
    source: str
    products: tuple[tuple[str, str], ...]
    extents: str
    reach: str
    description: str


def cuda_kernels(
    program: Program,
    name: str,
    called_as: Program | None = None,
    orders: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """A Python definition of the op's kernels under that name.

    A special program may be `called_as` a more general one, with all integers of that. `orders` are
    the dims of those tensors whose dims stand in another order in the special one.
    """
    called_as = called_as or program
    printed = _Printed.of(program)
    functions, chains = printed.functions, printed.chains
    phases = tuple(phase for chain in chains for phase in chain.phases)
    source_name = f"{name}_source".upper()
    description = call(
        "CudaKernels",
        (
            source_name,
            tuple_of([_launch(each, program) for each in functions], tall=True),
            f"{name}_extents",
            f"{name}_reach",
        ),
        orders=_orders(orders) if orders else None,
        chains=tuple_of([_chain(each) for each in chains], tall=True) if chains else None,
    )
    return render(
        "cuda_kernels.py.j2",
        Launcher(
            name,
            source_name,
            string(printed.source(program)),
            (
                *((_source_name(each), string(each.text)) for each in _products(functions)),
                *((_source_name(each), string(each.text)) for each in chains),
            ),
            _extents(called_as, functions, phases, f"{name}_extents"),
            _reach(called_as, functions, phases, f"{name}_reach"),
            layout(description, before=f"{name} = "),
        ),
    )


def _orders(orders: Mapping[str, tuple[int, ...]]) -> Group:
    return dict_of({name: _tuple(order) for name, order in orders.items()})


def _launch(kernel: Function, program: Program) -> Group:
    signature = kernel.signature
    rows = None
    if kernel.rows is not None:
        macro, values = kernel.rows
        rows = tuple_of([quoted(macro), str(values)])
    workspaces = {workspace.output: workspace.name for workspace in program.workspaces}
    source = workspaces.get(kernel.written)
    return call(
        "Launch",
        (quoted(kernel.name), strings(signature.tensors), strings(signature.integers)),
        numbers=strings(signature.numbers) if signature.numbers else None,
        faults="True" if signature.faults else None,
        converts=None if source is None else strings((source, kernel.written)),
        teams="True" if kernel.teams else None,
        sums=None if kernel.sums is None else _sums(kernel.sums),
        tile=None if kernel.tile is None else _tile(kernel.tile),
        lanes=None if kernel.lanes is None else quoted(kernel.lanes),
        rows=rows,
        slab=None if kernel.slab is None else strings(kernel.slab),
        window="True" if kernel.window else None,
        beside=str(kernel.beside) if kernel.rows and kernel.beside else None,
        walked=dict_of({name: str(step) for name, step in kernel.walked}) if kernel.lanes else None,
        product=None if kernel.product is None else _product(kernel.product),
        also=strings(kernel.also) if kernel.also else None,
    )


def _sums(sums: Sums) -> Group:
    counts = (str(sums.cells), str(sums.count))
    loop = "serial" if sums.is_serial else "across" if sums.is_across else "box"
    return tuple_of([quoted(loop), *counts, quoted(sums.kind.tag)])


def _tile(tile: Tile) -> Group:
    return tuple_of([quoted(tile.written), str(tile.digits), *map(quoted, tile.macros)])


def _product(found: ProductFunction) -> Group:
    signature = found.signature
    return call(
        "Product",
        (quoted(found.name), quoted(found.macro), _source_name(found)),
        tensors=strings(signature.tensors),
        integers=strings(signature.integers),
        numbers=strings(signature.numbers),
        groups=_tuple(found.groups),
        left=_matrix(found.left),
        right=_matrix(found.right),
        written=quoted(found.written),
        result=_tuple(found.result),
    )


def _chain(found: ChainFunction) -> Group:
    signature = found.signature
    return call(
        "Chain",
        (quoted(found.name), _source_name(found)),
        first=str(found.first),
        count=str(found.count),
        cells=str(found.cells),
        tensors=strings(signature.tensors),
        integers=strings(signature.integers),
        numbers=strings(signature.numbers),
        phases=tuple_of([_phase(each) for each in found.phases], tall=True),
    )


def _phase(phase: Function) -> Group:
    if phase.lanes is None:
        return call("Phase", ())
    walked = dict_of({name: str(step) for name, step in phase.walked})
    rows = None if phase.rows is None else quoted(phase.rows[0])
    return call("Phase", (quoted(phase.lanes),), rows=rows, walked=walked)


def _source_name(found: ProductFunction | ChainFunction) -> str:
    """The constant of a module that holds the source of a product, or of a chain."""
    return f"{found.name}_source".upper()


def _matrix(found: Matrix) -> Group:
    terms = (_tuple(found.terms), _tuple(found.decisive))
    return call("Matrix", (quoted(found.tensor), str(found.along), *terms))


def _tuple(values: Sequence[int | None]) -> Group:
    return tuple_of([str(value) for value in values])


def _extents(
    program: Program, functions: Sequence[Function], phases: Sequence[Function], name: str
) -> str:
    """A Python function of the program's integers: the extents of the axes of each kernel."""
    names = python_names(program.integers)
    rows = [
        tuple_of([python_text(extent, names.__getitem__).text for extent in extents])
        for extents in (
            *(each.extents for each in functions),
            *(each.extents for each in _products(functions)),
            *(each.extents for each in phases),
        )
    ]
    return _formulas(
        name,
        list(names.values()),
        "tuple[tuple[int, ...], ...]",
        "The extents of the axes of each CUDA kernel.",
        tuple_of(rows),
    )


def _reach(
    program: Program, functions: Sequence[Function], phases: Sequence[Function], name: str
) -> str:
    """A Python function of the magnitudes of the program's integers: the reach of each kernel."""
    names = python_names(program.integers)
    rows = [
        _sum(reach, names)
        for reach in (
            *(each.reach for each in functions),
            *(each.reach for each in _products(functions)),
            *(each.reach for each in phases),
        )
    ]
    return _formulas(
        name,
        list(names.values()),
        "tuple[int, ...]",
        "What no index of each CUDA kernel exceeds; of magnitudes of at least 1.",
        tuple_of(rows),
    )


def _products(functions: Sequence[Function]) -> list[ProductFunction]:
    return [each.product for each in functions if each.product is not None]


def _sum(value: Poly, names: Mapping[str, str]) -> Chain:
    """A polynomial with positive coefficients; a long one is set a term a line."""
    terms = [Poly({monomial: count}) for monomial, count in value.terms.items()]
    first, *rest = (python_text(term, names.__getitem__).text for term in terms)
    return Chain(first, tuple(("+", text) for text in rest))


def _formulas(name: str, parameters: list[str], kind: str, doc: str, value: Group) -> str:
    typed = [f"{parameter}: int" for parameter in parameters]
    head = layout(call(name, typed), before="def ", after=f" -> {kind}:")
    body = layout(value, "    ", "return ")
    return f'{head}\n    """{doc}"""\n{body}'
