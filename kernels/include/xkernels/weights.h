/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of linear layers, also in few bits. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

/* Types of packed weights. Each row is divided into groups of XK_WEIGHT_GROUP inputs, the last one
 * padded with zeros. A weight is an integer of 8 or 4 bits in two's complement, times the scale of
 * its group in bf16.
 *
 * XK_PACKED8: a byte for each weight. XK_PACKED4: 16 bytes a group, as 8 little-endian words of
 * 16 bits; from the lowest bits up, word i has the weights i, 8 + i, 16 + i and 24 + i. */
#define XK_PACKED8 16
#define XK_PACKED4 17
#define XK_WEIGHT_GROUP 32

/* Weights of shape (outputs, inputs), dense; or, with a stride, stored as (inputs, outputs), where
 * the weights of input i begin at element i * stride. */
typedef struct xk_weights {
  const void*
      values; /* as torch stores them, aligned to one value; or packed, aligned to 2 bytes */
  const void* scales; /* of packed weights: (outputs, groups) of bf16; otherwise not read */
  int32_t type;       /* XK_FLOAT32, XK_BFLOAT16, XK_PACKED8 or XK_PACKED4 */
  int32_t stride;     /* elements from one input to the next; 0: (outputs, inputs), as if packed */
} xk_weights;

/* Packs (outputs, inputs) weights of XK_FLOAT32, XK_BFLOAT16 or XK_FLOAT16, which must be finite.
 *
 * Writes `packed` and `scales` as xk_weights of `type` has them. Of five scales for each group, by
 * which its largest weight becomes about -128 or -8, it takes the one with the smallest sum of
 * squared errors. Runs on the calling thread's OpenMP team. Returns 0 or a code that is common to
 * all operators. */
XK_API int32_t xk_pack_weights(const void* values, int32_t value_type, int64_t inputs,
                               int64_t outputs, int32_t type, void* packed, void* scales);

/* Writes packed weights as (outputs, inputs) values of XK_FLOAT32 or XK_BFLOAT16, rounded to
 * nearest. Otherwise like xk_pack_weights. */
XK_API int32_t xk_unpack_weights(const xk_weights* weights, int64_t inputs, int64_t outputs,
                                 int32_t value_type, void* output);
