// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of non-maximum suppression.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "xkernels/nms.h"

namespace xkernels {

// Boxes of one group, the best first: an array for each of x1, y1, x2, y2 and the area.
template <typename Number>
struct Boxes {
  const Number* sides[5];
};

// Sets suppressed[i] to 1, for i from `begin` to `end`, where box `by` overlaps with box i by more
// than the threshold.
template <typename Number>
using Suppress = void (*)(const Boxes<Number>&, int64_t by, int64_t begin, int64_t end,
                          Number threshold, uint8_t* suppressed);

struct NmsKernels {
  Suppress<float> in_fp32;
  Suppress<double> in_fp64;
};

XK_DECLARE_KERNELS(NmsKernels)

}  // namespace xkernels
