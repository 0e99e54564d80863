// SPDX-License-Identifier: Apache-2.0
//
// Checks of the interaction's arguments, its memory, and the division of the batch among the team.
#include "ops/interaction/kernels.h"
#include "ops/team.h"

namespace {

using namespace xkernels;

// Batches of fewer multiplications run on the calling thread: waking a team takes longer.
constexpr int64_t kGrain = 1 << 18;

constexpr int64_t kMaxCount = 1 << 14;
constexpr int64_t kMaxFeatures = INT32_MAX;  // the loops over a row count in an int
constexpr int64_t kMaxSize = 1LL << 40;      // of the batch and a stride

bool all_usable(const void* const* pointers, int64_t count, int32_t type) {
  if (pointers == nullptr) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (!usable(pointers[i], width_of(type))) return false;
  }
  return true;
}

int32_t problem_of(const Interaction& of, int64_t batch) {
  if (of.type < XK_FLOAT32 || of.type > XK_FLOAT16) return XK_INVALID_TYPE;
  if (of.count < 1 || of.count > kMaxCount || batch < 0 || batch > kMaxSize) return XK_INVALID_SIZE;
  if (of.features < 0 || of.features > kMaxFeatures) return XK_INVALID_SIZE;
  if (of.strides == nullptr) return XK_INVALID_POINTER;
  for (int64_t i = 0; i < of.count; ++i) {
    if (of.strides[i] < 0 || of.strides[i] > kMaxSize) return XK_INVALID_SIZE;
  }
  const bool empty = batch == 0 || of.features == 0;
  return empty || all_usable(of.inputs, of.count, of.type) ? 0 : XK_INVALID_POINTER;
}

// Calls visit(scratch, begin, end) for the whole batch, or on each thread for an equal share.
template <typename Visit>
int32_t visit_batch(const Interaction& of, int64_t batch, const Visit& visit) {
  if (batch == 0) return 0;
  const int64_t work = of.count * (of.count + 1) / 2 * (of.features + 1);
  const bool alone = batch < kGrain && batch * work < kGrain;
  const auto cut = [&](Cutter& cutter) {
    const int64_t features = round_up(of.features, kInteractionPadding);
    const int64_t count = round_up(of.count, kInteractionPadding);
    return InteractionScratch{
        cutter.take<const float*>(count),
        cutter.take<float>(of.count * features),
        cutter.take<float>(count * count),
        cutter.take<float>(kInteractionRows * features),
        cutter.take<float>(features),
        cutter.take<float>(of.count * (of.count - 1) / 2 + 2 * kInteractionPadding)};
  };
  const ThreadMemory memory(alone ? 1 : omp_get_max_threads(), cut);
  if (!memory.allocated()) return XK_REFUSED;
  run_on_team(!alone, [&](int64_t thread, int64_t threads) {
    const Share share = share_of(batch, thread, threads);
    visit(memory.of_thread(thread), share.begin, share.end);
  });
  return 0;
}

}  // namespace

int32_t xk_interaction(const void* const* inputs, const int64_t* strides, int64_t count,
                       int64_t batch, int64_t features, int32_t type, void* output) {
  const Interaction of = {inputs, strides, count, features, type};
  const int32_t problem = checked<InteractionKernels>(problem_of(of, batch));
  if (problem != 0) return problem;
  const bool empty = batch == 0 || (features == 0 && count == 1);
  if (!empty && !usable(output, width_of(type))) return XK_INVALID_POINTER;
  const InteractionKernels* kernels = kernels_in_use<InteractionKernels>();
  return visit_batch(of, batch, [=](const InteractionScratch& scratch, int64_t begin, int64_t end) {
    kernels->forward(of, scratch, begin, end, output);
  });
}

int32_t xk_interaction_backward(const void* const* inputs, const int64_t* strides, int64_t count,
                                int64_t batch, int64_t features, int32_t type, const void* gradient,
                                void* const* gradients) {
  const Interaction of = {inputs, strides, count, features, type};
  const int32_t problem = checked<InteractionKernels>(problem_of(of, batch));
  if (problem != 0) return problem;
  const bool empty = batch == 0 || features == 0;
  if (!empty && (!usable(gradient, width_of(type)) || !all_usable(gradients, count, type)))
    return XK_INVALID_POINTER;
  const InteractionKernels* kernels = kernels_in_use<InteractionKernels>();
  if (features == 0) return 0;
  return visit_batch(of, batch, [=](const InteractionScratch& scratch, int64_t begin, int64_t end) {
    kernels->backward(of, scratch, begin, end, gradient, gradients);
  });
}
