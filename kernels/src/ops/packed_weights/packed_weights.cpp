// SPDX-License-Identifier: Apache-2.0
//
// Checks of the arguments, and the division of the rows among the team.
#include "ops/packed_weights/kernels.h"
#include "ops/team.h"
#include "xkernels/weights.h"

namespace {

using namespace xkernels;

constexpr int64_t kMaxSize = INT32_MAX;
constexpr int64_t kGrain = 1 << 16;

// Bytes of a row of `inputs` packed weights.
int64_t row_bytes(int32_t type, int64_t inputs) {
  return group_count(inputs) * kGroup * (type == XK_PACKED8 ? 8 : 4) / 8;
}

bool are_sizes(int64_t inputs, int64_t outputs) {
  return inputs >= 0 && inputs <= kMaxSize && outputs >= 0 && outputs <= kMaxSize;
}

template <typename Work>
void for_each_row(int64_t inputs, int64_t outputs, const Work& work) {
  run_on_team(inputs * outputs >= kGrain, [&](int64_t thread, int64_t threads) {
    const Share share = share_of(outputs, thread, threads);
    for (int64_t row = share.begin; row < share.end; ++row) work(row);
  });
}

}  // namespace

int32_t xk_pack_weights(const void* values, int32_t value_type, int64_t inputs, int64_t outputs,
                        int32_t type, void* packed, void* scales) {
  int32_t problem = 0;
  const bool known = value_type >= XK_FLOAT32 && value_type <= XK_FLOAT16;
  const int64_t width = width_of(value_type);
  if (!known || !is_packed_type(type))
    problem = XK_INVALID_TYPE;
  else if (!are_sizes(inputs, outputs))
    problem = XK_INVALID_SIZE;
  else if (!usable(values, width, inputs * outputs) || !usable(packed, 2, inputs * outputs) ||
           !usable(scales, 2, inputs * outputs))
    problem = XK_INVALID_POINTER;
  problem = checked<PackedWeightsKernels>(problem);
  if (problem != 0 || inputs == 0) return problem;
  const PackedWeightsKernels* kernels = kernels_in_use<PackedWeightsKernels>();
  for_each_row(inputs, outputs, [&](int64_t row) {
    kernels->pack(static_cast<const char*>(values) + row * inputs * width, value_type, inputs, type,
                  static_cast<uint8_t*>(packed) + row * row_bytes(type, inputs),
                  static_cast<uint16_t*>(scales) + row * group_count(inputs));
  });
  return 0;
}

int32_t xk_unpack_weights(const xk_weights* weights, int64_t inputs, int64_t outputs,
                          int32_t value_type, void* output) {
  int32_t problem = 0;
  const int64_t width = width_of(value_type);
  if (weights == nullptr)
    problem = XK_INVALID_POINTER;
  else if (!is_value_type(value_type) || !is_packed_type(weights->type))
    problem = XK_INVALID_TYPE;
  else if (!are_sizes(inputs, outputs))
    problem = XK_INVALID_SIZE;
  else if (inputs > 0 && outputs > 0 && usable(output, width))
    problem = weights_problem(*weights);
  else if (inputs > 0 && outputs > 0)
    problem = XK_INVALID_POINTER;
  problem = checked<PackedWeightsKernels>(problem);
  if (problem != 0 || inputs == 0) return problem;
  const PackedWeightsKernels* kernels = kernels_in_use<PackedWeightsKernels>();
  for_each_row(inputs, outputs, [&](int64_t row) {
    kernels->unpack(
        static_cast<const uint8_t*>(weights->values) + row * row_bytes(weights->type, inputs),
        static_cast<const uint16_t*>(weights->scales) + row * group_count(inputs), weights->type,
        inputs, value_type, static_cast<char*>(output) + row * inputs * width);
  });
  return 0;
}
