"""Recognise a convolution by its index maps, whatever the spec calls it.

The relation of a convolution has three tensors and can be solved for each of them, so one pattern
finds the forward op, the transposed one, and both gradients:

    result[n, (g o), i_1, i_2, ...]
    image [n, (g c), i_1*s_1 - p_1 + k_1*d_1, ...]      `?0` where it is read, `?drop` as a target
    weight[(g o), c, k_1, k_2, ...]

What an iterator is follows from the tensors that it indexes: n and i those of result and image, c
and k those of image and weight, o those of result and weight, g all three; i and k are those that
share an index. So n, g, o and c may be several iterators each or none, and those of a tensor may
stand in any dims and order: `y[n,o,(i a),(j b)]` is a result whose channels are `(o a b)`.

A dim of pixels that no tap moves, behind the channels as in `sum(c) x[n,c,i,j] * w[o,c]`, is one of
the convolution whose filter has one tap. What has no pixels at all is a product of matrices.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from opgen.algebra.poly import Poly, poly, symbol_atom
from opgen.ir.arrangement import Arrangement
from opgen.ir.convolution import Convolution, Role
from opgen.ir.notation import Access, Boundary, Op
from opgen.passes.product import Extents, Product, digits, is_of_one_type, product_of, whole_digits

_SPATIAL = (1, 2, 3)
_READ = frozenset({Boundary.NONE, Boundary.ZERO})
_WRITTEN = frozenset({Boundary.NONE, Boundary.DROP})


def convolution(op: Op, result: str = "", filters: Collection[str] = ()) -> Convolution | None:
    """The op as a convolution; None if it is anything else, or does anything beside it.

    Where it is one in two ways, as the sum of products of two tensors of one size is, that whose
    windows are numbers or the sizes of `filters`, of these that with the fewest tensors to be
    rearranged, and of these one whose result has that name.
    """
    product = product_of(op)
    if product is None or not is_of_one_type(op, product):
        return None
    if any(tensor.batched for tensor in (*op.inputs, *op.outputs)):
        return None
    accesses = (product.target, *product.factors)
    found: list[tuple[tuple[int, int, bool], Convolution]] = []
    for order in itertools.permutations(range(3)):
        roles = dict(zip(Role, (accesses[at] for at in order), strict=True))
        one = _in_roles(op, product, roles, tuple(Role)[order.index(0)])
        if one is not None:
            convolved, windows = one
            turned = sum(_is_turned(each, product.extents, filters) for each in windows)
            rank = turned, len(convolved.arrangements), convolved.result != result
            found.append((rank, convolved))
    return min(found, key=lambda each: each[0])[1] if found else None


# ---------------------------------------------------------------------------- roles
@dataclass(frozen=True, slots=True)
class _Window:
    """An index `inner*stride - padding + tap*dilation` with factors that are no iterators."""

    inner: str
    tap: str
    stride: Poly
    padding: Poly
    dilation: Poly


_UNMOVED = poly(1), poly(0), poly(1)
"""Stride, padding and dilation of pixels without taps."""

_Dim = tuple[str, ...] | _Window
"""An index of a tensor: the iterators that it is made of, or a window."""

_Dims = list[_Dim]


def _in_roles(
    op: Op, product: Product, roles: Mapping[Role, Access], target: Role
) -> tuple[Convolution, Sequence[_Window]] | None:
    """The product with its tensors in these roles, and its windows; None where an index does not
    fit."""
    if len({access.tensor for access in roles.values()}) < len(roles):
        return None
    kinds = _Kinds.of(roles, product.extents)
    dims = {
        role: _dims(op, access, kinds, _boundaries(role, target)) for role, access in roles.items()
    }
    wanted = None if None in dims.values() else kinds.arranged(dims[Role.IMAGE] or [])
    if wanted is None:
        return None
    arrangements: dict[str, Arrangement | None] = {}
    pairs = [(roles[role], dims[role], wanted[role]) for role in Role]
    if product.bias is not None:
        if target is Role.WEIGHT:
            return None
        own = _dims(op, product.bias, kinds, None)
        pairs.append((product.bias, own, wanted[target][1:2]))
    for access, own, into in pairs:
        if own is None or sorted(_names(own)) != sorted(_names(into)):
            return None
        arrangements[access.tensor] = _arrangement(op, access, own, into, product.extents)
    spatial = wanted[Role.IMAGE][2:]
    geometry = [
        (dim.stride, dim.padding, dim.dilation) if isinstance(dim, _Window) else _UNMOVED
        for dim in spatial
    ]
    stride, padding, dilation = zip(*geometry, strict=True)
    found = Convolution(
        target,
        roles[Role.RESULT].tensor,
        roles[Role.IMAGE].tensor,
        roles[Role.WEIGHT].tensor,
        None if product.bias is None else product.bias.tensor,
        _size(kinds.groups, product.extents),
        stride,
        padding,
        dilation,
        {name: each for name, each in arrangements.items() if each is not None},
    )
    return found, [dim for dim in spatial if isinstance(dim, _Window)]


def _is_turned(window: _Window, extents: Extents, filters: Collection[str]) -> bool:
    """Whether the image slides along what is known for a filter.

    The gradient of a filter that all channels share is also a convolution with the other gradient
    as its filter, one of all channels and pixels.
    """
    tap, inner = (_is_known(extents[name], filters) for name in (window.tap, window.inner))
    return inner and not tap


def _is_known(extent: Poly, filters: Collection[str]) -> bool:
    return extent.is_constant or extent.symbol in filters


def _boundaries(role: Role, target: Role) -> frozenset[Boundary] | None:
    """What the boundary of a window may be; None where there is none."""
    if role is not Role.IMAGE:
        return None
    return _WRITTEN if role is target else _READ


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The iterators by the tensors that they index: in the order of the image, or of the weight."""

    extents: Extents
    where: Mapping[str, frozenset[Role]]
    order: Mapping[Role, tuple[str, ...]]

    @classmethod
    def of(cls, roles: Mapping[Role, Access], extents: Extents) -> _Kinds:
        order = {
            role: tuple(
                dict.fromkeys(
                    name
                    for index in access.indices
                    for name in digits(index.value, extents) or sorted(index.value.symbols)
                    if name in extents
                )
            )
            for role, access in roles.items()
        }
        where = {n: frozenset(role for role in roles if n in order[role]) for n in extents}
        return cls(extents, where, order)

    def shared(self, *roles: Role) -> tuple[str, ...]:
        """Those of these tensors and of no other, in the order of the first."""
        return tuple(name for name in self.order[roles[0]] if self.where[name] == frozenset(roles))

    @property
    def groups(self) -> tuple[str, ...]:
        """Those of all tensors."""
        return self.shared(Role.WEIGHT, Role.IMAGE, Role.RESULT)

    def arranged(self, image: _Dims) -> dict[Role, _Dims] | None:
        """The dims of a convolution whose image has these dims; None if some iterator is left."""
        spatial = self._spatial(image)
        windows = [dim for dim in spatial if isinstance(dim, _Window)]
        moving = set(_names(spatial))
        if len(spatial) not in _SPATIAL or len(moving) < len(list(_names(spatial))):
            return None

        def still(*roles: Role) -> tuple[str, ...]:
            return tuple(name for name in self.shared(*roles) if name not in moving)

        outputs = self.shared(Role.WEIGHT, Role.RESULT)
        batch, channels = still(Role.IMAGE, Role.RESULT), still(Role.WEIGHT, Role.IMAGE)
        if {*moving, *self.groups, *outputs, *batch, *channels} != self.extents.keys():
            return None
        if not windows and not (batch and outputs and channels):
            return None
        inner = ((dim.inner,) if isinstance(dim, _Window) else dim for dim in spatial)
        taps = ((dim.tap,) if isinstance(dim, _Window) else () for dim in spatial)
        return {
            Role.RESULT: [batch, (*self.groups, *outputs), *inner],
            Role.IMAGE: [batch, (*self.groups, *channels), *spatial],
            Role.WEIGHT: [(*self.groups, *outputs), channels, *taps],
        }

    def _spatial(self, image: _Dims) -> _Dims:
        """The windows of an image, and the dims of pixels behind its channels that no tap moves.

        Where these are too many they are images of a batch beside windows, and one dim without.
        """
        pixels = frozenset({Role.IMAGE, Role.RESULT})
        found: _Dims = []
        for dim in reversed(image):
            if isinstance(dim, _Window):
                found.insert(0, dim)
            elif any(self.where[name] != pixels for name in dim):
                break
            else:
                found.insert(0, dim)
        windows: _Dims = [dim for dim in image if isinstance(dim, _Window)]
        if windows:
            before = [dim for dim in windows if dim not in found]
            return windows if len(before) + len(found) > max(_SPATIAL) else [*before, *found]
        return found if len(found) <= max(_SPATIAL) else [tuple(_names(found))]


# ---------------------------------------------------------------------------- dims
def _dims(
    op: Op, access: Access, kinds: _Kinds, boundaries: frozenset[Boundary] | None
) -> _Dims | None:
    """What the indices of an access are; None where one is neither iterators nor a window.

    Iterators have to reach the whole dim. A window may have these boundaries; without them there
    is none.
    """
    out: _Dims = []
    for index, size in zip(access.indices, op.extents(access.tensor), strict=True):
        window = None if boundaries is None else _window(index.value, kinds)
        if window is not None and boundaries is not None and index.boundary in boundaries:
            out.append(window)
            continue
        found = whole_digits(index, kinds.extents, size)
        if found is None:
            return None
        out.append(found)
    return out


def _window(value: Poly, kinds: _Kinds) -> _Window | None:
    """The index as a window: an iterator of result and image beside one of weight and image."""
    found = [name for name in kinds.extents if name in value.symbols]
    inner = [n for n in found if kinds.where[n] == {Role.RESULT, Role.IMAGE}]
    taps = [n for n in found if kinds.where[n] == {Role.WEIGHT, Role.IMAGE}]
    if len(found) != 2 or len(inner) != 1 or len(taps) != 1:
        return None
    along = value.linear_in(symbol_atom(inner[0]))
    across = None if along is None else along[1].linear_in(symbol_atom(taps[0]))
    if along is None or across is None:
        return None
    stride, dilation, rest = along[0], across[0], across[1]
    if any(not each.symbols.isdisjoint(kinds.extents) for each in (stride, dilation, rest)):
        return None
    return _Window(inner[0], taps[0], stride, -rest, dilation)


def _names(dims: Iterable[_Dim]) -> Iterator[str]:
    """The iterators of all dims, one for each time it stands there."""
    for dim in dims:
        yield from (dim.inner, dim.tap) if isinstance(dim, _Window) else dim


def _size(names: Iterable[str], extents: Extents) -> Poly:
    return functools.reduce(operator.mul, (extents[name] for name in names), poly(1))


def _arrangement(
    op: Op, access: Access, own: _Dims, into: _Dims, extents: Extents
) -> Arrangement | None:
    """How a tensor with these dims becomes one with those; None if it is one already."""
    if own == into:
        return None
    numbers: dict[str | _Window, int] = {}
    parts: list[tuple[Poly, ...]] = []
    for dim, size in zip(own, op.extents(access.tensor), strict=True):
        names = (dim,) if isinstance(dim, _Window) else dim
        for name in names:
            numbers[name] = len(numbers)
        parts.append((size,) if isinstance(dim, _Window) else tuple(extents[n] for n in dim))
    order = (
        tuple(numbers[name] for name in ((dim,) if isinstance(dim, _Window) else dim))
        for dim in into
    )
    return Arrangement(tuple(parts), tuple(order))
