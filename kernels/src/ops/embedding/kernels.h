// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set implements of embedding bags: loops over the columns of some rows.
#pragma once

#include <stdint.h>

#include "dispatch/isa.h"
#include "xkernels/embedding.h"

namespace xkernels {

// Columns that are computed at a time: their fp32 buffer fits into the first-level cache.
constexpr int kColumns = 512;

// A row is prefetched so many rows before it is read.
constexpr int kAhead = 16;

// Some columns of the rows of a matrix that indices name.
struct NamedRows {
  const char* table;    // the first of these columns in row 0
  int64_t row_bytes;    // from a row to the next
  const void* indices;  // of index_type; rows named from first + count on are only prefetched
  int64_t first;
  int64_t index_count;  // at least first + count
  const void* factors;  // of factor_type, one for each index, or nullptr: 1
  int count;
  int columns;  // at most kColumns
  int32_t type;
  int32_t index_type;
  int32_t factor_type;  // type, or XK_FLOAT32
};

struct EmbeddingKernels {
  // sums[c] = (more ? sums[c] : 0) + factor row[c] + factor row[c] + ...
  void (*add)(const NamedRows&, bool more, float* sums);
  // The largest value of each column, and its position among the indices.
  void (*maximize)(const NamedRows&, float* values, int32_t* positions);
  // sums[c] += row[c] where positions[c] == position.
  void (*add_where)(const void* row, int32_t type, const int32_t* positions, int32_t position,
                    int columns, float* sums);
  // Divides, and stores unless the values are there already.
  void (*store)(float* values, float divisor, int columns, int32_t type, void* to);
  // Sum of the products of two rows of the same type.
  float (*dot)(const void* row, const void* other, int32_t type, int columns);
  // Factors as fp32.
  void (*load)(const void* from, int32_t type, int n, float* to);
};

XK_DECLARE_KERNELS(EmbeddingKernels)

}  // namespace xkernels
