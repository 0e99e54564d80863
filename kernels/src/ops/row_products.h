// SPDX-License-Identifier: Apache-2.0
//
// How products of rows of weights divide their work: row_products.isa.inc.
#pragma once

#include <stdint.h>

namespace xkernels {

// Rows of weights that are multiplied at once.
constexpr int64_t kRowsAtOnce = 4;

// Rows of activations are padded to multiples of this, with zeros: at least a vector, and whole
// groups of rows.
constexpr int64_t kPadding = 16;

// Static: objects for different instruction sets must not share these.
static constexpr int64_t padded_size(int64_t size) {
  return (size + kPadding - 1) / kPadding * kPadding;
}
static constexpr int64_t row_groups(int64_t rows) { return (rows + kRowsAtOnce - 1) / kRowsAtOnce; }

}  // namespace xkernels
