// SPDX-License-Identifier: Apache-2.0
//
// Checks of all arguments of embedding bags, before a row is read or anything is written.
#include "ops/embedding/bags.h"

namespace xkernels {
namespace {

constexpr int64_t kLargest = INT32_MAX;

// Indices that one task checks.
constexpr int64_t kCheckedAtATime = 65536;

bool usable_if(bool needed, const void* pointer, int64_t count, int64_t width) {
  return !needed || usable(pointer, width, count);
}

int32_t table_problem(const xk_bags& bags, const xk_bag_table& t, BagNeeds needs) {
  const int64_t sizes[] = {t.rows, t.index_count, t.bags, t.dim};
  // Products of sizes then fit, also in bytes.
  for (const int64_t size : sizes) {
    if (size < 0 || size > kLargest) return XK_INVALID_SIZE;
  }
  const bool ends = bags.include_last_offset != 0;
  const bool even = !ends && (t.bags == 0 ? t.index_count == 0 : t.index_count % t.bags == 0);
  if (t.dim < 1 || (t.offsets == nullptr && !even)) return XK_INVALID_SIZE;
  if (t.factors != nullptr && bags.mode != XK_BAG_SUM) return XK_INVALID_MODE;
  const int64_t width = width_of(bags.value_type);
  const int64_t index_width = bags.index_type == XK_INT64 ? 8 : 4;
  const int64_t table_size = t.rows * t.dim, bags_size = t.bags * t.dim;
  const int64_t named = t.rows < t.index_count ? t.rows : t.index_count;
  const int64_t gradients = needs.factors         ? t.index_count
                            : needs.gradient_rows ? named * t.dim
                                                  : table_size;
  const bool split = needs.written_weights && bags.value_type == XK_BFLOAT16;
  const bool valid =
      usable(t.indices, index_width, t.index_count) &&
      usable_if(t.offsets != nullptr, t.offsets, t.bags + (ends ? 1 : 0), index_width) &&
      usable_if(t.factors != nullptr, t.factors, t.index_count, width) &&
      usable_if(needs.weights, t.weights, table_size, width) &&
      usable_if(split, t.remainders, table_size, 2) &&
      usable_if(needs.output, t.output, bags_size, width) &&
      usable_if((needs.max_positions && bags.mode == XK_BAG_MAX) || t.max_positions != nullptr,
                t.max_positions, bags_size, 4) &&
      usable_if(needs.gradients, t.gradients, gradients, width) &&
      usable_if(needs.gradient_rows, t.gradient_rows, named, 8) &&
      usable_if(needs.state, t.state, table_size, 4);
  return valid ? 0 : XK_INVALID_POINTER;
}

int32_t problem_of(const xk_bags* bags, BagNeeds needs, xk_bag_problem* place) {
  if (bags == nullptr) return XK_INVALID_POINTER;
  if (bags->count < 0) return XK_INVALID_SIZE;
  if (bags->count > 0 && bags->tables == nullptr) return XK_INVALID_POINTER;
  const int32_t type = bags->value_type;
  if (type < XK_FLOAT32 || type > XK_FLOAT16) return XK_INVALID_TYPE;
  if (needs.written_weights && type == XK_FLOAT16) return XK_INVALID_TYPE;
  if (bags->index_type != XK_INT32 && bags->index_type != XK_INT64) return XK_INVALID_TYPE;
  if (bags->mode < XK_BAG_SUM || bags->mode > XK_BAG_MAX) return XK_INVALID_MODE;
  if (needs.factors && bags->mode != XK_BAG_SUM) return XK_INVALID_MODE;
  int32_t problem = 0;
  for (int64_t number = 0; number < bags->count && problem == 0; ++number) {
    *place = {number, 0, 0};
    problem = table_problem(*bags, bags->tables[number], needs);
  }
  return problem;
}

// Whether all are from 0 to rows - 1: just then neither the index nor rows - 1 - index is negative.
template <typename Index>
bool in_range(const void* indices, int64_t begin, int64_t end, int64_t rows) {
  const Index* first = static_cast<const Index*>(indices);
  uint64_t bits = 0;
  for (int64_t at = begin; at < end; ++at) {
    const uint64_t index = static_cast<uint64_t>(static_cast<int64_t>(first[at]));
    bits |= index | (static_cast<uint64_t>(rows - 1) - index);
  }
  return static_cast<int64_t>(bits) >= 0;
}

bool indices_in_range(const xk_bags& bags, int64_t number, int64_t begin, int64_t end) {
  const xk_bag_table& t = bags.tables[number];
  return bags.index_type == XK_INT64 ? in_range<int64_t>(t.indices, begin, end, t.rows)
                                     : in_range<int32_t>(t.indices, begin, end, t.rows);
}

// The first invalid offset of a table, which is written to `problem`.
int32_t offset_problem(const xk_bags& bags, int64_t number, xk_bag_problem* problem) {
  const xk_bag_table& t = bags.tables[number];
  if (t.offsets == nullptr) return 0;
  const int64_t offsets = t.bags + (bags.include_last_offset != 0 ? 1 : 0);
  int64_t before = 0;
  for (int64_t at = 0; at < offsets; ++at) {
    const int64_t offset = number_at(t.offsets, bags.index_type, at);
    *problem = {number, at, offset};
    if (at == 0 && offset != 0) return XK_INVALID_FIRST_OFFSET;
    if (offset < before) return XK_DECREASING_OFFSET;
    if (offset > t.index_count) return XK_LARGE_OFFSET;
    if (at == t.bags && offset != t.index_count) return XK_INVALID_LAST_OFFSET;
    before = offset;
  }
  return 0;
}

// The first invalid offset or index of all tables, which is written to `problem`.
int32_t first_problem(const xk_bags& bags, xk_bag_problem* problem) {
  for (int64_t number = 0; number < bags.count; ++number) {
    const int32_t of_offsets = offset_problem(bags, number, problem);
    if (of_offsets != 0) return of_offsets;
    const xk_bag_table& t = bags.tables[number];
    for (int64_t at = 0; at < t.index_count; ++at) {
      if (indices_in_range(bags, number, at, at + 1)) continue;
      *problem = {number, at, number_at(t.indices, bags.index_type, at)};
      return XK_INVALID_INDEX;
    }
  }
  return 0;
}

// Tables are checked side by side, and each in pieces: there may be few of them.
bool values_valid(const xk_bags& bags) {
  int64_t pieces = 1;
  for (int64_t number = 0; number < bags.count; ++number) {
    const int64_t wanted = bags.tables[number].index_count / kCheckedAtATime + 1;
    if (wanted > pieces) pieces = wanted;
  }
  int32_t invalid = 0;
  run_tasks(bags.count * pieces, is_large(bags), [&](int64_t task, int64_t) {
    const int64_t number = task / pieces, piece = task % pieces;
    const Share share = share_of(bags.tables[number].index_count, piece, pieces);
    xk_bag_problem ignored;
    if (!indices_in_range(bags, number, share.begin, share.end) ||
        (piece == 0 && offset_problem(bags, number, &ignored) != 0)) {
      __atomic_store_n(&invalid, 1, __ATOMIC_RELAXED);
    }
  });
  return invalid == 0;
}

}  // namespace

bool is_large(const xk_bags& bags) {
  int64_t values = 0;
  for (int64_t number = 0; number < bags.count; ++number) {
    const xk_bag_table& t = bags.tables[number];
    values += (t.index_count + t.bags) * t.dim;
  }
  return values >= kBagGrain;
}

int32_t check_bags(const xk_bags* bags, BagNeeds needs, xk_bag_problem* problem) {
  xk_bag_problem ignored;
  if (problem == nullptr) problem = &ignored;
  const int32_t of_arguments = checked<EmbeddingKernels>(problem_of(bags, needs, problem));
  if (of_arguments != 0) return of_arguments;
  return values_valid(*bags) ? 0 : first_problem(*bags, problem);
}

}  // namespace xkernels
