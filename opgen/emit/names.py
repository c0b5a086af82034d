"""Names of the notation as identifiers of a target language.

The notation keeps tensors and integers apart (`b[b]` is legal) and has names such as `stride[0]`
and `...`; a target has one flat namespace and words of its own.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from opgen.ir.notation import BATCH, BATCH_ITERATOR

_C: Final = """
alignas alignof and asm auto bool break case catch char class const constexpr const_cast continue
decltype default delete do double dynamic_cast else enum explicit export extern false float for
friend goto if inline int long mutable namespace new noexcept not nullptr operator or private
protected public register reinterpret_cast requires restrict return short signed sizeof static
static_assert static_cast struct switch template this thread_local throw true try typedef typeid
typename typeof union unsigned using virtual void volatile wchar_t while xor
complex imaginary I errno main unix linux NULL EOF INFINITY NAN HUGE_VAL M_PI M_E
threadIdx blockIdx blockDim gridDim warpSize half
f16 bf16 f32 f64 u8 i8 i16 i32 i64 b8 T real fault gcd inside
KERNEL FUNCTION INLINE PRAGMA TYPED INDEPENDENT INDEPENDENT_FEW IN_ANY_ORDER ADD_TERMS TERMS
BEST_OF_ROW EXTREMES LONG_ROW
FIRST EACH LANES PROVED PLANES
UNROLL ACROSS ALONG ANY_STEPS FENCE FETCH FETCH_SOON HAVE_MASKS HAVE_PLANES HAVE_PLANES_OF_T
HAVE_NARROW_PLANES LANE_BYTES LANE_MASK LINE NOT_A_VECTOR PAIRED_LANES SHUFFLE STORE_PART THREAD
THREADS THREADS_OF_CHAIN WHOLE_GRIDS MEMBER MEMBERS POWER
quotient aligned load_run store_run multiply_add tile_places copy_in copy_out
METHOD words multiply_matrices load_matrices ADD_PRODUCT add_product product_plan product_element
product_part product_sums product_sums_by_adding product_sums_by_tensor_cores
IS_ONE IS_LANE_NUMBER ALL_KNOWN ORDERED NOT_LESS_OR_EQUAL NOT_GREATER_OR_EQUAL FROM_TO COMPARE_LANES
CHOOSE_LANES CHOOSE_NUMBERS LANES_WHERE JOIN_ARRAYS JOIN_LANES POSITIONS_TO still_known known_within
is_greater is_less greatest_lanes least_lanes greatest_lanes_at least_lanes_at greatest_in_arrays
greatest_lanes_within least_lanes_within greatest_lanes_at_within least_lanes_at_within are_nan
found_positions_to found_positions_to_narrow half_numbers NONE_FOUND UNORDERED JOIN_WITHIN
least_in_arrays are_equal are_equal_narrow chosen_lanes chosen_numbers lane_choice lane_number
number_lanes choice_lanes place_lanes narrow_lanes lanes_where lanes_where_within lanes_where_narrow
lanes_where_narrow_within positions_to positions_to_narrow positions_to_within
positions_to_narrow_within turns_to_T
max_lanes min_lanes nan_lanes WITH_LANES EXTREME_OF_VECTORS nans
zero_pieces zeros_made ZEROED by_inverse by_moving_inverse inverse scale_of
access_of vector_of line_part parts bits word_lanes float_lanes wide_lanes lane_numbers load_columns
store_columns half_lanes integer_lanes single_lanes words_from_T AS_ROUNDED_NOW
store_words same_lanes sum_of_lanes team_sum team_sums sums_across SUMS_TOGETHER atomicAdd
JOIN Added Greatest Least whole_power
EVERY_SECOND every_second every_second_within only_every_second sum_of_every_second
EACH_TWICE each_twice each_twice_within half_T_lanes doubled_T_lanes
rounded_words rounded_words_alone rounded_lanes_alone upper_halves both_halves KEPT_OR_KNOWN
FIRST_AND_SECOND_OR_THIRD
pair_lanes first_of_pair second_of_pair first_of_pair_or_one second_of_pair_or_one
pair_to_T first_of_pair_unrounded second_of_pair_unrounded first_of_pair_or_one_unrounded
second_of_pair_or_one_unrounded pair_to_unrounded EVEN_LANES ODD_LANES
STORE_LINE STORES_LINES lanes_past_T two_past_T lanes_past_unrounded pair_to_or_past_T pair_line
will_be_stored
two_lanes two_vectors few_words two_lanes_from_T even_of_two odd_of_two
two_to_T_alone two_to_T_at_once pair_to_T_at_once line_of_halves ROUNDED_AT_ONCE magnitudes
least_words pair_if_coarse ARE_COARSE LEAST_COARSE ROUNDS_AT_ONCE
pair_to_T_alone first_of_pair_unrounded_alone second_of_pair_unrounded_alone pair_to_unrounded_alone
pair_past_unrounded
call tensors integers numbers arguments task share shares MOST_SHARES stream is_of_lines
will_be_written is_mapped is_ready asked_ahead rows_ahead first_cache largest_cache
MOST_AT_ONCE MOST_IN_TURN
extreme is_nan is_better is_here each from
run_as_one find_cache find_caches watch_forks take_chunks stored_T stored_bits masked_lanes
stored_lanes unrounded rounded rounded_lanes stored_from_unrounded unrounded_from_stored
"""
_FUNCTIONS: Final = """
abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh div erf erfc exp exp2 expm1
fabs fdim floor fma fmax fmin fmod frexp gamma hypot j0 j1 jn ldexp labs lgamma llabs log log10
log1p log2 logb lrint lround max min modf nan nearbyint nextafter pow printf rand remainder rint
round rsqrt scalbn signbit sin sinh sqrt tan tanh tgamma time trunc y0 y1 yn malloc free memcpy
memset exit abort assert signal index aligned_alloc
"""
_OURS: Final = re.compile(
    r"(opgen|from|to|floor_div|least|greatest|limited|modular_inverse|atomic|rows_of|across_of"
    r"|along_of|lanes|move|MOVE|framed|FRAMED|in|inside|GOMP|omp|pthread|T|real|wide|f16|bf16|f32|f64|b8|u8|i8|i16|i32|i64)(_|$)"
)

_FUNCTION_PREFIXES: Final = re.compile(
    r"(pthread|omp|GOMP|clock|timer|timespec|sched|time|bf16|f16|in|is|take|watch|inside|run)_"
)

RESERVED_IN_C: Final = frozenset((*_C.split(), *_FUNCTIONS.split()))
"""Words of C, C++ and CUDA, of their libraries, and of the prelude of `opgen.runtime`."""


def is_reserved_in_c(name: str) -> bool:
    """Whether an identifier has a meaning in generated C or CUDA already."""
    return (
        name in RESERVED_IN_C
        or name.startswith("_")
        or name.endswith("_t")
        or _OURS.match(name) is not None
    )


def function_name(kernel: str) -> str:
    """The C function of a kernel, which is called after its op and a tensor: `floor_div` may be.

    Functions of the prelude, of the C library and of other kernels' tasks have names of that form.
    """
    taken = is_reserved_in_c(kernel) or _FUNCTION_PREFIXES.match(kernel) or kernel.endswith("_task")
    return f"k_{kernel}" if taken else kernel


def is_reserved_in_python(name: str) -> bool:
    """Whether an identifier has a meaning in a generated Python function already."""
    return keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in _PYTHON


IMPORTED: Final = (
    *("Attribute", "Chain", "Convolution", "CudaKernels", "Family", "Fault", "Gradient", "Input"),
    *("Launch", "Matrix", "MatrixProduct", "Operation", "Output", "Phase", "Product", "Shape"),
    *("Shapes", "Sources", "Special", "Temporary", "checks", "eager"),
)
"""What a module may import from the runtime, in the order in which it does."""

_PYTHON: Final = frozenset(
    (
        *IMPORTED,
        *("torch", "math", "Any", "Literal", "Tensor", "SPEC", "CERTIFICATE", "FAMILY"),
        *("min", "max", "int", "float", "bool", "str", "tuple", "dict", "super", "self"),
    )
)
"""What the template of a module imports and defines, and the builtins that it uses."""


def identifier(name: str) -> str:
    """A name of the notation with nothing but letters, digits and underscores."""
    if name in (BATCH, BATCH_ITERATOR):
        return "batch"
    return re.sub(r"\W", "", name.replace("[", "_"), flags=re.ASCII)


def _without_underscore(name: str) -> str:
    """As an identifier that C does not reserve by its first character; `_t1` becomes `t1`."""
    text = identifier(name).lstrip("_")
    return text if text[:1].isalpha() else f"v{text}"


@dataclass
class CNames:
    """Unique C identifiers, given out in the order of asking. Scopes nest by `inner`."""

    taken: set[str] = field(default_factory=set)

    def fresh(self, wanted: str) -> str:
        """An identifier like `wanted` that is not reserved and not taken; it is taken from now."""
        plain = _without_underscore(wanted)
        if is_reserved_in_c(plain):
            plain = f"v_{plain}v" if plain.endswith("_t") else f"v_{plain}"
        name, number = plain, 1
        while name in self.taken:
            number += 1
            name = f"{plain}_{number}"
        self.taken.add(name)
        return name

    def first_free(self, *wanted: str) -> str:
        """The first of several candidates that is free, else the last one made unique."""
        for candidate in wanted:
            name = _without_underscore(candidate)
            if not is_reserved_in_c(name) and name not in self.taken:
                self.taken.add(name)
                return name
        return self.fresh(wanted[-1])

    def inner(self) -> CNames:
        """A scope in which everything taken here is taken too."""
        return CNames(set(self.taken))


def python_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Unique Python identifiers for names, in order, different from those that are taken."""
    used = set(taken)
    out: dict[str, str] = {}
    for name in names:
        wanted = identifier(name)
        while is_reserved_in_python(wanted) or wanted in used:
            wanted += "_"
        used.add(wanted)
        out[name] = wanted
    return out
