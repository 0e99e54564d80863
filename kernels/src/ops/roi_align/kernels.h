// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of roi_align: part of one region, or part of one image.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "xkernels/roi_align.h"

namespace xkernels {

// The pixels that the bins along one axis of a region read, with the sum of their weights over all
// samples of the bin. Those of bin i are at starts[i] to starts[i + 1], in ascending order.
struct RoiAxis {
  int64_t* starts;
  int32_t* pixels;
  float* weights;
};

// Memory of one thread.
struct RoiScratch {
  RoiAxis rows, columns;
  float* line;  // of the image's width
  float* bins;  // of the output's width, or a vector's if that is larger
};

// Regions that a thread pools: all of each, or some of its rows of bins if channels are last,
// otherwise some of its channels.
struct RoiShare {
  int64_t first_box, end_box;
  int64_t begin, end;  // rows of bins, or channels
};

// Channels, and rows of one image, that a thread owns.
struct RoiPart {
  int64_t image;
  int64_t first_channel, end_channel;
  int64_t first_row, end_row;
};

struct RoiKernels {
  void (*forward)(const xk_roi_align_task&, const RoiScratch&, const void* images,
                  const float* boxes, const RoiShare&, void* output);
  // Adds what the gradients of all regions give to a part of one image.
  void (*backward)(const xk_roi_align_task&, const RoiScratch&, const void* gradients,
                   const float* boxes, const RoiPart&, float* sums);
};

// Vectors are at most this long.
constexpr int64_t kRoiMaxLanes = 16;

XK_DECLARE_KERNELS(RoiKernels)

}  // namespace xkernels
