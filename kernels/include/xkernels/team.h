/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's OpenMP team. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

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
