// SPDX-License-Identifier: Apache-2.0
//
// Checks of the arguments, the activations in fp32, and the division of the outputs among the team.
#include "xkernels/linear_rows.h"

#include "ops/linear_rows/kernels.h"
#include "ops/team.h"

namespace {

using namespace xkernels;

// Layers of fewer weights run on the calling thread: waking a team takes longer.
constexpr int64_t kGrain = 1 << 16;

constexpr int64_t kMaxSize = INT32_MAX;  // the loops over a row count in an int
constexpr int64_t kMaxStride = 1LL << 40;
constexpr int64_t kMaxRows = 1 << 16;

bool is_size(int64_t size, int64_t largest) { return size >= 0 && size <= largest; }

}  // namespace

int32_t xk_linear_rows(const void* input, int64_t rows, int64_t stride, int32_t value_type,
                       const xk_weights* weights, const void* bias, int32_t bias_type,
                       int64_t inputs, int64_t outputs, void* output) {
  int32_t problem = 0;
  if (weights == nullptr) {
    problem = XK_INVALID_POINTER;
  } else if (!is_value_type(value_type) || !is_value_type(bias_type) ||
             !(is_value_type(weights->type) || is_packed_type(weights->type))) {
    problem = XK_INVALID_TYPE;
  } else if (!is_size(rows, kMaxRows) || !is_size(inputs, kMaxSize) ||
             !is_size(outputs, kMaxSize) || !is_size(stride, kMaxStride)) {
    problem = XK_INVALID_SIZE;
  } else if (rows > 0 && outputs > 0) {
    const int value = width_of(value_type);
    const bool valid = usable(input, value, inputs) && usable(output, value) &&
                       (bias == nullptr || usable(bias, width_of(bias_type)));
    problem = valid ? inputs == 0 ? 0 : weights_problem(*weights) : XK_INVALID_POINTER;
  }
  problem = checked<LinearRowsKernels>(problem);
  if (problem != 0 || rows == 0 || outputs == 0) return problem;

  const int64_t padded = padded_size(inputs);
  Buffer<float> copies;
  if (!copies.allocate_zeros(rows * padded)) return XK_REFUSED;
  const int64_t packed = is_packed_type(weights->type) ? rows : 0;
  const auto cut_integers = [&](Cutter& cutter) {
    return Integers{cutter.take<int16_t>(packed * integer_size(inputs)),
                    cutter.take<float>(packed * scale_size(inputs))};
  };
  const bool parallel = outputs * inputs >= kGrain;
  const ThreadMemory own(parallel ? omp_get_max_threads() : 1, cut_integers);
  if (!own.allocated()) return XK_REFUSED;
  const LinearRowsKernels* kernels = kernels_in_use<LinearRowsKernels>();
  for (int64_t row = 0; row < rows; ++row) {
    const char* from = static_cast<const char*>(input);
    from += row * stride * width_of(value_type);
    kernels->widen(from, value_type, inputs, copies.data() + row * padded);
  }
  const LinearRows of = {*weights,      bias, bias_type, inputs, outputs,
                         copies.data(), rows, padded,    output, value_type};
  run_on_team(parallel, [&](int64_t thread, int64_t threads) {
    const Share share = share_of(row_groups(outputs), thread, threads);
    const int64_t end = share.end * kRowsAtOnce;
    kernels->multiply(of, own.of_thread(thread), share.begin * kRowsAtOnce,
                      end < outputs ? end : outputs);
  });
  return 0;
}
