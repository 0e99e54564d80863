// SPDX-License-Identifier: Apache-2.0
//
// What reads rows of the tables: results of bags, and gradients with respect to the factors.
#include "ops/embedding/bags.h"

namespace {

using namespace xkernels;

// More tasks than threads: a thread that starts late or is slow gets fewer.
constexpr int kTasksPerThread = 8;

int columns_from(const Table& table, int64_t column) {
  const int64_t left = table.fields.dim - column;
  return left < kColumns ? static_cast<int>(left) : kColumns;
}

// The cost of a table's first bags: values that are read and written.
int64_t cost_before(const Table& table, int64_t bag) {
  const int64_t positions = bag == table.fields.bags ? table.end() : table.begin(bag);
  return (positions + bag) * table.fields.dim;
}

// Calls visit(table, first bag, end of the bags) so that each bag is visited once and the tasks of
// the team are of equal cost.
template <typename Visit>
void visit_bags(const xk_bags& bags, const Visit& visit) {
  int64_t total = 0;
  for (int64_t number = 0; number < bags.count; ++number) {
    const Table table(bags, number);
    total += cost_before(table, table.fields.bags);
  }
  const bool parallel = total >= kBagGrain;
  const int64_t tasks = parallel ? int64_t{omp_get_max_threads()} * kTasksPerThread : 1;
  run_tasks(tasks, parallel, [&](int64_t task, int64_t) {
    const int64_t share = total / tasks + 1;
    const int64_t begin = task * share, end = begin + share;
    int64_t before = 0;
    for (int64_t number = 0; number < bags.count && before < end; ++number) {
      const Table table(bags, number);
      const auto cost = [&](int64_t bag) { return before + cost_before(table, bag); };
      const int64_t first = table.first_bag(begin, cost), last = table.first_bag(end, cost);
      if (first < last) visit(table, first, last);
      before = cost(table.fields.bags);
    }
  });
}

// One column block of some bags of a table.
class Reduction {
 public:
  Reduction(const xk_bags& bags, const Table& table, const EmbeddingKernels& kernels,
            int64_t column)
      : table_(table),
        kernels_(kernels),
        mode_(bags.mode),
        type_(bags.value_type),
        index_type_(bags.index_type),
        width_(width_of(bags.value_type)),
        column_(column),
        columns_(columns_from(table, column)) {}

  void reduce(int64_t first, int64_t last) const {
    for (int64_t bag = first, begin = table_.begin(first); bag < last; ++bag) {
      const int64_t end = table_.begin(bag + 1);
      if (mode_ == XK_BAG_MAX) {
        maximize(bag, begin, end);
      } else {
        add(bag, begin, end);
      }
      begin = end;
    }
  }

 private:
  NamedRows rows(int64_t begin, int64_t end) const {
    const xk_bag_table& t = table_.fields;
    const char* start = static_cast<const char*>(t.weights) + column_ * width_;
    return {start,
            table_.row_bytes,
            t.indices,
            begin,
            t.index_count,
            t.factors,
            static_cast<int>(end - begin),
            columns_,
            type_,
            index_type_,
            type_};
  }

  void add(int64_t bag, int64_t begin, int64_t end) const {
    // Results in fp32 are summed in place.
    alignas(64) float buffer[kColumns];
    float* sums = type_ == XK_FLOAT32 ? reinterpret_cast<float*>(result(bag)) : buffer;
    kernels_.add(rows(begin, end), false, sums);
    const bool divided = mode_ == XK_BAG_MEAN && end > begin;
    kernels_.store(sums, divided ? static_cast<float>(end - begin) : 1.0F, columns_, type_,
                   result(bag));
  }

  void maximize(int64_t bag, int64_t begin, int64_t end) const {
    const xk_bag_table& t = table_.fields;
    int32_t unused[kColumns];
    int32_t* positions =
        t.max_positions == nullptr ? unused : t.max_positions + bag * t.dim + column_;
    alignas(64) float values[kColumns];
    for (int c = 0; c < columns_ && begin == end; ++c) {
      values[c] = 0;
      positions[c] = -1;
    }
    kernels_.maximize(rows(begin, end), values, positions);
    kernels_.store(values, 1, columns_, type_, result(bag));
  }

  char* result(int64_t bag) const {
    return static_cast<char*>(table_.fields.output) + bag * table_.row_bytes + column_ * width_;
  }

  const Table& table_;
  const EmbeddingKernels& kernels_;
  const int32_t mode_;
  const int32_t type_;
  const int32_t index_type_;
  const int width_;
  const int64_t column_;
  const int columns_;
};

// Gradients of the factors of the positions [begin, end), which are in bag `bag` and the following.
void factor_gradients(const xk_bags& bags, const Table& table, const EmbeddingKernels& kernels,
                      int64_t first, int64_t last) {
  const xk_bag_table& t = table.fields;
  const int32_t type = bags.value_type;
  const int width = width_of(type);
  const char* weights = static_cast<const char*>(t.weights);
  const int64_t stop = table.begin(last);
  for (int64_t bag = first, at = table.begin(first); bag < last; ++bag) {
    const int64_t end = table.begin(bag + 1);
    const char* other = static_cast<const char*>(t.output) + bag * table.row_bytes;
    for (; at < end; ++at) {
      const char* row = weights + table.row(at) * table.row_bytes;
      if (at + kAhead < stop) {
        const char* later = weights + table.row(at + kAhead) * table.row_bytes;
        for (int64_t byte = 0; byte < table.row_bytes; byte += 64) __builtin_prefetch(later + byte);
      }
      float sum = 0;
      for (int64_t column = 0; column < t.dim; column += kColumns) {
        const int64_t skipped = column * width;
        sum += kernels.dot(row + skipped, other + skipped, type, columns_from(table, column));
      }
      kernels.store(&sum, 1, 1, type, static_cast<char*>(t.gradients) + at * width);
    }
  }
}

}  // namespace

int32_t xk_bags_forward(const xk_bags* bags, xk_bag_problem* problem) {
  BagNeeds needs = {};
  needs.weights = needs.output = true;
  const int32_t result = check_bags(bags, needs, problem);
  if (result != 0) return result;
  const EmbeddingKernels& kernels = *kernels_in_use<EmbeddingKernels>();
  visit_bags(*bags, [&](const Table& table, int64_t first, int64_t last) {
    for (int64_t column = 0; column < table.fields.dim; column += kColumns) {
      Reduction(*bags, table, kernels, column).reduce(first, last);
    }
  });
  return 0;
}

int32_t xk_bags_factor_gradients(const xk_bags* bags, xk_bag_problem* problem) {
  BagNeeds needs = {};
  needs.weights = needs.output = needs.gradients = needs.factors = true;
  const int32_t result = check_bags(bags, needs, problem);
  if (result != 0) return result;
  const EmbeddingKernels& kernels = *kernels_in_use<EmbeddingKernels>();
  const int width = width_of(bags->value_type);
  visit_bags(*bags, [&](const Table& table, int64_t first, int64_t last) {
    factor_gradients(*bags, table, kernels, first, last);
  });
  for (int64_t number = 0; number < bags->count; ++number) {
    const Table table(*bags, number);
    char* rest = static_cast<char*>(table.fields.gradients) + table.end() * width;
    const int64_t bytes = (table.fields.index_count - table.end()) * width;
    for (int64_t byte = 0; byte < bytes; ++byte) rest[byte] = 0;
  }
  return 0;
}
