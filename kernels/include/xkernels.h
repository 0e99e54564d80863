/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C interface of libxkernels.so.
 *
 * Only plain C types, no torch and no Python, so that one build serves every version of both.
 * Every function may be called from any thread, throws nothing and keeps no pointer argument.
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

/* The version of this interface. Callers compare it with xk_abi_version() first. */
#define XK_ABI_VERSION 2

/* Error codes of the functions, all below zero. */
#define XK_INVALID_ARGUMENT (-1) /* an argument violates the contract; nothing was done */
#define XK_REFUSED (-2)          /* the system refused; errno has the reason */
#define XK_CLOSED (-3)           /* the mailbox is closed and empty */
#define XK_INTERRUPTED (-4)      /* a signal was handled during the sleep: call again */
#define XK_TIMED_OUT (-5)        /* the timeout has passed */

/* Returns the XK_ABI_VERSION that the library was built with. It changes when the meaning of a
 * function or the layout of a struct changes, not when functions are added. */
XK_API int32_t xk_abi_version(void);

/* One thread of an OpenMP team, as seen from inside a parallel region. */
typedef struct xk_team_member {
  int32_t openmp_id; /* omp_get_thread_num(): 0 is the calling thread */
  int32_t thread_id; /* the kernel's thread id, as in /proc/self/task */
  int32_t cpu;       /* the CPU that it ran on; -1 if the kernel does not say */
} xk_team_member;

/* Runs one parallel region on the calling thread's OpenMP team and reports its threads.
 *
 * Returns the number of threads of the team, n >= 1. Writes members[i] for each i < min(n,
 * capacity), so that members[i].openmp_id == i. If n > capacity the others are counted but not
 * written: call again with room for n. `members` may be NULL if capacity is 0.
 * Returns XK_INVALID_ARGUMENT, and runs nothing, if capacity < 0, or if members is NULL and
 * capacity > 0.
 *
 * The team is the one that torch's operators run on in this thread: its size follows
 * torch.set_num_threads(), omp_set_num_threads() and OMP_NUM_THREADS. */
XK_API int32_t xk_openmp_team(xk_team_member* members, int32_t capacity);

/* ---- The size and the CPUs of the calling thread's team ----
 *
 * Every host thread has a team of its own, and these functions act on the caller's only. A CPU set
 * is an array of `count` distinct CPU numbers, count >= 1.
 *
 * Runtimes start workers when they need them, and differ in the masks of new workers.
 *
 * - GNU's: a new worker inherits the mask of its host thread. A worker that a smaller region does
 *   not need ends, and the next larger region starts another (oneDNN and MKL use teams of other
 *   sizes). So a host thread keeps the whole set: pinned to one CPU, it would put all workers that
 *   start later on that CPU.
 * - LLVM's and Intel's: a new worker gets the mask that the process had when the runtime started,
 *   whatever its host thread's mask is. In Intel's (2025 and later) a host thread gets it too in
 *   its first region. Workers that a team does not need wait in one pool for all host threads: see
 *   xk_team_keep_workers.
 *
 * So: set the number of threads, then confine or pin, and repeat that when the team has grown.
 * Before a host thread ends, confine its team to the CPUs that the process may use: LLVM's and
 * Intel's runtimes pass its workers with their masks to another team. (Intel's of 2026 leaves them
 * idle forever: prefer few host threads that live long.) */

/* Makes each host thread's team keep idle workers, for the rest of the process. LLVM's and Intel's
 * runtimes would pass them with their masks to the next team that grows; they take the setting
 * (KMP_HOT_TEAMS_MODE=1) only before the process's first parallel region, so call this early.
 * xk_team_confine and xk_team_pin call it too.
 * Returns 1 if workers stay with their team; 0 if it is too late, if it may be too late because the
 * runtime knows several threads, or if the environment says otherwise (KMP_HOT_TEAMS_MODE=0). */
XK_API int32_t xk_team_keep_workers(void);

/* Returns the number of threads of the calling thread's next parallel region, at least 1. */
XK_API int32_t xk_team_size(void);

/* Sets that number for the calling thread; other threads and the process's default do not change.
 * Returns the old number, or XK_INVALID_ARGUMENT if size < 1.
 *
 * Libraries may have numbers of their own for the thread. torch sets this one in a thread's first
 * call: call torch.get_num_threads() in the thread before. MKL uses this one unless its own was set
 * for the thread (MKL_Set_Num_Threads_Local), which torch does in each thread's first call once
 * torch.set_num_threads() was called in any thread. */
XK_API int32_t xk_team_resize(int32_t size);

/* Confines the calling thread, then each worker of its team, to all of `cpus`.
 * Returns the team's number of threads; XK_INVALID_ARGUMENT; or XK_REFUSED if the kernel refuses
 * (errno is EINVAL if one of the CPUs is offline, does not exist, or is not allowed here; the
 * kernel alone would silently leave such a CPU out). After a refusal all masks are unchanged. */
XK_API int32_t xk_team_confine(const int32_t* cpus, int32_t count);

/* Like xk_team_confine, but pins each worker i >= 1 of the team to cpus[i % count]. The calling
 * thread keeps all of `cpus`. */
XK_API int32_t xk_team_pin(const int32_t* cpus, int32_t count);

/* Reads the affinity mask of a thread of this process (0: the calling one), ascending.
 * Returns the number n of CPUs in it and writes the first min(n, capacity); XK_INVALID_ARGUMENT; or
 * XK_REFUSED (errno is ESRCH if this process has no such thread). */
XK_API int32_t xk_thread_cpus(int32_t thread_id, int32_t* cpus, int32_t capacity);

/* ---- A mailbox: notifies one worker of work from any number of submitters ----
 *
 * It counts items; the items themselves are in a queue of the caller's, which is filled before
 * xk_mailbox_post. The ticket of an item is the number of its post, from 1; the worker takes items
 * in that order. Several submitters enqueue and post under one lock of theirs, so that the queue
 * has the order of the tickets, and an item whose post was refused can be removed.
 *
 * A waiting thread spins for spin_us microseconds (0: not at all), then sleeps on a futex. After
 * ten microseconds it yields its CPU between looks, and at once if the other side was on the same
 * CPU.
 *
 * A worker that had to wait for its item spins up to grace_us more (0: not at all), until a
 * submitter is inside xk_mailbox_await for that item or a later one: a submitter from Python holds
 * the GIL until then, and a worker that asked for the GIL too early would be put to sleep.
 *
 * Callers from Python release the GIL around the waiting functions (next and await) and keep it
 * around the others, which return at once. A NULL mailbox is an invalid argument; closing or
 * destroying it does nothing. */
typedef struct xk_mailbox xk_mailbox;

/* Returns an empty mailbox, or NULL without memory or if a time is below zero. */
XK_API xk_mailbox* xk_mailbox_create(int32_t spin_us, int32_t grace_us);

/* Frees the mailbox. No other call on it may be running or come later: the worker must have got
 * XK_CLOSED, and every xk_mailbox_await must have returned. */
XK_API void xk_mailbox_destroy(xk_mailbox* mailbox);

/* Submitter: adds an item and wakes the worker if it sleeps. Returns the item's ticket, or
 * XK_CLOSED. The submitter's earlier writes are visible to the worker that takes the item. */
XK_API int64_t xk_mailbox_post(xk_mailbox* mailbox);

/* Worker: reports that the items up to ticket `done` are done (waking their waiters), then waits
 * for another. Returns the number of items posted so far, which is more than `done`; XK_CLOSED if
 * there is no item and will be none; XK_INTERRUPTED: make the same call again; or
 * XK_INVALID_ARGUMENT if `done` is less than before or more than was posted. */
XK_API int64_t xk_mailbox_next(xk_mailbox* mailbox, int64_t done);

/* Whether xk_mailbox_next would return at once: 1 or 0; XK_INVALID_ARGUMENT. */
XK_API int32_t xk_mailbox_ready(xk_mailbox* mailbox, int64_t done);

/* Submitter: waits until item `ticket`, which was posted, is done. Returns 0; XK_TIMED_OUT after
 * timeout_us (0: at once; below 0: no limit); XK_INTERRUPTED; or XK_INVALID_ARGUMENT, also for a
 * ticket that is not posted yet. The worker's writes before its report are visible afterwards.
 *
 * A signal interrupts only the sleep: one that arrives during the spin, or just before the sleep,
 * is not noticed until the item is done. A thread that must see signals soon (Python's main thread)
 * waits repeatedly with a short timeout_us. */
XK_API int32_t xk_mailbox_await(xk_mailbox* mailbox, int64_t ticket, int64_t timeout_us);

/* Refuses further posts. The worker still gets the earlier ones, then XK_CLOSED. May be called
 * again. */
XK_API void xk_mailbox_close(xk_mailbox* mailbox);

/* ---- The same mailbox, as built-in functions of Python ----
 *
 * ctypes takes a tenth of a microsecond for each argument, six of them in a round trip. Built-in
 * functions take almost nothing. xk_mailbox_python_methods returns an array of three PyMethodDef:
 *
 *   post()   next(done)   await(ticket, timeout_us)
 *
 * PyCFunction_NewEx makes functions of them; their `self` is the mailbox's address, an int. They
 * take and return ints, like the functions above. `await` releases the GIL, and so does `next` if
 * it has to wait: a worker with more items keeps the GIL, because after releasing it, it would
 * queue behind all other threads.
 *
 * The library is built without Python and serves every version: it calls these six functions of the
 * stable ABI, whose addresses the caller passes. Objects are PyObject*, states PyThreadState*. The
 * addresses are stored; another call replaces them. Returns NULL if `python` is NULL. */
typedef struct {
  void* (*save_thread)(void);          /* PyEval_SaveThread: releases the GIL */
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
