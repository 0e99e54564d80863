// SPDX-License-Identifier: Apache-2.0
//
// Non-maximum suppression: checks, and the division of groups and boxes among the team.
#include <string.h>

#include "ops/nms/kernels.h"
#include "ops/team.h"

namespace {

using namespace xkernels;

// Groups with fewer boxes are decided by one thread, and so are few of them together: waking a team
// takes longer.
constexpr int64_t kGrain = 8192;

// Boxes whose fate is decided by one thread before the team applies them to all later ones.
constexpr int64_t kBlock = 256;

constexpr int64_t kMaxCount = INT64_MAX / 64;

int32_t problem_of(const void* boxes, int32_t in_fp64, int64_t count, const int64_t* order,
                   const int64_t* starts, int64_t groups, const uint8_t* kept) {
  if (count < 0 || count > kMaxCount || groups < 0) return XK_INVALID_SIZE;
  if (groups == 0) return count == 0 ? 0 : XK_INVALID_GROUPS;
  if (starts == nullptr) return XK_INVALID_POINTER;
  if (starts[0] != 0 || starts[groups] != count) return XK_INVALID_GROUPS;
  for (int64_t group = 0; group < groups; ++group) {
    if (starts[group] > starts[group + 1]) return XK_INVALID_GROUPS;
  }
  if (!usable(boxes, in_fp64 ? 8 : 4, count) || !usable(order, 8, count) ||
      !usable(kept, 1, count)) {
    return XK_INVALID_POINTER;
  }
  for (int64_t at = 0; at < count; ++at) {
    if (order[at] < 0 || order[at] >= count) return XK_INVALID_ORDER;
  }
  return 0;
}

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
  // False without memory.
  bool make(const Number* boxes, int64_t count, const int64_t* order) {
    if (!sides_.allocate(5 * count) || !suppressed_.allocate_zeros(count)) return false;
    for (int side = 0; side < 5; ++side) boxes_.sides[side] = &sides_[side * count];
    for (int64_t at = 0; at < count; ++at) {
      const Number* box = boxes + 4 * order[at];
      for (int side = 0; side < 4; ++side) sides_[side * count + at] = box[side];
      sides_[4 * count + at] = (box[2] - box[0]) * (box[3] - box[1]);
    }
    return true;
  }
  const Boxes<Number>& boxes() const { return boxes_; }
  uint8_t* suppressed() const { return suppressed_.data(); }

 private:
  Boxes<Number> boxes_;
  Buffer<Number> sides_;
  Buffer<uint8_t> suppressed_;
};

// Applies the boxes from `begin` to `end` that are kept to those from `first` to `last`.
template <typename Number>
void apply(Suppress<Number> suppress, const Sorted<Number>& sorted, Number threshold, int64_t begin,
           int64_t end, int64_t first, int64_t last) {
  for (int64_t by = begin; by < end; ++by) {
    if (sorted.suppressed()[by]) continue;
    const int64_t from = first > by ? first : by + 1;
    suppress(sorted.boxes(), by, from, last, threshold, sorted.suppressed());
  }
}

// One large group, on the whole team.
template <typename Number>
void decide_together(Suppress<Number> suppress, const Sorted<Number>& sorted, Number threshold,
                     int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t next = block + kBlock < end ? block + kBlock : end;
    apply(suppress, sorted, threshold, block, next, block, next);
    run_on_team(end - next >= kGrain, [&](int64_t thread, int64_t threads) {
      const auto share = share_of(end - next, thread, threads);
      apply(suppress, sorted, threshold, block, next, next + share.begin, next + share.end);
    });
  }
}

template <typename Number>
int32_t run(Suppress<Number> suppress, const void* boxes, int64_t count, const int64_t* order,
            const int64_t* starts, int64_t groups, double given_threshold, uint8_t* kept) {
  Sorted<Number> sorted;
  if (!sorted.make(static_cast<const Number*>(boxes), count, order)) return XK_REFUSED;
  const Number threshold = rounded_down(given_threshold, Number());
  const bool alone = count < kGrain || omp_get_max_threads() == 1;
  // Large groups one after the other, then the small ones side by side.
  const auto large = [=](int64_t group) {
    return !alone && starts[group + 1] - starts[group] >= kGrain;
  };
  for (int64_t group = 0; group < groups; ++group) {
    if (large(group)) {
      decide_together(suppress, sorted, threshold, starts[group], starts[group + 1]);
    }
  }
  run_tasks(groups, !alone, [&](int64_t group, int64_t) {
    if (large(group)) return;
    apply(suppress, sorted, threshold, starts[group], starts[group + 1], starts[group],
          starts[group + 1]);
  });
  for (int64_t at = 0; at < count; ++at) kept[order[at]] = !sorted.suppressed()[at];
  return 0;
}

}  // namespace

int32_t xk_nms(const void* boxes, int32_t in_fp64, int64_t count, const int64_t* order,
               const int64_t* starts, int64_t groups, double threshold, uint8_t* kept) {
  const int32_t problem =
      checked<NmsKernels>(problem_of(boxes, in_fp64, count, order, starts, groups, kept));
  if (problem != 0) return problem;
  const NmsKernels* kernels = kernels_in_use<NmsKernels>();
  if (count == 0) return 0;
  return in_fp64 ? run(kernels->in_fp64, boxes, count, order, starts, groups, threshold, kept)
                 : run(kernels->in_fp32, boxes, count, order, starts, groups, threshold, kept);
}
