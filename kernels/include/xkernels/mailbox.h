/* SPDX-License-Identifier: Apache-2.0 */
/* A mailbox: notifies one worker of work. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

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
