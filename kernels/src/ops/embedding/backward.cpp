// SPDX-License-Identifier: Apache-2.0
//
// Gradients with respect to the weights, and updates by them. Each named row is visited once.
#include <string.h>

#include "ops/embedding/grouping.h"
#include "ops/optimizer/kernels.h"

namespace {

using namespace xkernels;

// Rows to write are prefetched so many entries before.
constexpr int64_t kEntriesAhead = 6;

// Entries of a row that are added at a time.
constexpr int64_t kFactors = 512;

// Some columns of a named row of a table, with the gradient.
struct NamedRow {
  const Table& table;
  int64_t row;
  int64_t number;  // among the named rows of its table, ascending
  int64_t column;
  int columns;
  float* gradient;
};

// Computes the gradients of a part's rows: calls visit(NamedRow) for each, and fetch(row, column,
// columns) some rows before.
class Rows {
 public:
  Rows(const xk_bags& bags, const Grouping& grouping, const EmbeddingKernels& kernels,
       const Part& part)
      : bags_(bags),
        grouping_(grouping),
        kernels_(kernels),
        part_(part),
        table_(bags, part.table),
        width_(width_of(bags.value_type)) {}

  template <typename Fetch, typename Visit>
  void visit(int64_t first_number, const Fetch& fetch, const Visit& visit_row) const {
    for (int64_t column = 0; column < table_.fields.dim; column += kColumns) {
      const int64_t left = table_.fields.dim - column;
      const int columns = left < kColumns ? static_cast<int>(left) : kColumns;
      int64_t number = first_number;
      int64_t fetched = part_.begin;
      for (int64_t entry = part_.begin; entry < part_.end; ++number) {
        const int64_t row = grouping_.row(entry);
        int64_t end = entry + 1;
        while (end < part_.end && grouping_.row(end) == row) ++end;
        for (; fetched < part_.end && fetched < end + kEntriesAhead; ++fetched) {
          if (fetched > part_.begin && grouping_.row(fetched) == grouping_.row(fetched - 1))
            continue;
          fetch(table_, grouping_.row(fetched), column, columns);
        }
        alignas(64) float sums[kColumns];
        if (bags_.mode == XK_BAG_MAX) {
          memset(sums, 0, sizeof(float) * static_cast<size_t>(columns));
          for (int64_t at = entry; at < end; ++at) add_where_largest(at, column, columns, sums);
        } else {
          for (int64_t at = entry; at < end; at += kFactors) {
            const int64_t count = end - at < kFactors ? end - at : kFactors;
            float factors[kFactors];
            for (int64_t i = 0; i < count && is_scaled(); ++i) factors[i] = factor_of(at + i);
            kernels_.add({result_gradient(0, column), table_.row_bytes, grouping_.bags(at), 0,
                          part_.end - at, is_scaled() ? factors : nullptr, static_cast<int>(count),
                          columns, bags_.value_type, XK_INT32, XK_FLOAT32},
                         at > entry, sums);
          }
        }
        visit_row(NamedRow{table_, row, number, column, columns, sums});
        entry = end;
      }
    }
  }

 private:
  bool is_scaled() const { return bags_.mode == XK_BAG_MEAN || table_.fields.factors != nullptr; }

  float factor_of(int64_t entry) const {
    const int64_t position = grouping_.position(entry), bag = *grouping_.bags(entry);
    if (bags_.mode == XK_BAG_MEAN) {
      return 1.0F / static_cast<float>(table_.begin(bag + 1) - table_.begin(bag));
    }
    float factor = 1;
    if (table_.fields.factors != nullptr) {
      const char* factors = static_cast<const char*>(table_.fields.factors);
      kernels_.load(factors + position * width_, bags_.value_type, 1, &factor);
    }
    return factor;
  }

  const char* result_gradient(int64_t bag, int64_t column) const {
    return static_cast<const char*>(table_.fields.output) + bag * table_.row_bytes +
           column * width_;
  }

  void add_where_largest(int64_t entry, int64_t column, int columns, float* sums) const {
    const int64_t position = grouping_.position(entry);
    const int64_t bag = *grouping_.bags(entry);
    const int32_t* largest = table_.fields.max_positions + bag * table_.fields.dim + column;
    kernels_.add_where(result_gradient(bag, column), bags_.value_type, largest,
                       static_cast<int32_t>(position), columns, sums);
  }

  const xk_bags& bags_;
  const Grouping& grouping_;
  const EmbeddingKernels& kernels_;
  const Part& part_;
  const Table table_;
  const int width_;
};

void fetch_for_writing(const void* matrix, const Table& table, int64_t row, int64_t column,
                       int columns, int width) {
  const int64_t first = (row * table.fields.dim + column) * width;
  const char* start = static_cast<const char*>(matrix) + first;
  for (int64_t byte = 0; byte < int64_t{columns} * width; byte += 64) {
    __builtin_prefetch(start + byte, 1);
  }
}

// Checks, groups the positions by row, and visits every named row.
template <typename Fetch, typename Visit>
int32_t visit_rows(const xk_bags* bags, BagNeeds needs, xk_bag_problem* problem, const Fetch& fetch,
                   const Visit& visit) {
  needs.output = needs.max_positions = true;
  const int32_t result = check_bags(bags, needs, problem);
  if (result != 0) return result;
  Grouping grouping;
  Buffer<int64_t> first_numbers;
  if (!grouping.make(*bags) || !first_numbers.allocate(grouping.part_count())) return XK_REFUSED;
  for (int64_t number = 0; number < bags->count; ++number) {
    bags->tables[number].gradient_row_count = 0;
  }
  for (int64_t number = 0; number < grouping.part_count(); ++number) {
    const Part& part = grouping.part(number);
    first_numbers[number] = bags->tables[part.table].gradient_row_count;
    bags->tables[part.table].gradient_row_count += part.row_count;
  }
  const EmbeddingKernels& kernels = *kernels_in_use<EmbeddingKernels>();
  run_tasks(grouping.part_count(), is_large(*bags), [&](int64_t number, int64_t) {
    const Rows rows(*bags, grouping, kernels, grouping.part(number));
    rows.visit(first_numbers[number], fetch, visit);
  });
  return 0;
}

// Stores the gradient of a row as row `to` of a table's gradients.
void store_gradient(const NamedRow& named, int64_t to, int32_t type) {
  const xk_bag_table& t = named.table.fields;
  char* gradients = static_cast<char*>(t.gradients) + named.column * width_of(type);
  kernels_in_use<EmbeddingKernels>()->store(named.gradient, 1, named.columns, type,
                                            gradients + to * named.table.row_bytes);
}

// Some columns of a row as a chunk of the optimizers' kernels.
Chunk chunk_of(const NamedRow& named, int32_t type) {
  const xk_bag_table& t = named.table.fields;
  const int64_t first = named.row * t.dim + named.column;
  const bool split = type == XK_BFLOAT16;
  Chunk chunk = {};
  chunk.weight = static_cast<char*>(t.weights) + first * width_of(type);
  chunk.remainder = split ? t.remainders + first : nullptr;
  chunk.gradient = named.gradient;
  chunk.first = t.state == nullptr ? nullptr : t.state + first;
  chunk.count = named.columns;
  chunk.weight_format = split ? XK_WEIGHTS_SPLIT : XK_WEIGHTS_FLOAT32;
  chunk.gradient_type = XK_FLOAT32;
  chunk.state_type = XK_FLOAT32;
  return chunk;
}

template <typename Update>
int32_t update(const xk_bags* bags, bool has_state, xk_bag_problem* problem, const Update& act) {
  BagNeeds needs = {};
  needs.weights = needs.written_weights = true;
  needs.state = has_state;
  const auto fetch = [=](const Table& table, int64_t row, int64_t column, int columns) {
    const xk_bag_table& t = table.fields;
    const int width = width_of(bags->value_type);
    fetch_for_writing(t.weights, table, row, column, columns, width);
    if (width == 2) fetch_for_writing(t.remainders, table, row, column, columns, 2);
    if (has_state) fetch_for_writing(t.state, table, row, column, columns, 4);
  };
  return visit_rows(bags, needs, problem, fetch, [&](const NamedRow& named) {
    act(*kernels_in_use<OptimizerKernels>(), chunk_of(named, bags->value_type));
  });
}

constexpr auto kFetchNothing = [](const Table&, int64_t, int64_t, int) {};

}  // namespace

int32_t xk_bags_dense_gradients(const xk_bags* bags, xk_bag_problem* problem) {
  BagNeeds needs = {};
  needs.gradients = true;
  return visit_rows(bags, needs, problem, kFetchNothing, [&](const NamedRow& named) {
    store_gradient(named, named.row, bags->value_type);
  });
}

int32_t xk_bags_sparse_gradients(const xk_bags* bags, xk_bag_problem* problem) {
  BagNeeds needs = {};
  needs.gradients = needs.gradient_rows = true;
  return visit_rows(bags, needs, problem, kFetchNothing, [&](const NamedRow& named) {
    named.table.fields.gradient_rows[named.number] = named.row;
    store_gradient(named, named.number, bags->value_type);
  });
}

int32_t xk_bags_sgd(const xk_bags* bags, double lr, double momentum, double weight_decay,
                    xk_bag_problem* problem) {
  const Sgd sgd = {fp32(lr), fp32(momentum), 1.0F, fp32(weight_decay), 1.0F, false, false};
  return update(
      bags, momentum != 0, problem,
      [&](const OptimizerKernels& kernels, const Chunk& chunk) { kernels.sgd(chunk, sgd); });
}

int32_t xk_bags_adagrad(const xk_bags* bags, double lr, double eps, xk_bag_problem* problem) {
  const Adagrad adagrad = {fp32(lr), 0.0F, fp32(eps)};
  return update(bags, true, problem, [&](const OptimizerKernels& kernels, const Chunk& chunk) {
    kernels.adagrad(chunk, adagrad);
  });
}
