// SPDX-License-Identifier: Apache-2.0
//
// Checks of a decode step's arguments, and its memory.
#include "xkernels/decode.h"

#include <initializer_list>

#include "ops/decode/kernels.h"
#include "ops/team.h"
#include "xkernels/embedding.h"

namespace {

using namespace xkernels;

constexpr int64_t kMaxSize = 1 << 24;
constexpr int64_t kMaxBatch = 1 << 12;

bool is_size(int64_t size, int64_t largest = kMaxSize) { return size >= 1 && size <= largest; }

bool is_optional(const void* pointer, int width) {
  return pointer == nullptr || usable(pointer, width);
}

bool is_norm(const xk_decode_norm& norm, int width) {
  return is_optional(norm.weight, width) && is_optional(norm.bias, width);
}

int32_t layer_problem(const xk_decode& of, const xk_decode_layer& layer) {
  const int weight = width_of(of.weight_type), norm = width_of(of.norm_type);
  if (layer.position < 0 || layer.position > of.positions || layer.window < 0 || layer.rotary < 0 ||
      layer.batch_stride < 0 || layer.head_stride < (layer.position + 1) * of.head_dim)
    return XK_INVALID_SIZE;
  for (const xk_decode_norm& one : {layer.input_norm, layer.attention_post_norm, layer.mlp_norm,
                                    layer.mlp_post_norm, layer.query_norm, layer.key_norm}) {
    if (!is_norm(one, norm)) return XK_INVALID_POINTER;
  }
  const bool joined =
      layer.key.values == nullptr && layer.value.values == nullptr && of.heads == of.kv_heads;
  for (const xk_weights* one : {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate,
                                &layer.up, &layer.down}) {
    const bool optional =
        one == &layer.gate || (joined && (one == &layer.key || one == &layer.value));
    if (optional && one->values == nullptr) continue;
    if (const int32_t problem = weights_problem(*one)) return problem;
  }
  for (const void* one : {layer.query_bias, layer.key_bias, layer.value_bias, layer.output_bias,
                          layer.gate_bias, layer.up_bias, layer.down_bias}) {
    if (!is_optional(one, weight)) return XK_INVALID_POINTER;
  }
  const int cached = width_of(of.cache_type);
  return usable(layer.keys, cached) && usable(layer.values, cached) ? 0 : XK_INVALID_POINTER;
}

int32_t problem_of(const xk_decode& of) {
  for (const int32_t type : {of.weight_type, of.norm_type, of.cache_type, of.logits_type}) {
    if (!is_value_type(type)) return XK_INVALID_TYPE;
  }
  if (of.norm_kind < XK_ROOT_MEAN_SQUARE || of.norm_kind > XK_MEAN_AND_DEVIATION ||
      of.activation < XK_SILU || of.activation > XK_RELU)
    return XK_INVALID_TYPE;
  if (!is_size(of.batch, kMaxBatch) || of.layer_count < 0 || !is_size(of.hidden) ||
      !is_size(of.heads) || !is_size(of.kv_heads) || of.heads % of.kv_heads != 0 ||
      !is_size(of.head_dim) || !is_size(of.heads * of.head_dim) || of.rotary_size < 0 ||
      of.rotary_size % 2 != 0 || of.rotary_size > of.head_dim || !is_size(of.intermediate) ||
      !is_size(of.vocabulary) || of.positions < 0 || of.positions > kMaxSize || of.threads < 0)
    return XK_INVALID_SIZE;
  const int weight = width_of(of.weight_type);
  if (of.layers == nullptr || !usable(of.embedding, weight) || !is_optional(of.head_bias, weight) ||
      !is_norm(of.norm, width_of(of.norm_type)) || !is_optional(of.addends, 4) ||
      !usable(of.tokens, 8) || !usable(of.cosines, 4, of.rotary_size) ||
      !usable(of.sines, 4, of.rotary_size) || !usable(of.starts, 8) ||
      !usable(of.logits, width_of(of.logits_type)))
    return XK_INVALID_POINTER;
  if (const int32_t problem = weights_problem(of.head)) return problem;
  for (int64_t at = 0; at < of.layer_count; ++at) {
    if (const int32_t problem = layer_problem(of, of.layers[at])) return problem;
  }
  for (int64_t b = 0; b < of.batch; ++b) {
    if (of.tokens[b] < 0 || of.tokens[b] >= of.vocabulary) return XK_INVALID_INDEX;
    // A sequence of nothing but padding would have no position to attend to besides this one.
    if (of.starts[b] < 0 || of.starts[b] > of.positions) return XK_INVALID_SIZE;
  }
  return 0;
}

}  // namespace

int32_t xk_decode_step(const xk_decode* step) {
  if (step == nullptr) return XK_INVALID_POINTER;
  const xk_decode& of = *step;
  const int32_t problem = checked<DecodeKernels>(problem_of(of));
  if (problem != 0) return problem;

  const auto rows = [&](int64_t size) { return of.batch * padded_size(size); };
  const auto cut_state = [&](Cutter& cutter) {
    return DecodeState{cutter.take<float>(rows(of.hidden)),
                       cutter.take<float>(rows(of.hidden)),
                       cutter.take<float>(rows((of.heads + 2 * of.kv_heads) * of.head_dim)),
                       cutter.take<float>(rows(of.heads * of.head_dim)),
                       cutter.take<float>(rows(of.intermediate)),
                       cutter.take<float>(rows(of.intermediate))};
  };
  int64_t inputs = 0;  // the most of a linear with packed weights
  const auto add_inputs = [&](const xk_weights& weights, int64_t size) {
    if (is_packed_type(weights.type) && size > inputs) inputs = size;
  };
  add_inputs(of.head, of.hidden);
  for (int64_t at = 0; at < of.layer_count; ++at) {
    const xk_decode_layer& layer = of.layers[at];
    for (const xk_weights& one : {layer.query, layer.key, layer.value, layer.gate, layer.up}) {
      add_inputs(one, of.hidden);
    }
    add_inputs(layer.output, of.heads * of.head_dim);
    add_inputs(layer.down, of.intermediate);
  }
  const auto cut_scratch = [&](Cutter& cutter) {
    return DecodeScratch{cutter.take<float>(rows(of.hidden)),
                         cutter.take<float>(padded_size(of.head_dim)),
                         cutter.take<float>(padded_size(of.positions + 1)),
                         {cutter.take<int16_t>(of.batch * integer_size(inputs)),
                          cutter.take<float>(of.batch * scale_size(inputs))}};
  };
  const ThreadMemory shared(1, cut_state);
  const int64_t team = omp_get_max_threads();
  const ThreadMemory own(of.threads > 0 && of.threads < team ? of.threads : team, cut_scratch);
  if (!shared.allocated() || !own.allocated()) return XK_REFUSED;
  const DecodeKernels* kernels = kernels_in_use<DecodeKernels>();
  const DecodeState state = shared.of_thread(0);
  Barrier within, last;
  run_on_team(true, [&](int64_t thread, int64_t threads) {
    const int64_t working = of.threads > 0 && of.threads < threads ? of.threads : threads;
    if (thread < working) kernels->step(of, state, own.of_thread(thread), &within, thread, working);
    if (working < threads) last.wait(threads);  // the others sleep until the end
  });
  return 0;
}
