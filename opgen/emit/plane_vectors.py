"""The vectors of one point of a kernel for planes: loaded, picked from, added up and stored.

    const wide_lanes x_0 = lanes_from_T(&x[n * x_s0 + c * x_s1]);
    wide_lanes total = (wide_lanes){0};
    total += factors * SHUFFLE(x_0, x_0, 0, 0, 1, 1, ...);
    total = SHUFFLE(total, total + (wide)from_T(w[0]) * SHUFFLE(x_0, x_1, ...), 0, 17, ...);
    lanes_to_T(&y[n * y_s0 + c * y_s1], total);

What is loaded or written down for one vector serves all that need it.

Every second element of two vectors is picked by functions of its own, if that is all that is picked
of a tensor. Two neighbours of bfloat16 are a word then, and one instruction makes numbers of either
half of all words, while two vectors are converted in two instructions each and then permuted. Both
gradients of a transposed convolution of 2 by 2 with 2048 channels of 8 by 8 take 0.8 of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from opgen.emit.coarse import Coarse, are_coarse
from opgen.emit.emitter import ScopeEmitter
from opgen.emit.polynomial import Text
from opgen.emit.types import Type
from opgen.ir.loops import Load, Scalar
from opgen.ir.plane import (
    LANES,
    Cells,
    Each,
    Joined,
    Picked,
    Run,
    Same,
    Term,
    Total,
    Vector,
    sources,
)
from opgen.ir.primitives import PRIMITIVES, Level

AHEAD: Final = 2**14
"""How many bytes behind what is loaded of planes the same of later ones is asked for.

Processors foresee it, but not far enough where most of what moves is read and there is more to do
than to add up a few terms: the gradient of bilinear upsampling of 16 images of 2048 channels of 8
by 8 takes 0.85 of the time so on one thread, that of nearest upsampling up to 1.2 of it. Where as
much is written as read, it takes longer, as do numbers of 16 bits, which are limited by what
converts them.
"""


def halved(emitter: ScopeEmitter, all_picked: Iterable[Picked]) -> frozenset[str]:
    """The tensors of which nothing but every second element of two vectors is picked."""
    found: dict[str, bool] = {}
    for each in all_picked:
        tensor = each.first.tensor
        found[tensor] = found.get(tensor, True) and _half(each) is not None
    program = emitter.printer.program
    return frozenset(
        name for name, is_it in found.items() if is_it and not program.operand(name).unrounded
    )


@dataclass
class PlanePrinter:
    """Prints the vectors of one point."""

    emitter: ScopeEmitter
    target: str = ""  # the tensor that cells are stored in, if there are any
    copies: bool = False  # whether elements stay as they are stored
    fetches: bool = False  # whether planes are asked for before they are needed
    is_little: bool = False  # whether there is little to do but to load, round and store
    known: dict[str, str] = field(default_factory=dict)  # vectors and numbers by their text
    total: str = ""  # the sum of the cells at hand, once it has begun
    halved: frozenset[str] = frozenset()  # tensors in pairs of vectors, of which halves are picked
    goes_past: str = ""  # the variable that says whether vectors are stored past the caches
    is_coarse: str = ""  # the variable that says whether cells are rounded at once
    round: str = ""  # the counter of a loop,
    steps: Mapping[str, int] = field(default_factory=dict)  # and how far tensors go in one of it

    def named(self, name: str, text: str, kind: str = "") -> str:
        """The name of a constant with that value, a vector if nothing else is said."""
        kind = kind or ("stored_lanes" if self.copies else "wide_lanes")
        if text not in self.known:
            self.known[text] = self.emitter.scope.fresh(name)
            self.emitter.write(f"const {kind} {self.known[text]} = {text};")
        return self.known[text]

    def run(self, run: Run, target: str) -> None:
        """Vectors of cells, in a loop if there are several rounds."""
        if run.count == 1:
            for group in self.together(run.cells):
                self.cells(group, target)
            return
        inner = self.emitter.inner()
        name = inner.scope.fresh("round")
        self.emitter.write(f"for (int64_t {name} = 0; {name} < {run.count}; {name}++) {{")
        inner.write("NOT_A_VECTOR;")
        known, steps = dict(self.known), dict(run.steps)
        printer = replace(self, emitter=inner, known=known, total="", round=name, steps=steps)
        for group in self.together(run.cells):
            printer.cells(group, target, run.step)
        self.emitter.write("}")

    def look_at(self, coarse: Coarse) -> None:
        """Load the vectors that are to be coarse, and find out whether they are."""
        vectors = [self.source(picked, begin) for picked, begin in coarse.begins]
        self.is_coarse = self.emitter.scope.fresh("is_coarse")
        text = are_coarse(self.emitter.is_coarse, vectors)
        self.emitter.write(f"const int {self.is_coarse} = {text};")

    def together(self, cells: Sequence[Cells]) -> Iterator[Sequence[Cells]]:
        """The vectors of cells that are stored in one piece: two where they are half a line."""
        joins = self.is_little and not self.copies and not self.is_unrounded(self.target)
        rest = list(cells)
        while rest:
            is_pair = joins and len(rest) > 1 and rest[1].first == rest[0].first + LANES
            count = 2 if is_pair else 1
            yield rest[:count]
            del rest[:count]

    def place(self, first: str, number: int, step: int) -> str:
        """The address of an element of a plane in the round of a loop."""
        moved = f" + {step} * {self.round}" if self.round and step else ""
        return f"&{first}{f' + {number}' if number else ''}{moved}"

    def cells(self, group: Sequence[Cells], target: str, step: int = 0) -> None:
        """One vector of cells or two, from their terms to where they are stored."""
        values = []
        for cells in group:
            self.total = ""
            for term in cells.terms:
                self.term(term)
            values.append(self.lanes(cells.value))
        place = self.place(target, group[0].first, step)
        kind = "unrounded" if self.is_unrounded(self.target) else "T"
        value = ", ".join(values)
        if len(group) > 1:
            ending, more = "alone", ""
            if self.is_coarse:
                ending, more = "at_once", f", {self.is_coarse}"
            if group[0].first % (2 * LANES) == step % (2 * LANES) == 0:  # a line of 16-bit numbers
                self.past(f"two_past_T({place}, {value}, {self.is_coarse or 0});")
            self.emitter.write(f"two_to_T_{ending}({place}, {value}{more});")
        elif not self.copies:
            alone = "_alone" if self.is_little else ""
            self.past(f"lanes_past_{kind}({place}, {value});")
            self.emitter.write(f"lanes_to_{kind}{alone}({place}, {value});")
        elif kind == "T":
            self.emitter.write(f"*(stored_lanes *)({place}) = {value};")
        else:
            self.emitter.write(f"unrounded_from_stored({place}, {value});")

    def past(self, store: str) -> None:
        """Store past the caches, if that is done here, and else what follows."""
        if self.goes_past:
            self.emitter.write(f"if ({self.goes_past}) {store}")
            self.emitter.write("else")

    def is_unrounded(self, tensor: str) -> bool:
        """Whether it is stored as float32, and rounded where it is loaded or stored."""
        return self.emitter.printer.program.operand(tensor).unrounded

    def begun(self) -> str:
        """The sum of the cells, which is zero where none of them has a term."""
        if not self.total:
            self.total = self.emitter.scope.fresh("total")
            self.emitter.write(f"wide_lanes {self.total} = (wide_lanes){{0}};")
        return self.total

    def term(self, term: Term) -> None:
        total, value = self.begun(), self.lanes(term.value, Level.ADDITIVE)
        if all(term.present):
            self.emitter.write(f"{total} += {value};")
            return
        chosen = (at + LANES * is_there for at, is_there in enumerate(term.present))
        numbers = ", ".join(map(str, chosen))
        self.emitter.write(f"{total} = SHUFFLE({total}, {total} + {value}, {numbers});")

    def lanes(self, vector: Vector, level: Level = Level.PRIMARY) -> str:
        """A vector, where one number for all lanes is not enough."""
        if isinstance(vector, Same):
            text = f"same_lanes({self.scalar(vector.value)})"
            # Compilers load it again behind every store.
            return self.named("same", text) if isinstance(vector.value, Load) else text
        return self.vector(vector).at(level)

    def vector(self, vector: Vector) -> Text:
        """A vector, or a number that vectors are joined with."""
        match vector:
            case Same(value=value):
                return Text(f"(wide){self.number(value).at(Level.UNARY)}", Level.UNARY)
            case Each(values=values):
                texts = [self.named("factor", self.scalar(value), "wide") for value in values]
                return Text(self.named("factors", f"(wide_lanes){{{', '.join(texts)}}}"))
            case Picked():
                return Text(self.picked(vector))
            case Joined(primitive=primitive, arguments=arguments):
                return self.joined(primitive, arguments)
            case Total():
                return Text(self.begun())
            case unexpected:
                assert_never(unexpected)

    def joined(self, primitive: str, arguments: Sequence[Vector]) -> Text:
        spelling = PRIMITIVES[primitive].c
        texts = [
            self.vector(argument).at(level)
            for argument, level in zip(arguments, spelling.arguments, strict=True)
        ]
        return Text(spelling.render(Type.REAL.tag, *texts), spelling.level)

    def number(self, value: Scalar) -> Text:
        return self.emitter.printer.scalar(value)

    def scalar(self, value: Scalar) -> str:
        return self.number(value).text

    def picked(self, picked: Picked) -> str:
        """Elements in the order of lanes."""
        if picked.size < LANES:
            return self.gathered(picked)
        if picked.first.tensor in self.halved:
            return self.half(picked)
        begins = sources(picked)
        places = picked.places
        own = [max(at for at, begin in enumerate(begins) if begin <= place) for place in places]
        found = self.source(picked, begins[0])
        if len(begins) == 1 and [place - begins[0] for place in places] == list(range(LANES)):
            return found
        for at in range(max(len(begins) - 1, 1)):
            second = self.source(picked, begins[min(at + 1, len(begins) - 1)])
            numbers = []
            for lane, place in enumerate(places):
                if own[lane] > at + 1:
                    numbers.append(lane)  # it is picked later
                elif own[lane] == at + 1:
                    numbers.append(LANES + place - begins[at + 1])
                else:
                    numbers.append(place - begins[0] if at == 0 else lane)
            found = self.named(
                "picked", f"SHUFFLE({found}, {second}, {', '.join(map(str, numbers))})"
            )
        return found

    def half(self, picked: Picked) -> str:
        """Every second element of two vectors."""
        tensor = picked.first.tensor
        places = [self.place_in(picked, begin) for begin in sources(picked)]
        text = f"two_lanes_from_T({', '.join(places)})"
        for place in places if text not in self.known else ():
            self.fetch(place)
        two = self.named(f"two_of_{tensor}", text, "two_lanes")
        which = "odd" if _half(picked) else "even"
        return self.named("picked", f"{which}_of_two({two})")

    def source(self, picked: Picked, begin: int) -> str:
        """A vector of consecutive elements of a plane."""
        place = self.place_in(picked, begin)
        kind = "unrounded" if self.is_unrounded(picked.first.tensor) else "T"
        if not self.copies:
            alone = "_alone" if self.is_little and kind != "T" else ""
            loaded = f"lanes_from_{kind}{alone}({place})"
        elif kind == "T":
            loaded = f"*(const stored_lanes *)({place})"
        else:
            loaded = f"stored_from_unrounded({place})"
        if loaded not in self.known:
            self.fetch(place)
        return self.named(f"{picked.first.tensor}_{begin}", loaded)

    def place_in(self, picked: Picked, begin: int) -> str:
        """The address of an element of the plane that elements are picked out of."""
        cell = self.emitter.printer.cell(picked.first.tensor, picked.first.indices)
        return self.place(cell, begin, self.steps.get(picked.first.tensor, 0))

    def fetch(self, place: str) -> None:
        """Ask for what lies as far behind a place as is worth it, if it is."""
        if self.fetches:
            later = f"{place} + {AHEAD} / (int64_t)sizeof(T)"
            self.emitter.write(f"if (sizeof(T) > 2) FETCH({later});")

    def gathered(self, picked: Picked) -> str:
        """Elements of a plane that is smaller than a vector, loaded one by one."""
        numbers = [self.named(load.tensor, self.scalar(load), "wide") for load in picked.loads]
        return self.named(picked.first.tensor, f"(wide_lanes){{{', '.join(numbers)}}}")


def _half(picked: Picked) -> int | None:
    """The first lane of two vectors of which every second one is picked; None where others are."""
    begins = sources(picked) if picked.size >= LANES else ()
    if len(begins) != 2:
        return None
    first = picked.places[0] - begins[0]
    wanted = (begin + at for begin in begins for at in range(first, LANES, 2))
    return first if first < 2 and picked.places == tuple(wanted) else None
