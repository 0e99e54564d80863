// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of the decode step: one thread's part.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "ops/barrier.h"
#include "ops/row_products.h"
#include "xkernels/decode.h"

namespace xkernels {

// Activations that all threads see, (batch, padded size of what they hold), zeroed at first.
struct DecodeState {
  float* hidden;
  float* branch;       // what a part of a layer adds to it, before the norm behind that part
  float* projected;    // queries of all heads, and this position's keys and values
  float* attended;     // of all heads
  float *gated, *ups;  // intermediate
};

// Memory of one thread, zeroed at first.
struct DecodeScratch {
  float* normed;      // (batch, padded hidden)
  float* query;       // padded head_dim
  float* scores;      // padded positions
  Integers integers;  // of the inputs of linears with packed weights
};

struct DecodeKernels {
  // The part of thread number `thread` of `threads`, which all call it and wait at the barrier.
  void (*step)(const xk_decode& of, const DecodeState& state, const DecodeScratch& scratch,
               Barrier* barrier, int64_t thread, int64_t threads);
};

XK_DECLARE_KERNELS(DecodeKernels)

}  // namespace xkernels
