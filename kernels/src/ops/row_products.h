// SPDX-License-Identifier: Apache-2.0
//
// How products of rows of weights divide their work: row_products.isa.inc.
#pragma once

#include <stdint.h>

#include "ops/team.h"
#include "xkernels/weights.h"

namespace xkernels {

// Rows of weights that are multiplied at once.
constexpr int64_t kRowsAtOnce = 4;

// Rows of activations are padded to multiples of this, with zeros: at least a vector, and whole
// groups of rows.
constexpr int64_t kPadding = 16;

// Static: objects for different instruction sets must not share these.
static constexpr int64_t padded_size(int64_t size) { return round_up(size, kPadding); }
static constexpr int64_t row_groups(int64_t rows) { return divide_up(rows, kRowsAtOnce); }

// Whether a number stands for a type of activations and biases.
static inline bool is_value_type(int32_t type) { return type == XK_FLOAT32 || type == XK_BFLOAT16; }

static inline bool is_packed_type(int32_t type) { return type == XK_PACKED8 || type == XK_PACKED4; }

constexpr int64_t kGroup = XK_WEIGHT_GROUP;

static constexpr int64_t group_count(int64_t inputs) { return divide_up(inputs, kGroup); }

// Activations as integers, for products with packed weights: each is `values` times the scale of
// its group. Both are padded to what the widest vectors read at once.
struct Integers {
  int16_t* values;  // (count, integer_size): for XK_PACKED4 in an order of the instruction set
  float* scales;    // (count, scale_size)
};

static constexpr int64_t scale_size(int64_t inputs) { return round_up(group_count(inputs), 16); }
static constexpr int64_t integer_size(int64_t inputs) { return scale_size(inputs) * kGroup; }

// The code of what is wrong with a matrix of weights; 0 if it can be read.
static inline int32_t weights_problem(const xk_weights& weights) {
  if (weights.stride < 0) return XK_INVALID_SIZE;
  if (is_packed_type(weights.type)) {
    if (weights.stride != 0) return XK_INVALID_SIZE;
    return usable(weights.values, 2) && usable(weights.scales, 2) ? 0 : XK_INVALID_POINTER;
  }
  if (!is_value_type(weights.type)) return XK_INVALID_TYPE;
  return usable(weights.values, width_of(weights.type)) ? 0 : XK_INVALID_POINTER;
}

}  // namespace xkernels
