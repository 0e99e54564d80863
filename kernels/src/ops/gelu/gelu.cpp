// SPDX-License-Identifier: Apache-2.0
//
// Checks of GELU's arguments, and the division of its values among the team.
#include "ops/gelu/kernels.h"
#include "ops/team.h"

namespace {

using namespace xkernels;

// Fewer values run on the calling thread: waking a team takes longer.
constexpr int64_t kGrain = 1 << 15;

// Values that one thread computes, whole cache lines.
constexpr int64_t kBlock = 64;

constexpr int64_t kMaxCount = 1LL << 40;

int32_t problem_of(const Gelu& of, int64_t count) {
  if (of.type < XK_FLOAT32 || of.type > XK_FLOAT16) return XK_INVALID_TYPE;
  if (count < 0 || count > kMaxCount) return XK_INVALID_SIZE;
  const int width = width_of(of.type);
  const bool all = usable(of.input, width, count) && usable(of.output, width, count) &&
                   (of.gradient == nullptr || usable(of.gradient, width, count));
  return all ? 0 : XK_INVALID_POINTER;
}

}  // namespace

int32_t xk_gelu(const void* input, const void* gradient, int64_t count, int32_t type,
                int32_t by_tanh, void* output) {
  const Gelu of = {input, gradient, output, type, by_tanh != 0};
  const int32_t problem = checked<GeluKernels>(problem_of(of, count));
  if (problem != 0) return problem;
  const GeluKernels* kernels = kernels_in_use<GeluKernels>();
  const int64_t blocks = divide_up(count, kBlock);
  run_on_team(count >= kGrain, [&](int64_t thread, int64_t threads) {
    const Share share = share_of(blocks, thread, threads);
    const int64_t end = share.end * kBlock;
    kernels->run(of, share.begin * kBlock, end < count ? end : count);
  });
  return 0;
}
