// SPDX-License-Identifier: Apache-2.0
//
// Pairwise dot products. "inputs" has all inputs, one after another, with the rows that `strides`
// says; "gradients" has those of all inputs, dense.
#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

struct Inputs {
  explicit Inputs(Case& c)
      : strides(c.data<int64_t>("strides")),
        count(c.array("strides").count),
        batch(static_cast<int64_t>(c.number("batch"))),
        features(static_cast<int64_t>(c.number("features"))),
        type(type_of(c.array("inputs"))),
        parts(c.array("inputs")) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t gap = batch == 0 ? 0 : strides[i] - features;
      pointers.push_back(parts.take(batch * strides[i] - gap, gap));
    }
  }

  std::vector<const void*> pointers;
  const int64_t* strides;
  int64_t count, batch, features;
  int32_t type;
  Parts parts;
};

const Runner forward("interaction", [](Case& c) {
  const Inputs of(c);
  return xk_interaction(of.pointers.data(), of.strides, of.count, of.batch, of.features, of.type,
                        c.data<void>("output"));
});

const Runner backward("interaction_backward", [](Case& c) {
  const Inputs of(c);
  Parts parts(c.array("gradients"));
  std::vector<void*> gradients;
  for (int64_t i = 0; i < of.count; ++i) gradients.push_back(parts.take(of.batch * of.features));
  return xk_interaction_backward(of.pointers.data(), of.strides, of.count, of.batch, of.features,
                                 of.type, c.data<void>("gradient"), gradients.data());
});

}  // namespace
}  // namespace recorded
