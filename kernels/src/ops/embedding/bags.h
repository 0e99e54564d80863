// SPDX-License-Identifier: Apache-2.0
//
// What the functions of embedding bags share: reading indices, checks, memory, tasks, windows.
#pragma once

#include "ops/embedding/kernels.h"
#include "ops/team.h"

namespace xkernels {

// Calls that read fewer values run on the calling thread: waking a team takes longer.
constexpr int64_t kBagGrain = 32768;

inline int64_t number_at(const void* numbers, int32_t type, int64_t at) {
  return type == XK_INT64 ? static_cast<const int64_t*>(numbers)[at]
                          : static_cast<const int32_t*>(numbers)[at];
}

// One table whose indices and offsets are valid.
class Table {
 public:
  Table(const xk_bags& bags, int64_t number)
      : fields(bags.tables[number]),
        row_bytes(fields.dim * width_of(bags.value_type)),
        index_type_(bags.index_type),
        length_(fields.bags == 0 ? 0 : fields.index_count / fields.bags) {}

  const xk_bag_table& fields;
  const int64_t row_bytes;

  // The position at which a bag begins; begin(fields.bags) is the end of the last one.
  int64_t begin(int64_t bag) const {
    if (fields.offsets == nullptr) return bag * length_;
    return bag < fields.bags ? number_at(fields.offsets, index_type_, bag) : fields.index_count;
  }
  // The number of positions that are in bags.
  int64_t end() const { return fields.bags == 0 ? 0 : begin(fields.bags); }
  int64_t row(int64_t position) const { return number_at(fields.indices, index_type_, position); }
  // Of the non-decreasing numbers cost(0), cost(1), ... cost(bags): the first that is at least
  // `wanted`, or `bags`.
  template <typename Cost>
  int64_t first_bag(int64_t wanted, Cost cost) const {
    int64_t low = 0, high = fields.bags;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (cost(middle) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

 private:
  const int32_t index_type_;
  const int64_t length_;  // of each bag, without offsets
};

// Checks arguments, then all indices and offsets. `needs` says which fields the function uses.
struct BagNeeds {
  bool weights, written_weights, factors, output, max_positions, gradients, gradient_rows, state;
};
int32_t check_bags(const xk_bags* bags, BagNeeds needs, xk_bag_problem* problem);

// Whether a call is worth a team.
bool is_large(const xk_bags& bags);

}  // namespace xkernels
