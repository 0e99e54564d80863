// SPDX-License-Identifier: Apache-2.0
//
// Lets the threads of an operator wait for each other.
#pragma once

#include <stdint.h>

namespace xkernels {

// A barrier of OpenMP's runtime spins for milliseconds. That takes the CPU from the thread that is
// waited for if there are more threads than CPUs, and uses up a quota. Threads spin here for about
// as long as it takes to sleep and wake, and then sleep.
class Barrier {
 public:
  // Returns when `threads` threads have called it.
  void wait(int64_t threads);

 private:
  bool is_at(uint32_t round) const { return __atomic_load_n(&round_, __ATOMIC_SEQ_CST) == round; }
  bool spin(uint32_t round) const;
  void futex(int operation, uint32_t value);

  alignas(64) int64_t arrived_ = 0;
  alignas(64) uint32_t round_ = 0;
  uint32_t sleepers_ = 0;
};

}  // namespace xkernels
