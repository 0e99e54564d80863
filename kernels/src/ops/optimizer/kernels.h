// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of the optimizers: updates of one chunk of one tensor.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "xkernels/optimizer.h"

namespace xkernels {

// Elements whose squares are added in fp32, and whose random numbers have one key, which is made of
// the number of the block in its tensor.
constexpr int kBlockSize = 256;

// Part of one tensor. It begins at a multiple of kBlockSize.
struct Chunk {
  void* weight;
  int16_t* remainder;
  const void* gradient;
  void* first;
  void* second;
  int64_t count;
  int64_t first_block;
  uint64_t key;  // random numbers: differs between calls and between tensors
  int32_t weight_format;
  int32_t gradient_type;
  int32_t state_type;
  bool maximize;
};

// An option as the kernels compute with it.
static constexpr float fp32(double option) { return static_cast<float>(option); }

struct Sgd {
  float lr, momentum, undampened, weight_decay;  // undampened: 1 - dampening
  float gradient_scale;                          // after weight decay; 1 except for Lars
  bool nesterov, fresh;
};

struct Adagrad {
  float rate, weight_decay, eps;
};

// Scales are reciprocals of the bias corrections: multiplying is much faster than dividing.
struct Adam {
  float rate, beta2, one_minus_beta1, one_minus_beta2, root_scale, eps;
  float weight_decay;  // coupled
  float keep;          // decoupled weight decay: the weights are multiplied by it; 1: not at all
};

struct Lamb {
  float beta2, one_minus_beta1, one_minus_beta2, first_scale, second_scale, eps, weight_decay;
};

struct SquaredNorms {
  double weights, updates;
};

struct OptimizerKernels {
  void (*sgd)(const Chunk&, const Sgd&);
  void (*adagrad)(const Chunk&, const Adagrad&);
  void (*adam)(const Chunk&, const Adam&);
  // Updates the moments; returns the norms of the weights and of u.
  SquaredNorms (*lamb_moments)(const Chunk&, const Lamb&);
  // w -= rate u, from the moments as they are stored.
  void (*lamb_weights)(const Chunk&, const Lamb&, float rate);
  // Norms of weights and gradients.
  SquaredNorms (*norms)(const Chunk&);
};

XK_DECLARE_KERNELS(OptimizerKernels)

}  // namespace xkernels
