/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling of image regions. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

/* The images, regions and options of one call. Images are of shape (images, channels, height,
 * width) and the pooled regions of shape (boxes, channels, output_height, output_width). Both are
 * dense, in this order of dimensions or, with channels_last, with the channels innermost. */
typedef struct xk_roi_align_task {
  int64_t images;
  int64_t channels;
  int64_t height; /* at most 2^24 */
  int64_t width;  /* at most 2^24 */
  int64_t boxes;
  int64_t output_height;  /* 1 to 2^16 */
  int64_t output_width;   /* 1 to 2^16 */
  double spatial_scale;   /* pixels of the images for each unit of the boxes' coordinates */
  int32_t sampling_ratio; /* samples of a bin along each axis; 0 or less: one for each pixel */
  int32_t aligned;        /* 1: boxes are shifted by half a pixel, and may be smaller than one */
  int32_t type;           /* of images and pooled regions: XK_FLOAT32, XK_BFLOAT16, XK_FLOAT16 */
  int32_t channels_last;
} xk_roi_align_task;

/* `boxes` has 5 values for each region: the number of its image, then x1, y1, x2, y2.
 *
 * The semantics are those of torchvision.ops.roi_align
 * (https://docs.pytorch.org/vision/stable/generated/torchvision.ops.roi_align.html): each region is
 * divided into bins; the value of a bin is the mean of samples on a regular grid in it, each
 * interpolated bilinearly. Samples more than one pixel outside of the image count as zero, and so
 * do those whose place is NaN. A region with 2^31 or more samples in an axis of a bin has none, if
 * sampling_ratio is not above 0.
 *
 * All is computed in fp32. The weights of the samples that read the same pixel are added first, so
 * results differ from torchvision's in the last bits. They do not depend on the number of threads
 * or the instruction set.
 *
 * Both functions run on the calling thread's OpenMP team; small tasks run on the calling thread
 * alone. They return 0; XK_NO_PIXELS if images without pixels have regions; XK_INVALID_IMAGE if a
 * box has the number of no image; or a code that is common to all operators. */

/* Writes the pooled regions of `images` to `output`. */
XK_API int32_t xk_roi_align(const xk_roi_align_task* task, const void* images, const float* boxes,
                            void* output);

/* The derivative: adds to `sums`, of the shape and order of the images and in fp32, what the
 * gradients of the pooled regions give. */
XK_API int32_t xk_roi_align_backward(const xk_roi_align_task* task, const void* gradients,
                                     const float* boxes, float* sums);
