// SPDX-License-Identifier: Apache-2.0
//
// Decode steps and linears of few rows, of sizes that fit no vector, in arrays that end with the
// last element: for a library whose accesses to memory are checked. Says how many calls it has
// made.
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include <memory>
#include <vector>

#include "xkernels.h"

namespace {

int calls = 0;

void fail(const char* what, int32_t code) {
  fprintf(stderr, "%s: %d\n", what, code);
  exit(1);
}

// Elements of one type, with small values; the memory has no byte more.
class Values {
 public:
  Values(int64_t count, int32_t type)
      : width_(type == XK_FLOAT32 ? 4 : 2), bytes_(new unsigned char[count * width_]) {
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>((i * 37 + 11) % 29 - 14) / 64;
      const unsigned char* const from = reinterpret_cast<const unsigned char*>(&value);
      for (int b = 0; b < width_; ++b) bytes_[i * width_ + b] = from[4 - width_ + b];
    }
  }
  void* data() const { return bytes_.get(); }

 private:
  int width_;
  std::unique_ptr<unsigned char[]> bytes_;
};

// The arrays of a step live as long as this.
std::vector<std::unique_ptr<Values>> kept;

void* values(int64_t count, int32_t type) {
  kept.emplace_back(new Values(count, type));
  return kept.back()->data();
}

xk_weights matrix(int64_t count, int32_t type) { return {values(count, type), nullptr, type, 0}; }

struct Sizes {
  int64_t hidden, heads, kv_heads, head_dim, intermediate, vocabulary;
};

xk_decode_layer layer_of(const Sizes& s, int64_t batch, int64_t capacity, int32_t type, bool more) {
  const int64_t queries = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  xk_decode_layer layer = {};
  layer.input_norm = {values(s.hidden, type), nullptr};
  layer.mlp_norm = {values(s.hidden, type), nullptr};
  layer.query = matrix(queries * s.hidden, type);
  layer.key = matrix(kv * s.hidden, type);
  layer.value = matrix(kv * s.hidden, type);
  layer.output = matrix(s.hidden * queries, type);
  layer.up = matrix(s.intermediate * s.hidden, type);
  layer.down = matrix(s.hidden * s.intermediate, type);
  if (more) {
    layer.gate = matrix(s.intermediate * s.hidden, type);
    layer.up.stride = layer.gate.stride = static_cast<int32_t>(s.intermediate);
    layer.query_norm = {values(s.head_dim, type), values(s.head_dim, type)};
    layer.key_norm = {values(s.head_dim, type), values(s.head_dim, type)};
    layer.attention_post_norm = {values(s.hidden, type), values(s.hidden, type)};
    layer.mlp_post_norm = {values(s.hidden, type), values(s.hidden, type)};
    layer.query_bias = values(queries, type);
    layer.key_bias = values(kv, type);
    layer.value_bias = values(kv, type);
    layer.output_bias = values(s.hidden, type);
    layer.gate_bias = values(s.intermediate, type);
    layer.up_bias = values(s.intermediate, type);
    layer.down_bias = values(s.hidden, type);
    layer.window = 3;
  }
  layer.keys = values(batch * kv * capacity, type);
  layer.values = values(batch * kv * capacity, type);
  layer.head_stride = capacity * s.head_dim;
  layer.batch_stride = kv * capacity;
  return layer;
}

// Fills a cache to its last position.
void decode(const Sizes& s, int64_t batch, int32_t type, bool more) {
  constexpr int64_t kCapacity = 19;
  xk_decode_layer layers[2] = {layer_of(s, batch, kCapacity, type, more),
                               layer_of(s, batch, kCapacity, type, false)};
  if (s.heads == s.kv_heads) {  // one linear for all three
    layers[0].query = matrix(3 * s.heads * s.head_dim * s.hidden, type);
    layers[0].query_bias = more ? values(3 * s.heads * s.head_dim, type) : nullptr;
    layers[0].key = layers[0].value = {};
  }
  xk_decode step = {};
  step.layers = layers;
  step.layer_count = 2;
  step.batch = batch;
  step.hidden = s.hidden;
  step.heads = s.heads;
  step.kv_heads = s.kv_heads;
  step.head_dim = s.head_dim;
  step.intermediate = s.intermediate;
  step.vocabulary = s.vocabulary;
  step.weight_type = step.norm_type = step.cache_type = step.logits_type = type;
  step.epsilon = 1e-6F;
  step.scale = 0.25F;
  step.embedding = values(s.vocabulary * s.hidden, type);
  step.head = matrix(s.vocabulary * s.hidden, type);
  step.norm = {values(s.hidden, type), values(s.hidden, type)};
  step.norm_kind = step.parallel = more;
  step.activation = static_cast<int32_t>(batch % 4);
  step.score_cap = step.logit_cap = more ? 2 : 0;
  step.embedding_scale = 1;
  step.rotary_size = more ? s.head_dim - 2 : s.head_dim;
  layers[1].rotary = 1;
  step.cosines = static_cast<float*>(values(2 * batch * step.rotary_size, XK_FLOAT32));
  step.sines = static_cast<float*>(values(2 * batch * step.rotary_size, XK_FLOAT32));
  step.addends = static_cast<float*>(values(batch * s.hidden, XK_FLOAT32));
  step.head_bias = values(s.vocabulary, type);
  step.logits = values(batch * s.vocabulary, type);
  const std::vector<int64_t> tokens(batch, s.vocabulary - 1);
  std::vector<int64_t> starts(batch, 0);
  step.tokens = tokens.data();
  for (int64_t position = 0; position < kCapacity; ++position) {
    starts[batch - 1] = position / 2;
    step.starts = starts.data();
    step.threads = static_cast<int32_t>(position % 4);  // of a team of 1 or 3; 0: all
    step.positions = layers[0].position = layers[1].position = position;
    if (const int32_t problem = xk_decode_step(&step)) fail("xk_decode_step", problem);
    ++calls;
    for (int64_t i = 0; type == XK_FLOAT32 && i < batch * s.vocabulary; ++i) {
      if (!isfinite(static_cast<const float*>(step.logits)[i])) fail("a logit is not finite", 0);
    }
  }
  kept.clear();
}

// `stride`: 0, or `outputs` for weights that are stored as (inputs, outputs).
void multiply(int64_t rows, int64_t inputs, int64_t outputs, int32_t type, int64_t stride) {
  const void* const bias = outputs % 2 ? values(outputs, type) : nullptr;
  const xk_weights weights = {values(outputs * inputs, type), nullptr, type,
                              static_cast<int32_t>(stride)};
  const int32_t problem = xk_linear_rows(values(rows * inputs, type), rows, inputs, type, &weights,
                                         bias, type, inputs, outputs, values(rows * outputs, type));
  if (problem) fail("xk_linear_rows", problem);
  ++calls;
  kept.clear();
}

void run() {
  for (const int32_t type : {XK_FLOAT32, XK_BFLOAT16}) {
    for (const int64_t batch : {1, 2, 3, 8}) {
      decode({72, 6, 2, 12, 101, 301}, batch, type, true);
      decode({33, 3, 1, 34, 18, 7}, batch, type, false);
      decode({33, 3, 3, 14, 18, 7}, batch, type, batch % 2 == 0);
    }
    for (const int64_t rows : {1, 2, 3}) {
      for (const int64_t inputs : {1, 15, 33, 257}) {
        for (const int64_t outputs : {1, 6, 301}) {
          multiply(rows, inputs, outputs, type, 0);
          multiply(3 * rows, inputs, outputs, type, outputs);
        }
      }
    }
  }
}

}  // namespace

int main() {
  for (int threads = 1; threads <= 3; threads += 2) {
    omp_set_num_threads(threads);
    run();
  }
  printf("%s: %d calls\n", xk_isa_name(), calls);
  return 0;
}
