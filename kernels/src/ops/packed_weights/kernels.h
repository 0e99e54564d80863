// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of packing weights: one row.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "ops/row_products.h"

namespace xkernels {

struct PackedWeightsKernels {
  // Packs a row of `inputs` values of `value_type` as `type`.
  void (*pack)(const void* from, int32_t value_type, int64_t inputs, int32_t type, uint8_t* to,
               uint16_t* scales);
  void (*unpack)(const uint8_t* from, const uint16_t* scales, int32_t type, int64_t inputs,
                 int32_t value_type, void* to);
};

XK_DECLARE_KERNELS(PackedWeightsKernels)

}  // namespace xkernels
