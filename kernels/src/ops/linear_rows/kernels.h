// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of linear layers for few rows.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "ops/row_products.h"

namespace xkernels {

struct LinearRows {
  xk_weights weights;
  const void* bias;
  int32_t bias_type;
  int64_t inputs, outputs;
  const float* rows;  // (count, padded), the activations
  int64_t count, padded;
  void* output;
  int32_t value_type;
};

struct LinearRowsKernels {
  // Copies `count` values to fp32.
  void (*widen)(const void* from, int32_t type, int64_t count, float* to);
  // Computes outputs begin to end - 1 of all rows; `begin` is a multiple of kRowsAtOnce. Packed
  // weights need memory for `integers`, of this thread.
  void (*multiply)(const LinearRows& of, const Integers& integers, int64_t begin, int64_t end);
};

XK_DECLARE_KERNELS(LinearRowsKernels)

}  // namespace xkernels
