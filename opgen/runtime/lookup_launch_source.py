"""The C side of launches of CUDA kernels, for `lookup_table`."""

from __future__ import annotations

from typing import NamedTuple

LAUNCH = -2
"""The first integer of such an entry, see `lookup_product_source.PRODUCT`."""

INPUT, OUTPUT, WORKSPACE, CONSTANT, COPY, NUMBER = range(6)
"""Where an argument of a kernel comes from. Behind it stands which one, where in the workspace, or
the constant itself."""

MAX_ARGUMENTS = 256
MAX_COPIES = 16
"""Calls beyond are left to Python."""

RUNTIME = ("aoti_torch_get_device_index", "aoti_torch_copy_")
"""What `opgen_connect_launches` is given of LibTorch, in this order;"""

CUDA_RUNTIME = (
    "aoti_torch_create_cuda_guard",
    "aoti_torch_delete_cuda_guard",
    "aoti_torch_get_current_cuda_stream",
)
"""then of its part for CUDA;"""

DRIVER = "cuLaunchKernel"
"""and at last of the driver."""


class Program(NamedTuple):
    """The first integers of such an entry, in this order.

    For each copy there are behind these: the position of the input, then type, rank, sizes and
    strides of its copy. For each launch there are the handle of the kernel, blocks and threads of
    its grid, and how many arguments it has; two integers for each of these follow.
    """

    kind: int
    device_type: int
    device_index: int
    copies: int
    launches: int


_SOURCE = r"""
static int32_t (*get_device_index)(Tensor, int32_t *);
static int32_t (*copy_into)(Tensor, Tensor, int32_t);
static int32_t (*create_guard)(int32_t, void **);
static int32_t (*delete_guard)(void *);
static int32_t (*get_stream)(int32_t, void **);
static int32_t (*launch_kernel)(
    void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
    void **);

void opgen_connect_launches(void *const *functions)
{
    memcpy(&get_device_index, functions + 0, sizeof(void *));
    memcpy(&copy_into, functions + 1, sizeof(void *));
    memcpy(&create_guard, functions + 2, sizeof(void *));
    memcpy(&delete_guard, functions + 3, sizeof(void *));
    memcpy(&get_stream, functions + 4, sizeof(void *));
    memcpy(&launch_kernel, functions + 5, sizeof(void *));
}

/* What kernels are compiled for, besides shapes: a device, and how far a tensor is aligned. */
static int64_t place_of(Tensor tensor)
{
    int32_t device;
    const void *data;
    if (!get_device_index || get_device_index(tensor, &device) || get_const_data(tensor, &data))
        return -1;
    return ((int64_t)(device + 1) << 8) | ((int64_t)((uintptr_t)data % WIDEST_ACCESS) << 32);
}

PROGRAM

typedef struct {
    const Tensor *inputs, *outputs;
    Tensor copies[MAX_COPIES];
    char *workspace;
    const double *numbers;
} Operands;

static int32_t argument(const Operands *operands, int64_t from, int64_t at, uint64_t *value)
{
    void *data = NULL;
    int32_t failed = 0;
    if (from == INPUT) failed = get_const_data(operands->inputs[at], (const void **)&data);
    else if (from == OUTPUT) failed = get_data(operands->outputs[at], &data);
    else if (from == COPY) failed = get_data(operands->copies[at], &data);
    else if (from == WORKSPACE) data = operands->workspace + at;
    if (from == NUMBER) memcpy(value, operands->numbers + at, sizeof *value);
    else *value = from == CONSTANT ? (uint64_t)at : (uint64_t)(uintptr_t)data;
    return failed;
}

/* All launches of a program, on the current stream; 0 where one failed. */
static int launch_all(
    const int64_t *next, int64_t launches, const Operands *operands, void *stream)
{
    for (; launches > 0; launches--) {
        uint64_t values[MAX_ARGUMENTS];
        void *pointers[MAX_ARGUMENTS];
        const int64_t *about = next, count = about[7];
        next += 8;
        for (int64_t i = 0; i < count; i++, next += 2) {
            if (argument(operands, next[0], next[1], &values[i])) return 0;
            pointers[i] = &values[i];
        }
        if (launch_kernel(
                (void *)(uintptr_t)about[0], (unsigned)about[1], (unsigned)about[2],
                (unsigned)about[3], (unsigned)about[4], (unsigned)about[5], (unsigned)about[6],
                0, stream, pointers, NULL))
            return 0;
    }
    return 1;
}

/* Apart, so that calls of C kernels do not pay for its variables. */
__attribute__((noinline)) static int launch(
    const Entry *entry, const Tensor *inputs, Tensor *outputs, int64_t count,
    const double *numbers)
{
    const Program *program = (const Program *)entry->integers;
    const int32_t type = (int32_t)program->device_type, index = (int32_t)program->device_index;
    const int64_t *next = (const int64_t *)(program + 1), *about = entry->outputs, one = 1;
    Operands operands = {inputs, outputs, {NULL}, NULL, numbers};
    int64_t made = 0, copied = 0;
    Tensor large = NULL;
    void *guard = NULL, *stream = NULL;
    int done = 0;
    if (!launch_kernel || create_guard(index, &guard)) return 0;
    if (get_stream(index, &stream)) goto end;
    for (; made < count; made++, about += 2 + 2 * about[1])
        if (empty_strided(
                about[1], about + 2, about + 2 + about[1], (int32_t)about[0], type, index,
                &outputs[made]))
            goto end;
    if (entry->workspace) {
        if (empty_strided(1, &entry->workspace, &one, bytes_type, type, index, &large)) goto end;
        if (get_data(large, (void **)&operands.workspace)) goto end;
    }
    for (; copied < program->copies; next += 3 + 2 * next[2]) {
        Tensor *copy = &operands.copies[copied];
        if (empty_strided(
                next[2], next + 3, next + 3 + next[2], (int32_t)next[1], type, index, copy))
            goto end;
        copied++;
        if (copy_into(*copy, inputs[next[0]], 1)) goto end;
    }
    done = launch_all(next, program->launches, &operands, stream);
end:
    delete_guard(guard);
    if (large) delete_tensor(large);
    while (copied > 0) delete_tensor(operands.copies[--copied]);
    if (!done)
        while (made > 0) delete_tensor(outputs[--made]);
    return done;
}
"""

WIDEST_ACCESS = 16
"""The widest access of a kernel in bytes: how it is compiled depends on the rest of an address."""


def source() -> str:
    """The text of `place_of` and `launch`; before it stands the definition of entries."""
    listed = "".join(f"    int64_t {name};\n" for name in Program._fields)
    about = f"/* What these are is said in Python. */\ntypedef struct {{\n{listed}}} Program;"
    origins = {
        "LAUNCH": LAUNCH,
        "INPUT": INPUT,
        "OUTPUT": OUTPUT,
        "WORKSPACE": WORKSPACE,
        "CONSTANT": CONSTANT,
        "COPY": COPY,
        "NUMBER": NUMBER,
        "MAX_ARGUMENTS": MAX_ARGUMENTS,
        "MAX_COPIES": MAX_COPIES,
        "WIDEST_ACCESS": WIDEST_ACCESS,
    }
    values = ", ".join(f"{name} = {value}" for name, value in origins.items())
    return f"enum {{ {values} }};\n" + _SOURCE.replace("PROGRAM", about)
