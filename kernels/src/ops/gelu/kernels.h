// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of GELU: some values.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "xkernels/gelu.h"

namespace xkernels {

struct Gelu {
  const void* input;
  const void* gradient;  // nullptr: the function itself
  void* output;
  int32_t type;
  bool by_tanh;
};

struct GeluKernels {
  void (*run)(const Gelu&, int64_t begin, int64_t end);
};

XK_DECLARE_KERNELS(GeluKernels)

}  // namespace xkernels
