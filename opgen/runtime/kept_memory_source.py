"""The C side of `kept_memory`: what is freed is kept for a while, and given out again.

It is `new_tensor` of the library of `lookup_table`, which makes results and scratch of calls that
were seen before. Each copy of the library has this text, and the first one's memory serves all.
"""

from __future__ import annotations

SOURCE = r"""
/* Memory of large tensors that was freed, the oldest first. */
enum { KEPT_FROM = 1 << 20, MOST_PIECES = 64, SECONDS_KEPT = 10, ALIGNMENT = 64 };
typedef struct { void *memory; int64_t bytes, freed; } Piece;
static struct {
    pthread_mutex_t lock;
    Piece pieces[MOST_PIECES];
    int64_t count, bytes, most;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef void (*Deleter)(void *memory, void *bytes);
static void *(*take)(int64_t, int64_t *);
static Deleter give;
static size_t (*size_of)(int32_t);
static int32_t (*from_blob)(
    void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t, Tensor *,
    int32_t, const uint8_t *, int64_t, Deleter, void *);

static int64_t seconds_now(void)
{
    struct timespec now;
    return clock_gettime(CLOCK_MONOTONIC, &now) ? 0 : now.tv_sec;
}

/* Takes a piece out of the list, whose lock is held. */
static Piece taken_out(int64_t at)
{
    const Piece piece = kept.pieces[at];
    kept.count--, kept.bytes -= piece.bytes;
    memmove(kept.pieces + at, kept.pieces + at + 1, (kept.count - at) * sizeof piece);
    return piece;
}

/* Frees the oldest pieces: those that nobody asked for in a while, and as many as are needed for
   so many bytes more to be kept. The lock is held, but not while memory goes back to the system,
   which takes its time. */
static void make_room(int64_t bytes)
{
    Piece old[MOST_PIECES];
    int64_t count = 0;
    const int64_t before = seconds_now() - SECONDS_KEPT;
    while (kept.count
           && (kept.pieces[0].freed < before || kept.bytes + bytes > kept.most
               || kept.count == MOST_PIECES))
        old[count++] = taken_out(0);
    if (!count) return;
    pthread_mutex_unlock(&kept.lock);
    for (int64_t i = 0; i < count; i++) free(old[i].memory);
    pthread_mutex_lock(&kept.lock);
}

/* Memory for so many bytes: of the pieces that fit the one freed last, since caches may still hold
   it, else new memory. NULL if there is none. */
void *opgen_take(int64_t bytes, int64_t *capacity)
{
    void *memory = NULL;
    pthread_mutex_lock(&kept.lock);
    for (int64_t at = kept.count - 1; at >= 0 && !memory; at--) {
        *capacity = kept.pieces[at].bytes;
        if (*capacity >= bytes && *capacity <= bytes + bytes / 8) memory = taken_out(at).memory;
    }
    pthread_mutex_unlock(&kept.lock);
    if (memory) return memory;
    *capacity = bytes;
    if (!posix_memalign(&memory, ALIGNMENT, (size_t)bytes)) return memory;
    pthread_mutex_lock(&kept.lock);
    make_room(kept.most); /* of what is kept, nothing is worth a failure */
    pthread_mutex_unlock(&kept.lock);
    return posix_memalign(&memory, ALIGNMENT, (size_t)bytes) ? NULL : memory;
}

/* The way back; LibTorch calls it when the last tensor in this memory is gone. */
void opgen_give(void *memory, void *bytes)
{
    const int64_t size = (int64_t)(intptr_t)bytes;
    pthread_mutex_lock(&kept.lock);
    make_room(size <= kept.most ? size : 0);
    const int is_kept = kept.count < MOST_PIECES && kept.bytes + size <= kept.most;
    if (is_kept) {
        kept.pieces[kept.count++] = (Piece){memory, size, seconds_now()};
        kept.bytes += size;
    }
    pthread_mutex_unlock(&kept.lock);
    if (!is_kept) free(memory);
}

/* At most so many bytes are kept from now on. */
void opgen_keep(int64_t most)
{
    pthread_mutex_lock(&kept.lock);
    kept.most = most;
    make_room(0);
    pthread_mutex_unlock(&kept.lock);
}

int64_t opgen_kept(void)
{
    pthread_mutex_lock(&kept.lock);
    const int64_t bytes = kept.bytes;
    pthread_mutex_unlock(&kept.lock);
    return bytes;
}

/* A child of this process must not wait for a thread that it does not have. */
static void lock_kept(void) { pthread_mutex_lock(&kept.lock); }
static void unlock_kept(void) { pthread_mutex_unlock(&kept.lock); }
static void __attribute__((constructor)) prepare_for_children(void)
{
    pthread_atfork(lock_kept, unlock_kept, unlock_kept);
}

/* `torch_from_blob` and `aoti_torch_dtype_element_size` of LibTorch; the memory to use. */
void opgen_connect_memory(void *const *functions)
{
    memcpy(&from_blob, functions + 0, sizeof(void *));
    memcpy(&size_of, functions + 1, sizeof(void *));
    memcpy(&take, functions + 2, sizeof(void *));
    memcpy(&give, functions + 3, sizeof(void *));
}

/* A tensor without values; large ones are made in memory that is kept. */
static int32_t new_tensor(
    int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, Tensor *made)
{
    int64_t cells = 1, capacity;
    for (int64_t i = 0; i < rank; i++) {
        if (sizes[i] == 0) cells = INT64_MIN / 2;
        else cells += (sizes[i] - 1) * strides[i];
    }
    const int64_t bytes = cells > 0 && from_blob ? cells * (int64_t)size_of(dtype) : 0;
    void *const memory = bytes < KEPT_FROM ? NULL : take(bytes, &capacity);
    if (!memory) return empty_strided(rank, sizes, strides, dtype, 0, 0, made);
    void *const context = (void *)(intptr_t)capacity;
    /* If that fails it may have given the memory back already: rather lost than given out twice. */
    return from_blob(
        memory, rank, sizes, strides, 0, dtype, 0, -1, made, 0, NULL, 0, give, context);
}

"""
"""It stands after the functions that `opgen_connect` is given."""
