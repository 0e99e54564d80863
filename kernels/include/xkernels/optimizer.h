/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps over many tensors. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

/* How weights are stored.
 *
 * XK_WEIGHTS_FLOAT32: as fp32.
 * XK_WEIGHTS_SPLIT: as bf16 with a signed 16-bit remainder each. Weight w has the fp32 bits
 *   (weights[i] << 16) + remainders[i], where weights[i] is w rounded to bf16, ties away from zero.
 *   Every fp32 value is represented exactly; a NaN stays a NaN without its payload. If a caller
 *   changes weights[i] alone, the remainder is read as it is, except where it would make a NaN of a
 *   number (a negative one of a zero, a positive one of an infinity): then it is read as 0. So w
 *   always rounds to weights[i].
 * XK_WEIGHTS_STOCHASTIC: as bf16 without a remainder. A new weight is rounded up or down at random,
 *   with probabilities that make the expected result equal to the fp32 value. The random numbers
 *   depend on `seed`, the number of the entry and the position in it, nothing else. */
#define XK_WEIGHTS_FLOAT32 0
#define XK_WEIGHTS_SPLIT 1
#define XK_WEIGHTS_STOCHASTIC 2

/* The tensors of a step. Each entry is a dense block of sizes[i] elements, with the same order of
 * elements in all its arrays. Pointers are aligned to their elements and may be NULL if the size is
 * 0. No written block may overlap with another block of the call.
 *
 * Computation is in fp32. State in bf16 is rounded to nearest, ties to even. */
typedef struct xk_tensors {
  int64_t count;                /* entries; each array below has that many */
  const int64_t* sizes;         /* in elements */
  void* const* weights;         /* fp32 or bf16, by weight_format */
  int16_t* const* remainders;   /* XK_WEIGHTS_SPLIT only, otherwise NULL */
  const void* const* gradients; /* of gradient_type */
  void* const* first;           /* of state_type: momentum, sum or first moment */
  void* const* second;          /* of state_type: second moment (Adam, Lamb), otherwise NULL */
  float* const* steps;          /* number of steps so far, which the call increments: Adagrad, Adam,
                                 * Lamb. Entries in a row may share one; it is incremented once. */
  int32_t* fresh;        /* SGD and Lars with momentum: 1 if the entry has no momentum yet; the
                          * call then sets it to the gradient, and this to 0 */
  uint64_t seed;         /* XK_WEIGHTS_STOCHASTIC: another for each call */
  int32_t weight_format; /* XK_WEIGHTS_... */
  int32_t gradient_type; /* XK_FLOAT32 or XK_BFLOAT16 */
  int32_t state_type;    /* XK_FLOAT32 or XK_BFLOAT16 */
  int32_t maximize;      /* 1: use the negative gradient */
} xk_tensors;

/* Each function updates all tensors in one pass over memory (Lamb and Lars: two), on the calling
 * thread's OpenMP team; small steps run on the calling thread alone. The result does not depend on
 * the number of threads or the instruction set. Returns 0 or a code that is common to all
 * operators.
 *
 * w: weight, g: gradient (negated if maximize), t: step from 1. All formulas are torch.optim's
 * where it has the optimizer. Terms with a weight decay of 0 are left out, so that 0 * Inf makes no
 * NaN. */

/* g += weight_decay w; b = g if fresh, else momentum b + (1 - dampening) g;
 * w -= lr (nesterov ? g + momentum b : b). With momentum 0: w -= lr g, and `first` is not used. */
XK_API int32_t xk_sgd(const xk_tensors* tensors, double lr, double momentum, double dampening,
                      double weight_decay, int32_t nesterov);

/* g += weight_decay w; s += g^2; w -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps). */
XK_API int32_t xk_adagrad(const xk_tensors* tensors, double lr, double lr_decay,
                          double weight_decay, double eps);

/* decoupled (AdamW): w -= lr weight_decay w, otherwise g += weight_decay w;
 * m += (1 - beta1) (g - m); v = beta2 v + (1 - beta2) g^2;
 * w -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps). */
XK_API int32_t xk_adam(const xk_tensors* tensors, double lr, double beta1, double beta2, double eps,
                       double weight_decay, int32_t decoupled);

/* Lamb (https://arxiv.org/abs/1904.00962): m and v as Adam;
 * u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w; w -= lr r u, where
 * r = |w| / |u| for each entry, or 1 if a norm is 0 or `adaptive` is 0. */
XK_API int32_t xk_lamb(const xk_tensors* tensors, double lr, double beta1, double beta2, double eps,
                       double weight_decay, int32_t adaptive);

/* Lars (https://arxiv.org/abs/1708.03888): SGD on the gradient r (g + weight_decay w), where
 * r = trust |w| / (|g| + weight_decay |w| + eps) for each entry, or 1 if a norm is 0 or `adaptive`
 * is 0. */
XK_API int32_t xk_lars(const xk_tensors* tensors, double lr, double momentum, double dampening,
                       double weight_decay, int32_t nesterov, double trust, double eps,
                       int32_t adaptive);
