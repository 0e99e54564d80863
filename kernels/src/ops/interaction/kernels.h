// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of the interaction: some rows of a batch.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "xkernels/interaction.h"

namespace xkernels {

// Rows are padded to multiples of this; every instruction set's vector divides it.
constexpr int64_t kInteractionPadding = 16;

// Rows of a tile of products, and gradients that are computed together.
constexpr int kInteractionRows = 4;

struct Interaction {
  const void* const* inputs;
  const int64_t* strides;
  int64_t count;
  int64_t features;
  int32_t type;
};

// Memory of one thread, zeroed when it is allocated.
struct InteractionScratch {
  const float** rows;  // of the current sample, one for each input
  float* copies;       // (count, padded features): the rows, if they cannot be used in place
  float* products;     // (padded count, padded count)
  float* results;      // (kInteractionRows, padded features), if they cannot be written in place
  float* copied;       // padded features: gradient of the first input's copy
  float* pairs;        // all products or their gradients, and kInteractionPadding more
};

struct InteractionKernels {
  void (*forward)(const Interaction&, const InteractionScratch&, int64_t begin, int64_t end,
                  void* output);
  void (*backward)(const Interaction&, const InteractionScratch&, int64_t begin, int64_t end,
                   const void* gradient, void* const* gradients);
};

XK_DECLARE_KERNELS(InteractionKernels)

}  // namespace xkernels
