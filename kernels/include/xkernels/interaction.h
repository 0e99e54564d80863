/* SPDX-License-Identifier: Apache-2.0 */
/* Pairwise dot products of embedding vectors. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

/* Both functions take `count` inputs x_0, x_1, ... of (batch, features) values each. Row b of input
 * i begins at element b * strides[i] of inputs[i] and is dense. Values are of `type`, XK_FLOAT32,
 * XK_BFLOAT16 or XK_FLOAT16; pointers are aligned to one value and may be NULL if there are none.
 * Sums are computed in fp32 and rounded once. They do not depend on the number of threads. They
 * depend on the instruction set in the last bits of fp32, because it has its own order of
 * summation, with or without fused multiply-add.
 *
 * They run on the calling thread's OpenMP team; small batches run on the calling thread alone.
 * `count` is 1 to 2^14, and `features` at most INT32_MAX. They return 0 or a code that is common to
 * all operators. */

/* Writes (batch, features + count (count - 1) / 2) values to `output`, dense: the row of the first
 * input, then x_i . x_j for all i > j, ordered by i, then j. */
XK_API int32_t xk_interaction(const void* const* inputs, const int64_t* strides, int64_t count,
                              int64_t batch, int64_t features, int32_t type, void* output);

/* The derivative: from `gradient`, of the shape of `output` and dense, to gradients[i], each
 * (batch, features) and dense. Input i gets the sum over all j of g_ij x_j, where g_ij is the
 * gradient of the product of i and j, and g_ii = 0; the first input also gets the gradient of its
 * copy. */
XK_API int32_t xk_interaction_backward(const void* const* inputs, const int64_t* strides,
                                       int64_t count, int64_t batch, int64_t features, int32_t type,
                                       const void* gradient, void* const* gradients);
