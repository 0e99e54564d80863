// SPDX-License-Identifier: Apache-2.0
//
// Waiting at a barrier: spinning, then a futex. Apart from the header, because objects for
// different instruction sets must not share its code.
#include "ops/barrier.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace xkernels {
namespace {

constexpr int64_t kSpinNs = 50000;
constexpr int kLooks = 64;  // between two readings of the clock

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace

void Barrier::wait(int64_t threads) {
  const uint32_t round = __atomic_load_n(&round_, __ATOMIC_SEQ_CST);
  if (__atomic_add_fetch(&arrived_, 1, __ATOMIC_SEQ_CST) == threads) {
    __atomic_store_n(&arrived_, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&round_, round + 1, __ATOMIC_SEQ_CST);
    // A sleeper counts itself before the kernel compares the round: one of both sees the other.
    if (__atomic_load_n(&sleepers_, __ATOMIC_SEQ_CST) > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
    return;
  }
  if (spin(round)) return;
  __atomic_add_fetch(&sleepers_, 1, __ATOMIC_SEQ_CST);
  while (is_at(round)) futex(FUTEX_WAIT_PRIVATE, round);
  __atomic_sub_fetch(&sleepers_, 1, __ATOMIC_SEQ_CST);
}

// Returns whether the round has ended in time.
bool Barrier::spin(uint32_t round) const {
  const int64_t end = now_ns() + kSpinNs;
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (!is_at(round)) return true;
      pause();
    }
  } while (now_ns() < end);
  return false;
}

void Barrier::futex(int operation, uint32_t value) {
  syscall(SYS_futex, &round_, operation, value, nullptr, nullptr, 0);
}

}  // namespace xkernels
