// SPDX-License-Identifier: Apache-2.0
#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "xkernels.h"

static_assert(sizeof(xk_team_member) == 12, "callers in other languages rely on this layout");

int32_t xk_openmp_team(xk_team_member* members, int32_t capacity) {
  if (capacity < 0 || (members == nullptr && capacity > 0)) return XK_INVALID_ARGUMENT;
  int32_t size = 1;
  // No num_threads clause: like torch's own regions, it takes the calling thread's count.
#pragma omp parallel default(none) shared(members, capacity, size)
  {
    const int32_t id = omp_get_thread_num();
    if (id == 0) size = omp_get_num_threads();
    if (id < capacity) {
      // gettid() by number: glibc has a wrapper only since 2.30.
      members[id] = {id, static_cast<int32_t>(syscall(SYS_gettid)), sched_getcpu()};
    }
  }
  return size;
}
