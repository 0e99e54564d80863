/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix of weights of a linear layer. xkernels.h has what holds for every function. */
#ifndef XKERNELS_WEIGHTS_H
#define XKERNELS_WEIGHTS_H

#include "xkernels/library.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Weights of shape (outputs, inputs), dense, as torch stores them. */
typedef struct xk_weights {
  const void* values; /* of `type`, aligned to one value */
  int32_t type;       /* XK_FLOAT32 or XK_BFLOAT16 */
} xk_weights;

#ifdef __cplusplus
}
#endif

#endif /* XKERNELS_WEIGHTS_H */
