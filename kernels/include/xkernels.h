/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface of libxkernels.so.
 *
 * Plain C types only, no torch and no Python, so that one build serves every version of both.
 * Every function may be called from any thread, throws nothing and keeps no pointer it was given.
 */
#ifndef XKERNELS_H
#define XKERNELS_H

#include <stdint.h>

#if defined(__GNUC__)
#define XK_API __attribute__((visibility("default")))
#else
#define XK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A caller compares it with xk_abi_version() first of all. */
#define XK_ABI_VERSION 2

/* What functions return, below zero, where they cannot do what they were asked. */
#define XK_INVALID_ARGUMENT (-1) /* an argument breaks the contract; nothing was done */
#define XK_REFUSED (-2)          /* the system refused, and errno tells why */
#define XK_CLOSED (-3)           /* the mailbox is closed, and empty */
#define XK_INTERRUPTED (-4)      /* a signal was handled while it slept: call again */
#define XK_TIMED_OUT (-5)        /* the time is over */

/* Returns the XK_ABI_VERSION that the library was built with. It changes when a function, or the
 * layout of a struct, changes its meaning; functions may be added without changing it. */
XK_API int32_t xk_abi_version(void);

/* One thread of an OpenMP team, as seen from inside a parallel region. */
typedef struct xk_team_member {
  int32_t openmp_id; /* omp_get_thread_num(): 0 is the calling thread */
  int32_t thread_id; /* the kernel's id of the thread: a name in /proc/self/task */
  int32_t cpu;       /* the CPU it ran on when asked; -1 where the kernel does not tell */
} xk_team_member;

/* Runs one parallel region on the calling thread's OpenMP team and reports who took part.
 *
 * Returns the number of threads of the team, n >= 1. Writes members[i] for each i < min(n,
 * capacity), so that members[i].openmp_id == i. When n > capacity the others are counted, not
 * written: call again with room for n. `members` may be NULL when capacity is 0.
 * Returns XK_INVALID_ARGUMENT, and runs nothing, when capacity < 0, or when members is NULL and
 * capacity > 0.
 *
 * The team is the one that torch's operators run on in this thread: its size follows
 * torch.set_num_threads(), omp_set_num_threads() and OMP_NUM_THREADS. */
XK_API int32_t xk_openmp_team(xk_team_member* members, int32_t capacity);

/* ---- The size and the CPUs of the calling thread's team ----
 *
 * Every host thread has a team of its own, and each of these acts on the caller's alone. A CPU set
 * is an array of `count` distinct CPU numbers, count >= 1.
 *
 * Runtimes start workers when they need them, and each gives them masks in its own way.
 *
 * - GNU's: a new worker inherits the mask of its host thread. A worker that a smaller region does
 *   not need ends, and the next larger one starts another (oneDNN and MKL ask for teams of other
 *   sizes). So a host thread keeps the whole set: were it pinned to one CPU, all workers that start
 *   later would run on that CPU.
 * - LLVM's and Intel's: a new worker gets the mask that the process had when the runtime started,
 *   whatever its host thread's is. In Intel's (2025 and later) a host thread gets it, too, in its
 *   first region. Workers that a team does not need wait in one pool for all host threads: see
 *   xk_team_keep_workers.
 *
 * So: say how many threads, then confine or pin, and do that again when the team has grown. Before
 * a host thread ends, it confines its team to the CPUs that the process may use: LLVM's and Intel's
 * runtimes give its workers to another team, with their masks. (Intel's of 2026 leaves them idle
 * for good: better few host threads that live long.) */

/* Has each host thread's team keep the workers that it does not need at the moment, for the rest of
 * the process. LLVM's and Intel's runtimes would give them, and their masks, to the next team that
 * grows; they take the setting (KMP_HOT_TEAMS_MODE=1) before the process's first parallel region
 * only, so call this early. xk_team_confine and xk_team_pin call it as well.
 * Returns 1 when workers stay with their team; 0 when it is too late, or may be because several
 * threads have met the runtime already, or when the environment says otherwise
 * (KMP_HOT_TEAMS_MODE=0). */
XK_API int32_t xk_team_keep_workers(void);

/* Returns how many threads the calling thread's next parallel region asks for, at least 1. */
XK_API int32_t xk_team_size(void);

/* Sets it for the calling thread; other threads and the process's default keep theirs. Returns what
 * it was, or XK_INVALID_ARGUMENT when size < 1.
 *
 * Libraries may have counts of their own for the thread. torch sets this one when a thread meets it
 * first: call torch.get_num_threads() in the thread before. MKL follows this one unless its own was
 * set for the thread (MKL_Set_Num_Threads_Local), which torch does in every thread that is new to
 * it after torch.set_num_threads() was called in any. */
XK_API int32_t xk_team_resize(int32_t size);

/* Confines the calling thread, then each worker of its team, to all of `cpus`.
 * Returns the team's number of threads; XK_INVALID_ARGUMENT; or XK_REFUSED when the kernel refuses
 * (errno is EINVAL when one of the CPUs is offline, is not there, or is not allowed here; the
 * kernel alone would leave such a CPU out and say nothing). Refused, no mask has changed. */
XK_API int32_t xk_team_confine(const int32_t* cpus, int32_t count);

/* The same, and each worker i >= 1 of the team is pinned to cpus[i % count] alone. The calling
 * thread keeps all of `cpus`. */
XK_API int32_t xk_team_pin(const int32_t* cpus, int32_t count);

/* Reads the affinity mask of a thread of this process (0: the calling one), ascending.
 * Returns the number n of CPUs in it and writes the first min(n, capacity); XK_INVALID_ARGUMENT; or
 * XK_REFUSED (errno is ESRCH when this process has no such thread). */
XK_API int32_t xk_thread_cpus(int32_t thread_id, int32_t* cpus, int32_t capacity);

/* ---- A mailbox: hands work from any number of submitters to one worker ----
 *
 * It counts; the items themselves stay with the caller, in a queue that is filled before
 * xk_mailbox_post. Item number t, its ticket, is the t-th post, t >= 1; the worker takes items in
 * that order. Several submitters put and post under one lock of theirs, so that the queue has the
 * order of the tickets, and so that an item whose post was refused can be taken back.
 *
 * Who waits spins for spin_us microseconds (0: not at all), then sleeps on a futex. A spinning
 * thread offers its CPU to others after the first ten microseconds, and at once where the other
 * side was on the same CPU.
 *
 * A worker whose item was there only after waiting spins up to grace_us more (0: not at all), until
 * a submitter is inside xk_mailbox_await for that item or a later one: a submitter from Python
 * holds the interpreter's lock until then, and a worker that asked for the lock too early would be
 * put to sleep.
 *
 * Whoever calls from Python releases the interpreter's lock around the waiting functions (next and
 * await), and keeps it around the others: they return at once. A mailbox that is NULL is an invalid
 * argument; closing or destroying it does nothing. */
typedef struct xk_mailbox xk_mailbox;

/* Returns an empty mailbox, or NULL when there is no memory or a time is below zero. */
XK_API xk_mailbox* xk_mailbox_create(int32_t spin_us, int32_t grace_us);

/* Ends its life; NULL is none. No other call on it may be running or come later: the worker has got
 * XK_CLOSED and every xk_mailbox_await has returned. */
XK_API void xk_mailbox_destroy(xk_mailbox* mailbox);

/* Submitter: one item more. Wakes the worker if it sleeps. Returns the item's ticket, or XK_CLOSED.
 * The submitter's writes before it are visible to the worker that takes the item. */
XK_API int64_t xk_mailbox_post(xk_mailbox* mailbox);

/* Worker: says that the items up to ticket `done` are done (waking who awaits them), then waits for
 * another. Returns how many items were posted so far, which is more than `done`; XK_CLOSED when
 * there is none and will be none; XK_INTERRUPTED, and the same call can be made again; or
 * XK_INVALID_ARGUMENT when `done` is less than it was before or more than was posted. */
XK_API int64_t xk_mailbox_next(xk_mailbox* mailbox, int64_t done);

/* Whether xk_mailbox_next would return at once: 1 or 0; XK_INVALID_ARGUMENT. */
XK_API int32_t xk_mailbox_ready(xk_mailbox* mailbox, int64_t done);

/* Submitter: waits until item `ticket`, which was posted, is done. Returns 0; XK_TIMED_OUT after
 * timeout_us (0: at once; below 0: no limit); XK_INTERRUPTED; or XK_INVALID_ARGUMENT, also for a
 * ticket that is not posted yet. The worker's writes before it said so are visible afterwards.
 *
 * Only a sleep is interrupted: a signal that arrives while it spins, or in the instant before it
 * sleeps, goes unnoticed until the item is done. A thread that must see signals soon (Python's main
 * thread) waits in slices of a bounded timeout_us. */
XK_API int32_t xk_mailbox_await(xk_mailbox* mailbox, int64_t ticket, int64_t timeout_us);

/* Takes no more posts. The worker still gets what was posted before, then XK_CLOSED. May be called
 * again. */
XK_API void xk_mailbox_close(xk_mailbox* mailbox);

/* ---- The same mailbox, as functions of Python ----
 *
 * ctypes takes a tenth of a microsecond for each argument, and a hand-over from Python has six of
 * them. Functions of the interpreter's own kind take next to nothing. xk_mailbox_python_methods
 * returns an array of three of its PyMethodDef:
 *
 *   post()   next(done)   await(ticket, timeout_us)
 *
 * PyCFunction_NewEx makes functions of them; what they have for self is the mailbox's address, an
 * int. They take and return ints, as the functions above do. `await` releases the interpreter's
 * lock, and so does `next` where it has to wait: a worker with more to do at hand keeps the lock,
 * for to let it go and ask again is a wait in line behind all other threads.
 *
 * The library is built without Python and serves every version of it: what it calls are these six
 * functions of the stable ABI, which the caller finds. Objects are PyObject*, states
 * PyThreadState*. They are kept; another call replaces them. Returns NULL where `python` is. */
typedef struct {
  void* (*save_thread)(void);          /* PyEval_SaveThread: releases the lock */
  void (*restore_thread)(void* state); /* PyEval_RestoreThread */
  void* (*int_from)(long long value);  /* PyLong_FromLongLong */
  long long (*value_of)(void* object); /* PyLong_AsLongLong */
  void* (*address_in)(void* object);   /* PyLong_AsVoidPtr */
  void* (*error)(void);                /* PyErr_Occurred */
} xk_python;

XK_API const void* xk_mailbox_python_methods(const xk_python* python);

#ifdef __cplusplus
}
#endif

#endif /* XKERNELS_H */
