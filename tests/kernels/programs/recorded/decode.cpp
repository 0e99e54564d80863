// SPDX-License-Identifier: Apache-2.0
//
// Decode steps. Each array of weights has those of all layers, one after another.
#include <math.h>

#include <string>

#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

class Model {
 public:
  explicit Model(Case& c) : case_(c) {
    for (int64_t at = 0; at < size("layers"); ++at) layers_.push_back(layer(at));
  }

  int32_t run() {
    xk_decode step{};
    step.layers = layers_.data();
    step.layer_count = size("layers");
    step.batch = size("batch");
    step.hidden = size("hidden");
    step.heads = size("heads");
    step.kv_heads = size("kv_heads");
    step.head_dim = size("head_dim");
    step.intermediate = size("intermediate");
    step.vocabulary = size("vocabulary");
    step.weight_type = type_of(case_.array("embedding"));
    step.norm_type = type_of(case_.array("norm"));
    step.cache_type = type_of(case_.array("keys"));
    step.logits_type = type_of(case_.array("logits"));
    step.rotary_size = size("rotary_size");
    step.norm_kind = static_cast<int32_t>(size("norm_kind"));
    step.activation = static_cast<int32_t>(size("activation"));
    step.parallel = static_cast<int32_t>(size("parallel"));
    step.norm_offset = static_cast<float>(case_.number("norm_offset"));
    step.score_cap = static_cast<float>(case_.number("score_cap"));
    step.logit_cap = static_cast<float>(case_.number("logit_cap"));
    step.embedding_scale = static_cast<float>(case_.number("embedding_scale"));
    step.epsilon = static_cast<float>(case_.number("epsilon"));
    step.scale = static_cast<float>(1 / sqrt(case_.number("head_dim")));
    step.embedding = case_.data<void>("embedding");
    if (case_.has("addends")) step.addends = case_.data<float>("addends");
    step.norm = {case_.data<void>("norm"), whole("norm_bias")};
    step.head = {case_.data<void>("head"), nullptr, type_of(case_.array("head")), 0};
    step.head_bias = whole("head_bias");
    step.tokens = case_.data<int64_t>("tokens");
    step.cosines = case_.data<float>("cosines");
    step.sines = case_.data<float>("sines");
    step.starts = case_.data<int64_t>("starts");
    step.positions = size("positions");
    step.logits = case_.data<void>("logits");
    return xk_decode_step(&step);
  }

 private:
  int64_t size(const char* name) { return static_cast<int64_t>(case_.number(name)); }

  // Where a layer's part of an array begins; nullptr without the array.
  unsigned char* part(const char* name, int64_t at) {
    if (!case_.has(name)) return nullptr;
    const Array& array = case_.array(name);
    return array.bytes() + at * (array.count / size("layers")) * array.width;
  }

  void* whole(const char* name) { return case_.has(name) ? case_.data<void>(name) : nullptr; }

  xk_weights weights(const char* name, int64_t at) {
    if (!case_.has(name)) return {};
    const std::string scales = std::string(name) + "_scales";
    if (case_.has(scales)) {
      return {part(name, at), part(scales.c_str(), at), static_cast<int32_t>(size("format")), 0};
    }
    const int64_t stride = size((std::string(name) + "_stride").c_str());
    return {part(name, at), nullptr, type_of(case_.array(name)), static_cast<int32_t>(stride)};
  }

  xk_decode_norm norm(const std::string& name, int64_t at) {
    return {part(name.c_str(), at), part((name + "_bias").c_str(), at)};
  }

  xk_decode_layer layer(int64_t at) {
    xk_decode_layer made{};
    made.input_norm = norm("input_norm", at);
    made.attention_post_norm = norm("attention_post_norm", at);
    made.mlp_norm = norm("mlp_norm", at);
    made.mlp_post_norm = norm("mlp_post_norm", at);
    made.query_norm = norm("query_norm", at);
    made.key_norm = norm("key_norm", at);
    made.query = weights("query", at);
    made.key = weights("key", at);
    made.value = weights("value", at);
    made.output = weights("output", at);
    made.gate = weights("gate", at);
    made.up = weights("up", at);
    made.down = weights("down", at);
    made.query_bias = part("query_bias", at);
    made.key_bias = part("key_bias", at);
    made.value_bias = part("value_bias", at);
    made.output_bias = part("output_bias", at);
    made.gate_bias = part("gate_bias", at);
    made.up_bias = part("up_bias", at);
    made.down_bias = part("down_bias", at);
    made.keys = part("keys", at);
    made.values = part("values", at);
    made.head_stride = size("capacity") * size("head_dim");
    made.batch_stride = made.head_stride * size("kv_heads");
    made.position = size("positions") - (at == 1 ? size("dropped") : 0);
    made.rotary = at;
    made.window = at == 1 ? size("window") : 0;
    return made;
  }

  Case& case_;
  std::vector<xk_decode_layer> layers_;
};

const Runner decode("decode", [](Case& c) { return Model(c).run(); });

}  // namespace
}  // namespace recorded
