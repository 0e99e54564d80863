/* SPDX-License-Identifier: Apache-2.0 */
/* Suppression of boxes that overlap with better ones. xkernels.h has what holds for every
 * function. */
#pragma once

#include "xkernels/library.h"

/* Sets kept[i] to 1 for each box that no better box suppresses, otherwise to 0.
 *
 * `boxes` are x1, y1, x2, y2 each, in fp32, or in fp64 if `in_fp64`. `order` has the number of
 * every box once: the boxes of each group together, within a group the best first. Group g begins
 * at starts[g] and ends before starts[g + 1]; starts[0] is 0 and starts[groups] is `count`. A box
 * that is kept suppresses all later boxes of its group whose intersection over union with it is
 * greater than `threshold`. Comparisons with NaN are false, as in torchvision.ops.nms. The result
 * does not depend on the instruction set.
 *
 * Runs on the calling thread's OpenMP team; few boxes on the calling thread alone. Returns 0;
 * XK_INVALID_GROUPS for `starts` that are not as described; XK_INVALID_ORDER for a number in
 * `order` that is no box's; or a code that is common to all operators. */
XK_API int32_t xk_nms(const void* boxes, int32_t in_fp64, int64_t count, const int64_t* order,
                      const int64_t* starts, int64_t groups, double threshold, uint8_t* kept);
