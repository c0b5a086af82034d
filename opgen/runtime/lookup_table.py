"""The C side of eager calls: a table of calls that were checked before.

An op of the dispatcher runs `call` on its arguments through LibTorch's stable C interface. The
shapes, strides and types of the tensors and the integers are looked up; what is found says how to
allocate the outputs and what to give to the kernels, so nothing is checked or computed twice. What
is not found, or fails in any way, answers with one tensor that stands for "ask Python", which then
runs the op in full, raises what is to be raised, and enters the call. Ops that differ in fixed
integers only share a table.

An entry may also stand for a convolution of LibTorch, or a product of matrices: it has no kernel,
and its integers say which one (`lookup_convolution`, `lookup_product`). What Python does around one
costs more than it seems to: the library has left none of it in the caches. Or it stands for
launches of CUDA kernels (`lookup_launch`), or several other entries, one after the other
(`lookup_series`).

Entries are never changed or removed, so threads read them without a lock. Functions of LibTorch
are given as addresses: the library is compiled without any header or library of PyTorch.
"""

from __future__ import annotations

from opgen.runtime import (
    kept_memory_source,
    lookup_casts_source,
    lookup_convolution_source,
    lookup_launch_source,
    lookup_product_source,
    lookup_series_source,
)
from opgen.runtime.lookup_convolution_source import AS_BEFORE, PLAIN_CODE

SLOTS = 64
"""Ops that one copy of the library can serve."""

FUNCTIONS = (
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "torch_get_const_data_ptr",
    "torch_get_mutable_data_ptr",
    "aoti_torch_empty_strided",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_library_init_impl",
    "torch_library_impl",
    "_ZdlPv",
    "aoti_torch__reinterpret_tensor",
)
"""What `opgen_connect` is given, in this order; `_ZdlPv` is C++'s `operator delete`."""

CONVOLUTIONS = ("aoti_torch_cpu_convolution", "aoti_torch_cpu_convolution_backward")
"""What `opgen_connect_convolutions` is given, where LibTorch has them."""

CUDA_CONVOLUTIONS = ("aoti_torch_cuda_convolution", "aoti_torch_cuda_convolution_backward")
"""The same for a GPU, where its part for CUDA has them."""

PRODUCTS = (
    "aoti_torch_cpu_mm_out",
    "aoti_torch_cpu_bmm_out",
    "aoti_torch_cpu_addmm_out",
    "aoti_torch_cpu_baddbmm_out",
)
"""What `opgen_connect_products` is given, in this order, where LibTorch has them."""

_CONNECTION = r"""#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint64_t Value;
typedef void *Tensor;
typedef int64_t (*Kernel)(void *const *, const int64_t *, const double *, int64_t *);

static int32_t (*get_dim)(Tensor, int64_t *);
static int32_t (*get_sizes)(Tensor, int64_t **);
static int32_t (*get_strides)(Tensor, int64_t **);
static int32_t (*get_dtype)(Tensor, int32_t *);
static int32_t (*get_const_data)(Tensor, const void **);
static int32_t (*get_data)(Tensor, void **);
static int32_t (*empty_strided)(
    int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Tensor *);
static int32_t (*delete_tensor)(Tensor);
static int32_t (*new_handle)(Tensor, Tensor *);
static int32_t (*open_library)(const char *, const char *, const char *, uint32_t, void **);
static int32_t (*implement)(void *, const char *, void (*)(Value *, uint64_t, uint64_t), uint64_t);
static void (*delete_box)(void *);
static int32_t (*view_of)(
    Tensor, int64_t, const int64_t *, const int64_t *, int64_t, Tensor *);

void opgen_connect(void *const *functions)
{
    memcpy(&get_dim, functions + 0, sizeof(void *));
    memcpy(&get_sizes, functions + 1, sizeof(void *));
    memcpy(&get_strides, functions + 2, sizeof(void *));
    memcpy(&get_dtype, functions + 3, sizeof(void *));
    memcpy(&get_const_data, functions + 4, sizeof(void *));
    memcpy(&get_data, functions + 5, sizeof(void *));
    memcpy(&empty_strided, functions + 6, sizeof(void *));
    memcpy(&delete_tensor, functions + 7, sizeof(void *));
    memcpy(&new_handle, functions + 8, sizeof(void *));
    memcpy(&open_library, functions + 9, sizeof(void *));
    memcpy(&implement, functions + 10, sizeof(void *));
    memcpy(&delete_box, functions + 11, sizeof(void *));
    memcpy(&view_of, functions + 12, sizeof(void *));
}
"""

_TABLE = r"""
CAST
enum { MAX_TENSORS = 16, MAX_RANK = 16, MAX_NUMBERS = 64, BUCKETS = 4096 };
enum { MAX_KEY = MAX_TENSORS * (2 * MAX_RANK + 2) + MAX_NUMBERS, STACK_BYTES = 4096 };

/* Arguments in order: 0 a tensor, 1 an optional one, 2 an integer, 3 a float, 4 an integer that is
   no argument but the same in every call. */
typedef struct {
    int64_t arguments, outputs;
    int64_t kinds[MAX_TENSORS + MAX_NUMBERS], constants[MAX_TENSORS + MAX_NUMBERS];
} Signature;

/* Where an address comes from: 0 an input, 1 an output, 2 the workspace, 3 the constants. */
typedef struct { int64_t from, at; } Address;

typedef struct Entry {
    struct Entry *next;       /* in the same bucket */
    uint64_t hash;
    int64_t words;            /* of the key */
    Kernel kernel;
    int64_t addresses, workspace;
    int refused;              /* what the library gives is not what was promised */
    const int64_t *key, *integers, *outputs; /* outputs: type, rank, sizes, strides; each in turn */
    const Address *address;
    const char *constants;
    const Cast *cast;         /* NULL where no input is cast before the kernel runs */
} Entry;

typedef struct { Entry *buckets[BUCKETS]; int64_t entries; } Table;
typedef struct { Signature signature; Table *table; } Op;

static Op ops[SLOTS];
static int suspended;

void opgen_suspend(int32_t value) { suspended = value; }
static Tensor ask_python;

static uint64_t hash_of(const int64_t *key, int64_t words)
{
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < words; i++) {
        hash = (hash ^ (uint64_t)key[i]) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

static Entry *find(Table *table, const int64_t *key, int64_t words)
{
    const uint64_t hash = hash_of(key, words);
    Entry *entry = __atomic_load_n(&table->buckets[hash % BUCKETS], __ATOMIC_ACQUIRE);
    for (; entry; entry = entry->next)
        if (entry->hash == hash && entry->words == words
            && !memcmp(entry->key, key, (size_t)words * sizeof *key))
            return entry;
    return NULL;
}

Entry *opgen_find(Table *table, const int64_t *key, int64_t words)
{
    return find(table, key, words);
}

int32_t opgen_has_room(Table *table)
{
    return __atomic_load_n(&table->entries, __ATOMIC_RELAXED) < MAX_ENTRIES;
}

/* One more entry; 0 where there is no room, or there is one for such calls, which failed this time.
   The numbers are copied. */
int64_t opgen_enter(
    Table *table, Kernel kernel, const int64_t *key, int64_t words, const int64_t *integers,
    int64_t count, const int64_t *outputs, int64_t output_words, const Address *address,
    int64_t addresses, int64_t workspace, const int64_t *cast, int64_t cast_words,
    const char *constants, int64_t constant_bytes)
{
    if (find(table, key, words)) return 0;
    if (__atomic_add_fetch(&table->entries, 1, __ATOMIC_RELAXED) > MAX_ENTRIES) return 0;
    const size_t word = sizeof(int64_t);
    const size_t bytes =
        (size_t)(words + count + output_words + 2 * addresses + cast_words) * word;
    Entry *entry = malloc(sizeof *entry + bytes + (size_t)constant_bytes);
    if (!entry) return 0;
    char *rest = (char *)(entry + 1);
#define COPY(source, size) ((void *)memcpy(rest, source, size)); rest += (size)
    entry->key = COPY(key, (size_t)words * word);
    entry->integers = COPY(integers, (size_t)count * word);
    entry->outputs = COPY(outputs, (size_t)output_words * word);
    entry->address = COPY(address, (size_t)addresses * sizeof *address);
    entry->cast = COPY(cast, (size_t)cast_words * word);
    if (!cast_words) entry->cast = NULL;
    entry->constants = COPY(constants, (size_t)constant_bytes);
#undef COPY
    entry->hash = hash_of(key, words);
    entry->words = words;
    entry->kernel = kernel;
    entry->refused = 0;
    entry->addresses = addresses;
    entry->workspace = workspace;
    Entry **bucket = &table->buckets[entry->hash % BUCKETS];
    entry->next = __atomic_load_n(bucket, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(
        bucket, &entry->next, entry, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
    return 1;
}

static int describe(Tensor tensor, int64_t *key, int64_t *words)
{
    int64_t rank, *sizes, *strides;
    int32_t dtype;
    if (get_dim(tensor, &rank) || rank > MAX_RANK) return 0;
    if (get_sizes(tensor, &sizes) || get_strides(tensor, &strides) || get_dtype(tensor, &dtype))
        return 0;
    int64_t *next = key + *words;
    *next++ = dtype;
    *next++ = rank;
    for (int64_t i = 0; i < rank; i++) *next++ = sizes[i];
    for (int64_t i = 0; i < rank; i++) *next++ = strides[i];
    *words = next - key;
    return 1;
}

static int run_pieces(
    const Entry *entry, void **addresses, const double *numbers, int64_t *fault);

static int run(
    const Entry *entry, Tensor *inputs, Tensor *outputs, int64_t count, const double *numbers)
{
    _Alignas(64) char small[STACK_BYTES];
    char *workspace = small;
    void *addresses[4 * MAX_TENSORS];
    int64_t fault[3] = {0, 0, 0}, made = 0;
    Tensor large = NULL;
    int done = 0;
    const int64_t *about = entry->outputs;
    for (; made < count; made++) {
        const int64_t dtype = about[0], rank = about[1];
        if (new_tensor(rank, about + 2, about + 2 + rank, (int32_t)dtype, &outputs[made]))
            goto end;
        about += 2 + 2 * rank;
    }
    if (entry->workspace > STACK_BYTES) {
        const int64_t one = 1;
        if (new_tensor(1, &entry->workspace, &one, bytes_type, &large)) goto end;
        if (get_data(large, (void **)&workspace)) goto end;
    }
    for (int64_t i = 0; i < entry->addresses; i++) {
        const Address *address = &entry->address[i];
        int32_t failed = 0;
        if (address->from == 0)
            failed = get_const_data(inputs[address->at], (const void **)&addresses[i]);
        else if (address->from == 1)
            failed = get_data(outputs[address->at], &addresses[i]);
        else if (address->from == 2)
            addresses[i] = workspace + address->at;
        else
            addresses[i] = (void *)(entry->constants + address->at);
        if (failed) goto end;
    }
    done = entry->cast ? run_pieces(entry, addresses, numbers, fault)
        : entry->kernel(addresses, entry->integers, numbers, fault) == 0;
end:
    if (large) delete_tensor(large);
    if (!done)
        while (made > 0) delete_tensor(outputs[--made]);
    return done;
}

"""

_CALLS = r"""
/* A tensor on the stack; one that may be absent is in a box, which is given up. */
static Tensor tensor_of(Value value, int is_optional)
{
    Tensor tensor = (Tensor)(uintptr_t)value;
    if (is_optional && tensor) {
        Value *box = (Value *)tensor;
        tensor = (Tensor)(uintptr_t)*box;
        delete_box(box);
    }
    return tensor;
}

/* What an entry stands for; whether that was done. */
static int serve(
    Entry *entry, Tensor *inputs, Tensor *outputs, int64_t count, const double *numbers)
{
    if (entry->kernel) return run(entry, inputs, outputs, count, numbers);
    switch (*entry->integers) {
    case PRODUCT: return multiply(entry, inputs, outputs);
    case LAUNCH: return launch(entry, inputs, outputs, count, numbers);
    case SERIES: return run_series(entry, inputs, outputs, count, numbers);
    default: return convolve(entry, inputs, outputs, count);
    }
}

/* A boxed kernel of the dispatcher: it owns the arguments on the stack and leaves the results. */
static inline void call(const Op *op, Value *stack, int on_cuda)
{
    const Signature *signature = &op->signature;
    Tensor inputs[MAX_TENSORS], outputs[MAX_TENSORS];
    double numbers[MAX_NUMBERS];
    int64_t key[MAX_KEY], words = 0, tensors = 0, floats = 0, given = 0;
    int known = 1;
    for (int64_t i = 0; i < signature->arguments; i++) {
        const int64_t kind = signature->kinds[i];
        if (kind == 4) {
            key[words++] = signature->constants[i];
            continue;
        }
        const Value value = stack[given++];
        if (kind == 2) {
            key[words++] = (int64_t)value;
        } else if (kind == 3) {
            memcpy(&numbers[floats++], &value, sizeof(double));
        } else {
            Tensor tensor = tensor_of(value, kind == 1);
            inputs[tensors++] = tensor;
            const int64_t first = words;
            if (!tensor) key[words++] = -1;
            else if (known) known = describe(tensor, key, &words);
            if (tensor && known && on_cuda) key[first] |= place_of(tensor);
        }
    }
    Entry *entry = known && !suspended ? find(op->table, key, words) : NULL;
    const int done = entry && serve(entry, inputs, outputs, signature->outputs, numbers);
    for (int64_t i = 0; i < tensors; i++)
        if (inputs[i]) delete_tensor(inputs[i]);
    for (int64_t i = 0; i < signature->outputs; i++) {
        if (!done) new_handle(ask_python, &outputs[i]);
        stack[i] = (Value)(uintptr_t)outputs[i];
    }
}

/* The same where tensors are to be cast first: Python is asked, without a look at them. */
static void refuse(const Op *op, Value *stack)
{
    const Signature *signature = &op->signature;
    for (int64_t i = 0, given = 0; i < signature->arguments; i++) {
        const int64_t kind = signature->kinds[i];
        if (kind == 4) continue;
        const Value value = stack[given++];
        Tensor tensor = kind < 2 ? tensor_of(value, kind == 1) : NULL;
        if (tensor) delete_tensor(tensor);
    }
    for (int64_t i = 0; i < signature->outputs; i++) {
        Tensor answer;
        new_handle(ask_python, &answer);
        stack[i] = (Value)(uintptr_t)answer;
    }
}

"""

_REGISTRATION = r"""
static void set_answer(Value *stack, uint64_t arguments, uint64_t results)
{
    (void)arguments, (void)results;
    ask_python = (Tensor)(uintptr_t)stack[0];
}

static int32_t register_kernel(
    const char *space, const char *name, const char *key,
    void (*kernel)(Value *, uint64_t, uint64_t), uint64_t version)
{
    void *library;
    if (open_library(space, key, "opgen", 0, &library)) return 1;
    return implement(library, name, kernel, version);
}

int32_t opgen_register_answer(const char *space, const char *name, uint64_t version)
{
    return register_kernel(space, name, "CPU", set_answer, version);
}

/* Where the op `is_cast`, autocast is to cast its tensors, on any device. Calls of CUDA tensors are
   looked up where there may be some. */
int32_t opgen_register(
    int64_t slot, const char *space, const char *name, uint64_t version,
    const Signature *signature, Table *table, int32_t is_cast, int32_t on_cuda)
{
    ops[slot].signature = *signature;
    ops[slot].table = table;
    if (is_cast && register_kernel(space, name, "AutocastCPU", refusals[slot], version)) return 1;
    if (is_cast && register_kernel(space, name, "AutocastCUDA", refusals[slot], version)) return 1;
    if (on_cuda && register_kernel(space, name, "CUDA", kernels_on_cuda[slot], version)) return 1;
    return register_kernel(space, name, "CPU", kernels[slot], version);
}

/* Whether nobody else has it: 1 for who asks first. */
int32_t opgen_claim(void)
{
    static int32_t claimed;
    return !__atomic_exchange_n(&claimed, 1, __ATOMIC_RELAXED);
}

Table *opgen_new_table(void) { return calloc(1, sizeof(Table)); }
"""

MAX_TENSORS, MAX_RANK, MAX_NUMBERS = 16, 16, 64
"""Ops and calls beyond are left to Python; the same numbers as in the source."""

MAX_ENTRIES = 2**13
"""The calls that a table has room for; others run in full. Batches of texts and crops of pictures
come in thousands of sizes. An entry takes some hundred bytes, and is there as long as the process.
"""


def source(block: int, owner: str, bytes_type: int) -> str:
    """The library for one block of slots; `bytes_type` is LibTorch's number of uint8.

    `owner` is the module that it is for: of a runtime, too, there may be copies in a process.
    """
    head = (
        f"/* Block {block} of {owner}: copies that are alike would be one to the loader. */\n"
        f"enum {{ SLOTS = {SLOTS}, bytes_type = {bytes_type}, MAX_ENTRIES = {MAX_ENTRIES} }};\n"
    )
    kernels = "".join(
        f"static void call_{at}(Value *stack, uint64_t a, uint64_t r)"
        f" {{ (void)a, (void)r, call(&ops[{at}], stack, 0); }}\n"
        f"static void call_on_cuda_{at}(Value *stack, uint64_t a, uint64_t r)"
        f" {{ (void)a, (void)r, call(&ops[{at}], stack, 1); }}\n"
        f"static void refuse_{at}(Value *stack, uint64_t a, uint64_t r)"
        f" {{ (void)a, (void)r, refuse(&ops[{at}], stack); }}\n"
        for at in range(SLOTS)
    )
    names = {"kernels": "call", "kernels_on_cuda": "call_on_cuda", "refusals": "refuse"}
    listed = "".join(_array(name, function) for name, function in names.items())
    table = _TABLE.replace("CAST\n", lookup_casts_source.declaration())
    before = f"{_CONNECTION}{PLAIN_CODE}{kept_memory_source.SOURCE}{table}{AS_BEFORE}"
    others = lookup_product_source.source() + lookup_launch_source.source()
    others += lookup_series_source.source()
    after = f"{PLAIN_CODE}{others}{_CALLS}{kernels}{listed}{_REGISTRATION}"
    loops = lookup_convolution_source.source() + lookup_casts_source.SOURCE
    return f"{head}{before}{loops}{after}"


def _array(name: str, function: str) -> str:
    """The definition of an array of the functions of that name for all slots."""
    listed = ", ".join(f"{function}_{at}" for at in range(SLOTS))
    return f"static void (*const {name}[SLOTS])(Value *, uint64_t, uint64_t) = {{{listed}}};\n"
