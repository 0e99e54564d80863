// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps. All tensors of a case are in one array, one after another, as `sizes` says.
#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

// Where the tensors begin in an array; nothing if the case has no such array.
template <typename Pointer>
std::vector<Pointer> pointers(Case& c, const std::string& name, const Array& sizes) {
  std::vector<Pointer> found;
  if (!c.has(name)) return found;
  const Array& array = c.array(name);
  unsigned char* at = array.bytes();
  for (int64_t i = 0; i < sizes.count; ++i) {
    found.push_back(reinterpret_cast<Pointer>(at));
    at += static_cast<int64_t>(sizes.value(i)) * array.width;
  }
  return found;
}

template <typename Step>
int32_t step(Case& c, Step call) {
  const Array& sizes = c.array("sizes");
  const auto weights = pointers<void*>(c, "weights", sizes);
  const auto remainders = pointers<int16_t*>(c, "remainders", sizes);
  const auto gradients = pointers<const void*>(c, "gradients", sizes);
  const auto first = pointers<void*>(c, "first", sizes);
  const auto second = pointers<void*>(c, "second", sizes);
  std::vector<float*> steps;
  for (int64_t i = 0; i < sizes.count; ++i) steps.push_back(c.data<float>("steps") + i);
  xk_tensors t = {};
  t.count = sizes.count;
  t.sizes = c.data<int64_t>("sizes");
  t.weights = weights.data();
  t.remainders = remainders.data();
  t.gradients = gradients.data();
  t.first = first.data();
  t.second = second.data();
  t.steps = steps.data();
  t.fresh = c.data<int32_t>("fresh");
  t.seed = 5;
  t.weight_format = static_cast<int32_t>(c.number("weight_format"));
  t.gradient_type = type_of(c.array("gradients"));
  t.state_type = type_of(c.array("first"));
  t.maximize = static_cast<int32_t>(c.number("maximize"));
  const int32_t result = call(&t, [&c](const char* name) { return c.number(name); });
  if (result == 0) add_masters(c);
  return result;
}

const Runner sgd("sgd", [](Case& c) {
  return step(c, [](const xk_tensors* t, auto number) {
    return xk_sgd(t, number("lr"), number("momentum"), number("dampening"), number("weight_decay"),
                  static_cast<int32_t>(number("nesterov")));
  });
});

const Runner lars("lars", [](Case& c) {
  return step(c, [](const xk_tensors* t, auto number) {
    return xk_lars(t, number("lr"), number("momentum"), number("dampening"), number("weight_decay"),
                   0, number("trust"), number("eps"), 1);
  });
});

const Runner adagrad("adagrad", [](Case& c) {
  return step(c, [](const xk_tensors* t, auto number) {
    return xk_adagrad(t, number("lr"), number("lr_decay"), number("weight_decay"), number("eps"));
  });
});

const Runner adam("adam", [](Case& c) {
  return step(c, [](const xk_tensors* t, auto number) {
    return xk_adam(t, number("lr"), number("beta1"), number("beta2"), number("eps"),
                   number("weight_decay"), static_cast<int32_t>(number("decoupled")));
  });
});

const Runner lamb("lamb", [](Case& c) {
  return step(c, [](const xk_tensors* t, auto number) {
    return xk_lamb(t, number("lr"), number("beta1"), number("beta2"), number("eps"),
                   number("weight_decay"), 1);
  });
});

}  // namespace
}  // namespace recorded
