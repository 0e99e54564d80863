// SPDX-License-Identifier: Apache-2.0
//
// interaction, roi_align and nms on blocks that end where their memory ends, for AddressSanitizer
// and UndefinedBehaviorSanitizer. Prints the instruction set, the number of calls, and a checksum
// of the results that do not depend on the instruction set.
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "xkernels.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int calls = 0;
uint64_t sum = 0xcbf29ce484222325u;

// Values of a type in a heap allocation of exactly their size.
class Values {
 public:
  Values(std::mt19937& random, int64_t count, int32_t type)
      : size_(static_cast<size_t>(count * (type == XK_FLOAT32 ? 4 : 2))),
        bytes_(new unsigned char[size_]) {
    std::normal_distribution<float> normal;
    const size_t width = type == XK_FLOAT32 ? 4 : 2;
    for (size_t at = 0; at < size_; at += width) {
      const float value = normal(random);
      // The last two bytes of a little-endian fp32 value are its bf16 value, and some fp16 value.
      unsigned char four[4];
      memcpy(four, &value, 4);
      memcpy(bytes_.get() + at, four + 4 - width, width);
    }
  }

  void* get() const { return bytes_.get(); }
  float* floats() const { return reinterpret_cast<float*>(bytes_.get()); }
  void clear() { memset(bytes_.get(), 0, size_); }

  // FNV-1a over all bytes.
  void add_to_sum() const {
    for (size_t at = 0; at < size_; ++at) sum = (sum ^ bytes_[at]) * 0x100000001b3u;
  }

 private:
  size_t size_;
  std::unique_ptr<unsigned char[]> bytes_;
};

bool succeeds(int32_t result, const char* what) {
  ++calls;
  if (result != 0) fprintf(stderr, "%s: %d\n", what, static_cast<int>(result));
  return result == 0;
}

bool interact(int64_t count, int64_t batch, int64_t features, int32_t type) {
  std::mt19937 random(17);
  const int64_t outputs = features + count * (count - 1) / 2;
  std::vector<Values> inputs, gradients;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (int64_t i = 0; i < count; ++i) {
    inputs.emplace_back(random, batch * features, type);
    gradients.emplace_back(random, batch * features, type);
    from.push_back(inputs.back().get());
    to.push_back(gradients.back().get());
  }
  const std::vector<int64_t> strides(static_cast<size_t>(count), features);
  const Values output(random, batch * outputs, type), gradient(random, batch * outputs, type);
  return succeeds(xk_interaction(from.data(), strides.data(), count, batch, features, type,
                                 output.get()),
                  "interaction") &&
         succeeds(xk_interaction_backward(from.data(), strides.data(), count, batch, features, type,
                                          gradient.get(), to.data()),
                  "interaction_backward");
}

bool pool(int64_t channels, int64_t height, int64_t width, int32_t type, int32_t ratio,
          int32_t aligned, int32_t channels_last) {
  std::mt19937 random(17);
  const float h = static_cast<float>(height), w = static_cast<float>(width);
  const float regions[][4] = {{1, 1, w / 2, h},
                              {-3, -2, 2 * w, 3 * h},
                              {2, 3, 2, 3},
                              {w, h, 0, 0},
                              {9 * w, 9 * h, 1e9f, 1e9f},
                              {-1e9f, 0, 1e9f, h},
                              {kNan, 0, 1, 1},
                              {0, -kInfinity, w, h},
                              {0, 0, kInfinity, h},
                              {-3e38f, -3e38f, 3e38f, 3e38f},
                              {w - 1, h - 1, w, h},
                              {-1, -1, 0, 0}};
  std::vector<float> boxes;
  int64_t count = 0;
  for (const auto& region : regions) {
    boxes.push_back(static_cast<float>(count++ % 2));
    boxes.insert(boxes.end(), region, region + 4);
  }
  const std::unique_ptr<float[]> exact(new float[boxes.size()]);
  memcpy(exact.get(), boxes.data(), boxes.size() * sizeof(float));
  xk_roi_align_task task = {};
  task.images = 2;
  task.channels = channels;
  task.height = height;
  task.width = width;
  task.boxes = count;
  task.output_height = 3;
  task.output_width = 2;
  task.spatial_scale = 1;
  task.sampling_ratio = ratio;
  task.aligned = aligned;
  task.type = type;
  task.channels_last = channels_last;
  const Values images(random, 2 * channels * height * width, type);
  const Values pooled(random, count * channels * 6, type);
  const Values gradient(random, count * channels * 6, type);
  Values sums(random, 2 * channels * height * width, XK_FLOAT32);
  sums.clear();
  if (!succeeds(xk_roi_align(&task, images.get(), exact.get(), pooled.get()), "roi_align") ||
      !succeeds(xk_roi_align_backward(&task, gradient.get(), exact.get(), sums.floats()),
                "roi_align_backward")) {
    return false;
  }
  // Random bytes of fp16 may be NaN, whose payload may differ.
  if (type == XK_FLOAT32) {
    pooled.add_to_sum();
    sums.add_to_sum();
  }
  return true;
}

template <typename Number>
bool suppress(int64_t count) {
  std::mt19937 random(17);
  std::uniform_real_distribution<Number> place(0, 500), side(0, 60);
  const std::unique_ptr<Number[]> boxes(new Number[static_cast<size_t>(4 * count)]);
  const std::unique_ptr<int64_t[]> order(new int64_t[static_cast<size_t>(count)]);
  for (int64_t i = 0; i < count; ++i) {
    Number* box = boxes.get() + 4 * i;
    for (int at = 0; at < 2; ++at) {
      box[at] = place(random);
      box[at + 2] = box[at] + side(random);
    }
    if (i % 50 == 7) box[i % 4] = std::numeric_limits<Number>::quiet_NaN();
    order[i] = count - 1 - i;
  }
  const std::unique_ptr<uint8_t[]> kept(new uint8_t[static_cast<size_t>(count)]);
  const int64_t starts[] = {0, count / 3, count / 3, count};
  if (!succeeds(
          xk_nms(boxes.get(), sizeof(Number) == 8, count, order.get(), starts, 3, 0.3, kept.get()),
          "nms")) {
    return false;
  }
  for (int64_t i = 0; i < count; ++i) sum = (sum ^ kept[i]) * 0x100000001b3u;
  return true;
}

bool run() {
  for (int32_t type = XK_FLOAT32; type <= XK_FLOAT16; ++type) {
    for (const int64_t features : {0, 1, 15, 16, 17, 64, 131}) {
      for (const int64_t count : {1, 2, 5, 8, 27}) {
        if (!interact(count, 3, features, type)) return false;
      }
    }
    if (!interact(6, 700, 33, type)) return false;
    for (int32_t options = 0; options < 8; ++options) {
      const int32_t aligned = options & 1, last = options >> 1 & 1, ratio = options >> 2 & 1;
      if (!pool(70, 9, 11, type, 2 * ratio, aligned, last)) return false;
      if (!pool(3, 5, 37, type, 2 * ratio, aligned, last)) return false;
      if (!pool(1, 1, 1, type, 2 * ratio, aligned, last)) return false;
      if (!pool(200, 20, 18, type, 2 * ratio, aligned, last)) return false;
    }
  }
  for (const int64_t count : {1, 3, 100, 13000}) {
    if (!suppress<float>(count) || !suppress<double>(count)) return false;
  }
  return true;
}

}  // namespace

int main() {
  for (int threads = 1; threads <= 3; threads += 2) {
    omp_set_num_threads(threads);
    if (!run()) return 1;
  }
  printf("%s: %d calls, checksum %016llx\n", xk_isa_name(), calls,
         static_cast<unsigned long long>(sum));
  return 0;
}
