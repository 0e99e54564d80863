/* SPDX-License-Identifier: Apache-2.0 */
/* GELU and its derivative. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

/* Writes to `output` the GELU of `count` values of `input`, the value times the probability that a
 * normal variable is below it (Hendrycks and Gimpel, arXiv 1606.08415); with `gradient`, which may
 * be NULL, the gradient times the derivative. If `by_tanh` is not 0, the probability is the paper's
 * approximation by tanh.
 *
 * Values are dense and of `type`, XK_FLOAT32, XK_BFLOAT16 or XK_FLOAT16. They are computed in fp32
 * and rounded once: the probability and its density within 2e-7. Bits depend on the instruction
 * set, and not on the number of threads. `output` may be `input` or `gradient`. Pointers are
 * aligned to one value, and may be NULL if there are none.
 *
 * It runs on the calling thread's OpenMP team; few values run on the calling thread alone. `count`
 * is at most 2^40. Returns 0 or a code that is common to all operators. */
XK_API int32_t xk_gelu(const void* input, const void* gradient, int64_t count, int32_t type,
                       int32_t by_tanh, void* output);
