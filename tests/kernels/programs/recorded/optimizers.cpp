// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps. All tensors of a case are in one array, one after another, as `sizes` says.
#include <string.h>

#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

// The tensors of an array, each in memory that ends with it; copied back in the end.
template <typename Pointer>
class Tensors {
 public:
  // Nothing if the case has no such array.
  Tensors(Case& c, const std::string& name, const Array& sizes) {
    if (!c.has(name)) return;
    whole_ = &c.array(name);
    for (int64_t i = 0; i < sizes.count; ++i) {
      parts_.emplace_back(whole_->type, static_cast<int64_t>(sizes.value(i)));
      pointers_.push_back(reinterpret_cast<Pointer>(parts_.back().bytes()));
    }
    each([](unsigned char* whole, unsigned char* part, size_t size) { memcpy(part, whole, size); });
  }
  ~Tensors() {
    each([](unsigned char* whole, unsigned char* part, size_t size) { memcpy(whole, part, size); });
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  const Pointer* data() const { return pointers_.data(); }

 private:
  template <typename Copy>
  void each(Copy copy) {
    int64_t before = 0;  // bytes
    for (Array& part : parts_) {
      const int64_t size = part.count * part.width;
      copy(whole_->bytes() + before, part.bytes(), static_cast<size_t>(size));
      before += size;
    }
  }

  Array* whole_ = nullptr;
  std::vector<Array> parts_;
  std::vector<Pointer> pointers_;
};

template <typename Step>
int32_t run(Case& c, Step call) {
  const Array& sizes = c.array("sizes");
  const Tensors<void*> weights(c, "weights", sizes);
  const Tensors<int16_t*> remainders(c, "remainders", sizes);
  const Tensors<const void*> gradients(c, "gradients", sizes);
  const Tensors<void*> first(c, "first", sizes);
  const Tensors<void*> second(c, "second", sizes);
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
  return call(&t, [&c](const char* name) { return c.number(name); });
}

template <typename Step>
int32_t step(Case& c, Step call) {
  const int32_t result = run(c, call);
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
