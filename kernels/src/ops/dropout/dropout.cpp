// SPDX-License-Identifier: Apache-2.0
//
// Checks of dropout's arguments, and the division of its values among the team.
#include "ops/dropout/kernels.h"
#include "ops/team.h"

namespace {

using namespace xkernels;

// Fewer values run on the calling thread: waking a team takes longer.
constexpr int64_t kGrain = 1 << 15;

constexpr int64_t kMaxCount = 1LL << 40;
constexpr double kWords = 4294967296.0;

int32_t problem_of(const Dropout& of, double probability) {
  if (of.type < XK_FLOAT32 || of.type > XK_FLOAT16) return XK_INVALID_TYPE;
  if (of.count < 0 || of.count > kMaxCount) return XK_INVALID_SIZE;
  if (!(probability >= 0 && probability <= 1)) return XK_INVALID_PROBABILITY;
  const int width = width_of(of.type);
  const bool all = usable(of.input, width, of.count) && usable(of.output, width, of.count);
  return all ? 0 : XK_INVALID_POINTER;
}

}  // namespace

int32_t xk_dropout(const void* input, int64_t count, int32_t type, double probability, uint64_t key,
                   uint64_t stream, void* output) {
  Dropout of = {input, output, count, type, 0, 0, key, stream};
  const int32_t problem = checked<DropoutKernels>(problem_of(of, probability));
  if (problem != 0) return problem;
  // With a probability of 1 kept values are multiplied by 0, too.
  if (probability < 1) of.scale = static_cast<float>(1 / (1 - probability));
  const double threshold = __builtin_floor(probability * kWords + 0.5);
  of.threshold = threshold < kWords ? static_cast<uint32_t>(threshold) : UINT32_MAX;
  const DropoutKernels* kernels = kernels_in_use<DropoutKernels>();
  const int64_t groups = divide_up(count, kDropoutGroup);
  run_on_team(count >= kGrain, [&](int64_t thread, int64_t threads) {
    const Share share = share_of(groups, thread, threads);
    kernels->run(of, share.begin, share.end);
  });
  return 0;
}
