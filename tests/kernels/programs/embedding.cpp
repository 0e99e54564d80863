// SPDX-License-Identifier: Apache-2.0
//
// Every function of embedding bags on blocks that end where their memory ends, for AddressSanitizer
// and UndefinedBehaviorSanitizer. Prints the instruction set and a checksum of all results.
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "xkernels.h"

namespace {

struct Size {
  int64_t rows, dim, count, bags;
};
constexpr Size kSizes[] = {{50, 33, 60, 7},   {1, 1, 5, 2},    {9, 130, 0, 3},
                           {400, 600, 90, 9}, {3, 16, 700, 1}, {70000, 3, 20000, 100}};
constexpr int64_t kTables = sizeof(kSizes) / sizeof(kSizes[0]);

uint64_t sum = 0xcbf29ce484222325u;

// FNV-1a.
void add_to_sum(const void* block, size_t size) {
  const unsigned char* bytes = static_cast<const unsigned char*>(block);
  for (size_t i = 0; i < size; ++i) sum = (sum ^ bytes[i]) * 0x100000001b3u;
}

// A heap allocation of exactly its size, of random values.
class Block {
 public:
  Block(std::mt19937& random, int64_t count, int width)
      : size_(static_cast<size_t>(count * width)), bytes_(new unsigned char[size_]) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) {
      const float value = std::fabs(normal(random));
      unsigned char four[4];
      memcpy(four, &value, 4);
      // As fp16, the upper half of an fp32 value is a number, too.
      memcpy(bytes_.get() + i * width, four + 4 - width, static_cast<size_t>(width));
    }
  }
  void* data() const { return bytes_.get(); }
  void sum_up() const { add_to_sum(data(), size_); }

 private:
  size_t size_;
  std::unique_ptr<unsigned char[]> bytes_;
};

struct Case {
  int32_t value_type, index_type, mode;
  bool offsets, factors, last_offset;
};

// The memory of one table.
struct Table {
  Table(std::mt19937& random, const Size& size, const Case& one)
      : wide(one.index_type == XK_INT64),
        width(one.value_type == XK_FLOAT32 ? 4 : 2),
        count(one.offsets ? size.count : size.count / size.bags * size.bags),
        weights(random, size.rows * size.dim, width),
        factors(random, count, width),
        output(random, size.bags * size.dim, width),
        gradients(random, size.rows * size.dim > count ? size.rows * size.dim : count, width),
        remainders(random, size.rows * size.dim, 2),
        state(random, size.rows * size.dim, 4) {
    std::vector<int64_t> indices, offsets;
    for (int64_t i = 0; i < count; ++i) {
      indices.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(size.rows)));
    }
    for (int64_t bag = 0; bag < size.bags; ++bag) offsets.push_back(count * bag / size.bags);
    if (size.bags > 2) offsets[1] = offsets[2];
    if (one.last_offset) offsets.push_back(count);
    store(indices, &index_bytes);
    store(offsets, &offset_bytes);
    positions.reset(new int32_t[static_cast<size_t>(size.bags * size.dim)]);
    rows.reset(new int64_t[static_cast<size_t>(size.rows < count ? size.rows : count)]);
    fields.rows = size.rows;
    fields.dim = size.dim;
    fields.index_count = count;
    fields.bags = size.bags;
    fields.weights = weights.data();
    fields.indices = index_bytes.get();
    fields.offsets = one.offsets ? offset_bytes.get() : nullptr;
    fields.factors = one.factors ? factors.data() : nullptr;
    fields.output = output.data();
    fields.max_positions = positions.get();
    fields.gradients = gradients.data();
    fields.gradient_rows = rows.get();
    fields.remainders = static_cast<int16_t*>(remainders.data());
    fields.state = static_cast<float*>(state.data());
  }

  void store(const std::vector<int64_t>& numbers, std::unique_ptr<unsigned char[]>* to) const {
    const size_t each = wide ? 8 : 4;
    to->reset(new unsigned char[numbers.size() * each]);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int32_t narrow = static_cast<int32_t>(numbers[i]);
      memcpy(to->get() + i * each, wide ? static_cast<const void*>(&numbers[i]) : &narrow, each);
    }
  }

  bool wide;
  int width;
  int64_t count;
  Block weights, factors, output, gradients, remainders, state;
  std::unique_ptr<unsigned char[]> index_bytes, offset_bytes;
  std::unique_ptr<int32_t[]> positions;
  std::unique_ptr<int64_t[]> rows;
  xk_bag_table fields = {};
};

int calls = 0;

void expect(int32_t result, int32_t wanted, const char* what) {
  ++calls;
  if (result == wanted) return;
  fprintf(stderr, "%s: %d, not %d\n", what, result, wanted);
  exit(1);
}

void run(const Case& one) {
  std::mt19937 random(17);
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<xk_bag_table> fields;
  for (const Size& size : kSizes) {
    tables.emplace_back(new Table(random, size, one));
    fields.push_back(tables.back()->fields);
  }
  const xk_bags bags = {kTables,        fields.data(), one.value_type,
                        one.index_type, one.mode,      one.last_offset ? 1 : 0};
  xk_bag_problem problem;
  expect(xk_bags_forward(&bags, &problem), 0, "forward");
  for (const auto& table : tables) table->output.sum_up();
  expect(xk_bags_dense_gradients(&bags, &problem), 0, "dense");
  expect(xk_bags_sparse_gradients(&bags, &problem), 0, "sparse");
  for (const xk_bag_table& table : fields) {
    add_to_sum(table.gradient_rows, 8 * static_cast<size_t>(table.gradient_row_count));
  }
  if (one.mode == XK_BAG_SUM) expect(xk_bags_factor_gradients(&bags, &problem), 0, "factors");
  for (const auto& table : tables) table->gradients.sum_up();
  const int32_t updated = one.value_type == XK_FLOAT16 ? XK_INVALID_TYPE : 0;
  expect(xk_bags_sgd(&bags, 0.1, 0.9, 0.01, &problem), updated, "sgd");
  expect(xk_bags_adagrad(&bags, 0.1, 1e-8, &problem), updated, "adagrad");
  for (const auto& table : tables) {
    for (const Block* block : {&table->weights, &table->remainders, &table->state}) {
      block->sum_up();
    }
  }
  // An index that is no row, at the end of the last table: nothing is read or written.
  fields.back().rows = 1;
  expect(xk_bags_forward(&bags, &problem), XK_INVALID_INDEX, "bad index");
  const int32_t refused = updated == 0 ? XK_INVALID_INDEX : updated;
  expect(xk_bags_sgd(&bags, 0.1, 0, 0, &problem), refused, "bad index");
}

}  // namespace

int main() {
  for (int threads = 1; threads <= 3; threads += 2) {
    omp_set_num_threads(threads);
    for (int32_t type = XK_FLOAT32; type <= XK_FLOAT16; ++type) {
      for (int32_t mode = XK_BAG_SUM; mode <= XK_BAG_MAX; ++mode) {
        run({type, XK_INT64, mode, true, mode == XK_BAG_SUM, false});
        run({type, XK_INT32, mode, true, false, true});
        run({type, XK_INT64, mode, false, false, false});
      }
    }
  }
  printf("%s: %d calls, checksum %016llx\n", xk_isa_name(), calls,
         static_cast<unsigned long long>(sum));
  return 0;
}
