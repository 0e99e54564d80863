// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of dropout: some values.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "xkernels/dropout.h"

namespace xkernels {

// Values whose words come from the same blocks of the generator.
constexpr int64_t kDropoutGroup = 64;

struct Dropout {
  const void* input;
  void* output;
  int64_t count;
  int32_t type;
  float scale;         // of values that are kept
  uint32_t threshold;  // values with a smaller word are dropped
  uint64_t key;
  uint64_t stream;
};

struct DropoutKernels {
  // Groups [begin, end); the last may have fewer values.
  void (*run)(const Dropout&, int64_t begin, int64_t end);
};

XK_DECLARE_KERNELS(DropoutKernels)

}  // namespace xkernels
