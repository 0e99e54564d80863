// SPDX-License-Identifier: Apache-2.0
//
// Every optimizer step on blocks that end where their memory ends, for AddressSanitizer and
// UndefinedBehaviorSanitizer. Prints the instruction set and a checksum of all results.
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "xkernels.h"

namespace {

constexpr int64_t kSizes[] = {1, 0, 3, 255, 256, 257, 511, 8191, 8193, 40001};

// Values of fp32 or bf16, each block with a heap allocation of exactly its size.
class Blocks {
 public:
  Blocks(std::mt19937& random, int32_t width, bool positive) {
    std::normal_distribution<float> normal;
    for (const int64_t size : kSizes) {
      bytes_.emplace_back(new unsigned char[static_cast<size_t>(size * width)]);
      pointers_.push_back(bytes_.back().get());
      for (int64_t i = 0; i < size; ++i) {
        float value = normal(random);
        if (positive) value = std::fabs(value);
        // The last two bytes of a little-endian fp32 value are its bf16 value.
        unsigned char four[4];
        memcpy(four, &value, 4);
        memcpy(bytes_.back().get() + i * width, four + 4 - width, static_cast<size_t>(width));
      }
    }
    width_ = width;
  }

  template <typename Pointer>
  Pointer const* pointers() const {
    return reinterpret_cast<Pointer const*>(pointers_.data());
  }

  // FNV-1a over all bytes.
  uint64_t checksum(uint64_t sum) const {
    for (size_t at = 0; at < bytes_.size(); ++at) {
      for (int64_t i = 0; i < kSizes[at] * width_; ++i) {
        sum = (sum ^ bytes_[at][static_cast<size_t>(i)]) * 0x100000001b3u;
      }
    }
    return sum;
  }

 private:
  std::vector<std::unique_ptr<unsigned char[]>> bytes_;
  std::vector<void*> pointers_;
  int32_t width_;
};

int width_of(int32_t type) { return type == XK_FLOAT32 ? 4 : 2; }

int32_t step(int optimizer, const xk_tensors& t) {
  switch (optimizer) {
    case 0:
      return xk_sgd(&t, 0.1, 0.9, 0.1, 0.01, 0);
    case 1:
      return xk_sgd(&t, 0.1, 0.9, 0, 0.01, 1);
    case 2:
      return xk_adagrad(&t, 0.1, 0.01, 0.01, 1e-8);
    case 3:
      return xk_adam(&t, 0.1, 0.9, 0.99, 1e-8, 0.01, 0);
    case 4:
      return xk_adam(&t, 0.1, 0.9, 0.99, 1e-8, 0.01, 1);
    case 5:
      return xk_lamb(&t, 0.1, 0.9, 0.99, 1e-8, 0.01, 1);
    default:
      return xk_lars(&t, 0.1, 0.9, 0.1, 0.01, 0, 0.02, 1e-8, 1);
  }
}

}  // namespace

int main() {
  constexpr int64_t kCount = sizeof(kSizes) / sizeof(kSizes[0]);
  uint64_t sum = 0xcbf29ce484222325u;
  int steps = 0;
  for (int threads = 1; threads <= 3; threads += 2) {
    omp_set_num_threads(threads);
    for (int32_t format = XK_WEIGHTS_FLOAT32; format <= XK_WEIGHTS_STOCHASTIC; ++format) {
      for (int32_t types = 0; types < 4; ++types) {
        for (int optimizer = 0; optimizer < 7; ++optimizer) {
          std::mt19937 random(17);
          const int32_t gradient_type = types & 1, state_type = types >> 1;
          Blocks weights(random, format == XK_WEIGHTS_FLOAT32 ? 4 : 2, false);
          Blocks remainders(random, 2, false);
          Blocks gradients(random, width_of(gradient_type), false);
          Blocks first(random, width_of(state_type), true);
          Blocks second(random, width_of(state_type), true);
          std::vector<float> counts(kCount, 3);
          std::vector<float*> count_pointers;
          for (float& count : counts) count_pointers.push_back(&count);
          std::vector<int32_t> fresh = {0, 0, 1, 0, 1, 0, 1, 0, 1, 0};
          xk_tensors t = {};
          t.count = kCount;
          t.sizes = kSizes;
          t.weights = weights.pointers<void*>();
          t.remainders = remainders.pointers<int16_t*>();
          t.gradients = gradients.pointers<const void*>();
          t.first = first.pointers<void*>();
          t.second = second.pointers<void*>();
          t.steps = count_pointers.data();
          t.fresh = fresh.data();
          t.seed = 5;
          t.weight_format = format;
          t.gradient_type = gradient_type;
          t.state_type = state_type;
          t.maximize = types == 3;
          if (step(optimizer, t) != 0) {
            fprintf(stderr, "optimizer %d, format %d, types %d failed\n", optimizer, format, types);
            return 1;
          }
          ++steps;
          for (const Blocks* blocks : {&weights, &remainders, &first, &second}) {
            sum = blocks->checksum(sum);
          }
        }
      }
    }
  }
  printf("%s: %d steps, checksum %016llx\n", xk_isa_name(), steps,
         static_cast<unsigned long long>(sum));
  return 0;
}
