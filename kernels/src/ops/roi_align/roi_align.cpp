// SPDX-License-Identifier: Apache-2.0
//
// Checks of roi_align's arguments, its memory, and the division of regions and images among the
// team.
#include "ops/roi_align/kernels.h"
#include "ops/team.h"

namespace {

using namespace xkernels;

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

int32_t problem_of(const xk_roi_align_task* given, const void* values, const float* boxes,
                   const void* bins, bool values_in_fp32) {
  if (given == nullptr) return XK_INVALID_POINTER;
  const xk_roi_align_task& task = *given;
  if (task.type < XK_FLOAT32 || task.type > XK_FLOAT16) return XK_INVALID_TYPE;
  const auto outside = [](int64_t size, int64_t least, int64_t most) {
    return size < least || size > most;
  };
  if (task.images < 0 || task.channels < 0 || task.boxes < 0 || outside(task.height, 0, kMaxSide) ||
      outside(task.width, 0, kMaxSide) || outside(task.output_height, 1, kMaxBins) ||
      outside(task.output_width, 1, kMaxBins)) {
    return XK_INVALID_SIZE;
  }
  const Sizes sizes = sizes_of(task);
  if (sizes.pixels < 0 || sizes.bins < 0) return XK_INVALID_SIZE;
  if (task.boxes == 0) return 0;
  if (task.height == 0 || task.width == 0) return XK_NO_PIXELS;
  const int width = width_of(task.type);
  if (!usable(boxes, 4) || !usable(values, values_in_fp32 ? 4 : width, task.channels) ||
      !usable(bins, width, task.channels)) {
    return XK_INVALID_POINTER;
  }
  return boxes_valid(task, boxes) ? 0 : XK_INVALID_IMAGE;
}

// The most pixels that all bins along an axis can read.
int64_t entries(const xk_roi_align_task& task, int64_t bins, int64_t size) {
  const int64_t ratio = task.sampling_ratio;
  return bins * (ratio > 0 && 2 * ratio < size ? 2 * ratio : size);
}

RoiAxis cut_axis(Cutter& cutter, int64_t bins, int64_t entries) {
  return {cutter.take<int64_t>(bins + 1), cutter.take<int32_t>(entries),
          cutter.take<float>(entries)};
}

int64_t at_least_one(int64_t value) { return value < 1 ? 1 : value; }

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The forward pass's parts: some regions each, and of these some rows of bins or channels.
struct Division {
  int64_t boxes, box_parts;        // regions of a part, and how many parts that makes
  int64_t divisible, size, parts;  // rows or channels; how many a part has; parts
};

Division divide(const xk_roi_align_task& task, int64_t threads) {
  const int64_t wanted = threads == 1 ? 1 : kPartsOfThread * threads;
  Division by;
  if (task.channels_last) {
    by.boxes = at_least_one(task.boxes / wanted / kPartsOfThread);
    by.box_parts = divide_up(task.boxes, by.boxes);
    by.divisible = task.output_height;
    by.size = divide_up(by.divisible, smaller(divide_up(wanted, by.box_parts), by.divisible));
    by.parts = divide_up(by.divisible, by.size);
  } else {
    const int64_t fitting = kChannelBytes / (task.height * task.width * width_of(task.type));
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
                    const Visit& visit) {
  const bool alone = values < kGrain || threads == 1;
  const auto cut = [&](Cutter& cutter) {
    return RoiScratch{
        cut_axis(cutter, task.output_height, entries(task, task.output_height, task.height)),
        cut_axis(cutter, task.output_width, entries(task, task.output_width, task.width)),
        cutter.take<float>(task.width), cutter.take<float>(task.output_width + kRoiMaxLanes)};
  };
  const ThreadMemory memory(alone ? 1 : threads, cut);
  if (!memory.allocated()) return XK_REFUSED;
  run_tasks(parts, !alone,
            [&](int64_t part, int64_t thread) { visit(memory.of_thread(thread), part); });
  return 0;
}

}  // namespace

int32_t xk_roi_align(const xk_roi_align_task* task, const void* images, const float* boxes,
                     void* output) {
  const int32_t problem = checked<RoiKernels>(problem_of(task, images, boxes, output, false));
  if (problem != 0) return problem;
  const RoiKernels* kernels = kernels_in_use<RoiKernels>();
  const int64_t values = sizes_of(*task).bins;
  if (values == 0) return 0;
  const int64_t threads = omp_get_max_threads();
  const Division whole = divide(*task, threads);
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
  const int32_t problem = checked<RoiKernels>(problem_of(task, sums, boxes, gradients, true));
  if (problem != 0) return problem;
  const RoiKernels* kernels = kernels_in_use<RoiKernels>();
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
