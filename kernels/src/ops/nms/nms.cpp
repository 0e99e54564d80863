// SPDX-License-Identifier: Apache-2.0
//
// Non-maximum suppression: checks, and the division of groups and boxes among the team.
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ops/nms/kernels.h"

namespace {

using xkernels::Boxes;
using xkernels::NmsKernels;
using xkernels::Suppression;

// Groups with fewer boxes are decided by one thread, and so are few of them together: waking a team
// takes longer.
constexpr int64_t kGrain = 8192;

// Boxes whose fate is decided by one thread before the team applies them to all later ones.
constexpr int64_t kBlock = 256;

constexpr int64_t kMaxCount = INT64_MAX / 64;

#define XK_ENTRY(suffix, name) &xkernels::nms_##suffix,
constexpr const NmsKernels* kImplementations[] = {XK_EACH_ISA(XK_ENTRY)};
#undef XK_ENTRY

const NmsKernels* implementation() {
  const int isa = xkernels::isa_index();
  return isa < 0 ? nullptr : kImplementations[isa];
}

bool valid(const void* boxes, int32_t in_fp64, int64_t count, const int64_t* order,
           const int64_t* starts, int64_t groups, const uint8_t* kept) {
  if (count < 0 || count > kMaxCount || groups < 0) return false;
  if (groups == 0) return count == 0;
  if (starts == nullptr || starts[0] != 0 || starts[groups] != count) return false;
  for (int64_t group = 0; group < groups; ++group) {
    if (starts[group] > starts[group + 1]) return false;
  }
  if (count == 0) return true;
  if (boxes == nullptr || order == nullptr || kept == nullptr) return false;
  if (reinterpret_cast<uintptr_t>(boxes) % (in_fp64 ? 8 : 4) != 0) return false;
  for (int64_t at = 0; at < count; ++at) {
    if (order[at] < 0 || order[at] >= count) return false;
  }
  return true;
}

const Suppression<float>& kernel_for(const NmsKernels& kernels, float) { return kernels.in_fp32; }
const Suppression<double>& kernel_for(const NmsKernels& kernels, double) { return kernels.in_fp64; }

// The largest number that is not above the threshold: numbers greater than one are greater than the
// other.
float rounded_down(double threshold, float) {
  const float nearest = static_cast<float>(threshold);
  if (!(static_cast<double>(nearest) > threshold)) return nearest;
  if (nearest == 0) return -__FLT_DENORM_MIN__;
  // The bits of magnitudes are ordered as these are.
  uint32_t bits;
  memcpy(&bits, &nearest, sizeof(bits));
  bits = nearest > 0 ? bits - 1 : bits + 1;
  float below;
  memcpy(&below, &bits, sizeof(below));
  return below;
}
double rounded_down(double threshold, double) { return threshold; }

// All boxes in order, side by side, and which are suppressed.
template <typename Number>
class Sorted {
 public:
  Sorted(const Number* boxes, int64_t count, const int64_t* order)
      : sides_(static_cast<Number*>(malloc(static_cast<size_t>(count) * 5 * sizeof(Number)))),
        suppressed_(static_cast<uint8_t*>(calloc(static_cast<size_t>(count), 1))) {
    if (!allocated()) return;
    for (int side = 0; side < 5; ++side) boxes_.sides[side] = sides_ + side * count;
    for (int64_t at = 0; at < count; ++at) {
      const Number* box = boxes + 4 * order[at];
      for (int side = 0; side < 4; ++side) sides_[side * count + at] = box[side];
      sides_[4 * count + at] = (box[2] - box[0]) * (box[3] - box[1]);
    }
  }
  ~Sorted() {
    free(sides_);
    free(suppressed_);
  }
  Sorted(const Sorted&) = delete;
  Sorted& operator=(const Sorted&) = delete;

  bool allocated() const { return sides_ != nullptr && suppressed_ != nullptr; }
  const Boxes<Number>& boxes() const { return boxes_; }
  uint8_t* suppressed() const { return suppressed_; }

 private:
  Boxes<Number> boxes_;
  Number* sides_;
  uint8_t* suppressed_;
};

// Applies the boxes from `begin` to `end` that are kept to those from `first` to `last`.
template <typename Number>
void apply(const Suppression<Number>& kernel, const Sorted<Number>& sorted, Number threshold,
           int64_t begin, int64_t end, int64_t first, int64_t last) {
  for (int64_t by = begin; by < end; ++by) {
    if (sorted.suppressed()[by]) continue;
    const int64_t from = first > by ? first : by + 1;
    kernel.suppress(sorted.boxes(), by, from, last, threshold, sorted.suppressed());
  }
}

// One large group, on the whole team.
template <typename Number>
void decide_together(const Suppression<Number>& kernel, const Sorted<Number>& sorted,
                     Number threshold, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t next = block + kBlock < end ? block + kBlock : end;
    apply(kernel, sorted, threshold, block, next, block, next);
    const int64_t left = end - next;
#pragma omp parallel if (left >= kGrain) default(none) \
    shared(kernel, sorted, threshold, block, next, left)
    {
      const int64_t id = omp_get_thread_num(), team = omp_get_num_threads();
      apply(kernel, sorted, threshold, block, next, next + left * id / team,
            next + left * (id + 1) / team);
    }
  }
}

template <typename Number>
int32_t run(const NmsKernels& kernels, const Number* boxes, int64_t count, const int64_t* order,
            const int64_t* starts, int64_t groups, double given_threshold, uint8_t* kept) {
  const Sorted<Number> sorted(boxes, count, order);
  if (!sorted.allocated()) return XK_REFUSED;
  const Suppression<Number>& kernel = kernel_for(kernels, Number());
  const Number threshold = rounded_down(given_threshold, Number());
  const bool alone = count < kGrain || omp_get_max_threads() == 1;
  // Large groups one after the other, then the small ones side by side.
  const auto large = [=](int64_t group) {
    return !alone && starts[group + 1] - starts[group] >= kGrain;
  };
  for (int64_t group = 0; group < groups; ++group) {
    if (large(group)) {
      decide_together(kernel, sorted, threshold, starts[group], starts[group + 1]);
    }
  }
#pragma omp parallel for schedule(dynamic) if (!alone && groups > 1) default(none) \
    shared(kernel, sorted, threshold, starts, groups, large)
  for (int64_t group = 0; group < groups; ++group) {
    if (large(group)) continue;
    apply(kernel, sorted, threshold, starts[group], starts[group + 1], starts[group],
          starts[group + 1]);
  }
  for (int64_t at = 0; at < count; ++at) kept[order[at]] = !sorted.suppressed()[at];
  return 0;
}

}  // namespace

int32_t xk_nms(const void* boxes, int32_t in_fp64, int64_t count, const int64_t* order,
               const int64_t* starts, int64_t groups, double threshold, uint8_t* kept) {
  if (!valid(boxes, in_fp64, count, order, starts, groups, kept)) return XK_INVALID_ARGUMENT;
  const NmsKernels* kernels = implementation();
  if (kernels == nullptr) return XK_NO_ISA;
  if (count == 0) return 0;
  if (in_fp64) {
    return run(*kernels, static_cast<const double*>(boxes), count, order, starts, groups, threshold,
               kept);
  }
  return run(*kernels, static_cast<const float*>(boxes), count, order, starts, groups, threshold,
             kept);
}
