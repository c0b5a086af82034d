"""C functions that run a task on PyTorch's threads: each has a share, and then helps the others."""

from __future__ import annotations

from typing import Final

CALL: Final = r"""
/* What a call is made with, whether the kernel that runs writes past the caches, the copy that is
   made instead of one, if any: one of two kinds, whether what all points read of tensors is
   coarse, and how many bytes each point asks for of what the next ones read. A task runs the points
   [begin, end). */
struct move;
struct framed;
struct call {
    void *const *tensors;
    const int64_t *integers;
    const double *numbers;
    int64_t *fault;
    int streams;
    const struct move *move;
    const struct call *guest;
    const struct framed *framed;
    int coarse;
    int64_t ahead;
};
typedef void (*task)(int64_t begin, int64_t end, const struct call *call);
"""

FORKS: Final = r"""
/* Threads are those of torch: its OpenMP runtime, where it is loaded. Weak symbols, so that a
   library without it is loaded too and runs on one thread. */
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern void omp_set_num_threads(int) __attribute__((weak));

/* A child of a fork has no threads but its own: entering the parent's pool would hang. A library
   that is loaded in the child sees no fork, and is told. */
static int is_child;
static void in_child(void) { is_child = 1; }
__attribute__((weak)) void opgen_in_child(void) { is_child = 1; }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, in_child); }
"""
"""The threads of PyTorch, for C that includes <pthread.h>."""

PARTS: Final = r"""
/* A task that takes parts of its work until none is left: on all threads, or alone if there is so
   little that it is not worth waking one. */
static void take_all(void (*take)(void *), void *data, int is_little)
{
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    if (threads <= 1 || is_child || !GOMP_parallel || is_little) take(data);
    else GOMP_parallel(take, data, (unsigned)threads, 0);
}
"""
"""Work in parts, behind `FORKS` and <stdint.h>."""

SHARES: Final = r"""
/* Neighbouring points, of which a thread takes chunks; each share has a line of memory. */
struct share {
    int64_t next, end;
} __attribute__((aligned(64)));
enum { MOST_SHARES = 64 };
struct shares {
    task run;
    const struct call *call;
    int64_t chunk, count;
    struct share *shares;
};

/* A thread begins with its own share: in the next call, and in PyTorch's kernels, the same part of
   a tensor is with the same thread, in whose caches it is, and whose table of pages knows it. Then
   it takes what others have left of theirs. */
static void take_chunks(void *data)
{
    const struct shares *const all = data;
    const int64_t own = omp_get_thread_num ? omp_get_thread_num() : 0;
    for (int64_t at = 0; at < all->count; at++) {
        struct share *const share = all->shares + (own + at) % all->count;
        for (;;) {
            const int64_t begin = __atomic_fetch_add(&share->next, all->chunk, __ATOMIC_RELAXED);
            if (begin >= share->end) break;
            all->run(begin, least(begin + all->chunk, share->end), all->call);
        }
    }
    if (all->call->streams || all->call->guest) FENCE();
}

/* Whether a kernel with that many points runs those of another within them: each thread must have
   enough of them. Two are: 64 and 96 planes in groups of 16 are not slower on two threads than in
   twice as many groups, and took a third longer apart. */
FUNCTION int run_as_one(int64_t points, int64_t others)
{
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    if (points <= 0) return 0;
    return points >= others || points >= 2 * threads || threads <= 1 || is_child || !GOMP_parallel;
}

/* Points in chunks, taken as threads become free, about so many for each thread; small work is not
   worth waking a thread. Two points may be a lot of it: sums over all images, for half of the
   channels each. */
static void in_parallel_chunks(
    task run, const struct call *call, int64_t points, int64_t work, int64_t chunks)
{
    const int64_t grain = greatest(16384 / greatest(work, 1), 1);
    const int64_t threads = omp_get_max_threads ? omp_get_max_threads() : 1;
    if (points <= 0) return;
    if (threads <= 1 || is_child || !GOMP_parallel || points < 2 * grain) {
        run(0, points, call);
        if (call->streams || call->guest) FENCE();
        return;
    }
    struct share shares[MOST_SHARES];
    struct shares all = {run, call, greatest(grain, points / (threads * chunks)), 0, shares};
    all.count = least(threads, MOST_SHARES);
    for (int64_t at = 0; at < all.count; at++) {
        shares[at].next = at * points / all.count;
        shares[at].end = (at + 1) * points / all.count;
    }
    GOMP_parallel(take_chunks, &all, threads, 0);
}

FUNCTION void in_parallel(task run, const struct call *call, int64_t points, int64_t work)
{
    in_parallel_chunks(run, call, points, work, 16);
}

/* Points that run together where they are neighbours: a thread has its own as one, since half as
   many at a time take up to a seventh longer. */
FUNCTION void in_parallel_stretches(
    task run, const struct call *call, int64_t points, int64_t work)
{
    in_parallel_chunks(run, call, points, work, 1);
}
"""
