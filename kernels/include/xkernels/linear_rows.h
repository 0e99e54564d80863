/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers for few rows of activations. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"
#include "xkernels/weights.h"

/* Writes (rows, outputs) values to `output`, dense: input . weights^T + bias.
 *
 * `input` is (rows, inputs); row r begins at element r * stride and is dense. `weights` are
 * (outputs, inputs), perhaps packed, or stored as (inputs, outputs); `bias` has `outputs` values,
 * or is NULL. `value_type` is that of input and output, `bias_type` that of the bias: each
 * XK_FLOAT32 or XK_BFLOAT16. Pointers are aligned to one value and may be NULL if there are no
 * values. Sums are computed in fp32 and rounded once. With packed weights, activations are rounded
 * to 16 bits: to 1/32767 of the largest of each group. They do not depend on the number of threads.
 * They depend on the instruction set in the last bits of fp32, because it has its own order of
 * summation, with or without fused multiply-add, and on `rows` in the same way.
 *
 * Every weight is read once for every 3 rows, those stored as (inputs, outputs) for every 8:
 * reading them is what takes the time, so this is for few rows. It runs on the calling thread's
 * OpenMP team; small layers run on the calling thread alone. It returns 0 or a code that is common
 * to all operators. */
XK_API int32_t xk_linear_rows(const void* input, int64_t rows, int64_t stride, int32_t value_type,
                              const xk_weights* weights, const void* bias, int32_t bias_type,
                              int64_t inputs, int64_t outputs, void* output);
