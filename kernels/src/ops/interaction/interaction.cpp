// SPDX-License-Identifier: Apache-2.0
//
// Checks of the interaction's arguments, its memory, and the division of the batch among the team.
#include "xkernels/interaction.h"

#include <omp.h>
#include <stdint.h>
#include <stdlib.h>

#include "ops/interaction/kernels.h"

namespace {

using xkernels::Interaction;
using xkernels::InteractionKernels;
using xkernels::InteractionScratch;

// Batches of fewer multiplications run on the calling thread: waking a team takes longer.
constexpr int64_t kGrain = 1 << 18;

constexpr int64_t kMaxCount = 1 << 14;
constexpr int64_t kMaxFeatures = INT32_MAX;  // the loops over a row count in an int
constexpr int64_t kMaxSize = 1LL << 40;      // of the batch and a stride

#define XK_ENTRY(suffix, name) &xkernels::interaction_##suffix,
constexpr const InteractionKernels* kImplementations[] = {XK_EACH_ISA(XK_ENTRY)};
#undef XK_ENTRY

const InteractionKernels* implementation() {
  const int isa = xkernels::isa_index();
  return isa < 0 ? nullptr : kImplementations[isa];
}

bool usable(const void* pointer, int32_t type) {
  const uintptr_t width = type == XK_FLOAT32 ? 4 : 2;
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % width == 0;
}

bool all_usable(const void* const* pointers, int64_t count, int32_t type) {
  if (pointers == nullptr) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (!usable(pointers[i], type)) return false;
  }
  return true;
}

bool valid(const Interaction& of, int64_t batch) {
  if (of.type < XK_FLOAT32 || of.type > XK_FLOAT16) return false;
  if (of.count < 1 || of.count > kMaxCount || batch < 0 || batch > kMaxSize) return false;
  if (of.features < 0 || of.features > kMaxFeatures || of.strides == nullptr) return false;
  for (int64_t i = 0; i < of.count; ++i) {
    if (of.strides[i] < 0 || of.strides[i] > kMaxSize) return false;
  }
  return batch == 0 || of.features == 0 || all_usable(of.inputs, of.count, of.type);
}

int64_t pad(int64_t size) {
  constexpr int64_t kPadding = xkernels::kInteractionPadding;
  return (size + kPadding - 1) / kPadding * kPadding;
}

// One scratch for each thread, in one block.
class Memory {
 public:
  Memory(const Interaction& of, int64_t threads)
      : copies_(of.count * pad(of.features)),
        products_(pad(of.count) * pad(of.count)),
        pointers_(pad(of.count) * static_cast<int64_t>(sizeof(float*))),
        results_(xkernels::kInteractionRows * pad(of.features)),
        copied_(pad(of.features)),
        bytes_(pointers_ + 4 * (copies_ + products_ + results_ + copied_ + pairs(of))),
        block_(static_cast<char*>(calloc(static_cast<size_t>(threads),  //
                                         static_cast<size_t>(bytes_)))) {}
  ~Memory() { free(block_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  bool allocated() const { return block_ != nullptr; }

  InteractionScratch of_thread(int64_t thread) const {
    char* start = block_ + thread * bytes_;
    float* copies = reinterpret_cast<float*>(start + pointers_);
    float* products = copies + copies_;
    float* results = products + products_;
    float* copied = results + results_;
    return {reinterpret_cast<const float**>(start),
            copies,
            products,
            results,
            copied,
            copied + copied_};
  }

 private:
  static int64_t pairs(const Interaction& of) {
    return pad(of.count * (of.count - 1) / 2) + xkernels::kInteractionPadding;
  }

  int64_t copies_, products_, pointers_, results_, copied_, bytes_;
  char* block_;
};

// Calls visit(scratch, begin, end) for the whole batch, or on each thread for an equal share.
template <typename Visit>
int32_t visit_batch(const Interaction& of, int64_t batch, Visit visit) {
  if (batch == 0) return 0;
  const int64_t work = of.count * (of.count + 1) / 2 * (of.features + 1);
  const bool alone = batch < kGrain && batch * work < kGrain;
  const Memory memory(of, alone ? 1 : omp_get_max_threads());
  if (!memory.allocated()) return XK_REFUSED;
  if (alone) {
    visit(memory.of_thread(0), 0, batch);
    return 0;
  }
#pragma omp parallel default(none) shared(memory, batch, visit)
  {
    const int64_t id = omp_get_thread_num();
    const int64_t team = omp_get_num_threads();
    const int64_t share = batch / team, rest = batch % team;
    const int64_t begin = id * share + (id < rest ? id : rest);
    visit(memory.of_thread(id), begin, begin + share + (id < rest ? 1 : 0));
  }
  return 0;
}

}  // namespace

int32_t xk_interaction(const void* const* inputs, const int64_t* strides, int64_t count,
                       int64_t batch, int64_t features, int32_t type, void* output) {
  const Interaction of = {inputs, strides, count, features, type};
  if (!valid(of, batch)) return XK_INVALID_ARGUMENT;
  const bool empty = batch == 0 || (features == 0 && count == 1);
  if (!empty && !usable(output, type)) return XK_INVALID_ARGUMENT;
  const InteractionKernels* kernels = implementation();
  if (kernels == nullptr) return XK_NO_ISA;
  return visit_batch(of, batch, [=](const InteractionScratch& scratch, int64_t begin, int64_t end) {
    kernels->forward(of, scratch, begin, end, output);
  });
}

int32_t xk_interaction_backward(const void* const* inputs, const int64_t* strides, int64_t count,
                                int64_t batch, int64_t features, int32_t type, const void* gradient,
                                void* const* gradients) {
  const Interaction of = {inputs, strides, count, features, type};
  if (!valid(of, batch)) return XK_INVALID_ARGUMENT;
  if (batch > 0 && features > 0) {
    if (!usable(gradient, type) || !all_usable(gradients, count, type)) return XK_INVALID_ARGUMENT;
  }
  const InteractionKernels* kernels = implementation();
  if (kernels == nullptr) return XK_NO_ISA;
  if (features == 0) return 0;
  return visit_batch(of, batch, [=](const InteractionScratch& scratch, int64_t begin, int64_t end) {
    kernels->backward(of, scratch, begin, end, gradient, gradients);
  });
}
