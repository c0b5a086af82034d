"""A kernel that is a product of matrices, for blocks of threads that each compute a tile of it.

Everything about tiles is in `opgen.runtime.cuda_product`, whose text stands before the kernels. A
kernel says what it multiplies: which indices the number of a row, a column or a term stands for,
where an element of a factor is or that it is absent, and what is done with a sum.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opgen.algebra.poly import Poly, poly, symbol
from opgen.emit.cuda_parameters import Parameters
from opgen.emit.cuda_points import CudaEmitter, product
from opgen.emit.cuda_printer import INDEX, CudaPrinter
from opgen.emit.cuda_statements import inside
from opgen.emit.expression import type_name
from opgen.emit.function import Signature, signature_of
from opgen.emit.names import CNames, function_name, identifier
from opgen.emit.polynomial import Text
from opgen.emit.reach import reach
from opgen.emit.templates import render
from opgen.emit.types import Type, Types
from opgen.ir.contraction import Contraction, Factor
from opgen.ir.loops import Accumulate, Axis, Call, For, If, Kernel, Program, Store
from opgen.ir.notation import Reducer
from opgen.ir.primitives import Level


@dataclass(frozen=True, slots=True)
class Matrix:
    """What a launch has to know of a factor, to read it in the order in which it is in memory.

    The dims in which elements follow each other along the last of its rows or columns and along
    each term, None for none; and for each term whether it decides about what is present.
    """

    tensor: str
    along: int | None
    terms: tuple[int | None, ...]
    decisive: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ProductFunction:
    """What `cuda_product.cu.j2` prints, and what a launch has to know of it.

    `extents` are those of all axes, then the steps of terms. `groups` are the numbers of axes of
    the batch, the rows, the columns and the terms; `result` the
    dims of the tensor that is written along the last row and the last column.
    """

    name: str
    macro: str
    parameters: tuple[str, ...]
    structs: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    lines_of_sum: tuple[str, ...]
    signature: Signature
    extents: tuple[Poly, ...]
    groups: tuple[int, int, int, int]
    reach: Poly
    left: Matrix
    right: Matrix
    result: tuple[int | None, int | None]
    written: str

    @property
    def text(self) -> str:
        """The source of the kernel."""
        return render("cuda_product.cu.j2", self)


def product_function(
    kernel: Kernel, program: Program, types: Types, helpers: dict[tuple[str, Type], None]
) -> ProductFunction | None:
    """The function of a kernel as a product of matrices; None for a kernel that is none."""
    found = kernel.contraction
    if found is None:
        return None
    cells = _cell_by_cell(kernel, found)
    tried = _trying(cells, found)
    signature = signature_of(tried, program)
    name = f"{function_name(kernel.name)}_product"
    tiles = _writer(cells, signature, found, name, program, types, helpers)
    tiles.tiles()
    sums = _writer(cells, signature, found, name, program, types, helpers)
    sums.sums()
    groups = (found.batch, found.rows, found.columns, found.terms)
    (store,) = (node for node in found.tail if isinstance(node, Store))
    dims = (len(groups[0]), len(groups[1]), len(groups[2]), len(groups[3]))
    return ProductFunction(
        name,
        f"product_of_{identifier(kernel.name)}",
        (*tiles.parameters.declared, f"wide *{tiles.partial}, int64_t {tiles.splits}"),
        tiles.structs,
        tuple(tiles.emitter.lines),
        tuple(sums.emitter.lines),
        signature,
        (*(axis.extent for axes in groups for axis in axes), *found.steps),
        dims,
        _reach(cells, tried, found),
        _matrix(found.left, found.rows, found.terms),
        _matrix(found.right, found.columns, found.terms),
        (_dim_along(store, found.rows[-1]), _dim_along(store, found.columns[-1])),
        kernel.written,
    )


def _writer(
    cells: Kernel,
    signature: Signature,
    found: Contraction,
    name: str,
    program: Program,
    types: Types,
    helpers: dict[tuple[str, Type], None],
) -> _Writer:
    """What writes the body of one of a product's two kernels; their parameters are the same."""
    taken = {function_name(each.name) for each in program.kernels} | {name, f"{name}_sum"}
    scope = CNames(taken)
    divided = [a.name for axes in (found.batch, found.rows, found.columns) for a in axes[1:]]
    divided += [axis.name for axis in found.terms]
    parameters = Parameters.begin(signature, cells, program, scope)
    magics = parameters.magic(divided)
    parameters.end(magics)
    emitter = CudaEmitter(
        CudaPrinter(program, types, parameters.names, True, helpers), scope, cells
    )
    emitter.lines += parameters.narrowing
    emitter.prologue()
    magic = dict(zip(divided, magics, strict=True))
    return _Writer(
        found, name, emitter, parameters, magic, scope.fresh("partial"), scope.fresh("splits")
    )


def _cell_by_cell(kernel: Kernel, found: Contraction) -> Kernel:
    """The kernel with a point for each cell."""
    axes = (*found.batch, *found.rows, *found.columns)
    body = (found.start, *found.nest, *found.tail)
    return Kernel(kernel.name, kernel.written, axes, kernel.prologue, body, kernel.spec)


def _reach(cells: Kernel, tried: Kernel, found: Contraction) -> Poly:
    """What no index of the kernel exceeds: of one cell, of loops over all terms, their number."""
    count = functools.reduce(operator.mul, (axis.extent for axis in found.terms), poly(1))
    terms = Kernel(cells.name, cells.written, (Axis("terms", count),), (), (found.start,))
    return reach(cells) + reach(tried) + reach(terms)


def _trying(cells: Kernel, found: Contraction) -> Kernel:
    """The kernel with loops over all terms, those included that are absent."""
    term = Call("mul", (found.left.load, found.right.load))
    conditions = (*found.left.conditions, *found.right.conditions)
    accumulate = Accumulate(found.start.accumulator, Reducer.ADD, term)
    nest: For | If = If(conditions, (accumulate,))
    for axis in found.terms:
        nest = For(axis.name, (poly(0),), (axis.extent - 1,), (nest,))
    return replace(cells, body=(found.start, *found.nest, nest, *found.tail))


def _matrix(factor: Factor, own: Sequence[Axis], terms: Sequence[Axis]) -> Matrix:
    return Matrix(
        factor.load.tensor,
        factor.dim_along(own[-1]),
        tuple(factor.dim_along(axis) for axis in terms),
        tuple(
            any(axis.name in condition.value.symbols for condition in factor.conditions)
            for axis in terms
        ),
    )


def _dim_along(store: Store, axis: Axis) -> int | None:
    """The dim in which cells follow each other along an axis."""
    dims = [at for at, index in enumerate(store.indices) if axis.name in index.symbols]
    if len(dims) != 1 or axis.name in (store.indices[dims[0]] - symbol(axis.name)).symbols:
        return None
    return dims[0]


# ---------------------------------------------------------------------------- the body
@dataclass(frozen=True, slots=True)
class _Indices:
    """The function that finds the indices of a number, their struct and its members."""

    find: str
    struct: str
    members: tuple[str, ...]


@dataclass
class _Writer:
    """Writes the body of a kernel with an emitter."""

    found: Contraction
    name: str
    emitter: CudaEmitter
    parameters: Parameters
    magic: dict[str, str]
    partial: str
    splits: str
    structs: tuple[tuple[str, str], ...] = ()

    def tiles(self) -> None:
        """The body of the kernel that multiplies."""
        found, scope = self.found, self.emitter.scope
        row, column = self._indices("row", found.rows), self._indices("column", found.columns)
        plan = scope.fresh("plan")
        self.emitter.write(f"typedef {self.name}_plan {plan};")
        term = self._terms(plan)
        after = scope.fresh("after")
        self._after(after, plan, term)
        count = self._counts()
        matrix = scope.fresh("matrix")
        self.emitter.write(
            f"for ({INDEX} {matrix} = blockIdx.z; {matrix} < {count['batch']}; "
            f"{matrix} += gridDim.z) {{"
        )
        inner = inside(self.emitter)
        self._batch(inner, matrix)
        left, right, store = map(inner.scope.fresh, ("left", "right", "store"))
        self._place(inner, left, found.left, row, term)
        self._place(inner, right, found.right, column, term)
        self._store(inner, store, row, column)
        types = ", ".join(
            type_name(inner.printer.program.operand(factor.load.tensor))
            for factor in (found.left, found.right)
        )
        counts = f"{count['row']}, {count['column']}, {count['term']}"
        functions = ", ".join((row.find, column.find, term.find, after, left, right, store))
        cells = f"(int64_t)({count['row']}) * ({count['column']})"
        inner.write(
            f"multiply_matrices<{plan}, {types}>({counts}, {functions}, "
            f"{self.partial} + {matrix} * {cells}, {cells} * ({count['batch']}));"
        )
        self.emitter.write("}")

    def sums(self) -> None:
        """The body of the kernel that adds up what several blocks have of a cell."""
        found, scope = self.found, self.emitter.scope
        row, column = self._indices("row", found.rows), self._indices("column", found.columns)
        count = self._counts()
        cells, cell = scope.fresh("cells"), scope.fresh("cell")
        factors = " * ".join(f"({count[what]})" for what in ("batch", "row", "column"))
        self.emitter.write(f"const {INDEX} {cells} = {factors};")
        self.emitter.write(
            f"for ({INDEX} {cell} = blockIdx.x * ({INDEX})THREADS + threadIdx.x; "
            f"{cell} < {cells}; {cell} += gridDim.x * ({INDEX})THREADS) {{"
        )
        inner = inside(self.emitter)
        line, matrix, total, split = map(inner.scope.fresh, ("line", "matrix", "total", "split"))
        inner.write(f"const {INDEX} {line} = {cell} / ({count['column']});")
        inner.write(f"const {INDEX} {matrix} = {line} / ({count['row']});")
        self._batch(inner, matrix)
        store = inner.scope.fresh("store")
        self._store(inner, store, row, column)
        inner.write(f"wide {total} = 0;")
        inner.write(
            f"for (int64_t {split} = 0; {split} < {self.splits}; {split}++) "
            f"{total} += {self.partial}[{split} * {cells} + {cell}];"
        )
        inner.write(
            f"{store}({row.find}({line} - {matrix} * ({count['row']})), "
            f"{column.find}({cell} - {line} * ({count['column']})), {total});"
        )
        self.emitter.write("}")

    def _counts(self) -> dict[str, str]:
        """How many matrices, rows, columns and terms there are."""
        return {what: product(self._extents(axes)) for what, axes in self._groups()}

    def _batch(self, emitter: CudaEmitter, matrix: str) -> None:
        """Name the indices of the number of a matrix."""
        batch = self.found.batch
        if batch:
            names = [emitter.scope.fresh(axis.name) for axis in batch]
            divisors = [self.magic[axis.name] for axis in batch[1:]]
            emitter.digits_of(matrix, names, self._extents(batch), divisors)
            self._name(emitter, batch, names)

    def _indices(self, what: str, axes: Sequence[Axis]) -> _Indices:
        """A function from the number of a row or a column to its indices."""
        found = self._struct(what, axes)
        point = self.emitter.scope.fresh("point")
        self.emitter.write(f"const auto {found.find} = [&]({INDEX} {point}) {{")
        self._digits(inside(self.emitter), found, point, axes, axes)
        self.emitter.write("};")
        return found

    def _terms(self, plan: str) -> _Indices:
        """The same for a term; which is the fastest is left to the launch."""
        axes = self.found.terms
        found = self._struct("term", axes)
        point = self.emitter.scope.fresh("point")
        self.emitter.write(f"const auto {found.find} = [&]({INDEX} {point}) {{")
        inner = inside(self.emitter)
        for at, last in enumerate(axes[:-1]):
            inner.write(f"if ({plan}::LAST == {at}) {{")
            order = [*(axis for axis in axes if axis is not last), last]
            self._digits(inside(inner), found, point, axes, order)
            inner.write("}")
        self._digits(inner, found, point, axes, axes)
        self.emitter.write("};")
        return found

    def _digits(
        self,
        emitter: CudaEmitter,
        found: _Indices,
        point: str,
        axes: Sequence[Axis],
        order: Sequence[Axis],
    ) -> None:
        """Return the digits of a number, which stand for indices in an order of their own."""
        names = {axis.name: emitter.scope.fresh(axis.name) for axis in order}
        emitter.digits_of(
            point,
            [names[axis.name] for axis in order],
            self._extents(order),
            [self.magic[axis.name] for axis in order[1:]],
        )
        values = ", ".join(names[axis.name] for axis in axes)
        emitter.write(f"return {found.struct}{{{values}}};")

    def _struct(self, what: str, axes: Sequence[Axis]) -> _Indices:
        """Declare what holds the indices of a row, a column or a term."""
        scope = CNames(set())
        members = tuple(scope.fresh(axis.name) for axis in axes)
        struct = f"{self.name}_{what}"
        self.structs += ((struct, ", ".join(members)),)
        return _Indices(self.emitter.scope.fresh(f"{what}_at"), struct, members)

    def _groups(self) -> tuple[tuple[str, tuple[Axis, ...]], ...]:
        found = self.found
        return (
            ("batch", found.batch),
            ("row", found.rows),
            ("column", found.columns),
            ("term", found.terms),
        )

    def _extents(self, axes: Sequence[Axis]) -> list[Text]:
        return [self.emitter.printer.poly(axis.extent) for axis in axes]

    def _after(self, after: str, plan: str, named: _Indices) -> None:
        """A function from a term to the next one."""
        struct, members = named.struct, named.members
        term = self.emitter.scope.fresh("term")
        extents = [text.at(Level.RELATIONAL) for text in self._extents(self.found.terms)]
        self.emitter.write(f"const auto {after} = [&]({struct} {term}) {{")
        inner = inside(self.emitter)
        for last in range(len(members)):
            order = [at for at in range(len(members)) if at != last] + [last]
            inner.write(f"if ({plan}::LAST == {last}) {{")
            body = inside(inner)
            body.write(f"{term}.{members[last]}++;")
            for at, above in zip(reversed(order), [*reversed(order)][1:], strict=False):
                head = f"if (!{plan}::WHOLE && {term}.{members[at]} == {extents[at]})"
                body.write(f"{head} {term}.{members[at]} = 0, {term}.{members[above]}++;")
            inner.write("}")
        inner.write(f"return {term};")
        self.emitter.write("};")

    def _name(self, emitter: CudaEmitter, axes: Sequence[Axis], names: Sequence[str]) -> None:
        """Spell axes in what an emitter prints from here on; they are inside of their extents."""
        for axis, name in zip(axes, names, strict=True):
            emitter.printer.names.symbols[axis.name] = name
            emitter.printer.bounded.add((symbol(axis.name), axis.extent))

    def _place(
        self,
        emitter: CudaEmitter,
        name: str,
        factor: Factor,
        own: _Indices,
        terms: _Indices,
    ) -> None:
        """A function that gives the address of an element, a null pointer for an absent one."""
        inner = inside(emitter)
        mine, term = inner.scope.fresh("own"), inner.scope.fresh("term")
        axes = self.found.rows if factor is self.found.left else self.found.columns
        self._name(inner, axes, [f"{mine}.{member}" for member in own.members])
        self._name(inner, self.found.terms, [f"{term}.{member}" for member in terms.members])
        kind = type_name(inner.printer.program.operand(factor.load.tensor))
        cell = inner.printer.cell(factor.load.tensor, factor.load.indices)
        emitter.write(
            f"const auto {name} = [&](const {own.struct} &{mine}, const {terms.struct} &{term}) "
            f"-> const {kind} * {{"
        )
        for condition in factor.conditions:
            inner.write(f"if (!({inner.printer.condition(condition).text})) return nullptr;")
        inner.write(f"return &{cell};")
        emitter.write("};")

    def _store(
        self,
        emitter: CudaEmitter,
        name: str,
        rows: _Indices,
        columns: _Indices,
    ) -> None:
        """A function that takes the sum of a cell, and does the rest of the kernel with it.

        An absent element was multiplied as 0. Where that may have made NaN of a number that is not
        finite, which makes the sum NaN, the terms are added up again, one by one.
        """
        found = self.found
        inner = inside(emitter)
        row, column, total = map(inner.scope.fresh, ("row", "column", "sum"))
        self._name(inner, found.rows, [f"{row}.{member}" for member in rows.members])
        self._name(inner, found.columns, [f"{column}.{member}" for member in columns.members])
        emitter.write(
            f"const auto {name} = [&](const {rows.struct} &{row}, "
            f"const {columns.struct} &{column}, wide {total}) {{"
        )
        for condition in found.cells:
            inner.write(f"if (!({inner.printer.condition(condition).text})) return;")
        inner.start(found.start)
        own = inner.printer.names.accumulators[found.start.accumulator]
        inner.write(f"{own} = {total};")
        if found.is_conditional:
            inner.write(f"if ({own} != {own}) {{")
            again = inside(inner)
            again.write(f"{own} = 0;")
            again.nodes(found.nest)
            inner.write("}")
        inner.nodes(found.tail)
        emitter.write("};")
