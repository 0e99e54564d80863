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
#define XK_ABI_VERSION 1

/* What a function returns, below zero, when an argument breaks its contract. */
#define XK_INVALID_ARGUMENT (-1)

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

#ifdef __cplusplus
}
#endif

#endif /* XKERNELS_H */
