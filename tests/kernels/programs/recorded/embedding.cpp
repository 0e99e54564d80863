// SPDX-License-Identifier: Apache-2.0
//
// Embedding bags. The tables of a case are in the same arrays, one after another; "tables" has five
// numbers for each: rows, dim, indices, bags, and elements of its part of "gradients".
#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

template <typename Function>
int32_t call(Case& c, Function function) {
  std::map<std::string, Parts> parts;
  // The next elements of an array; nullptr if the case has no such array.
  const auto take = [&](const char* name, int64_t elements) -> void* {
    if (!c.has(name)) return nullptr;
    return parts.try_emplace(name, c.array(name)).first->second.take(elements);
  };
  const int32_t last_offset = static_cast<int32_t>(c.number("include_last_offset"));
  std::vector<xk_bag_table> tables;
  const int64_t* const sizes = c.data<int64_t>("tables");
  for (const int64_t* size = sizes; size < sizes + c.array("tables").count; size += 5) {
    xk_bag_table t = {};
    t.rows = size[0];
    t.dim = size[1];
    t.index_count = size[2];
    t.bags = size[3];
    t.weights = take("weights", t.rows * t.dim);
    t.indices = take("indices", t.index_count);
    t.offsets = take("offsets", t.bags + last_offset);
    t.factors = take("factors", t.index_count);
    t.output = take("output", t.bags * t.dim);
    t.max_positions = static_cast<int32_t*>(take("max_positions", t.bags * t.dim));
    t.gradients = take("gradients", size[4]);
    t.gradient_rows = static_cast<int64_t*>(take("gradient_rows", size[4] / t.dim));
    t.remainders = static_cast<int16_t*>(take("remainders", t.rows * t.dim));
    t.state = static_cast<float*>(take("state", t.rows * t.dim));
    tables.push_back(t);
  }
  const xk_bags bags = {static_cast<int64_t>(tables.size()),
                        tables.data(),
                        type_of(c.array("output")),
                        c.array("indices").width == 4 ? XK_INT32 : XK_INT64,
                        static_cast<int32_t>(c.number("mode")),
                        last_offset};
  xk_bag_problem problem;
  const int32_t result = function(&bags, &problem);
  if (c.has("gradient_row_counts")) {
    int64_t* counts = c.data<int64_t>("gradient_row_counts");
    for (const xk_bag_table& t : tables) *counts++ = t.gradient_row_count;
  }
  return result;
}

template <typename Function>
int32_t update(Case& c, Function function) {
  const int32_t result = call(c, function);
  if (result == 0) add_masters(c);
  return result;
}

const Runner forward("bags_forward", [](Case& c) { return call(c, xk_bags_forward); });

const Runner dense("bags_dense_gradients",
                   [](Case& c) { return call(c, xk_bags_dense_gradients); });

const Runner sparse("bags_sparse_gradients",
                    [](Case& c) { return call(c, xk_bags_sparse_gradients); });

const Runner factors("bags_factor_gradients",
                     [](Case& c) { return call(c, xk_bags_factor_gradients); });

const Runner sgd("bags_sgd", [](Case& c) {
  return update(c, [&c](const xk_bags* bags, xk_bag_problem* problem) {
    return xk_bags_sgd(bags, c.number("lr"), c.number("momentum"), c.number("weight_decay"),
                       problem);
  });
});

const Runner adagrad("bags_adagrad", [](Case& c) {
  return update(c, [&c](const xk_bags* bags, xk_bag_problem* problem) {
    return xk_bags_adagrad(bags, c.number("lr"), c.number("eps"), problem);
  });
});

}  // namespace
}  // namespace recorded
