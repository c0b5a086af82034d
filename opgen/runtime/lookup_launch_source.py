"""The C side of launches of CUDA kernels, for `lookup_table`."""

from __future__ import annotations

from typing import NamedTuple

LAUNCH = -2
"""The first integer of such an entry, see `lookup_product_source.PRODUCT`."""

INPUT, OUTPUT, WORKSPACE, CONSTANT, COPY, NUMBER, FAULT = range(7)
"""Where an argument of a kernel comes from. Behind it stands which one, where in the workspace, or
the constant itself. FAULT is where a kernel says that an index was outside."""

FAULT_SIZE = 3
"""How many integers of 64 bits a fault is."""

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

DRIVER = ("cuLaunchKernel", "cuStreamSynchronize", "cuStreamIsCapturing", "cuMemHostAlloc")
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
    checks: int
    """Whether some kernel has a FAULT, so that the call waits for it."""


_SOURCE = r"""
static int32_t (*get_device_index)(Tensor, int32_t *);
static int32_t (*copy_into)(Tensor, Tensor, int32_t);
static int32_t (*create_guard)(int32_t, void **);
static int32_t (*delete_guard)(void *);
static int32_t (*get_stream)(int32_t, void **);
static int32_t (*launch_kernel)(
    void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
    void **);
static int32_t (*synchronize)(void *);
static int32_t (*is_capturing)(void *, int32_t *);
static int32_t (*allocate_host)(void **, size_t, unsigned);

void opgen_connect_launches(void *const *functions)
{
    memcpy(&get_device_index, functions + 0, sizeof(void *));
    memcpy(&copy_into, functions + 1, sizeof(void *));
    memcpy(&create_guard, functions + 2, sizeof(void *));
    memcpy(&delete_guard, functions + 3, sizeof(void *));
    memcpy(&get_stream, functions + 4, sizeof(void *));
    memcpy(&launch_kernel, functions + 5, sizeof(void *));
    memcpy(&synchronize, functions + 6, sizeof(void *));
    memcpy(&is_capturing, functions + 7, sizeof(void *));
    memcpy(&allocate_host, functions + 8, sizeof(void *));
}

/* Faults of calls that run at the same time, in memory of the host that kernels write to. */
typedef struct { int64_t words[FAULT_SIZE]; } Fault;
enum { FAULTS = 64, PORTABLE = 1 };
static Fault *faults;
static uint64_t faults_taken;

/* One that no other call has, all zero; NULL where there is none. */
static Fault *take_fault(void)
{
    Fault *all = __atomic_load_n(&faults, __ATOMIC_ACQUIRE);
    if (!all) {
        Fault *made = NULL;
        if (allocate_host((void **)&made, FAULTS * sizeof(Fault), PORTABLE)) return NULL;
        memset(made, 0, FAULTS * sizeof(Fault));
        /* Of two threads that come first the memory of one is never used. */
        if (__atomic_compare_exchange_n(
                &faults, &all, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            all = made;
    }
    uint64_t taken = __atomic_load_n(&faults_taken, __ATOMIC_RELAXED);
    while (~taken) {
        const int at = __builtin_ctzll(~taken);
        if (__atomic_compare_exchange_n(
                &faults_taken, &taken, taken | (uint64_t)1 << at, 0, __ATOMIC_ACQ_REL,
                __ATOMIC_RELAXED))
            return all + at;
    }
    return NULL;
}

/* Whether the stream is done with all that was launched, and no kernel found a fault. Where it is
   not done, as after an error of the device, the memory is never used again. */
static int give_back_fault(Fault *fault, void *stream)
{
    if (synchronize(stream)) return 0;
    const int is_right = *(volatile int64_t *)fault->words == 0;
    memset(fault, 0, sizeof *fault);
    __atomic_fetch_and(
        &faults_taken, ~((uint64_t)1 << (fault - faults)), __ATOMIC_ACQ_REL);
    return is_right;
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
    Fault *fault;
} Operands;

static int32_t argument(const Operands *operands, int64_t from, int64_t at, uint64_t *value)
{
    void *data = NULL;
    int32_t failed = 0;
    if (from == INPUT) failed = get_const_data(operands->inputs[at], (const void **)&data);
    else if (from == OUTPUT) failed = get_data(operands->outputs[at], &data);
    else if (from == COPY) failed = get_data(operands->copies[at], &data);
    else if (from == WORKSPACE) data = operands->workspace + at;
    else if (from == FAULT) data = operands->fault;
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
    Operands operands = {inputs, outputs, {NULL}, NULL, numbers, NULL};
    int64_t made = 0, copied = 0;
    Tensor large = NULL;
    void *guard = NULL, *stream = NULL;
    int done = 0;
    if (!launch_kernel || create_guard(index, &guard)) return 0;
    if (get_stream(index, &stream)) goto end;
    if (program->checks) {
        int32_t is_recorded = 0;
        /* A graph cannot wait, which Python says. */
        if (is_capturing(stream, &is_recorded) || is_recorded) goto end;
        if (!(operands.fault = take_fault())) goto end;
    }
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
    if (operands.fault && !give_back_fault(operands.fault, stream)) done = 0;
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
        "FAULT": FAULT,
        "FAULT_SIZE": FAULT_SIZE,
        "MAX_ARGUMENTS": MAX_ARGUMENTS,
        "MAX_COPIES": MAX_COPIES,
        "WIDEST_ACCESS": WIDEST_ACCESS,
    }
    values = ", ".join(f"{name} = {value}" for name, value in origins.items())
    return f"enum {{ {values} }};\n" + _SOURCE.replace("PROGRAM", about)
