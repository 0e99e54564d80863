// SPDX-License-Identifier: Apache-2.0
//
// Checks of all arguments of embedding bags, before a row is read or anything is written.
#include "ops/embedding/bags.h"

namespace xkernels {
namespace {

constexpr int64_t kLargest = INT32_MAX;

// Indices that one task checks.
constexpr int64_t kCheckedAtATime = 65536;

bool usable(const void* pointer, int64_t count, int width) {
  if (count == 0) return true;
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % width == 0;
}

bool usable_if(bool needed, const void* pointer, int64_t count, int width) {
  return !needed || usable(pointer, count, width);
}

bool valid_table(const xk_bags& bags, const xk_bag_table& t, BagNeeds needs) {
  const int64_t sizes[] = {t.rows, t.index_count, t.bags};
  for (const int64_t size : sizes) {
    if (size < 0 || size > kLargest) return false;
  }
  // Products of sizes then fit, also in bytes.
  if (t.dim < 1 || t.dim > kLargest) return false;
  const int width = value_width(bags.value_type);
  const int index_width = bags.index_type == XK_INT64 ? 8 : 4;
  if (!usable(t.indices, t.index_count, index_width)) return false;
  const int64_t offsets = t.bags + (bags.include_last_offset != 0 ? 1 : 0);
  if (t.offsets != nullptr) {
    if (!usable(t.offsets, offsets, index_width)) return false;
  } else if (bags.include_last_offset != 0) {
    return false;
  } else if (t.bags == 0 ? t.index_count != 0 : t.index_count % t.bags != 0) {
    return false;
  }
  const int64_t table_size = t.rows * t.dim, bags_size = t.bags * t.dim;
  const int64_t named = t.rows < t.index_count ? t.rows : t.index_count;
  const int64_t gradients = needs.factors         ? t.index_count
                            : needs.gradient_rows ? named * t.dim
                                                  : table_size;
  if (t.factors != nullptr) {
    if (bags.mode != XK_BAG_SUM || !usable(t.factors, t.index_count, width)) return false;
  }
  const bool split = needs.written_weights && bags.value_type == XK_BFLOAT16;
  return usable_if(needs.weights, t.weights, table_size, width) &&
         usable_if(split, t.remainders, table_size, 2) &&
         usable_if(needs.output, t.output, bags_size, width) &&
         usable_if(needs.max_positions && bags.mode == XK_BAG_MAX, t.max_positions, bags_size, 4) &&
         usable_if(needs.gradients, t.gradients, gradients, width) &&
         usable_if(needs.gradient_rows, t.gradient_rows, named, 8) &&
         usable_if(needs.state, t.state, table_size, 4);
}

bool valid(const xk_bags* bags, BagNeeds needs) {
  if (bags == nullptr || bags->count < 0 || (bags->count > 0 && bags->tables == nullptr)) {
    return false;
  }
  const int32_t type = bags->value_type;
  if (type != XK_FLOAT32 && type != XK_BFLOAT16 && type != XK_FLOAT16) return false;
  if (needs.written_weights && type == XK_FLOAT16) return false;
  if (bags->index_type != XK_INT32 && bags->index_type != XK_INT64) return false;
  if (bags->mode < XK_BAG_SUM || bags->mode > XK_BAG_MAX) return false;
  if (needs.factors && bags->mode != XK_BAG_SUM) return false;
  for (int64_t number = 0; number < bags->count; ++number) {
    if (!valid_table(*bags, bags->tables[number], needs)) return false;
  }
  return true;
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

// The first invalid offset of a table.
xk_bag_problem offset_problem(const xk_bags& bags, int64_t number) {
  const xk_bag_table& t = bags.tables[number];
  xk_bag_problem problem = {number, 0, 0, XK_BAG_PROBLEM_NONE};
  if (t.offsets == nullptr) return problem;
  const int64_t offsets = t.bags + (bags.include_last_offset != 0 ? 1 : 0);
  int64_t before = 0;
  for (int64_t at = 0; at < offsets && problem.kind == XK_BAG_PROBLEM_NONE; ++at) {
    const int64_t offset = number_at(t.offsets, bags.index_type, at);
    problem.position = at;
    problem.value = offset;
    if (at == 0 && offset != 0) {
      problem.kind = XK_BAG_PROBLEM_FIRST;
    } else if (offset < before) {
      problem.kind = XK_BAG_PROBLEM_DECREASING;
    } else if (offset > t.index_count) {
      problem.kind = XK_BAG_PROBLEM_BEYOND;
    } else if (at == t.bags && offset != t.index_count) {
      problem.kind = XK_BAG_PROBLEM_LAST;
    }
    before = offset;
  }
  return problem;
}

// The first invalid offset or index of a table.
xk_bag_problem first_problem(const xk_bags& bags, int64_t number) {
  xk_bag_problem problem = offset_problem(bags, number);
  if (problem.kind != XK_BAG_PROBLEM_NONE) return problem;
  const xk_bag_table& t = bags.tables[number];
  for (int64_t at = 0; at < t.index_count; ++at) {
    if (indices_in_range(bags, number, at, at + 1)) continue;
    return {number, at, number_at(t.indices, bags.index_type, at), XK_BAG_PROBLEM_INDEX};
  }
  return problem;
}

bool values_valid(const xk_bags& bags, bool parallel) {
  int32_t invalid = 0;
  const auto check = [&bags, &invalid](int64_t number) {
    const xk_bag_table& t = bags.tables[number];
    bool right = offset_problem(bags, number).kind == XK_BAG_PROBLEM_NONE;
    right = right && indices_in_range(bags, number, 0, t.index_count);
    if (!right) __atomic_store_n(&invalid, 1, __ATOMIC_RELAXED);
  };
  if (!parallel || bags.count >= omp_get_max_threads()) {
    run_tasks(bags.count, parallel, check);
    return invalid == 0;
  }
  // Few tables: each in pieces.
  for (int64_t number = 0; number < bags.count; ++number) {
    const int64_t count = bags.tables[number].index_count;
    if (offset_problem(bags, number).kind != XK_BAG_PROBLEM_NONE) return false;
    run_tasks((count + kCheckedAtATime - 1) / kCheckedAtATime, true, [&](int64_t task) {
      const int64_t begin = task * kCheckedAtATime;
      const int64_t end = count - begin < kCheckedAtATime ? count : begin + kCheckedAtATime;
      if (!indices_in_range(bags, number, begin, end)) {
        __atomic_store_n(&invalid, 1, __ATOMIC_RELAXED);
      }
    });
  }
  return invalid == 0;
}

#define XK_ENTRY(suffix, name) &embedding_##suffix,
constexpr const EmbeddingKernels* kImplementations[] = {XK_EACH_ISA(XK_ENTRY)};
#undef XK_ENTRY

}  // namespace

const EmbeddingKernels* embedding_kernels() {
  const int isa = isa_index();
  return isa < 0 ? nullptr : kImplementations[isa];
}

bool is_large(const xk_bags& bags) {
  int64_t values = 0;
  for (int64_t number = 0; number < bags.count; ++number) {
    const xk_bag_table& t = bags.tables[number];
    values += (t.index_count + t.bags) * t.dim;
  }
  return values >= kBagGrain;
}

int32_t check_bags(const xk_bags* bags, BagNeeds needs, xk_bag_problem* problem) {
  if (problem != nullptr) *problem = {0, 0, 0, XK_BAG_PROBLEM_NONE};
  if (!valid(bags, needs)) return XK_INVALID_ARGUMENT;
  if (embedding_kernels() == nullptr) return XK_NO_ISA;
  if (values_valid(*bags, is_large(*bags))) return 0;
  for (int64_t number = 0; problem != nullptr && number < bags->count; ++number) {
    *problem = first_problem(*bags, number);
    if (problem->kind != XK_BAG_PROBLEM_NONE) break;
  }
  return XK_INVALID_ARGUMENT;
}

}  // namespace xkernels
