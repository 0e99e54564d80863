// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of non-maximum suppression.
#ifndef XKERNELS_OPS_NMS_KERNELS_H
#define XKERNELS_OPS_NMS_KERNELS_H

#include <stdint.h>

#include "dispatch/isa.h"
#include "xkernels/roi_align.h"

namespace xkernels {

// Boxes of one group, the best first: an array for each of x1, y1, x2, y2 and the area.
template <typename Number>
struct Boxes {
  const Number* sides[5];
};

template <typename Number>
struct Suppression {
  // Sets suppressed[i] to 1, for i from `begin` to `end`, where box `by` overlaps with box i by
  // more than the threshold.
  void (*suppress)(const Boxes<Number>&, int64_t by, int64_t begin, int64_t end, Number threshold,
                   uint8_t* suppressed);
};

struct NmsKernels {
  Suppression<float> in_fp32;
  Suppression<double> in_fp64;
};

#define XK_DECLARE(suffix, name) extern const NmsKernels nms_##suffix;
XK_EACH_ISA(XK_DECLARE)
#undef XK_DECLARE

}  // namespace xkernels

#endif  // XKERNELS_OPS_NMS_KERNELS_H
