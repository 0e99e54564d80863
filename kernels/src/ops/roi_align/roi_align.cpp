// SPDX-License-Identifier: Apache-2.0
//
// Checks of roi_align's arguments, its memory, and the division of regions and images among the
// team.
#include "xkernels/roi_align.h"

#include <omp.h>
#include <stdint.h>
#include <stdlib.h>

#include "ops/roi_align/kernels.h"

namespace {

using xkernels::RoiAxis;
using xkernels::RoiKernels;
using xkernels::RoiPart;
using xkernels::RoiScratch;
using xkernels::RoiShare;

// Tasks of fewer pooled values run on the calling thread: waking a team takes longer.
constexpr int64_t kGrain = 4096;

constexpr int64_t kMaxSide = 1 << 24;  // of an image; fp32 can count its pixels
constexpr int64_t kMaxBins = 1 << 16;
constexpr int64_t kMaxValues = INT64_MAX / 16;

// Regions or images are divided until each thread has that many parts, as they differ in size.
constexpr int64_t kPartsOfThread = 4;

// Channels that are pooled together, for one region after the other, should fit into the
// second-level cache with their images, but fewer would repeat the preparation of regions too
// often.
constexpr int64_t kChannelBytes = 1 << 19;
constexpr int64_t kMinPooledChannels = 8;

// Fewer channels of a part would share cache lines or repeat the preparation of regions too often.
constexpr int64_t kMinChannels = 16;

#define XK_ENTRY(suffix, name) &xkernels::roi_align_##suffix,
constexpr const RoiKernels* kImplementations[] = {XK_EACH_ISA(XK_ENTRY)};
#undef XK_ENTRY

const RoiKernels* implementation() {
  const int isa = xkernels::isa_index();
  return isa < 0 ? nullptr : kImplementations[isa];
}

bool usable(const void* pointer, uintptr_t width) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % width == 0;
}

// The product, or -1 if it is above kMaxValues. The factors are at least 0, or -1 for a product
// that was.
int64_t product(int64_t a, int64_t b) {
  if (a < 0 || b < 0) return -1;
  return b == 0 || a <= kMaxValues / b ? a * b : -1;
}

struct Sizes {
  int64_t pixels, bins;  // values of all images and of all pooled regions; -1: too many
};

Sizes sizes_of(const xk_roi_align_task& task) {
  const int64_t pixels = product(task.height, task.width);
  const int64_t bins = task.output_height * task.output_width;
  return {product(product(task.images, task.channels), pixels),
          product(product(task.boxes, task.channels), bins)};
}

bool boxes_valid(const xk_roi_align_task& task, const float* boxes) {
  for (int64_t box = 0; box < task.boxes; ++box) {
    // The comparison is false for NaN.
    const float image = boxes[5 * box];
    if (!(image >= 0 && image < static_cast<float>(task.images))) return false;
  }
  return true;
}

bool valid(const xk_roi_align_task* given, const void* values, const float* boxes, const void* bins,
           int values_width, int bins_width) {
  const xk_roi_align_task& task = *given;
  if (task.type < XK_FLOAT32 || task.type > XK_FLOAT16) return false;
  if (task.images < 0 || task.channels < 0 || task.boxes < 0) return false;
  if (task.height < 0 || task.height > kMaxSide || task.width < 0 || task.width > kMaxSide) {
    return false;
  }
  if (task.output_height < 1 || task.output_height > kMaxBins) return false;
  if (task.output_width < 1 || task.output_width > kMaxBins) return false;
  const Sizes sizes = sizes_of(task);
  if (sizes.pixels < 0 || sizes.bins < 0) return false;
  if (task.boxes == 0) return true;
  if (task.height == 0 || task.width == 0) return false;
  if (!usable(boxes, 4) || !boxes_valid(task, boxes)) return false;
  return task.channels == 0 || (usable(values, static_cast<uintptr_t>(values_width)) &&
                                usable(bins, static_cast<uintptr_t>(bins_width)));
}

// One scratch for each thread, in one block that is not touched before it is used.
class Memory {
 public:
  Memory(const xk_roi_align_task& task, int64_t threads)
      : row_bins_(task.output_height),
        column_bins_(task.output_width),
        rows_(entries(task, task.output_height, task.height)),
        columns_(entries(task, task.output_width, task.width)),
        line_(task.width),
        floats_((line_ + task.output_width + xkernels::kRoiMaxLanes + 2 * (rows_ + columns_)) / 2 *
                    2 +
                2),
        bytes_(8 * (row_bins_ + column_bins_ + 2) + 4 * floats_),
        block_(static_cast<char*>(malloc(static_cast<size_t>(threads * bytes_)))) {}
  ~Memory() { free(block_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  bool allocated() const { return block_ != nullptr; }

  RoiScratch of_thread(int64_t thread) const {
    int64_t* starts = reinterpret_cast<int64_t*>(block_ + thread * bytes_);
    int32_t* pixels = reinterpret_cast<int32_t*>(starts + row_bins_ + column_bins_ + 2);
    float* weights = reinterpret_cast<float*>(pixels + rows_ + columns_);
    float* line = weights + rows_ + columns_;
    return {{starts, pixels, weights},
            {starts + row_bins_ + 1, pixels + rows_, weights + rows_},
            line,
            line + line_};
  }

 private:
  // The most pixels that all bins along an axis can read.
  static int64_t entries(const xk_roi_align_task& task, int64_t bins, int64_t size) {
    const int64_t ratio = task.sampling_ratio;
    return bins * (ratio > 0 && 2 * ratio < size ? 2 * ratio : size);
  }

  int64_t row_bins_, column_bins_, rows_, columns_, line_, floats_, bytes_;
  char* block_;
};

int64_t at_least_one(int64_t value) { return value < 1 ? 1 : value; }

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// The forward pass's parts: some regions each, and of these some rows of bins or channels.
struct Division {
  int64_t boxes, box_parts;        // regions of a part, and how many parts that makes
  int64_t divisible, size, parts;  // rows or channels; how many a part has; parts
};

Division divide(const xk_roi_align_task& task, int64_t threads, int64_t width) {
  const int64_t wanted = threads == 1 ? 1 : kPartsOfThread * threads;
  Division by;
  if (task.channels_last) {
    by.boxes = at_least_one(task.boxes / wanted / kPartsOfThread);
    by.box_parts = divide_up(task.boxes, by.boxes);
    by.divisible = task.output_height;
    by.size = divide_up(by.divisible, smaller(divide_up(wanted, by.box_parts), by.divisible));
    by.parts = divide_up(by.divisible, by.size);
  } else {
    const int64_t fitting = kChannelBytes / (task.height * task.width * width);
    const int64_t most = fitting < kMinPooledChannels ? kMinPooledChannels : fitting;
    by.divisible = task.channels;
    by.size = smaller(divide_up(task.channels, smaller(wanted, task.channels)), most);
    if (by.size < kMinPooledChannels) by.size = smaller(kMinPooledChannels, task.channels);
    by.parts = divide_up(by.divisible, by.size);
    by.boxes = divide_up(task.boxes, smaller(divide_up(wanted, by.parts), task.boxes));
    by.box_parts = divide_up(task.boxes, by.boxes);
  }
  return by;
}

// Calls visit(scratch, part) for 0 to `parts`, on the team if `values` are many.
template <typename Visit>
int32_t visit_parts(const xk_roi_align_task& task, int64_t values, int64_t threads, int64_t parts,
                    Visit visit) {
  const bool alone = values < kGrain || threads == 1;
  const Memory memory(task, alone ? 1 : threads);
  if (!memory.allocated()) return XK_REFUSED;
  if (alone) {
    for (int64_t part = 0; part < parts; ++part) visit(memory.of_thread(0), part);
    return 0;
  }
#pragma omp parallel default(none) shared(memory, parts, visit)
  {
    const RoiScratch scratch = memory.of_thread(omp_get_thread_num());
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < parts; ++part) visit(scratch, part);
  }
  return 0;
}

}  // namespace

int32_t xk_roi_align(const xk_roi_align_task* task, const void* images, const float* boxes,
                     void* output) {
  if (task == nullptr) return XK_INVALID_ARGUMENT;
  const int width = task->type == XK_FLOAT32 ? 4 : 2;
  if (!valid(task, images, boxes, output, width, width)) return XK_INVALID_ARGUMENT;
  const RoiKernels* kernels = implementation();
  if (kernels == nullptr) return XK_NO_ISA;
  const int64_t values = sizes_of(*task).bins;
  if (values == 0) return 0;
  const int64_t threads = omp_get_max_threads();
  const Division whole = divide(*task, threads, width);
  return visit_parts(*task, values, threads, whole.box_parts * whole.parts,
                     [=](const RoiScratch& scratch, int64_t part) {
                       const int64_t box = part % whole.box_parts * whole.boxes;
                       const int64_t begin = part / whole.box_parts * whole.size;
                       const RoiShare share = {box, smaller(box + whole.boxes, task->boxes), begin,
                                               smaller(begin + whole.size, whole.divisible)};
                       kernels->forward(*task, scratch, images, boxes, share, output);
                     });
}

int32_t xk_roi_align_backward(const xk_roi_align_task* task, const void* gradients,
                              const float* boxes, float* sums) {
  if (task == nullptr) return XK_INVALID_ARGUMENT;
  const int width = task->type == XK_FLOAT32 ? 4 : 2;
  if (!valid(task, sums, boxes, gradients, 4, width)) return XK_INVALID_ARGUMENT;
  const RoiKernels* kernels = implementation();
  if (kernels == nullptr) return XK_NO_ISA;
  const int64_t values = sizes_of(*task).bins;
  if (values == 0) return 0;
  // A thread owns channels of an image, and where these are few, rows: so nothing is added by two
  // threads, and each pixel's sum has one order.
  const int64_t threads = omp_get_max_threads();
  const int64_t wanted = divide_up(threads == 1 ? 1 : kPartsOfThread * threads, task->images);
  const int64_t most = at_least_one(task->channels / kMinChannels);
  const int64_t channels =
      divide_up(divide_up(task->channels, wanted < most ? wanted : most), kMinChannels) *
      kMinChannels;
  const int64_t blocks = divide_up(task->channels, channels);
  const int64_t more = wanted / blocks < task->height ? wanted / blocks : task->height;
  const int64_t rows = divide_up(task->height, at_least_one(more));
  const int64_t bands = divide_up(task->height, rows);
  return visit_parts(*task, values, threads, task->images * blocks * bands,
                     [=](const RoiScratch& scratch, int64_t part) {
                       const int64_t block = part / bands % blocks, band = part % bands;
                       const RoiPart own = {part / bands / blocks, block * channels,
                                            smaller((block + 1) * channels, task->channels),
                                            band * rows, smaller((band + 1) * rows, task->height)};
                       kernels->backward(*task, scratch, gradients, boxes, own, sums);
                     });
}
