// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's OpenMP team: its threads, its size and its CPUs.
//
// No region here has a num_threads clause: like torch's own regions, it uses the calling thread's
// number, so that it runs on the same team as torch's operators.
#include "xkernels/team.h"

#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

// Extensions of LLVM's and Intel's runtimes; null under GNU's.
extern "C" {
__attribute__((weak)) void kmp_set_defaults(const char* settings);
__attribute__((weak)) int kmp_get_num_known_threads(void);
}

static_assert(sizeof(xk_team_member) == 12, "callers in other languages rely on this layout");

namespace {

// gettid() by number: glibc has a wrapper only since 2.30.
int32_t thread_id() { return static_cast<int32_t>(syscall(SYS_gettid)); }

// An affinity mask. Unlike cpu_set_t it has room for every CPU that Linux can be built for (8,192
// on x86-64), and it uses no heap memory.
class CpuMask {
 public:
  static constexpr int32_t kCapacity = 16384;

  // Sets distinct CPU numbers; false for anything else.
  bool assign(const int32_t* cpus, int32_t count) {
    if (cpus == nullptr || count < 1) return false;
    CPU_ZERO_S(sizeof(words_), words());
    for (int32_t i = 0; i < count; ++i) {
      if (cpus[i] < 0 || cpus[i] >= kCapacity || has(cpus[i])) return false;
      CPU_SET_S(static_cast<size_t>(cpus[i]), sizeof(words_), words());
    }
    return true;
  }

  // Reads a thread's mask (0: the calling one); returns 0 or the errno.
  int read(int32_t thread) {
    return sched_getaffinity(thread, sizeof(words_), words()) == 0 ? 0 : errno;
  }

  // Makes this the calling thread's mask; returns 0 or the errno.
  int bind() const { return sched_setaffinity(0, sizeof(words_), words()) == 0 ? 0 : errno; }

  // Like bind(), but EINVAL unless every CPU is granted: the kernel drops those that are offline or
  // outside the cpuset and reports success as long as one is left.
  int bind_whole() const {
    if (const int error = bind()) return error;
    CpuMask granted;
    if (const int error = granted.read(0)) return error;
    return CPU_EQUAL_S(sizeof(words_), granted.words(), words()) ? 0 : EINVAL;
  }

  bool has(int32_t cpu) const {
    return CPU_ISSET_S(static_cast<size_t>(cpu), sizeof(words_), words());
  }

 private:
  cpu_set_t* words() { return reinterpret_cast<cpu_set_t*>(words_); }
  const cpu_set_t* words() const { return reinterpret_cast<const cpu_set_t*>(words_); }

  alignas(cpu_set_t) unsigned char words_[kCapacity / 8];
};

// LLVM's and Intel's runtimes put an idle worker into one pool for all host threads; the next team
// that grows takes it, with its mask. Two streams of small teams would swap workers that way.
// KMP_HOT_TEAMS_MODE=1 keeps it with its team instead. GNU's runtime ends such a worker.
bool keep_workers() {
  if (kmp_set_defaults == nullptr || kmp_get_num_known_threads == nullptr) return true;
  if (const char* users = std::getenv("KMP_HOT_TEAMS_MODE")) return std::atoi(users) == 1;
  // The runtime takes the setting until the process's first parallel region; afterwards it prints a
  // warning. It does not say whether that region was, only how many threads it knows. Before that
  // region these are host threads only, usually one.
  if (kmp_get_num_known_threads() > 1) return false;
  kmp_set_defaults("KMP_HOT_TEAMS_MODE=1");
  return true;
}

// Confines the calling thread to all of `cpus`, and each worker to all of them or, pinned, to one.
// Either all masks change or none.
//
// The calling thread comes first, so that workers which GNU's runtime starts for the region inherit
// its mask. It comes again inside the region, because a runtime may set the masks of threads that
// are new to it: Intel's (2025 and later) gives a host thread in its first region the mask that the
// process started with, and Intel's and LLVM's give it to new workers.
int32_t place(const int32_t* cpus, int32_t count, bool pinned) {
  CpuMask whole;
  if (!whole.assign(cpus, count)) return XK_INVALID_ARGUMENT;
  // The first call starts a runtime, and LLVM's and Intel's then take the calling thread's mask for
  // the process's: so they are called before it is narrowed.
  xk_team_keep_workers();
  omp_get_max_threads();
  CpuMask before;
  int refusal = before.read(0);
  if (refusal == 0) {
    refusal = whole.bind_whole();
    if (refusal != 0) before.bind();
  }
  if (refusal != 0) {
    errno = refusal;
    return XK_REFUSED;
  }

  int32_t size = 1;
#pragma omp parallel default(none) shared(cpus, count, pinned, whole, before, size, refusal)
  {
    const int32_t id = omp_get_thread_num();
    if (id == 0) size = omp_get_num_threads();
    CpuMask previous = before;
    CpuMask one;
    if (pinned) one.assign(&cpus[id % count], 1);
    int error = id == 0 ? 0 : previous.read(0);
    if (error == 0) error = (pinned && id != 0 ? one : whole).bind_whole();
    if (error != 0) {
#pragma omp atomic write
      refusal = error;
    }
    // A refusal here means that the cpuset shrank after the calling thread was granted all CPUs.
#pragma omp barrier
    if (refusal != 0) previous.bind();
  }
  if (refusal != 0) {
    errno = refusal;
    return XK_REFUSED;
  }
  return size;
}

}  // namespace

int32_t xk_openmp_team(xk_team_member* members, int32_t capacity) {
  if (capacity < 0 || (members == nullptr && capacity > 0)) return XK_INVALID_ARGUMENT;
  int32_t size = 1;
#pragma omp parallel default(none) shared(members, capacity, size)
  {
    const int32_t id = omp_get_thread_num();
    if (id == 0) size = omp_get_num_threads();
    if (id < capacity) members[id] = {id, thread_id(), sched_getcpu()};
  }
  return size;
}

int32_t xk_team_size(void) { return omp_get_max_threads(); }

int32_t xk_team_resize(int32_t size) {
  if (size < 1) return XK_INVALID_ARGUMENT;
  const int32_t before = omp_get_max_threads();
  omp_set_num_threads(size);
  return before;
}

int32_t xk_team_keep_workers(void) {
  enum { kUnknown, kAsking, kShared, kKept };
  static std::atomic<int32_t> answer{kUnknown};
  int32_t seen = kUnknown;
  if (answer.compare_exchange_strong(seen, kAsking)) {
    seen = keep_workers() ? kKept : kShared;
    answer.store(seen);
  }
  while (seen == kAsking) {
    sched_yield();
    seen = answer.load();
  }
  return seen == kKept ? 1 : 0;
}

int32_t xk_team_confine(const int32_t* cpus, int32_t count) { return place(cpus, count, false); }

int32_t xk_team_pin(const int32_t* cpus, int32_t count) { return place(cpus, count, true); }

int32_t xk_thread_cpus(int32_t thread, int32_t* cpus, int32_t capacity) {
  if (thread < 0 || capacity < 0 || (cpus == nullptr && capacity > 0)) return XK_INVALID_ARGUMENT;
  // Signal 0 checks that the thread belongs to this process; masks of others could be read too.
  if (thread != 0 && syscall(SYS_tgkill, getpid(), thread, 0) != 0) return XK_REFUSED;
  CpuMask mask;
  if (const int error = mask.read(thread)) {
    errno = error;
    return XK_REFUSED;
  }
  int32_t found = 0;
  for (int32_t cpu = 0; cpu < CpuMask::kCapacity; ++cpu) {
    if (!mask.has(cpu)) continue;
    if (found < capacity) cpus[found] = cpu;
    ++found;
  }
  return found;
}
