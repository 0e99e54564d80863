/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout with a counter-based generator. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

/* Writes `count` values to `output`, which may be `input`: each value of `input` is multiplied by 0
 * with `probability` (0 to 1), and by 1 / (1 - probability) otherwise, in fp32, and rounded once.
 * Values are dense and of `type`, XK_FLOAT32, XK_BFLOAT16 or XK_FLOAT16; pointers are aligned to
 * one value and may be NULL if there are none.
 *
 * The random words are those of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC11) with `key` as its key, and `stream` as the upper half of its counter. The lower
 * half counts blocks of four words: value i uses word i / 16 % 4 of block i / 64 * 16 + i % 16, and
 * is dropped if the word is less than probability * 2^32, rounded to nearest. So a call with the
 * gradient as its input, and the same other arguments, computes the derivative. Results depend
 * neither on the number of threads nor on the instruction set.
 *
 * It runs on the calling thread's OpenMP team; few values run on the calling thread alone. `count`
 * is at most 2^40. Returns 0 or a code that is common to all operators. */
XK_API int32_t xk_dropout(const void* input, int64_t count, int32_t type, double probability,
                          uint64_t key, uint64_t stream, void* output);
