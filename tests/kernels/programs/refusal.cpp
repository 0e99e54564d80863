// SPDX-License-Identifier: Apache-2.0
//
// A sched_setaffinity() to preload, which refuses one call of a worker thread when it is told to,
// as the kernel does when a cpuset shrinks.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

static std::atomic<bool> refuses{false};

extern "C" void refuse_a_worker() { refuses = true; }

extern "C" int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t* cpus) noexcept {
  if (syscall(SYS_gettid) != getpid() && refuses.exchange(false)) {
    errno = EINVAL;
    return -1;
  }
  return syscall(SYS_sched_setaffinity, thread, size, cpus) < 0 ? -1 : 0;
}
